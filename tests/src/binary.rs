//! The program itself, run as a person runs it.

use std::{
    path::Path,
    process::{Command, Output, Stdio},
};

/// The program in a folder, with a home of its own and no keys. `program` is `env!("CARGO_BIN_EXE_program")`,
/// which only tests are told.
pub fn command(program: &str, folder: &Path, home: &Path) -> Command {
    let mut command = Command::new(program);
    command
        .current_dir(folder)
        .stdin(Stdio::null())
        .env("XDG_CONFIG_HOME", home.join("config"))
        .env("XDG_DATA_HOME", home.join("data"))
        .env("XDG_STATE_HOME", home.join("state"))
        .env("XDG_CACHE_HOME", home.join("cache"));
    for (name, _) in std::env::vars_os() {
        let ours = ["AGENTLOOP_", "ANTHROPIC_", "OPENAI_"];
        if name
            .to_str()
            .is_some_and(|name| ours.iter().any(|prefix| name.starts_with(prefix)))
        {
            command.env_remove(name);
        }
    }
    command
}

/// What a command left behind.
#[derive(Debug)]
pub struct Ran {
    pub code: i32,
    pub stdout: String,
    pub stderr: String,
}

/// Runs to the end.
pub fn run(command: &mut Command) -> Ran {
    let Output {
        status,
        stdout,
        stderr,
    } = command.output().unwrap();
    Ran {
        code: status.code().unwrap_or(-1),
        stdout: String::from_utf8(stdout).unwrap(),
        stderr: String::from_utf8(stderr).unwrap(),
    }
}
