//! From the neutral transcript to the body of a request.

use serde::Serialize;
use serde_json::{
    Map, Value, json,
    value::{RawValue, to_raw_value},
};

use super::NAME;
use crate::{
    provider::{
        ModelRequest, ToolSchema,
        replay::{self, Block, NOTHING},
    },
    transcript::{Media, ResultContent, Role, ToolResult, ToolUse},
};

#[derive(Serialize)]
struct Body<'a> {
    model: &'a str,
    max_tokens: u32,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    system: Vec<Value>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tools: Vec<Value>,
    messages: Vec<Message>,
    stream: bool,
    #[serde(flatten)]
    extra: Map<String, Value>,
}

#[derive(Serialize)]
struct Message {
    role: Role,
    /// Raw, so that what the endpoint sealed goes back byte for byte.
    content: Vec<Box<RawValue>>,
}

/// Fails where the transcript holds a sealed block that is not JSON.
pub(super) fn body(
    request: &ModelRequest<'_>,
    stream: bool,
    prompt_cache: bool,
    extra: &Map<String, Value>,
) -> Result<Vec<u8>, serde_json::Error> {
    let mut system: Vec<Value> = request
        .system
        .filter(|text| !text.trim().is_empty())
        .map(|text| json!({"type": "text", "text": text}))
        .into_iter()
        .collect();
    let mut tools: Vec<Value> = request.tools.iter().map(tool).collect();
    if prompt_cache {
        system.last_mut().map(mark);
        tools.last_mut().map(mark);
    }
    let mut extra = extra.clone();
    for ours in [
        "model",
        "max_tokens",
        "system",
        "tools",
        "messages",
        "stream",
    ] {
        extra.shift_remove(ours);
    }
    serde_json::to_vec(&Body {
        model: request.model,
        max_tokens: request.max_tokens,
        system,
        tools,
        messages: messages(request, prompt_cache)?,
        stream,
        extra,
    })
}

fn tool(tool: &ToolSchema) -> Value {
    let mut wire = json!({"name": tool.name.as_str()});
    if !tool.description.trim().is_empty() {
        wire["description"] = json!(&*tool.description);
    }
    wire["input_schema"] = (*tool.input_schema).clone();
    wire
}

/// Ends a part of the request that the endpoint should keep in its cache.
fn mark(block: &mut Value) {
    block["cache_control"] = json!({"type": "ephemeral"});
}

fn messages(
    request: &ModelRequest<'_>,
    prompt_cache: bool,
) -> Result<Vec<Message>, serde_json::Error> {
    let mut turns = replay::turns(request.messages, NAME, request.model);
    for turn in &mut turns {
        // The endpoint refuses a message that ends in thinking: a reply that was cut off there, or that had
        // only blank text behind it.
        while let Some(Block::Reasoning(_)) = turn.blocks.last() {
            turn.blocks.pop();
        }
    }
    turns.retain(|turn| !turn.blocks.is_empty());
    let last_user = turns.iter().rposition(|turn| turn.role == Role::User);
    let mut messages: Vec<Message> = Vec::new();
    for (n, turn) in turns.iter().enumerate() {
        let mut content = Vec::new();
        for (m, block) in turn.blocks.iter().enumerate() {
            // The next request of this run repeats everything up to here.
            let marked = prompt_cache && last_user == Some(n) && m + 1 == turn.blocks.len();
            content.push(wire_block(block, turn.role, marked)?);
        }
        match messages.last_mut() {
            Some(last) if last.role == turn.role => last.content.extend(content),
            _ => messages.push(Message {
                role: turn.role,
                content,
            }),
        }
    }
    Ok(messages)
}

fn wire_block(
    block: &Block<'_>,
    role: Role,
    marked: bool,
) -> Result<Box<RawValue>, serde_json::Error> {
    let mut wire = match block {
        Block::Reasoning(raw) | Block::Foreign(raw) => {
            return RawValue::from_string((*raw).to_owned());
        }
        Block::Text { text, extra } => {
            let mut wire = json!({"type": "text", "text": text});
            // Citations are for the assistant's texts only.
            if let Some(extra) = extra.filter(|_| role == Role::Assistant) {
                add(&mut wire, extra);
            }
            wire
        }
        Block::Image(media) => image(media),
        Block::ToolUse(call) => tool_use(call),
        Block::ToolResult(result) => tool_result(result),
    };
    if marked {
        mark(&mut wire);
    }
    to_raw_value(&wire)
}

fn tool_use(call: &ToolUse) -> Value {
    let mut wire = json!({
        "type": "tool_use",
        "id": call.id.as_str(),
        "name": replay::name(&call.name),
        "input": call.input.replayed(),
    });
    add(&mut wire, &call.extra);
    wire
}

fn tool_result(result: &ToolResult) -> Value {
    let mut content: Vec<Value> = result
        .content
        .iter()
        .filter_map(|part| match part {
            ResultContent::Text { text } if text.trim().is_empty() => None,
            ResultContent::Text { text } => Some(json!({"type": "text", "text": text})),
            ResultContent::Image(media) => Some(image(media)),
        })
        .collect();
    if content.is_empty() {
        // An error without content is refused.
        content.push(json!({"type": "text", "text": NOTHING}));
    }
    let mut wire = json!({
        "type": "tool_result",
        "tool_use_id": result.tool_use_id.as_str(),
        "content": content,
    });
    if result.is_error {
        wire["is_error"] = json!(true);
    }
    wire
}

fn image(media: &Media) -> Value {
    json!({
        "type": "image",
        "source": {"type": "base64", "media_type": media.media_type, "data": media.base64},
    })
}

fn add(wire: &mut Value, extra: &Map<String, Value>) {
    if let Value::Object(wire) = wire {
        for (member, value) in extra {
            if !wire.contains_key(member) {
                wire.insert(member.clone(), value.clone());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::{
        ids::{ToolName, ToolUseId},
        transcript::{self, ContentBlock, Seal, ToolInput},
    };

    fn sent(messages: &[transcript::Message]) -> Value {
        let schema = Arc::new(json!({"type": "object", "properties": {"b": {}, "a": {}}}));
        let tools = ["one", "two"].map(|name| ToolSchema {
            name: ToolName::parse(name).unwrap(),
            description: Arc::from(""),
            input_schema: schema.clone(),
        });
        let request = ModelRequest {
            model: "m",
            system: Some("Be brief."),
            messages,
            tools: &tools,
            max_tokens: 7,
        };
        let extra = json!({"model": "other", "thinking": {"type": "adaptive"}});
        let body = body(&request, true, true, extra.as_object().unwrap()).unwrap();
        serde_json::from_slice(&body).unwrap()
    }

    #[test]
    fn a_request_has_what_is_asked_and_nothing_else() {
        let mark = json!({"type": "ephemeral"});
        let schema = json!({"type": "object", "properties": {"b": {}, "a": {}}});
        assert_eq!(
            sent(&[transcript::Message::user("hi")]),
            json!({
                "model": "m",
                "max_tokens": 7,
                "system": [{"type": "text", "text": "Be brief.", "cache_control": mark}],
                "tools": [
                    {"name": "one", "input_schema": schema},
                    {"name": "two", "input_schema": schema, "cache_control": mark},
                ],
                "messages": [{"role": "user", "content": [
                    {"type": "text", "text": "hi", "cache_control": mark},
                ]}],
                "stream": true,
                "thinking": {"type": "adaptive"},
            })
        );
    }

    #[test]
    fn what_is_sent_twice_is_the_same_but_for_the_mark() {
        let mut messages = vec![transcript::Message::user("hi")];
        let before = sent(&messages);
        messages.push(transcript::Message::assistant("hello"));
        messages.push(transcript::Message::user("go on"));
        let after = sent(&messages);
        assert_eq!(before["tools"], after["tools"]);
        assert_eq!(before["system"], after["system"]);
        assert_eq!(
            before["messages"][0]["content"][0]["text"],
            after["messages"][0]["content"][0]["text"]
        );
        assert_eq!(
            after["messages"][0]["content"][0].get("cache_control"),
            None
        );
        assert_ne!(
            after["messages"][2]["content"][0].get("cache_control"),
            None
        );
    }

    #[test]
    fn a_sealed_block_goes_back_byte_for_byte_and_never_last_as_thinking() {
        let raw = r#"{ "type":"thinking","thinking":"hm","n":1.50,"signature":"abc=" }"#;
        let thinking = ContentBlock::Reasoning {
            text: "hm".into(),
            seal: Seal {
                provider: NAME.into(),
                model: "m".into(),
                raw: raw.into(),
            },
        };
        let assistant = |content| transcript::Message {
            role: Role::Assistant,
            content,
        };
        let messages = [
            transcript::Message::user("a"),
            assistant(vec![thinking.clone(), ContentBlock::text("b")]),
            transcript::Message::user("c"),
            assistant(vec![thinking.clone(), ContentBlock::text(" ")]),
            transcript::Message::user("d"),
        ];
        let request = ModelRequest {
            model: "m",
            system: None,
            messages: &messages,
            tools: &[],
            max_tokens: 7,
        };
        let body = String::from_utf8(body(&request, false, false, &Map::new()).unwrap()).unwrap();
        assert_eq!(body.matches(raw).count(), 1, "{body}");
        let body: Value = serde_json::from_str(&body).unwrap();
        assert_eq!(body["messages"].as_array().unwrap().len(), 3);
        assert_eq!(body["messages"][2]["content"].as_array().unwrap().len(), 2);
    }

    #[test]
    fn calls_and_results() {
        let id = ToolUseId::parse("toolu_1").unwrap();
        let messages = [
            transcript::Message {
                role: Role::Assistant,
                content: vec![ContentBlock::ToolUse(ToolUse {
                    id: id.clone(),
                    provider_id: Some("".into()),
                    name: "read file".into(),
                    input: ToolInput::parse("{\"a\":"),
                    extra: json!({"caller": {"type": "direct"}, "id": "no"})
                        .as_object()
                        .unwrap()
                        .clone(),
                })],
            },
            transcript::Message {
                role: Role::User,
                content: vec![
                    ContentBlock::text("next"),
                    ContentBlock::ToolResult(ToolResult {
                        tool_use_id: id,
                        content: vec![ResultContent::Text { text: " ".into() }],
                        is_error: true,
                    }),
                ],
            },
        ];
        let body = sent(&messages);
        assert_eq!(
            body["messages"],
            json!([
                {"role": "assistant", "content": [{
                    "type": "tool_use", "id": "toolu_1", "name": "read_file", "input": {},
                    "caller": {"type": "direct"},
                }]},
                {"role": "user", "content": [
                    {"type": "tool_result", "tool_use_id": "toolu_1", "is_error": true,
                     "content": [{"type": "text", "text": "(no output)"}]},
                    {"type": "text", "text": "next", "cache_control": {"type": "ephemeral"}},
                ]},
            ])
        );
    }
}
