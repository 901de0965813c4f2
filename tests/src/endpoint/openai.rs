//! Chat completions: their rules, and how replies are written.

use axum::http::HeaderMap;
use serde_json::{Value, json};

use super::{
    Refusal, Reply, Style, check_schema, event, image_fits, is_name, only, pieces, refuse,
};

const MEMBERS: [&str; 14] = [
    "model",
    "messages",
    "tools",
    "tool_choice",
    "parallel_tool_calls",
    "max_tokens",
    "max_completion_tokens",
    "stream",
    "stream_options",
    "response_format",
    "reasoning_effort",
    "stop",
    "seed",
    "temperature",
];

/// The vendor's own limit.
const MAX_ID_BYTES: usize = 40;

pub(super) fn check(headers: &HeaderMap, body: &Value) -> Result<(), Refusal> {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    match text("authorization").and_then(|value| value.strip_prefix("Bearer ")) {
        None => return Err((401, "You didn't provide an API key.".into())),
        Some("wrong") => return Err((401, "Incorrect API key provided: wrong.".into())),
        Some(_) => {}
    }
    if text("content-type") != Some("application/json") {
        return refuse("content-type: should be application/json");
    }
    only(body, &MEMBERS, "body")?;
    if body["model"].as_str().is_none_or(str::is_empty) {
        return refuse("you must provide a model parameter");
    }
    let limits = ["max_tokens", "max_completion_tokens"];
    if limits
        .iter()
        .filter(|name| body.get(**name).is_some())
        .count()
        != 1
    {
        return refuse("exactly one of max_tokens and max_completion_tokens is needed");
    }
    if body.get("stream_options").is_some() && body["stream"] != true {
        return refuse("The 'stream_options' parameter is only allowed when 'stream' is enabled.");
    }
    check_tools(body)?;
    check_messages(&body["messages"])
}

fn check_tools(body: &Value) -> Result<(), Refusal> {
    let Some(tools) = body.get("tools") else {
        return Ok(());
    };
    let tools = tools.as_array().map_or(&[][..], Vec::as_slice);
    if tools.is_empty() {
        return refuse("Invalid 'tools': empty array. Expected an array with minimum length 1");
    }
    for (n, tool) in tools.iter().enumerate() {
        let place = format!("tools[{n}]");
        only(tool, &["type", "function"], &place)?;
        let function = &tool["function"];
        only(
            function,
            &["name", "description", "parameters", "strict"],
            &place,
        )?;
        if !is_name(function["name"].as_str().unwrap_or_default(), 64) {
            return refuse(format!(
                "Invalid '{place}.function.name': string does not match pattern '^[a-zA-Z0-9_-]+$'"
            ));
        }
        check_schema(
            &function["parameters"],
            &format!("{place}.function.parameters"),
        )?;
    }
    Ok(())
}

fn check_messages(messages: &Value) -> Result<(), Refusal> {
    let messages = messages.as_array().map_or(&[][..], Vec::as_slice);
    if messages.is_empty() {
        return refuse("Invalid 'messages': empty array.");
    }
    let mut open: Vec<String> = Vec::new();
    for (n, message) in messages.iter().enumerate() {
        let place = format!("messages[{n}]");
        let role = message["role"].as_str().unwrap_or_default();
        if role != "tool" && !open.is_empty() {
            return refuse(format!(
                "An assistant message with 'tool_calls' must be followed by tool messages responding to each 'tool_call_id'. The following tool_call_ids did not have response messages: {open:?}"
            ));
        }
        match role {
            "system" | "developer" => {
                only(message, &["role", "content"], &place)?;
                check_text(&message["content"], &place)?;
            }
            "user" => {
                only(message, &["role", "content"], &place)?;
                check_user(&message["content"], &place)?;
            }
            "assistant" => open = check_assistant(message, &place)?,
            "tool" => {
                only(message, &["role", "content", "tool_call_id"], &place)?;
                check_text(&message["content"], &place)?;
                let id = message["tool_call_id"].as_str().unwrap_or_default();
                let Some(at) = open.iter().position(|known| known == id) else {
                    return refuse(format!(
                        "Invalid parameter: messages with role 'tool' must be a response to a preceeding message with 'tool_calls' ({place}: {id})"
                    ));
                };
                open.remove(at);
            }
            other => return refuse(format!("Invalid value: '{other}' ({place}.role)")),
        }
    }
    match open.is_empty() {
        true => Ok(()),
        false => refuse(format!(
            "tool_call_ids did not have response messages: {open:?}"
        )),
    }
}

fn check_text(content: &Value, place: &str) -> Result<(), Refusal> {
    match content {
        Value::String(_) => Ok(()),
        Value::Array(parts) if parts.iter().all(|part| part["type"] == "text") => Ok(()),
        _ => refuse(format!(
            "Invalid value for '{place}.content': text expected"
        )),
    }
}

fn check_user(content: &Value, place: &str) -> Result<(), Refusal> {
    let Value::Array(parts) = content else {
        return check_text(content, place);
    };
    if parts.is_empty() {
        return refuse(format!("Invalid '{place}.content': empty array"));
    }
    for part in parts {
        match part["type"].as_str() {
            Some("text") => only(part, &["type", "text"], place)?,
            Some("image_url") => {
                only(part, &["type", "image_url"], place)?;
                let url = part["image_url"]["url"].as_str().unwrap_or_default();
                let data = url
                    .strip_prefix("data:")
                    .and_then(|rest| rest.split_once(";base64,"));
                if !data.is_some_and(|(media_type, data)| image_fits(media_type, data)) {
                    return refuse(format!("Invalid image data ({place})"));
                }
            }
            _ => return refuse(format!("Invalid part in {place}")),
        }
    }
    Ok(())
}

fn check_assistant(message: &Value, place: &str) -> Result<Vec<String>, Refusal> {
    only(
        message,
        &[
            "role",
            "content",
            "tool_calls",
            "refusal",
            "reasoning_content",
        ],
        place,
    )?;
    let content = &message["content"];
    if !content.is_null() {
        check_text(content, place)?;
    }
    let mut ids: Vec<String> = Vec::new();
    let Some(calls) = message.get("tool_calls") else {
        return match content.is_null() {
            true => refuse(format!(
                "Invalid value for 'content': expected a string, got null. ({place})"
            )),
            false => Ok(ids),
        };
    };
    for call in calls.as_array().into_iter().flatten() {
        only(call, &["id", "type", "function"], place)?;
        let id = call["id"].as_str().unwrap_or_default();
        if id.is_empty() || id.len() > MAX_ID_BYTES {
            return refuse(format!(
                "Invalid '{place}.tool_calls.id': string too long. Expected a string with maximum length {MAX_ID_BYTES}"
            ));
        }
        if ids.iter().any(|known| known == id) {
            return refuse(format!("Duplicate tool call id {id} ({place})"));
        }
        ids.push(id.to_owned());
        let function = &call["function"];
        only(function, &["name", "arguments"], place)?;
        if !is_name(function["name"].as_str().unwrap_or_default(), 64) {
            return refuse(format!("Invalid '{place}.tool_calls.function.name'"));
        }
        let arguments = function["arguments"].as_str().unwrap_or_default();
        if !serde_json::from_str(arguments).is_ok_and(|value: Value| value.is_object()) {
            return refuse(format!(
                "Failed to parse tool call arguments as JSON ({place})"
            ));
        }
    }
    match ids.is_empty() {
        true => refuse(format!("Invalid '{place}.tool_calls': empty array")),
        false => Ok(ids),
    }
}

/// The message and the finish reason that stand for a reply.
fn message(reply: &Reply) -> (Value, Value) {
    let mut text: Option<String> = None;
    let mut reasoning: Option<String> = None;
    let mut calls = Vec::new();
    for block in &reply.blocks {
        let block: Value = serde_json::from_str(block).unwrap();
        let add = |to: &mut Option<String>, member: &str| {
            let more = block[member].as_str().unwrap_or_default();
            to.get_or_insert_default().push_str(more);
        };
        match block["type"].as_str().unwrap_or_default() {
            "text" => add(&mut text, "text"),
            "thinking" => add(&mut reasoning, "thinking"),
            "tool_use" => {
                let arguments = match &block["input"] {
                    Value::String(raw) => raw.clone(),
                    Value::Object(members) if members.is_empty() => String::new(),
                    other => other.to_string(),
                };
                let function = json!({"name": block["name"], "arguments": arguments});
                calls.push(json!({"id": block["id"], "type": "function", "function": function}));
            }
            other => panic!("chat completions have no `{other}`"),
        }
    }
    let mut message = json!({"role": "assistant", "content": text});
    if let Some(reasoning) = reasoning {
        message["reasoning_content"] = json!(reasoning);
    }
    if !calls.is_empty() {
        message["tool_calls"] = json!(calls);
    }
    let finish_reason = match reply.stop_reason.as_str() {
        Some("end_turn" | "stop_sequence") => json!("stop"),
        Some("tool_use") => json!("tool_calls"),
        Some("max_tokens") => json!("length"),
        Some("refusal") => json!("content_filter"),
        Some(other) => json!(other),
        None => Value::Null,
    };
    (message, finish_reason)
}

fn usage(reply: &Reply) -> Value {
    let count = |name: &str| reply.usage[name].as_u64().unwrap_or(0);
    let cached = count("cache_read_input_tokens");
    let written = count("cache_creation_input_tokens");
    json!({
        "prompt_tokens": count("input_tokens") + cached + written,
        "completion_tokens": count("output_tokens"),
        "prompt_tokens_details": {"cached_tokens": cached, "cache_write_tokens": written},
    })
}

pub(super) fn whole(reply: &Reply) -> String {
    let (message, finish_reason) = message(reply);
    json!({
        "id": "chatcmpl-1", "object": "chat.completion", "model": "test",
        "choices": [{"index": 0, "message": message, "finish_reason": finish_reason}],
        "usage": usage(reply),
    })
    .to_string()
}

pub(super) fn events(reply: &Reply, style: Style) -> String {
    let (message, finish_reason) = message(reply);
    let mut deltas = vec![json!({"role": "assistant", "content": null})];
    for member in ["reasoning_content", "content"] {
        if let Some(text) = message[member].as_str() {
            deltas.extend(
                pieces(text, style.piece)
                    .into_iter()
                    .map(|p| json!({member: p})),
            );
        }
    }
    let calls: Vec<Vec<Value>> = message["tool_calls"]
        .as_array()
        .into_iter()
        .flatten()
        .enumerate()
        .map(|(index, call)| {
            let function = &call["function"];
            let first = json!({"index": index, "id": call["id"], "type": "function",
                "function": {"name": function["name"], "arguments": ""}});
            let rest = pieces(function["arguments"].as_str().unwrap(), style.piece)
                .into_iter()
                .map(|piece| json!({"index": index, "function": {"arguments": piece}}));
            [first].into_iter().chain(rest).collect()
        })
        .collect();
    if style.interleaved {
        let longest = calls.iter().map(Vec::len).max().unwrap_or(0);
        for n in 0..longest {
            let pieces: Vec<&Value> = calls.iter().filter_map(|call| call.get(n)).collect();
            deltas.push(json!({"tool_calls": pieces}));
        }
    } else {
        for piece in calls.iter().flatten() {
            deltas.push(json!({"tool_calls": [piece]}));
        }
    }
    let mut out = String::new();
    let chunk = |choices: Value, usage: Value| {
        json!({"id": "chatcmpl-1", "object": "chat.completion.chunk", "model": "test",
            "choices": choices, "usage": usage})
        .to_string()
    };
    let choice = |delta: &Value, finish: &Value| {
        chunk(
            json!([{"index": 0, "delta": delta, "finish_reason": finish}]),
            Value::Null,
        )
    };
    for delta in &deltas {
        event(&mut out, None, &choice(delta, &Value::Null), style);
    }
    event(&mut out, None, &choice(&json!({}), &finish_reason), style);
    event(&mut out, None, &chunk(json!([]), usage(reply)), style);
    event(&mut out, None, "[DONE]", style);
    out
}
