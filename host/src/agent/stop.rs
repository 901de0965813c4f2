//! Stopping a run from outside.

use tokio::sync::watch;

use crate::tool::Canceller;

/// Stops what listens to its [`StopSignal`]s. The first stop counts.
#[derive(Debug, Clone)]
pub struct Stopper(watch::Sender<Option<Canceller>>);

/// Tells when, and by whom, a run was stopped.
#[derive(Debug, Clone)]
pub struct StopSignal(watch::Receiver<Option<Canceller>>);

impl Stopper {
    pub fn new() -> (Self, StopSignal) {
        let (sender, receiver) = watch::channel(None);
        (Self(sender), StopSignal(receiver))
    }

    pub fn stop(&self, by: Canceller) {
        self.0.send_if_modified(|state| {
            let first = state.is_none();
            if first {
                *state = Some(by);
            }
            first
        });
    }
}

impl Stopper {
    pub fn is_stopped(&self) -> Option<Canceller> {
        *self.0.borrow()
    }
}

impl StopSignal {
    /// A signal that never comes.
    pub fn never() -> Self {
        Self(watch::channel(None).1)
    }

    /// Ends when somebody stops the run; never ends if nobody can any more.
    pub async fn stopped(&self) -> Canceller {
        let mut receiver = self.0.clone();
        let by = receiver
            .wait_for(Option::is_some)
            .await
            .ok()
            .and_then(|by| *by);
        match by {
            Some(by) => by,
            None => std::future::pending().await,
        }
    }

    pub fn is_stopped(&self) -> Option<Canceller> {
        *self.0.borrow()
    }
}
