//! Components in sandboxes: loading them, and running each call in a fresh one. The only module that names
//! wasmtime.

mod egress;

use std::{path::PathBuf, sync::Arc, time::Duration};

use crate::{
    capability::{Limits, Reach},
    event::LogLevel,
    ids::{ComponentDigest, PluginName, ToolName},
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

/// A place among the live calls.
pub struct Slot(());

/// What to call, and within which bounds.
#[derive(Clone, Copy)]
pub struct GuestCall<'a> {
    pub component: &'a Component,
    /// The tool's name inside the component.
    pub tool: &'a ToolName,
    /// For messages.
    pub plugin: &'a PluginName,
    pub reach: &'a Reach,
    pub limits: &'a Limits,
}

impl Sandbox {
    /// Checks, compiles (or takes from the cache) and links a component.
    pub async fn load(&self, _wasm: Arc<[u8]>) -> Result<Component, LoadError> {
        unimplemented!()
    }

    /// Waits for a place. Waiting is on nobody's clock.
    pub async fn slot(&self) -> Slot {
        unimplemented!()
    }

    /// Carries out one call in a fresh instance; its clock starts now. Dropping the future stops the guest
    /// within a tick.
    pub async fn call(
        &self,
        _slot: Slot,
        _call: GuestCall<'_>,
        _authorized: Authorized,
        _executor: Executor,
        _listener: Arc<dyn GuestListener>,
    ) -> Ending {
        unimplemented!()
    }
}

/// The largest component file.
pub const MAX_COMPONENT_BYTES: usize = 64 << 20;

impl Component {
    pub fn set_aside(&self) -> &[crate::registry::SetAside] {
        unimplemented!()
    }

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
