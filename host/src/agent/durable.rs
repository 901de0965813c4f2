//! Runs that are kept in storage: what they were asked for, how they are written down, how they are read again, and
//! questions that wait for a person for as long as it takes.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use futures_util::{FutureExt as _, future::BoxFuture};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::{
    agent::{ToolLoop, record::Journal, resume::Resumed, run::RunLimits},
    approvals::{Answer, ApprovalRequest, Approver, ApproverFailed},
    config::permissions::{InvalidRule, ToolPattern},
    event::RunEvent,
    ids::RunId,
    storage::{
        Fate, Keep, Lease, NewRun, Question, RunKind, RunStore, StorageError, StoredRun, now_ms,
    },
    transcript::Message,
};

/// How long a question waits for an answer unless told otherwise.
pub const ANSWER_WITHIN: Duration = Duration::from_secs(7 * 24 * 3600);
/// Events that are read at once.
const PAGE: usize = 1000;
/// What pieces of text, progress and log lines one driving of a run keeps, in bytes. The whole text is in the
/// messages.
const MAX_PASSING_BYTES: usize = 4 << 20;
/// Of what a run is about, in characters.
const MAX_TITLE_CHARS: usize = 200;

/// What a run was asked for: all of it that is not the operator's settings.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct RunSpec {
    pub messages: Vec<Message>,
    pub model: String,
    pub system: Option<String>,
    /// Only these tools; `None` is all of them.
    pub tools: Option<Vec<String>>,
    pub limits: RunLimits,
    pub wall_time: Option<Duration>,
}

impl RunSpec {
    /// As `agent` would begin it with these messages.
    pub fn of(agent: &ToolLoop, messages: Vec<Message>) -> Self {
        Self {
            messages,
            model: agent.model.clone(),
            system: agent.system.clone(),
            tools: None,
            limits: agent.limits,
            wall_time: agent.wall_time,
        }
    }

    /// Makes an agent of the operator's settings the one of this run.
    pub fn applied_to(&self, mut agent: ToolLoop) -> Result<ToolLoop, InvalidRule> {
        agent.model.clone_from(&self.model);
        agent.system.clone_from(&self.system);
        agent.limits = self.limits;
        agent.wall_time = self.wall_time;
        if let Some(tools) = &self.tools {
            let patterns: Vec<ToolPattern> = tools
                .iter()
                .map(|text| ToolPattern::parse(text))
                .collect::<Result<_, _>>()?;
            let wanted = |name: &str| patterns.iter().any(|pattern| pattern.matches(name));
            // What was asked for is what there is now.
            let now = agent.registry.now();
            agent.registry = Arc::new(now.filtered(|tool| wanted(&tool.rule_name))).into();
        }
        Ok(agent)
    }

    /// A new run that is asked for this.
    pub fn to_new_run(
        &self,
        id: RunId,
        kind: RunKind,
        scope: String,
    ) -> Result<NewRun, serde_json::Error> {
        Ok(NewRun {
            id,
            kind,
            scope,
            key: None,
            title: self.title(),
            model: self.model.clone(),
            spec: serde_json::to_value(self)?,
        })
    }

    /// The beginning of the newest request, on one line.
    pub fn title(&self) -> String {
        let text = self.messages.iter().rev().find_map(Message::last_text);
        let mut title = String::new();
        for word in text.unwrap_or_default().split_whitespace() {
            if !title.is_empty() {
                title.push(' ');
            }
            title.push_str(word);
            if title.chars().count() > MAX_TITLE_CHARS {
                return title.chars().take(MAX_TITLE_CHARS).chain(['…']).collect();
            }
        }
        title
    }
}

/// A stored run can't be read.
#[derive(Debug, thiserror::Error)]
pub enum Unreadable {
    #[error(transparent)]
    Storage(#[from] StorageError),
    #[error("what run {run} was asked for can't be read: {why}")]
    Spec { run: RunId, why: String },
}

/// What a stored run was asked for.
pub async fn spec(store: &dyn RunStore, run: &StoredRun) -> Result<RunSpec, Unreadable> {
    let spec = store.spec(run.number).await?;
    RunSpec::deserialize(spec).map_err(|error| Unreadable::Spec {
        run: run.id,
        why: error.to_string(),
    })
}

/// A stored run as its events tell it.
pub async fn replayed(
    store: &dyn RunStore,
    run: &StoredRun,
    spec: &RunSpec,
) -> Result<Resumed, StorageError> {
    let mut resumed = Resumed::new(spec.limits, spec.messages.clone());
    let mut next = 0;
    while next < run.next_seq {
        let events = store.read(run.number, next, PAGE).await?;
        let Some(last) = events.last() else { break };
        next = last.seq + 1;
        for stored in &events {
            resumed.apply(&stored.event);
        }
    }
    Ok(resumed)
}

/// Writes a run's events to where it is kept.
pub struct LeaseJournal {
    store: Arc<dyn RunStore>,
    lease: Arc<Lease>,
    passing_bytes: AtomicUsize,
}

impl LeaseJournal {
    pub fn new(store: Arc<dyn RunStore>, lease: Arc<Lease>) -> Self {
        Self {
            store,
            lease,
            passing_bytes: AtomicUsize::new(0),
        }
    }
}

impl Journal for LeaseJournal {
    fn append(&self, event: &RunEvent) -> BoxFuture<'static, io::Result<()>> {
        let keep = match event {
            // Nothing follows from these that their crash would not undo as well.
            RunEvent::RunStarted { .. }
            | RunEvent::TurnStarted { .. }
            | RunEvent::CallRequested { .. }
            | RunEvent::CallQueued { .. }
            | RunEvent::OutputCut { .. }
            | RunEvent::Noted { .. }
            | RunEvent::TextStreamed { .. }
            | RunEvent::ReasoningStreamed { .. }
            | RunEvent::ToolUseStreamed { .. }
            | RunEvent::ModelRetried { .. }
            | RunEvent::CallProgressed { .. }
            | RunEvent::CallLogged { .. } => Keep::Lazily,
            RunEvent::TurnEnded { .. }
            | RunEvent::ApprovalRequested { .. }
            | RunEvent::ApprovalAnswered { .. }
            | RunEvent::CallStarted { .. }
            | RunEvent::CallEnded { .. }
            | RunEvent::RunEnded { .. }
            | RunEvent::RunContinued { .. } => Keep::Durably,
        };
        let kept = self.store.append(&self.lease, event, keep);
        kept.map(|kept| kept.map_err(to_io)).boxed()
    }

    fn pass(&self, event: &RunEvent) {
        let bytes = passing_bytes(event);
        if self.passing_bytes.fetch_add(bytes, Ordering::Relaxed) > MAX_PASSING_BYTES {
            return;
        }
        // Nobody waits for it, so that its future has nothing to tell.
        drop(self.store.append(&self.lease, event, Keep::Passing));
    }
}

/// The size of what is there to be watched and is no part of the record.
fn passing_bytes(event: &RunEvent) -> usize {
    /// Of an event itself.
    const OWN: usize = 100;
    let text = match event {
        RunEvent::TextStreamed { text }
        | RunEvent::ReasoningStreamed { text }
        | RunEvent::CallLogged { text, .. }
        | RunEvent::Noted { text } => text.len(),
        RunEvent::ToolUseStreamed { name } => name.len(),
        RunEvent::CallProgressed { message, .. } => message.as_deref().unwrap_or_default().len(),
        RunEvent::ModelRetried { error, .. } => error.len(),
        RunEvent::RunStarted { .. }
        | RunEvent::TurnStarted { .. }
        | RunEvent::TurnEnded { .. }
        | RunEvent::CallRequested { .. }
        | RunEvent::ApprovalRequested { .. }
        | RunEvent::ApprovalAnswered { .. }
        | RunEvent::CallQueued { .. }
        | RunEvent::CallStarted { .. }
        | RunEvent::CallEnded { .. }
        | RunEvent::OutputCut { .. }
        | RunEvent::RunEnded { .. }
        | RunEvent::RunContinued { .. } => 0,
    };
    text + OWN
}

fn to_io(error: StorageError) -> io::Error {
    let kind = match error {
        StorageError::Full { .. } => io::ErrorKind::StorageFull,
        StorageError::Fenced | StorageError::TooNew(_) | StorageError::Failed { .. } => {
            io::ErrorKind::Other
        }
    };
    io::Error::new(kind, error)
}

/// Asks through storage: whoever can reach it may answer, and the question outlives this process.
pub struct StoredApprover {
    pub store: Arc<dyn RunStore>,
    /// `None`: calls of a client's own, whose questions go when they do.
    pub run: Option<RunId>,
    pub answer_within: Duration,
    /// That of the run.
    pub scope: String,
    /// What was allowed for good from then on is in no settings of this process yet. Milliseconds since 1970.
    pub since_ms: u64,
}

impl StoredApprover {
    fn question(&self, request: &ApprovalRequest) -> Result<Question, ApproverFailed> {
        let id = RunId::random()
            .map_err(|error| ApproverFailed(format!("this system gives no randomness: {error}")))?;
        let mut exactly = serde_json::json!([
            self.run
                .map_or_else(|| id.to_string(), |run| run.to_string()),
            request.call,
            request.rule_name,
            request.digest,
        ]);
        exactly.sort_all_objects();
        let asked_ms = now_ms();
        let within = u64::try_from(self.answer_within.as_millis()).unwrap_or(u64::MAX);
        Ok(Question {
            id: id.to_string(),
            run: self.run,
            scope: self.scope.clone(),
            fingerprint: Sha256::digest(exactly.to_string()).into(),
            request: request.clone(),
            asked_ms,
            expires_ms: asked_ms.saturating_add(within),
        })
    }

    /// Asks, unless an earlier answer holds.
    pub async fn asked(&self, request: &ApprovalRequest) -> Result<Asked, ApproverFailed> {
        let question = self.question(request)?;
        let asked = self.store.ask(question, self.since_ms).await;
        Ok(match asked.map_err(not_kept)? {
            Some(question) => Asked::Open {
                id: question.id,
                expires_ms: question.expires_ms,
            },
            None => Asked::Stands,
        })
    }

    /// Waits for the answer, until the question expires.
    pub async fn answer(&self, question: &str, expires_ms: u64) -> Result<Answer, ApproverFailed> {
        let mut changes = self.store.changes();
        let deny = |why: &str| {
            Ok(Answer::Deny {
                reason: Some(why.to_owned()),
            })
        };
        loop {
            changes.mark_unchanged();
            match self.store.fate(question).await.map_err(not_kept)? {
                Some(Fate::Decided(decided)) => return Ok(decided.answer),
                Some(Fate::Open) => {}
                Some(Fate::Expired) => return deny("nobody answered in time"),
                Some(Fate::Withdrawn) | None => return deny("the question was withdrawn"),
            }
            let left = Duration::from_millis(expires_ms.saturating_sub(now_ms()));
            if left.is_zero() {
                return deny("nobody answered in time");
            }
            // Whether something has changed or the time is over is looked at anew.
            let _ = tokio::time::timeout(left, changes.changed()).await;
        }
    }

    /// Takes what a person has answered in another way; where somebody elsewhere was first, theirs is the answer.
    pub async fn answered_here(
        &self,
        question: &str,
        expires_ms: u64,
        answer: Answer,
    ) -> Result<Answer, ApproverFailed> {
        let deciding = self.store.decide(question, answer.clone(), "terminal");
        match deciding.await.map_err(not_kept)? {
            Ok(_) => Ok(answer),
            Err(_) => self.answer(question, expires_ms).await,
        }
    }
}

/// What became of asking.
#[derive(Debug)]
pub enum Asked {
    /// An earlier yes is about this as well.
    Stands,
    Open {
        id: String,
        expires_ms: u64,
    },
}

fn not_kept(error: StorageError) -> ApproverFailed {
    ApproverFailed(format!("the question can't be kept: {error}"))
}

#[async_trait]
impl Approver for StoredApprover {
    async fn approve(&self, request: &ApprovalRequest) -> Result<Answer, ApproverFailed> {
        let Asked::Open { id, expires_ms } = self.asked(request).await? else {
            return Ok(Answer::ForThisRun);
        };
        let _withdrawn = Withdraws {
            store: self.run.is_none().then_some(&self.store),
            id: &id,
        };
        self.answer(&id, expires_ms).await
    }
}

/// A call that no longer waits takes its question with it.
struct Withdraws<'a> {
    store: Option<&'a Arc<dyn RunStore>>,
    id: &'a str,
}

impl Drop for Withdraws<'_> {
    fn drop(&mut self) {
        if let (Some(store), Ok(runtime)) = (self.store, tokio::runtime::Handle::try_current()) {
            let (store, id) = (Arc::clone(store), self.id.to_owned());
            runtime.spawn(async move { store.withdraw(&id).await });
        }
    }
}
