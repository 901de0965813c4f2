//! What to find, and where.

use agentloop_sdk::{Result, ToolError};
use glob::{MatchOptions, Pattern};
use regex_lite::{Regex, RegexBuilder};

use crate::walk::Found;

/// Of a line around a match, on each side, in characters.
const AROUND: usize = 100;
/// Of a compiled regular expression, in bytes.
const MAX_REGEX: usize = 1 << 20;

pub(crate) enum Needle {
    Text(String),
    Regex(Regex),
}

impl Needle {
    pub(crate) fn new(pattern: &str, regex: bool, ignore_case: bool) -> Result<Self> {
        if !regex && !ignore_case {
            return Ok(Self::Text(pattern.into()));
        }
        let pattern = if regex {
            pattern.into()
        } else {
            regex_lite::escape(pattern)
        };
        RegexBuilder::new(&pattern)
            .case_insensitive(ignore_case)
            .size_limit(MAX_REGEX)
            .build()
            .map(Self::Regex)
            .map_err(|error| {
                ToolError::invalid_arguments(format!("`pattern` is no regular expression: {error}"))
            })
    }

    /// The line, or what of a long one lies around the match; nothing where it does not match.
    pub(crate) fn excerpt<'a>(&self, line: &'a str) -> Option<&'a str> {
        let line = line.trim_end_matches('\r');
        let start = match self {
            Self::Text(text) => line.find(text)?,
            Self::Regex(regex) => regex.find(line)?.start(),
        };
        let from = line[..start].char_indices().rev().take(AROUND).last();
        let from = from.map_or(start, |(at, _)| at);
        let to = line[start..].char_indices().nth(2 * AROUND);
        let to = to.map_or(line.len(), |(at, _)| start + at);
        Some(&line[from..to])
    }
}

/// Whether a file is wanted. A pattern without `/` is for its name, another one for its path.
pub(crate) fn globs(pattern: Option<&str>) -> Result<impl Fn(&Found<'_>) -> bool> {
    let pattern = pattern
        .map(|text| {
            let pattern = Pattern::new(text.trim_start_matches("./")).map_err(|error| {
                ToolError::invalid_arguments(format!(
                    "`glob` is no pattern such as `*.md`: {error}"
                ))
            })?;
            Ok::<_, ToolError>((pattern, text.contains('/')))
        })
        .transpose()?;
    let options = MatchOptions {
        require_literal_separator: true,
        ..MatchOptions::default()
    };
    Ok(move |found: &Found<'_>| match &pattern {
        None => true,
        Some((pattern, true)) => pattern.matches_with(found.below, options),
        Some((pattern, false)) => {
            let name = found.below.rsplit('/').next().unwrap_or_default();
            pattern.matches_with(name, options)
        }
    })
}

/// A hint for a text that is not in the file as it was given.
pub(crate) fn nearly(text: &str, old: &str) -> String {
    let trimmed =
        |text: &str| -> Vec<String> { text.lines().map(|line| line.trim().to_owned()).collect() };
    let (lines, wanted) = (trimmed(text), trimmed(old.trim()));
    let at = lines
        .windows(wanted.len().max(1))
        .position(|window| window == wanted);
    match at {
        Some(at) => format!(
            ", but one that differs only in white space, at line {}",
            at + 1
        ),
        None => String::new(),
    }
}
