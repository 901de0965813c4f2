//! What the program's exit code says. The table is part of `--help`, and scripts depend on it.

use std::process::ExitCode;

use crate::{
    agent::{RunResult, run::RunStatus},
    provider::ProviderErrorKind,
};

/// How a command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    Done,
    Failed,
    /// Bad arguments or settings; clap's own code.
    Usage,
    Limit,
    Denied,
    Provider,
    Auth,
    Plugin,
    Refusal,
    Waiting,
    OutOfTime,
    Interrupted,
    Terminated,
}

impl Exit {
    pub const ALL: [(Self, &'static str); 13] = [
        (Self::Done, "done"),
        (Self::Failed, "the run or the call failed"),
        (Self::Usage, "wrong arguments or settings"),
        (
            Self::Limit,
            "stopped at a limit (iterations, calls, tokens, repeats)",
        ),
        (
            Self::Denied,
            "the call was denied, or needed an approval and nobody could be asked",
        ),
        (
            Self::Provider,
            "the model endpoint failed, retries included",
        ),
        (
            Self::Auth,
            "the key for the model endpoint is missing or was not accepted",
        ),
        (Self::Plugin, "a plugin can't be used"),
        (Self::Refusal, "the model declined to answer"),
        (
            Self::Waiting,
            "the run waits for an approval; it is kept, and can be resumed",
        ),
        (Self::OutOfTime, "out of time"),
        (Self::Interrupted, "interrupted (Ctrl-C)"),
        (Self::Terminated, "terminated"),
    ];

    pub fn code(self) -> u8 {
        match self {
            Self::Done => 0,
            Self::Failed => 1,
            Self::Usage => 2,
            Self::Limit => 3,
            Self::Denied => 4,
            Self::Provider => 5,
            Self::Auth => 6,
            Self::Plugin => 7,
            Self::Refusal => 8,
            Self::Waiting => 9,
            Self::OutOfTime => 124,
            Self::Interrupted => 130,
            Self::Terminated => 143,
        }
    }

    /// The table, for `--help`.
    pub fn table() -> String {
        let lines = Self::ALL
            .iter()
            .map(|(exit, meaning)| format!("  {:>3}  {meaning}", exit.code()));
        format!("Exit codes:\n{}", lines.collect::<Vec<_>>().join("\n"))
    }

    /// How a run's end shows in the exit code.
    pub fn of(result: &RunResult) -> Self {
        match &result.status {
            RunStatus::Completed => Self::Done,
            RunStatus::Truncated { .. }
            | RunStatus::ContextFull
            | RunStatus::IterationLimit { .. }
            | RunStatus::ToolCallLimit { .. }
            | RunStatus::TokenLimit { .. }
            | RunStatus::Repeating { .. } => Self::Limit,
            RunStatus::Refused { .. } => Self::Refusal,
            RunStatus::TimeLimit => Self::OutOfTime,
            RunStatus::Cancelled => Self::Interrupted,
            RunStatus::NoCall | RunStatus::UnknownStopReason { .. } => Self::Failed,
            RunStatus::Failed {
                provider: Some(ProviderErrorKind::Auth),
                ..
            } => Self::Auth,
            RunStatus::Failed {
                provider: Some(_), ..
            } => Self::Provider,
            RunStatus::Failed { provider: None, .. } => Self::Failed,
        }
    }
}

/// Arguments that parse and still can't be followed.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Misuse(pub String);

impl Misuse {
    /// Refuses, with this sentence, what is not `fine`.
    pub fn unless(fine: bool, why: &str) -> Result<(), Self> {
        if fine { Ok(()) } else { Err(Self(why.into())) }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        exit.code().into()
    }
}
