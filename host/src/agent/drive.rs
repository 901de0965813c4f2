//! Performs what [`Run`] says: asks the model, carries out calls, and tells of it.

use std::{sync::Arc, time::Duration};

use crate::{
    agent::{
        Deps, RunResult,
        consent::RunConsents,
        dispatch::{Batch, run_batch},
        eager::{Eager, Early},
        record::{Journal, NotRecorded, Recorder},
        run::{Next, Run, RunLimits},
        stop::{StopSignal, Stopper},
    },
    event::RunEvent,
    provider::{Delta, ModelReply, ModelRequest, Provider, ProviderError, Watch},
    registry::{Registry, live::LiveRegistry},
    tool::Canceller,
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
        journal: Option<Box<dyn Journal>>,
    ) -> RunResult {
        let recorder = Arc::new(Recorder::new(journal, &self.deps.observers));
        let timer = self.wall_time.map(|wall_time| {
            let stopper = stopper.clone();
            let timer = tokio::spawn(async move {
                tokio::time::sleep(wall_time).await;
                stopper.stop(Canceller::RunLimit);
            });
            AbortOnDrop(timer)
        });
        let (messages, repairs) = repair::repair(messages);
        let mut run = Run::new(self.limits, messages);
        let consents = RunConsents::new(self.deps.approver.clone(), stopper);
        let driving = Driving {
            agent: self,
            recorder: &recorder,
            consents,
            signal,
        };
        let failed = driving.drive(&mut run, repairs).await.err();
        drop(timer);
        if let Some(error) = failed {
            run.failed(&error);
        }
        let result = run.into_result();
        let ended = RunEvent::RunEnded {
            status: result.status.word(),
            text: result.status.sentence(),
            usage: result.tokens,
        };
        if recorder.record(&ended).is_err() {
            // Nothing hangs on it any more, and whoever watches has to learn that it is over.
            recorder.show(&ended);
        }
        result
    }
}

struct Driving<'a> {
    agent: &'a ToolLoop,
    recorder: &'a Arc<Recorder>,
    consents: RunConsents,
    signal: StopSignal,
}

impl Driving<'_> {
    async fn drive(&self, run: &mut Run, repairs: Vec<repair::Repair>) -> Result<(), RunError> {
        let mut registry = self.agent.registry.now();
        let mut early = Early::default();
        self.recorder.record(&RunEvent::RunStarted {
            model: self.agent.model.clone(),
            tools: registry
                .tools()
                .iter()
                .map(|tool| tool.name.clone())
                .collect(),
        })?;
        for repair in repairs {
            self.recorder.record(&RunEvent::Noted {
                text: repair.to_string(),
            })?;
        }
        loop {
            let turn = run.turn();
            match run.what_next() {
                Next::Ended(_) => return Ok(()),
                Next::AskModel {
                    messages,
                    max_tokens,
                } => {
                    self.recorder.record(&RunEvent::TurnStarted { turn })?;
                    // The calls of a turn go to the tools that the model was shown for it.
                    registry = self.agent.registry.now();
                    let mut showing = Showing {
                        recorder: self.recorder,
                        lost: Usage::default(),
                        eager: Eager::new(&registry, &self.agent.deps),
                    };
                    let asked = tokio::select! {
                        biased;
                        by = self.signal.stopped() => Err(by),
                        reply = self.ask(&registry, messages, max_tokens, &mut showing) => Ok(reply),
                    };
                    let Showing { lost, eager, .. } = showing;
                    run.attempt_lost(lost);
                    match asked {
                        Ok(Ok(reply)) => {
                            self.replied(run, turn, reply)?;
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
                    for call in calls {
                        self.recorder.record(&RunEvent::CallRequested {
                            id: call.tool_use.id.clone(),
                            tool: call.tool_use.name.clone(),
                            input: call.tool_use.input.replayed(),
                        })?;
                    }
                    let batch = Batch {
                        registry: &registry,
                        deps: &self.agent.deps,
                        consents: &self.consents,
                        recorder: self.recorder,
                        stop: &self.signal,
                        early: &early,
                    };
                    let records = run_batch(&batch, calls).await?;
                    // Of calls that were not to be run after all.
                    early = Early::default();
                    run.calls_ended(records);
                    if let Some(by) = self.signal.is_stopped() {
                        run.stopped(by);
                    }
                }
            }
        }
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

    fn replied(&self, run: &mut Run, turn: u32, reply: ModelReply) -> Result<(), NotRecorded> {
        self.recorder.record(&RunEvent::TurnEnded {
            turn,
            stop_reason: reply.stop_reason.clone(),
            usage: reply.usage,
        })?;
        run.model_replied(reply);
        Ok(())
    }
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
        self.recorder.show(&match delta {
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
        self.recorder.show(&RunEvent::ModelRetried {
            attempt,
            wait_ms,
            error: error.to_string(),
        });
    }
}

struct AbortOnDrop(tokio::task::JoinHandle<()>);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}
