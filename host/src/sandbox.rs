//! Components in sandboxes: loading them, and running each call in a fresh one. The only module that names
//! wasmtime.

mod bindings;
mod cache;
mod call;
pub mod compiler;
mod egress;
mod ending;
mod engine;
mod executor;
mod imports;
mod inspect;
mod kinds;
pub mod limits;
mod load;
mod metadata;
mod output;
mod refusal;
mod scrub;
mod secrets;
mod shape;
mod store;
mod wasi;

use std::{
    num::NonZero,
    path::PathBuf,
    sync::Arc,
    thread::available_parallelism,
    time::{Duration, Instant},
};

use tokio::sync::{OnceCell, OwnedSemaphorePermit, Semaphore};

use self::{
    cache::Cache,
    call::Running,
    compiler::Compiler,
    egress::Egress,
    engine::{GuestEngine, Profile},
    executor::GuestExecutor,
    kinds::Offer,
    load::Linked,
    output::GuestOutput,
};
pub use self::{
    executor::Executor,
    inspect::{Beside, FileKind, ImportNeeds, Inspection, inspect, inspect_with},
    kinds::Act,
    limits::{MANIFEST_BYTES, MAX_COMPONENT_BYTES},
    load::LoadError,
    metadata::{Definitions, MetadataError, SetAside},
};
use crate::{
    capability::{Limits, Reach, Request},
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
    /// Where components are compiled that the cache does not have.
    pub compiler: Compiler,
}

/// Runs components. Cheap to clone; the last one ends the ticker and the guests' executor.
#[derive(Clone)]
pub struct Sandbox {
    parts: Arc<Parts>,
}

struct Parts {
    executor: GuestExecutor,
    plain: Arc<GuestEngine>,
    /// Made for the first call with a fuel budget.
    metered: OnceCell<Arc<GuestEngine>>,
    cache: Option<Arc<Cache>>,
    compiler: Compiler,
    egress: Egress,
    slots: Arc<Semaphore>,
    extra_memories: Arc<Semaphore>,
    /// Calls that may be alive at once, and instances in the pool where there is one.
    max_live_calls: u32,
    pool: bool,
    /// Compilations that may run at once.
    compilers: Arc<Semaphore>,
}

/// A compiled component that can be called any number of times, each time as a fresh instance.
#[derive(Clone)]
pub struct Component {
    parts: Arc<ComponentParts>,
}

struct ComponentParts {
    /// The digest, or for a program that of it and its manifest.
    digest: ComponentDigest,
    /// Of the file alone: what the compiled code is kept under.
    wasm_digest: ComponentDigest,
    definitions: Definitions,
    plain: Linked,
    metered: OnceCell<Linked>,
    offer: Offer,
    /// For compiling it again with metering.
    wasm: Arc<[u8]>,
}

/// Hears what a running guest says. Called from the guests' executor; must not block.
pub trait GuestListener: Send + Sync {
    /// A line that the guest logged or printed; bounded, and controls are written out.
    fn logged(&self, level: LogLevel, text: String);
    fn progressed(&self, done: f64, total: Option<f64>, message: Option<String>);
}

/// A place among the live calls, free again when dropped.
pub struct Slot {
    _permit: OwnedSemaphorePermit,
}

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

/// How a call inside the sandbox ended.
#[derive(Debug)]
pub struct Ending {
    pub outcome: ToolOutcome,
    /// From the guest's start to its end.
    pub ran: Duration,
    pub peak_memory_bytes: usize,
    pub fuel_used: Option<u64>,
}

/// Why there is no sandbox.
#[derive(Debug, thiserror::Error)]
pub enum SandboxError {
    #[error("can't set up the WebAssembly engine: {why}{advice}")]
    Engine { why: String, advice: &'static str },
    #[error("can't start a thread for the guests: {0}")]
    Thread(std::io::Error),
    #[error("can't set up tools' requests: {0}")]
    Egress(Box<dyn std::error::Error + Send + Sync>),
}

impl Sandbox {
    /// Sets up the engine, the guests' executor and the cache. A cache that can't be used is told of in the log
    /// and costs only time.
    pub fn new(settings: SandboxSettings) -> Result<Self, SandboxError> {
        let cores = available_parallelism().map_or(1, NonZero::get);
        // More could never be admitted by a semaphore, and no pool is so large.
        let max_live_calls = u32::try_from(settings.max_live_calls)
            .unwrap_or(u32::MAX)
            .clamp(1, 1 << 20);
        let plain = GuestEngine::new(Profile::Plain, settings.pool.then_some(max_live_calls))?;
        let cache = settings.cache_dir.and_then(|dir| {
            Cache::open(&dir)
                .inspect_err(|e| tracing::warn!("compiled code is not kept: {e}"))
                .ok()
                .map(Arc::new)
        });
        Ok(Self {
            parts: Arc::new(Parts {
                executor: GuestExecutor::start(cores)?,
                plain: Arc::new(plain),
                metered: OnceCell::new(),
                cache,
                compiler: settings.compiler,
                egress: Egress::new(&settings.extra_ca_files)
                    .map_err(|e| SandboxError::Egress(Box::new(e)))?,
                slots: Arc::new(Semaphore::new(max_live_calls as usize)),
                extra_memories: Arc::new(Semaphore::new(
                    engine::extra_memories(max_live_calls) as usize
                )),
                max_live_calls,
                pool: settings.pool,
                compilers: Arc::new(Semaphore::new(cores)),
            }),
        })
    }

    /// Waits for a place. Waiting is on nobody's clock.
    #[expect(clippy::expect_used, reason = "nothing closes the semaphore")]
    pub async fn slot(&self) -> Slot {
        let permit = self.parts.slots.clone().acquire_owned().await;
        Slot {
            _permit: permit.expect("the semaphore is open"),
        }
    }

    /// Carries out one call in a fresh instance; its clock starts now, or once the component is compiled for
    /// counting fuel. Dropping the future stops the guest within a tick.
    pub async fn call(
        &self,
        slot: Slot,
        call: GuestCall<'_>,
        authorized: Authorized,
        executor: Executor,
        listener: Arc<dyn GuestListener>,
    ) -> Ending {
        let running = match self.prepare(slot, call, authorized, listener).await {
            Ok(running) => running,
            Err(e) => return Ending::internal(e.to_string()),
        };
        self.parts
            .executor
            .run(Box::pin(running.run()), executor)
            .await
    }

    async fn prepare(
        &self,
        slot: Slot,
        call: GuestCall<'_>,
        authorized: Authorized,
        listener: Arc<dyn GuestListener>,
    ) -> Result<Running, LoadError> {
        let linked = self.linked(call.component, call.limits).await?;
        let extra_memories = self.extra_memories(&linked).await?;
        let secrets = self.parts.egress.secrets(call.reach).await;
        let scrubber = secrets.as_ref().map(|secrets| secrets.scrubber().clone());
        let started = Instant::now();
        let deadline = call.limits.timeout.and_then(|t| started.checked_add(t));
        Ok(Running {
            egress: self
                .parts
                .egress
                .for_call(call.reach, call.plugin, secrets, deadline),
            component: call.component.clone(),
            plugin: call.plugin.clone(),
            _ticking: linked.guest.ticker.ticking(),
            linked,
            tool: call.tool.clone(),
            arguments: authorized.into_call().input,
            reach: call.reach.clone(),
            limits: *call.limits,
            output: GuestOutput::new(listener, scrubber.clone()),
            scrubber,
            started,
            deadline,
            _slot: (slot, extra_memories),
        })
    }

    /// A component with several memories waits for those beyond its slot's. Whoever has them is running.
    async fn extra_memories(
        &self,
        linked: &Linked,
    ) -> Result<Option<OwnedSemaphorePermit>, LoadError> {
        match linked.extra_memories {
            0 => Ok(None),
            more => {
                let permits = self.parts.extra_memories.clone().acquire_many_owned(more);
                permits.await.map(Some).map_err(load::internal)
            }
        }
    }
}

impl Component {
    /// Of the file; for a program, of it and the manifest that makes it a tool.
    pub fn digest(&self) -> ComponentDigest {
        self.parts.digest
    }

    /// From the custom section, or from one closed run of `list`.
    pub fn definitions(&self) -> &[ToolDefinition] {
        &self.parts.definitions.tools
    }

    /// Tools of the component that can't be offered, and why.
    pub fn set_aside(&self) -> &[SetAside] {
        &self.parts.definitions.set_aside
    }

    fn requests_of(&self, tool: &ToolName) -> &[Request] {
        self.definitions()
            .iter()
            .find(|definition| definition.name == *tool)
            .map_or(&[], |definition| &definition.requests)
    }
}

impl Ending {
    /// The guest did not run, or not to its end, for a fault of ours.
    fn internal(why: String) -> Self {
        Self {
            outcome: ToolOutcome::Internal { why },
            ran: Duration::ZERO,
            peak_memory_bytes: 0,
            fuel_used: None,
        }
    }
}
