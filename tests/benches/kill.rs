//! How late guests end past their deadline, and what others feel of it, while guests that never end use up every
//! core. Prints a table.
//!
//! `cargo bench -p agentloop-tests --bench kill`
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a bench may panic")]

use std::{
    thread::{self, available_parallelism},
    time::{Duration, Instant},
};

use agentloop_host::{
    capability::{Grants, HttpGrant, OriginPattern},
    sandbox::Executor,
    tool::ToolOutcome,
};
use agentloop_tests::{
    crafted::Crafted,
    guests::{self, Guest},
    servers::{Reply, Server},
};
use serde_json::{Value, json};
use tokio::task::JoinSet;

const KILLS: u32 = 200;
const CALLS: u32 = 1000;
const DEADLINE: Duration = Duration::from_millis(20);
/// Deadlines fall on all phases of the clock that interrupts guests.
const PHASE: Duration = Duration::from_micros(37);
const SLEEP: Duration = Duration::from_millis(1);
const MICROSECONDS: f64 = 1e6;
const MILLISECONDS: f64 = 1e3;

struct Victim {
    what: &'static str,
    guest: Guest,
    tool: &'static str,
    input: Value,
}

#[tokio::main]
async fn main() {
    let sandbox = guests::sandbox();
    let hostile = Guest::load(&sandbox, guests::HOSTILE).await;
    let mut helpful = Guest::load(&sandbox, guests::HELPFUL).await;
    let spins_in_start = Crafted {
        fields: "(func $start (loop $again (br $again))) (start $start)",
        ..Crafted::default()
    };
    let server = Server::start(|_| Reply::silent()).await;
    let mut asking = helpful.clone();
    asking.grants = Grants {
        http: vec![HttpGrant {
            origin: OriginPattern::parse(&server.origin()).unwrap(),
            methods: Vec::new(),
        }],
        ..Grants::default()
    };
    let victim = |what, guest: &Guest, tool, input| Victim {
        what,
        guest: guest.clone(),
        tool,
        input,
    };
    let victims = [
        victim("it spins", &hostile, "spin", json!({})),
        victim("it sleeps", &hostile, "sleep_for_ever", json!({})),
        victim(
            "its server never answers",
            &asking,
            "fetch",
            json!({ "url": server.url("/") }),
        ),
        victim(
            "it spins in `start`",
            &Guest::load(&sandbox, &spins_in_start.component()).await,
            "crafted",
            json!({}),
        ),
    ];

    let cores = available_parallelism().unwrap().get();
    let n_spinners = 2 * cores;
    println!("{cores} cores; load average before: {}\n", load_average());
    let beside = format!("{n_spinners} spinners");
    println!("{:<68}{:^27}{beside:^27}", "", "idle");
    println!(
        "{:<68}{:>9}{:>9}{:>9}{:>9}{:>9}{:>9}",
        "", "median", "p99", "max", "median", "p99", "max"
    );
    let beside_spinners = Spinners::new(&hostile, n_spinners);
    for (name, executor) in [
        ("from the caller's thread", Executor::CallerFirst),
        ("among the guests", Executor::Guests),
    ] {
        for victim in &victims {
            let mut victim_now = victim.guest.clone();
            victim_now.executor = executor;
            let late = async || kills(victim_now.clone(), victim.tool, &victim.input).await;
            let (idle, busy) = (late().await, beside_spinners.during(late).await);
            row(
                &format!("killed late, ms: {}, {name}", victim.what),
                &idle,
                &busy,
                MILLISECONDS,
            );
        }
        helpful.executor = executor;
        let echo = async || echoes(&helpful).await;
        let (idle, busy) = (echo().await, beside_spinners.during(echo).await);
        row(
            &format!("another call takes, µs: {name}"),
            &idle,
            &busy,
            MICROSECONDS,
        );
    }
    let timer = async || timers().await;
    let (idle, busy) = (timer().await, beside_spinners.during(timer).await);
    row(
        "a timer of the host's is late, ms",
        &idle,
        &busy,
        MILLISECONDS,
    );
    let machine = async || tokio::task::spawn_blocking(sleeps).await.unwrap();
    let (idle, busy) = (machine().await, beside_spinners.during(machine).await);
    row(
        "for comparison: a bare thread's sleep is late, ms",
        &idle,
        &busy,
        MILLISECONDS,
    );
}

/// Guests that never end.
struct Spinners {
    guest: Guest,
    count: usize,
}

impl Spinners {
    fn new(hostile: &Guest, count: usize) -> Self {
        let mut guest = hostile.clone();
        guest.limits.timeout = None;
        guest.executor = Executor::Guests;
        Self { guest, count }
    }

    /// Runs `work` while they spin.
    async fn during<T>(&self, work: impl AsyncFn() -> T) -> T {
        let mut spinning = JoinSet::new();
        for _ in 0..self.count {
            let guest = self.guest.clone();
            spinning.spawn(async move { guest.call("spin", json!({})).await });
        }
        // Until all of them are at it.
        tokio::time::sleep(Duration::from_millis(50)).await;
        let result = work().await;
        assert_eq!(spinning.len(), self.count);
        assert!(spinning.try_join_next().is_none(), "a spinner ended");
        spinning.shutdown().await;
        // Until they are gone.
        tokio::time::sleep(Duration::from_millis(50)).await;
        result
    }
}

/// How late the calls end, in order of size.
async fn kills(mut victim: Guest, tool: &str, input: &Value) -> Vec<Duration> {
    let mut late = Vec::new();
    for n in 0..KILLS {
        let deadline = DEADLINE + PHASE * (n % 27);
        victim.limits.timeout = Some(deadline);
        let start = Instant::now();
        let ending = victim.call(tool, input.clone()).await;
        late.push(start.elapsed().saturating_sub(deadline));
        assert!(
            matches!(ending.outcome, ToolOutcome::TimedOut { .. }),
            "{ending:?}"
        );
    }
    late.sort();
    late
}

async fn echoes(helpful: &Guest) -> Vec<Duration> {
    let mut took = Vec::new();
    for _ in 0..CALLS {
        let start = Instant::now();
        let ending = helpful.call("echo", json!({ "text": "x" })).await;
        took.push(start.elapsed());
        assert!(matches!(ending.outcome, ToolOutcome::Answered(_)));
    }
    took.sort();
    took
}

async fn timers() -> Vec<Duration> {
    let mut late = Vec::new();
    for _ in 0..CALLS {
        let start = Instant::now();
        tokio::time::sleep(SLEEP).await;
        late.push(start.elapsed().saturating_sub(SLEEP));
    }
    late.sort();
    late
}

/// What the machine itself is late by.
fn sleeps() -> Vec<Duration> {
    let mut late = Vec::new();
    for _ in 0..CALLS {
        let start = Instant::now();
        thread::sleep(SLEEP);
        late.push(start.elapsed().saturating_sub(SLEEP));
    }
    late.sort();
    late
}

fn row(what: &str, idle: &[Duration], busy: &[Duration], per_second: f64) {
    let [a, b, c] = quantiles(idle).map(|d| d.as_secs_f64() * per_second);
    let [d, e, f] = quantiles(busy).map(|d| d.as_secs_f64() * per_second);
    println!("{what:<68}{a:>9.2}{b:>9.2}{c:>9.2}{d:>9.2}{e:>9.2}{f:>9.2}");
}

/// Median, 99th percentile and maximum of what is sorted.
fn quantiles(sorted: &[Duration]) -> [Duration; 3] {
    [50, 99, 100].map(|percent| sorted[(sorted.len() * percent / 100).min(sorted.len() - 1)])
}

fn load_average() -> String {
    std::fs::read_to_string("/proc/loadavg").unwrap_or_else(|_| "unknown".to_owned())
}
