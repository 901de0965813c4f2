//! The one thread that writes. What waits when it comes to it is committed together: one write to the disk for as
//! many runs as have something to say.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
        mpsc::{Receiver, RecvTimeoutError, Sender, channel},
    },
    time::Duration,
};

use futures_util::{FutureExt as _, future::BoxFuture};
use rusqlite::Connection;
use tokio::sync::{oneshot, watch};

use super::Place;
use crate::storage::StorageError;

/// Jobs of one commit.
const MAX_BATCH: usize = 1024;
/// How often it is looked for what other processes have written, while somebody waits for changes.
const LOOK: Duration = Duration::from_millis(150);

/// What a job finds.
pub(super) struct Ctx<'a> {
    pub(super) db: &'a Connection,
    pub(super) place: &'a Place,
    news: &'a mut News,
}

#[derive(Default)]
struct News {
    /// How many events each run has now.
    tails: HashMap<u64, u64>,
    changes: bool,
}

impl Ctx<'_> {
    /// Once it is committed, readers of this run hear of it.
    pub(super) fn grew(&mut self, run: u64, next_seq: u64) {
        self.news.tails.insert(run, next_seq);
    }

    /// Once it is committed, whoever waits for questions and states hears of it.
    pub(super) fn changed(&mut self) {
        self.news.changes = true;
    }
}

/// Told once the commit is through, or why it is not.
type Ack = Box<dyn FnOnce(Option<&StorageError>) + Send>;
type Job = Box<dyn FnOnce(Result<&mut Ctx<'_>, StorageError>) -> Done + Send>;

struct Done {
    /// False: what it did has to be undone.
    is_good: bool,
    ack: Ack,
}

enum Order {
    Job(Job),
    /// Somebody waits for changes now.
    Look,
}

/// Where orders are given, and where news are heard.
pub(super) struct Writer {
    orders: Sender<Order>,
    queued: Arc<AtomicUsize>,
    tails: Arc<Tails>,
    changes: watch::Sender<u64>,
    place: Place,
}

/// Readers that wait for events.
#[derive(Default)]
struct Tails(Mutex<HashMap<u64, watch::Sender<u64>>>);

impl Tails {
    fn locked(&self) -> std::sync::MutexGuard<'_, HashMap<u64, watch::Sender<u64>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tell(&self, news: &HashMap<u64, u64>) {
        let mut tails = self.locked();
        for (run, next_seq) in news {
            if let Some(tail) = tails.get(run) {
                if tail.receiver_count() == 0 {
                    tails.remove(run);
                } else {
                    tail.send_replace(*next_seq);
                }
            }
        }
    }

    fn wake_all(&self) {
        let mut tails = self.locked();
        tails.retain(|_, tail| tail.receiver_count() > 0);
        for tail in tails.values() {
            tail.send_modify(|_| {});
        }
    }
}

impl Writer {
    pub(super) fn start(db: Connection, place: Place) -> std::io::Result<Self> {
        let (orders, received) = channel();
        let queued = Arc::new(AtomicUsize::new(0));
        let tails = Arc::new(Tails::default());
        let changes = watch::Sender::new(0);
        let thread = Thread {
            db,
            place: place.clone(),
            received,
            queued: Arc::clone(&queued),
            tails: Arc::clone(&tails),
            changes: changes.clone(),
        };
        // It ends when the last sender is gone.
        std::thread::Builder::new()
            .name("agentloop-storage".into())
            .spawn(move || thread.work())?;
        Ok(Self {
            orders,
            queued,
            tails,
            changes,
            place,
        })
    }

    /// How many jobs wait.
    pub(super) fn queued(&self) -> usize {
        self.queued.load(Ordering::Relaxed)
    }

    pub(super) fn tail(&self, run: u64) -> watch::Receiver<u64> {
        let receiver = {
            let mut tails = self.tails.locked();
            let tail = tails.entry(run).or_insert_with(|| watch::Sender::new(0));
            tail.subscribe()
        };
        let _ = self.orders.send(Order::Look);
        receiver
    }

    pub(super) fn changes(&self) -> watch::Receiver<u64> {
        let receiver = self.changes.subscribe();
        let _ = self.orders.send(Order::Look);
        receiver
    }

    /// Does `job` in a commit with others. Its effects are undone where it fails. The place among the jobs is taken
    /// at once; the answer comes once the commit is on the disk.
    pub(super) fn write<T: Send + 'static>(
        &self,
        job: impl FnOnce(&mut Ctx<'_>) -> Result<T, StorageError> + Send + 'static,
    ) -> BoxFuture<'static, Result<T, StorageError>> {
        let (answer, answered) = oneshot::channel();
        let job = move |ctx: Result<&mut Ctx<'_>, StorageError>| {
            let done = ctx.and_then(job);
            let is_good = done.is_ok();
            let ack: Ack = Box::new(move |failed| {
                let _ = answer.send(match (done, failed) {
                    (Ok(_), Some(error)) => Err(error.clone()),
                    (done, _) => done,
                });
            });
            Done { is_good, ack }
        };
        self.queued.fetch_add(1, Ordering::Relaxed);
        let _ = self.orders.send(Order::Job(Box::new(job)));
        let place = self.place.clone();
        let fault = "its thread has a fault; the log has the details";
        async move { answered.await.unwrap_or_else(|_| Err(place.failed(fault))) }.boxed()
    }
}

struct Thread {
    db: Connection,
    place: Place,
    received: Receiver<Order>,
    queued: Arc<AtomicUsize>,
    tails: Arc<Tails>,
    changes: watch::Sender<u64>,
}

impl Thread {
    fn work(mut self) {
        let mut seen = self.version();
        loop {
            let order = match self.is_watched() {
                true => self.received.recv_timeout(LOOK),
                false => self
                    .received
                    .recv()
                    .map_err(|_| RecvTimeoutError::Disconnected),
            };
            match order {
                Ok(Order::Job(first)) => self.commit(first),
                Ok(Order::Look) => {}
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            let now = self.version();
            if now != seen {
                seen = now;
                self.tails.wake_all();
                self.changes.send_modify(|n| *n += 1);
            }
        }
    }

    fn is_watched(&self) -> bool {
        self.changes.receiver_count() > 0 || !self.tails.locked().is_empty()
    }

    /// Changes with what other connections commit.
    fn version(&self) -> i64 {
        self.db
            .pragma_query_value(None, "data_version", |row| row.get(0))
            .unwrap_or_default()
    }

    fn commit(&mut self, first: Job) {
        let mut news = News::default();
        let mut acks = Vec::new();
        let mut next = Some(first);
        let begun = self.db.execute_batch("BEGIN IMMEDIATE");
        let mut failed = begun.err();
        while let Some(job) = next.take() {
            self.queued.fetch_sub(1, Ordering::Relaxed);
            if failed.is_none() {
                failed = self.db.execute_batch("SAVEPOINT job").err();
            }
            let ctx = match &failed {
                None => Ok(&mut Ctx {
                    db: &self.db,
                    place: &self.place,
                    news: &mut news,
                }),
                Some(error) => Err(self.place.error(error)),
            };
            let done = job(ctx);
            if failed.is_none() {
                let end = match done.is_good {
                    true => "RELEASE job",
                    false => "ROLLBACK TO job; RELEASE job",
                };
                failed = self.db.execute_batch(end).err();
            }
            acks.push(done.ack);
            if acks.len() < MAX_BATCH {
                next = loop {
                    match self.received.try_recv() {
                        Ok(Order::Job(job)) => break Some(job),
                        Ok(Order::Look) => {}
                        Err(_) => break None,
                    }
                };
            }
        }
        if failed.is_none() {
            failed = self.db.execute_batch("COMMIT").err();
        }
        let failed = failed.map(|error| self.place.error(&error));
        if let Some(error) = &failed {
            tracing::warn!("{error}");
            if !self.db.is_autocommit() {
                let _ = self.db.execute_batch("ROLLBACK");
            }
        }
        for ack in acks {
            ack(failed.as_ref());
        }
        if failed.is_none() {
            self.tails.tell(&news.tails);
            if news.changes {
                self.changes.send_modify(|n| *n += 1);
            }
        }
    }
}
