//! A run of this terminal's, from task to task: kept in storage unless the person does not want it.

use std::{
    path::PathBuf,
    sync::{Arc, OnceLock},
    time::Duration,
};

use anyhow::Context as _;
use async_trait::async_trait;
use tracing::Instrument as _;

use super::{
    exit::{Exit, Misuse},
    signals::Signals,
    terminal::dim,
    trace::TraceFile,
};
use crate::{
    agent::{
        Left, ToolLoop,
        durable::{self, Asked, LeaseJournal, RunSpec, StoredApprover},
        record::Journal,
        resume::Resumed,
        spans,
        stop::Stopper,
    },
    approvals::{Answer, ApprovalRequest, Approver, ApproverFailed},
    event::RunEvent,
    ids::RunId,
    storage::{Keep, Lease, RunKind, RunStore, StoredRun, Submitted, now_ms},
    tool::Canceller,
    transcript::Message,
};

/// How long the calls of a run that is not attended have to wait for a person before the program ends.
const PUT_AWAY_AFTER: Duration = Duration::from_millis(500);

/// Where a session is.
enum At {
    /// Nothing was said yet; these messages come first.
    Begin(Vec<Message>),
    /// It is in storage.
    Stored,
    /// It is kept nowhere but here.
    Said(Vec<Message>),
}

pub(super) struct Session {
    pub(super) agent: ToolLoop,
    pub(super) run: RunId,
    scope: String,
    store: Option<Arc<dyn RunStore>>,
    trace: Option<PathBuf>,
    is_attended: bool,
    at: At,
}

impl Session {
    /// A new run that begins with these messages.
    pub(super) fn new(
        agent: ToolLoop,
        run: RunId,
        scope: String,
        messages: Vec<Message>,
        store: Option<Arc<dyn RunStore>>,
    ) -> Self {
        Self {
            scope,
            agent,
            run,
            store,
            trace: None,
            is_attended: true,
            at: At::Begin(messages),
        }
    }

    /// A run that is kept.
    pub(super) fn stored(agent: ToolLoop, run: &StoredRun, store: Arc<dyn RunStore>) -> Self {
        Self {
            at: At::Stored,
            ..Self::new(agent, run.id, run.scope.clone(), Vec::new(), Some(store))
        }
    }

    pub(super) fn traced_to(mut self, trace: Option<PathBuf>) -> Self {
        self.trace = trace;
        self
    }

    /// Where only a person elsewhere can answer, the program ends instead of waiting.
    pub(super) fn unattended(mut self, is_unattended: bool) -> Self {
        self.is_attended = !is_unattended;
        self
    }

    pub(super) fn is_kept(&self) -> bool {
        self.store.is_some()
    }

    /// Goes on with what the person says, if anything, until the run ends or is left. The first Ctrl-C or termination
    /// stops the run; a second one ends the program at once.
    pub(super) async fn go(
        &mut self,
        said: Option<String>,
    ) -> anyhow::Result<(Left, Option<Exit>)> {
        let (resumed, lease) = self.taken_up(said).await?;
        let mut journals: Vec<Arc<dyn Journal>> = Vec::new();
        if let (Some(store), Some(lease)) = (&self.store, &lease) {
            let journal = LeaseJournal::new(Arc::clone(store), Arc::clone(lease));
            journals.push(Arc::new(journal));
        }
        if let Some(path) = &self.trace {
            let trace = TraceFile::open(path, self.run.to_string())
                .with_context(|| format!("can't write the trace file `{}`", path.display()))?;
            journals.push(Arc::new(trace));
        }
        let (stopper, signal) = Stopper::new();
        let by = Arc::new(OnceLock::new());
        let watch = tokio::spawn(stop_on_signals(
            Signals::new(),
            stopper.clone(),
            Arc::clone(&by),
        ));
        let put_away_after = (!self.is_attended).then_some(PUT_AWAY_AFTER);
        let span = spans::invoke_agent(&self.agent, self.run);
        let left = self
            .agent
            .go_on(resumed, stopper, signal, journals, put_away_after)
            .instrument(span.clone())
            .await;
        if let Left::Ended(result) = &left {
            spans::agent_ended(&span, result);
        }
        drop(span);
        // With it goes the wait for a second signal, which would end a later run of the session.
        watch.abort();
        let is_left = matches!(left, Left::WaitsForPerson | Left::NotRecorded { .. });
        if let (true, Some(store), Some(lease)) = (is_left, &self.store, &lease) {
            // A disk that is full keeps it from being said; then the end of this process says it.
            let _ = store.release(lease).await;
        }
        match (&self.store, &left) {
            (Some(_), _) => self.at = At::Stored,
            (None, Left::Ended(result) | Left::NotRecorded { result, .. }) => {
                self.at = At::Said(result.messages.clone());
            }
            (None, Left::WaitsForPerson) => {}
        }
        Ok((left, by.get().copied()))
    }

    async fn taken_up(
        &mut self,
        said: Option<String>,
    ) -> anyhow::Result<(Resumed, Option<Arc<Lease>>)> {
        let at = std::mem::replace(&mut self.at, At::Stored);
        let store = match (at, &self.store) {
            (At::Begin(mut messages) | At::Said(mut messages), None) => {
                messages.extend(said.map(Message::user));
                return Ok((Resumed::new(self.agent.limits, messages), None));
            }
            (At::Begin(mut messages), Some(store)) => {
                messages.extend(said.map(Message::user));
                let spec = RunSpec::of(&self.agent, messages);
                let new = spec.to_new_run(self.run, RunKind::Command, self.scope.clone())?;
                let Submitted::New(lease) = store.submit(new).await? else {
                    unreachable!("it came without a key");
                };
                let resumed = Resumed::new(spec.limits, spec.messages);
                return Ok((resumed, Some(Arc::new(lease))));
            }
            (At::Stored, Some(store)) => store,
            (At::Stored, None) | (At::Said(_), Some(_)) => {
                unreachable!("what is stored has a store, and nothing else has")
            }
        };
        let Some(lease) = store.claim_run(self.run).await? else {
            return Err(Misuse(format!(
                "another process drives run {} now; wait for its end, or stop it there",
                self.run
            ))
            .into());
        };
        let taken_up = async {
            let spec = durable::spec(&**store, &lease.run).await?;
            let mut resumed = durable::replayed(&**store, &lease.run, &spec).await?;
            match (resumed.is_over(), said) {
                (true, Some(text)) => {
                    let said = RunEvent::RunContinued { text };
                    store.append(&lease, &said, Keep::Durably).await?;
                    resumed.apply(&said);
                }
                (false, None) => {}
                (true, None) => {
                    return Err(Misuse(
                        "this run has ended; say what is to be done next, or fork it".to_owned(),
                    )
                    .into());
                }
                (false, Some(_)) => {
                    return Err(Misuse(
                        "this run has not ended; go on with it first, without a prompt".to_owned(),
                    )
                    .into());
                }
            }
            anyhow::Ok(resumed)
        };
        match taken_up.await {
            Ok(resumed) => Ok((resumed, Some(Arc::new(lease)))),
            Err(error) => {
                store.release(&lease).await?;
                Err(error)
            }
        }
    }
}

async fn stop_on_signals(mut signals: Signals, stopper: Stopper, by: Arc<OnceLock<Exit>>) {
    let first = signals.next().await;
    by.get_or_init(|| first);
    stopper.stop(Canceller::User);
    eprintln!(
        "\n{} once more ends the program at once",
        dim().apply_to("stopping;")
    );
    let second = signals.next().await;
    std::process::exit(second.code().into());
}

/// Asks here and elsewhere at once; the first answer counts.
pub(super) struct Anywhere {
    /// `None`: nobody can be asked here.
    pub(super) here: Option<Arc<dyn Approver>>,
    pub(super) elsewhere: StoredApprover,
}

impl Anywhere {
    pub(super) fn new(
        here: Option<Arc<dyn Approver>>,
        store: Arc<dyn RunStore>,
        run: RunId,
        scope: String,
    ) -> Self {
        Self {
            here,
            elsewhere: StoredApprover {
                store,
                run: Some(run),
                answer_within: durable::ANSWER_WITHIN,
                scope,
                since_ms: now_ms(),
            },
        }
    }
}

#[async_trait]
impl Approver for Anywhere {
    async fn approve(&self, request: &ApprovalRequest) -> Result<Answer, ApproverFailed> {
        let Some(here) = &self.here else {
            return self.elsewhere.approve(request).await;
        };
        let Asked::Open { id, expires_ms } = self.elsewhere.asked(request).await? else {
            return Ok(Answer::ForThisRun);
        };
        tokio::select! {
            biased;
            answer = self.elsewhere.answer(&id, expires_ms) => answer,
            answer = here.approve(request) => {
                self.elsewhere.answered_here(&id, expires_ms, answer?).await
            }
        }
    }
}
