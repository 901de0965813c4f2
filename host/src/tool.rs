//! A tool as the model sees it, a call, and the closed set of ways in which a call can end.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::{
    capability::{Capability, Request},
    ids::{ToolName, ToolUseId},
};

/// What is known of a tool before it runs. All texts and hints are the tool's own claims.
#[derive(Debug, Clone, PartialEq)]
pub struct ToolDefinition {
    pub name: ToolName,
    pub title: Option<String>,
    pub description: String,
    /// JSON Schema of the arguments, as declared; [`crate::registry`] prepares what a model is shown.
    pub input_schema: Value,
    pub output_schema: Option<Value>,
    pub annotations: Annotations,
    pub parallel_safe: bool,
    /// The tool's own wish; the operator's limit wins where it is shorter.
    pub timeout: Option<Duration>,
    pub requests: Vec<Request>,
}

impl ToolDefinition {
    /// A tool without hints, requests or an own timeout.
    pub fn new(name: ToolName, description: impl Into<String>, input_schema: Value) -> Self {
        Self {
            name,
            title: None,
            description: description.into(),
            input_schema,
            output_schema: None,
            annotations: Annotations::default(),
            parallel_safe: true,
            timeout: None,
            requests: Vec::new(),
        }
    }
}

/// Hints in MCP's words, with MCP's defaults. They never loosen a rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Annotations {
    pub read_only: bool,
    pub destructive: bool,
    pub idempotent: bool,
    pub open_world: bool,
}

impl Default for Annotations {
    fn default() -> Self {
        Self {
            read_only: false,
            destructive: true,
            idempotent: false,
            open_world: true,
        }
    }
}

/// A call that can be carried out: the tool exists and the arguments fit its schema.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ToolCall {
    pub id: ToolUseId,
    pub tool: ToolName,
    /// After coercion: what the approver sees is what the tool gets.
    pub input: Map<String, Value>,
}

/// One piece of a tool's answer, as the tool gave it.
#[derive(Debug, Clone, PartialEq)]
pub enum Content {
    Text(String),
    Image {
        media_type: String,
        data: Vec<u8>,
    },
    Audio {
        media_type: String,
        data: Vec<u8>,
    },
    Resource {
        uri: String,
        media_type: Option<String>,
        body: ResourceBody,
    },
    /// Structured output.
    Json(Value),
}

#[derive(Debug, Clone, PartialEq)]
pub enum ResourceBody {
    Text(String),
    Bytes(Vec<u8>),
}

/// How a call ended. Everything that can happen to a call is one of these, and [`crate::agent`] makes the
/// one result of each.
#[derive(Debug, Clone, PartialEq)]
pub enum ToolOutcome {
    /// The tool answered.
    Answered(Vec<Content>),
    /// The arguments are not a JSON object.
    MalformedArguments {
        why: String,
        received: String,
    },
    /// `available` has the closest names first and is bounded.
    UnknownTool {
        name: String,
        available: Vec<ToolName>,
    },
    /// The arguments do not fit the schema, or the tool itself called them wrong. One entry per fault,
    /// `PATH: WANTED, got VALUE`.
    InvalidArguments {
        faults: Vec<String>,
    },
    /// By a rule, by a person or by the hook.
    Denied {
        reason: String,
    },
    /// A hook or an approver failed. Never an approval.
    ApprovalFailed {
        why: String,
    },
    /// The tool returned an error.
    Failed {
        message: String,
    },
    /// The tool needed something that is not granted, and gave up.
    CapabilityRefused {
        message: String,
        refusals: Vec<Refusal>,
    },
    /// A trap or panic; `message` is the panic's text where there is one.
    Trapped {
        message: String,
    },
    TimedOut {
        after: Duration,
        effects: Effects,
    },
    /// As `TimedOut`, for a closure of the embedding program: nothing can stop that, so it may go on.
    Abandoned {
        after: Duration,
    },
    OutOfFuel {
        budget: u64,
    },
    OutOfMemory {
        limit_bytes: usize,
    },
    OutputTooLarge {
        limit_bytes: usize,
    },
    /// The tool broke the contract: output that is not what its types or its output schema say.
    BadOutput {
        why: String,
    },
    Cancelled {
        by: Canceller,
    },
    /// The call ran when its host died. It may or may not have had its effects.
    OutcomeUnknown,
    /// A fault of ours. The text is for the log as well.
    Internal {
        why: String,
    },
}

/// Who ended a call that had not ended by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Canceller {
    User,
    /// The run's own limit, of time for example.
    RunLimit,
}

/// A capability that the tool reached for and did not have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// What exactly was tried, such as `GET https://api.example.org/v1`.
    pub attempted: String,
    /// The capability that would have allowed it.
    pub missing: Capability,
    /// False: the component does not even ask for it, so no grant of the operator's can help.
    pub requested: bool,
    /// The exact thing an operator can do; complete sentence.
    pub remedy: String,
}

/// What a call that was stopped may have done to the outside by then.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effects {
    /// It could reach nothing that it could change.
    None,
    /// These requests had left, in order and bounded; it could change nothing else.
    Sent(Vec<String>),
    /// It could write to these guest folders, and what it did there is not known; the requests had left.
    Unknown {
        folders: Vec<String>,
        sent: Vec<String>,
    },
}
