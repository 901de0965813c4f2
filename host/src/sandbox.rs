//! Components in sandboxes: loading them, and running each call in a fresh one. The only module that names
//! wasmtime.

use std::{path::PathBuf, sync::Arc, time::Duration};

use crate::{
    capability::{Limits, Reach},
    event::LogLevel,
    ids::ComponentDigest,
    policy::Authorized,
    tool::{ToolDefinition, ToolOutcome},
};

/// How a sandbox is set up; the operator's side.
#[derive(Debug, Clone)]
pub struct SandboxSettings {
    /// Where compiled code is kept between starts; `None` keeps none. Private to this user.
    pub cache_dir: Option<PathBuf>,
    /// Calls that may be alive at once; more wait in line, on nobody's clock.
    pub max_live_calls: usize,
    /// False for hosts that forbid large address-space reservations; calls then cost more.
    pub pool: bool,
    /// PEM files with further certificate authorities, for tools' requests.
    pub extra_ca_files: Vec<PathBuf>,
}

/// Runs components. Cheap to clone; the last one ends the ticker and the guests' executor.
#[derive(Clone)]
pub struct Sandbox {
    _todo: Arc<()>,
}

/// A compiled component that can be called any number of times, each time as a fresh instance.
#[derive(Clone)]
pub struct Component {
    _todo: Arc<()>,
}

/// Hears what a running guest says. Called from the guests' executor; must not block.
pub trait GuestListener: Send + Sync {
    fn logged(&self, level: LogLevel, text: String);
    fn progressed(&self, done: f64, total: Option<f64>, message: Option<String>);
}

/// How a call inside the sandbox ended.
#[derive(Debug)]
pub struct Ending {
    pub outcome: ToolOutcome,
    /// From the guest's start to its end.
    pub ran: Duration,
    pub peak_memory_bytes: usize,
    pub fuel_used: Option<u64>,
}

/// Where a call's guest code runs while it does not wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Executor {
    /// On the caller's thread up to its first pause or for one tick (1 ms), then among the guests: saves
    /// two thread switches for calls that are over in microseconds.
    CallerFirst,
    /// Among the guests from the start; for calls that are to run beside each other.
    Guests,
}

impl Sandbox {
    /// Checks, compiles (or takes from the cache) and links a component.
    pub async fn load(&self, _wasm: Arc<[u8]>) -> Result<Component, LoadError> {
        unimplemented!()
    }

    /// Carries out one call in a fresh instance. Dropping the future stops the guest within a tick.
    ///
    /// `started` is called once, when a slot is held and the clock starts, before the guest's first
    /// instruction.
    pub async fn call(
        &self,
        _component: &Component,
        _call: Authorized,
        _reach: &Reach,
        _limits: &Limits,
        _executor: Executor,
        _listener: Arc<dyn GuestListener>,
        _started: &mut (dyn FnMut() + Send),
    ) -> Ending {
        unimplemented!()
    }
}

impl Component {
    pub fn digest(&self) -> ComponentDigest {
        unimplemented!()
    }

    /// From the custom section, or from one closed run of `list`.
    pub fn definitions(&self) -> &[ToolDefinition] {
        unimplemented!()
    }
}

/// Why a file is not a component that this host can run. Each variant's text says what to do.
#[derive(Debug, thiserror::Error)]
#[error("stub")]
pub struct LoadError;
