//! From the neutral transcript to the body of a request.

use std::{borrow::Cow, collections::HashMap};

use indexmap::IndexMap;
use serde_json::{
    Map, Value, json,
    value::{RawValue, to_raw_value},
};
use sha2::{Digest as _, Sha256};

use super::{MaxTokensField, NAME, schema};
use crate::{
    provider::{
        ModelRequest, ToolSchema,
        replay::{self, Block, NOTHING, Turn},
    },
    transcript::{
        ContentBlock, Media, Message, ResultContent, Role, ToolInput, ToolResult, ToolUse,
    },
};

/// Stands in front of a result that is an error, for which this API has no member.
pub(super) const ERROR_PREFIX: &str = "Error: ";

/// How requests of this provider look.
#[derive(Debug)]
pub(super) struct Form {
    pub(super) stream: bool,
    pub(super) max_tokens_field: MaxTokensField,
    pub(super) tools_as_schema: bool,
    pub(super) extra: Map<String, Value>,
}

type Members = IndexMap<String, Box<RawValue>>;

pub(super) fn body(request: &ModelRequest<'_>, form: &Form) -> Result<Vec<u8>, serde_json::Error> {
    let as_schema = form.tools_as_schema && !request.tools.is_empty();
    let mut body = Members::new();
    let mut set = |name: &str, value: &dyn Fn() -> Result<Box<RawValue>, serde_json::Error>| {
        body.insert(name.to_owned(), value()?);
        Ok::<_, serde_json::Error>(())
    };
    set("model", &|| to_raw_value(request.model))?;
    set(form.max_tokens_field.as_str(), &|| {
        to_raw_value(&request.max_tokens)
    })?;
    if as_schema {
        set("response_format", &|| {
            let tools = if asked_again(request.messages) {
                &[]
            } else {
                request.tools
            };
            to_raw_value(&schema::response_format(tools))
        })?;
    } else if !request.tools.is_empty() {
        let tools: Vec<Value> = request.tools.iter().map(tool).collect();
        set("tools", &|| to_raw_value(&tools))?;
    }
    let messages = messages(request, form.tools_as_schema)?;
    set("messages", &|| to_raw_value(&messages))?;
    set("stream", &|| to_raw_value(&form.stream))?;
    if form.stream {
        set("stream_options", &|| {
            to_raw_value(&json!({"include_usage": true}))
        })?;
    }
    for (name, value) in &form.extra {
        if !body.contains_key(name) {
            body.insert(name.clone(), to_raw_value(value)?);
        }
    }
    serde_json::to_vec(&body)
}

/// Whether the model asked for the same thing in its last two turns. A very small one goes on like that for ever,
/// though it has what it needs: then only an answer is left to it.
fn asked_again(messages: &[Message]) -> bool {
    let calls = |message: &Message| -> Vec<(String, ToolInput)> {
        message
            .tool_uses()
            .map(|call| (call.name.clone(), call.input.clone()))
            .collect()
    };
    let [.., before, between, last, after] = messages else {
        return false;
    };
    let is_results = |message: &Message| {
        let mut blocks = message.content.iter();
        blocks.all(|block| matches!(block, ContentBlock::ToolResult(_)))
    };
    is_results(between)
        && is_results(after)
        && last.tool_uses().next().is_some()
        && calls(before) == calls(last)
}

fn tool(tool: &ToolSchema) -> Value {
    let mut function = json!({"name": tool.name.as_str()});
    if !tool.description.trim().is_empty() {
        function["description"] = json!(&*tool.description);
    }
    function["parameters"] = (*tool.input_schema).clone();
    json!({"type": "function", "function": function})
}

fn messages(
    request: &ModelRequest<'_>,
    tools_as_schema: bool,
) -> Result<Vec<Members>, serde_json::Error> {
    let mut messages = Vec::new();
    let system = match tools_as_schema && !request.tools.is_empty() {
        true => Some(schema::system(request.system, request.tools).into()),
        false => request.system.map(Cow::from),
    };
    if let Some(system) = system.filter(|text| !text.trim().is_empty()) {
        messages.push(message("system", &json!(system))?);
    }
    let names: HashMap<&str, &str> = request
        .messages
        .iter()
        .flat_map(|message| message.tool_uses())
        .map(|call| (call.id.as_str(), call.name.as_str()))
        .collect();
    for turn in replay::turns(request.messages, NAME, request.model) {
        match (turn.role, tools_as_schema) {
            (Role::User, false) => user(&turn, &mut messages)?,
            (Role::User, true) => user_as_text(&turn, &names, &mut messages)?,
            (Role::Assistant, false) => messages.extend(assistant(&turn)?),
            (Role::Assistant, true) => messages.extend(assistant_as_text(&turn)?),
        }
    }
    Ok(messages)
}

fn message(role: &str, content: &Value) -> Result<Members, serde_json::Error> {
    Ok(Members::from([
        ("role".to_owned(), to_raw_value(role)?),
        ("content".to_owned(), to_raw_value(content)?),
    ]))
}

/// One message for each result, then one with everything else. Results can hold text only, so that images
/// move to what follows.
fn user(turn: &Turn<'_>, messages: &mut Vec<Members>) -> Result<(), serde_json::Error> {
    let mut parts = Vec::new();
    for block in &turn.blocks {
        match block {
            Block::ToolResult(result) => {
                let text = result_text(result);
                let mut wire = message("tool", &json!(text))?;
                let id = to_raw_value(&wire_id(result.tool_use_id.as_str()))?;
                wire.insert("tool_call_id".to_owned(), id);
                messages.push(wire);
                parts.extend(images_of(result, result.tool_use_id.as_str()));
            }
            other => parts.extend(part(other)),
        }
    }
    push_parts(parts, messages)
}

fn user_as_text(
    turn: &Turn<'_>,
    names: &HashMap<&str, &str>,
    messages: &mut Vec<Members>,
) -> Result<(), serde_json::Error> {
    let mut parts = Vec::new();
    for block in &turn.blocks {
        match block {
            Block::ToolResult(result) => {
                let id = result.tool_use_id.as_str();
                let name = names.get(id).copied().unwrap_or(id);
                let text = format!("Result of {}: {}", replay::name(name), result_text(result));
                parts.push(json!({"type": "text", "text": text}));
                parts.extend(images_of(result, name));
            }
            other => parts.extend(part(other)),
        }
    }
    push_parts(parts, messages)
}

/// A single text goes as a string, which is all that many servers take.
fn push_parts(parts: Vec<Value>, messages: &mut Vec<Members>) -> Result<(), serde_json::Error> {
    match &parts[..] {
        [] => {}
        [one] if one["type"] == "text" => messages.push(message("user", &one["text"])?),
        _ => messages.push(message("user", &Value::Array(parts))?),
    }
    Ok(())
}

fn part(block: &Block<'_>) -> Option<Value> {
    match block {
        Block::Text { text, .. } => Some(json!({"type": "text", "text": text})),
        Block::Image(media) => Some(image(media)),
        Block::Reasoning(_) | Block::Foreign(_) | Block::ToolUse(_) | Block::ToolResult(_) => None,
    }
}

fn result_text(result: &ToolResult) -> String {
    let mut text = result.text();
    if text.trim().is_empty() {
        let has_images = result
            .content
            .iter()
            .any(|part| matches!(part, ResultContent::Image(_)));
        text = match has_images {
            true => "(images, in the next message)".into(),
            false => NOTHING.into(),
        };
    }
    match result.is_error && !text.starts_with("Error") {
        true => format!("{ERROR_PREFIX}{text}"),
        false => text,
    }
}

/// The images of a result, with a word on whose they are.
fn images_of(result: &ToolResult, of: &str) -> Vec<Value> {
    let mut parts: Vec<Value> = result
        .content
        .iter()
        .filter_map(|part| match part {
            ResultContent::Image(media) => Some(image(media)),
            ResultContent::Text { .. } => None,
        })
        .collect();
    if !parts.is_empty() {
        let text = format!("Images in the result of {of}:");
        parts.insert(0, json!({"type": "text", "text": text}));
    }
    parts
}

fn image(media: &Media) -> Value {
    let url = format!("data:{};base64,{}", media.media_type, media.base64);
    json!({"type": "image_url", "image_url": {"url": url}})
}

fn assistant(turn: &Turn<'_>) -> Result<Option<Members>, serde_json::Error> {
    let text = texts(turn);
    let calls: Vec<Value> = turn
        .blocks
        .iter()
        .filter_map(|block| match block {
            Block::ToolUse(call) => Some(tool_call(call)),
            _ => None,
        })
        .collect();
    if text.is_none() && calls.is_empty() {
        return Ok(None);
    }
    let mut wire = message("assistant", &json!(text))?;
    if !calls.is_empty() {
        wire.insert("tool_calls".to_owned(), to_raw_value(&calls)?);
    }
    for block in &turn.blocks {
        if let Block::Reasoning(raw) = block {
            // The members that it came in.
            for (name, value) in serde_json::from_str::<Members>(raw)? {
                wire.entry(name).or_insert(value);
            }
        }
    }
    Ok(Some(wire))
}

fn tool_call(call: &ToolUse) -> Value {
    let arguments = Value::Object(call.input.replayed()).to_string();
    json!({
        "id": wire_id(call.id.as_str()),
        "type": "function",
        "function": {"name": replay::name(&call.name), "arguments": arguments},
    })
}

/// The vendor takes ids of 40 bytes; longer ones come from other providers.
fn wire_id(id: &str) -> Cow<'_, str> {
    const MAX_ID_BYTES: usize = 40;
    if id.len() <= MAX_ID_BYTES {
        return id.into();
    }
    let digest = Sha256::digest(id);
    let hex = digest.iter().map(|byte| format!("{byte:02x}"));
    hex.take(MAX_ID_BYTES / 2).collect::<String>().into()
}

fn assistant_as_text(turn: &Turn<'_>) -> Result<Option<Members>, serde_json::Error> {
    let mut calls = turn.blocks.iter().filter_map(|block| match block {
        Block::ToolUse(call) => Some(schema::call(
            &replay::name(&call.name),
            &Value::Object(call.input.replayed()),
        )),
        _ => None,
    });
    let text = match (calls.next(), texts(turn)) {
        // Several calls come from another provider only.
        (Some(first), _) => calls.fold(first, |text, call| text + "\n" + &call),
        (None, Some(text)) => schema::answer(&text),
        (None, None) => return Ok(None),
    };
    message("assistant", &json!(text)).map(Some)
}

fn texts(turn: &Turn<'_>) -> Option<String> {
    let texts: Vec<&str> = turn
        .blocks
        .iter()
        .filter_map(|block| match block {
            Block::Text { text, .. } => Some(&**text),
            _ => None,
        })
        .collect();
    (!texts.is_empty()).then(|| texts.join("\n\n"))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::{
        ids::{ToolName, ToolUseId},
        transcript::{ContentBlock, Message, Seal, ToolInput},
    };

    fn form() -> Form {
        Form {
            stream: true,
            max_tokens_field: MaxTokensField::MaxTokens,
            tools_as_schema: false,
            extra: Map::new(),
        }
    }

    fn sent(messages: &[Message], form: &Form) -> Value {
        let tool = ToolSchema {
            name: ToolName::parse("look").unwrap(),
            description: Arc::from("Looks."),
            input_schema: Arc::new(json!({"type": "object"})),
        };
        let request = ModelRequest {
            model: "m",
            system: Some("Be brief."),
            messages,
            tools: &[tool],
            max_tokens: 7,
        };
        serde_json::from_slice(&body(&request, form).unwrap()).unwrap()
    }

    fn history() -> Vec<Message> {
        let id = |text| ToolUseId::parse(text).unwrap();
        let call = |text| {
            ContentBlock::ToolUse(ToolUse {
                id: id(text),
                provider_id: None,
                name: "look".into(),
                input: ToolInput::parse(r#"{"b":1,"a":2}"#),
                extra: Map::new(),
            })
        };
        let text = |text: &str| ResultContent::Text { text: text.into() };
        let png = Media {
            media_type: "image/png".into(),
            base64: "iVBO".into(),
        };
        let result = |name, content, is_error| {
            ContentBlock::ToolResult(ToolResult {
                tool_use_id: id(name),
                content,
                is_error,
            })
        };
        vec![
            Message::user("go"),
            Message {
                role: Role::Assistant,
                content: vec![
                    ContentBlock::Reasoning {
                        text: "hm".into(),
                        seal: Seal {
                            provider: NAME.into(),
                            model: "m".into(),
                            raw: r#"{"reasoning_content":"hm"}"#.into(),
                        },
                    },
                    ContentBlock::text("Let me look."),
                    call("c1"),
                    call("c2"),
                    call("c3"),
                ],
            },
            Message {
                role: Role::User,
                content: vec![
                    ContentBlock::text("and then?"),
                    result("c1", vec![text("seen"), ResultContent::Image(png)], false),
                    result("c2", vec![text("no file")], true),
                    result("c3", vec![], true),
                ],
            },
        ]
    }

    #[test]
    fn a_history_becomes_messages_that_this_api_has() {
        let body = sent(&history(), &form());
        let call = |id: &str| {
            json!({"id": id, "type": "function",
                "function": {"name": "look", "arguments": "{\"b\":1,\"a\":2}"}})
        };
        assert_eq!(
            body,
            json!({
                "model": "m",
                "max_tokens": 7,
                "tools": [{"type": "function", "function":
                    {"name": "look", "description": "Looks.", "parameters": {"type": "object"}}}],
                "messages": [
                    {"role": "system", "content": "Be brief."},
                    {"role": "user", "content": "go"},
                    {"role": "assistant", "content": "Let me look.",
                     "tool_calls": [call("c1"), call("c2"), call("c3")],
                     "reasoning_content": "hm"},
                    {"role": "tool", "content": "seen", "tool_call_id": "c1"},
                    {"role": "tool", "content": "Error: no file", "tool_call_id": "c2"},
                    {"role": "tool", "content": "Error: (no output)", "tool_call_id": "c3"},
                    {"role": "user", "content": [
                        {"type": "text", "text": "Images in the result of c1:"},
                        {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBO"}},
                        {"type": "text", "text": "and then?"},
                    ]},
                ],
                "stream": true,
                "stream_options": {"include_usage": true},
            })
        );
    }

    #[test]
    fn ids_that_are_too_long_stay_distinct() {
        assert_eq!(wire_id("call_1"), "call_1");
        let (a, b) = ("a".repeat(64), "a".repeat(63) + "b");
        assert_eq!(wire_id(&a).len(), 40);
        assert_ne!(wire_id(&a), wire_id(&b));
        assert_eq!(wire_id(&a), wire_id(&a));
    }

    #[test]
    fn members_of_the_operator_do_not_replace_ours() {
        let extra = json!({"model": "other", "reasoning_effort": "low"});
        let form = Form {
            stream: false,
            max_tokens_field: MaxTokensField::MaxCompletionTokens,
            extra: extra.as_object().unwrap().clone(),
            ..form()
        };
        let body = sent(&[Message::user("a")], &form);
        assert_eq!(body["model"], "m");
        assert_eq!(body["reasoning_effort"], "low");
        assert_eq!(body["max_completion_tokens"], 7);
        assert_eq!(body.get("stream_options"), None);
    }

    #[test]
    fn tools_as_a_schema_are_talked_of_in_texts() {
        let form = Form {
            tools_as_schema: true,
            ..form()
        };
        let mut history = history();
        history.push(Message::assistant("It is there."));
        let body = sent(&history, &form);
        assert_eq!(body.get("tools"), None);
        assert_eq!(body["response_format"]["type"], "json_schema");
        let messages = body["messages"].as_array().unwrap();
        assert!(
            messages[0]["content"]
                .as_str()
                .unwrap()
                .contains("- look: Looks.")
        );
        let call = r#"{"tool":"look","arguments":{"b":1,"a":2}}"#;
        assert_eq!(
            messages[2],
            json!({"role": "assistant", "content": format!("{call}\n{call}\n{call}")})
        );
        let parts = messages[3]["content"].as_array().unwrap();
        assert_eq!(parts[0]["text"], "Result of look: seen");
        assert_eq!(parts[3]["text"], "Result of look: Error: no file");
        assert_eq!(messages[4]["content"], r#"{"answer":"It is there."}"#);
    }

    #[test]
    fn a_model_that_asks_again_for_the_same_is_left_only_an_answer() {
        let form = Form {
            tools_as_schema: true,
            ..form()
        };
        let turn = |id: &str, n: i64| {
            let call = ToolUse::new(id, "look", json!({"n": n})).unwrap();
            let result = ToolResult {
                tool_use_id: call.id.clone(),
                content: vec![ResultContent::Text {
                    text: "seen".into(),
                }],
                is_error: false,
            };
            [
                Message {
                    role: Role::Assistant,
                    content: vec![call.into()],
                },
                Message {
                    role: Role::User,
                    content: vec![ContentBlock::ToolResult(result)],
                },
            ]
        };
        let choices = |turns: &[[Message; 2]]| {
            let mut messages = vec![Message::user("a")];
            messages.extend(turns.iter().flatten().cloned());
            let body = sent(&messages, &form);
            let schema = &body["response_format"]["json_schema"]["schema"];
            schema["anyOf"].as_array().unwrap().len()
        };
        assert_eq!(choices(&[]), 2);
        assert_eq!(choices(&[turn("c1", 1)]), 2);
        assert_eq!(choices(&[turn("c1", 1), turn("c2", 2)]), 2);
        assert_eq!(choices(&[turn("c1", 1), turn("c2", 1)]), 1);
        let mut asked = vec![Message::user("a")];
        asked.extend([turn("c1", 1), turn("c2", 1)].into_iter().flatten());
        asked.push(Message::user("again, please"));
        assert!(!asked_again(&asked));
    }
}
