//! The life of one call, from the model's wish to its one result; [`carry_out`] is the whole of it.

use std::{borrow::Cow, panic::AssertUnwindSafe, sync::Arc, time::Duration};

use futures_util::{FutureExt as _, future::join_all};
use tokio::sync::{Semaphore, watch};
use tracing::Instrument as _;

use crate::{
    agent::{
        Deps,
        call::CallRecord,
        consent::RunConsents,
        eager::Early,
        record::{NotRecorded, Recorder},
        result::{nearest, outcome_word, tool_result_within},
        resume::CallsSoFar,
        run::PlannedCall,
        schedule::{Footprint, predecessors},
        spans,
        standstill::Standstill,
        stop::StopSignal,
    },
    approvals::ApprovalRequest,
    capability::{Access, Reach},
    event::{LogLevel, RunEvent},
    ids::{ToolName, ToolUseId},
    policy::{self, Authorized, Consent, Decision, Pending},
    registry::{Registry, Slot, Tool},
    sandbox::{Executor, GuestListener},
    tool::{Content, ResourceBody, ToolCall, ToolOutcome},
    transcript::{ToolInput, ToolUse},
};

/// How many names an unknown tool's result lists.
const MAX_NAMES_LISTED: usize = 20;

/// What the calls of a turn have in common.
pub(crate) struct Batch<'a> {
    pub(crate) registry: &'a Registry,
    pub(crate) deps: &'a Deps,
    pub(crate) consents: &'a RunConsents,
    pub(crate) recorder: &'a Arc<Recorder>,
    pub(crate) stop: &'a StopSignal,
    /// What was begun while the reply streamed.
    pub(crate) early: &'a Early,
    /// What an earlier host has recorded of these calls.
    pub(crate) so_far: &'a CallsSoFar,
    pub(crate) standstill: &'a Standstill,
    /// The tool that has brought content from outside into the run.
    pub(crate) taint: Option<&'a str>,
}

/// Carries out the calls of one turn. One record per call, in call order, whatever happened; only when the
/// record of the run can't be written there is no result at all.
pub(crate) async fn run_batch(
    batch: &Batch<'_>,
    calls: &[PlannedCall],
) -> Result<Vec<CallRecord>, NotRecorded> {
    let slots = Semaphore::new(batch.deps.max_parallel_tools.max(1));
    // Most turns ask for one call, and there is nothing to put in order.
    if let [call] = calls {
        let turn = Turn {
            after: Vec::new(),
            slots: &slots,
            executor: Executor::CallerFirst,
        };
        return Ok(vec![settle(batch, call, turn).await?]);
    }
    let footprints: Vec<Option<Footprint<'_>>> = calls
        .iter()
        .map(|call| {
            let tool = batch
                .registry
                .get(&call.tool_use.name)
                .filter(|_| call.refused.is_none())?;
            Some(Footprint {
                reach: tool.reach.as_ref(),
                parallel_safe: tool.definition.parallel_safe,
            })
        })
        .collect();
    let predecessors = predecessors(&footprints, batch.deps.parallel);
    // Ends when its sender is dropped, in whichever way its call ended.
    let (done, ended): (Vec<_>, Vec<_>) = calls.iter().map(|_| watch::channel(())).unzip();

    let running = calls
        .iter()
        .zip(predecessors)
        .zip(done)
        .map(|((call, predecessors), done)| {
            let turn = Turn {
                after: predecessors
                    .into_iter()
                    .map(|earlier| ended[earlier].clone())
                    .collect(),
                slots: &slots,
                executor: Executor::Guests,
            };
            async move {
                let record = settle(batch, call, turn).await;
                drop(done);
                record
            }
        });
    join_all(running).await.into_iter().collect()
}

/// What a call has to wait for before it may start.
struct Turn<'a> {
    after: Vec<watch::Receiver<()>>,
    slots: &'a Semaphore,
    executor: Executor,
}

/// Brings a call to its one ending: the first of its own, a stop of the run, and a fault of ours.
async fn settle(
    batch: &Batch<'_>,
    call: &PlannedCall,
    turn: Turn<'_>,
) -> Result<CallRecord, NotRecorded> {
    let tool_use = &call.tool_use;
    let ended = match &call.refused {
        Some(outcome) => Ok(outcome.clone().into()),
        None => {
            let own = AssertUnwindSafe(carry_out(batch, tool_use, turn)).catch_unwind();
            tokio::select! {
                biased;
                ended = own => ended.unwrap_or_else(|_| {
                    Ok(ToolOutcome::Internal { why: "this host has a fault; its log has the details".into() }.into())
                }),
                by = batch.stop.stopped() => Ok(ToolOutcome::Cancelled { by }.into()),
            }
        }
    };
    let Ended {
        outcome,
        ran,
        fuel_used,
    } = ended?;
    let is_heard = batch.recorder.is_heard();
    if is_heard && let Some(whole) = cut_text(&outcome, batch.deps.max_result_bytes) {
        batch
            .recorder
            .record(&RunEvent::OutputCut {
                id: tool_use.id.clone(),
                whole,
            })
            .await?;
    }
    let result = tool_result_within(
        &tool_use.id,
        &tool_use.name,
        &outcome,
        batch.deps.max_result_bytes,
    );
    if is_heard {
        batch
            .recorder
            .record(&RunEvent::CallEnded {
                id: tool_use.id.clone(),
                tool: tool_use.name.clone(),
                outcome: outcome_word(&outcome).into(),
                ran_ms: ran,
                fuel_used,
                result: result.clone(),
            })
            .await?;
    }
    batch.standstill.call_ended();
    let mut record = CallRecord::new(tool_use, outcome, result, ran);
    record.traced.fuel_used = fuel_used;
    Ok(record)
}

/// One call, one step per line; each step that does not succeed is the call's ending.
async fn carry_out(
    batch: &Batch<'_>,
    tool_use: &ToolUse,
    turn: Turn<'_>,
) -> Result<Ended, NotRecorded> {
    let input = match &tool_use.input {
        ToolInput::Object(input) => input.clone(),
        ToolInput::Malformed { malformed, why } => {
            return ended(ToolOutcome::MalformedArguments {
                why: why.clone(),
                received: malformed.clone(),
            });
        }
    };
    let Some(tool) = batch.registry.get(&tool_use.name) else {
        return ended(unknown_tool(batch.registry, &tool_use.name));
    };
    let input = match tool.check_arguments(input) {
        Ok(input) => input,
        Err(faults) => return ended(ToolOutcome::InvalidArguments { faults }),
    };
    let call = ToolCall {
        id: tool_use.id.clone(),
        tool: tool.name.clone(),
        input,
    };
    let authorized = match authorise(batch, tool, call).await? {
        Ok(authorized) => authorized,
        Err(outcome) => return ended(outcome),
    };
    let early = batch.early.take(&tool_use.name, &tool_use.input);
    let place = match early {
        // It has a place of its own, and waits for no other.
        Some(_) => None,
        None => Some(wait_for_turn(batch, tool, &tool_use.id, turn.after, turn.slots).await?),
    };
    batch
        .recorder
        .record(&RunEvent::CallStarted {
            id: tool_use.id.clone(),
            tool: tool.name.clone(),
        })
        .await?;
    let listener = Arc::new(Listener {
        id: tool_use.id.clone(),
        recorder: Arc::clone(batch.recorder),
    });
    let span = spans::execute_tool(&tool.name, &tool_use.id);
    let running = async {
        match (early, place) {
            (Some(begun), _) => begun.ending(listener).await,
            (None, Some((_permit, slot))) => {
                tool.run(slot, authorized, turn.executor, listener).await
            }
            (None, None) => unreachable!("a call that was not begun has waited for its place"),
        }
    };
    let ending = running.instrument(span.clone()).await;
    let outcome = checked_output(tool, ending.outcome);
    if !matches!(outcome, ToolOutcome::Answered(_)) {
        span.record("error.type", outcome_word(&outcome));
    }
    Ok(Ended {
        outcome,
        ran: Some(ending.ran),
        fuel_used: ending.fuel_used,
    })
}

struct Ended {
    outcome: ToolOutcome,
    ran: Option<Duration>,
    fuel_used: Option<u64>,
}

impl From<ToolOutcome> for Ended {
    fn from(outcome: ToolOutcome) -> Self {
        Self {
            outcome,
            ran: None,
            fuel_used: None,
        }
    }
}

fn ended(outcome: ToolOutcome) -> Result<Ended, NotRecorded> {
    Ok(outcome.into())
}

fn unknown_tool(registry: &Registry, name: &str) -> ToolOutcome {
    let available = nearest(name, &registry.names(), MAX_NAMES_LISTED);
    ToolOutcome::UnknownTool {
        name: name.to_owned(),
        available,
    }
}

/// Policy, then the person where policy asks, then the embedder's hook.
async fn authorise(
    batch: &Batch<'_>,
    tool: &Tool,
    call: ToolCall,
) -> Result<Result<Authorized, ToolOutcome>, NotRecorded> {
    let hook = batch.deps.before_tool.as_ref();
    let authorized = match policy::decide(
        &batch.deps.permissions,
        &tool.rule_name,
        tool.reach.as_ref(),
        call,
        batch.taint,
    ) {
        Decision::Deny { reason } => return Ok(Err(ToolOutcome::Denied { reason })),
        Decision::Allow(authorized) => authorized,
        // An embedder that gave a hook and no approver decides with the hook.
        Decision::Ask(pending) if batch.deps.approver.is_none() && hook.is_some() => {
            pending.allowed(Consent::given_by_person())
        }
        Decision::Ask(pending) => match ask(batch, tool, pending).await? {
            Ok(authorized) => authorized,
            Err(outcome) => return Ok(Err(outcome)),
        },
    };
    let Some(hook) = hook else {
        return Ok(Ok(authorized));
    };
    Ok(
        match std::panic::catch_unwind(AssertUnwindSafe(|| hook(authorized.call()))) {
            Ok(Ok(None)) => Ok(authorized),
            Ok(Ok(Some(reason))) => Err(ToolOutcome::Denied { reason }),
            Ok(Err(why)) => Err(ToolOutcome::ApprovalFailed {
                why: why.to_string(),
            }),
            Err(_) => Err(ToolOutcome::ApprovalFailed {
                why: "it panicked".into(),
            }),
        },
    )
}

async fn ask(
    batch: &Batch<'_>,
    tool: &Tool,
    pending: Pending,
) -> Result<Result<Authorized, ToolOutcome>, NotRecorded> {
    let request = ApprovalRequest {
        call: pending.call().clone(),
        rule_name: tool.rule_name.clone(),
        digest: tool.digest(),
        may_touch: tool.reach.as_ref().map(may_touch).unwrap_or_default(),
        why: pending.why.clone(),
    };
    let id = request.call.id.clone();
    // One that an earlier host has asked is still the same question.
    if !batch.so_far.of(&id).is_some_and(|call| call.asked) {
        batch
            .recorder
            .record(&RunEvent::ApprovalRequested {
                id: id.clone(),
                tool: tool.name.clone(),
                why: request.why.clone(),
            })
            .await?;
    }
    let answered = {
        let _waits = batch.standstill.waits();
        batch.consents.ask(&request).await
    };
    let allowed = answered.verdict.is_ok();
    batch
        .recorder
        .record(&RunEvent::ApprovalAnswered {
            id,
            allowed,
            reason: answered.reason,
        })
        .await?;
    Ok(answered.verdict.map(|consent| pending.allowed(consent)))
}

/// What a tool can touch, a line each, for the person who is asked.
pub(crate) fn may_touch(reach: &Reach) -> Vec<String> {
    let Reach {
        folders,
        http,
        environment,
        ..
    } = reach;
    let folders = folders.iter().map(|folder| {
        let verb = match folder.access {
            Access::Read => "read",
            Access::Write => "read and write",
        };
        format!(
            "{verb} {} (as {})",
            folder.host_path.display(),
            folder.guest_path
        )
    });
    let http = http.iter().map(|grant| {
        let methods = if grant.methods.is_empty() {
            "GET, HEAD".to_owned()
        } else {
            grant.methods.join(", ")
        };
        format!("{methods} {}", grant.origin)
    });
    let environment = environment
        .iter()
        .map(|grant| format!("read the environment variable {}", grant.name));
    let outside = reach
        .is_outside()
        .then(|| "do whatever its MCP server can: that runs outside the sandbox".to_owned());
    folders
        .chain(http)
        .chain(environment)
        .chain(outside)
        .collect()
}

/// Waits for earlier calls that touch the same, for one of the batch's places, and for one among the guests.
async fn wait_for_turn<'a>(
    batch: &Batch<'_>,
    tool: &Tool,
    id: &ToolUseId,
    after: Vec<watch::Receiver<()>>,
    slots: &'a Semaphore,
) -> Result<(Option<tokio::sync::SemaphorePermit<'a>>, Slot), NotRecorded> {
    let wait = async {
        {
            let _waits = batch.standstill.waits();
            for mut earlier in after {
                while earlier.changed().await.is_ok() {}
            }
        }
        // The semaphore is never closed; without a permit the call would only lose its place in line.
        let permit = slots.acquire().await.ok();
        (permit, tool.slot().await)
    };
    tokio::pin!(wait);
    if let Some(ready) = wait.as_mut().now_or_never() {
        return Ok(ready);
    }
    batch
        .recorder
        .record(&RunEvent::CallQueued { id: id.clone() })
        .await?;
    Ok(wait.await)
}

/// Holds a tool to its own output schema.
fn checked_output(tool: &Tool, outcome: ToolOutcome) -> ToolOutcome {
    let ToolOutcome::Answered(content) = &outcome else {
        return outcome;
    };
    let faults = content.iter().find_map(|block| match block {
        Content::Json(value) => tool.check_output(value).err(),
        Content::Text(_)
        | Content::Image { .. }
        | Content::Audio { .. }
        | Content::Resource { .. } => None,
    });
    match faults {
        Some(faults) => ToolOutcome::BadOutput {
            why: format!(
                "its output does not fit its own output schema: {}",
                faults.join("; ")
            ),
        },
        None => outcome,
    }
}

/// The whole text of an answer of which the model gets only a part.
fn cut_text(outcome: &ToolOutcome, max_result_bytes: usize) -> Option<String> {
    let ToolOutcome::Answered(content) = outcome else {
        return None;
    };
    let texts: Vec<Cow<'_, str>> = content
        .iter()
        .filter_map(|block| match block {
            Content::Text(text)
            | Content::Resource {
                body: ResourceBody::Text(text),
                ..
            } => Some(text.into()),
            Content::Json(value) => Some(value.to_string().into()),
            Content::Image { .. } | Content::Audio { .. } | Content::Resource { .. } => None,
        })
        .collect();
    let n_bytes: usize = texts.iter().map(|text| text.len()).sum();
    (n_bytes > max_result_bytes).then(|| texts.join("\n"))
}

/// Passes on what a guest says while it runs.
struct Listener {
    id: ToolUseId,
    recorder: Arc<Recorder>,
}

impl GuestListener for Listener {
    fn logged(&self, level: LogLevel, text: String) {
        self.recorder.pass(&RunEvent::CallLogged {
            id: self.id.clone(),
            level,
            text,
        });
    }

    fn progressed(&self, done: f64, total: Option<f64>, message: Option<String>) {
        self.recorder.pass(&RunEvent::CallProgressed {
            id: self.id.clone(),
            done,
            total,
            message,
        });
    }
}

/// The names that rules, traces and messages use for a tool.
impl std::fmt::Debug for Tool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let name: &ToolName = &self.name;
        f.debug_struct("Tool")
            .field("name", name)
            .field("rule_name", &self.rule_name)
            .finish_non_exhaustive()
    }
}
