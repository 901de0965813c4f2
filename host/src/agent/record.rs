//! The one place through which events leave a run: what is durable first, then whoever watches.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use crate::event::{Observer, RunEvent};

/// Keeps events. An error stops the run before anything else happens.
pub trait Journal: Send {
    fn append(&mut self, event: &RunEvent) -> std::io::Result<()>;
}

/// The journal could not be written.
#[derive(Debug, thiserror::Error)]
#[error("the run's record could not be written: {0}; nothing was started that is not in it")]
pub struct NotRecorded(#[source] pub std::io::Error);

/// Records first, shows second.
pub(crate) struct Recorder {
    /// Held for one append, never across an await.
    journal: Option<Mutex<Box<dyn Journal>>>,
    observers: Vec<Watching>,
}

struct Watching {
    observer: Arc<dyn Observer>,
    panicked: AtomicBool,
}

impl Recorder {
    pub(crate) fn new(journal: Option<Box<dyn Journal>>, observers: &[Arc<dyn Observer>]) -> Self {
        let observers = observers
            .iter()
            .map(|observer| Watching {
                observer: Arc::clone(observer),
                panicked: AtomicBool::new(false),
            })
            .collect();
        Self {
            journal: journal.map(Mutex::new),
            observers,
        }
    }

    /// Whether anybody takes events; where nobody does, those that are costly to make need not be made.
    pub(crate) fn is_heard(&self) -> bool {
        self.journal.is_some() || !self.observers.is_empty()
    }

    pub(crate) fn record(&self, event: &RunEvent) -> Result<(), NotRecorded> {
        if let Some(journal) = &self.journal {
            let mut journal = journal.lock().unwrap_or_else(PoisonError::into_inner);
            journal.append(event).map_err(NotRecorded)?;
        }
        self.show(event);
        Ok(())
    }

    /// For what is not worth keeping, such as each piece of streamed text.
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
