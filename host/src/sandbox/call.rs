//! One call, from a held slot to its ending.

use std::time::Instant;

use serde_json::{Map, Value};
use tokio::sync::OwnedSemaphorePermit;

use super::{
    Component, Ending, Slot,
    egress::CallEgress,
    ending::{self, Facts, Ran},
    engine::Ticking,
    executor::within,
    kinds::Call,
    load::Linked,
    output::{Captured, GuestOutput},
    refusal,
    scrub::Scrubber,
    store::{self, StoreLimits},
    wasi,
};
use crate::{
    capability::{Access, Limits, Reach},
    ids::{PluginName, ToolName},
    tool::{Effects, ToolOutcome},
};

/// Everything that one call owns. Dropped from top to bottom: the slot is free when all else is gone.
pub(super) struct Running {
    pub(super) egress: CallEgress,
    pub(super) component: Component,
    pub(super) plugin: PluginName,
    pub(super) _ticking: Ticking,
    pub(super) linked: Linked,
    pub(super) tool: ToolName,
    pub(super) arguments: Map<String, Value>,
    pub(super) reach: Reach,
    pub(super) limits: Limits,
    pub(super) output: GuestOutput,
    /// Where the call may use secrets.
    pub(super) scrubber: Option<Scrubber>,
    pub(super) started: Instant,
    pub(super) deadline: Option<Instant>,
    pub(super) _slot: (Slot, Option<OwnedSemaphorePermit>),
}

impl Running {
    pub(super) async fn run(self) -> Ending {
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
            scrubber,
            started,
            deadline,
            _slot,
        } = self;
        let process = match linked.kind.process(&arguments) {
            Ok(process) => process,
            Err(fault) => {
                return Ending {
                    outcome: ToolOutcome::InvalidArguments {
                        faults: vec![fault],
                    },
                    ran: started.elapsed(),
                    peak_memory_bytes: 0,
                    fuel_used: None,
                };
            }
        };
        let printed = Captured::new(limits.output_bytes);
        let surroundings = wasi::Surroundings {
            output: output.clone(),
            process,
            printed: printed.clone(),
        };
        let opening = wasi_context(&reach, surroundings);
        let wasi = match within(deadline, opening).await {
            Some(Ok(wasi)) => wasi,
            Some(Err(why)) => return Ending::internal(why),
            None => {
                return Ending {
                    outcome: ToolOutcome::TimedOut {
                        after: limits.timeout.unwrap_or_default(),
                        effects: Effects::None,
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
        store.data_mut().variables.clone_from(&reach.environment);
        let call = Call {
            tool: &tool,
            arguments,
            printed: &printed,
            limit_bytes: limits.output_bytes,
        };
        let calling = linked.kind.call(&mut store, call);
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
            refusals: &|message| {
                let requests = component.requests_of(&tool);
                let mut refusals = state.egress.refusals();
                // What could be used and is not may have nothing to do with the failure.
                if linked.kind.declares_requests() || refusal::names_a_missing_file(message) {
                    refusals.extend(refusal::not_granted(&plugin, requests, &reach));
                }
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
        let mut outcome = ending::outcome(ran, facts);
        if let Some(scrubber) = &scrubber {
            ending::scrub(&mut outcome, scrubber);
        }
        Ending {
            outcome,
            ran: ran_for,
            peak_memory_bytes: state.memory.peak_bytes(),
            fuel_used,
        }
    }
}

/// Opening a folder can block (a network share), so it happens off the guests' workers.
async fn wasi_context(
    reach: &Reach,
    surroundings: wasi::Surroundings,
) -> Result<wasmtime_wasi::WasiCtx, String> {
    if reach.folders.is_empty() {
        return Ok(wasi::without_folders(&reach.environment, surroundings));
    }
    let (folders, environment) = (reach.folders.clone(), reach.environment.clone());
    let opened = tokio::task::spawn_blocking(move || {
        wasi::with_folders(&folders, &environment, surroundings)
    });
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
