//! Components that were not written for this host: each kind runs under the same limits, grants and endings.

mod inspecting;
mod languages;
mod plain;
mod program;
mod server;
mod shapes;
