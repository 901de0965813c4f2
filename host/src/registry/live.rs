//! The tools that are offered now, where that can change while the program runs.

use std::sync::Arc;

use tokio::sync::watch;

use super::Registry;

/// One registry after another. Whoever needs one that stays as it is takes [`now`](Self::now): a run does so once
/// a turn, so that a change reaches it between turns. Cheap to clone; all clones see the same.
#[derive(Clone)]
pub struct LiveRegistry(watch::Sender<Arc<Registry>>);

impl LiveRegistry {
    pub fn now(&self) -> Arc<Registry> {
        Arc::clone(&self.0.borrow())
    }

    /// Offers other tools from now on. Running calls keep what they were started with.
    pub fn replace(&self, registry: Arc<Registry>) {
        self.0.send_replace(registry);
    }

    /// Hears of every later change, of several at once only of the last.
    pub fn subscribe(&self) -> watch::Receiver<Arc<Registry>> {
        self.0.subscribe()
    }
}

impl From<Arc<Registry>> for LiveRegistry {
    fn from(registry: Arc<Registry>) -> Self {
        Self(watch::Sender::new(registry))
    }
}
