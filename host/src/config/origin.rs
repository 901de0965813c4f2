//! Where a value comes from, and what is wrong with one.

use std::{cmp::Reverse, fmt, sync::Arc};

/// Where a value comes from.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Origin {
    Default,
    User(FileLine),
    Project(FileLine),
    /// The name of the variable.
    Environment(String),
    /// The flag as it is typed: `--model`.
    Flag(&'static str),
}

/// A line of a settings file.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct FileLine {
    /// As a person would name it.
    pub file: Arc<str>,
    /// From 1; 0 is the file as a whole.
    pub line: usize,
}

impl fmt::Display for FileLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => f.write_str(&self.file),
            line => write!(f, "{}:{line}", self.file),
        }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::User(place) => write!(f, "user file {place}"),
            Self::Project(place) => write!(f, "project file {place}"),
            Self::Environment(name) => write!(f, "environment variable {name}"),
            Self::Flag(flag) => write!(f, "flag {flag}"),
        }
    }
}

/// One thing that is wrong with the configuration: where, what, and what to write instead.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Fault {
    pub origin: Origin,
    /// Names the key.
    pub message: String,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.origin {
            Origin::User(place) | Origin::Project(place) => write!(f, "{place}: {}", self.message),
            Origin::Default => f.write_str(&self.message),
            origin @ (Origin::Environment(_) | Origin::Flag(_)) => {
                write!(f, "{origin}: {}", self.message)
            }
        }
    }
}

/// Everything that is wrong with the configuration; never empty.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}", self.list())]
pub struct ConfigError {
    pub faults: Vec<Fault>,
}

impl ConfigError {
    fn list(&self) -> String {
        match self.faults.as_slice() {
            [fault] => fault.to_string(),
            faults => {
                let mut text = format!("{} faults in the configuration", faults.len());
                for fault in faults {
                    text.push_str(&format!("\n  {fault}"));
                }
                text
            }
        }
    }
}

/// The known name that a misspelt one was meant to be.
pub(super) fn nearest<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    /// Below this, names of this length have little in common.
    const LIKENESS_PER_MILLE: u32 = 820;
    known
        .into_iter()
        .map(|candidate| {
            let likeness = strsim::jaro_winkler(&name.to_lowercase(), &candidate.to_lowercase());
            ((likeness * 1000.0) as u32, candidate)
        })
        .filter(|(likeness, _)| *likeness >= LIKENESS_PER_MILLE)
        .max_by_key(|(likeness, candidate)| (*likeness, Reverse(candidate.len())))
        .map(|(_, candidate)| candidate)
}
