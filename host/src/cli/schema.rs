//! `schema`: what a program that reads a run's lines can rely on.

use std::process::ExitCode;

use super::{trace, write};

pub fn run() -> anyhow::Result<ExitCode> {
    let mut text = serde_json::to_string_pretty(&trace::schema())?;
    text.push('\n');
    write::stdout(&text)?;
    Ok(ExitCode::SUCCESS)
}
