//! What a guest may ask of the host, one file for each interface in `wit/`. WASI has its own: [`super::wasi`].

pub(super) mod config;
mod logging;
mod progress;

use super::{bindings::agentloop::tool::types::Host, store::CallState};

/// Types alone: nothing to call.
impl Host for CallState {}
