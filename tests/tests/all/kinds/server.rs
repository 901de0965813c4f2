//! Web servers as tools: a request in, its response out, and nothing that listens.

use std::time::Duration;

use agentloop_host::{
    sandbox::{FileKind, inspect},
    tool::{Content, ToolOutcome},
};
use agentloop_tests::guests::{self, Guest};
use serde_json::{Value, json};

const TOOL: &str = "http-request";

async fn response(guest: &Guest, input: Value) -> Value {
    match guest.call(TOOL, input).await.outcome {
        ToolOutcome::Answered(content) => match content.as_slice() {
            [Content::Json(value)] => value.clone(),
            other => panic!("{other:?}"),
        },
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_request_is_answered() {
    assert_eq!(inspect(guests::SERVER).file, FileKind::Http);
    let server = Guest::load(&guests::sandbox(), guests::SERVER).await;
    assert_eq!(
        response(&server, json!({ "path": "/a?b=c" })).await,
        json!({
            "status": 200,
            "headers": { "content-type": "text/plain" },
            "body": "Method::Get /a?b=c  ",
        })
    );
    let post = json!({
        "method": "POST", "path": "/missing", "headers": { "X-Who": "me" }, "body": "the body",
    });
    let answer = response(&server, post).await;
    assert_eq!(answer["status"], 404);
    assert_eq!(answer["body"], "Method::Post /missing me the body");
}

#[tokio::test]
async fn servers_that_do_not_answer_fail() {
    let mut server = Guest::load(&guests::sandbox(), guests::SERVER).await;
    for path in ["/never", "/error"] {
        let outcome = server.call(TOOL, json!({ "path": path })).await.outcome;
        assert!(matches!(outcome, ToolOutcome::Failed { .. }), "{outcome:?}");
    }
    let outcome = server.call(TOOL, json!({ "path": "/panic" })).await.outcome;
    assert_eq!(
        outcome,
        ToolOutcome::Trapped {
            message: "boom in the server".to_owned()
        }
    );
    server.limits.output_bytes = 64 << 10;
    server.limits.timeout = Some(Duration::from_secs(20));
    let outcome = server.call(TOOL, json!({ "path": "/flood" })).await.outcome;
    assert_eq!(
        outcome,
        ToolOutcome::OutputTooLarge {
            limit_bytes: 64 << 10
        }
    );
    for bad in [
        json!({ "path": "/", "method": "NO SPACES" }),
        json!({ "path": "/", "headers": { "a b": "c" } }),
    ] {
        let outcome = server.call(TOOL, bad).await.outcome;
        assert!(
            matches!(outcome, ToolOutcome::InvalidArguments { .. }),
            "{outcome:?}"
        );
    }
}
