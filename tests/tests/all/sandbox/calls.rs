//! Calls, slots, executors, and that no call has anything of another.

use std::{
    sync::{Arc, Mutex},
    thread::{self, ThreadId},
    time::Duration,
};

use agentloop_host::{
    capability::Limits,
    event::LogLevel,
    sandbox::{Executor, GuestListener, Sandbox, SandboxSettings},
    tool::{Content, ToolOutcome},
};
use agentloop_tests::{
    crafted::Crafted,
    guests::{self, Guest, MAX_LIVE_CALLS},
};
use serde_json::json;

#[tokio::test]
async fn tools_answer_and_fail_in_their_own_words() {
    let helpful = Guest::load(&guests::sandbox(), guests::HELPFUL).await;
    assert_eq!(
        helpful.text("echo", json!({ "text": "hé\u{0}llo" })).await,
        "hé\u{0}llo"
    );
    assert_eq!(helpful.text("add", json!({ "a": 2, "b": -5 })).await, "-3");
    assert_eq!(
        helpful
            .call("fail", json!({ "message": "no such city" }))
            .await
            .outcome,
        ToolOutcome::Failed {
            message: "no such city".into()
        }
    );
    assert_eq!(
        helpful
            .call("reject", json!({ "fault": "`a` is odd" }))
            .await
            .outcome,
        ToolOutcome::InvalidArguments {
            faults: vec!["`a` is odd".into()]
        }
    );
    let ToolOutcome::Answered(content) = helpful
        .call("show", json!({ "a": 1, "b": 2 }))
        .await
        .outcome
    else {
        panic!("no answer")
    };
    assert!(matches!(
        &content[..],
        [Content::Text(text), Content::Image { media_type, data }, Content::Json(sum)]
            if text == "1 + 2" && media_type == "image/png" && data.starts_with(b"\x89PNG") && *sum == json!({ "sum": 3 })
    ));
}

#[tokio::test]
async fn a_sandbox_without_a_pool_does_the_same() {
    let settings = SandboxSettings {
        pool: false,
        ..guests::settings()
    };
    let sandbox = Sandbox::new(settings).unwrap();
    let helpful = Guest::load(&sandbox, guests::HELPFUL).await;
    let mut hostile = Guest::load(&sandbox, guests::HOSTILE).await;
    hostile.limits.timeout = Some(Duration::from_millis(50));
    assert_eq!(helpful.text("add", json!({ "a": 1, "b": 2 })).await, "3");
    assert!(matches!(
        hostile.call("spin", json!({})).await.outcome,
        ToolOutcome::TimedOut { .. }
    ));
    hostile.limits = Limits::default();
    assert!(matches!(
        hostile.call("allocate", json!({})).await.outcome,
        ToolOutcome::OutOfMemory { .. }
    ));
    assert_eq!(helpful.text("add", json!({ "a": 1, "b": 2 })).await, "3");
}

/// B40.
#[tokio::test]
async fn every_call_is_fresh_and_a_trap_harms_no_other() {
    let hostile = Guest::load(&guests::sandbox(), guests::HOSTILE).await;
    assert_eq!(hostile.text("bump", json!({})).await, "1");
    assert_eq!(hostile.text("bump", json!({})).await, "1");
    assert!(matches!(
        hostile.call("trap", json!({})).await.outcome,
        ToolOutcome::Trapped { .. }
    ));
    for _ in 0..10_000 {
        assert_eq!(hostile.text("bump", json!({})).await, "1");
    }
}

/// What one instance leaves in its memory is in no later one, also after a trap (RUSTSEC-2022-0076, 2026-0088).
#[tokio::test]
async fn memory_leaks_into_no_other_instance() {
    for pool in [true, false] {
        let settings = SandboxSettings {
            max_live_calls: 1,
            pool,
            ..guests::settings()
        };
        let sandbox = Sandbox::new(settings).unwrap();
        let mut hostile = Guest::load(&sandbox, guests::HOSTILE).await;
        hostile.executor = Executor::CallerFirst;
        let canary = 0x5eed_c0ff_ee15_900d_u64;
        for _ in 0..12 {
            let planted = hostile.call("plant", json!({ "canary": canary })).await;
            assert!(
                matches!(planted.outcome, ToolOutcome::Trapped { .. }),
                "{planted:?}"
            );
            assert!(planted.peak_memory_bytes > 32 << 20);
            assert_eq!(
                hostile
                    .text("search", json!({ "complement": !canary }))
                    .await,
                "0"
            );
        }
    }
}

#[tokio::test]
async fn panics_traps_and_exits_are_told() {
    let hostile = Guest::load(&guests::sandbox(), guests::HOSTILE).await;
    let trapped = async |tool: &str, input| match hostile.call(tool, input).await.outcome {
        ToolOutcome::Trapped { message } => message,
        other => panic!("{other:?}"),
    };
    assert_eq!(
        trapped("panic", json!({ "message": "boom:\nit broke" })).await,
        "boom:\nit broke"
    );
    let escaped = trapped("panic", json!({ "message": "\u{1b}[31mred\u{202e}" })).await;
    assert_eq!(escaped, "\\u{1b}[31mred\\u{202e}");
    let long = trapped("panic", json!({ "message": "x".repeat(100_000) })).await;
    assert!(long.len() < 5000, "{}", long.len());
    assert!(trapped("trap", json!({})).await.contains("unreachable"));
    assert!(
        trapped("exit", json!({ "code": 3 }))
            .await
            .contains("exited with status")
    );
    assert!(trapped("recurse", json!({})).await.len() < 200);
}

/// B20.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_beyond_the_slots_wait_in_line() {
    let settings = SandboxSettings {
        max_live_calls: 4,
        ..guests::settings()
    };
    let sandbox = Sandbox::new(settings).unwrap();
    let mut helpful = Guest::load(&sandbox, guests::HELPFUL).await;
    let mut hostile = Guest::load(&sandbox, guests::HOSTILE).await;
    // Much less than 40 calls of 50 ms take on 4 slots: waiting is on nobody's clock.
    helpful.limits.timeout = Some(Duration::from_millis(400));
    hostile.limits.timeout = Some(Duration::from_millis(20));
    let forty = async || {
        let calls = (0..40).map(|_| helpful.text("sleep", json!({ "ms": 50 })));
        for text in futures(calls).await {
            assert_eq!(text, "slept 50 ms");
        }
    };
    forty().await;
    for outcome in futures((0..20).map(|_| hostile.call("trap", json!({})))).await {
        assert!(
            matches!(outcome.outcome, ToolOutcome::Trapped { .. }),
            "{outcome:?}"
        );
    }
    for outcome in futures((0..20).map(|_| hostile.call("sleep_for_ever", json!({})))).await {
        assert!(
            matches!(outcome.outcome, ToolOutcome::TimedOut { .. }),
            "{outcome:?}"
        );
    }
    forty().await;
}

async fn futures<F: Future>(futures: impl Iterator<Item = F>) -> Vec<F::Output> {
    futures_util::future::join_all(futures).await
}

/// Which thread heard the guest.
#[derive(Default)]
struct Threads(Mutex<Vec<(ThreadId, Option<String>)>>);

impl GuestListener for Threads {
    fn logged(&self, _: LogLevel, _: String) {
        let current = thread::current();
        let name = current.name().map(str::to_owned);
        self.0.lock().unwrap().push((current.id(), name));
    }
    fn progressed(&self, _: f64, _: Option<f64>, _: Option<String>) {}
}

#[tokio::test]
async fn a_single_call_runs_on_the_callers_thread() {
    let helpful = Guest::load(&guests::sandbox(), guests::HELPFUL).await;
    let first_line = async |executor| {
        let threads = Arc::new(Threads::default());
        let call = agentloop_host::sandbox::GuestCall {
            component: &helpful.component,
            tool: &agentloop_host::ids::ToolName::parse("narrate").unwrap(),
            plugin: &agentloop_host::ids::PluginName::parse("guest").unwrap(),
            reach: agentloop_host::capability::Reach::NOTHING,
            limits: &Limits::default(),
        };
        let authorized = guests::authorized("narrate", json!({ "lines": 1 }));
        let slot = helpful.sandbox.slot().await;
        helpful
            .sandbox
            .call(slot, call, authorized, executor, threads.clone())
            .await;
        let heard = threads.0.lock().unwrap();
        heard.first().unwrap().clone()
    };
    let (_, name) = first_line(Executor::Guests).await;
    assert_eq!(name.as_deref(), Some("guest"));
    // It is moved after a tick, which on a machine under load can pass before the first line.
    for _ in 0..1000 {
        let (thread, name) = first_line(Executor::CallerFirst).await;
        if thread == thread::current().id() {
            return;
        }
        assert_eq!(name.as_deref(), Some("guest"));
    }
    panic!("no call ran on this thread");
}

/// A call that pauses goes on among the guests, whichever executor it began on.
#[tokio::test]
async fn a_call_that_pauses_is_moved() {
    let mut helpful = Guest::load(&guests::sandbox(), guests::HELPFUL).await;
    helpful.executor = Executor::CallerFirst;
    assert_eq!(
        helpful.text("sleep", json!({ "ms": 20 })).await,
        "slept 20 ms"
    );
    assert_eq!(helpful.text("work", json!({ "ms": 20 })).await, "done");
}

/// Dropping the future is the cancel path: the slot is free again, and the guest is gone.
#[tokio::test]
async fn a_dropped_call_frees_its_slot() {
    let settings = SandboxSettings {
        max_live_calls: 1,
        ..guests::settings()
    };
    let sandbox = Sandbox::new(settings).unwrap();
    let mut hostile = Guest::load(&sandbox, guests::HOSTILE).await;
    hostile.limits.timeout = None;
    for tool in ["spin", "spin_in_imports", "spin_in_polls", "sleep_for_ever"] {
        for executor in [Executor::CallerFirst, Executor::Guests] {
            hostile.executor = executor;
            let call = hostile.call(tool, json!({}));
            assert!(
                tokio::time::timeout(Duration::from_millis(20), call)
                    .await
                    .is_err(),
                "{tool} ended"
            );
            // The only slot: this waits until the guest is gone.
            assert_eq!(hostile.text("bump", json!({})).await, "1");
        }
    }
}

/// B20: it is said at the start, and with the remedy.
#[tokio::test]
async fn a_pool_that_the_machine_cannot_give_is_an_error() {
    let settings = SandboxSettings {
        max_live_calls: usize::MAX,
        ..guests::settings()
    };
    let error = Sandbox::new(settings).err().unwrap().to_string();
    for word in ["lower the number of live calls", "`pool = false`"] {
        assert!(error.contains(word), "{error}");
    }
}

/// RUSTSEC-2026-0022: dropping calls at whatever point harms nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_can_be_dropped_at_any_point() {
    let sandbox = guests::sandbox();
    let dir = tempfile::tempdir().unwrap();
    let mut helpful = Guest::load(&sandbox, guests::HELPFUL).await;
    let mut hostile = Guest::load(&sandbox, guests::HOSTILE).await;
    let grants = super::reach::folder(
        dir.path(),
        "/data",
        agentloop_host::capability::Access::Write,
    );
    (helpful.grants, hostile.grants) = (grants.clone(), grants);
    let calls = [
        (helpful.clone(), "echo", json!({ "text": "x" })),
        (
            helpful.clone(),
            "write",
            json!({ "path": "/data/f", "text": "x".repeat(100_000) }),
        ),
        (helpful.clone(), "narrate", json!({ "lines": 500 })),
        (helpful.clone(), "sleep", json!({ "ms": 2 })),
        (hostile.clone(), "fill", json!({ "mib": 4 })),
        (hostile.clone(), "allocate", json!({ "pieces": 16 })),
        (hostile.clone(), "spin_in_polls", json!({})),
        (hostile, "panic", json!({ "message": "x" })),
    ];
    let droppers = (1..=8).map(|seed| {
        let calls = calls.clone();
        tokio::spawn(async move {
            let mut random = 0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(seed);
            for round in 0..1250 {
                random ^= random << 13;
                random ^= random >> 7;
                random ^= random << 17;
                let (mut guest, tool, input) = calls[round % calls.len()].clone();
                guest.executor = if random & 1 == 0 {
                    Executor::CallerFirst
                } else {
                    Executor::Guests
                };
                let after = Duration::from_micros(random >> 1 & 2047);
                let _ = tokio::time::timeout(after, guest.call(tool, input)).await;
            }
        })
    });
    for dropper in futures(droppers).await {
        dropper.unwrap();
    }
    // All slots come back.
    let mut slots = Vec::new();
    for _ in 0..MAX_LIVE_CALLS {
        slots.push(sandbox.slot().await);
    }
    drop(slots);
    assert_eq!(
        helpful.text("echo", json!({ "text": "fine" })).await,
        "fine"
    );
}

/// Many calls of all kinds at once, each with its own answer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_beside_each_other_do_not_mix() {
    let helpful = Guest::load(&guests::sandbox(), guests::HELPFUL).await;
    let calls = (0..400).map(|n| {
        let helpful = &helpful;
        async move {
            (
                n,
                helpful
                    .text("echo", json!({ "text": format!("call {n}") }))
                    .await,
            )
        }
    });
    for (n, text) in futures(calls).await {
        assert_eq!(text, format!("call {n}"));
    }
}

/// The last sandbox may go inside of another runtime, and while guests run.
#[tokio::test]
async fn the_sandbox_ends_quietly() {
    let sandbox = guests::sandbox();
    let mut hostile = Guest::load(&sandbox, guests::HOSTILE).await;
    hostile.limits.timeout = None;
    let running = tokio::spawn(async move { hostile.call("spin", json!({})).await });
    tokio::time::sleep(Duration::from_millis(10)).await;
    drop(sandbox);
    running.abort();
    assert!(running.await.unwrap_err().is_cancelled());
}

#[tokio::test]
async fn a_component_belongs_to_its_sandbox() {
    let mut guest = Guest::load(&guests::sandbox(), guests::HELPFUL).await;
    guest.sandbox = guests::sandbox();
    let ending = guest.call("echo", json!({ "text": "x" })).await;
    assert!(
        matches!(ending.outcome, ToolOutcome::Internal { .. }),
        "{ending:?}"
    );
}

#[tokio::test]
async fn fuel_is_counted_exactly_and_ends_a_call() {
    let sandbox = guests::sandbox();
    let mut helpful = Guest::load(&sandbox, guests::HELPFUL).await;
    let input = json!({ "to": 100_000 });
    assert_eq!(helpful.call("count", input.clone()).await.fuel_used, None);

    helpful.limits.fuel = Some(10_000_000);
    let first = helpful.call("count", input.clone()).await;
    assert_eq!(guests::text(&first.outcome), "100000");
    let used = first.fuel_used.unwrap();
    assert!((100_000..10_000_000).contains(&used), "{used}");
    assert_eq!(
        helpful.call("count", input.clone()).await.fuel_used,
        Some(used)
    );

    // It is looked at when a loop or a function begins, so one unit too little may pass.
    helpful.limits.fuel = Some(used / 2);
    let out = helpful.call("count", input.clone()).await;
    assert_eq!(out.outcome, ToolOutcome::OutOfFuel { budget: used / 2 });
    assert!(out.fuel_used.unwrap() >= used / 2);
    // A budget is of one call: the next has its own.
    helpful.limits.fuel = Some(used);
    assert_eq!(
        guests::text(&helpful.call("count", input).await.outcome),
        "100000"
    );
}

/// Two components that differ in nothing but a tool's behaviour keep apart.
#[tokio::test]
async fn an_empty_answer_is_an_answer() {
    let guest = Guest::load(&guests::sandbox(), &Crafted::default().component()).await;
    assert_eq!(
        guest.call("crafted", json!({})).await.outcome,
        ToolOutcome::Answered(vec![])
    );
}
