//! Spans reach a collector, and nothing that anybody said is in them.

use agentloop_tests::servers::{self, Reply};

use super::*;

#[tokio::test(flavor = "multi_thread")]
async fn spans_reach_the_collector_without_what_was_said() {
    let collector = servers::Server::start(|_| Reply::text("")).await;
    let person = Person::with_tools();
    let mut replies = json!([
        calls(&[
            tool_use("call-7", "echo", json!({"text": "a private word"})),
            tool_use("call-8", "nothing_like_it", json!({})),
        ]),
        text("another private word")
    ]);
    replies[0]["usage"] = json!({"input": 20, "output": 9});
    let args = person.scripted(&replies, &["a private task"]);
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let mut command = person.command(&args);
    command
        .env("OTEL_EXPORTER_OTLP_ENDPOINT", collector.origin())
        .env("OTEL_EXPORTER_OTLP_HEADERS", "x-key=collectors-key")
        .env("OTEL_SERVICE_NAME", "somebodys-agent");
    finish(command.spawn().unwrap()).is(0);
    let requests = collector.requests();
    assert!(!requests.is_empty());
    let mut all = String::new();
    for request in &requests {
        assert_eq!((&*request.method, &*request.target), ("POST", "/v1/traces"));
        assert_eq!(request.header("x-key"), Some("collectors-key"));
        assert_eq!(
            request.header("content-type"),
            Some("application/x-protobuf")
        );
        // Texts stand in the protocol's messages as they are.
        all.push_str(&String::from_utf8_lossy(&request.body));
    }
    for word in [
        "somebodys-agent",
        "invoke_agent agentloop",
        "chat scripted",
        "execute_tool echo",
        "gen_ai.usage.input_tokens",
        "gen_ai.tool.call.id",
        "call-7",
        "end_turn",
    ] {
        assert!(all.contains(word), "no `{word}` in {all}");
    }
    for secret in ["private", "nothing_like_it", CANARY] {
        assert!(!all.contains(secret), "`{secret}` got out");
    }

    // Off, and nothing is sent.
    let sent = collector.requests().len();
    let mut command = person.command(&args);
    command
        .env("OTEL_EXPORTER_OTLP_ENDPOINT", collector.origin())
        .env("OTEL_SDK_DISABLED", "true");
    finish(command.spawn().unwrap()).is(0);
    assert_eq!(collector.requests().len(), sent);
    // A collector that is not there costs nothing but a line.
    let mut command = person.command(&args);
    command.env("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9");
    finish(command.spawn().unwrap())
        .is(0)
        .prints("another private word\n");
}
