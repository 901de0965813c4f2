//! A model that says what a script says: for tests and the demo.
//!
//! A script is JSON. Each request takes the next reply:
//!
//! ```json
//! {
//!   "replies": [
//!     {
//!       "expect": { "text": "weather", "tools": ["weather_now"] },
//!       "content": [
//!         { "type": "thinking", "thinking": "The tool knows." },
//!         { "type": "text", "text": "Let me look." },
//!         { "type": "tool_use", "id": "toolu_1", "name": "weather_now", "input": { "city": "Paris" } }
//!       ],
//!       "usage": { "input": 20, "output": 9 },
//!       "delay_ms": 300
//!     },
//!     { "content": [{ "type": "text", "text": "In Paris: {{result:weather_now}}" }] }
//!   ]
//! }
//! ```
//!
//! | member of a reply | |
//! |---|---|
//! | `content` | blocks `text`, `thinking`, `tool_use`, and `foreign` with any JSON as `block` |
//! | `stop_reason` | by default `tool_use` where there is a call, else `end_turn`; `null` is no stop reason |
//! | `stop_details` | a text |
//! | `usage` | `input`, `output`, `cache_read`, `cache_write`; what is left out is unknown |
//! | `delay_ms` | the wait before the first word |
//! | `expect` | what the request has to be; anything else is an error |
//! | `error` | instead of `content`: the request fails with `kind` (`auth`, `request`, `context_too_long`, `overloaded`, `server`, `network`, `certificate`, `protocol`) and `message` |
//!
//! The `id` of a call may be left out. Its `input` may be a text, which is then read as the arguments that a
//! model wrote, malformed or not. `{{result:NAME}}` in a text becomes the newest result of that tool, or of
//! the call with that id.
//!
//! | member of `expect` | holds where |
//! |---|---|
//! | `model` | the request names this model |
//! | `system` | the system text contains this |
//! | `text` | the text of the last message contains this |
//! | `tools` | exactly these tools are offered, in this order |
//! | `messages` | so many messages are sent |
//! | `results` | the last message holds exactly these results in order; each may give `id`, `is_error`, and `contains` |

use std::{
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
    time::Duration,
};

use async_trait::async_trait;
use serde::Deserialize;
use serde_json::{Value, value::RawValue};

use super::{
    Delta, ModelReply, ModelRequest, Phase, Provider, ProviderError, ProviderErrorKind, ToolSchema,
    Watch, tool_use_id,
};
use crate::transcript::{
    ContentBlock, Message, Seal, StopReason, ToolInput, ToolResult, ToolUse, Usage,
};

const NAME: &str = "scripted";

/// How much of a text is told to `watch` at once, in characters.
const PIECE_CHARS: usize = 12;

/// A scripted model. It is used up: a second run needs a second one.
#[derive(Debug)]
pub struct Scripted {
    replies: Vec<Reply>,
    asked: Mutex<Vec<Asked>>,
    pace: Duration,
}

/// A request that a [`Scripted`] got.
#[derive(Debug, Clone, PartialEq)]
pub struct Asked {
    pub model: String,
    pub system: Option<String>,
    pub messages: Vec<Message>,
    pub tools: Vec<ToolSchema>,
    pub max_tokens: u32,
}

/// Why a script cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ScriptError {
    #[error("the script `{}` cannot be read: {source}", path.display())]
    Unreadable {
        path: PathBuf,
        source: std::io::Error,
    },
    #[error("the script `{}` is not one: {source}", path.display())]
    MalformedFile {
        path: PathBuf,
        source: serde_json::Error,
    },
    #[error("the script is not one: {0}")]
    Malformed(#[from] serde_json::Error),
}

impl Scripted {
    /// Reads a script file.
    pub fn load(path: &Path) -> Result<Self, ScriptError> {
        let text = std::fs::read_to_string(path).map_err(|source| ScriptError::Unreadable {
            path: path.to_owned(),
            source,
        })?;
        let script = serde_json::from_str(&text).map_err(|source| ScriptError::MalformedFile {
            path: path.to_owned(),
            source,
        })?;
        Ok(Self::of(script))
    }

    /// Reads a script; a fault names its line and column.
    pub fn parse(text: &str) -> Result<Self, ScriptError> {
        Ok(Self::of(serde_json::from_str(text)?))
    }

    /// Reads a script from a value such as `json!({"replies": […]})`.
    pub fn from_value(script: &Value) -> Result<Self, ScriptError> {
        Self::parse(&script.to_string())
    }

    /// Waits this long between two pieces of text, as a real model does.
    #[must_use]
    pub fn with_pace(mut self, pace: Duration) -> Self {
        self.pace = pace;
        self
    }

    /// Every request so far, in order, those that failed as well.
    pub fn asked(&self) -> Vec<Asked> {
        self.asked
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// How many replies nobody has asked for yet.
    pub fn remaining(&self) -> usize {
        let asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        self.replies.len().saturating_sub(asked.len())
    }

    fn of(script: Script) -> Self {
        Self {
            replies: script.replies,
            asked: Mutex::default(),
            pace: Duration::ZERO,
        }
    }

    /// Notes the request and gives its number, from 0.
    fn note(&self, request: &ModelRequest<'_>) -> usize {
        let mut asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        asked.push(Asked {
            model: request.model.to_owned(),
            system: request.system.map(str::to_owned),
            messages: request.messages.to_vec(),
            tools: request.tools.to_vec(),
            max_tokens: request.max_tokens,
        });
        asked.len() - 1
    }

    async fn say(&self, text: &str, watch: &mut dyn Watch, delta: fn(&str) -> Delta<'_>) {
        let mut rest = text;
        while !rest.is_empty() {
            let end = rest
                .char_indices()
                .nth(PIECE_CHARS)
                .map_or(rest.len(), |(at, _)| at);
            let (piece, after) = rest.split_at(end);
            watch.delta(delta(piece));
            rest = after;
            if !self.pace.is_zero() {
                tokio::time::sleep(self.pace).await;
            }
        }
    }
}

#[async_trait]
impl Provider for Scripted {
    fn name(&self) -> &str {
        NAME
    }

    async fn ask(
        &self,
        request: &ModelRequest<'_>,
        watch: &mut dyn Watch,
    ) -> Result<ModelReply, ProviderError> {
        let n = self.note(request);
        let Some(reply) = self.replies.get(n) else {
            let message = format!(
                "request {} found no reply left: the script has {}",
                n + 1,
                self.replies.len()
            );
            return Err(error(ProviderErrorKind::Script, message));
        };
        if let Err(fault) = reply.expect.check(request) {
            let message = format!("request {} is not what the script expects: {fault}", n + 1);
            return Err(error(ProviderErrorKind::Script, message));
        }
        if reply.delay_ms > 0 {
            tokio::time::sleep(Duration::from_millis(reply.delay_ms)).await;
        }
        if let Some(failure) = &reply.error {
            return Err(error(failure.kind.into(), failure.message.clone()));
        }
        let mut content = Vec::new();
        let mut calls = 0;
        for block in &reply.content {
            content.push(match block {
                Block::Text { text } => {
                    let text = filled(text, request.messages);
                    self.say(&text, watch, |text| Delta::Text(text)).await;
                    ContentBlock::text(text)
                }
                Block::Thinking { thinking } => {
                    self.say(thinking, watch, |text| Delta::Reasoning(text))
                        .await;
                    let raw = serde_json::json!({"type": "thinking", "thinking": thinking});
                    ContentBlock::Reasoning {
                        text: thinking.clone(),
                        seal: seal(request, raw.to_string()),
                    }
                }
                Block::ToolUse { id, name, input } => {
                    watch.delta(Delta::ToolUse { name });
                    let (id, provider_id) =
                        tool_use_id(id.as_deref(), request.messages.len(), calls);
                    calls += 1;
                    let input = match input {
                        Value::String(raw) => ToolInput::parse(raw),
                        Value::Null => ToolInput::parse(""),
                        other => ToolInput::parse(&other.to_string()),
                    };
                    watch.tool_use(name, &input);
                    ContentBlock::ToolUse(ToolUse {
                        id,
                        provider_id,
                        name: name.clone(),
                        input,
                        extra: serde_json::Map::new(),
                    })
                }
                Block::Foreign { block } => {
                    ContentBlock::Foreign(seal(request, block.get().to_owned()))
                }
            });
        }
        let stop_reason = match &reply.stop_reason {
            Some(Some(reason)) => reason.clone(),
            Some(None) => StopReason::Unknown(String::new()),
            None if calls > 0 => StopReason::ToolUse,
            None => StopReason::EndTurn,
        };
        Ok(ModelReply {
            content,
            stop_reason,
            stop_details: reply.stop_details.clone(),
            usage: reply.usage.into(),
            request_id: None,
        })
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Script {
    replies: Vec<Reply>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Reply {
    #[serde(default)]
    content: Vec<Block>,
    #[serde(default, deserialize_with = "given")]
    stop_reason: Option<Option<StopReason>>,
    stop_details: Option<String>,
    #[serde(default)]
    usage: Tokens,
    #[serde(default)]
    delay_ms: u64,
    #[serde(default)]
    expect: Expect,
    error: Option<Failure>,
}

/// Tells `null` from a member that is not there.
fn given<'de, T: Deserialize<'de>, D: serde::Deserializer<'de>>(
    from: D,
) -> Result<Option<Option<T>>, D::Error> {
    Option::deserialize(from).map(Some)
}

#[derive(Debug)]
enum Block {
    Text {
        text: String,
    },
    Thinking {
        thinking: String,
    },
    ToolUse {
        id: Option<String>,
        name: String,
        input: Value,
    },
    Foreign {
        block: Box<RawValue>,
    },
}

/// All members that a block can have. A tagged enum would lose the position of a fault and the bytes of a
/// foreign block.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct AnyBlock {
    r#type: BlockType,
    text: Option<String>,
    thinking: Option<String>,
    id: Option<String>,
    name: Option<String>,
    #[serde(default)]
    input: Value,
    block: Option<Box<RawValue>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum BlockType {
    Text,
    Thinking,
    ToolUse,
    Foreign,
}

impl<'de> Deserialize<'de> for Block {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let any = AnyBlock::deserialize(from)?;
        let missing = serde::de::Error::missing_field;
        Ok(match any.r#type {
            BlockType::Text => Self::Text {
                text: any.text.ok_or_else(|| missing("text"))?,
            },
            BlockType::Thinking => Self::Thinking {
                thinking: any.thinking.ok_or_else(|| missing("thinking"))?,
            },
            BlockType::ToolUse => Self::ToolUse {
                id: any.id,
                name: any.name.ok_or_else(|| missing("name"))?,
                input: any.input,
            },
            BlockType::Foreign => Self::Foreign {
                block: any.block.ok_or_else(|| missing("block"))?,
            },
        })
    }
}

#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Tokens {
    input: Option<u64>,
    output: Option<u64>,
    cache_read: Option<u64>,
    cache_write: Option<u64>,
}

impl From<Tokens> for Usage {
    fn from(tokens: Tokens) -> Self {
        Self {
            input: tokens.input,
            output: tokens.output,
            cache_read: tokens.cache_read,
            cache_write: tokens.cache_write,
        }
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Failure {
    kind: FailureKind,
    message: String,
}

#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
enum FailureKind {
    Auth,
    Request,
    ContextTooLong,
    Overloaded,
    Server,
    Network,
    Certificate,
    Protocol,
}

impl From<FailureKind> for ProviderErrorKind {
    fn from(kind: FailureKind) -> Self {
        match kind {
            FailureKind::Auth => Self::Auth,
            FailureKind::Request => Self::Request,
            FailureKind::ContextTooLong => Self::ContextTooLong,
            FailureKind::Overloaded => Self::Overloaded,
            FailureKind::Server => Self::Server,
            FailureKind::Network => Self::Network,
            FailureKind::Certificate => Self::Certificate,
            FailureKind::Protocol => Self::Protocol,
        }
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Expect {
    model: Option<String>,
    system: Option<String>,
    text: Option<String>,
    tools: Option<Vec<String>>,
    messages: Option<usize>,
    results: Option<Vec<ExpectResult>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ExpectResult {
    id: Option<String>,
    is_error: Option<bool>,
    contains: Option<String>,
}

impl Expect {
    fn check(&self, request: &ModelRequest<'_>) -> Result<(), String> {
        if let Some(model) = &self.model
            && model != request.model
        {
            return Err(format!("the model is `{}`, not `{model}`", request.model));
        }
        if let Some(wanted) = &self.system
            && !request.system.unwrap_or_default().contains(wanted)
        {
            return Err(format!("the system text does not contain `{wanted}`"));
        }
        if let Some(wanted) = self.messages
            && wanted != request.messages.len()
        {
            let n = request.messages.len();
            return Err(format!("it has {n} messages, not {wanted}"));
        }
        if let Some(wanted) = &self.tools {
            let offered: Vec<&str> = request.tools.iter().map(|t| t.name.as_str()).collect();
            if *wanted != offered {
                return Err(format!("it offers the tools {offered:?}, not {wanted:?}"));
            }
        }
        let last = request.messages.last().map_or(&[][..], |m| &m.content);
        if let Some(wanted) = &self.text
            && !last.iter().any(
                |block| matches!(block, ContentBlock::Text { text, .. } if text.contains(wanted)),
            )
        {
            return Err(format!("no text of its last message contains `{wanted}`"));
        }
        if let Some(wanted) = &self.results {
            let results: Vec<&ToolResult> = last
                .iter()
                .filter_map(|block| match block {
                    ContentBlock::ToolResult(result) => Some(result),
                    _ => None,
                })
                .collect();
            if results.len() != wanted.len() {
                let n = results.len();
                return Err(format!("it brings {n} results, not {}", wanted.len()));
            }
            for (n, (result, wanted)) in results.iter().zip(wanted).enumerate() {
                let fault = wanted.fault(result);
                if let Some(fault) = fault {
                    return Err(format!("result {} {fault}", n + 1));
                }
            }
        }
        Ok(())
    }
}

impl ExpectResult {
    fn fault(&self, result: &ToolResult) -> Option<String> {
        if let Some(id) = &self.id
            && id != result.tool_use_id.as_str()
        {
            return Some(format!("is that of `{}`, not `{id}`", result.tool_use_id));
        }
        if let Some(is_error) = self.is_error
            && is_error != result.is_error
        {
            return Some(format!(
                "has `is_error` {}: {}",
                result.is_error,
                result.text()
            ));
        }
        if let Some(wanted) = &self.contains
            && !result.text().contains(wanted)
        {
            return Some(format!("does not contain `{wanted}`: {}", result.text()));
        }
        None
    }
}

/// Puts results in place of `{{result:NAME}}`; a placeholder without a result stays as it is.
fn filled(text: &str, messages: &[Message]) -> String {
    const OPEN: &str = "{{result:";
    let mut filled = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once(OPEN) {
        filled.push_str(before);
        let Some((name, after)) = after.split_once("}}") else {
            rest = &rest[before.len()..];
            break;
        };
        match newest_result(name.trim(), messages) {
            Some(result) => filled.push_str(&result.text()),
            None => {
                filled.push_str(OPEN);
                filled.push_str(name);
                filled.push_str("}}");
            }
        }
        rest = after;
    }
    filled.push_str(rest);
    filled
}

fn newest_result<'a>(name: &str, messages: &'a [Message]) -> Option<&'a ToolResult> {
    let calls: Vec<&ToolUse> = messages.iter().flat_map(Message::tool_uses).collect();
    messages
        .iter()
        .rev()
        .flat_map(|message| message.content.iter().rev())
        .find_map(|block| match block {
            ContentBlock::ToolResult(result) => {
                let id = &result.tool_use_id;
                let named = calls.iter().any(|c| c.id == *id && c.name == name);
                (id.as_str() == name || named).then_some(result)
            }
            _ => None,
        })
}

fn seal(request: &ModelRequest<'_>, raw: String) -> Seal {
    Seal {
        provider: NAME.into(),
        model: request.model.to_owned(),
        raw,
    }
}

fn error(kind: ProviderErrorKind, message: String) -> ProviderError {
    ProviderError {
        kind,
        phase: Phase::Waiting,
        endpoint: "the scripted model".into(),
        message,
        hint: None,
        attempts: 1,
        status: None,
        request_id: None,
        retry_after: None,
        usage: Usage::default(),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::json;

    use super::*;
    use crate::{
        ids::{ToolName, ToolUseId},
        transcript::{ResultContent, Role},
    };

    #[derive(Default)]
    struct Heard(Vec<String>);

    impl Watch for Heard {
        fn delta(&mut self, delta: Delta<'_>) {
            self.0.push(match delta {
                Delta::Text(text) => format!("text {text}"),
                Delta::Reasoning(text) => format!("reasoning {text}"),
                Delta::ToolUse { name } => format!("tool_use {name}"),
            });
        }
        fn retrying(&mut self, _: u32, _: Duration, _: &ProviderError) {}
    }

    fn request(messages: &[Message]) -> ModelRequest<'_> {
        ModelRequest {
            model: "m",
            system: Some("Be brief."),
            messages,
            tools: &[],
            max_tokens: 100,
        }
    }

    fn answered(id: &str, text: &str) -> Vec<Message> {
        let id = ToolUseId::parse(id).unwrap();
        vec![
            Message::user("go"),
            Message {
                role: Role::Assistant,
                content: vec![ContentBlock::ToolUse(ToolUse {
                    id: id.clone(),
                    provider_id: None,
                    name: "echo".into(),
                    input: ToolInput::parse(""),
                    extra: serde_json::Map::new(),
                })],
            },
            Message {
                role: Role::User,
                content: vec![ContentBlock::ToolResult(ToolResult {
                    tool_use_id: id,
                    content: vec![ResultContent::Text { text: text.into() }],
                    is_error: false,
                })],
            },
        ]
    }

    #[tokio::test]
    async fn replies_come_in_order_with_defaults() {
        let model = Scripted::from_value(&json!({"replies": [
            {"content": [
                {"type": "thinking", "thinking": "hm"},
                {"type": "text", "text": "Let me look at it."},
                {"type": "tool_use", "id": "toolu_1", "name": "echo", "input": {"b": 1, "a": 2}},
                {"type": "tool_use", "name": "echo", "input": "{\"a\":"},
                {"type": "foreign", "block": {"type": "x",  "n": 1.50}},
            ], "usage": {"input": 3}},
            {"content": [], "stop_reason": null},
            {"content": [{"type": "text", "text": "done"}], "stop_reason": "new_thing"},
        ]}))
        .unwrap();
        let mut heard = Heard::default();
        let messages = [Message::user("go")];
        let first = model.ask(&request(&messages), &mut heard).await.unwrap();
        assert_eq!(first.stop_reason, StopReason::ToolUse);
        assert_eq!(first.usage.input, Some(3));
        assert_eq!(first.usage.output, None);
        let calls: Vec<&ToolUse> = first
            .content
            .iter()
            .filter_map(|block| match block {
                ContentBlock::ToolUse(call) => Some(call),
                _ => None,
            })
            .collect();
        assert_eq!(calls[0].id.as_str(), "toolu_1");
        assert_eq!(calls[0].provider_id, None);
        assert_eq!(calls[1].id.as_str(), "call_1_1");
        assert_eq!(calls[1].provider_id, None);
        assert!(matches!(calls[1].input, ToolInput::Malformed { .. }));
        assert_eq!(
            heard.0,
            [
                "reasoning hm",
                "text Let me look ",
                "text at it.",
                "tool_use echo",
                "tool_use echo"
            ]
        );
        assert_eq!(model.remaining(), 2);
        let second = model.ask(&request(&messages), &mut ()).await.unwrap();
        assert_eq!(second.stop_reason, StopReason::Unknown(String::new()));
        let third = model.ask(&request(&messages), &mut ()).await.unwrap();
        assert_eq!(third.stop_reason, StopReason::Unknown("new_thing".into()));
        let none = model.ask(&request(&messages), &mut ()).await.unwrap_err();
        assert_eq!(none.kind, ProviderErrorKind::Script);
        assert!(none.message.contains("request 4"), "{none}");
        assert_eq!(model.asked().len(), 4);
        assert_eq!(model.asked()[0].system.as_deref(), Some("Be brief."));
    }

    #[test]
    fn a_foreign_block_keeps_its_bytes() {
        let script = r#"{"replies":[{"content":[{"type":"foreign","block":{"n": 1.50}}]}]}"#;
        let model = Scripted::parse(script).unwrap();
        let Block::Foreign { block } = &model.replies[0].content[0] else {
            panic!("no foreign block");
        };
        assert_eq!(block.get(), r#"{"n": 1.50}"#);
    }

    #[tokio::test]
    async fn each_expectation_is_checked() {
        let messages = answered("toolu_1", "hello");
        let tool = ToolSchema {
            name: ToolName::parse("echo").unwrap(),
            description: Arc::from(""),
            input_schema: Arc::new(json!({"type": "object"})),
        };
        let cases = [
            (json!({"model": "other"}), "the model is `m`"),
            (json!({"system": "long"}), "system text"),
            (json!({"text": "hello"}), "no text"),
            (json!({"tools": []}), "offers the tools"),
            (json!({"messages": 2}), "3 messages"),
            (json!({"results": []}), "1 results"),
            (json!({"results": [{"id": "x"}]}), "`toolu_1`, not `x`"),
            (json!({"results": [{"is_error": true}]}), "`is_error` false"),
            (
                json!({"results": [{"contains": "bye"}]}),
                "does not contain `bye`",
            ),
        ];
        for (expect, fault) in cases {
            let script = json!({"replies": [{"expect": expect, "content": []}]});
            let model = Scripted::from_value(&script).unwrap();
            let asked = ModelRequest {
                tools: std::slice::from_ref(&tool),
                ..request(&messages)
            };
            let error = model.ask(&asked, &mut ()).await.unwrap_err();
            assert_eq!(error.kind, ProviderErrorKind::Script);
            assert!(error.message.contains(fault), "{fault}: {error}");
        }
        let met = json!({"replies": [{"expect": {
            "model": "m", "system": "brief", "tools": ["echo"], "messages": 3,
            "results": [{"id": "toolu_1", "is_error": false, "contains": "hell"}],
        }, "content": []}]});
        let asked = ModelRequest {
            tools: std::slice::from_ref(&tool),
            ..request(&messages)
        };
        let model = Scripted::from_value(&met).unwrap();
        assert!(model.ask(&asked, &mut ()).await.is_ok());
    }

    #[tokio::test]
    async fn a_text_can_quote_results() {
        let messages = answered("toolu_1", "hello");
        assert_eq!(
            filled(
                "{{result:echo}}, {{result: toolu_1}}, {{result:x}} {{result:",
                &messages
            ),
            "hello, hello, {{result:x}} {{result:"
        );
    }

    #[tokio::test]
    async fn a_script_can_fail_a_request() {
        let script = json!({"replies": [{"error": {"kind": "overloaded", "message": "busy"}}]});
        let model = Scripted::from_value(&script).unwrap();
        let error = model.ask(&request(&[]), &mut ()).await.unwrap_err();
        assert_eq!(error.kind, ProviderErrorKind::Overloaded);
        assert_eq!(error.message, "busy");
    }

    #[test]
    fn a_malformed_script_names_the_place() {
        for (script, fault) in [
            ("{\"replies\": [\n  {\"contents\": []}]}", "line 2 column"),
            ("{\"replies\": [", "line 1 column"),
            (
                r#"{"replies":[{"content":[{"type":"tool_use"}]}]}"#,
                "missing field `name` at line 1",
            ),
            (
                r#"{"replies":[{"content":[{"type":"tool_us","name":"x"}]}]}"#,
                "unknown variant `tool_us`",
            ),
            (r#"{"replies":[{"usage":{"in":1}}]}"#, "unknown field `in`"),
        ] {
            let error = Scripted::parse(script).unwrap_err().to_string();
            assert!(error.contains(fault), "{error}");
        }
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("script.json");
        let error = Scripted::load(&path).unwrap_err().to_string();
        assert!(error.contains("script.json"), "{error}");
        std::fs::write(&path, "[]").unwrap();
        let error = Scripted::load(&path).unwrap_err().to_string();
        assert!(
            error.contains("script.json") && error.contains("line 1"),
            "{error}"
        );
    }
}
