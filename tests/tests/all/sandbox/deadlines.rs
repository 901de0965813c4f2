//! Every guest ends at its deadline, wherever it is, and nobody else suffers.

use std::time::{Duration, Instant};

use agentloop_host::{
    capability::Access,
    sandbox::{Executor, Sandbox, SandboxSettings},
    tool::{Effects, ToolOutcome},
};
use agentloop_tests::{
    crafted::Crafted,
    guests::{self, Guest},
    servers::{Reply, Server},
};
use serde_json::json;

use super::reach::{folder, origin};

const SHORT: Duration = Duration::from_millis(60);

fn is_timeout(outcome: &ToolOutcome) -> bool {
    matches!(outcome, ToolOutcome::TimedOut { after, .. } if *after == SHORT)
}

/// E1, E2, E3.
#[tokio::test]
async fn guests_end_wherever_they_are() {
    let mut hostile = Guest::load(&guests::sandbox(), guests::HOSTILE).await;
    hostile.limits.timeout = Some(SHORT);
    for executor in [Executor::CallerFirst, Executor::Guests] {
        hostile.executor = executor;
        for (tool, input) in [
            ("spin", json!({})),
            ("spin_in_imports", json!({})),
            ("spin_in_polls", json!({})),
            ("sleep_for_ever", json!({})),
            ("fill", json!({ "mib": 32 })),
            ("print", json!({ "text": "flood\n" })),
            ("talk", json!({ "text": "flood" })),
        ] {
            let ending = hostile.call(tool, input).await;
            assert!(is_timeout(&ending.outcome), "{tool}: {ending:?}");
            assert!(ending.ran >= SHORT);
        }
    }
}

/// Code of a component that runs before, around and after `call`.
#[tokio::test]
async fn guests_end_outside_of_their_tools_as_well() {
    const LOOP: &str = "(loop $again (br $again))";
    let sandbox = guests::sandbox();
    for (what, fields) in [
        ("start", format!("(func $start {LOOP}) (start $start)")),
        (
            "realloc",
            format!(
                r#"(func (export "cabi_realloc") (param i32 i32 i32 i32) (result i32) {LOOP} unreachable)"#
            ),
        ),
        (
            "post-return",
            format!(r#"(func (export "cabi_post_{{interface}}#call") (param i32) {LOOP})"#),
        ),
    ] {
        let crafted = Crafted {
            fields: &fields,
            ..Crafted::default()
        };
        let mut guest = Guest::load(&sandbox, &crafted.component()).await;
        guest.limits.timeout = Some(SHORT);
        for executor in [Executor::CallerFirst, Executor::Guests] {
            guest.executor = executor;
            let ending = guest.call("crafted", json!({})).await;
            assert!(is_timeout(&ending.outcome), "{what}: {ending:?}");
        }
    }
}

/// B22: each call has its own full time.
#[tokio::test]
async fn the_deadline_is_new_for_each_call() {
    let sandbox = Sandbox::new(SandboxSettings {
        max_live_calls: 1,
        ..guests::settings()
    })
    .unwrap();
    let mut helpful = Guest::load(&sandbox, guests::HELPFUL).await;
    let mut hostile = Guest::load(&sandbox, guests::HOSTILE).await;
    helpful.limits.timeout = Some(Duration::from_secs(1));
    hostile.limits.timeout = Some(Duration::from_secs(1));
    let work = || helpful.text("work", json!({ "ms": 550 }));
    // The second one waits for the only slot while the first one works, and is not charged for it.
    let (a, b) = tokio::join!(work(), work());
    assert_eq!((a.as_str(), b.as_str()), ("done", "done"));
    let spun = hostile.call("spin", json!({})).await;
    assert!(
        matches!(spun.outcome, ToolOutcome::TimedOut { .. }),
        "{spun:?}"
    );
    assert_eq!(work().await, "done");
}

/// B23: other calls, and the host's own timers, go on while guests spin.
#[tokio::test]
async fn spinning_guests_starve_nobody() {
    let sandbox = guests::sandbox();
    let mut hostile = Guest::load(&sandbox, guests::HOSTILE).await;
    let mut helpful = Guest::load(&sandbox, guests::HELPFUL).await;
    hostile.limits.timeout = Some(Duration::from_millis(1500));
    let cores = std::thread::available_parallelism().unwrap().get();
    let spinners: Vec<_> = (0..4 * cores)
        .map(|_| {
            let hostile = hostile.clone();
            tokio::spawn(async move { hostile.call("spin", json!({})).await })
        })
        .collect();
    let mut answered = 0;
    while !spinners.iter().any(tokio::task::JoinHandle::is_finished) {
        for executor in [Executor::CallerFirst, Executor::Guests] {
            helpful.executor = executor;
            assert_eq!(helpful.text("echo", json!({ "text": "x" })).await, "x");
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
        answered += 1;
    }
    // One thread does all of this, so with starving timers or calls it would come to a few at most.
    assert!(answered >= 10, "{answered}");
    for spinner in spinners {
        let ending = spinner.await.unwrap();
        assert!(
            matches!(ending.outcome, ToolOutcome::TimedOut { .. }),
            "{ending:?}"
        );
    }
}

#[tokio::test]
async fn no_timeout_waits_as_long_as_it_takes() {
    let mut helpful = Guest::load(&guests::sandbox(), guests::HELPFUL).await;
    helpful.limits.timeout = None;
    for executor in [Executor::CallerFirst, Executor::Guests] {
        helpful.executor = executor;
        assert_eq!(helpful.text("work", json!({ "ms": 30 })).await, "done");
        assert_eq!(
            helpful.text("sleep", json!({ "ms": 30 })).await,
            "slept 30 ms"
        );
    }
}

/// E16, and what a stopped call may have done.
#[tokio::test]
async fn a_peer_that_never_answers_is_left_at_the_deadline() {
    let sandbox = guests::sandbox();
    let mut helpful = Guest::load(&sandbox, guests::HELPFUL).await;
    helpful.limits.timeout = Some(Duration::from_millis(500));
    for reply in [
        Reply::silent as fn() -> Reply,
        || Reply::stalling("some"),
        || Reply::dripping(Duration::from_millis(20)),
    ] {
        let server = Server::start(move |_| reply()).await;
        helpful.grants = origin(&server.origin());
        let url = server.url("/page");
        let ending = helpful.call("fetch", json!({ "url": url })).await;
        let ToolOutcome::TimedOut {
            effects: Effects::Sent(sent),
            ..
        } = &ending.outcome
        else {
            panic!("{ending:?}")
        };
        assert_eq!(sent, &[format!("GET {url}")]);
        server.ended(1).await;
    }
}

#[tokio::test]
async fn what_a_stopped_call_wrote_is_unknown() {
    let dir = tempfile::tempdir().unwrap();
    let mut helpful = Guest::load(&guests::sandbox(), guests::HELPFUL).await;
    helpful.limits.timeout = Some(Duration::from_millis(500));
    helpful.grants = folder(dir.path(), "/out", Access::Write);
    let ending = helpful.call("write_and_hang", json!({})).await;
    let ToolOutcome::TimedOut { effects, .. } = ending.outcome else {
        panic!("{ending:?}")
    };
    assert_eq!(
        effects,
        Effects::Unknown {
            folders: vec!["/out".into()],
            sent: vec![]
        }
    );
    assert_eq!(
        std::fs::read_to_string(dir.path().join("left.txt")).unwrap(),
        "left"
    );

    // Nothing to reach: nothing done.
    helpful.limits.timeout = Some(SHORT);
    let ending = helpful.call("sleep", json!({ "ms": 60_000 })).await;
    let ToolOutcome::TimedOut { effects, .. } = ending.outcome else {
        panic!("{ending:?}")
    };
    assert_eq!(effects, Effects::None);
}

/// A clock that stands while nobody calls has to go again for the next one.
#[tokio::test]
async fn the_clock_goes_after_a_rest() {
    let mut hostile = Guest::load(&guests::sandbox(), guests::HOSTILE).await;
    hostile.limits.timeout = Some(SHORT);
    for _ in 0..3 {
        tokio::time::sleep(Duration::from_millis(250)).await;
        let start = Instant::now();
        assert!(is_timeout(&hostile.call("spin", json!({})).await.outcome));
        assert!(start.elapsed() < Duration::from_secs(10));
    }
}

/// RUSTSEC-2026-0223: instructions on much memory at once are stopped between two of them, and leave nothing
/// broken behind.
#[tokio::test]
async fn bulk_instructions_are_interrupted_cleanly() {
    const BULK: &str = "(loop $again
        (memory.fill (i32.const 0) (i32.const 7) (i32.const 33554432))
        (memory.copy (i32.const 1) (i32.const 0) (i32.const 33554400))
        (table.fill $t (i32.const 0) (ref.null func) (i32.const 9000))
        (table.copy $t $t (i32.const 1) (i32.const 0) (i32.const 8999))
        (br $again)) unreachable";
    let crafted = Crafted {
        fields: r#"(memory (export "memory") 512) (table $t 9000 funcref)"#,
        call: BULK,
        ..Crafted::default()
    };
    let sandbox = guests::sandbox();
    let mut bulk = Guest::load(&sandbox, &crafted.component()).await;
    let good = Guest::load(&sandbox, &Crafted::default().component()).await;
    for round in 0..30_u32 {
        // A different place each time.
        bulk.limits.timeout = Some(Duration::from_millis(u64::from(1 + round)));
        bulk.limits.fuel = (round % 2 == 1).then_some(u64::from(round) * 5_000_000);
        let ending = bulk.call("crafted", json!({})).await;
        assert!(
            matches!(
                ending.outcome,
                ToolOutcome::TimedOut { .. } | ToolOutcome::OutOfFuel { .. }
            ),
            "{ending:?}"
        );
        let ending = good.call("crafted", json!({})).await;
        assert_eq!(ending.outcome, ToolOutcome::Answered(vec![]));
    }
}
