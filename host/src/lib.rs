//! agentloop-host: an LLM agent loop whose tools are sandboxed WebAssembly components.
//!
//! This page is the map. A newcomer reads it, then [`agent::run`] (what happens next in a run), then
//! [`agent::dispatch`] (the life of one call), and has the system.
//!
//! | module | |
//! |---|---|
//! | **values** | plain data: no I/O, no clock, no wire format |
//! | [`ids`] | names and identifiers, valid once built |
//! | [`harmless`] | what others wrote, made fit for a person's eyes |
//! | [`transcript`] | the conversation, and the rule that each `tool_use` has one `tool_result`; `repair` mends foreign ones |
//! | [`tool`] | what is known of a tool, a call, and the closed set of ways in which a call can end |
//! | [`capability`] | what a tool may reach: requests, grants, and where the two meet; limits |
//! | [`event`] | the one vocabulary for what happens in a run |
//! | **mechanisms** | each hides one outside thing |
//! | [`policy`] | may this call run? The only place that can say yes |
//! | [`approvals`] | asking a person |
//! | [`sandbox`] | components: loading them, a fresh instance for each call, limits that end things; the only user of wasmtime |
//! | [`registry`] | from tools to an immutable, ordered set of them, one after another as folders change; schemas as models are shown them |
//! | [`peers`] | MCP servers whose tools are used, outside of the sandbox |
//! | [`storage`] | runs that outlive their process: events, leases, questions |
//! | [`provider`] | model endpoints; vendor JSON stops there |
//! | [`http`] | trust and time-outs that all HTTP clients share |
//! | [`config`] | settings from flags, environment and files, each with its origin |
//! | **behaviour** | |
//! | [`agent`] | `run` decides what is next, `drive` performs it; `schedule` decides what may overlap, `dispatch` carries out one call; `resume` goes on from a record |
//! | **surfaces** | parse, call, render |
//! | [`app`] | wiring: from settings to a registry and an agent |
//! | [`mcp`] | the registry's tools for MCP clients |
//! | [`server`] | the host over HTTP |
//! | [`cli`] | the command line, one file per subcommand |
//! | [`shipped`] | the tools that travel inside the binary |
//!
//! What is absent, so that it stays so (the tests in `tests/tests/all/house.rs` look):
//!
//! - Only `sandbox` names wasmtime, and exactly one place makes a `Store`: a fresh one per call, never without
//!   limits.
//! - The value of a secret is put into a request behind all checks, in `sandbox`, and taken out of all that a guest
//!   gets and says; its type prints nothing.
//! - [`policy::Authorized`] has no constructor outside `policy`, and the sandbox takes nothing else.
//! - The model and the tools can reach nothing that grants, allows or answers.
//! - Values do no I/O and read no clock.
//! - Modules use only what stands above them in this table, except that the sandbox takes policy's word.

#![cfg_attr(
    test,
    allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic")
)]
// It panics where the other end is full or gone; `cli::write` says so instead.
#![warn(clippy::print_stdout)]

pub mod capability;
pub mod event;
pub mod harmless;
pub mod ids;
pub mod tool;
pub mod transcript;

pub mod approvals;
pub mod config;
pub mod http;
pub mod peers;
pub mod policy;
pub mod provider;
pub mod registry;
pub mod sandbox;
pub mod storage;

pub mod agent;

pub mod app;
pub mod cli;
pub mod mcp;
mod sdk_sources;
pub mod server;
pub mod shipped;

/// The README's program compiles and runs.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
struct Readme;
