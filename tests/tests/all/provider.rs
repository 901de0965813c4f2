//! Model providers against an endpoint on a real socket.

use std::{sync::Arc, time::Duration};

use agentloop_host::{
    http::{ClientSettings, model_client},
    ids::{ToolName, ToolUseId},
    provider::{
        Anthropic, AnthropicSettings, Delta, KeyHeader, ModelReply, ModelRequest, OpenAi,
        OpenAiSettings, Phase, Provider, ProviderError, ProviderErrorKind, Retries, Secret,
        Timeouts, ToolSchema, Watch,
    },
    transcript::{
        ContentBlock, Media, Message, ResultContent, Role, Seal, StopReason, ToolInput, ToolResult,
        ToolUse, Usage,
    },
};
use agentloop_tests::{
    endpoint::{Answer, Api, Endpoint},
    servers::{Authority, Reply, Server},
};
use serde_json::{Map, Value, json};
use url::Url;

const APIS: [Api; 2] = [Api::Anthropic, Api::OpenAi];

/// Both APIs, with and without streaming.
const WAYS: [(Api, bool); 4] = [
    (Api::Anthropic, true),
    (Api::Anthropic, false),
    (Api::OpenAi, true),
    (Api::OpenAi, false),
];

/// Everything that a provider can be told.
#[derive(Clone)]
pub(super) struct Settings {
    pub(super) api: Api,
    pub(super) base_url: String,
    pub(super) key: Option<&'static str>,
    pub(super) stream: bool,
    pub(super) retries: Retries,
    pub(super) timeouts: Timeouts,
    pub(super) tools_as_schema: bool,
    pub(super) client: ClientSettings,
}

impl Settings {
    pub(super) fn new(api: Api, base_url: &str, stream: bool) -> Self {
        Self {
            api,
            base_url: base_url.to_owned(),
            key: Some("sk-test"),
            stream,
            retries: Retries {
                max: 2,
                base: Duration::from_millis(1),
                ..Retries::default()
            },
            timeouts: Timeouts::default(),
            tools_as_schema: false,
            client: ClientSettings {
                environment_proxy: false,
                ..ClientSettings::default()
            },
        }
    }

    pub(super) fn provider(self) -> Box<dyn Provider> {
        let client = model_client(&self.client).unwrap();
        let url = Url::parse(&self.base_url).unwrap();
        let key = self.key.map(Secret::new);
        match self.api {
            Api::Anthropic => Box::new(Anthropic::new(
                AnthropicSettings {
                    stream: self.stream,
                    retries: self.retries,
                    timeouts: self.timeouts,
                    ..AnthropicSettings::new(url, key)
                },
                client,
            )),
            Api::OpenAi => Box::new(OpenAi::new(
                OpenAiSettings {
                    stream: self.stream,
                    retries: self.retries,
                    timeouts: self.timeouts,
                    tools_as_schema: self.tools_as_schema,
                    ..OpenAiSettings::new(url, key)
                },
                client,
            )),
        }
    }
}

pub(super) fn provider(endpoint: &Endpoint, api: Api, stream: bool) -> Box<dyn Provider> {
    Settings::new(api, &endpoint.base_url(), stream).provider()
}

#[derive(Debug, Default)]
struct Heard {
    text: String,
    reasoning: String,
    tool_uses: Vec<String>,
    retries: Vec<(u32, Duration, ProviderError)>,
}

impl Watch for Heard {
    fn delta(&mut self, delta: Delta<'_>) {
        match delta {
            Delta::Text(text) => self.text.push_str(text),
            Delta::Reasoning(text) => self.reasoning.push_str(text),
            Delta::ToolUse { name } => self.tool_uses.push(name.to_owned()),
        }
    }

    fn retrying(&mut self, attempt: u32, wait: Duration, error: &ProviderError) {
        self.retries.push((attempt, wait, error.clone()));
    }
}

fn tools() -> Vec<ToolSchema> {
    let tool = |name, description| ToolSchema {
        name: ToolName::parse(name).unwrap(),
        description: Arc::from(description),
        input_schema: Arc::new(json!({
            "type": "object",
            "properties": {"text": {"type": "string"}},
        })),
    };
    vec![
        tool("echo", "Says it again."),
        tool("now", "Tells the time."),
    ]
}

pub(super) async fn ask_with(
    provider: &dyn Provider,
    messages: &[Message],
    watch: &mut dyn Watch,
) -> Result<ModelReply, ProviderError> {
    let tools = tools();
    let request = ModelRequest {
        model: "test",
        system: Some("Be brief."),
        messages,
        tools: &tools,
        max_tokens: 1000,
    };
    provider.ask(&request, watch).await
}

async fn ask(provider: &dyn Provider) -> (Result<ModelReply, ProviderError>, Heard) {
    let mut heard = Heard::default();
    let reply = ask_with(provider, &[Message::user("go")], &mut heard).await;
    (reply, heard)
}

async fn refusal(provider: &dyn Provider) -> ProviderError {
    ask(provider).await.0.unwrap_err()
}

pub(super) fn user(content: Vec<ContentBlock>) -> Message {
    Message {
        role: Role::User,
        content,
    }
}

pub(super) fn assistant(content: Vec<ContentBlock>) -> Message {
    Message {
        role: Role::Assistant,
        content,
    }
}

fn result(id: &str, text: &str, is_error: bool) -> ContentBlock {
    ContentBlock::ToolResult(ToolResult {
        tool_use_id: ToolUseId::parse(id).unwrap(),
        content: vec![ResultContent::Text { text: text.into() }],
        is_error,
    })
}

fn call(id: &str, name: &str, input: &str) -> ContentBlock {
    ContentBlock::ToolUse(ToolUse {
        id: ToolUseId::parse(id).unwrap(),
        provider_id: None,
        name: name.into(),
        input: ToolInput::parse(input),
        extra: Map::new(),
    })
}

// --- replies ---

/// What B17 asks for: a text that can be cut in many bad places, in two calls at once.
fn hard_reply() -> Answer {
    Answer::reply(json!([
        {"type": "text", "text": "Ich höre 😀\n\"so\"."},
        {"type": "tool_use", "id": "call_a", "name": "echo", "input": {"text": "a\"\\é 😀 {]"}},
        {"type": "tool_use", "id": "call_b", "name": "now", "input": {}},
        {"type": "tool_use", "id": "call_c", "name": "echo", "input": "{\"text\":\"\\ud83d\"}"},
    ]))
    .usage(json!({
        "input_tokens": 480, "output_tokens": 89,
        "cache_read_input_tokens": 7, "cache_creation_input_tokens": 3,
    }))
}

fn assert_hard_reply(reply: &ModelReply, context: &str) {
    let [text, a, b, c] = &reply.content[..] else {
        panic!("{context}: {reply:?}");
    };
    assert_eq!(
        *text,
        ContentBlock::text("Ich höre 😀\n\"so\"."),
        "{context}"
    );
    let input = json!({"text": "a\"\\é 😀 {]"}).to_string();
    assert_eq!(*a, call("call_a", "echo", &input), "{context}");
    assert_eq!(*b, call("call_b", "now", ""), "{context}");
    assert_eq!(
        *c,
        call("call_c", "echo", "{\"text\":\"\\ud83d\"}"),
        "{context}"
    );
    let ContentBlock::ToolUse(half) = c else {
        panic!("{context}: {c:?}");
    };
    assert!(
        matches!(half.input, ToolInput::Malformed { .. }),
        "{context}"
    );
    assert_eq!(reply.stop_reason, StopReason::ToolUse, "{context}");
    let usage = Usage {
        input: Some(480),
        output: Some(89),
        cache_read: Some(7),
        cache_write: Some(3),
    };
    assert_eq!(reply.usage, usage, "{context}");
}

/// B17 and B16: one reply, whatever the bytes look like on the way.
#[tokio::test]
async fn a_reply_is_the_same_however_it_is_cut() {
    for api in APIS {
        let plain = hard_reply;
        let ways: [(&str, Answer); 8] = [
            ("as it is", plain()),
            ("byte by byte", plain().chunks_of(1)),
            ("character by character", plain().pieces_of(1)),
            ("both", plain().pieces_of(1).chunks_of(1)),
            ("three bytes", plain().pieces_of(2).chunks_of(3)),
            ("with noise", plain().noisy().crlf().chunks_of(2)),
            ("interleaved", plain().interleaved().pieces_of(1)),
            (
                "all at once",
                plain()
                    .interleaved()
                    .noisy()
                    .crlf()
                    .pieces_of(1)
                    .chunks_of(1),
            ),
        ];
        let names: Vec<&str> = ways.iter().map(|(name, _)| *name).collect();
        let endpoint = Endpoint::start(api, ways.into_iter().map(|(_, answer)| answer));
        let provider = provider(&endpoint, api, true);
        for name in names {
            let (reply, heard) = ask(&*provider).await;
            assert_hard_reply(&reply.unwrap(), name);
            assert_eq!(heard.text, "Ich höre 😀\n\"so\".", "{name}");
            assert_eq!(heard.tool_uses, ["echo", "now", "echo"], "{name}");
        }
    }
}

#[tokio::test]
async fn a_reply_that_is_not_streamed_is_the_same() {
    for api in APIS {
        // Without streaming the arguments of a call are JSON, and half a character stays possible only in
        // the raw bytes.
        let hard = hard_reply();
        let answers = match api {
            Api::Anthropic => vec![Answer::raw_reply([
                json!({"type": "text", "text": "Ich höre 😀\n\"so\"."}).to_string(),
                r#"{"type":"tool_use","id":"call_a","name":"echo","input":{"text":"a\"\\\u00e9 😀 {]"}}"#.into(),
                r#"{"type":"tool_use","id":"call_b","name":"now","input":{}}"#.into(),
                r#"{"type":"tool_use","id":"call_c","name":"echo","input":{"text":"\ud83d"}}"#.into(),
            ])
            .usage(json!({"input_tokens": 480, "output_tokens": 89,
                "cache_read_input_tokens": 7, "cache_creation_input_tokens": 3}))],
            Api::OpenAi => vec![hard],
        };
        let endpoint = Endpoint::start(api, answers);
        let provider = provider(&endpoint, api, false);
        let (reply, heard) = ask(&*provider).await;
        assert_hard_reply(&reply.unwrap(), "not streamed");
        assert_eq!(heard.text, "Ich höre 😀\n\"so\".");
        assert_eq!(endpoint.requests()[0].body["stream"], false);
    }
}

/// R4: whatever is missing from a stream, the rest is never taken for a reply.
#[tokio::test]
async fn a_stream_cut_at_any_byte_is_an_error_or_the_whole_reply() {
    for api in APIS {
        let answer = hard_reply().pieces_of(20);
        let length = answer.as_sse(api).len();
        // A body that seems complete is the dangerous one; a connection that breaks tells of itself.
        for (broken, step) in [(false, 1), (true, 31)] {
            let cuts = || (0..length).step_by(step);
            let answers = cuts().map(|n| match broken {
                true => answer.clone().broken_after(n),
                false => answer.clone().short_after(n),
            });
            let endpoint = Endpoint::start(api, answers);
            let mut settings = Settings::new(api, &endpoint.base_url(), true);
            settings.retries.max = 0;
            let provider = settings.provider();
            let mut whole = 0;
            for n in cuts() {
                match ask(&*provider).await.0 {
                    Ok(reply) => {
                        // What is lost behind the last word may be the counts.
                        let reply = ModelReply {
                            usage: Usage {
                                input: Some(480),
                                output: Some(89),
                                cache_read: Some(7),
                                cache_write: Some(3),
                            },
                            ..reply
                        };
                        assert_hard_reply(&reply, &format!("{api:?} cut after {n} of {length}"));
                        whole += 1;
                    }
                    Err(error) => {
                        let kind = error.kind;
                        assert!(
                            matches!(
                                kind,
                                ProviderErrorKind::Protocol | ProviderErrorKind::Network
                            ),
                            "{error:?}"
                        );
                        assert_eq!(error.phase, Phase::Reading, "{error:?}");
                        assert_eq!(error.attempts, 1);
                    }
                }
            }
            // Anthropic's closing event is the last line; the other API closes with a mark that adds nothing.
            let most = if api == Api::Anthropic { 2 } else { 300 };
            assert!(
                whole <= most,
                "{api:?} broken {broken}: {whole} of {length}"
            );
        }
    }
}

/// B03.
#[tokio::test]
async fn a_call_without_arguments_is_one_with_none() {
    for (api, stream) in WAYS {
        let reply = json!([{"type": "tool_use", "id": "call_1", "name": "now", "input": {}}]);
        let endpoint = Endpoint::start(api, [Answer::reply(reply), Answer::text("done")]);
        let provider = provider(&endpoint, api, stream);
        let reply = ask(&*provider).await.0.unwrap();
        assert_eq!(reply.content, [call("call_1", "now", "")]);
        let history = [
            Message::user("go"),
            assistant(reply.content),
            user(vec![result("call_1", "12:00", false)]),
        ];
        ask_with(&*provider, &history, &mut ()).await.unwrap();
        assert_eq!(endpoint.refusals(), [""; 0]);
        let sent = &endpoint.requests()[1].body["messages"];
        match api {
            Api::Anthropic => assert_eq!(sent[1]["content"][0]["input"], json!({})),
            Api::OpenAi => assert_eq!(sent[2]["tool_calls"][0]["function"]["arguments"], "{}"),
        }
    }
}

/// B12 and B13: the words are handed on as they are, with the calls.
#[tokio::test]
async fn stop_reasons_are_handed_on() {
    for (api, stream) in WAYS {
        let calls = json!([{"type": "tool_use", "id": "call_1", "name": "now", "input": {}}]);
        let answers = [
            Answer::reply(calls.clone()).stop("end_turn"),
            Answer::reply(calls).stop(Value::Null),
            Answer::text("hi").stop("tool_use"),
            Answer::text("hi").stop("max_tokens"),
            Answer::text("hi").stop("new_thing"),
            Answer::reply(json!([])).stop("refusal"),
        ];
        let endpoint = Endpoint::start(api, answers);
        let provider = provider(&endpoint, api, stream);
        let mut heard = Vec::new();
        for _ in 0..6 {
            let reply = ask(&*provider).await.0.unwrap();
            heard.push((reply.stop_reason, reply.content.len()));
        }
        assert_eq!(
            heard,
            [
                (StopReason::EndTurn, 1),
                (StopReason::Unknown(String::new()), 1),
                (StopReason::ToolUse, 1),
                (StopReason::MaxTokens, 1),
                (StopReason::Unknown("new_thing".into()), 1),
                (StopReason::Refusal, 0),
            ],
            "{api:?} {stream}"
        );
    }
}

#[tokio::test]
async fn a_paused_turn_goes_back_as_it_is() {
    for stream in [true, false] {
        let search =
            r#"{"type": "server_tool_use","id":"srv_1", "name":"web_search","input":{"q":1.0}}"#;
        let paused = Answer::raw_reply([r#"{"type":"text","text":"part 1"}"#, search]);
        let endpoint = Endpoint::anthropic([paused.stop("pause_turn"), Answer::text("part 2")]);
        let provider = provider(&endpoint, Api::Anthropic, stream);
        let reply = ask(&*provider).await.0.unwrap();
        assert_eq!(reply.stop_reason, StopReason::PauseTurn);
        let history = [Message::user("go"), assistant(reply.content)];
        let reply = ask_with(&*provider, &history, &mut ()).await.unwrap();
        assert_eq!(reply.content, [ContentBlock::text("part 2")]);
        assert!(endpoint.requests()[1].raw.contains(search));
    }
}

#[tokio::test]
async fn a_refusal_says_why() {
    for stream in [true, false] {
        let details = json!({"type": "refusal", "category": "cyber", "explanation": "No\u{1b}."});
        let answer = Answer::reply(json!([]))
            .stop("refusal")
            .stop_details(details);
        let endpoint = Endpoint::anthropic([answer]);
        let reply = ask(&*provider(&endpoint, Api::Anthropic, stream))
            .await
            .0
            .unwrap();
        assert_eq!(reply.stop_reason, StopReason::Refusal);
        assert_eq!(reply.stop_details.as_deref(), Some("cyber: No\\u{1b}."));
    }
}

/// B16.
#[tokio::test]
async fn tokens_of_a_stream_are_running_totals() {
    let answer = Answer::text("hi")
        .start_usage(json!({"input_tokens": 472, "output_tokens": 1}))
        .usage(json!({"input_tokens": 480, "cache_read_input_tokens": null, "output_tokens": 89}));
    let endpoint = Endpoint::anthropic([answer]);
    let reply = ask(&*provider(&endpoint, Api::Anthropic, true))
        .await
        .0
        .unwrap();
    assert_eq!(
        (reply.usage.input, reply.usage.output),
        (Some(480), Some(89))
    );
    assert_eq!(
        (reply.usage.cache_read, reply.usage.cache_write),
        (None, None)
    );
    assert_eq!(reply.request_id.as_deref(), Some("req_1"));
}

#[tokio::test]
async fn servers_choose_the_form_of_the_answer() {
    for (api, stream) in WAYS {
        let other = match stream {
            // Asked for a stream, some servers send the whole.
            true => {
                let message = json!({"role": "assistant", "content": "hi"});
                let body = match api {
                    Api::Anthropic => json!({"content": [{"type": "text", "text": "hi"}]}),
                    Api::OpenAi => json!({"choices": [{"message": message}]}),
                };
                Answer::fixed(200, "application/json", body.to_string())
            }
            false => Answer::fixed(200, "text/event-stream", Answer::text("hi").as_sse(api)),
        };
        let endpoint = Endpoint::start(api, [other]);
        let (reply, heard) = ask(&*provider(&endpoint, api, stream)).await;
        assert_eq!(reply.unwrap().content, [ContentBlock::text("hi")]);
        assert_eq!(heard.text, "hi");
    }
}

// --- history ---

/// B01, B07, B14 and the sealed blocks: a strict endpoint takes what it is sent.
#[tokio::test]
async fn a_strict_endpoint_takes_the_history() {
    for stream in [true, false] {
        let thinking = json!({"type": "thinking", "thinking": "so…", "signature": "EqQB+/="});
        let raw = [
            thinking.to_string(),
            r#"{"type":"redacted_thinking", "data":"AA=="}"#.to_owned(),
            r#"{"type":"brand_new",  "score": 1.50, "n": 12345678901234567890123}"#.to_owned(),
            r#"{"type":"text","text":""}"#.to_owned(),
            r#"{"type":"tool_use","id":"call_a","name":"echo","input":{"b":1,"a":[2.5,null]},"caller":{"type":"direct"}}"#.to_owned(),
            r#"{"type":"tool_use","id":"call_b","name":"now","input":{}}"#.to_owned(),
        ];
        let blank = Answer::text(" \n");
        let only_thought = Answer::reply(json!([thinking, {"type": "text", "text": ""}]));
        let answers = [
            Answer::raw_reply(raw.clone()),
            blank,
            only_thought,
            Answer::text("done"),
        ];
        let endpoint = Endpoint::anthropic(answers);
        let provider = provider(&endpoint, Api::Anthropic, stream);
        let mut history = vec![Message::user("go")];
        let png = Media {
            media_type: "image/png".into(),
            base64: "iVBORw0KGgo=".into(),
        };
        let mut results = vec![
            ContentBlock::text("and what else?"),
            result("call_a", " ", true),
            result("call_b", "12:00", false),
        ];
        if let ContentBlock::ToolResult(result) = &mut results[2] {
            result.content.push(ResultContent::Image(png));
        }
        for next in [user(results), Message::user("b"), Message::user("c")] {
            let reply = ask_with(&*provider, &history, &mut ()).await.unwrap();
            history.extend([assistant(reply.content), next]);
        }
        ask_with(&*provider, &history, &mut ()).await.unwrap();
        assert_eq!(endpoint.refusals(), [""; 0]);
        let requests = endpoint.requests();
        for sealed in &raw[..3] {
            assert_eq!(
                requests[3].raw.matches(sealed.as_str()).count(),
                1,
                "{sealed}"
            );
        }
        // The two replies that said nothing are not there, and what stood around them is one message.
        let messages = requests[3].body["messages"].as_array().unwrap();
        assert_eq!(messages.len(), 3, "{messages:?}");
        let kinds: Vec<&str> = messages[2]["content"]
            .as_array()
            .unwrap()
            .iter()
            .map(|block| block["type"].as_str().unwrap())
            .collect();
        assert_eq!(
            kinds,
            ["tool_result", "tool_result", "text", "text", "text"]
        );
        assert_eq!(
            messages[1]["content"][3]["caller"],
            json!({"type": "direct"})
        );
    }
}

/// Sealed blocks mean nothing to another model.
#[tokio::test]
async fn what_another_sealed_is_not_sent() {
    for api in APIS {
        let seal = |raw: &str| Seal {
            provider: "somebody".into(),
            model: "test".into(),
            raw: raw.into(),
        };
        let history = [
            Message::user("go"),
            assistant(vec![
                ContentBlock::Reasoning {
                    text: "secret".into(),
                    seal: seal(r#"{"type":"thinking","thinking":"secret"}"#),
                },
                ContentBlock::Foreign(seal(r#"{"type":"search\u001b","x":"hidden"}"#)),
                ContentBlock::text("hi"),
            ]),
            Message::user("and?"),
        ];
        let endpoint = Endpoint::start(api, [Answer::text("done")]);
        let provider = provider(&endpoint, api, true);
        ask_with(&*provider, &history, &mut ()).await.unwrap();
        let raw = &endpoint.requests()[0].raw;
        assert!(!raw.contains("secret") && !raw.contains("hidden"), "{raw}");
        assert!(raw.contains("[a block of type search"), "{raw}");
    }
}

/// B06 and B09: whatever a model wrote, the next request is one that is taken.
#[tokio::test]
async fn what_a_model_wrote_never_spoils_the_next_request() {
    for (api, stream) in WAYS {
        let odd = json!([
            {"type": "tool_use", "id": "", "name": "read file", "input": {}},
            {"type": "tool_use", "id": "a b/ü", "name": "", "input": {}},
            {"type": "tool_use", "id": "x".repeat(64), "name": "echo", "input": "{\"text\":\"\\ud83d"},
        ]);
        // A whole reply of the Messages API has its arguments as JSON; as a text they are what a gateway sends.
        let endpoint = Endpoint::start(api, [Answer::reply(odd), Answer::text("done")]);
        let provider = provider(&endpoint, api, stream);
        let reply = ask(&*provider).await.0.unwrap();
        let calls: Vec<&ToolUse> = reply
            .content
            .iter()
            .filter_map(|block| match block {
                ContentBlock::ToolUse(call) => Some(call),
                _ => None,
            })
            .collect();
        assert_eq!(calls[0].name, "read file");
        assert!(calls[0].provider_id.as_deref().is_none_or(str::is_empty));
        assert_eq!(calls[1].provider_id.as_deref(), Some("a b/ü"));
        assert!(matches!(calls[2].input, ToolInput::Malformed { .. }));
        let results = calls
            .iter()
            .map(|call| result(call.id.as_str(), "no", true))
            .collect();
        let history = [
            Message::user("go"),
            assistant(reply.content.clone()),
            user(results),
        ];
        ask_with(&*provider, &history, &mut ()).await.unwrap();
        assert_eq!(endpoint.refusals(), [""; 0]);
    }
}

/// What one request has in common with the next stays the same to the byte, up to the moving mark.
#[tokio::test]
async fn requests_share_their_beginning() {
    let endpoint = Endpoint::anthropic([Answer::text("a"), Answer::text("b")]);
    let provider = provider(&endpoint, Api::Anthropic, true);
    let mut history = vec![Message::user("one")];
    ask_with(&*provider, &history, &mut ()).await.unwrap();
    history.extend([Message::assistant("a"), Message::user("two")]);
    ask_with(&*provider, &history, &mut ()).await.unwrap();
    let requests = endpoint.requests();
    let (first, second) = (&requests[0].raw, &requests[1].raw);
    let common = first
        .bytes()
        .zip(second.bytes())
        .take_while(|(a, b)| a == b)
        .count();
    assert!(
        first[..common].ends_with(r#"{"type":"text","text":"one""#),
        "{}",
        &first[..common]
    );
    assert_eq!(first.matches("cache_control").count(), 3);
}

// --- what the request says ---

#[tokio::test]
async fn headers_are_those_of_the_settings() {
    let endpoint = Endpoint::anthropic([Answer::text("a"), Answer::text("b")]);
    let client = model_client(&Settings::new(Api::Anthropic, "http://h", true).client).unwrap();
    let url = Url::parse(&endpoint.base_url()).unwrap();
    let settings = AnthropicSettings::new(url, Some(Secret::new(" sk-test\n")));
    let plain = Anthropic::new(settings.clone(), client.clone());
    ask(&plain).await.0.unwrap();
    let newest = AnthropicSettings {
        key_header: KeyHeader::Bearer,
        version: "2026-10-21".into(),
        betas: vec!["one-2026-01-01".into(), "two-2026-01-01".into()],
        ..settings
    };
    ask(&Anthropic::new(newest, client)).await.0.unwrap();
    let requests = endpoint.requests();
    let header = |n: usize, name: &str| {
        let value = requests[n].headers.get(name)?;
        Some(value.to_str().unwrap().to_owned())
    };
    assert_eq!(header(0, "x-api-key").as_deref(), Some("sk-test"));
    assert_eq!(header(0, "authorization"), None);
    assert_eq!(
        header(0, "anthropic-version").as_deref(),
        Some("2023-06-01")
    );
    assert_eq!(header(0, "anthropic-beta"), None);
    assert_eq!(header(1, "x-api-key"), None);
    assert_eq!(
        header(1, "authorization").as_deref(),
        Some("Bearer sk-test")
    );
    assert_eq!(
        header(1, "anthropic-version").as_deref(),
        Some("2026-10-21")
    );
    assert_eq!(
        header(1, "anthropic-beta").as_deref(),
        Some("one-2026-01-01,two-2026-01-01")
    );
    // Nothing that newer versions refuse.
    for gone in ["temperature", "top_p", "top_k"] {
        assert_eq!(requests[1].body.get(gone), None);
    }
}

#[tokio::test]
async fn tools_can_go_as_one_schema() {
    for stream in [true, false] {
        let endpoint = Endpoint::openai([
            Answer::text(r#"{"tool":"echo","arguments":{"text":"hi"}}"#),
            Answer::text(r#"{"answer":"It said hi."}"#),
            Answer::text(r#"{"tool":"echo","argu"#).stop("max_tokens"),
        ]);
        let mut settings = Settings::new(Api::OpenAi, &endpoint.base_url(), stream);
        settings.tools_as_schema = true;
        let provider = settings.provider();
        let (reply, heard) = ask(&*provider).await;
        let reply = reply.unwrap();
        assert_eq!(
            reply.content,
            [call("call_1_0", "echo", r#"{"text":"hi"}"#)]
        );
        assert_eq!(reply.stop_reason, StopReason::ToolUse);
        assert_eq!(
            (heard.text.as_str(), &heard.tool_uses[..]),
            ("", &["echo".to_owned()][..])
        );
        let history = [
            Message::user("go"),
            assistant(reply.content),
            user(vec![result("call_1_0", "hi", false)]),
        ];
        let mut heard = Heard::default();
        let reply = ask_with(&*provider, &history, &mut heard).await.unwrap();
        assert_eq!(reply.content, [ContentBlock::text("It said hi.")]);
        assert_eq!(reply.stop_reason, StopReason::EndTurn);
        assert_eq!(heard.text, "It said hi.");
        let cut = ask(&*provider).await.0.unwrap();
        assert_eq!(
            (cut.content, cut.stop_reason),
            (vec![], StopReason::MaxTokens)
        );
        assert_eq!(endpoint.refusals(), [""; 0]);
        let sent = endpoint.requests()[1].body.clone();
        assert_eq!(sent["messages"][3]["content"], "Result of echo: hi");
        assert_eq!(sent.get("tools"), None);
    }
}

// --- faults ---

/// R3.
#[tokio::test]
async fn some_statuses_are_tried_again() {
    for api in APIS {
        for (status, kind) in [
            (408, ProviderErrorKind::Server),
            (409, ProviderErrorKind::Server),
            (429, ProviderErrorKind::Overloaded),
            (500, ProviderErrorKind::Server),
            (503, ProviderErrorKind::Server),
            (529, ProviderErrorKind::Overloaded),
        ] {
            let busy = Answer::status(status, "some_error", "busy").header("retry-after-ms", "3");
            let endpoint = Endpoint::start(api, [busy.clone(), Answer::text("hi")]);
            let (reply, heard) = ask(&*provider(&endpoint, api, true)).await;
            assert_eq!(reply.unwrap().content, [ContentBlock::text("hi")]);
            let [(1, wait, error)] = &heard.retries[..] else {
                panic!("{:?}", heard.retries);
            };
            assert_eq!(*wait, Duration::from_millis(3));
            assert_eq!((error.kind, error.status), (kind, Some(status)));

            let endpoint = Endpoint::start(api, vec![busy; 3]);
            let error = refusal(&*provider(&endpoint, api, true)).await;
            assert_eq!((error.kind, error.attempts), (kind, 3));
            assert_eq!(error.phase, Phase::Waiting);
            assert_eq!(error.request_id.as_deref(), Some("req_1"));
            assert_eq!(error.message, "busy");
            assert_eq!(endpoint.remaining(), 0);
        }
    }
}

#[tokio::test]
async fn other_statuses_are_not() {
    for api in APIS {
        for (status, word, kind) in [
            (400, "invalid_request_error", ProviderErrorKind::Request),
            (
                400,
                "context_length_exceeded",
                ProviderErrorKind::ContextTooLong,
            ),
            (401, "authentication_error", ProviderErrorKind::Auth),
            (403, "permission_error", ProviderErrorKind::Auth),
            (404, "not_found_error", ProviderErrorKind::Request),
            (413, "request_too_large", ProviderErrorKind::Request),
            (422, "invalid_request_error", ProviderErrorKind::Request),
            (429, "insufficient_quota", ProviderErrorKind::Request),
        ] {
            let endpoint = Endpoint::start(api, vec![Answer::status(status, word, "no"); 2]);
            let (error, heard) = ask(&*provider(&endpoint, api, true)).await;
            let error = error.unwrap_err();
            assert_eq!((error.kind, error.attempts), (kind, 1), "{status} {word}");
            assert!(heard.retries.is_empty());
            assert_eq!(endpoint.remaining(), 1);
        }
    }
}

#[tokio::test]
async fn the_endpoint_may_say_whether_to_try_again() {
    let no = Answer::status(529, "overloaded_error", "busy").header("x-should-retry", "false");
    let endpoint = Endpoint::anthropic([no, Answer::text("hi")]);
    assert_eq!(
        refusal(&*provider(&endpoint, Api::Anthropic, true))
            .await
            .attempts,
        1
    );

    let yes = |status| Answer::status(status, "x", "no").header("x-should-retry", "true");
    let endpoint = Endpoint::anthropic([yes(404), Answer::text("hi")]);
    assert!(
        ask(&*provider(&endpoint, Api::Anthropic, true))
            .await
            .0
            .is_ok()
    );
    for status in [400, 401, 403] {
        let endpoint = Endpoint::anthropic([yes(status), Answer::text("hi")]);
        let error = refusal(&*provider(&endpoint, Api::Anthropic, true)).await;
        assert_eq!(error.attempts, 1, "{status}");
    }

    let later = Answer::status(429, "rate_limit_error", "busy").header("retry-after", "3600");
    let endpoint = Endpoint::anthropic([later, Answer::text("hi")]);
    let error = refusal(&*provider(&endpoint, Api::Anthropic, true)).await;
    assert_eq!(
        (error.attempts, error.retry_after),
        (1, Some(Duration::from_secs(3600)))
    );
}

/// An attempt is repeated only while nothing of it was shown, and its tokens are told.
#[tokio::test]
async fn what_was_shown_is_not_asked_for_again() {
    for api in APIS {
        let answer = Answer::text("one two three").pieces_of(1);
        let sse = String::from_utf8(answer.as_sse(api)).unwrap();
        let first_word = match api {
            Api::Anthropic => sse.find("text_delta").unwrap(),
            Api::OpenAi => sse.find(r#"{"content":"o"}"#).unwrap(),
        };
        for broken in [true, false] {
            let cut = |after| match broken {
                true => answer.clone().broken_after(after),
                false => answer.clone().short_after(after),
            };
            let before = cut(first_word - 40);
            let endpoint = Endpoint::start(api, [before, answer.clone()]);
            let (reply, heard) = ask(&*provider(&endpoint, api, true)).await;
            assert_eq!(
                reply.unwrap().content,
                [ContentBlock::text("one two three")]
            );
            assert_eq!(heard.text, "one two three");
            assert_eq!(heard.retries.len(), 1);
            if api == Api::Anthropic {
                assert_eq!(heard.retries[0].2.usage.input, Some(10));
            }

            let endpoint = Endpoint::start(api, [cut(first_word + 200), answer.clone()]);
            let (error, heard) = ask(&*provider(&endpoint, api, true)).await;
            let error = error.unwrap_err();
            assert!(heard.text.starts_with('o'), "{heard:?}");
            assert!(heard.retries.is_empty());
            assert_eq!((error.attempts, error.phase), (1, Phase::Reading));
            if api == Api::Anthropic {
                assert_eq!(error.usage.input, Some(10));
            }
            assert_eq!(endpoint.remaining(), 1);
        }
    }
}

/// A stream with status 200 can still end in an error.
#[tokio::test]
async fn an_error_in_a_stream_counts_as_its_status_would() {
    for (word, kind, attempts) in [
        ("overloaded_error", ProviderErrorKind::Overloaded, 3),
        ("api_error", ProviderErrorKind::Server, 3),
        ("invalid_request_error", ProviderErrorKind::Request, 1),
        ("authentication_error", ProviderErrorKind::Auth, 1),
    ] {
        for api in APIS {
            let error = json!({"type": "error", "error": {"type": word, "message": "no"}});
            let body = format!("event: error\ndata: {error}\n\n");
            let answer = Answer::fixed(200, "text/event-stream", body);
            let endpoint = Endpoint::start(api, vec![answer; 3]);
            let error = refusal(&*provider(&endpoint, api, true)).await;
            assert_eq!(
                (error.kind, error.attempts),
                (kind, attempts),
                "{api:?} {word}"
            );
            assert_eq!(error.message, "no");
        }
    }
}

/// R5.
#[tokio::test]
async fn every_wait_for_an_endpoint_ends() {
    for (api, stream) in WAYS {
        let quick = |endpoint: &Endpoint| {
            let mut settings = Settings::new(api, &endpoint.base_url(), stream);
            settings.retries.max = 1;
            settings.timeouts = Timeouts {
                answer: Duration::from_millis(100),
                idle: Duration::from_millis(100),
                reply: Duration::from_secs(30),
            };
            settings
        };
        let endpoint = Endpoint::start(api, vec![Answer::silence(); 2]);
        let error = refusal(&*quick(&endpoint).provider()).await;
        assert_eq!(
            (error.kind, error.attempts),
            (ProviderErrorKind::Network, 2)
        );
        assert_eq!(error.phase, Phase::Waiting);
        assert!(error.message.contains("no answer within 0.1 s"), "{error}");

        let endpoint = Endpoint::start(api, vec![Answer::text("hi").stalled_after(20); 2]);
        let error = refusal(&*quick(&endpoint).provider()).await;
        assert_eq!(
            (error.kind, error.attempts),
            (ProviderErrorKind::Network, 2)
        );
        assert_eq!(error.phase, Phase::Reading);
        assert!(error.message.contains("nothing came for 0.1 s"), "{error}");

        // An error page that never ends still is that error.
        let stuck = Answer::status(400, "invalid_request_error", "no").stalled_after(3);
        let endpoint = Endpoint::start(api, [stuck]);
        let error = refusal(&*quick(&endpoint).provider()).await;
        assert_eq!(
            (error.kind, error.status),
            (ProviderErrorKind::Request, Some(400))
        );
    }
}

/// A server that keeps a connection alive with comments has to come to an end as well.
#[tokio::test]
async fn a_reply_has_a_limit_of_its_own() {
    let server = Server::start(|_| {
        use agentloop_tests::servers::{Step, response_head};
        let head = response_head(200, &[("content-type", "text/event-stream")]);
        let drip = Step::Drip(b": still here\n\n".to_vec(), Duration::from_millis(5));
        Reply::steps([Step::Send(head), drip])
    })
    .await;
    let mut settings = Settings::new(Api::Anthropic, &server.origin(), true);
    settings.retries.max = 0;
    settings.timeouts.reply = Duration::from_millis(200);
    let error = refusal(&*settings.provider()).await;
    assert_eq!(error.kind, ProviderErrorKind::Network);
    assert!(
        error.message.contains("longer than its limit of 0.2 s"),
        "{error}"
    );
}

#[tokio::test]
async fn nonsense_is_told_and_never_taken() {
    let too_large = vec![b' '; (64 << 20) + 1];
    for api in APIS {
        let sse = |body: &[u8]| Answer::fixed(200, "text/event-stream", body);
        for (answer, kind, words) in [
            (
                Answer::fixed(200, "application/json", "{\"x\":"),
                ProviderErrorKind::Protocol,
                "not readable",
            ),
            (
                Answer::fixed(200, "application/json", "{}"),
                ProviderErrorKind::Protocol,
                "without content",
            ),
            (
                Answer::fixed(
                    200,
                    "application/json",
                    r#"{"error":{"type":"api_error","message":"oh"}}"#,
                ),
                ProviderErrorKind::Server,
                "oh",
            ),
            (
                Answer::fixed(200, "text/html; charset=utf-8", "<html>"),
                ProviderErrorKind::Request,
                "base URL",
            ),
            (
                sse(b"data: {]\n\n"),
                ProviderErrorKind::Protocol,
                "not readable",
            ),
            (
                sse(b"data: \xff\n\n"),
                ProviderErrorKind::Protocol,
                "not UTF-8",
            ),
            (sse(b""), ProviderErrorKind::Protocol, "ended before"),
            (
                Answer::fixed(204, "text/plain", ""),
                ProviderErrorKind::Protocol,
                "no content",
            ),
            (
                Answer::fixed(200, "application/json", too_large.clone()),
                ProviderErrorKind::Protocol,
                "larger than",
            ),
        ] {
            let endpoint = Endpoint::start(api, [answer]);
            let mut settings = Settings::new(api, &endpoint.base_url(), true);
            settings.retries.max = 0;
            let error = refusal(&*settings.provider()).await;
            assert_eq!(error.kind, kind, "{words}: {error}");
            assert!(error.message.contains(words), "{words}: {error}");
        }
    }
}

#[tokio::test]
async fn what_an_endpoint_says_is_bounded_and_harmless() {
    let nasty = format!("\u{1b}[31m\u{202e}{}", "x".repeat(100_000));
    let answer = Answer::status(400, "invalid_request_error", &nasty);
    let endpoint = Endpoint::anthropic([answer]);
    let error = refusal(&*provider(&endpoint, Api::Anthropic, true)).await;
    let said = error.to_string();
    assert!(said.len() < 1000, "{}", said.len());
    assert!(
        !said.chars().any(|c| c.is_control() || c == '\u{202e}'),
        "{said}"
    );
    assert!(said.contains("(status 400)"), "{said}");
}

#[tokio::test]
async fn keys_are_asked_for_and_never_shown() {
    for (api, variable) in [
        (Api::Anthropic, "ANTHROPIC_API_KEY"),
        (Api::OpenAi, "OPENAI_API_KEY"),
    ] {
        let endpoint = Endpoint::start(api, []);
        let mut settings = Settings::new(api, &endpoint.base_url(), true);
        settings.key = None;
        let error = refusal(&*settings.clone().provider()).await;
        assert_eq!(
            (error.kind, error.status),
            (ProviderErrorKind::Auth, Some(401))
        );
        assert_eq!(error.hint.unwrap(), format!("set `{variable}`"));

        settings.key = Some("wrong");
        let error = refusal(&*settings.clone().provider()).await;
        assert_eq!(
            error.hint.as_deref(),
            Some(&*format!("check the key in `{variable}`"))
        );
        assert!(!format!("{error} {error:?}").contains("wrong"), "{error:?}");

        settings.key = Some("with\nbreak");
        let error = refusal(&*settings.clone().provider()).await;
        assert_eq!(
            (error.kind, error.phase),
            (ProviderErrorKind::Auth, Phase::Connecting)
        );

        // The vendor itself is not even asked.
        settings.key = None;
        settings.base_url = match api {
            Api::Anthropic => AnthropicSettings::BASE_URL.into(),
            Api::OpenAi => OpenAiSettings::BASE_URL.into(),
        };
        let error = refusal(&*settings.clone().provider()).await;
        assert_eq!(
            (error.kind, error.phase),
            (ProviderErrorKind::Auth, Phase::Connecting)
        );
        assert!(
            error.to_string().ends_with(&format!("set `{variable}`")),
            "{error}"
        );

        settings.key = Some("sk-hidden");
        settings.base_url = format!("http://user:pass@{}", "127.0.0.1:9");
        settings.retries.max = 0;
        let error = refusal(&*settings.provider()).await;
        let said = format!("{error:?}");
        assert!(
            !said.contains("sk-hidden") && !said.contains("pass"),
            "{said}"
        );
    }
}

#[tokio::test]
async fn a_server_that_is_not_there_is_asked_after() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let origin = format!("http://{}", listener.local_addr().unwrap());
    drop(listener);
    for api in APIS {
        let (error, heard) = ask(&*Settings::new(api, &origin, true).provider()).await;
        let error = error.unwrap_err();
        assert_eq!(
            (error.kind, error.phase),
            (ProviderErrorKind::Network, Phase::Connecting)
        );
        assert_eq!((error.attempts, heard.retries.len()), (3, 2));
        assert_eq!(
            error.hint.unwrap(),
            format!("is the server running at `{origin}`?")
        );
        assert!(error.message.contains("refused"), "{}", error.message);
    }
}

#[tokio::test]
async fn an_unknown_model_is_named() {
    let answer = Answer::status(404, "not_found_error", "model: test");
    let endpoint = Endpoint::anthropic([answer]);
    let error = refusal(&*provider(&endpoint, Api::Anthropic, true)).await;
    assert_eq!(
        error.hint.as_deref(),
        Some("check the model name `test` and the base URL")
    );
}

#[tokio::test]
async fn a_redirect_is_not_followed() {
    let elsewhere = Server::start(|_| Reply::text("caught a key")).await;
    let to = elsewhere.url("/v1/messages");
    let server = Server::start(move |_| Reply::redirect(&to)).await;
    let settings = Settings::new(Api::Anthropic, &server.origin(), true);
    let error = refusal(&*settings.provider()).await;
    assert_eq!(
        (error.kind, error.status),
        (ProviderErrorKind::Request, Some(302))
    );
    assert!(error.message.contains(&elsewhere.origin()), "{error}");
    assert_eq!(elsewhere.connections(), 0);
}

/// B41.
#[tokio::test]
async fn a_certificate_that_is_not_trusted_names_the_setting() {
    let authority = Authority::generate();
    let folder = tempfile::tempdir().unwrap();
    let pem = folder.path().join("corp.pem");
    authority.write_pem(&pem);
    let sse = Answer::text("hi").as_sse(Api::Anthropic);
    let server = Server::start_tls(authority.server_config(&["localhost"]), move |_| {
        Reply::whole(200, &[("content-type", "text/event-stream")], &sse)
    })
    .await;
    let mut settings = Settings::new(Api::Anthropic, &server.origin_as("localhost"), true);
    let error = refusal(&*settings.clone().provider()).await;
    assert_eq!(
        (error.kind, error.attempts),
        (ProviderErrorKind::Certificate, 1)
    );
    assert!(error.hint.unwrap().contains("`extra_ca_files`"));
    settings.client.extra_ca_files.push(pem);
    let reply = ask(&*settings.provider()).await.0.unwrap();
    assert_eq!(reply.content, [ContentBlock::text("hi")]);
}

#[tokio::test]
async fn dropping_the_future_ends_the_request() {
    let server = Server::start(|_| Reply::silent()).await;
    let provider = Settings::new(Api::Anthropic, &server.origin(), true).provider();
    {
        let asking = ask(&*provider);
        tokio::pin!(asking);
        while server.requests().is_empty() {
            tokio::select! {
                _ = &mut asking => panic!("a silent server answered"),
                () = tokio::task::yield_now() => {}
            }
        }
    }
    server.ended(1).await;
}
