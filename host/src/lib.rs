//! agentloop-host: an LLM agent loop whose tools are sandboxed WebAssembly components.

#![cfg_attr(
    test,
    allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic")
)]

// values: no I/O, no clock, no wire
pub mod capability;
pub mod event;
pub mod ids;
pub mod tool;
pub mod transcript;

// mechanisms: each hides one outside thing
pub mod approvals;
pub mod config;
pub mod http;
pub mod policy;
pub mod provider;
pub mod registry;
pub mod sandbox;
pub mod shipped;

// behaviour
pub mod agent;

// surfaces: parse, call, render
pub mod cli;
mod sdk_sources;
