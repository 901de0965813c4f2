//! `completions`: what a shell needs to complete this command line.

use std::process::ExitCode;

use clap_complete::Shell;

use super::write;

#[derive(Debug, clap::Args)]
pub struct CompletionsArgs {
    /// The shell to write for; see its manual for where the text goes.
    shell: Shell,
}

/// `command` is the whole command line as clap knows it.
pub fn run(args: &CompletionsArgs, mut command: clap::Command) -> anyhow::Result<ExitCode> {
    let name = command.get_name().to_owned();
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut command, name, &mut script);
    write::stdout(&String::from_utf8_lossy(&script))?;
    Ok(ExitCode::SUCCESS)
}
