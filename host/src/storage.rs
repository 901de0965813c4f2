//! Runs that outlive the process that drives them: their events, and the questions they ask of people.
//!
//! [`RunStore`] is the only durable writer. Its promises, which `tests/tests/all/storage.rs` holds every engine to:
//!
//! - A run has one owner at a time. Each claim makes a new epoch, and what an earlier owner still writes is refused
//!   as [`StorageError::Fenced`]: it is no longer that owner's run.
//! - The events of a run are numbered from 0 without gaps. What [`RunStore::append`] has answered with `Ok` is there
//!   after any crash; what it has not may be there or not, but never without all before it.
//! - A question is answered once. Whoever comes second learns that.
//! - Within a scope, the same idempotency key is the same run.
//!
//! What a run's events mean is not known here; see [`crate::agent::resume`].

pub mod sqlite;

use std::{
    sync::{Mutex, PoisonError},
    time::SystemTime,
};

use async_trait::async_trait;
use futures_util::future::BoxFuture;
use serde::Serialize;
use serde_json::Value;
use tokio::sync::watch;

use crate::{
    approvals::{Answer, ApprovalRequest},
    event::{LINE_VERSION, RunEvent},
    ids::RunId,
    transcript::Usage,
};

/// Claims of one run that may end with the death of their host before the run is set aside. A turn that ends counts
/// as progress, and the count begins anew.
pub const MAX_CRASHES: u32 = 3;

/// Who drives a run: a claim takes only those of one kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RunKind {
    /// Begun over HTTP. Any server of its scope may drive it.
    Served,
    /// Begun by `run`. It goes on when a person says so.
    Command,
}

/// A client's word for "this request, however often it arrives".
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IdempotencyKey {
    pub key: String,
    /// SHA-256 of the request.
    pub request: [u8; 32],
}

/// A run that is to be.
#[derive(Debug, Clone)]
pub struct NewRun {
    pub id: RunId,
    pub kind: RunKind,
    /// Whose settings it was begun with: a run is only driven on by itself where these hold.
    pub scope: String,
    pub key: Option<IdempotencyKey>,
    pub title: String,
    pub model: String,
    /// What the run was asked for, in the form of whoever asks: nothing here looks into it.
    pub spec: Value,
}

#[derive(Debug)]
pub enum Submitted {
    /// It is the submitter's to drive.
    New(Lease),
    /// The same key began it before.
    Known(StoredRun),
    /// The same key came with another request.
    OtherRequest,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RunState {
    /// Nobody drives it, and something can be done.
    Ready,
    /// Somebody drives it.
    Running,
    /// Nobody drives it, and all its calls wait for a person.
    Waiting,
    Ended,
}

/// What is known of a run.
#[derive(Debug, Clone)]
pub struct StoredRun {
    pub id: RunId,
    /// Runs are numbered in the order in which they came.
    pub number: u64,
    pub kind: RunKind,
    pub scope: String,
    pub title: String,
    pub model: String,
    pub state: RunState,
    /// One word: `running`, `waiting` for a person, or how it ended.
    pub word: String,
    /// How it ended, in a sentence.
    pub ending: Option<String>,
    /// Milliseconds since 1970.
    pub created_ms: u64,
    /// Milliseconds since 1970.
    pub ended_ms: Option<u64>,
    /// How many events it has.
    pub next_seq: u64,
    pub turns: u32,
    pub calls: u32,
    /// Questions that wait for a person.
    pub asked: u32,
    pub usage: Usage,
}

/// An event with its place.
#[derive(Debug, Clone, PartialEq)]
pub struct StoredEvent {
    /// From 0.
    pub seq: u64,
    /// Milliseconds since 1970.
    pub at_ms: u64,
    pub event: RunEvent,
}

/// An event as a line of JSON; `agentloop-host schema` describes it.
#[derive(Debug, Serialize, schemars::JsonSchema)]
pub struct Line<'a> {
    pub v: u32,
    /// The run's id.
    pub run: &'a str,
    /// Counts the events of a run from 0.
    pub seq: u64,
    /// Milliseconds since 1970.
    pub ts: u64,
    #[serde(flatten)]
    pub event: &'a RunEvent,
}

impl StoredEvent {
    pub fn line<'a>(&'a self, run: &'a str) -> Line<'a> {
        Line {
            v: LINE_VERSION,
            run,
            seq: self.seq,
            ts: self.at_ms,
            event: &self.event,
        }
    }
}

/// The right to drive a run, until somebody else claims it.
#[derive(Debug)]
pub struct Lease {
    pub run: StoredRun,
    epoch: u64,
    /// The number of the next event. Held while an event is handed over, so that none overtakes another.
    next_seq: Mutex<u64>,
}

impl Lease {
    fn new(run: StoredRun, epoch: u64) -> Self {
        Self {
            next_seq: Mutex::new(run.next_seq),
            run,
            epoch,
        }
    }

    fn next_seq(&self) -> std::sync::MutexGuard<'_, u64> {
        self.next_seq.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether an append has to survive a crash before its future ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Keep {
    Durably,
    /// It is durable with the next event that is.
    Lazily,
    /// As `Lazily`, and dropped where too many wait.
    Passing,
}

/// A question to a person.
#[derive(Debug, Clone)]
pub struct Question {
    /// It names this one question, and no later one about the same call.
    pub id: String,
    /// `None`: a call of a client's own, which is gone with its client.
    pub run: Option<RunId>,
    /// That of its run, or of whoever asks.
    pub scope: String,
    /// What exactly is asked: an answer holds for nothing else.
    pub fingerprint: [u8; 32],
    pub request: ApprovalRequest,
    /// Milliseconds since 1970.
    pub asked_ms: u64,
    /// Milliseconds since 1970. From then on it counts as denied.
    pub expires_ms: u64,
}

/// An answer, and when it came.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decided {
    pub answer: Answer,
    /// Who answered, as far as that is known.
    pub by: String,
    pub at_ms: u64,
}

/// What became of a question.
#[derive(Debug, Clone)]
pub enum Fate {
    Open,
    Decided(Decided),
    Withdrawn,
    Expired,
}

/// Why an answer had no effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Undecidable {
    #[error("nothing was asked under this id")]
    Unknown,
    #[error("somebody has answered this before")]
    Answered,
    #[error("the call no longer waits: its run ended or its client went away")]
    Withdrawn,
    #[error("the time for an answer is over")]
    Expired,
}

/// Which runs a list shows.
#[derive(Debug, Clone, Default)]
pub struct Wanted {
    /// Only runs of this word.
    pub word: Option<String>,
    /// Only runs of this kind and scope.
    pub of: Option<(RunKind, String)>,
    /// Only runs of a lower number.
    pub before: Option<u64>,
    pub limit: usize,
}

#[derive(Debug, Clone, thiserror::Error)]
pub enum StorageError {
    #[error("another process drives this run now")]
    Fenced,
    #[error("the disk with the runs is full; make room in {place}")]
    Full { place: String },
    #[error("{0}")]
    TooNew(String),
    #[error("the runs in {place} can't be read or written: {why}")]
    Failed { place: String, why: String },
}

/// See the module's text for what every engine promises.
#[async_trait]
pub trait RunStore: Send + Sync + 'static {
    async fn submit(&self, run: NewRun) -> Result<Submitted, StorageError>;

    /// At most `n` runs of this scope that can go on and that nobody drives; those of dead owners among them.
    async fn claim(&self, kind: RunKind, scope: &str, n: usize)
    -> Result<Vec<Lease>, StorageError>;

    /// This very run, whatever its kind and state, unless somebody alive drives it.
    async fn claim_run(&self, id: RunId) -> Result<Option<Lease>, StorageError>;

    /// Puts the event behind all that were appended before. The place is taken when this returns; the future ends
    /// when the event is kept.
    fn append(
        &self,
        lease: &Lease,
        event: &RunEvent,
        keep: Keep,
    ) -> BoxFuture<'static, Result<(), StorageError>>;

    /// Says that the owner of these leases lives. Owners that an engine sees dying need not.
    async fn heartbeat(&self, leases: &[&Lease]) -> Result<(), StorageError>;

    /// Gives the run back. It waits where questions of it are open, and is ready otherwise.
    async fn release(&self, lease: &Lease) -> Result<(), StorageError>;

    async fn run(&self, id: RunId) -> Result<Option<StoredRun>, StorageError>;

    /// What a run was asked for, as it was submitted; it can be large. Nothing where there is no such run.
    async fn spec(&self, run: u64) -> Result<Value, StorageError>;

    /// The newest first.
    async fn runs(&self, wanted: Wanted) -> Result<Vec<StoredRun>, StorageError>;

    /// At most `limit` events from `seq` on.
    async fn read(
        &self,
        run: u64,
        seq: u64,
        limit: usize,
    ) -> Result<Vec<StoredEvent>, StorageError>;

    /// Changes when a run may have more events. It may change for nothing, but never misses one.
    fn tail(&self, run: u64) -> watch::Receiver<u64>;

    /// Changes when a question may have changed, or a run may have become ready.
    fn changes(&self) -> watch::Receiver<u64>;

    /// Asks; or finds the open or decided question of the same run and fingerprint. `None` where an answer stands
    /// already: one for all of this run, or one for good since `since_ms`, about the same tool of the same component.
    /// Questions stand in the order in which this is called.
    fn ask(
        &self,
        question: Question,
        since_ms: u64,
    ) -> BoxFuture<'static, Result<Option<Question>, StorageError>>;

    /// The oldest first.
    async fn open_questions(&self) -> Result<Vec<Question>, StorageError>;

    async fn fate(&self, question: &str) -> Result<Option<Fate>, StorageError>;

    /// Answers, if it is still open. Its run is ready to go on if it waited.
    async fn decide(
        &self,
        question: &str,
        answer: Answer,
        by: &str,
    ) -> Result<Result<Question, Undecidable>, StorageError>;

    /// Nobody waits for the answer any more.
    async fn withdraw(&self, question: &str) -> Result<(), StorageError>;

    /// Forgets the runs that ended first, so that at most `keep` ended ones stay.
    async fn prune(&self, keep: usize) -> Result<usize, StorageError>;

    /// How many runs are not ended, of one kind and scope.
    async fn live(&self, kind: RunKind, scope: &str) -> Result<usize, StorageError>;
}

/// Milliseconds since 1970.
pub fn now_ms() -> u64 {
    let since_1970 = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default();
    u64::try_from(since_1970.as_millis()).unwrap_or(u64::MAX)
}
