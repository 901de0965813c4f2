//! Memory, tables, handles and whatever else of the host a guest could use up.

use agentloop_host::tool::ToolOutcome;
use agentloop_tests::{
    crafted::Crafted,
    guests::{self, Guest},
};
use serde_json::json;

const LIMIT: usize = 64 << 20;

/// B39.
#[tokio::test]
async fn out_of_memory_is_called_that() {
    let mut hostile = Guest::load(&guests::sandbox(), guests::HOSTILE).await;
    for tool in ["allocate", "allocate_at_once"] {
        let ending = hostile.call(tool, json!({})).await;
        assert_eq!(
            ending.outcome,
            ToolOutcome::OutOfMemory { limit_bytes: LIMIT },
            "{tool}"
        );
        assert!(ending.peak_memory_bytes <= LIMIT);
    }
    let panicked = hostile.call("panic", json!({ "message": "boom" })).await;
    assert_eq!(
        panicked.outcome,
        ToolOutcome::Trapped {
            message: "boom".into()
        }
    );
    assert_eq!(
        hostile.text("allocate", json!({ "pieces": 32 })).await,
        "32"
    );

    // A tool that notices says so itself, and the limit is named.
    let polite = hostile.call("allocate_politely", json!({})).await;
    assert!(
        matches!(&polite.outcome, ToolOutcome::Failed { message } if message.contains("memory limit of 67108864")),
        "{polite:?}"
    );

    // The limit is the call's, not the sandbox's, in both directions.
    hostile.limits.memory_bytes = 16 << 20;
    let small = hostile.call("allocate", json!({ "pieces": 32 })).await;
    assert_eq!(
        small.outcome,
        ToolOutcome::OutOfMemory {
            limit_bytes: 16 << 20
        }
    );
    hostile.limits.memory_bytes = 300 << 20;
    assert_eq!(
        hostile.text("allocate", json!({ "pieces": 200 })).await,
        "200"
    );

    // Also with fuel, which is not to be blamed.
    hostile.limits.memory_bytes = LIMIT;
    hostile.limits.fuel = Some(u64::MAX);
    let metered = hostile.call("allocate", json!({})).await;
    assert_eq!(
        metered.outcome,
        ToolOutcome::OutOfMemory { limit_bytes: LIMIT }
    );
}

/// E4: several memories are one budget.
#[tokio::test]
async fn memories_are_counted_together() {
    let crafted = Crafted {
        fields: r#"(memory (export "memory") 1) (memory $b 1) (memory $c 1) (memory $d 1)"#,
        call: "(if (i32.eq (memory.grow 1 (i32.const 400)) (i32.const -1)) (then unreachable))
               (if (i32.eq (memory.grow 2 (i32.const 400)) (i32.const -1)) (then unreachable))
               (if (i32.eq (memory.grow 3 (i32.const 400)) (i32.const -1)) (then unreachable))
               i32.const 64",
        ..Crafted::default()
    };
    let mut guest = Guest::load(&guests::sandbox(), &crafted.component()).await;
    let ending = guest.call("crafted", json!({})).await;
    assert_eq!(
        ending.outcome,
        ToolOutcome::OutOfMemory { limit_bytes: LIMIT }
    );
    guest.limits.memory_bytes = 128 << 20;
    let ending = guest.call("crafted", json!({})).await;
    assert_eq!(ending.outcome, ToolOutcome::Answered(vec![]));
    assert_eq!(ending.peak_memory_bytes, (4 + 3 * 400) << 16);
}

/// Memory that is there from the start counts as well.
#[tokio::test]
async fn a_first_size_beyond_the_limit_is_out_of_memory() {
    let crafted = Crafted {
        fields: r#"(memory (export "memory") 2000)"#,
        ..Crafted::default()
    };
    let guest = Guest::load(&guests::sandbox(), &crafted.component()).await;
    let ending = guest.call("crafted", json!({})).await;
    assert_eq!(
        ending.outcome,
        ToolOutcome::OutOfMemory { limit_bytes: LIMIT }
    );
}

/// RUSTSEC-2026-0114.
#[tokio::test]
async fn tables_are_bounded() {
    let sandbox = guests::sandbox();
    let grown = Crafted {
        fields: "(table $t 10 funcref)",
        call: "(if (i32.eq (table.grow $t (ref.null func) (i32.const 100000)) (i32.const -1)) (then unreachable))
               i32.const 64",
        ..Crafted::default()
    };
    let guest = Guest::load(&sandbox, &grown.component()).await;
    let ending = guest.call("crafted", json!({})).await;
    assert!(
        matches!(ending.outcome, ToolOutcome::Trapped { .. }),
        "{ending:?}"
    );

    // Too large or too many from the start: refused when it is loaded or when it is called, with a reason.
    let tables = "(table 5 funcref)".repeat(40);
    for fields in ["(table 100000000 funcref)", &tables] {
        let crafted = Crafted {
            fields,
            ..Crafted::default()
        };
        match sandbox.load(crafted.component().into()).await {
            Err(error) => assert!(error.to_string().contains("table"), "{error}"),
            Ok(component) => {
                let guest = Guest {
                    component,
                    ..guest.clone()
                };
                let ending = guest.call("crafted", json!({})).await;
                assert!(
                    matches!(&ending.outcome, ToolOutcome::Trapped { message } if message.contains("table")),
                    "{ending:?}"
                );
            }
        }
    }
}

#[tokio::test]
async fn memories_are_bounded() {
    let fields = format!(
        r#"(memory (export "memory") 1) {}"#,
        "(memory 1)".repeat(20)
    );
    let crafted = Crafted {
        fields: &fields,
        ..Crafted::default()
    };
    let error = guests::sandbox()
        .load(crafted.component().into())
        .await
        .err()
        .unwrap();
    assert!(error.to_string().contains("memor"), "{error}");
}

/// E12, E13, E14, RUSTSEC-2026-0020, RUSTSEC-2026-0021.
#[tokio::test]
async fn things_of_the_host_are_bounded() {
    let sandbox = guests::sandbox();
    let hostile = Guest::load(&sandbox, guests::HOSTILE).await;
    for what in ["pollables", "fields", "requests", "headers", "random"] {
        let ending = hostile.call("exhaust", json!({ "what": what })).await;
        assert!(
            matches!(ending.outcome, ToolOutcome::Trapped { .. }),
            "{what}: {ending:?}"
        );
    }
    let threads = hostile.call("exhaust", json!({ "what": "threads" })).await;
    assert!(
        matches!(threads.outcome, ToolOutcome::Failed { .. }),
        "{threads:?}"
    );
    assert_eq!(hostile.text("bump", json!({})).await, "1");
}
