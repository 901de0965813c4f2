//! What reaches a person's terminal. Text of tools, models and endpoints is made harmless first.

pub use crate::harmless::{harmless, one_line};
use std::io::{self, IsTerminal as _};

use console::Style;
use tokio::task::JoinHandle;

/// When to colour output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
pub enum Color {
    #[default]
    Auto,
    Always,
    Never,
}

/// Applies the choice to everything that is printed; `Auto` follows `NO_COLOR`, `CLICOLOR_FORCE`, `TERM`
/// and whether the stream is a terminal.
pub fn set_color(color: Color) {
    match color {
        Color::Auto => {}
        Color::Always => {
            console::set_colors_enabled(true);
            console::set_colors_enabled_stderr(true);
        }
        Color::Never => {
            console::set_colors_enabled(false);
            console::set_colors_enabled_stderr(false);
        }
    }
}

/// Whether a person can be asked: what they see and what they type both go to a terminal.
pub fn can_ask() -> bool {
    std::io::stdin().is_terminal() && std::io::stderr().is_terminal()
}

/// The next line that the person types, or `None` at the end of input. Reading can't be called off: a wait that is
/// given up leaves the line to whoever asks next.
pub async fn next_line() -> io::Result<Option<String>> {
    type Reading = JoinHandle<io::Result<Option<String>>>;
    static READING: tokio::sync::Mutex<Option<Reading>> = tokio::sync::Mutex::const_new(None);
    let mut reading = READING.lock().await;
    let task = reading.get_or_insert_with(|| {
        tokio::task::spawn_blocking(|| {
            let mut line = String::new();
            let n_bytes = io::stdin().read_line(&mut line)?;
            Ok((n_bytes > 0).then_some(line))
        })
    });
    let read = task.await;
    *reading = None;
    read.map_err(io::Error::other)?
}

pub fn good() -> Style {
    Style::new().for_stderr().green()
}

pub fn bad() -> Style {
    Style::new().for_stderr().red()
}

pub fn caution() -> Style {
    Style::new().for_stderr().yellow()
}

pub fn strong() -> Style {
    Style::new().for_stderr().bold()
}

pub fn dim() -> Style {
    Style::new().for_stderr().dim()
}
