//! What it costs to keep runs: durable steps a second, one after another and from many runs at once, beside what this
//! disk takes for one flush; whole runs that are kept; and readers of them. `cargo bench -p agentloop-tests --bench durable`
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a bench may panic")]

use std::{
    fs::File,
    io::Write as _,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use agentloop_host::{
    agent::{
        Left, ToolLoop,
        durable::{LeaseJournal, RunSpec},
        resume::Resumed,
        stop::Stopper,
    },
    event::RunEvent,
    ids::RunId,
    registry::{Registry, native::NativeTool},
    storage::{Keep, Lease, RunKind, RunStore, Submitted, sqlite::SqliteStore},
    transcript::Message,
};
use agentloop_tests::{
    agent::{Stateless, calls, says},
    storage::{begun, noted},
};
use serde_json::json;

fn main() {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let flush = flush(folder.path());
    println!("one flush of the disk (fdatasync), p50: {flush:?}");
    runtime.block_on(async {
        let store = Arc::new(SqliteStore::open(&folder.path().join("runs.db")).unwrap());
        one_after_another(&store, flush).await;
        for runs in [8, 64, 512] {
            many(&store, runs).await;
        }
        whole_runs(&store, 5_000).await;
    });
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times[times.len() / 2]
}

fn flush(folder: &std::path::Path) -> Duration {
    let mut file = File::create(folder.join("flushed")).unwrap();
    let times = (0..300).map(|_| {
        file.write_all(&[7; 4096]).unwrap();
        let begun = Instant::now();
        file.sync_data().unwrap();
        begun.elapsed()
    });
    median(times.collect())
}

async fn one_after_another(store: &Arc<SqliteStore>, flush: Duration) {
    let lease = begun(&**store).await;
    let event = noted("a step of a run, as long as such things are");
    let mut times = Vec::new();
    let whole = Instant::now();
    for _ in 0..1000 {
        let begun = Instant::now();
        store.append(&lease, &event, Keep::Durably).await.unwrap();
        times.push(begun.elapsed());
    }
    let rate = 1000.0 / whole.elapsed().as_secs_f64();
    let p50 = median(times);
    let ratio = p50.as_secs_f64() / flush.as_secs_f64();
    println!("one run alone: {rate:.0} durable steps/s, p50 {p50:?}, {ratio:.2} flushes");
}

async fn many(store: &Arc<SqliteStore>, runs: usize) {
    let steps = 40_000 / runs;
    let mut leases: Vec<Lease> = Vec::new();
    for _ in 0..runs {
        leases.push(begun(&**store).await);
    }
    let begun = Instant::now();
    let tasks: Vec<_> = leases
        .into_iter()
        .map(|lease| {
            let store = Arc::clone(store);
            tokio::spawn(async move {
                let event = noted("a step of a run, as long as such things are");
                for _ in 0..steps {
                    store.append(&lease, &event, Keep::Durably).await.unwrap();
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    let rate = (runs * steps) as f64 / begun.elapsed().as_secs_f64();
    println!("{runs} runs at once: {rate:.0} durable steps/s");
}

/// Each asks its model twice and calls a tool; all of it is kept, and read by somebody from the first event to the
/// last.
async fn whole_runs(store: &Arc<SqliteStore>, runs: usize) {
    let echo = NativeTool::new("echo", "Returns.", json!({"type": "object"}), |_| {
        Ok::<_, String>("hi")
    })
    .unwrap();
    let registry = Arc::new(Registry::new([echo]).unwrap());
    let model = Stateless::new(json!([
        calls(&[("a", "echo", json!({})), ("b", "echo", json!({}))]),
        says("done"),
    ]));
    let agent = ToolLoop::new(model, "stateless", registry);
    let n_events = Arc::new(AtomicUsize::new(0));
    let before = resident();
    let begun = Instant::now();
    let mut tasks = Vec::new();
    for _ in 0..runs {
        let (agent, store) = (agent.clone(), Arc::clone(store) as Arc<dyn RunStore>);
        let n_events = Arc::clone(&n_events);
        tasks.push(tokio::spawn(async move {
            let spec = RunSpec::of(&agent, vec![Message::user("go")]);
            let id = RunId::random().unwrap();
            let new = spec
                .to_new_run(id, RunKind::Command, "bench".into())
                .unwrap();
            let Submitted::New(lease) = store.submit(new).await.unwrap() else {
                panic!("it is new")
            };
            let number = lease.run.number;
            let reading = tokio::spawn({
                let store = Arc::clone(&store);
                async move {
                    let mut tail = store.tail(number);
                    let mut next = 0;
                    loop {
                        tail.mark_unchanged();
                        let events = store.read(number, next, 100).await.unwrap();
                        if let Some(last) = events.last() {
                            next = last.seq + 1;
                            if matches!(last.event, RunEvent::RunEnded { .. }) {
                                break next;
                            }
                            continue;
                        }
                        tail.changed().await.unwrap();
                    }
                }
            });
            let journal = Arc::new(LeaseJournal::new(Arc::clone(&store), Arc::new(lease)));
            let resumed = Resumed::new(spec.limits, spec.messages);
            let (stopper, signal) = Stopper::new();
            let left = agent
                .go_on(resumed, stopper, signal, vec![journal], None)
                .await;
            assert!(matches!(left, Left::Ended(_)));
            let n = usize::try_from(reading.await.unwrap()).unwrap();
            n_events.fetch_add(n, Ordering::Relaxed);
        }));
    }
    for task in tasks {
        task.await.unwrap();
    }
    let took = begun.elapsed();
    println!(
        "{runs} runs at once, each kept and read to its end: {took:.1?}, {:.0} runs/s, {} events, resident {} to {} MB",
        runs as f64 / took.as_secs_f64(),
        n_events.load(Ordering::Relaxed),
        before,
        resident(),
    );
}

/// In MB; 0 where it can't be known.
fn resident() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages: u64 = statm
        .split(' ')
        .nth(1)
        .and_then(|n| n.parse().ok())
        .unwrap_or(0);
    pages * 4096 / 1_000_000
}
