//! The runs that this server drives. All that has to last is in storage; what is here is gone with the process, and
//! another one goes on from there.

use std::{
    collections::HashMap,
    panic::AssertUnwindSafe,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use futures_util::{FutureExt as _, future::BoxFuture};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tracing::Instrument as _;

use super::metrics::{CallWatch, Metrics};
use crate::{
    agent::{
        Left, ToolLoop,
        durable::{self, LeaseJournal, RunSpec, StoredApprover, Unreadable},
        record::Journal,
        resume::Resumed,
        spans,
        stop::{StopSignal, Stopper},
    },
    approvals::Approver,
    event::RunEvent,
    ids::RunId,
    storage::{
        IdempotencyKey, Keep, Lease, RunKind, RunState, RunStore, StorageError, StoredRun,
        Submitted, now_ms,
    },
    tool::Canceller,
};

/// Makes the agent of one run, as the settings say; or says why there is none.
pub type NewAgent = Arc<dyn Fn() -> Result<ToolLoop, String> + Send + Sync>;

/// How long all calls of a run may wait for a person before the run is put away until there is an answer.
const PUT_AWAY_AFTER: Duration = Duration::from_secs(2);
/// How often it is looked for runs of processes that died, and for questions whose time is over.
const LOOK: Duration = Duration::from_secs(5);
/// How long a full disk is left alone.
const STORAGE_PAUSE: Duration = Duration::from_secs(1);
/// Runs that are taken up at once.
const CLAIM: usize = 64;

/// Why a run was not begun, continued or stopped.
#[derive(Debug, thiserror::Error)]
pub(super) enum NotBegun {
    #[error("as many runs are live as this server takes")]
    Full,
    #[error("the same key came with another request")]
    OtherRequest,
    #[error("it has not ended")]
    IsLive,
    #[error("another process drives it")]
    IsElsewhere,
    #[error("this system gives no randomness")]
    NoRandomness,
    #[error(transparent)]
    Unreadable(#[from] Unreadable),
}

impl From<StorageError> for NotBegun {
    fn from(error: StorageError) -> Self {
        Self::Unreadable(error.into())
    }
}

pub(super) struct Runs {
    store: Arc<dyn RunStore>,
    scope: String,
    /// What stops a run that is driven here.
    driven: Mutex<HashMap<RunId, Stopper>>,
    /// Runs that have not ended, here or put away.
    n_open: AtomicUsize,
    tasks: TaskTracker,
    /// Runs leave what they are at.
    leave: CancellationToken,
    agents: NewAgent,
    metrics: Metrics,
    max_open: usize,
    max_ended: usize,
    n_ended: AtomicUsize,
    /// When this server began, in milliseconds since 1970.
    since_ms: u64,
}

impl Runs {
    pub(super) fn new(
        store: Arc<dyn RunStore>,
        scope: String,
        agents: NewAgent,
        metrics: Metrics,
        max_open: usize,
        max_ended: usize,
    ) -> Self {
        Self {
            store,
            scope,
            driven: Mutex::default(),
            n_open: AtomicUsize::new(0),
            tasks: TaskTracker::new(),
            leave: CancellationToken::new(),
            agents,
            metrics,
            max_open,
            max_ended,
            n_ended: AtomicUsize::new(0),
            since_ms: now_ms(),
        }
    }

    /// Asks people through storage, about a run's calls or a client's own.
    pub(super) fn approver(&self, run: Option<RunId>) -> Arc<dyn Approver> {
        Arc::new(StoredApprover {
            store: Arc::clone(&self.store),
            run,
            answer_within: durable::ANSWER_WITHIN,
            scope: self.scope.clone(),
            since_ms: self.since_ms,
        })
    }

    /// Begins a run; or finds the one that the same key began. The flag says which.
    pub(super) async fn begin(
        self: &Arc<Self>,
        agent: ToolLoop,
        spec: RunSpec,
        key: Option<IdempotencyKey>,
    ) -> Result<(StoredRun, bool), NotBegun> {
        let place = Place::take(self).ok_or(NotBegun::Full)?;
        let id = RunId::random().map_err(|_| NotBegun::NoRandomness)?;
        let run = spec.to_new_run(id, RunKind::Served, self.scope.clone());
        let mut run = run.map_err(|error| Unreadable::Spec {
            run: id,
            why: error.to_string(),
        })?;
        run.key = key;
        let lease = match self.store.submit(run).await? {
            Submitted::Known(run) => return Ok((run, false)),
            Submitted::OtherRequest => return Err(NotBegun::OtherRequest),
            Submitted::New(lease) => lease,
        };
        let run = lease.run.clone();
        place.keep();
        let resumed = Resumed::new(spec.limits, spec.messages);
        self.go(lease, agent, resumed, Stopper::new(), None);
        Ok((run, true))
    }

    /// Goes on from where a run has ended, with more of the user's.
    pub(super) async fn say(self: &Arc<Self>, id: RunId, text: String) -> Result<(), NotBegun> {
        let place = Place::take(self).ok_or(NotBegun::Full)?;
        let lease = self.claim(id).await?;
        let taken = async {
            if lease.run.state != RunState::Ended {
                return Err(NotBegun::IsLive);
            }
            let (agent, mut resumed) = self.taken_up(&lease).await?;
            let said = RunEvent::RunContinued { text };
            self.store.append(&lease, &said, Keep::Durably).await?;
            resumed.apply(&said);
            Ok((agent, resumed))
        };
        let (agent, resumed) = match taken.await {
            Ok(taken) => taken,
            Err(error) => {
                self.store.release(&lease).await?;
                return Err(error);
            }
        };
        place.keep();
        self.go(lease, agent, resumed, Stopper::new(), None);
        Ok(())
    }

    /// Stops a run. One that has ended stays as it is.
    pub(super) async fn stop(self: &Arc<Self>, id: RunId) -> Result<(), NotBegun> {
        if let Some(stopper) = self.driven().get(&id) {
            stopper.stop(Canceller::User);
            return Ok(());
        }
        let Some(run) = self.store.run(id).await? else {
            return Ok(());
        };
        if run.state == RunState::Ended {
            return Ok(());
        }
        // It was put away: it is taken up to be ended, so that its record tells.
        let lease = match self.claim(id).await {
            Ok(lease) => lease,
            Err(NotBegun::IsLive) => {
                // Taken up here at the same moment.
                if let Some(stopper) = self.driven().get(&id) {
                    stopper.stop(Canceller::User);
                }
                return Ok(());
            }
            Err(error) => return Err(error),
        };
        let stopper = Stopper::new();
        stopper.0.stop(Canceller::User);
        self.take_up(lease, stopper).await;
        Ok(())
    }

    /// A run that nobody drives.
    async fn claim(&self, id: RunId) -> Result<Lease, NotBegun> {
        match self.store.claim_run(id).await? {
            Some(lease) => Ok(lease),
            None if self.driven().contains_key(&id) => Err(NotBegun::IsLive),
            None => Err(NotBegun::IsElsewhere),
        }
    }

    /// The agent of a stored run, and the run as far as it has come.
    async fn taken_up(&self, lease: &Lease) -> Result<(ToolLoop, Resumed), NotBegun> {
        let spec = durable::spec(&*self.store, &lease.run).await?;
        let unfit = |why: String| Unreadable::Spec {
            run: lease.run.id,
            why,
        };
        let agent = (self.agents)().map_err(unfit)?;
        let agent = spec
            .applied_to(agent)
            .map_err(|error| unfit(error.to_string()))?;
        let resumed = durable::replayed(&*self.store, &lease.run, &spec).await?;
        Ok((agent, resumed))
    }

    async fn take_up(self: &Arc<Self>, lease: Lease, stopper: (Stopper, StopSignal)) {
        match self.taken_up(&lease).await {
            Ok((agent, resumed)) => {
                let note = "the run goes on from what is kept of it".to_owned();
                self.go(lease, agent, resumed, stopper, Some(note));
            }
            Err(error) => {
                tracing::warn!(run = %lease.run.id, "a run can't go on: {error}");
                self.failed(&lease, format!("it can't go on: {error}"))
                    .await;
                self.n_open.fetch_sub(1, Ordering::Relaxed);
            }
        }
    }

    async fn failed(&self, lease: &Lease, text: String) {
        let ended = RunEvent::RunEnded {
            status: "failed".into(),
            text,
            usage: lease.run.usage,
        };
        if let Err(error) = self.store.append(lease, &ended, Keep::Durably).await {
            tracing::warn!(run = %lease.run.id, "its end could not be written: {error}");
        }
    }

    fn go(
        self: &Arc<Self>,
        lease: Lease,
        mut agent: ToolLoop,
        resumed: Resumed,
        (stopper, signal): (Stopper, StopSignal),
        note: Option<String>,
    ) {
        let id = lease.run.id;
        if agent.deps.approver.is_none() {
            agent.deps.approver = Some(self.approver(Some(id)));
        }
        agent
            .deps
            .observers
            .push(Arc::new(CallWatch::new(&self.metrics)));
        let span = spans::invoke_agent(&agent, id);
        self.driven().insert(id, stopper.clone());
        self.metrics.run_began();
        let runs = Arc::clone(self);
        let driving = async move {
            let lease = Arc::new(lease);
            let journal = Arc::new(LeaseJournal::new(
                Arc::clone(&runs.store),
                Arc::clone(&lease),
            ));
            if let Some(text) = note {
                journal.pass(&RunEvent::Noted { text });
            }
            let journals = vec![journal as Arc<dyn Journal>];
            let running = agent.go_on(resumed, stopper, signal, journals, Some(PUT_AWAY_AFTER));
            let left = tokio::select! {
                biased;
                left = AssertUnwindSafe(running).catch_unwind() => Some(left),
                // Its calls are killed, and its record says how far they had come.
                () = runs.leave.cancelled() => None,
            };
            runs.left(&lease, left).await;
        };
        self.tasks.spawn(driving.instrument(span));
    }

    /// Something ended the driving of a run.
    async fn left(self: &Arc<Self>, lease: &Lease, left: Option<std::thread::Result<Left>>) {
        let id = lease.run.id;
        let ended = |status: &'static str| {
            self.n_open.fetch_sub(1, Ordering::Relaxed);
            self.driven().remove(&id);
            self.metrics.run_ended(status);
        };
        match left {
            Some(Ok(Left::Ended(result))) => {
                spans::agent_ended(&tracing::Span::current(), &result);
                ended(result.status.word());
                self.prune().await;
            }
            Some(Err(_)) => {
                self.failed(
                    lease,
                    "this host has a fault; its log has the details".into(),
                )
                .await;
                ended("failed");
            }
            Some(Ok(Left::NotRecorded { error, .. })) => {
                tracing::warn!(run = %id, "a run is put away: {error}");
                // It is taken up again as soon as it is given back.
                tokio::select! {
                    () = self.leave.cancelled() => {}
                    () = tokio::time::sleep(STORAGE_PAUSE) => {}
                }
                self.put_away(lease).await;
            }
            Some(Ok(Left::WaitsForPerson)) | None => self.put_away(lease).await,
        }
    }

    /// Gives a run back, for as long as it takes.
    async fn put_away(self: &Arc<Self>, lease: &Lease) {
        loop {
            match self.store.release(lease).await {
                // Fenced: somebody else drives it by now.
                Ok(()) | Err(StorageError::Fenced) => break,
                Err(error) if self.leave.is_cancelled() => {
                    tracing::warn!(run = %lease.run.id, "left as it is: {error}");
                    break;
                }
                Err(_) => tokio::time::sleep(STORAGE_PAUSE).await,
            }
        }
        let stopper = self.driven().remove(&lease.run.id);
        self.metrics.run_left();
        // Somebody stopped it while it was being put away.
        let is_stopped = stopper.is_some_and(|stopper| stopper.is_stopped().is_some());
        if is_stopped && !self.leave.is_cancelled() {
            let stopping: BoxFuture<'_, _> = self.stop(lease.run.id).boxed();
            if let Err(error) = stopping.await {
                tracing::warn!(run = %lease.run.id, "it could not be stopped: {error}");
            }
        }
    }

    async fn prune(&self) {
        // Seldom, since it has to look through what it keeps.
        let n_ended = self.n_ended.fetch_add(1, Ordering::Relaxed);
        if n_ended.is_multiple_of((self.max_ended / 100).max(1))
            && let Err(error) = self.store.prune(self.max_ended).await
        {
            tracing::warn!("runs that ended long ago could not be forgotten: {error}");
        }
    }

    /// Learns how many runs earlier processes have left. Before the first of its own begins.
    pub(super) async fn count_what_is_left(&self) {
        match self.store.live(RunKind::Served, &self.scope).await {
            Ok(live) => self.n_open.store(live, Ordering::Relaxed),
            Err(error) => tracing::warn!("{error}"),
        }
    }

    /// Takes up what earlier processes have left and what can go on, until `stopping`.
    pub(super) async fn take_up_what_is_ready(self: Arc<Self>, stopping: CancellationToken) {
        let mut changes = self.store.changes();
        while !stopping.is_cancelled() {
            changes.mark_unchanged();
            let claimed = match self.store.claim(RunKind::Served, &self.scope, CLAIM).await {
                Ok(claimed) => claimed,
                Err(error) => {
                    tracing::warn!("{error}");
                    Vec::new()
                }
            };
            let is_all = claimed.len() < CLAIM;
            for lease in claimed {
                self.take_up(lease, Stopper::new()).await;
            }
            if is_all {
                tokio::select! {
                    () = stopping.cancelled() => {}
                    _ = changes.changed() => {}
                    () = tokio::time::sleep(LOOK) => {}
                }
            }
        }
    }

    /// Waits for runs that are driven, but only for as long as `patience`; then they are put away as they are, and
    /// go on when a server does.
    pub(super) async fn finish(&self, patience: Duration) {
        self.tasks.close();
        let all = self.tasks.wait();
        if tokio::time::timeout(patience, all).await.is_err() {
            self.leave.cancel();
            self.tasks.wait().await;
        }
    }

    fn driven(&self) -> std::sync::MutexGuard<'_, HashMap<RunId, Stopper>> {
        self.driven.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A place among the runs that have not ended.
struct Place<'a>(&'a AtomicUsize);

impl<'a> Place<'a> {
    fn take(runs: &'a Runs) -> Option<Self> {
        let taken = |n: usize| (n < runs.max_open).then_some(n + 1);
        runs.n_open
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, taken)
            .ok()
            .map(|_| Self(&runs.n_open))
    }

    /// The run gives it back.
    fn keep(self) {
        std::mem::forget(self);
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
