//! The loop against strict endpoints on real sockets: whatever a model says and whatever becomes of its
//! calls, the next request is one that the real endpoint would take. As JSON, streamed, and streamed in single
//! bytes.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use agentloop_host::{
    agent::{RunResult, ToolLoop, run::RunStatus},
    config::permissions::Rule,
    provider::ProviderErrorKind,
    registry::{Registry, native::NativeTool},
    tool::Content,
    transcript::{Message, Role},
};
use agentloop_tests::{
    agent::{assert_paired, results},
    endpoint::{Answer, Api, Endpoint},
};
use serde_json::{Map, Value, json};

use super::provider::provider;

/// An API and how its replies travel.
#[derive(Debug, Clone, Copy)]
struct Way {
    api: Api,
    stream: bool,
    bytewise: bool,
}

const WAYS: [Way; 6] = [
    way(Api::Anthropic, false, false),
    way(Api::Anthropic, true, false),
    way(Api::Anthropic, true, true),
    way(Api::OpenAi, false, false),
    way(Api::OpenAi, true, false),
    way(Api::OpenAi, true, true),
];

const fn way(api: Api, stream: bool, bytewise: bool) -> Way {
    Way {
        api,
        stream,
        bytewise,
    }
}

impl Way {
    fn endpoint(self, answers: impl IntoIterator<Item = Answer>) -> Endpoint {
        let answers = answers.into_iter().map(|answer| match self.bytewise {
            true => answer.pieces_of(1).chunks_of(1).noisy().crlf(),
            false => answer,
        });
        Endpoint::start(self.api, answers)
    }

    /// An agent that asks this endpoint, and how often its tool `echo` ran.
    fn agent(self, endpoint: &Endpoint) -> (ToolLoop, Arc<AtomicUsize>) {
        let ran = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&ran);
        let any = || json!({"type": "object"});
        let schema = json!({"type": "object", "properties": {"text": {"type": "string"}}});
        let echo = NativeTool::new("echo", "Says it again.", schema, {
            move |input: Map<String, Value>| {
                count.fetch_add(1, Ordering::Relaxed);
                let text = input.get("text").and_then(Value::as_str);
                Ok::<_, String>(text.unwrap_or_default().to_owned())
            }
        });
        let panics = NativeTool::new("panics", "Panics.", any(), |_| -> Result<String, String> {
            panic!("boom 7")
        });
        let secret = NativeTool::new("secret", "Is denied.", any(), |_| Ok::<_, String>("never"));
        let draws = NativeTool::new("draws", "Draws.", any(), |_| {
            let image = |media_type: &str, data: &[u8]| Content::Image {
                media_type: media_type.into(),
                data: data.to_vec(),
            };
            Ok::<_, String>(vec![
                image("image/svg+xml", b"<svg/>"),
                image("image/jpeg", b"\x89PNG\r\n\x1a\n"),
                Content::Text("ok".into()),
            ])
        });
        let tools = [echo, panics, secret, draws].map(Result::unwrap);
        let registry = Arc::new(Registry::new(tools).unwrap());
        let model = provider(endpoint, self.api, self.stream);
        let mut agent = ToolLoop::new(Arc::from(model), "test", registry);
        let deny = Rule::parse("host.secret").unwrap();
        agent.deps.permissions.deny.push(deny);
        (agent, ran)
    }
}

fn call(id: &str, name: &str, input: Value) -> Value {
    json!({"type": "tool_use", "id": id, "name": name, "input": input})
}

async fn go_on(agent: &ToolLoop, before: RunResult, text: &str) -> RunResult {
    let mut messages = before.messages;
    messages.push(Message::user(text));
    agent.run(messages).await
}

/// B24: such a root would make the endpoint refuse every request.
#[tokio::test]
async fn a_tool_whose_arguments_are_a_choice_takes_no_other_down() {
    for way in WAYS {
        let endpoint = way.endpoint([
            Answer::reply(json!([
                call("1", "load", json!({})),
                call("2", "load", json!({"url": "u", "file": "f"})),
                call("3", "load", json!({"url": "u"})),
                call("4", "plain", json!({})),
            ])),
            Answer::text("done"),
        ]);
        let schema = json!({
            "type": "object",
            "properties": {"url": {"type": "string"}, "file": {"type": "string"}},
            "oneOf": [{"required": ["url"]}, {"required": ["file"]}],
        });
        let fine = |_| Ok::<_, String>("fine");
        let load = NativeTool::new("load", "Loads.", schema, fine).unwrap();
        let plain = NativeTool::new("plain", "Is plain.", json!({"type": "object"}), fine).unwrap();
        let (mut agent, _) = way.agent(&endpoint);
        agent.registry = Arc::new(Registry::new([load, plain]).unwrap()).into();
        let result = agent.run(vec![Message::user("go")]).await;
        assert_eq!(endpoint.refusals(), [""; 0], "{way:?}");
        assert_eq!(result.status, RunStatus::Completed, "{way:?}");
        let results = results(&result.messages[2]);
        let errors: Vec<bool> = results.iter().map(|result| result.is_error).collect();
        assert_eq!(errors, [true, true, false, false], "{way:?}: {results:#?}");
    }
}

/// B01, B03, B06, B07, B09, B11, B12 and B14 in one conversation.
#[tokio::test]
async fn a_conversation_in_which_everything_goes_wrong_stays_valid() {
    for way in WAYS {
        let endpoint = way.endpoint([
            Answer::reply(json!([
                {"type": "text", "text": ""},
                call("call_1", "echo", json!({"text": "a"})),
                call("call_1", "echo", json!({"text": "b"})),
                call("", "panics", json!({})),
                call("odd id/é", "secret", json!({})),
                call("call_5", "read_fil", json!({})),
                call("call_6", "", json!({})),
                call("call_7", "echo", json!("{\"text\":\"\\ud83d\"}")),
                call("call_8", "echo", json!({"text": ""})),
                call("call_9", "draws", json!({})),
            ]))
            .stop("end_turn"),
            Answer::reply(json!([call("call_1", "echo", json!({"text": "c"}))])),
            Answer::text(" \n"),
            Answer::text("done"),
        ]);
        let (agent, ran) = way.agent(&endpoint);
        let first = agent.run(vec![Message::user("go")]).await;
        assert_eq!(endpoint.refusals(), [""; 0], "{way:?}");
        assert_eq!(first.status, RunStatus::Completed, "{way:?}");
        // Saved, it is read again as it was.
        let saved = serde_json::to_string(&first.messages).unwrap();
        let read: Vec<Message> = serde_json::from_str(&saved).unwrap();
        assert_eq!(read, first.messages, "{way:?}");
        let second = go_on(&agent, first, "and now?").await;
        assert_eq!(endpoint.refusals(), [""; 0], "{way:?}");
        assert_eq!(second.status, RunStatus::Completed, "{way:?}");
        assert_eq!(second.final_text(), Some("done"));
        assert_eq!(
            (endpoint.remaining(), ran.load(Ordering::Relaxed)),
            (0, 4),
            "{way:?} {:#?}",
            second.messages
        );
        assert_paired(&second.messages);
        let batch = results(&second.messages[2]);
        let text = |n: usize| batch[n].text();
        assert_eq!((text(0), text(1)), ("a".into(), "b".into()), "{way:?}");
        assert_eq!(text(2), "Error: panics failed: boom 7");
        assert!(text(3).starts_with("Denied: "), "{}", text(3));
        assert!(
            text(4).starts_with("Unknown tool 'read_fil'"),
            "{}",
            text(4)
        );
        assert!(text(5).starts_with("Unknown tool ''"), "{}", text(5));
        assert!(
            text(6).starts_with("Could not parse arguments"),
            "{}",
            text(6)
        );
        assert!(
            text(8).contains("ok") && text(8).contains("svg"),
            "{}",
            text(8)
        );
        assert_eq!(results(&second.messages[4])[0].text(), "c");
        let mut ids: Vec<_> = second
            .messages
            .iter()
            .flat_map(Message::tool_uses)
            .collect();
        let all = ids.len();
        ids.sort_by_key(|call| call.id.clone());
        ids.dedup_by_key(|call| call.id.clone());
        assert_eq!(ids.len(), all);
    }
}

/// What the endpoint sealed comes back untouched for as long as the run goes on.
#[tokio::test]
async fn sealed_blocks_survive_a_run_of_several_turns() {
    for way in WAYS.into_iter().filter(|way| way.api == Api::Anthropic) {
        let thinking = |text: &str| json!({"type": "thinking", "thinking": text, "signature": format!("sig+{text}/=")});
        let endpoint = way.endpoint([
            Answer::reply(json!([
                thinking("one"),
                {"type": "redacted_thinking", "data": "AA=="},
                {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {"q": 1.0}},
                {"type": "web_search_tool_result", "tool_use_id": "s1", "content": [{"n": 1.50}]},
                call("call_1", "echo", json!({"text": "a"})),
            ])),
            Answer::reply(json!([thinking("two"), call("call_2", "echo", json!({}))])),
            Answer::reply(json!([thinking("three"), {"type": "text", "text": "part 1"}]))
                .stop("pause_turn"),
            Answer::text("part 2"),
        ]);
        let (agent, _) = way.agent(&endpoint);
        let result = agent.run(vec![Message::user("go")]).await;
        assert_eq!(endpoint.refusals(), [""; 0], "{way:?}");
        assert_eq!(result.status, RunStatus::Completed, "{result:?}");
        let last = result.messages.last().unwrap();
        assert_eq!(
            (last.role, last.content.len()),
            (Role::Assistant, 3),
            "{last:?}"
        );
        assert_eq!(endpoint.remaining(), 0);
    }
}

/// A call that was cut off looks complete in some replies, and never runs.
#[tokio::test]
async fn a_reply_cut_at_its_limit_runs_nothing_and_is_asked_for_again() {
    for way in WAYS {
        let cut = Answer::reply(json!([call("call_1", "echo", json!({}))])).stop("max_tokens");
        let endpoint = way.endpoint([cut, Answer::text("done")]);
        let (agent, ran) = way.agent(&endpoint);
        let result = agent.run(vec![Message::user("go")]).await;
        assert_eq!(result.status, RunStatus::Completed, "{way:?}");
        assert_eq!(ran.load(Ordering::Relaxed), 0);
        let asked: Vec<_> = endpoint
            .requests()
            .iter()
            .map(|request| request.body["max_tokens"].clone())
            .collect();
        assert_eq!(asked, [json!(4096), json!(8192)]);
    }
}

/// Nothing of a dead stream is run or kept, and the run can be continued.
#[tokio::test]
async fn a_stream_that_dies_leaves_nothing_behind() {
    for way in WAYS.into_iter().filter(|way| way.stream) {
        let blocks = json!([
            {"type": "text", "text": "Let me see."},
            call("call_1", "echo", json!({"text": "a"})),
        ]);
        let answer = Answer::reply(blocks);
        let length = answer.as_sse(way.api).len();
        let endpoint = Endpoint::start(
            way.api,
            [answer.broken_after(length * 2 / 3), Answer::text("done")],
        );
        let (agent, ran) = way.agent(&endpoint);
        let dead = agent.run(vec![Message::user("go")]).await;
        let RunStatus::Failed { provider, .. } = &dead.status else {
            panic!("{dead:?}");
        };
        assert_eq!(*provider, Some(ProviderErrorKind::Network));
        assert_eq!((dead.messages.len(), ran.load(Ordering::Relaxed)), (1, 0));
        let result = go_on(&agent, dead, "again").await;
        assert_eq!(result.status, RunStatus::Completed);
        assert_eq!(endpoint.refusals(), [""; 0], "{way:?}");
    }
}

/// B13: a refusal ends the run with its own words, and the session stays usable.
#[tokio::test]
async fn after_a_refusal_the_conversation_goes_on() {
    for way in WAYS {
        let refusal = Answer::reply(json!([])).stop("refusal");
        let endpoint = way.endpoint([refusal, Answer::text("done")]);
        let (agent, _) = way.agent(&endpoint);
        let refused = agent.run(vec![Message::user("go")]).await;
        assert_eq!(refused.status.word(), "refused", "{way:?}");
        let result = go_on(&agent, refused, "something else").await;
        assert_eq!(result.status, RunStatus::Completed);
        assert_eq!(endpoint.refusals(), [""; 0], "{way:?}");
    }
}
