//! Calls that wait for the client's next round in the revision without sessions, and the state that names them.
//!
//! The call itself stays here; the client carries only its name, sealed with this process's key and bound to the
//! tool and the arguments. A state that is changed, moved to another call or too old opens nothing.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError, Weak},
    time::Duration,
};

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use hmac::{Hmac, KeyInit as _, Mac as _};
use serde_json::{Map, Value};
use sha2::Sha256;
use tokio::task::AbortHandle;

use super::{ask::Asked, call::Call};

/// Calls that may wait at once; one more is refused.
const MAX_SUSPENDED: usize = 1024;
/// How long a call waits for the client's next round before it is ended.
pub(super) const WAIT: Duration = Duration::from_mins(10);
const ID_BYTES: usize = 16;
const SEAL_BYTES: usize = 32;

type Id = [u8; ID_BYTES];

/// Authenticates request state. Made anew by each process, whose calls die with it.
pub(super) struct StateKey([u8; 32]);

impl StateKey {
    pub(super) fn random() -> Result<Self, getrandom::Error> {
        let mut key = [0; 32];
        getrandom::fill(&mut key)?;
        Ok(Self(key))
    }

    fn seal_of(&self, id: &Id, tool: &str, arguments: &Map<String, Value>) -> Option<Hmac<Sha256>> {
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.0).ok()?;
        mac.update(id);
        mac.update(&(tool.len() as u64).to_le_bytes());
        mac.update(tool.as_bytes());
        let mut sorted = Value::Object(arguments.clone());
        sorted.sort_all_objects();
        mac.update(sorted.to_string().as_bytes());
        Some(mac)
    }
}

pub(super) struct Suspended {
    key: StateKey,
    waiting: Arc<Mutex<HashMap<Id, Waiting>>>,
}

/// A call, what it asks, and what ends it when nobody comes back.
struct Waiting {
    call: Call,
    asked: Asked,
    _expiry: Expiry,
}

struct Expiry(AbortHandle);

impl Drop for Expiry {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Why a call can't wait.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum NotSuspended {
    Full,
    NoRandomness,
}

impl Suspended {
    pub(super) fn new(key: StateKey) -> Self {
        Self {
            key,
            waiting: Arc::default(),
        }
    }

    /// Keeps a call; the text is the request state by which [`Self::take`] finds it.
    pub(super) fn keep(
        &self,
        call: Call,
        asked: Asked,
        tool: &str,
        arguments: &Map<String, Value>,
    ) -> Result<String, NotSuspended> {
        let mut id = [0; ID_BYTES];
        getrandom::fill(&mut id).map_err(|_| NotSuspended::NoRandomness)?;
        let seal = self
            .key
            .seal_of(&id, tool, arguments)
            .ok_or(NotSuspended::NoRandomness)?;
        let mut state = id.to_vec();
        state.extend_from_slice(&seal.finalize().into_bytes());
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        if waiting.len() >= MAX_SUSPENDED {
            return Err(NotSuspended::Full);
        }
        let expiry = tokio::spawn(expire(Arc::downgrade(&self.waiting), id));
        waiting.insert(
            id,
            Waiting {
                call,
                asked,
                _expiry: Expiry(expiry.abort_handle()),
            },
        );
        Ok(URL_SAFE_NO_PAD.encode(state))
    }

    /// The call that this state names, if it is ours, of this tool and these arguments, and still waits. Each
    /// state opens once.
    pub(super) fn take(
        &self,
        state: &str,
        tool: &str,
        arguments: &Map<String, Value>,
    ) -> Option<(Call, Asked)> {
        if state.len() > 2 * (ID_BYTES + SEAL_BYTES) {
            return None;
        }
        let state = URL_SAFE_NO_PAD.decode(state).ok()?;
        let (id, seal) = state.split_at_checked(ID_BYTES)?;
        let id: Id = id.try_into().ok()?;
        self.key
            .seal_of(&id, tool, arguments)?
            .verify_slice(seal)
            .ok()?;
        let waiting = self
            .waiting
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .remove(&id)?;
        Some((waiting.call, waiting.asked))
    }

    pub(super) fn clear(&self) {
        let ended =
            std::mem::take(&mut *self.waiting.lock().unwrap_or_else(PoisonError::into_inner));
        // Guests end outside of the lock.
        drop(ended);
    }
}

async fn expire(waiting: Weak<Mutex<HashMap<Id, Waiting>>>, id: Id) {
    tokio::time::sleep(WAIT).await;
    if let Some(waiting) = waiting.upgrade() {
        let ended = waiting
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .remove(&id);
        drop(ended);
    }
}
