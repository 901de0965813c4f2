//! What `host/src/main.rs` is, as a program of this package: cargo builds it along with the tests, with the
//! features that they have, and tells them where it is.

fn main() -> std::process::ExitCode {
    agentloop_host::cli::main()
}
