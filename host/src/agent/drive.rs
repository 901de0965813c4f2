//! Performs what [`Run`] says: asks the model, carries out calls, and tells of it.

use std::{sync::Arc, time::Duration};

use tokio_util::task::AbortOnDropHandle;
use tracing::Instrument as _;

use crate::{
    agent::{
        Deps, RunResult,
        call::TracedCall,
        consent::RunConsents,
        dispatch::{Batch, run_batch},
        eager::{Eager, Early},
        record::{Journal, NotRecorded, Recorder},
        resume::{CallsSoFar, Resumed},
        run::{Next, PlannedCall, Run, RunLimits},
        spans,
        standstill::Standstill,
        stop::{StopSignal, Stopper},
    },
    capability::Reach,
    event::RunEvent,
    provider::{Delta, ModelReply, ModelRequest, Provider, ProviderError, Watch},
    registry::{Registry, live::LiveRegistry},
    tool::{Canceller, ToolOutcome},
    transcript::{Message, ToolInput, Usage, repair},
};

/// The agent: a model, its tools, and what holds for every run of them.
#[derive(Clone)]
pub struct ToolLoop {
    pub provider: Arc<dyn Provider>,
    pub model: String,
    pub system: Option<String>,
    /// A change of it reaches a run between two turns.
    pub registry: LiveRegistry,
    pub deps: Deps,
    pub limits: RunLimits,
    /// From the start of a run; approvals are waited for on this clock too.
    pub wall_time: Option<Duration>,
}

/// Why a run could not go on. It ends as [`RunStatus::Failed`](crate::agent::run::RunStatus::Failed), and
/// its history can be continued.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    #[error("{0}")]
    Provider(#[from] ProviderError),
    #[error("{0}")]
    NotRecorded(#[from] NotRecorded),
}

impl ToolLoop {
    /// An agent with the defaults: no system prompt, 10 iterations, 4,096 tokens a reply, 8 calls at once.
    pub fn new(
        provider: Arc<dyn Provider>,
        model: impl Into<String>,
        registry: impl Into<LiveRegistry>,
    ) -> Self {
        Self {
            provider,
            model: model.into(),
            system: None,
            registry: registry.into(),
            deps: Deps::default(),
            limits: RunLimits::default(),
            wall_time: None,
        }
    }

    /// Runs from these messages to a final stop. A history that is not valid is repaired first.
    pub async fn run(&self, messages: Vec<Message>) -> RunResult {
        let (stopper, signal) = Stopper::new();
        self.run_until(messages, stopper, signal, None).await
    }

    /// As [`ToolLoop::run`], stopped by `signal` and written to `journal`. `stopper` belongs to the same
    /// signal; a person who is asked about a call can stop the run through it.
    pub async fn run_until(
        &self,
        messages: Vec<Message>,
        stopper: Stopper,
        signal: StopSignal,
        journal: Option<Arc<dyn Journal>>,
    ) -> RunResult {
        let begun = Resumed::new(self.limits, messages);
        let journals = journal.into_iter().collect();
        match self.go_on(begun, stopper, signal, journals, None).await {
            Left::Ended(result) => result,
            Left::NotRecorded { result, .. } => result,
            Left::WaitsForPerson => unreachable!("nothing puts this run away"),
        }
    }

    /// Goes on from where a run is, to its end, or until it has to be put away: everything about it is then in its
    /// journals. With `put_away_after` that happens once all its calls have waited for a person for so long.
    pub async fn go_on(
        &self,
        resumed: Resumed,
        stopper: Stopper,
        signal: StopSignal,
        journals: Vec<Arc<dyn Journal>>,
        put_away_after: Option<Duration>,
    ) -> Left {
        let recorder = Arc::new(Recorder::new(journals, &self.deps.observers));
        let _timer = self.wall_time.map(|wall_time| {
            let stopper = stopper.clone();
            AbortOnDropHandle::new(tokio::spawn(async move {
                tokio::time::sleep(wall_time).await;
                stopper.stop(Canceller::RunLimit);
            }))
        });
        let Resumed {
            mut run,
            calls,
            repairs,
            is_begun,
        } = resumed;
        let driving = Driving {
            agent: self,
            recorder: &recorder,
            consents: RunConsents::new(self.deps.approver.clone(), stopper),
            signal,
            put_away_after,
        };
        let begun = match is_begun {
            true => Ok(()),
            false => driving.begin(repairs).await.map_err(RunError::from),
        };
        let driven = match begun {
            Ok(()) => driving.drive(&mut run, calls).await,
            Err(error) => Err(error),
        };
        let not_recorded = match driven {
            Ok(Driven::ToTheEnd) => None,
            Ok(Driven::ToAStandstill) => return Left::WaitsForPerson,
            Err(error) => {
                run.failed(&error);
                match error {
                    RunError::NotRecorded(error) => Some(error),
                    RunError::Provider(_) => None,
                }
            }
        };
        let result = run.into_result();
        let ended = RunEvent::RunEnded {
            status: result.status.word().into(),
            text: result.status.sentence(),
            usage: result.tokens,
        };
        let error = match not_recorded {
            Some(error) => Some(error),
            None => recorder.record(&ended).await.err(),
        };
        match error {
            None => Left::Ended(result),
            Some(error) => {
                // Whoever watches has to learn that nothing follows.
                recorder.show(&ended);
                Left::NotRecorded { result, error }
            }
        }
    }
}

/// How a run was left.
#[derive(Debug)]
pub enum Left {
    Ended(RunResult),
    /// All its calls wait for a person.
    WaitsForPerson,
    /// Its journal could not be written. `result` is what it came to for those who can't go on from the journal.
    NotRecorded {
        result: RunResult,
        error: NotRecorded,
    },
}

enum Driven {
    ToTheEnd,
    ToAStandstill,
}

struct Driving<'a> {
    agent: &'a ToolLoop,
    recorder: &'a Arc<Recorder>,
    consents: RunConsents,
    signal: StopSignal,
    put_away_after: Option<Duration>,
}

impl Driving<'_> {
    async fn begin(&self, repairs: Vec<repair::Repair>) -> Result<(), NotRecorded> {
        let registry = self.agent.registry.now();
        let tools = registry.tools().iter();
        self.recorder
            .record(&RunEvent::RunStarted {
                model: self.agent.model.clone(),
                tools: tools.map(|tool| tool.name.clone()).collect(),
            })
            .await?;
        for repair in repairs {
            self.recorder
                .record(&RunEvent::Noted {
                    text: repair.to_string(),
                })
                .await?;
        }
        Ok(())
    }

    async fn drive(&self, run: &mut Run, mut so_far: CallsSoFar) -> Result<Driven, RunError> {
        let mut registry = self.agent.registry.now();
        let mut early = Early::default();
        loop {
            let turn = run.turn();
            match run.what_next() {
                Next::Ended(_) => return Ok(Driven::ToTheEnd),
                Next::AskModel {
                    messages,
                    max_tokens,
                } => {
                    self.recorder
                        .record(&RunEvent::TurnStarted { turn })
                        .await?;
                    // The calls of a turn go to the tools that the model was shown for it.
                    registry = self.agent.registry.now();
                    let mut showing = Showing {
                        recorder: self.recorder,
                        lost: Usage::default(),
                        eager: Eager::new(&registry, &self.agent.deps),
                    };
                    let span = spans::chat(self.agent, max_tokens);
                    let asking = self.ask(&registry, messages, max_tokens, &mut showing);
                    let asked = tokio::select! {
                        biased;
                        by = self.signal.stopped() => Err(by),
                        reply = asking.instrument(span.clone()) => {
                            spans::chat_ended(&span, &reply);
                            Ok(reply)
                        }
                    };
                    drop(span);
                    let Showing { lost, eager, .. } = showing;
                    run.attempt_lost(lost);
                    match asked {
                        Ok(Ok(reply)) => {
                            self.replied(run, turn, reply).await?;
                            so_far = CallsSoFar::default();
                            // Whatever is not to be run now is killed with this.
                            early = match run.what_next() {
                                Next::RunCalls(_) => eager.into_begun(),
                                Next::AskModel { .. } | Next::Ended(_) => Early::default(),
                            };
                        }
                        Ok(Err(error)) => {
                            run.attempt_lost(error.usage);
                            return Err(error.into());
                        }
                        Err(by) => run.stopped(by),
                    }
                }
                Next::RunCalls(calls) => {
                    let calls = calls.to_vec();
                    let taint = taint(&registry, run.messages());
                    let running =
                        self.run_calls(&registry, &calls, &so_far, &early, taint.as_deref());
                    let Some(traced) = running.await? else {
                        return Ok(Driven::ToAStandstill);
                    };
                    // Of calls that were not to be run after all.
                    early = Early::default();
                    run.calls_ended(traced);
                    if let Some(by) = self.signal.is_stopped() {
                        run.stopped(by);
                    }
                }
            }
        }
    }

    /// Carries out the calls of a turn, or those that are left of it. `None`: all of them wait for a person.
    async fn run_calls(
        &self,
        registry: &Registry,
        calls: &[PlannedCall],
        so_far: &CallsSoFar,
        early: &Early,
        taint: Option<&str>,
    ) -> Result<Option<Vec<TracedCall>>, NotRecorded> {
        let traced = |call: &PlannedCall| so_far.of(&call.tool_use.id)?.traced(&call.tool_use);
        let mut open = Vec::with_capacity(calls.len());
        for call in calls {
            match so_far.of(&call.tool_use.id) {
                None => {
                    let requested = RunEvent::CallRequested {
                        id: call.tool_use.id.clone(),
                        tool: call.tool_use.name.clone(),
                        input: call.tool_use.input.replayed(),
                    };
                    self.recorder.record(&requested).await?;
                    open.push(call.clone());
                }
                Some(known) if known.traced(&call.tool_use).is_some() => {}
                Some(known) if known.started => open.push(lost(registry, call)),
                Some(_) => open.push(call.clone()),
            }
        }
        let standstill = Standstill::of(open.len());
        let batch = Batch {
            registry,
            deps: &self.agent.deps,
            consents: &self.consents,
            recorder: self.recorder,
            stop: &self.signal,
            early,
            so_far,
            standstill: &standstill,
            taint,
        };
        let running = run_batch(&batch, &open);
        let records = match self.put_away_after {
            None => running.await?,
            Some(grace) => tokio::select! {
                biased;
                records = running => records?,
                () = standstill.lasted(grace) => return Ok(None),
            },
        };
        let mut records = records.into_iter().map(|record| record.traced);
        let all = calls
            .iter()
            .map(|call| traced(call).or_else(|| records.next()));
        Ok(all.collect())
    }

    async fn ask(
        &self,
        registry: &Registry,
        messages: &[Message],
        max_tokens: u32,
        showing: &mut Showing<'_>,
    ) -> Result<ModelReply, ProviderError> {
        let request = ModelRequest {
            model: &self.agent.model,
            system: self.agent.system.as_deref(),
            messages,
            tools: registry.schemas(),
            max_tokens,
        };
        self.agent.provider.ask(&request, showing).await
    }

    async fn replied(
        &self,
        run: &mut Run,
        turn: u32,
        reply: ModelReply,
    ) -> Result<(), NotRecorded> {
        let reply = run.identified(reply);
        self.recorder
            .record(&RunEvent::TurnEnded {
                turn,
                stop_reason: reply.stop_reason.clone(),
                stop_details: reply.stop_details.clone(),
                usage: reply.usage,
                content: reply.content.clone(),
            })
            .await?;
        run.model_replied(reply);
        Ok(())
    }
}

/// The first tool whose answer stands in these messages and may be somebody else's words.
fn taint(registry: &Registry, messages: &[Message]) -> Option<String> {
    let brings_in = |name: &str| {
        let tool = registry.get(name)?;
        tool.reach.as_ref().filter(|reach| reach.brings_in())
    };
    // The last message asks for the calls that are about to run.
    let (_, answered) = messages.split_last()?;
    let mut asked = answered.iter().flat_map(Message::tool_uses);
    asked
        .find(|tool_use| brings_in(&tool_use.name).is_some())
        .map(|tool_use| tool_use.name.clone())
}

/// A call that ran when its host died. Only one that can't have changed anything is simply made again.
fn lost(registry: &Registry, call: &PlannedCall) -> PlannedCall {
    let tool = registry.get(&call.tool_use.name);
    let is_pure = tool.is_some_and(|tool| tool.reach.as_ref().is_some_and(Reach::is_pure));
    let mut call = call.clone();
    if !is_pure {
        call.refused = Some(ToolOutcome::OutcomeUnknown);
    }
    call
}

/// Shows a reply while it streams.
struct Showing<'a> {
    recorder: &'a Recorder,
    /// What attempts that were repeated had used up.
    lost: Usage,
    eager: Eager<'a>,
}

impl Watch for Showing<'_> {
    fn delta(&mut self, delta: Delta<'_>) {
        self.recorder.pass(&match delta {
            Delta::Text(text) => RunEvent::TextStreamed {
                text: text.to_owned(),
            },
            Delta::Reasoning(text) => RunEvent::ReasoningStreamed {
                text: text.to_owned(),
            },
            Delta::ToolUse { name } => RunEvent::ToolUseStreamed {
                name: name.to_owned(),
            },
        });
    }

    fn tool_use(&mut self, name: &str, input: &ToolInput) {
        self.eager.asked_for(name, input);
    }

    fn retrying(&mut self, attempt: u32, wait: Duration, error: &ProviderError) {
        self.eager.clear();
        let wait_ms = u64::try_from(wait.as_millis()).unwrap_or(u64::MAX);
        self.lost = self.lost.plus(error.usage);
        self.recorder.pass(&RunEvent::ModelRetried {
            attempt,
            wait_ms,
            error: error.to_string(),
        });
    }
}
