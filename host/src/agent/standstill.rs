//! Whether all calls of a turn wait for a person, so that nothing would be lost by putting the run away.

use std::time::Duration;

use tokio::sync::watch;

#[derive(Debug, Default, Clone, Copy)]
struct Counts {
    open: usize,
    waiting: usize,
}

impl Counts {
    fn is_standstill(self) -> bool {
        self.open > 0 && self.open == self.waiting
    }
}

/// Counts the calls of a turn.
#[derive(Debug)]
pub(crate) struct Standstill(watch::Sender<Counts>);

/// Held by a call that waits for a person, or for a call that may do so.
pub(crate) struct Waits<'a>(&'a Standstill);

impl Standstill {
    pub(crate) fn of(open: usize) -> Self {
        Self(watch::Sender::new(Counts { open, waiting: 0 }))
    }

    pub(crate) fn call_ended(&self) {
        self.0.send_modify(|counts| counts.open -= 1);
    }

    pub(crate) fn waits(&self) -> Waits<'_> {
        self.0.send_modify(|counts| counts.waiting += 1);
        Waits(self)
    }

    /// Ends once nothing but waiting went on for as long as `grace`.
    pub(crate) async fn lasted(&self, grace: Duration) {
        let mut counts = self.0.subscribe();
        loop {
            // Its sender is borrowed here, so that it can't be gone.
            let _ = counts.wait_for(|counts| counts.is_standstill()).await;
            let over = counts.wait_for(|counts| !counts.is_standstill());
            if tokio::time::timeout(grace, over).await.is_err() {
                return;
            }
        }
    }
}

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        self.0.0.send_modify(|counts| counts.waiting -= 1);
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    #[tokio::test]
    async fn it_is_one_when_every_open_call_waits() {
        let standstill = Standstill::of(2);
        let first = standstill.waits();
        assert!(standstill.lasted(Duration::ZERO).now_or_never().is_none());
        standstill.call_ended();
        standstill.lasted(Duration::ZERO).await;
        drop(first);
        assert!(standstill.lasted(Duration::ZERO).now_or_never().is_none());
    }
}
