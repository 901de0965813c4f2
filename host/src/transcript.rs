//! The conversation, independent of any provider's wire format, and the rule that every `tool_use` has
//! exactly one `tool_result` in the next message.
//!
//! The serde forms of these types are a promise: `run --json`, traces and stored runs hold them.

pub mod repair;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::ids::{InvalidName, ToolUseId};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    User,
    Assistant,
}

/// One entry of a conversation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Message {
    pub role: Role,
    pub content: Vec<ContentBlock>,
}

impl Message {
    /// A user message of one text.
    pub fn user(text: impl Into<String>) -> Self {
        Self {
            role: Role::User,
            content: vec![ContentBlock::text(text)],
        }
    }

    /// An assistant message of one text.
    pub fn assistant(text: impl Into<String>) -> Self {
        Self {
            role: Role::Assistant,
            content: vec![ContentBlock::text(text)],
        }
    }

    pub fn tool_uses(&self) -> impl Iterator<Item = &ToolUse> {
        self.content.iter().filter_map(ContentBlock::as_tool_use)
    }

    /// The last text block that is not blank.
    pub fn last_text(&self) -> Option<&str> {
        self.content
            .iter()
            .rev()
            .filter_map(ContentBlock::as_text)
            .find(|text| !text.trim().is_empty())
    }
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum ContentBlock {
    Text {
        text: String,
        /// Other members of the block as the provider sent them (citations); replayed with it.
        #[serde(default, skip_serializing_if = "Map::is_empty")]
        extra: Map<String, Value>,
    },
    Image(Media),
    /// The model's thinking. It means something only to the provider and model that sealed it.
    Reasoning {
        text: String,
        seal: Seal,
    },
    ToolUse(ToolUse),
    ToolResult(ToolResult),
    /// A block of a kind that we do not know, replayed to its own provider as it came.
    Foreign(Seal),
}

impl ContentBlock {
    pub fn text(text: impl Into<String>) -> Self {
        Self::Text {
            text: text.into(),
            extra: Map::new(),
        }
    }

    pub fn as_text(&self) -> Option<&str> {
        match self {
            Self::Text { text, .. } => Some(text),
            Self::Image(_)
            | Self::Reasoning { .. }
            | Self::ToolUse(_)
            | Self::ToolResult(_)
            | Self::Foreign(_) => None,
        }
    }

    pub fn as_tool_use(&self) -> Option<&ToolUse> {
        match self {
            Self::ToolUse(tool_use) => Some(tool_use),
            Self::Text { .. }
            | Self::Image(_)
            | Self::Reasoning { .. }
            | Self::ToolResult(_)
            | Self::Foreign(_) => None,
        }
    }
}

/// A block exactly as a provider sent it. It goes back to the same provider and model byte for byte, and
/// to no other.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Seal {
    /// [`Provider::name`](crate::provider::Provider::name) of the sender.
    pub provider: String,
    pub model: String,
    /// One JSON value as text.
    pub raw: String,
}

/// A call that the model asks for.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ToolUse {
    /// Unique in the run; what the result refers to.
    pub id: ToolUseId,
    /// The id as the provider sent it, where it had to be replaced (empty, used before, other characters).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provider_id: Option<String>,
    /// As the model wrote it, so not necessarily the name of a tool.
    pub name: String,
    pub input: ToolInput,
    /// Other members of the block as the provider sent them; replayed with it.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub extra: Map<String, Value>,
}

impl ToolUse {
    /// A call as a program makes it; `input` that is not an object is kept as malformed.
    pub fn new(id: &str, name: &str, input: Value) -> Result<Self, InvalidName> {
        let input = match input {
            Value::Object(map) => ToolInput::Object(map),
            other => ToolInput::parse(&other.to_string()),
        };
        let id = ToolUseId::parse(id)?;
        Ok(Self {
            id,
            provider_id: None,
            name: name.to_owned(),
            input,
            extra: Map::new(),
        })
    }
}

impl From<ToolUse> for ContentBlock {
    fn from(tool_use: ToolUse) -> Self {
        Self::ToolUse(tool_use)
    }
}

/// The arguments of a call.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum ToolInput {
    /// Not JSON, or not an object. Replayed as an empty object.
    Malformed {
        malformed: String,
        why: String,
    },
    Object(Map<String, Value>),
}

impl ToolInput {
    /// Reads the arguments as a provider sent them; nothing, an empty text or blanks mean no arguments.
    pub fn parse(raw: &str) -> Self {
        if raw.trim().is_empty() {
            return Self::Object(Map::new());
        }
        let malformed = |why: String| Self::Malformed {
            malformed: raw.to_owned(),
            why,
        };
        match serde_json::from_str(raw) {
            Ok(Value::Object(map)) => Self::Object(map),
            Ok(Value::Null) => malformed("null is not an object".into()),
            Ok(Value::Bool(_)) => malformed("a boolean is not an object".into()),
            Ok(Value::Number(_)) => malformed("a number is not an object".into()),
            Ok(Value::String(_)) => malformed("a string is not an object".into()),
            Ok(Value::Array(_)) => malformed("an array is not an object".into()),
            Err(error) => malformed(error.to_string()),
        }
    }

    /// What stands in history: always an object.
    pub fn replayed(&self) -> Map<String, Value> {
        match self {
            Self::Object(map) => map.clone(),
            Self::Malformed { .. } => Map::new(),
        }
    }
}

/// What the model reads of a call.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ToolResult {
    pub tool_use_id: ToolUseId,
    pub content: Vec<ResultContent>,
    pub is_error: bool,
}

impl ToolResult {
    /// All text blocks, one below the other.
    pub fn text(&self) -> String {
        let texts: Vec<&str> = self
            .content
            .iter()
            .filter_map(|block| match block {
                ResultContent::Text { text } => Some(text.as_str()),
                ResultContent::Image(_) => None,
            })
            .collect();
        texts.join("\n")
    }
}

/// What every model endpoint can take as part of a result. Other kinds of content have become text by here.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum ResultContent {
    Text {
        text: String,
    },
    /// Its bytes match its type, and its type is PNG, JPEG, GIF or WebP.
    Image(Media),
}

/// Bytes with their type, in base64 as every wire format wants them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Media {
    pub media_type: String,
    pub base64: String,
}

/// Why a reply ended, in Anthropic's words.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum StopReason {
    EndTurn,
    ToolUse,
    MaxTokens,
    StopSequence,
    PauseTurn,
    Refusal,
    ModelContextWindowExceeded,
    /// A word that we do not know; empty when there was none.
    #[serde(untagged)]
    Unknown(String),
}

impl StopReason {
    pub fn as_str(&self) -> &str {
        match self {
            Self::EndTurn => "end_turn",
            Self::ToolUse => "tool_use",
            Self::MaxTokens => "max_tokens",
            Self::StopSequence => "stop_sequence",
            Self::PauseTurn => "pause_turn",
            Self::Refusal => "refusal",
            Self::ModelContextWindowExceeded => "model_context_window_exceeded",
            Self::Unknown(word) => word,
        }
    }
}

/// Token counts. `None` is unknown, not zero. `input` holds neither of the cache counts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Usage {
    pub input: Option<u64>,
    pub output: Option<u64>,
    pub cache_read: Option<u64>,
    pub cache_write: Option<u64>,
}

impl Usage {
    fn zip(self, other: Usage, f: impl Fn(Option<u64>, Option<u64>) -> Option<u64>) -> Usage {
        Usage {
            input: f(self.input, other.input),
            output: f(self.output, other.output),
            cache_read: f(self.cache_read, other.cache_read),
            cache_write: f(self.cache_write, other.cache_write),
        }
    }

    /// Adds the counts of another request; unknown adds nothing.
    pub fn plus(self, other: Usage) -> Usage {
        self.zip(other, |a, b| match (a, b) {
            (Some(a), Some(b)) => Some(a.saturating_add(b)),
            (known, None) | (None, known) => known,
        })
    }

    /// Takes over what a later event of the same reply knows better: counts in events are running totals.
    pub fn updated(self, later: Usage) -> Usage {
        self.zip(later, |before, later| later.or(before))
    }

    /// Everything counted, for a budget.
    pub fn total(self) -> u64 {
        [self.input, self.output, self.cache_read, self.cache_write]
            .into_iter()
            .flatten()
            .sum()
    }
}
