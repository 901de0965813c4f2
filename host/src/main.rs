//! The program; [`agentloop_host::cli`] is all of it.

fn main() -> std::process::ExitCode {
    agentloop_host::cli::main()
}
