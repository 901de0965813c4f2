//! What guests say and answer, bounded.

use std::time::Duration;

use agentloop_host::{event::LogLevel, sandbox::limits, tool::ToolOutcome};
use agentloop_tests::{
    crafted::Crafted,
    guests::{self, Guest},
};
use serde_json::json;
use wit_component::StringEncoding;

#[tokio::test]
async fn the_operator_hears_the_guest() {
    let helpful = Guest::load(&guests::sandbox(), guests::HELPFUL).await;
    assert_eq!(helpful.text("narrate", json!({ "lines": 2 })).await, "told");
    let lines = helpful.heard.lines();
    let of = |level| -> Vec<_> {
        lines
            .iter()
            .filter(|(l, _)| *l == level)
            .map(|(_, text)| text.as_str())
            .collect()
    };
    assert_eq!(of(LogLevel::Info), ["line 0", "line 1", "printed"]);
    assert_eq!(of(LogLevel::Warn), ["complained"]);
    let message = Some("going on".to_owned());
    assert_eq!(
        helpful.heard.reports(),
        [(1.0, Some(2.0), message.clone()), (2.0, Some(2.0), message)]
    );
}

/// E10, E11.
#[tokio::test]
async fn floods_are_counted_and_dropped() {
    let sandbox = guests::sandbox();
    for (tool, text) in [
        ("print", "x\n"),
        ("print", "no line end "),
        ("print", "\u{1b}[2J\u{7}\u{0}\n"),
        ("talk", "y"),
        ("talk", ""),
    ] {
        let mut hostile = Guest::load(&sandbox, guests::HOSTILE).await;
        hostile.limits.timeout = Some(Duration::from_secs(20));
        hostile
            .call(tool, json!({ "text": text, "times": 20_000 }))
            .await;
        let lines = hostile.heard.lines();
        assert!(lines.len() <= limits::LINES + 2, "{tool}: {}", lines.len());
        let bytes: usize = lines.iter().map(|(_, text)| text.len()).sum();
        assert!(
            bytes <= limits::LINES_BYTES + 2 * limits::LINE_BYTES,
            "{tool}: {bytes}"
        );
        assert!(lines.iter().all(|(_, text)| !text.contains('\u{1b}')));
        assert!(hostile.heard.reports().len() <= limits::PROGRESS_REPORTS);
    }
}

#[tokio::test]
async fn a_long_line_is_cut_and_a_huge_one_ends_the_call() {
    let mut hostile = Guest::load(&guests::sandbox(), guests::HOSTILE).await;
    assert_eq!(
        hostile
            .text("log_line", json!({ "bytes": 1_000_000 }))
            .await,
        "logged"
    );
    let (_, line) = &hostile.heard.lines()[0];
    assert!(
        (limits::LINE_BYTES..limits::LINE_BYTES + 8).contains(&line.len()),
        "{}",
        line.len()
    );

    // Beyond what one host call may copy.
    hostile.limits.output_bytes = 1 << 20;
    let ending = hostile
        .call("log_line", json!({ "bytes": limits::HOST_CALL_BYTES + 1 }))
        .await;
    assert!(
        matches!(ending.outcome, ToolOutcome::Trapped { .. }),
        "{ending:?}"
    );
}

/// E6.
#[tokio::test]
async fn an_answer_has_a_limit() {
    let mut hostile = Guest::load(&guests::sandbox(), guests::HOSTILE).await;
    let too_large = |limit_bytes| ToolOutcome::OutputTooLarge { limit_bytes };
    for limit in [1 << 10, 12 << 20] {
        hostile.limits.output_bytes = limit;
        assert_eq!(
            hostile
                .text("answer", json!({ "bytes": limit }))
                .await
                .len(),
            limit
        );
        let over = hostile.call("answer", json!({ "bytes": limit + 1 })).await;
        assert_eq!(over.outcome, too_large(limit));
    }
    hostile.limits.output_bytes = 1 << 10;
    // Beyond what may be copied, so that nothing of it reaches the host.
    let over = hostile.call("answer", json!({ "bytes": 30 << 20 })).await;
    assert_eq!(over.outcome, too_large(1 << 10));
    let over = hostile.call("blocks", json!({ "count": 600_000 })).await;
    assert_eq!(over.outcome, too_large(1 << 10));
    let over = hostile
        .call("fail_at_length", json!({ "bytes": 1025 }))
        .await;
    assert_eq!(over.outcome, too_large(1 << 10));
}

/// An answer that its types don't allow is the tool's fault, in whichever encoding it has its strings.
#[tokio::test]
async fn a_broken_answer_is_named() {
    let sandbox = guests::sandbox();
    // The result area at 64: ok, a list of one block at 128, which is a text.
    let bytes = |n: u32| n.to_le_bytes().map(|b| format!("\\{b:02x}")).concat();
    let text = |pointer: u32, length: u32, data: &str| {
        format!(
            r#"(memory (export "memory") 1)
            (data (i32.const 64) "{zero}{list}{one}")
            (data (i32.const 128) "{zero}{pointer}{length}")
            (data (i32.const 256) "{data}")"#,
            zero = bytes(0),
            list = bytes(128),
            one = bytes(1),
            pointer = bytes(pointer),
            length = bytes(length),
        )
    };
    for (what, encoding, fields, good) in [
        ("UTF-8", StringEncoding::UTF8, text(256, 2, "ok"), true),
        (
            "broken UTF-8",
            StringEncoding::UTF8,
            text(256, 2, "\\ff\\fe"),
            false,
        ),
        (
            "text beyond memory",
            StringEncoding::UTF8,
            text(65_535, 2, ""),
            false,
        ),
        (
            "text at the end of memory",
            StringEncoding::UTF8,
            text(65_534, 2, ""),
            true,
        ),
        (
            "a length of 4 GiB",
            StringEncoding::UTF8,
            text(256, u32::MAX, ""),
            false,
        ),
        (
            "UTF-16",
            StringEncoding::UTF16,
            text(256, 2, "o\\00k\\00"),
            true,
        ),
        (
            "a lone surrogate",
            StringEncoding::UTF16,
            text(256, 1, "\\00\\d8"),
            false,
        ),
        (
            "an odd pointer",
            StringEncoding::UTF16,
            text(257, 1, "o\\00k\\00"),
            false,
        ),
        (
            "Latin-1",
            StringEncoding::CompactUTF16,
            text(256, 2, "\\e4\\f6"),
            true,
        ),
        (
            "UTF-16 with its mark",
            StringEncoding::CompactUTF16,
            text(256, 1 | 1 << 31, "\\00\\d8"),
            false,
        ),
    ] {
        let crafted = Crafted {
            fields: &fields,
            encoding,
            ..Crafted::default()
        };
        let guest = Guest::load(&sandbox, &crafted.component()).await;
        let ending = guest.call("crafted", json!({})).await;
        match &ending.outcome {
            ToolOutcome::Answered(content) if good => assert_eq!(content.len(), 1, "{what}"),
            ToolOutcome::BadOutput { .. }
            | ToolOutcome::Trapped { .. }
            | ToolOutcome::OutputTooLarge { .. }
                if !good => {}
            other => panic!("{what}: {other:?}"),
        }
    }
    // A discriminant that there is not.
    let crafted = Crafted {
        fields: r#"(memory (export "memory") 1) (data (i32.const 64) "\07")"#,
        ..Crafted::default()
    };
    let guest = Guest::load(&sandbox, &crafted.component()).await;
    let ending = guest.call("crafted", json!({})).await;
    assert!(
        matches!(
            ending.outcome,
            ToolOutcome::BadOutput { .. } | ToolOutcome::Trapped { .. }
        ),
        "{ending:?}"
    );
}
