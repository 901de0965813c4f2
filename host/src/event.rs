//! What happens in a run, in one vocabulary. The agent emits, everybody else observes: command line, trace, log,
//! storage and the event stream. A run's state follows from its events; see [`crate::agent::resume`].

use std::{borrow::Cow, time::Duration};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::{
    ids::{ToolName, ToolUseId},
    transcript::{ContentBlock, StopReason, ToolResult, Usage},
};

/// The version of an event written as a line of JSON; it changes when a reader would have to.
pub const LINE_VERSION: u32 = 1;

/// One thing that happened. Kinds are past tense, and their names outlive the code.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum RunEvent {
    RunStarted {
        model: String,
        tools: Vec<ToolName>,
    },
    /// `turn` counts from 0, as the trace does.
    TurnStarted {
        turn: u32,
    },
    TextStreamed {
        text: String,
    },
    ReasoningStreamed {
        text: String,
    },
    /// The reply began a `tool_use` block; the call itself follows when the reply is whole.
    ToolUseStreamed {
        name: String,
    },
    ModelRetried {
        attempt: u32,
        wait_ms: u64,
        error: String,
    },
    TurnEnded {
        turn: u32,
        stop_reason: StopReason,
        /// More about the stop in the endpoint's words.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        stop_details: Option<String>,
        usage: Usage,
        /// The whole reply, with the ids that its calls have from now on.
        content: Vec<ContentBlock>,
    },
    /// The reply asked for this call.
    CallRequested {
        id: ToolUseId,
        tool: String,
        input: Map<String, Value>,
    },
    /// A person is asked.
    ApprovalRequested {
        id: ToolUseId,
        tool: ToolName,
        why: String,
    },
    ApprovalAnswered {
        id: ToolUseId,
        allowed: bool,
        reason: Option<String>,
    },
    /// It waits for a slot or for an earlier call that touches the same.
    CallQueued {
        id: ToolUseId,
    },
    /// Recorded before the guest's first instruction.
    CallStarted {
        id: ToolUseId,
        tool: ToolName,
    },
    CallProgressed {
        id: ToolUseId,
        done: f64,
        total: Option<f64>,
        message: Option<String>,
    },
    /// A line that the tool logged or printed: the guest's words, bounded.
    CallLogged {
        id: ToolUseId,
        level: LogLevel,
        text: String,
    },
    CallEnded {
        id: ToolUseId,
        tool: String,
        /// One word for how it ended, such as `ok`, `timeout` or `denied`.
        outcome: Cow<'static, str>,
        /// Guest time; absent when the guest never started.
        #[serde(serialize_with = "millis", deserialize_with = "from_millis")]
        #[schemars(with = "Option<f64>")]
        ran_ms: Option<Duration>,
        /// Of a call with a budget of fuel; the same for the same input.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        fuel_used: Option<u64>,
        result: ToolResult,
    },
    /// The call's text was longer than the model can be sent; here is the whole.
    OutputCut {
        id: ToolUseId,
        whole: String,
    },
    /// Something about the run that a person should know; a complete sentence.
    Noted {
        text: String,
    },
    RunEnded {
        status: Cow<'static, str>,
        text: String,
        usage: Usage,
    },
    /// The user says more, and the run goes on.
    RunContinued {
        text: String,
    },
}

#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum LogLevel {
    Debug,
    Info,
    Warn,
    Error,
}

#[expect(clippy::ref_option, reason = "serde hands the field over by reference")]
fn millis<S: serde::Serializer>(duration: &Option<Duration>, to: S) -> Result<S::Ok, S::Error> {
    duration.map(|d| d.as_secs_f64() * 1e3).serialize(to)
}

fn from_millis<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Option<Duration>, D::Error> {
    let millis = Option::<f64>::deserialize(from)?;
    Ok(millis.and_then(|millis| Duration::try_from_secs_f64(millis / 1e3).ok()))
}

/// Sees every event of a run, in order. It is called from the run's own task, so it should not block; if it
/// panics the run goes on without it.
pub trait Observer: Send + Sync {
    fn observe(&self, event: &RunEvent);
}

impl<F: Fn(&RunEvent) + Send + Sync> Observer for F {
    fn observe(&self, event: &RunEvent) {
        self(event);
    }
}
