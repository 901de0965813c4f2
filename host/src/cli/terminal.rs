//! What reaches a person's terminal. Text of tools, models and endpoints is made harmless first.

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

/// The text with everything escaped that could move the cursor, change colours, or turn the reading
/// direction around. Line breaks and tabs stay.
pub fn harmless(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\n' | '\t' => out.push(c),
            c if c.is_control() || turns_direction(c) => out.extend(c.escape_unicode()),
            c => out.push(c),
        }
    }
    out
}

/// As [`harmless`], on one line and at most `max_chars` long.
pub fn one_line(text: &str, max_chars: usize) -> String {
    let text = text.trim().replace(['\n', '\t'], " ");
    let mut out = harmless(&text);
    if out.chars().count() > max_chars {
        out = out.chars().take(max_chars.saturating_sub(1)).collect();
        out.push('…');
    }
    out
}

fn turns_direction(c: char) -> bool {
    matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_that_steers_a_terminal_gets_through() {
        let nasty = "a\u{1b}[2Jb\rc\u{7}d\u{202e}e\u{9b}f\u{0}";
        let shown = harmless(nasty);
        assert!(
            shown
                .chars()
                .all(|c| !c.is_control() && !turns_direction(c)),
            "{shown}"
        );
        assert_eq!(harmless("plain é 😀\n\ttext"), "plain é 😀\n\ttext");
    }

    #[test]
    fn a_line_stays_a_line_and_within_its_length() {
        assert_eq!(one_line("a\nb\tc", 10), "a b c");
        assert_eq!(one_line("abcdef", 4), "abc…");
        assert_eq!(one_line("äöüß", 4), "äöüß");
    }
}
