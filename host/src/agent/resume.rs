//! A run's state from its record: [`Run`] is told again what its events say. Where the record breaks off, the run
//! goes on.

use std::collections::HashMap;

use crate::{
    agent::{
        call::TracedCall,
        run::{Next, Run, RunLimits},
    },
    event::RunEvent,
    ids::ToolUseId,
    provider::ModelReply,
    transcript::{Message, repair},
};

/// A run, and how far the calls of its last turn have come.
#[derive(Debug)]
pub struct Resumed {
    pub(crate) run: Run,
    pub(crate) calls: CallsSoFar,
    /// What had to be mended in the messages it began with.
    pub(crate) repairs: Vec<repair::Repair>,
    pub(crate) is_begun: bool,
}

/// What the record says of the calls of one turn.
#[derive(Debug, Default)]
pub(crate) struct CallsSoFar(HashMap<ToolUseId, CallSoFar>);

#[derive(Debug, Default)]
pub(crate) struct CallSoFar {
    pub(crate) asked: bool,
    pub(crate) started: bool,
    ended: Option<Ended>,
}

#[derive(Debug)]
struct Ended {
    outcome: std::borrow::Cow<'static, str>,
    result: crate::transcript::ToolResult,
    ran: Option<std::time::Duration>,
    fuel_used: Option<u64>,
}

impl CallsSoFar {
    pub(crate) fn of(&self, id: &ToolUseId) -> Option<&CallSoFar> {
        self.0.get(id)
    }

    fn entry(&mut self, id: &ToolUseId) -> &mut CallSoFar {
        self.0.entry(id.clone()).or_default()
    }
}

impl CallSoFar {
    /// How it ended, if it has.
    pub(crate) fn traced(&self, tool_use: &crate::transcript::ToolUse) -> Option<TracedCall> {
        let ended = self.ended.as_ref()?;
        let (outcome, result) = (ended.outcome.clone(), ended.result.clone());
        let mut traced = TracedCall::new(tool_use, outcome, result, ended.ran);
        traced.fuel_used = ended.fuel_used;
        Some(traced)
    }
}

impl Resumed {
    /// A run that has not begun. A history that is not valid is repaired first.
    pub fn new(limits: RunLimits, messages: Vec<Message>) -> Self {
        let (messages, repairs) = repair::repair(messages);
        Self {
            run: Run::new(limits, messages),
            calls: CallsSoFar::default(),
            repairs,
            is_begun: false,
        }
    }

    /// Tells the run the next event of its record.
    pub fn apply(&mut self, event: &RunEvent) {
        self.is_begun = true;
        match event {
            RunEvent::TurnEnded {
                stop_reason,
                stop_details,
                usage,
                content,
                ..
            } => {
                let reply = self.run.identified(ModelReply {
                    content: content.clone(),
                    stop_reason: stop_reason.clone(),
                    stop_details: stop_details.clone(),
                    usage: *usage,
                    request_id: None,
                });
                self.run.model_replied(reply);
                self.calls = CallsSoFar::default();
            }
            RunEvent::CallRequested { id, .. } => {
                self.calls.entry(id);
            }
            RunEvent::ApprovalRequested { id, .. } => self.calls.entry(id).asked = true,
            RunEvent::CallStarted { id, .. } => self.calls.entry(id).started = true,
            RunEvent::CallEnded {
                id,
                outcome,
                ran_ms,
                fuel_used,
                result,
                ..
            } => {
                self.calls.entry(id).ended = Some(Ended {
                    outcome: outcome.clone(),
                    result: result.clone(),
                    ran: *ran_ms,
                    fuel_used: *fuel_used,
                });
                self.calls_ended();
            }
            RunEvent::RunEnded { status, text, .. } => self.run.ended_as(status, text),
            RunEvent::RunContinued { text } => self.run.continued(text),
            RunEvent::RunStarted { .. }
            | RunEvent::TurnStarted { .. }
            | RunEvent::TextStreamed { .. }
            | RunEvent::ReasoningStreamed { .. }
            | RunEvent::ToolUseStreamed { .. }
            | RunEvent::ModelRetried { .. }
            | RunEvent::ApprovalAnswered { .. }
            | RunEvent::CallQueued { .. }
            | RunEvent::CallProgressed { .. }
            | RunEvent::CallLogged { .. }
            | RunEvent::OutputCut { .. }
            | RunEvent::Noted { .. } => {}
        }
    }

    /// Once all calls of the turn have ended, the run learns of them.
    fn calls_ended(&mut self) {
        let Next::RunCalls(planned) = self.run.what_next() else {
            return;
        };
        let traced: Option<Vec<TracedCall>> = planned
            .iter()
            .map(|call| self.calls.of(&call.tool_use.id)?.traced(&call.tool_use))
            .collect();
        if let Some(traced) = traced {
            self.run.calls_ended(traced);
        }
    }

    /// Whether nothing is left to do, unless the user says more.
    pub fn is_over(&mut self) -> bool {
        matches!(self.run.what_next(), Next::Ended(_))
    }

    /// What it came to so far.
    pub fn into_result(self) -> crate::agent::RunResult {
        self.run.into_result()
    }
}
