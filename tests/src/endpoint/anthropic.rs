//! The Messages API: its rules, and how replies are written.

use std::collections::HashSet;

use axum::http::HeaderMap;
use serde::Deserialize;
use serde_json::{Value, json, value::RawValue};

use super::{
    Refusal, Reply, Style, check_schema, event, image_fits, is_name, only, pieces, refuse,
};

const MEMBERS: [&str; 17] = [
    "model",
    "max_tokens",
    "messages",
    "system",
    "tools",
    "tool_choice",
    "thinking",
    "output_config",
    "stop_sequences",
    "stream",
    "metadata",
    "service_tier",
    "container",
    "cache_control",
    "temperature",
    "top_p",
    "top_k",
];

/// Blocks as text, since what was sealed has to come back byte for byte.
#[derive(Deserialize)]
struct Raw {
    messages: Vec<RawMessage>,
}

#[derive(Deserialize)]
struct RawMessage {
    content: Box<RawValue>,
}

pub(super) fn check(
    headers: &HeaderMap,
    body: &Value,
    raw: &str,
    sealed: &[String],
) -> Result<(), Refusal> {
    check_headers(headers, body)?;
    only(body, &MEMBERS, "body")?;
    if body["model"].as_str().is_none_or(str::is_empty) {
        return refuse("model: Field required");
    }
    if body["max_tokens"].as_u64().is_none_or(|n| n == 0) {
        return refuse("max_tokens: Input should be greater than or equal to 1");
    }
    check_system(&body["system"])?;
    check_tools(&body["tools"])?;
    let marks = raw
        .matches(r#""cache_control":{"type":"ephemeral"}"#)
        .count();
    if marks > 4 {
        return refuse(format!(
            "A maximum of 4 blocks with cache_control may be provided. Found {marks}."
        ));
    }
    let raw: Raw = serde_json::from_str(raw).map_err(|error| (400, error.to_string()))?;
    check_messages(&body["messages"], &raw.messages, sealed)
}

fn check_headers(headers: &HeaderMap, body: &Value) -> Result<(), Refusal> {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let bearer = text("authorization").and_then(|value| value.strip_prefix("Bearer "));
    match text("x-api-key").or(bearer) {
        None => return Err((401, "x-api-key header is required".into())),
        Some("wrong") => return Err((401, "invalid x-api-key".into())),
        Some(_) => {}
    }
    if text("content-type") != Some("application/json") {
        return refuse("content-type: should be application/json");
    }
    match text("anthropic-version") {
        Some("2023-06-01") => Ok(()),
        Some("2026-10-21") => {
            for gone in ["temperature", "top_p", "top_k"] {
                if body.get(gone).is_some() {
                    return refuse(format!("{gone}: Extra inputs are not permitted"));
                }
            }
            Ok(())
        }
        Some(other) => refuse(format!(
            "anthropic-version: \"{other}\" is not a valid version"
        )),
        None => refuse("anthropic-version: header is required"),
    }
}

fn check_system(system: &Value) -> Result<(), Refusal> {
    match system {
        Value::Null | Value::String(_) => Ok(()),
        Value::Array(blocks) => blocks
            .iter()
            .enumerate()
            .try_for_each(|(n, block)| check_text(block, &format!("system.{n}"))),
        _ => refuse("system: Input should be a valid list"),
    }
}

fn check_text(block: &Value, place: &str) -> Result<(), Refusal> {
    only(
        block,
        &["type", "text", "cache_control", "citations"],
        place,
    )?;
    match block["text"].as_str() {
        None => refuse(format!("{place}.text: Field required")),
        Some("") => refuse("messages: text content blocks must be non-empty"),
        Some(text) if text.trim().is_empty() => {
            refuse("messages: text content blocks must contain non-whitespace text")
        }
        Some(_) => Ok(()),
    }
}

fn check_tools(tools: &Value) -> Result<(), Refusal> {
    let mut names = HashSet::new();
    for (n, tool) in tools.as_array().into_iter().flatten().enumerate() {
        let place = format!("tools.{n}");
        only(
            tool,
            &[
                "name",
                "description",
                "input_schema",
                "cache_control",
                "type",
                "strict",
            ],
            &place,
        )?;
        let name = tool["name"].as_str().unwrap_or_default();
        if !is_name(name, 64) {
            return refuse(format!(
                "{place}.custom.name: String should match pattern '^[a-zA-Z0-9_-]{{1,64}}$'"
            ));
        }
        if !names.insert(name) {
            return refuse("tools: Tool names must be unique.");
        }
        check_schema(
            &tool["input_schema"],
            &format!("{place}.custom.input_schema"),
        )?;
    }
    Ok(())
}

fn check_messages(messages: &Value, raw: &[RawMessage], sealed: &[String]) -> Result<(), Refusal> {
    let messages = messages.as_array().map_or(&[][..], Vec::as_slice);
    if messages.is_empty() {
        return refuse("messages: at least one message is required");
    }
    let mut ids = HashSet::new();
    let mut open: Vec<String> = Vec::new();
    for (n, (message, raw)) in messages.iter().zip(raw).enumerate() {
        let place = format!("messages.{n}");
        only(message, &["role", "content"], &place)?;
        let role = if n % 2 == 0 { "user" } else { "assistant" };
        if message["role"] != role {
            return refuse(format!(
                "{place}: roles must alternate between \"user\" and \"assistant\""
            ));
        }
        let blocks = match &message["content"] {
            Value::String(text) => vec![json!({"type": "text", "text": text})],
            Value::Array(blocks) => blocks.clone(),
            _ => return refuse(format!("{place}.content: Field required")),
        };
        if blocks.is_empty() {
            return refuse(format!("{place}: all messages must have non-empty content"));
        }
        let raw: Vec<Box<RawValue>> = serde_json::from_str(raw.content.get()).unwrap_or_default();
        let mut calls = Vec::new();
        let mut results = Vec::new();
        for (m, block) in blocks.iter().enumerate() {
            let place = format!("{place}.content.{m}");
            match block["type"].as_str().unwrap_or_default() {
                "text" => check_text(block, &place)?,
                "image" if role == "user" => check_image(block, &place)?,
                "tool_use" if role == "assistant" => {
                    let id = check_tool_use(block, &place)?;
                    if !ids.insert(id.clone()) {
                        return refuse(format!("{place}: `tool_use` ids must be unique"));
                    }
                    calls.push(id);
                }
                "tool_result" if role == "user" => {
                    let id = check_tool_result(block, &place)?;
                    if results.len() != m {
                        return refuse(format!(
                            "{place}: `tool_result` blocks must come first in the content"
                        ));
                    }
                    if results.contains(&id) {
                        return refuse(format!(
                            "{place}: each tool_use must have a single result. Found multiple `tool_result` blocks with id: {id}"
                        ));
                    }
                    if !open.contains(&id) {
                        return refuse(format!(
                            "{place}: unexpected `tool_use_id` found in `tool_result` blocks: {id}. Each `tool_result` block must have a corresponding `tool_use` block in the previous message."
                        ));
                    }
                    results.push(id);
                }
                kind if role == "assistant" => {
                    let sent = raw.get(m).map_or("", |raw| raw.get());
                    if !sealed.iter().any(|known| known == sent) {
                        return refuse(format!(
                            "{place}: `{kind}` blocks cannot be modified. These blocks must remain as they were in the original response."
                        ));
                    }
                    if kind == "thinking" && m + 1 == blocks.len() {
                        return refuse(format!(
                            "{place}: The final block in an assistant message cannot be `thinking`."
                        ));
                    }
                }
                kind => return refuse(format!("{place}: Input tag '{kind}' found using 'type'")),
            }
        }
        let missing: Vec<&String> = open.iter().filter(|id| !results.contains(id)).collect();
        if !missing.is_empty() {
            return refuse(format!(
                "{place}: `tool_use` ids were found without `tool_result` blocks immediately after: {missing:?}"
            ));
        }
        open = calls;
    }
    if !open.is_empty() {
        return refuse("messages: the last message has `tool_use` blocks without results");
    }
    if let Some(last) = messages.last().filter(|last| last["role"] == "assistant")
        && let Some(text) = last["content"].as_array().and_then(|blocks| blocks.last())
        && text["text"]
            .as_str()
            .is_some_and(|text| text.trim_end() != text)
    {
        return refuse("messages: final assistant content cannot end with trailing whitespace");
    }
    Ok(())
}

fn check_image(block: &Value, place: &str) -> Result<(), Refusal> {
    only(block, &["type", "source", "cache_control"], place)?;
    let source = &block["source"];
    only(source, &["type", "media_type", "data"], place)?;
    let text = |name: &str| source[name].as_str().unwrap_or_default();
    match image_fits(text("media_type"), text("data")) {
        true => Ok(()),
        false => refuse(format!(
            "{place}: Image does not match the provided media type {}",
            text("media_type")
        )),
    }
}

fn check_tool_use(block: &Value, place: &str) -> Result<String, Refusal> {
    only(
        block,
        &[
            "type",
            "id",
            "name",
            "input",
            "cache_control",
            "caller",
            "toolset_name",
        ],
        place,
    )?;
    let text = |name: &str| block[name].as_str().unwrap_or_default();
    if !is_name(text("id"), 64) {
        return refuse(format!(
            "{place}.id: String should match pattern '^[a-zA-Z0-9_-]+$'"
        ));
    }
    if !is_name(text("name"), 200) {
        return refuse(format!(
            "{place}.name: String should match pattern '^[a-zA-Z0-9_-]{{1,200}}$'"
        ));
    }
    if !block["input"].is_object() {
        return refuse(format!("{place}.input: Input should be a valid dictionary"));
    }
    Ok(text("id").to_owned())
}

fn check_tool_result(block: &Value, place: &str) -> Result<String, Refusal> {
    only(
        block,
        &[
            "type",
            "tool_use_id",
            "content",
            "is_error",
            "cache_control",
        ],
        place,
    )?;
    let Some(id) = block["tool_use_id"].as_str() else {
        return refuse(format!("{place}.tool_use_id: Field required"));
    };
    let empty = match &block["content"] {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Array(blocks) => {
            for (n, block) in blocks.iter().enumerate() {
                let place = format!("{place}.content.{n}");
                match block["type"].as_str() {
                    Some("text") => check_text(block, &place)?,
                    Some("image") => check_image(block, &place)?,
                    _ => return refuse(format!("{place}: Input tag found using 'type'")),
                }
            }
            blocks.is_empty()
        }
        _ => return refuse(format!("{place}.content: Input should be a valid list")),
    };
    if empty && block["is_error"] == true {
        return refuse(format!(
            "{place}: content cannot be empty if `is_error` is true"
        ));
    }
    Ok(id.to_owned())
}

pub(super) fn whole(reply: &Reply) -> String {
    let message = json!({
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "test",
        "stop_reason": reply.stop_reason,
        "stop_sequence": null,
        "stop_details": reply.stop_details,
        "usage": reply.usage,
    });
    // The blocks are written as they are, byte for byte.
    let head = message.to_string();
    let blocks = reply.blocks.join(", ");
    format!("{},\"content\":[{blocks}]}}", &head[..head.len() - 1])
}

pub(super) fn events(reply: &Reply, style: Style) -> String {
    let mut out = String::new();
    let mut send = |data: String| {
        let value: Value = serde_json::from_str(&data).unwrap();
        event(&mut out, value["type"].as_str(), &data, style);
        if style.noise {
            event(&mut out, Some("ping"), r#"{"type": "ping"}"#, style);
            event(
                &mut out,
                Some("news"),
                r#"{"type":"news","index":0,"text":"?"}"#,
                style,
            );
        }
    };
    let start = reply.start_usage.clone().unwrap_or_else(|| {
        let mut usage = reply.usage.clone();
        usage["output_tokens"] = json!(1);
        usage
    });
    send(
        json!({"type": "message_start", "message": {
            "id": "msg_1", "type": "message", "role": "assistant", "model": "test",
            "content": [], "stop_reason": null, "stop_sequence": null, "usage": start,
        }})
        .to_string(),
    );
    let blocks: Vec<Vec<String>> = reply
        .blocks
        .iter()
        .enumerate()
        .map(|(index, block)| block_events(index, block, style.piece))
        .collect();
    if style.interleaved {
        let longest = blocks.iter().map(Vec::len).max().unwrap_or(0);
        for n in 0..longest {
            for data in blocks.iter().filter_map(|events| events.get(n)) {
                send(data.clone());
            }
        }
    } else {
        blocks.into_iter().flatten().for_each(&mut send);
    }
    let delta = json!({
        "stop_reason": reply.stop_reason, "stop_sequence": null,
        "stop_details": reply.stop_details,
    });
    send(json!({"type": "message_delta", "delta": delta, "usage": reply.usage}).to_string());
    send(json!({"type": "message_stop"}).to_string());
    out
}

fn block_events(index: usize, raw: &str, piece: usize) -> Vec<String> {
    let block: Value = serde_json::from_str(raw).unwrap();
    let text = |name: &str| block[name].as_str().unwrap_or_default();
    let mut start = block.clone();
    let mut deltas = Vec::new();
    let mut split = |kind: &str, member: &str, text: &str| {
        for piece in pieces(text, piece) {
            deltas.push(json!({"type": kind, member: piece}));
        }
    };
    let started = match text("type") {
        "text" => {
            start["text"] = json!("");
            split("text_delta", "text", text("text"));
            if let Some(citations) = block["citations"].as_array() {
                start["citations"] = json!([]);
                let cite = |citation| json!({"type": "citations_delta", "citation": citation});
                deltas.extend(citations.iter().map(cite));
            }
            start.to_string()
        }
        "thinking" => {
            start["thinking"] = json!("");
            start["signature"] = json!("");
            split("thinking_delta", "thinking", text("thinking"));
            split("signature_delta", "signature", text("signature"));
            start.to_string()
        }
        "tool_use" => {
            start["input"] = json!({});
            // A text stands for what the model wrote, JSON or not.
            let input = match &block["input"] {
                Value::String(raw) => raw.clone(),
                Value::Object(members) if members.is_empty() => String::new(),
                other => other.to_string(),
            };
            split("input_json_delta", "partial_json", &input);
            start.to_string()
        }
        _ => raw.to_owned(),
    };
    let mut events = vec![format!(
        r#"{{"type":"content_block_start","index":{index},"content_block":{started}}}"#
    )];
    events.extend(deltas.into_iter().map(|delta| {
        json!({"type": "content_block_delta", "index": index, "delta": delta}).to_string()
    }));
    events.push(json!({"type": "content_block_stop", "index": index}).to_string());
    events
}
