//! Everything that needs real components, sockets or processes, in one binary: it links once.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic")]

mod all {
    mod agent;
    mod authoring;
    mod cli;
    mod config;
    mod durable;
    mod eager;
    mod egress;
    mod fuzz;
    mod hostile;
    mod house;
    mod kinds;
    mod loop_over_http;
    mod mcp;
    mod mcp_http;
    mod page;
    mod peers;
    mod plugins;
    mod provider;
    mod provider_transcripts;
    mod registry;
    mod reload;
    mod sandbox;
    mod sdk;
    mod secrets;
    mod server;
    mod storage;
}
