//! The record of one call.

use std::{borrow::Cow, time::Duration};

use serde::Serialize;
use serde_json::{Map, Value};

use crate::{
    agent::result::outcome_word,
    tool::ToolOutcome,
    transcript::{ToolInput, ToolResult, ToolUse},
};

/// A call that was carried out, and how it ended.
#[derive(Debug, Clone, PartialEq)]
pub struct CallRecord {
    pub traced: TracedCall,
    pub outcome: ToolOutcome,
}

/// What is kept of a call: what traces hold and what the history's result is made of.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TracedCall {
    /// As the model wrote it.
    pub tool: String,
    /// What the model sent; an empty object where it was malformed.
    pub input: Map<String, Value>,
    /// [`outcome_word`] of how it ended.
    pub outcome: Cow<'static, str>,
    pub result: ToolResult,
    /// Guest time; `None` when nothing of the tool ran.
    #[serde(serialize_with = "seconds")]
    pub ran: Option<Duration>,
    /// Of a call with a budget of fuel.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fuel_used: Option<u64>,
}

impl TracedCall {
    pub(crate) fn new(
        tool_use: &ToolUse,
        outcome: impl Into<Cow<'static, str>>,
        result: ToolResult,
        ran: Option<Duration>,
    ) -> Self {
        let input = match &tool_use.input {
            ToolInput::Object(map) => map.clone(),
            ToolInput::Malformed { .. } => Map::new(),
        };
        Self {
            tool: tool_use.name.clone(),
            input,
            outcome: outcome.into(),
            result,
            ran,
            fuel_used: None,
        }
    }
}

impl CallRecord {
    pub(crate) fn new(
        tool_use: &ToolUse,
        outcome: ToolOutcome,
        result: ToolResult,
        ran: Option<Duration>,
    ) -> Self {
        let traced = TracedCall::new(tool_use, outcome_word(&outcome), result, ran);
        Self { traced, outcome }
    }
}

#[expect(clippy::ref_option, reason = "serde hands the field over by reference")]
fn seconds<S: serde::Serializer>(ran: &Option<Duration>, to: S) -> Result<S::Ok, S::Error> {
    ran.map(|d| d.as_secs_f64()).serialize(to)
}
