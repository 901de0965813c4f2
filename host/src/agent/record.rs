//! The one place through which events leave a run: what is durable first, then whoever watches.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use futures_util::future::BoxFuture;

use crate::event::{Observer, RunEvent};

/// Keeps events. An error stops the run before anything else happens.
pub trait Journal: Send + Sync {
    /// Takes the event in its place behind all before it. The future ends when it is kept as safely as its kind
    /// needs; nothing that follows from the event is done before.
    fn append(&self, event: &RunEvent) -> BoxFuture<'static, std::io::Result<()>>;

    /// What is worth watching and not worth waiting for, such as each piece of streamed text.
    fn pass(&self, _event: &RunEvent) {}
}

/// The journal could not be written.
#[derive(Debug, thiserror::Error)]
#[error("the run's record could not be written: {0}; nothing was started that is not in it")]
pub struct NotRecorded(#[source] pub std::io::Error);

/// Records first, shows second.
pub(crate) struct Recorder {
    journals: Vec<Arc<dyn Journal>>,
    observers: Vec<Watching>,
}

struct Watching {
    observer: Arc<dyn Observer>,
    panicked: AtomicBool,
}

impl Recorder {
    pub(crate) fn new(journals: Vec<Arc<dyn Journal>>, observers: &[Arc<dyn Observer>]) -> Self {
        let observers = observers
            .iter()
            .map(|observer| Watching {
                observer: Arc::clone(observer),
                panicked: AtomicBool::new(false),
            })
            .collect();
        Self {
            journals,
            observers,
        }
    }

    /// Whether anybody takes events; where nobody does, those that are costly to make need not be made.
    pub(crate) fn is_heard(&self) -> bool {
        !self.journals.is_empty() || !self.observers.is_empty()
    }

    pub(crate) async fn record(&self, event: &RunEvent) -> Result<(), NotRecorded> {
        let appended = self.journals.iter().map(|journal| journal.append(event));
        // The place of the event is taken in all of them before any wait.
        for kept in appended.collect::<Vec<_>>() {
            kept.await.map_err(NotRecorded)?;
        }
        self.show(event);
        Ok(())
    }

    /// For what is not worth waiting for.
    pub(crate) fn pass(&self, event: &RunEvent) {
        for journal in &self.journals {
            journal.pass(event);
        }
        self.show(event);
    }

    pub(crate) fn show(&self, event: &RunEvent) {
        for watching in &self.observers {
            if watching.panicked.load(Ordering::Relaxed) {
                continue;
            }
            if catch_unwind(AssertUnwindSafe(|| watching.observer.observe(event))).is_err() {
                watching.panicked.store(true, Ordering::Relaxed);
                tracing::warn!("an observer panicked and hears nothing more of this run");
            }
        }
    }
}
