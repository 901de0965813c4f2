//! Asking a person about a call. Policy says when; this says how.

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use crate::{ids::ComponentDigest, tool::ToolCall};

/// What a person is asked.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ApprovalRequest {
    pub call: ToolCall,
    /// `plugin.tool`, as permission rules name it.
    pub rule_name: String,
    /// The component that would run; none for a tool of the embedding program.
    pub digest: Option<ComponentDigest>,
    /// What the call may touch, a line each.
    pub may_touch: Vec<String>,
    /// Why it is asked: the rule or the mode that says so.
    pub why: String,
}

/// What a person answered.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    Once,
    /// Also every later call of this tool in this run.
    ForThisRun,
    /// Also in later runs: the answering side writes the rule, and it holds in this run as well.
    Always,
    /// The reason reaches the model.
    Deny {
        reason: Option<String>,
    },
    /// Deny, and stop the run.
    Stop,
}

/// An approver could not give an answer. The call is refused with this text.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct ApproverFailed(pub String);

/// Asks somebody. Several calls of a turn may ask at once; answers may come in any order.
#[async_trait]
pub trait Approver: Send + Sync {
    async fn approve(&self, request: &ApprovalRequest) -> Result<Answer, ApproverFailed>;
}

/// Writes the rule of an "always" answer down; the text says where it went, or why it could not.
pub type Remember =
    std::sync::Arc<dyn Fn(&ApprovalRequest) -> Result<String, String> + Send + Sync>;
