//! Model endpoints. Vendor JSON stops here: what passes through this trait is the neutral transcript.

mod anthropic;
mod exchange;
#[doc(hidden)]
pub mod fuzzing;
#[cfg(test)]
mod heard;
mod openai;
mod pieces;
mod replay;
mod retry;
mod scripted;
mod secret;
mod sse;

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;

use crate::{
    ids::{ToolName, ToolUseId},
    transcript::{ContentBlock, Message, StopReason, ToolInput, Usage},
};

pub use anthropic::{Anthropic, AnthropicSettings, KeyHeader};
pub use exchange::Timeouts;
pub use openai::{MaxTokensField, OpenAi, OpenAiSettings};
pub use retry::Retries;
pub use scripted::{Asked, ScriptError, Scripted};
pub use secret::Secret;

/// A model endpoint.
#[async_trait]
pub trait Provider: Send + Sync {
    /// A stable word such as `anthropic`; seals carry it.
    fn name(&self) -> &str;

    /// Asks the model once. What arrives is told to `watch` as it comes; the reply counts only when this
    /// returns `Ok`. Retries are inside: an attempt is repeated only while nothing of it was shown.
    /// Dropping the future ends the request.
    async fn ask(
        &self,
        request: &ModelRequest<'_>,
        watch: &mut dyn Watch,
    ) -> Result<ModelReply, ProviderError>;
}

/// One request, independent of the wire.
#[derive(Debug, Clone, Copy)]
pub struct ModelRequest<'a> {
    pub model: &'a str,
    pub system: Option<&'a str>,
    pub messages: &'a [Message],
    /// Byte-stable between the turns of a run, since prompt caches depend on it.
    pub tools: &'a [ToolSchema],
    pub max_tokens: u32,
}

/// A tool as a model is shown it.
#[derive(Debug, Clone, PartialEq)]
pub struct ToolSchema {
    pub name: ToolName,
    pub description: Arc<str>,
    /// An object schema without `oneOf`, `anyOf` or `allOf` at its root.
    pub input_schema: Arc<serde_json::Value>,
}

/// A complete reply.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelReply {
    /// Whole and in order. The ids of tool uses are what [`crate::agent::run`] makes unique.
    pub content: Vec<ContentBlock>,
    pub stop_reason: StopReason,
    /// More about the stop in the endpoint's words, bounded: why it refused.
    pub stop_details: Option<String>,
    pub usage: Usage,
    /// What the endpoint says of itself; for logs.
    pub request_id: Option<String>,
}

/// Hears of a reply while it streams.
pub trait Watch: Send {
    fn delta(&mut self, delta: Delta<'_>);
    /// A call stands whole in the reply, which still streams. It counts only once the reply has ended well.
    fn tool_use(&mut self, _name: &str, _input: &ToolInput) {}
    /// An attempt failed and is about to be repeated.
    fn retrying(&mut self, attempt: u32, wait: Duration, error: &ProviderError);
}

/// Hears nothing.
impl Watch for () {
    fn delta(&mut self, _: Delta<'_>) {}
    fn retrying(&mut self, _: u32, _: Duration, _: &ProviderError) {}
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Delta<'a> {
    Text(&'a str),
    Reasoning(&'a str),
    /// A `tool_use` block began.
    ToolUse {
        name: &'a str,
    },
}

/// Why a model could not be asked, or its reply not be used.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("{}", self.sentence())]
pub struct ProviderError {
    pub kind: ProviderErrorKind,
    pub phase: Phase,
    /// Where the request went, without credentials.
    pub endpoint: String,
    /// What happened, in the endpoint's or the client's words, bounded.
    pub message: String,
    /// What the person can do about it, where we know.
    pub hint: Option<String>,
    pub attempts: u32,
    pub status: Option<u16>,
    pub request_id: Option<String>,
    /// What the endpoint asked us to wait before the next attempt.
    pub retry_after: Option<Duration>,
    /// Tokens counted before the stream of this attempt broke off; partial. Those of earlier attempts were
    /// told to [`Watch::retrying`].
    pub usage: Usage,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProviderErrorKind {
    /// No key, or the endpoint refuses it (401, 403).
    Auth,
    /// The endpoint refuses the request as it is (400, 404, 413, 422).
    Request,
    /// The conversation does not fit the model's context.
    ContextTooLong,
    /// 429 and 529.
    Overloaded,
    /// 408, 409 and 5xx.
    Server,
    /// No connection, a reset, a time-out.
    Network,
    /// The certificate is not trusted.
    Certificate,
    /// The reply makes no sense, or the stream ended without its closing event.
    Protocol,
    /// A scripted model has nothing left to say, or was asked something else than the script expects.
    Script,
}

impl ProviderErrorKind {
    /// A stable word for traces.
    pub fn word(self) -> &'static str {
        match self {
            Self::Auth => "auth",
            Self::Request => "request",
            Self::ContextTooLong => "context_too_long",
            Self::Overloaded => "overloaded",
            Self::Server => "server",
            Self::Network => "network",
            Self::Certificate => "certificate",
            Self::Protocol => "protocol",
            Self::Script => "script",
        }
    }

    pub fn is_retryable(self) -> bool {
        match self {
            Self::Overloaded | Self::Server | Self::Network | Self::Protocol => true,
            Self::Auth
            | Self::Request
            | Self::ContextTooLong
            | Self::Certificate
            | Self::Script => false,
        }
    }
}

/// How far an attempt came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// Nothing left this machine.
    Connecting,
    /// The request was sent; no answer yet.
    Waiting,
    /// The answer had begun.
    Reading,
}

/// The id of a call as it came, or one of our own with the original beside it where that is none.
/// `turn` is how many messages stood before the reply, `n` how many calls before this one.
fn tool_use_id(sent: Option<&str>, turn: usize, n: usize) -> (ToolUseId, Option<String>) {
    /// What is kept of an id that is not one.
    const MAX_KEPT_CHARS: usize = 256;
    if let Some(Ok(id)) = sent.map(ToolUseId::parse) {
        return (id, None);
    }
    let kept = sent.map(|sent| sent.chars().take(MAX_KEPT_CHARS).collect());
    (ToolUseId::minted(turn, n), kept)
}

impl ProviderError {
    fn sentence(&self) -> String {
        use std::fmt::Write as _;
        let did = match self.phase {
            Phase::Connecting => "could not be reached",
            Phase::Waiting => "did not answer as it should",
            Phase::Reading => "broke off its answer",
        };
        let mut text = format!("{} {did}: {}", self.endpoint, self.message);
        if let Some(status) = self.status {
            let _ = write!(text, " (status {status})");
        }
        if let Some(id) = &self.request_id {
            let _ = write!(text, " (request {id})");
        }
        if self.attempts > 1 {
            let _ = write!(text, " after {} attempts", self.attempts);
        }
        if let Some(hint) = &self.hint {
            let _ = write!(text, "; {hint}");
        }
        text
    }
}
