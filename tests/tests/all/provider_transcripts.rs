//! Conversations made up at random: what goes out to an endpoint and what comes back is the same neutral
//! transcript, and a strict endpoint refuses none of it. And the endpoint's own rules.

use agentloop_host::{
    ids::ToolUseId,
    transcript::{
        ContentBlock, Media, Message, ResultContent, Role, Seal, ToolInput, ToolResult, ToolUse,
    },
};
use agentloop_tests::endpoint::{Answer, Api, Endpoint};
use proptest::{collection::vec, option, prelude::*, sample::select};
use serde_json::{Map, Value, json};

use super::provider::{ask_with, assistant, provider, user};

/// One turn of a conversation: what the model says, and what it hears then.
#[derive(Debug, Clone)]
struct Turn {
    /// Blocks as the Messages API has them; ids are filled in later.
    reply: Vec<Value>,
    /// One for each call that there may be.
    results: Vec<(Vec<ResultContent>, bool)>,
    says: Vec<String>,
}

fn text() -> impl Strategy<Value = String> {
    let odd = select(vec![
        "😀", "\"", "\\", "\n", "é", "\u{0}", "data: ", "\r\n\r\n", "]}", "\u{2028}",
    ]);
    let piece = prop_oneof!["[a-z ]{1,8}", odd.prop_map(str::to_owned)];
    (vec(piece, 0..6), "[a-z]").prop_map(|(pieces, end)| pieces.concat() + &end)
}

fn json_value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        text().prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 12, 4, |inner| {
        prop_oneof![
            vec(inner.clone(), 0..4).prop_map(Value::from),
            vec((text(), inner), 0..4).prop_map(|m| Value::Object(m.into_iter().collect())),
        ]
    })
}

fn members() -> impl Strategy<Value = Map<String, Value>> {
    vec((text(), json_value()), 0..4).prop_map(|members| members.into_iter().collect())
}

fn tool_use() -> impl Strategy<Value = Value> {
    (select(vec!["echo", "now"]), members())
        .prop_map(|(name, input)| json!({"type": "tool_use", "name": name, "input": input}))
}

/// Blocks of the Messages API that may stand anywhere.
fn block() -> impl Strategy<Value = Value> {
    prop_oneof![
        text().prop_map(|text| json!({"type": "text", "text": text})),
        (text(), text()).prop_map(|(text, cited)| {
            json!({"type": "text", "text": text, "citations": [{"cited_text": cited}]})
        }),
        (text(), text()).prop_map(|(thinking, signature)| {
            json!({"type": "thinking", "thinking": thinking, "signature": signature})
        }),
        text().prop_map(|data| json!({"type": "redacted_thinking", "data": data})),
        members().prop_map(|extra| json!({"type": "brand_new", "content": extra})),
        tool_use(),
    ]
}

fn anthropic_reply() -> impl Strategy<Value = Vec<Value>> {
    let last = prop_oneof![
        text().prop_map(|text| json!({"type": "text", "text": text})),
        tool_use(),
    ];
    (vec(block(), 0..5), last).prop_map(|(mut blocks, last)| {
        blocks.push(last);
        blocks
    })
}

fn openai_reply() -> impl Strategy<Value = Vec<Value>> {
    let thinking = text().prop_map(|text| json!({"type": "thinking", "thinking": text}));
    let said = text().prop_map(|text| json!({"type": "text", "text": text}));
    let calls = vec(tool_use(), 0..4);
    (option::of(thinking), option::of(said), calls).prop_map(|(thinking, said, calls)| {
        let silent = said.is_none() && calls.is_empty();
        let said = said.or_else(|| silent.then(|| json!({"type": "text", "text": "yes"})));
        thinking.into_iter().chain(said).chain(calls).collect()
    })
}

fn result(images: bool) -> impl Strategy<Value = (Vec<ResultContent>, bool)> {
    let said = text().prop_map(|text| ResultContent::Text { text });
    let png = Just(ResultContent::Image(Media {
        media_type: "image/png".into(),
        base64: "iVBORw0KGgo=".into(),
    }));
    let most = if images { 3 } else { 1 };
    let part = match images {
        true => prop_oneof![said, png].boxed(),
        false => said.boxed(),
    };
    (vec(part, 1..=most), any::<bool>())
}

fn conversation(api: Api) -> impl Strategy<Value = Vec<Turn>> {
    let reply = match api {
        Api::Anthropic => anthropic_reply().boxed(),
        Api::OpenAi => openai_reply().boxed(),
    };
    let results = vec(result(api == Api::Anthropic), 8);
    let turn = (reply, results, vec(text(), 1..3)).prop_map(|(reply, results, says)| Turn {
        reply,
        results,
        says,
    });
    vec(turn, 1..4)
}

/// The neutral block that a block of the Messages API stands for.
fn neutral(api: Api, block: &Value) -> ContentBlock {
    let text = |name: &str| block[name].as_str().unwrap().to_owned();
    let (provider, raw) = match api {
        Api::Anthropic => ("anthropic", block.to_string()),
        Api::OpenAi => (
            "openai",
            json!({"reasoning_content": block["thinking"]}).to_string(),
        ),
    };
    let seal = Seal {
        provider: provider.into(),
        model: "test".into(),
        raw,
    };
    let extra = |known: &[&str]| {
        let members = block.as_object().unwrap().iter();
        members
            .filter(|(name, _)| !known.contains(&name.as_str()))
            .map(|(name, value)| (name.clone(), value.clone()))
            .collect()
    };
    match block["type"].as_str().unwrap() {
        "text" => ContentBlock::Text {
            text: text("text"),
            extra: extra(&["type", "text", "cache_control"]),
        },
        "thinking" => ContentBlock::Reasoning {
            text: text("thinking"),
            seal,
        },
        "redacted_thinking" => ContentBlock::Reasoning {
            text: String::new(),
            seal,
        },
        "tool_use" => ContentBlock::ToolUse(ToolUse {
            id: ToolUseId::parse(&text("id")).unwrap(),
            provider_id: None,
            name: text("name"),
            input: ToolInput::Object(block["input"].as_object().unwrap().clone()),
            extra: extra(&["type", "id", "name", "input"]),
        }),
        "tool_result" => {
            let part = |part: &Value| match part["type"].as_str().unwrap() {
                "image" => ResultContent::Image(Media {
                    media_type: part["source"]["media_type"].as_str().unwrap().into(),
                    base64: part["source"]["data"].as_str().unwrap().into(),
                }),
                _ => ResultContent::Text {
                    text: part["text"].as_str().unwrap().into(),
                },
            };
            let content = block["content"]
                .as_array()
                .unwrap()
                .iter()
                .map(part)
                .collect();
            ContentBlock::ToolResult(ToolResult {
                tool_use_id: ToolUseId::parse(&text("tool_use_id")).unwrap(),
                content,
                is_error: block["is_error"] == true,
            })
        }
        _ => ContentBlock::Foreign(seal),
    }
}

/// Reads a request of the Messages API back.
fn read_anthropic(body: &Value) -> Vec<Message> {
    let messages = body["messages"].as_array().unwrap().iter();
    messages
        .map(|message| Message {
            role: serde_json::from_value(message["role"].clone()).unwrap(),
            content: message["content"]
                .as_array()
                .unwrap()
                .iter()
                .map(|block| neutral(Api::Anthropic, block))
                .collect(),
        })
        .collect()
}

/// Reads a request for chat completions back.
fn read_openai(body: &Value) -> Vec<Message> {
    let mut messages: Vec<Message> = Vec::new();
    for message in body["messages"].as_array().unwrap() {
        let mut content = Vec::new();
        let role = match message["role"].as_str().unwrap() {
            "system" => continue,
            "assistant" => Role::Assistant,
            _ => Role::User,
        };
        if let Some(thinking) = message.get("reasoning_content") {
            let block = json!({"type": "thinking", "thinking": thinking});
            content.push(neutral(Api::OpenAi, &block));
        }
        let text = message["content"].as_str();
        if message["role"] == "tool" {
            let text = text.unwrap();
            content.push(ContentBlock::ToolResult(ToolResult {
                tool_use_id: ToolUseId::parse(message["tool_call_id"].as_str().unwrap()).unwrap(),
                content: vec![ResultContent::Text {
                    text: text.strip_prefix("Error: ").unwrap_or(text).into(),
                }],
                is_error: text.starts_with("Error: "),
            }));
        } else {
            content.extend(text.map(ContentBlock::text));
            for part in message["content"].as_array().into_iter().flatten() {
                content.push(ContentBlock::text(part["text"].as_str().unwrap()));
            }
        }
        for call in message["tool_calls"].as_array().into_iter().flatten() {
            let function = &call["function"];
            content.push(ContentBlock::ToolUse(ToolUse {
                id: ToolUseId::parse(call["id"].as_str().unwrap()).unwrap(),
                provider_id: None,
                name: function["name"].as_str().unwrap().into(),
                input: ToolInput::parse(function["arguments"].as_str().unwrap()),
                extra: Map::new(),
            }));
        }
        match messages.last_mut() {
            Some(last) if last.role == role => last.content.extend(content),
            _ => messages.push(Message { role, content }),
        }
    }
    messages
}

async fn converse(api: Api, stream: bool, turns: Vec<Turn>) {
    let mut turns = turns;
    for (n, turn) in turns.iter_mut().enumerate() {
        for (m, block) in turn.reply.iter_mut().enumerate() {
            if block["type"] == "tool_use" {
                // Where it stands in a block of the real API.
                let members = block.as_object_mut().unwrap();
                members.shift_insert(1, "id".into(), json!(format!("call_{n}_{m}")));
            }
        }
    }
    let answers = turns.iter().map(|turn| {
        let answer = Answer::reply(Value::from(turn.reply.clone()));
        answer.pieces_of(3).interleaved()
    });
    let endpoint = Endpoint::start(api, answers.chain([Answer::text("end")]));
    let provider = provider(&endpoint, api, stream);
    let mut history = vec![Message::user("go")];
    for turn in turns {
        let reply = ask_with(&*provider, &history, &mut ()).await.unwrap();
        let wanted: Vec<ContentBlock> =
            turn.reply.iter().map(|block| neutral(api, block)).collect();
        assert_eq!(reply.content, wanted);
        let said = assistant(reply.content);
        let results = said
            .tool_uses()
            .zip(turn.results)
            .map(|(call, (content, is_error))| {
                ContentBlock::ToolResult(ToolResult {
                    tool_use_id: call.id.clone(),
                    content,
                    is_error,
                })
            });
        let heard = results
            .chain(turn.says.into_iter().map(ContentBlock::text))
            .collect();
        history.extend([said, user(heard)]);
    }
    ask_with(&*provider, &history, &mut ()).await.unwrap();
    assert_eq!(endpoint.refusals(), [""; 0]);
    let sent = &endpoint.requests().last().unwrap().body.clone();
    let read = match api {
        Api::Anthropic => read_anthropic(sent),
        Api::OpenAi => read_openai(sent),
    };
    assert_eq!(read, history);
}

fn block_on(future: impl Future<Output = ()>) {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap()
        .block_on(future);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn messages_keep_a_transcript(turns in conversation(Api::Anthropic), stream: bool) {
        block_on(converse(Api::Anthropic, stream, turns));
    }

    #[test]
    fn chat_completions_keep_a_transcript(turns in conversation(Api::OpenAi), stream: bool) {
        block_on(converse(Api::OpenAi, stream, turns));
    }

    /// A stream with some bytes wrong is read or refused: no panic, and an end.
    #[test]
    fn damaged_streams_come_to_an_end(
        turns in conversation(Api::OpenAi),
        damage in vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        anthropic: bool,
    ) {
        block_on(async {
            let api = if anthropic { Api::Anthropic } else { Api::OpenAi };
            let mut reply = turns[0].reply.clone();
            for (n, block) in reply.iter_mut().enumerate() {
                block["id"] = json!(format!("call_{n}"));
            }
            let mut body = Answer::reply(Value::from(reply)).as_sse(api);
            for (at, byte) in damage {
                let at = at.index(body.len());
                body[at] = byte;
            }
            let answers = vec![Answer::fixed(200, "text/event-stream", body); 3];
            let endpoint = Endpoint::start(api, answers);
            let provider = provider(&endpoint, api, true);
            let _ = ask_with(&*provider, &[Message::user("go")], &mut ()).await;
        });
    }
}

// --- the endpoint's own rules ---

/// Sends a body by hand, and gives the reason of the refusal.
async fn refused(api: Api, body: &Value) -> Option<String> {
    let sealed = json!([
        {"type": "thinking", "thinking": "so", "signature": "AA"},
        {"type": "brand_new", "n": 1},
        {"type": "text", "text": "x"},
    ]);
    let endpoint = match api {
        Api::Anthropic => Endpoint::anthropic([Answer::reply(sealed), Answer::text("taken")]),
        Api::OpenAi => Endpoint::openai([Answer::text("x"), Answer::text("taken")]),
    };
    let provider = provider(&endpoint, api, false);
    ask_with(&*provider, &[Message::user("go")], &mut ())
        .await
        .unwrap();
    let path = match api {
        Api::Anthropic => "/v1/messages",
        Api::OpenAi => "/chat/completions",
    };
    post(&format!("{}{path}", endpoint.base_url()), &body.to_string()).await;
    let requests = endpoint.requests();
    assert_eq!(requests.len(), 2);
    requests[1].refused.clone()
}

/// HTTP by hand, so that anything can be sent.
async fn post(url: &str, body: &str) {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let url = url::Url::parse(url).unwrap();
    let address = (url.host_str().unwrap(), url.port().unwrap());
    let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
    let head = format!(
        "POST {} HTTP/1.1\r\nhost: h\r\nconnection: close\r\ncontent-type: application/json\r\n\
         x-api-key: k\r\nauthorization: Bearer k\r\nanthropic-version: 2023-06-01\r\n\
         content-length: {}\r\n\r\n",
        url.path(),
        body.len()
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    stream.write_all(body.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.unwrap();
}

fn anthropic_request(messages: Value) -> Value {
    json!({"model": "m", "max_tokens": 9, "messages": messages})
}

#[tokio::test]
async fn the_messages_endpoint_is_strict() {
    let text = |text: &str| json!({"type": "text", "text": text});
    let u = |content: Value| json!({"role": "user", "content": content});
    let a = |content: Value| json!({"role": "assistant", "content": content});
    let call = |id: &str| json!({"type": "tool_use", "id": id, "name": "echo", "input": {}});
    let result = |id: &str| json!({"type": "tool_result", "tool_use_id": id, "content": "ok"});
    let thought = |text: &str| json!({"type": "thinking", "thinking": text, "signature": "AA"});
    let go = u(json!("go"));
    let conversation = |rest: Vec<Value>| {
        let mut messages = vec![go.clone()];
        messages.extend(rest);
        anthropic_request(Value::from(messages))
    };
    let with = |member: &str, value: Value| {
        let mut body = anthropic_request(json!([go]));
        body[member] = value;
        body
    };
    let tool = |name: &str, schema: Value| json!([{"name": name, "input_schema": schema}]);
    for (body, words) in [
        (
            conversation(vec![
                a(json!([call("a")])),
                u(json!([result("a"), text("b")])),
            ]),
            "",
        ),
        (
            conversation(vec![
                a(json!([thought("so"), {"type": "brand_new", "n": 1}, text("x")])),
                go.clone(),
            ]),
            "",
        ),
        (
            conversation(vec![a(json!([call("a")])), go.clone()]),
            "without `tool_result` blocks",
        ),
        (conversation(vec![a(json!([call("a")]))]), "without results"),
        (
            conversation(vec![
                a(json!([call("a"), call("b")])),
                u(json!([result("a")])),
                a(json!("x")),
                u(json!([result("b")])),
            ]),
            "without `tool_result` blocks",
        ),
        (
            conversation(vec![
                a(json!([call("a")])),
                u(json!([text("x"), result("a")])),
            ]),
            "must come first",
        ),
        (
            conversation(vec![
                a(json!([call("a")])),
                u(json!([result("a"), result("a")])),
            ]),
            "multiple `tool_result`",
        ),
        (
            conversation(vec![a(json!("x")), u(json!([result("a")]))]),
            "unexpected `tool_use_id`",
        ),
        (
            conversation(vec![a(json!([call("a"), call("a")]))]),
            "must be unique",
        ),
        (
            conversation(vec![
                a(json!([call("a")])),
                u(json!([result("a")])),
                a(json!([call("a")])),
                u(json!([result("a")])),
            ]),
            "must be unique",
        ),
        (
            conversation(vec![a(json!([call("a b")])), u(json!([result("a b")]))]),
            "match pattern",
        ),
        (
            conversation(vec![a(json!([text("")])), go.clone()]),
            "must be non-empty",
        ),
        (
            conversation(vec![a(json!([text(" \n")])), go.clone()]),
            "non-whitespace",
        ),
        (
            conversation(vec![a(json!([])), go.clone()]),
            "non-empty content",
        ),
        (conversation(vec![go.clone()]), "roles must alternate"),
        (
            conversation(vec![a(json!([thought("so!"), text("x")])), go.clone()]),
            "cannot be modified",
        ),
        (
            conversation(vec![a(json!([{"type": "brand_new", "n": 2}])), go.clone()]),
            "cannot be modified",
        ),
        (
            conversation(vec![a(json!([text("x"), thought("so")])), go.clone()]),
            "final block",
        ),
        (conversation(vec![a(json!("x "))]), ""),
        (
            conversation(vec![a(json!([text("x ")]))]),
            "trailing whitespace",
        ),
        (
            conversation(vec![
                a(json!([call("a")])),
                u(json!([{"type": "tool_result", "tool_use_id": "a", "is_error": true}])),
            ]),
            "cannot be empty if `is_error`",
        ),
        (
            conversation(vec![
                a(json!([{"type": "tool_use", "id": "a", "name": "x y", "input": {}}])),
                u(json!([result("a")])),
            ]),
            "match pattern",
        ),
        (
            conversation(vec![
                a(json!([{"type": "tool_use", "id": "a", "name": "x", "input": "{}"}])),
                u(json!([result("a")])),
            ]),
            "valid dictionary",
        ),
        (
            conversation(vec![
                a(json!("x")),
                u(json!([{"type": "image", "source":
                {"type": "base64", "media_type": "image/jpeg", "data": "iVBORw0KGgo="}}])),
            ]),
            "does not match",
        ),
        (anthropic_request(json!([])), "at least one message"),
        (with("max_tokens", json!(0)), "max_tokens"),
        (with("model", json!("")), "model"),
        (with("temprature", json!(1)), "Extra inputs"),
        (with("system", json!([text("")])), "non-empty"),
        (with("tools", tool("ok", json!({"type": "object"}))), ""),
        (
            with("tools", tool("not ok", json!({"type": "object"}))),
            "match pattern",
        ),
        (
            with("tools", tool("ok", json!({"type": "string"}))),
            "Input should be 'object'",
        ),
        (
            with("tools", tool("ok", json!({"type": "object", "oneOf": []}))),
            "oneOf",
        ),
        (
            with("tools", tool("ok", json!({"type": "object", "anyOf": []}))),
            "anyOf",
        ),
        (
            with("tools", tool("ok", json!({"type": "object", "allOf": []}))),
            "allOf",
        ),
        (
            with(
                "tools",
                json!([
                    {"name": "a", "input_schema": {"type": "object"}},
                    {"name": "a", "input_schema": {"type": "object"}},
                ]),
            ),
            "must be unique",
        ),
    ] {
        let said = refused(Api::Anthropic, &body).await;
        match words {
            "" => assert_eq!(said, None, "{body}"),
            words => {
                let said = said.unwrap_or_else(|| panic!("{words}: {body}"));
                assert!(said.contains(words), "{words}: {said}");
            }
        }
    }
}

#[tokio::test]
async fn the_chat_completions_endpoint_is_strict() {
    let u = json!({"role": "user", "content": "go"});
    let call = |id: &str, name: &str, arguments: &str| json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}});
    let a = |calls: Vec<Value>| json!({"role": "assistant", "content": null, "tool_calls": calls});
    let result = |id: &str| json!({"role": "tool", "tool_call_id": id, "content": "ok"});
    let body = |rest: Vec<Value>| {
        let mut messages = vec![u.clone()];
        messages.extend(rest);
        json!({"model": "m", "max_tokens": 9, "messages": messages})
    };
    let with = |member: &str, value: Value| {
        let mut body = body(vec![]);
        body[member] = value;
        body
    };
    let tool = |name: &str, schema: Value| json!([{"type": "function", "function": {"name": name, "parameters": schema}}]);
    let ok = || call("a", "echo", "{}");
    for (body, words) in [
        (body(vec![a(vec![ok()]), result("a"), u.clone()]), ""),
        (
            body(vec![a(vec![ok()]), u.clone()]),
            "must be followed by tool messages",
        ),
        (body(vec![a(vec![ok()])]), "did not have response messages"),
        (
            body(vec![result("a")]),
            "must be a response to a preceeding message",
        ),
        (
            body(vec![a(vec![ok()]), result("a"), result("a")]),
            "must be a response",
        ),
        (body(vec![a(vec![ok(), ok()]), result("a")]), "Duplicate"),
        (body(vec![a(vec![]), u.clone()]), "empty array"),
        (
            body(vec![a(vec![call(&"x".repeat(41), "echo", "{}")])]),
            "string too long",
        ),
        (body(vec![a(vec![call("a", "e o", "{}")])]), "function.name"),
        (
            body(vec![a(vec![call("a", "echo", "{")])]),
            "Failed to parse",
        ),
        (
            body(vec![a(vec![call("a", "echo", "")])]),
            "Failed to parse",
        ),
        (
            body(vec![json!({"role": "assistant", "content": null})]),
            "expected a string, got null",
        ),
        (
            body(vec![
                a(vec![ok()]),
                json!({"role": "tool", "tool_call_id": "a", "content": [
                    {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}},
                ]}),
            ]),
            "text expected",
        ),
        (
            body(vec![
                a(vec![ok()]),
                json!({"role": "tool", "tool_call_id": "a", "content": "x",
                "is_error": true}),
            ]),
            "Extra inputs",
        ),
        (with("tools", json!([])), "empty array"),
        (
            with("tools", tool("a b", json!({"type": "object"}))),
            "does not match pattern",
        ),
        (
            with("tools", tool("a", json!({"type": "object", "anyOf": []}))),
            "anyOf",
        ),
        (with("max_completion_tokens", json!(9)), "exactly one"),
        (
            with("stream_options", json!({"include_usage": true})),
            "only allowed when",
        ),
        (with("thinking", json!({})), "Extra inputs"),
        (with("messages", json!([])), "empty array"),
    ] {
        let said = refused(Api::OpenAi, &body).await;
        match words {
            "" => assert_eq!(said, None, "{body}"),
            words => {
                let said = said.unwrap_or_else(|| panic!("{words}: {body}"));
                assert!(said.contains(words), "{words}: {said}");
            }
        }
    }
}
