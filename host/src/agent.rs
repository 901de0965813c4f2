//! The loop and the life of a call. Reading order: [`run`] decides, [`drive`] performs; [`schedule`] decides
//! what may overlap, [`dispatch`] carries out one call; `eager` begins one while its reply still streams;
//! [`resume`] goes on from a record.

pub mod call;
pub(crate) mod consent;
pub mod dispatch;
pub mod drive;
pub mod durable;
mod eager;
pub mod record;
pub mod report;
pub mod result;
pub mod resume;
pub mod run;
pub mod schedule;
pub mod spans;
mod standstill;
pub mod stop;

use std::sync::Arc;

pub use drive::{Left, RunError, ToolLoop};
pub use report::RunResult;

use crate::{
    agent::{
        call::CallRecord,
        consent::RunConsents,
        dispatch::{Batch, run_batch},
        eager::Early,
        record::Recorder,
        resume::CallsSoFar,
        run::PlannedCall,
        standstill::Standstill,
        stop::Stopper,
    },
    approvals::Approver,
    config::permissions::Permissions,
    event::Observer,
    registry::Registry,
    tool::ToolCall,
    transcript::{ContentBlock, ToolResult, ToolUse},
};

/// Looks at every call before it runs: `Ok(None)` allows it, `Ok(Some(reason))` denies it, and an error
/// denies it too. Where policy asks and there is no approver, the hook is who is asked.
pub type ApprovalHook = Arc<
    dyn Fn(&ToolCall) -> Result<Option<String>, Box<dyn std::error::Error + Send + Sync>>
        + Send
        + Sync,
>;

/// The hook that permits every call that no rule denies.
pub fn allow_all() -> ApprovalHook {
    Arc::new(|_| Ok(None))
}

/// What calls need besides their tools: rules, people, watchers, and bounds.
#[derive(Clone)]
pub struct Deps {
    pub permissions: Permissions,
    pub approver: Option<Arc<dyn Approver>>,
    pub before_tool: Option<ApprovalHook>,
    pub observers: Vec<Arc<dyn Observer>>,
    /// False: the calls of a turn run one after another.
    pub parallel: bool,
    /// Begin a call whose tool can change nothing as soon as it stands in the reply, while the rest still streams.
    pub eager: bool,
    /// Calls of one turn that run at once.
    pub max_parallel_tools: usize,
    /// What of one call's text reaches the model.
    pub max_result_bytes: usize,
}

/// The seed's `MAX_PARALLEL_TOOLS`.
pub const MAX_PARALLEL_TOOLS: usize = 8;

impl Default for Deps {
    fn default() -> Self {
        Self {
            permissions: Permissions::default(),
            approver: None,
            before_tool: None,
            observers: Vec::new(),
            parallel: true,
            eager: true,
            max_parallel_tools: MAX_PARALLEL_TOOLS,
            max_result_bytes: result::MAX_RESULT_BYTES,
        }
    }
}

/// Carries out every tool use in `content` without a model: one result per call, in call order.
///
/// ```
/// use agentloop_host::{
///     agent::{Deps, run_tools},
///     registry::{Registry, native::NativeTool},
///     transcript::{ContentBlock, ToolUse},
/// };
/// use serde_json::json;
///
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// let schema = json!({
///     "type": "object",
///     "properties": {"text": {"type": "string"}},
///     "required": ["text"],
///     "additionalProperties": false,
/// });
/// let echo = NativeTool::new("echo", "Return the supplied text.", schema, |arguments| {
///     arguments["text"].as_str().map(str::to_owned).ok_or("no text")
/// })?;
/// let call = ToolUse::new("call-1", "echo", json!({"text": "hello"}))?;
///
/// let results = run_tools(&[call.into()], &Registry::new([echo])?, &Deps::default()).await;
/// assert_eq!(results[0].text(), "hello");
/// assert_eq!(results[0].is_error, false);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # }).unwrap();
/// ```
pub async fn run_tools(
    content: &[ContentBlock],
    registry: &Registry,
    deps: &Deps,
) -> Vec<ToolResult> {
    let records = run_calls(content, registry, deps).await;
    records
        .into_iter()
        .map(|record| record.traced.result)
        .collect()
}

/// As [`run_tools`], with the whole record of each call.
pub async fn run_calls(
    content: &[ContentBlock],
    registry: &Registry,
    deps: &Deps,
) -> Vec<CallRecord> {
    let calls: Vec<PlannedCall> = content
        .iter()
        .filter_map(ContentBlock::as_tool_use)
        .map(|tool_use| PlannedCall {
            tool_use: tool_use.clone(),
            refused: None,
            warning: None,
        })
        .collect();
    let (stopper, signal) = Stopper::new();
    let batch = Batch {
        registry,
        deps,
        consents: &RunConsents::new(deps.approver.clone(), stopper),
        recorder: &Arc::new(Recorder::new(Vec::new(), &deps.observers)),
        stop: &signal,
        early: &Early::default(),
        so_far: &CallsSoFar::default(),
        standstill: &Standstill::of(calls.len()),
        taint: None,
    };
    match run_batch(&batch, &calls).await {
        Ok(records) => records,
        Err(error) => unreachable!("there is no journal that could fail: {error}"),
    }
}

/// Carries out one call for a caller of its own, who may be asked and who may watch; `deps` gives the rules.
/// Dropping the future ends the call, and its guest with it.
pub async fn run_call(
    tool_use: &ToolUse,
    registry: &Registry,
    deps: &Deps,
    approver: Option<Arc<dyn Approver>>,
    observers: &[Arc<dyn Observer>],
) -> CallRecord {
    let call = PlannedCall {
        tool_use: tool_use.clone(),
        refused: None,
        warning: None,
    };
    let (stopper, signal) = Stopper::new();
    let batch = Batch {
        registry,
        deps,
        consents: &RunConsents::new(approver, stopper),
        recorder: &Arc::new(Recorder::new(Vec::new(), observers)),
        stop: &signal,
        early: &Early::default(),
        so_far: &CallsSoFar::default(),
        standstill: &Standstill::of(1),
        taint: None,
    };
    match run_batch(&batch, std::slice::from_ref(&call))
        .await
        .map(|mut records| records.pop())
    {
        Ok(Some(record)) => record,
        Ok(None) => unreachable!("a batch has one record per call"),
        Err(error) => unreachable!("there is no journal that could fail: {error}"),
    }
}
