//! The state of one call, and the only place that makes a store for it: there is no call without limits.

use std::time::Instant;

use wasmtime::{Store, UpdateDeadline};
use wasmtime_wasi::{ResourceTable, WasiCtx, WasiCtxView, WasiView};
use wasmtime_wasi_http::{WasiHttpCtx, WasiHttpCtxView, WasiHttpView};

use super::{
    egress::CallEgress,
    engine::{GuestEngine, Profile},
    limits::{HANDLES, HOST_CALL_BYTES, HOST_RESOURCES, HTTP_FIELD_BYTES, MemoryLimiter},
    output::GuestOutput,
};

use crate::capability::EnvironmentGrant;

/// Room for what surrounds the bytes of an answer: its variants, lengths and pointers.
const ANSWER_OVERHEAD_BYTES: usize = 1 << 20;

/// Everything that dies with the call.
pub(super) struct CallState {
    pub(super) memory: MemoryLimiter,
    pub(super) output: GuestOutput,
    pub(super) egress: CallEgress,
    /// The granted environment variables, for whoever looks for them elsewhere.
    pub(super) variables: Vec<EnvironmentGrant>,
    wasi: WasiCtx,
    http: WasiHttpCtx,
    table: ResourceTable,
}

/// What the host enforces inside of a call.
#[derive(Debug, Clone, Copy)]
pub(super) struct StoreLimits {
    pub(super) deadline: Option<Instant>,
    pub(super) memory_bytes: usize,
    pub(super) output_bytes: usize,
    pub(super) fuel: Option<u64>,
}

pub(super) fn new(
    guest: &GuestEngine,
    wasi: WasiCtx,
    egress: CallEgress,
    output: GuestOutput,
    limits: StoreLimits,
) -> wasmtime::Result<Store<CallState>> {
    let mut table = ResourceTable::new();
    table.set_max_capacity(HOST_RESOURCES);
    let mut http = WasiHttpCtx::new();
    http.set_field_size_limit(HTTP_FIELD_BYTES);
    let state = CallState {
        memory: MemoryLimiter::new(limits.memory_bytes),
        output,
        egress,
        variables: Vec::new(),
        wasi,
        http,
        table,
    };
    let mut store = Store::new(&guest.engine, state);
    store.limiter(|state| &mut state.memory);
    // The answer is copied out under the same bound as what a guest hands to an import.
    let answer = limits.output_bytes.saturating_add(ANSWER_OVERHEAD_BYTES);
    store.set_hostcall_fuel(HOST_CALL_BYTES.max(answer));
    store.set_max_component_handles(HANDLES);
    if guest.profile == Profile::Metered {
        store.set_fuel(limits.fuel.unwrap_or(u64::MAX))?;
    }
    store.set_epoch_deadline(1);
    let deadline = limits.deadline;
    store.epoch_deadline_callback(move |_| {
        Ok(match deadline {
            Some(deadline) if Instant::now() >= deadline => UpdateDeadline::Interrupt,
            Some(_) | None => UpdateDeadline::Yield(1),
        })
    });
    Ok(store)
}

impl WasiView for CallState {
    fn ctx(&mut self) -> WasiCtxView<'_> {
        WasiCtxView {
            ctx: &mut self.wasi,
            table: &mut self.table,
        }
    }
}

impl WasiHttpView for CallState {
    fn http(&mut self) -> WasiHttpCtxView<'_> {
        WasiHttpCtxView {
            ctx: &mut self.http,
            table: &mut self.table,
            hooks: &mut self.egress,
        }
    }
}
