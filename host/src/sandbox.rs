//! Components in sandboxes: loading them, and running each call in a fresh one. The only module that names
//! wasmtime.

mod bindings;
mod cache;
mod egress;
mod ending;
mod engine;
mod imports;
mod inspect;
pub mod limits;
mod metadata;
mod output;
mod refusal;
mod store;
mod text;
mod wasi;

use std::{
    num::NonZero,
    panic::AssertUnwindSafe,
    path::PathBuf,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker},
    thread::available_parallelism,
    time::{Duration, Instant},
};

use tokio::{
    runtime::Runtime,
    sync::{OnceCell, OwnedSemaphorePermit, Semaphore},
    task::JoinHandle,
};

use self::{
    bindings::ToolPre,
    cache::Cache,
    egress::{CallEgress, Egress},
    ending::{Facts, Ran},
    engine::{GuestEngine, Profile, Ticking},
    limits::{COMPILE_WAIT, MEMORIES_PER_CALL, METADATA_MEMORY_BYTES, METADATA_TIMEOUT},
    output::GuestOutput,
    store::{CallState, StoreLimits},
};
pub use self::{
    inspect::{FileKind, Inspection, inspect},
    limits::MAX_COMPONENT_BYTES,
    metadata::{Definitions, MetadataError, SetAside},
};
use crate::{
    capability::{Access, Limits, Reach},
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
    parts: Arc<Parts>,
}

struct Parts {
    executor: GuestExecutor,
    plain: Arc<GuestEngine>,
    /// Made for the first call with a fuel budget.
    metered: OnceCell<Arc<GuestEngine>>,
    cache: Option<Arc<Cache>>,
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
    digest: ComponentDigest,
    definitions: Definitions,
    plain: Linked,
    metered: OnceCell<Linked>,
    /// For compiling it again with metering.
    wasm: Arc<[u8]>,
}

/// A component for one engine.
#[derive(Clone)]
struct Linked {
    guest: Arc<GuestEngine>,
    pre: ToolPre<CallState>,
    /// How many of the pool's memories a call takes beyond one.
    extra_memories: u32,
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

/// Where a call's guest code runs while it does not wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Executor {
    /// On the caller's thread up to its first pause or for one tick (1 ms), then among the guests: saves
    /// two thread switches for calls that are over in microseconds.
    CallerFirst,
    /// Among the guests from the start; for calls that are to run beside each other.
    Guests,
}

/// Why there is no sandbox.
#[derive(Debug, thiserror::Error)]
pub enum SandboxError {
    #[error("can't set up the WebAssembly engine: {why}{advice}")]
    Engine { why: String, advice: &'static str },
    #[error("can't start a thread for the guests: {0}")]
    Thread(#[source] std::io::Error),
    #[error("can't set up tools' requests: {0}")]
    Egress(#[source] Box<dyn std::error::Error + Send + Sync>),
}

/// Why a file is not a component that this host can run. Each variant's text says what to do.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    #[error(
        "it has {bytes} bytes, and the limit is {MAX_COMPONENT_BYTES}; build it with `--release` and `strip = true`"
    )]
    TooLarge { bytes: usize },
    #[error(
        "it is not WebAssembly but {looks_like}; a plugin is a component, built for `wasm32-wasip2`"
    )]
    NotWasm { looks_like: &'static str },
    #[error(
        "it is a core WebAssembly module, and a plugin is a component: build it with \
         `cargo build --release --target wasm32-wasip2`, or wrap it with `wasm-tools component new`"
    )]
    CoreModule,
    #[error(
        "it is cut off or damaged at byte {at} of {size}: {why}; copy it again or build it again"
    )]
    Damaged { at: usize, size: usize, why: String },
    #[error(
        "it is a program (it exports `wasi:cli/run`) and no tools; a plugin exports \
         `agentloop:tool/tools`, which agentloop-sdk does with `tools![…]`"
    )]
    Command,
    #[error(
        "it is a component without tools: a plugin exports `agentloop:tool/tools`, and this one exports {exports}"
    )]
    NoTools { exports: String },
    #[error("it was built against `agentloop:tool` {found}, and this host speaks 0.1: {side}")]
    OtherVersion { found: String, side: &'static str },
    #[error("it needs imports that this host does not have, {imports}: {advice}")]
    UnknownImports {
        imports: String,
        advice: &'static str,
    },
    #[error("it does not compile: {why}")]
    Compile { why: String },
    #[error("compiling it takes longer than {} s", COMPILE_WAIT.as_secs())]
    CompileTimeout,
    #[error(
        "it does not fit this host's interfaces: {why}; build it again with the agentloop-sdk of this host"
    )]
    Link { why: String },
    #[error("its custom section `agentloop-tools` can't be used: {0}")]
    Section(#[source] MetadataError),
    #[error("what its function `list` gave can't be used: {0}")]
    List(#[source] MetadataError),
    #[error("its function `list` {why}")]
    ListFailed { why: String },
    #[error(transparent)]
    Sandbox(#[from] SandboxError),
    /// A fault of ours.
    #[error("loading it failed inside the host: {why}")]
    Internal { why: String },
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

    /// Checks, compiles (or takes from the cache) and links a component, and reads its tools' definitions.
    pub async fn load(&self, wasm: Arc<[u8]>) -> Result<Component, LoadError> {
        let inspection = {
            let wasm = wasm.clone();
            self.blocking(move || inspect(&wasm)).await?
        };
        inspection.check()?;
        let digest = inspection.digest;
        let plain = self
            .link(self.parts.plain.clone(), digest, wasm.clone())
            .await?;
        let definitions = match inspection.metadata {
            Some(definitions) => definitions.map_err(LoadError::Section)?,
            None => self.list(&plain).await?,
        };
        Ok(Component {
            parts: Arc::new(ComponentParts {
                digest,
                definitions,
                plain,
                metered: OnceCell::new(),
                wasm,
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
        let arguments = serde_json::Value::Object(authorized.into_call().input).to_string();
        let started = Instant::now();
        let deadline = call.limits.timeout.and_then(|t| started.checked_add(t));
        Ok(Running {
            egress: self
                .parts
                .egress
                .for_call(call.reach, call.plugin, deadline),
            component: call.component.clone(),
            plugin: call.plugin.clone(),
            _ticking: linked.guest.ticker.ticking(),
            linked,
            tool: call.tool.clone(),
            arguments,
            reach: call.reach.clone(),
            limits: *call.limits,
            output: GuestOutput::new(listener),
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
                permits.await.map(Some).map_err(internal)
            }
        }
    }

    async fn linked(&self, component: &Component, limits: &Limits) -> Result<Linked, LoadError> {
        let parts = &component.parts;
        if !Arc::ptr_eq(&parts.plain.guest, &self.parts.plain) {
            return Err(internal("the component was loaded by another sandbox"));
        }
        if limits.fuel.is_none() {
            return Ok(parts.plain.clone());
        }
        parts
            .metered
            .get_or_try_init(|| async {
                let guest = self.metered_engine().await?;
                self.link(guest, parts.digest, parts.wasm.clone()).await
            })
            .await
            .cloned()
    }

    async fn metered_engine(&self) -> Result<Arc<GuestEngine>, LoadError> {
        let slots = self.parts.pool.then_some(self.parts.max_live_calls);
        self.parts
            .metered
            .get_or_try_init(|| async { Ok(Arc::new(GuestEngine::new(Profile::Metered, slots)?)) })
            .await
            .cloned()
    }

    async fn link(
        &self,
        guest: Arc<GuestEngine>,
        digest: ComponentDigest,
        wasm: Arc<[u8]>,
    ) -> Result<Linked, LoadError> {
        // Held by the compilation itself, which goes on when nobody waits for it any more.
        let turn = self
            .parts
            .compilers
            .clone()
            .acquire_owned()
            .await
            .map_err(internal)?;
        let cache = self.parts.cache.clone();
        let compiling = self.blocking(move || {
            let _turn = turn;
            compiled(&guest, cache.as_deref(), &digest, &wasm).and_then(|c| linked(guest, &c))
        });
        tokio::time::timeout(COMPILE_WAIT, compiling)
            .await
            .map_err(|_| LoadError::CompileTimeout)??
    }

    /// Asks the component itself, with nothing granted.
    async fn list(&self, linked: &Linked) -> Result<Definitions, LoadError> {
        let slot = (self.slot().await, self.extra_memories(linked).await?);
        let plugin = PluginName::of_file_stem("");
        let egress = self.parts.egress.for_call(Reach::NOTHING, &plugin, None);
        let listing = list(linked.clone(), egress, slot);
        let listed = self
            .parts
            .executor
            .spawn(Box::pin(listing))
            .await
            .map_err(internal)?;
        metadata::from_list(listed?).map_err(LoadError::List)
    }

    async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, LoadError> {
        self.parts
            .executor
            .runtime()
            .spawn_blocking(work)
            .await
            .map_err(internal)
    }
}

impl Component {
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

    fn requests_of(&self, tool: &ToolName) -> &[crate::capability::Request] {
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

fn internal(why: impl std::fmt::Display) -> LoadError {
    LoadError::Internal {
        why: why.to_string(),
    }
}

fn compiled(
    guest: &GuestEngine,
    cache: Option<&Cache>,
    digest: &ComponentDigest,
    wasm: &[u8],
) -> Result<wasmtime::component::Component, LoadError> {
    if let Some(component) = cache.and_then(|cache| cache.get(guest, digest)) {
        return Ok(component);
    }
    let component =
        wasmtime::component::Component::from_binary(&guest.engine, wasm).map_err(|e| {
            LoadError::Compile {
                why: text::shown(&format!("{e:#}"), 1000, false),
            }
        })?;
    if let Some(cache) = cache {
        cache.put(guest, digest, &component);
    }
    Ok(component)
}

fn linked(
    guest: Arc<GuestEngine>,
    component: &wasmtime::component::Component,
) -> Result<Linked, LoadError> {
    let memories = component
        .resources_required()
        .map_or(1, |needs| needs.num_memories);
    if memories as usize > MEMORIES_PER_CALL {
        return Err(LoadError::Link {
            why: format!("it has {memories} memories, and the limit is {MEMORIES_PER_CALL}"),
        });
    }
    let pre = guest
        .linker
        .instantiate_pre(component)
        .and_then(ToolPre::new)
        .map_err(|e| LoadError::Link {
            why: text::shown(&format!("{e:#}"), 1000, false),
        })?;
    Ok(Linked {
        guest,
        pre,
        extra_memories: memories.saturating_sub(1),
    })
}

/// Everything that one call owns. Dropped from top to bottom: the slot is free when all else is gone.
struct Running {
    egress: CallEgress,
    component: Component,
    plugin: PluginName,
    _ticking: Ticking,
    linked: Linked,
    tool: ToolName,
    arguments: String,
    reach: Reach,
    limits: Limits,
    output: GuestOutput,
    started: Instant,
    deadline: Option<Instant>,
    _slot: (Slot, Option<OwnedSemaphorePermit>),
}

impl Running {
    async fn run(self) -> Ending {
        let Self {
            egress,
            component,
            plugin,
            _ticking,
            linked,
            tool,
            arguments,
            reach,
            limits,
            output,
            started,
            deadline,
            _slot,
        } = self;
        let opening = wasi_context(&reach, &output);
        let wasi = match within(deadline, opening).await {
            Some(Ok(wasi)) => wasi,
            Some(Err(why)) => return Ending::internal(why),
            None => {
                return Ending {
                    outcome: ToolOutcome::TimedOut {
                        after: limits.timeout.unwrap_or_default(),
                        effects: crate::tool::Effects::None,
                    },
                    ran: started.elapsed(),
                    peak_memory_bytes: 0,
                    fuel_used: None,
                };
            }
        };
        let store_limits = StoreLimits {
            deadline,
            memory_bytes: limits.memory_bytes,
            output_bytes: limits.output_bytes,
            fuel: limits.fuel,
        };
        let mut store = match store::new(&linked.guest, wasi, egress, output.clone(), store_limits)
        {
            Ok(store) => store,
            Err(e) => return Ending::internal(format!("{e:#}")),
        };
        let name = tool.as_str();
        let calling = async {
            let instance = linked.pre.instantiate_async(&mut store).await?;
            instance
                .agentloop_tool_tools()
                .call_call(&mut store, name, &arguments)
                .await
        };
        let returned = within(deadline, calling).await;
        let is_late = deadline.is_some_and(|deadline| Instant::now() >= deadline);
        let ran = match returned {
            Some(returned @ Ok(Ok(_))) => Ran::Returned(returned),
            // What a guest makes of a host call that ended with the deadline is not what went wrong.
            Some(returned) if !is_late => Ran::Returned(returned),
            Some(_) | None => Ran::Late,
        };
        let ran_for = started.elapsed();
        output.finish();
        let fuel_used = limits
            .fuel
            .map(|budget| budget.saturating_sub(store.get_fuel().unwrap_or(0)));
        let state = store.data();
        let facts = Facts {
            limits: &limits,
            memory_refused: state.memory.refused(),
            output: &output,
            refusals: &|| {
                let requests = component.requests_of(&tool);
                let mut refusals = state.egress.refusals();
                refusals.extend(refusal::not_granted(&plugin, requests, &reach));
                refusals
            },
            hints: state.egress.hints(),
            sent: state.egress.sent(),
            writable_folders: reach
                .folders
                .iter()
                .filter(|f| f.access == Access::Write)
                .map(|f| f.guest_path.clone())
                .collect(),
        };
        Ending {
            outcome: ending::outcome(ran, facts),
            ran: ran_for,
            peak_memory_bytes: state.memory.peak_bytes(),
            fuel_used,
        }
    }
}

/// Opening a folder can block (a network share), so it happens off the guests' workers.
async fn wasi_context(
    reach: &Reach,
    output: &GuestOutput,
) -> Result<wasmtime_wasi::WasiCtx, String> {
    if reach.folders.is_empty() {
        return Ok(wasi::without_folders(&reach.environment, output));
    }
    let (folders, environment) = (reach.folders.clone(), reach.environment.clone());
    let output = output.clone();
    let opened =
        tokio::task::spawn_blocking(move || wasi::with_folders(&folders, &environment, &output));
    match opened.await {
        Ok(Ok(wasi)) => Ok(wasi),
        Ok(Err(e)) => {
            tracing::warn!("{e}");
            // The path on this machine is the operator's business, not the model's.
            Err(format!(
                "the folder that is granted as `{}` can't be opened",
                e.guest_path
            ))
        }
        Err(e) => Err(e.to_string()),
    }
}

/// One closed run of `list`.
async fn list(
    linked: Linked,
    egress: CallEgress,
    _slot: (Slot, Option<OwnedSemaphorePermit>),
) -> Result<Vec<bindings::agentloop::tool::types::ToolDefinition>, LoadError> {
    struct Deaf;
    impl GuestListener for Deaf {
        fn logged(&self, level: LogLevel, text: String) {
            tracing::debug!(?level, "a component's `list` says: {text}");
        }
        fn progressed(&self, _: f64, _: Option<f64>, _: Option<String>) {}
    }
    let _ticking = linked.guest.ticker.ticking();
    let deadline = Some(Instant::now() + METADATA_TIMEOUT);
    let output = GuestOutput::new(Arc::new(Deaf));
    let store_limits = StoreLimits {
        deadline,
        memory_bytes: METADATA_MEMORY_BYTES,
        output_bytes: limits::METADATA_BYTES,
        fuel: None,
    };
    let mut store = store::new(
        &linked.guest,
        wasi::closed(&output),
        egress,
        output.clone(),
        store_limits,
    )
    .map_err(internal)?;
    let listing = async {
        let instance = linked.pre.instantiate_async(&mut store).await?;
        instance.agentloop_tool_tools().call_list(&mut store).await
    };
    let late = || LoadError::ListFailed {
        why: format!("did not end within {} ms", METADATA_TIMEOUT.as_millis()),
    };
    match within(deadline, listing).await {
        None => Err(late()),
        Some(Ok(list)) => Ok(list),
        Some(Err(e)) if ending::is_interrupt(&e) => Err(late()),
        Some(Err(e)) => Err(LoadError::ListFailed {
            why: if store.data().memory.refused() {
                format!("needs more than {METADATA_MEMORY_BYTES} bytes of memory")
            } else {
                format!("failed: {}", ending::trap_text(&e, &output.last_words()))
            },
        }),
    }
}

/// The future's result, or none once the deadline is over. A guest that computes is interrupted by its own store
/// at the same instant; this is for one that waits.
async fn within<F: Future>(deadline: Option<Instant>, future: F) -> Option<F::Output> {
    match deadline {
        Some(deadline) => tokio::time::timeout_at(deadline.into(), future).await.ok(),
        None => Some(future.await),
    }
}

/// The guests' own executor: however many of them spin, the rest of the host keeps its threads.
struct GuestExecutor(Option<Runtime>);

type Guest<T> = Pin<Box<dyn Future<Output = T> + Send>>;

impl GuestExecutor {
    fn start(workers: usize) -> Result<Self, SandboxError> {
        tokio::runtime::Builder::new_multi_thread()
            .thread_name("guest")
            .worker_threads(workers)
            // A spinning guest gives up its worker once each tick; then timers and I/O are looked after first.
            .event_interval(1)
            .global_queue_interval(1)
            .max_blocking_threads(limits::BLOCKING_THREADS)
            .enable_all()
            .build()
            .map(|runtime| Self(Some(runtime)))
            .map_err(SandboxError::Thread)
    }

    #[expect(clippy::expect_used, reason = "it is taken by `drop` alone")]
    fn runtime(&self) -> &Runtime {
        self.0.as_ref().expect("the executor is running")
    }

    /// Runs among the guests until the answer is dropped.
    fn spawn<T: Send + 'static>(&self, guest: Guest<T>) -> AbortOnDrop<T> {
        AbortOnDrop(self.runtime().spawn(guest))
    }

    async fn run(&self, mut guest: Guest<Ending>, executor: Executor) -> Ending {
        if executor == Executor::CallerFirst {
            let _entered = self.runtime().enter();
            // Nobody is to be woken: what is not ready is polled anew among the guests at once.
            let mut context = Context::from_waker(Waker::noop());
            let polled =
                std::panic::catch_unwind(AssertUnwindSafe(|| guest.as_mut().poll(&mut context)));
            match polled {
                Ok(Poll::Ready(ending)) => return ending,
                Ok(Poll::Pending) => {}
                Err(_) => {
                    return Ending::internal("the host panicked during the call".to_owned());
                }
            }
        }
        match self.spawn(guest).await {
            Ok(ending) => ending,
            Err(e) if e.is_panic() => {
                Ending::internal("the host panicked during the call".to_owned())
            }
            Err(_) => Ending::internal("the sandbox was shut down".to_owned()),
        }
    }
}

impl Drop for GuestExecutor {
    fn drop(&mut self) {
        // The last sandbox may go inside of another runtime, where waiting for this one would panic.
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

struct AbortOnDrop<T>(JoinHandle<T>);

impl<T> Future for AbortOnDrop<T> {
    type Output = Result<T, tokio::task::JoinError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0).poll(context)
    }
}

impl<T> Drop for AbortOnDrop<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}
