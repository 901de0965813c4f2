//! The engine: how code is compiled, where instances live, and the clock that interrupts them.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread::{self, Thread},
    time::{Duration, Instant},
};

use wasmtime::{
    Config, Enabled, Engine, EngineWeak, PoolingAllocationConfig, Strategy, component::Linker,
};

use super::{
    SandboxError,
    bindings::Tool,
    imports,
    limits::{
        CALLS_PER_EXTRA_MEMORY, INSTANCE_METADATA_BYTES, INSTANCES_PER_CALL, MEMORIES_PER_CALL,
        TABLE_ELEMENTS, TABLES_PER_CALL, WASM_STACK_BYTES,
    },
    store::CallState,
};

/// How often a running guest is looked at; with it stands and falls how late a kill is.
pub(super) const TICK: Duration = Duration::from_millis(1);
/// How long the ticker goes on after the last call before it sleeps, so that calls in a row don't pay for
/// waking it.
const IDLE: Duration = Duration::from_millis(100);

/// Kept by a slot between calls instead of being given back to the kernel. A tool with a small stack touches
/// less; more than this costs more to clear than to map again.
const MEMORY_KEEP_RESIDENT: usize = 256 << 10;
const STACK_KEEP_RESIDENT: usize = 64 << 10;

/// An engine fixes at compile time whether instructions are counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Profile {
    Plain,
    /// Counts fuel, at up to 40 % of the speed.
    Metered,
}

impl Profile {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Plain => "plain",
            Self::Metered => "metered",
        }
    }

    pub(super) fn parse(name: &str) -> Option<Self> {
        [Self::Plain, Self::Metered]
            .into_iter()
            .find(|profile| profile.as_str() == name)
    }
}

/// An engine, what every component is linked to, and its clock.
pub(super) struct GuestEngine {
    pub(super) engine: Engine,
    pub(super) linker: Linker<CallState>,
    pub(super) profile: Profile,
    pub(super) ticker: Ticker,
}

impl GuestEngine {
    /// `slots`: calls that may live at once if there is a pool.
    pub(super) fn new(profile: Profile, pool_slots: Option<u32>) -> Result<Self, SandboxError> {
        let engine =
            Engine::new(&config(profile, pool_slots)).map_err(|source| SandboxError::Engine {
                why: format!("{source:#}"),
                advice: if pool_slots.is_some() {
                    "; lower the number of live calls, or set `pool = false`"
                } else {
                    ""
                },
            })?;
        let linker = linker(&engine).map_err(|source| SandboxError::Engine {
            why: format!("{source:#}"),
            advice: "",
        })?;
        let ticker = Ticker::start(engine.weak())?;
        Ok(Self {
            engine,
            linker,
            profile,
            ticker,
        })
    }
}

/// An engine that runs nothing: without a pool, whose address space alone is more than a compiler may have. Where
/// instances live makes no difference to compiled code.
pub(super) fn for_compiling(profile: Profile) -> wasmtime::Result<Engine> {
    Engine::new(&config(profile, None))
}

fn config(profile: Profile, pool_slots: Option<u32>) -> Config {
    let mut config = Config::new();
    // Winch has had escapes; Cranelift is what wasmtime fuzzes most.
    config.strategy(Strategy::Cranelift);
    config.epoch_interruption(true);
    config.consume_fuel(profile == Profile::Metered);
    config.max_wasm_stack(WASM_STACK_BYTES);
    config.memory_init_cow(true);
    config.wasm_component_model(true);
    config.wasm_component_model_map(true);
    // Tools need none of these, and what is off can't have faults.
    config.wasm_threads(false);
    config.wasm_memory64(false);
    config.wasm_tail_call(false);
    config.wasm_relaxed_simd(false);
    config.wasm_custom_page_sizes(false);
    config.wasm_wide_arithmetic(false);
    if let Some(slots) = pool_slots {
        config.allocation_strategy(pool(slots));
    }
    config
}

fn pool(slots: u32) -> PoolingAllocationConfig {
    let per_call = |each: usize| slots.saturating_mul(u32::try_from(each).unwrap_or(u32::MAX));
    let bound = |each: usize| u32::try_from(each).unwrap_or(u32::MAX);
    let mut pool = PoolingAllocationConfig::new();
    pool.total_component_instances(slots);
    pool.total_core_instances(per_call(INSTANCES_PER_CALL));
    pool.total_memories(slots.saturating_add(extra_memories(slots)));
    pool.total_tables(per_call(TABLES_PER_CALL));
    pool.total_stacks(slots);
    pool.max_core_instances_per_component(bound(INSTANCES_PER_CALL));
    pool.max_memories_per_component(bound(MEMORIES_PER_CALL));
    pool.max_tables_per_component(bound(TABLES_PER_CALL));
    pool.max_memories_per_module(bound(MEMORIES_PER_CALL));
    pool.max_tables_per_module(bound(TABLES_PER_CALL));
    pool.table_elements(TABLE_ELEMENTS);
    pool.max_component_instance_size(INSTANCE_METADATA_BYTES);
    pool.max_core_instance_size(INSTANCE_METADATA_BYTES);
    pool.linear_memory_keep_resident(MEMORY_KEEP_RESIDENT);
    pool.table_keep_resident(STACK_KEEP_RESIDENT);
    pool.async_stack_keep_resident(STACK_KEEP_RESIDENT);
    // The kernel tells which pages a call has touched (Linux 6.7 or newer); elsewhere all are reset.
    pool.pagemap_scan(Enabled::Auto);
    if cfg!(target_os = "linux") && !PoolingAllocationConfig::is_pagemap_scan_available() {
        tracing::info!(
            "this kernel has no PAGEMAP_SCAN (Linux 6.7 or newer has): each call takes some microseconds more"
        );
    }
    pool
}

/// Memories in the pool beyond one for each call. Calls of components with several wait for theirs.
pub(super) fn extra_memories(slots: u32) -> u32 {
    let one_call = u32::try_from(MEMORIES_PER_CALL).unwrap_or(u32::MAX);
    one_call.max(slots / CALLS_PER_EXTRA_MEMORY)
}

/// Everything is linked always, and refuses by itself: a missing import would make a tool unusable as a whole.
fn linker(engine: &Engine) -> wasmtime::Result<Linker<CallState>> {
    let mut linker = Linker::new(engine);
    wasmtime_wasi::p2::add_to_linker_async(&mut linker)?;
    wasmtime_wasi_http::p2::add_only_http_to_linker_async(&mut linker)?;
    imports::config::add_to_linker(&mut linker)?;
    Tool::add_to_linker::<_, wasmtime::component::HasSelf<CallState>>(&mut linker, |state| state)?;
    Ok(linker)
}

/// Advances the engine's epoch once each [`TICK`] while calls live. An OS thread of its own, since no executor
/// keeps time while its workers run guests. Ends with the engine.
pub(super) struct Ticker {
    shared: Arc<TickerShared>,
    thread: Thread,
}

#[derive(Default)]
struct TickerShared {
    live: AtomicUsize,
    asleep: AtomicBool,
    ended: AtomicBool,
}

/// A call that needs the ticker.
pub(super) struct Ticking(Arc<TickerShared>);

impl Ticker {
    fn start(engine: EngineWeak) -> Result<Self, SandboxError> {
        let shared = Arc::new(TickerShared::default());
        let thread = thread::Builder::new()
            .name("guest-clock".to_owned())
            .spawn({
                let shared = shared.clone();
                move || tick(&engine, &shared)
            })
            .map_err(SandboxError::Thread)?
            .thread()
            .clone();
        Ok(Self { shared, thread })
    }

    /// Keeps the clock going until the answer is dropped.
    pub(super) fn ticking(&self) -> Ticking {
        self.shared.live.fetch_add(1, Ordering::SeqCst);
        if self.shared.asleep.swap(false, Ordering::SeqCst) {
            self.thread.unpark();
        }
        Ticking(self.shared.clone())
    }
}

impl Drop for Ticking {
    fn drop(&mut self) {
        self.0.live.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Drop for Ticker {
    fn drop(&mut self) {
        self.shared.ended.store(true, Ordering::SeqCst);
        self.thread.unpark();
    }
}

fn tick(engine: &EngineWeak, shared: &TickerShared) {
    let mut last_live = Instant::now();
    loop {
        if shared.live.load(Ordering::SeqCst) > 0 {
            last_live = Instant::now();
        } else if shared.ended.load(Ordering::SeqCst) {
            return;
        } else if last_live.elapsed() > IDLE {
            shared.asleep.store(true, Ordering::SeqCst);
            // A call that came before it could see the flag would wait for its first tick for ever.
            if shared.live.load(Ordering::SeqCst) == 0 && !shared.ended.load(Ordering::SeqCst) {
                thread::park();
            }
            shared.asleep.store(false, Ordering::SeqCst);
            last_live = Instant::now();
            continue;
        }
        thread::sleep(TICK);
        match engine.upgrade() {
            Some(engine) => engine.increment_epoch(),
            None => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ticker_wakes_for_a_call_and_ends_with_its_engine() {
        let guest = GuestEngine::new(Profile::Plain, None).unwrap();
        let shared = guest.ticker.shared.clone();
        while !shared.asleep.load(Ordering::SeqCst) {
            thread::yield_now();
        }
        let ticking = guest.ticker.ticking();
        while shared.asleep.load(Ordering::SeqCst) {
            thread::yield_now();
        }
        drop(ticking);
        drop(guest);
        // The thread holds one count, this test the other.
        while Arc::strong_count(&shared) > 1 {
            thread::yield_now();
        }
    }
}
