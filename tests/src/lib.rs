//! What tests share: one helper that knows the API.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic")]

pub mod agent;
pub mod binary;
pub mod crafted;
pub mod endpoint;
pub mod fuzzing;
pub mod guests;
pub mod http_client;
pub mod servers;
pub mod storage;
