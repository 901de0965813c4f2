//! The layers of the configuration, and which of them gives a value.

use std::{
    fmt,
    path::{Path, PathBuf},
};

use super::{
    key::{Default_, Key, Weight},
    node::{self, Node},
    origin::{Fault, Origin},
    shown,
};

/// What reading a value needs besides the value.
pub(super) struct Context {
    pub(super) faults: Vec<Fault>,
    pub(super) working_dir: PathBuf,
    /// The folder of the project file.
    pub(super) project_dir: PathBuf,
    /// The folder of the user's file.
    pub(super) user_dir: PathBuf,
    pub(super) home: PathBuf,
    /// Canonical folders that no tool may write in: this program's own.
    pub(super) closed_to_tools: Vec<PathBuf>,
}

impl Context {
    /// A path is relative to the file that names it, and `~` in front is the user's home. Nothing else in it has a
    /// meaning: no pattern, no percent sign, no variable.
    pub(super) fn resolve(&self, written: &str, origin: &Origin) -> PathBuf {
        match written.strip_prefix('~') {
            Some("") => return self.home.clone(),
            Some(rest) if rest.starts_with('/') => {
                return self.home.join(rest.trim_start_matches('/'));
            }
            _ => {}
        }
        let base = match origin {
            Origin::User(_) => &self.user_dir,
            Origin::Project(_) => &self.project_dir,
            Origin::Default | Origin::Environment(_) | Origin::Flag(_) => &self.working_dir,
        };
        match written {
            "." => base.clone(),
            written => base.join(Path::new(written.strip_prefix("./").unwrap_or(written))),
        }
    }
}

/// Something that a project file says and that does not count, since nobody trusts the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Withheld {
    pub key: String,
    /// As TOML on one line.
    pub value: String,
    pub origin: Origin,
}

impl fmt::Display for Withheld {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} = {}", shown(&self.key), shown(&self.value))
    }
}

/// A value as it counts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shown {
    pub key: String,
    /// As TOML on one line.
    pub value: String,
    /// Highest first; one, unless the rules of several files count together.
    pub origins: Vec<Origin>,
}

impl fmt::Display for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} = {}  # from ", self.key, self.value)?;
        for (i, origin) in self.origins.iter().enumerate() {
            let separator = if i == 0 { "" } else { ", " };
            write!(f, "{separator}{origin}")?;
        }
        Ok(())
    }
}

pub(super) struct Layers {
    /// Each a table; the lowest first.
    pub(super) tables: Vec<Node>,
    /// Whether everything in the project file counts.
    pub(super) trusted: bool,
    pub(super) cx: Context,
    pub(super) withheld: Vec<Withheld>,
    pub(super) shown: Vec<Shown>,
}

impl Layers {
    /// The value of a key. When it is wrong somewhere the fault is noted and a placeholder is returned.
    pub(super) fn value<T: Default>(&mut self, key: &Key<T>) -> T {
        self.value_if_said(key).0
    }

    /// As [`Layers::value`], and whether it is some layer's: what does not count says nothing.
    pub(super) fn value_if_said<T: Default>(&mut self, key: &Key<T>) -> (T, bool) {
        let path = key.entry.path;
        match key.entry.default {
            Default_::Is(literal) => {
                let node = node::parse_literal(literal, &Origin::Default);
                let default = node.and_then(|node| (key.read)(&node, path, &mut self.cx));
                self.show(path, literal.to_owned(), Origin::Default);
                self.value_at_if_said(key, path, default.unwrap_or_default())
            }
            Default_::Found { .. } => self.value_at_if_said(key, path, T::default()),
        }
    }

    /// The value at a path; `lowest` holds where no layer says anything.
    pub(super) fn value_at<T>(&mut self, key: &Key<T>, path: &str, lowest: T) -> T {
        self.value_at_if_said(key, path, lowest).0
    }

    /// As [`Layers::value_at`], and whether it is some layer's.
    pub(super) fn value_at_if_said<T>(&mut self, key: &Key<T>, path: &str, lowest: T) -> (T, bool) {
        let mut value = lowest;
        let mut from = None;
        for node in self.tables.iter().filter_map(|table| table.get(path)) {
            let Some(new) = (key.read)(node, path, &mut self.cx) else {
                continue;
            };
            let counts = self.trusted
                || !matches!(node.origin, Origin::Project(_))
                || match key.weight {
                    Weight::Free => true,
                    Weight::Trusted => false,
                    Weight::Stricter(is_as_strict) => is_as_strict(&new, &value),
                };
            if counts {
                value = new;
                from = Some(node);
            } else {
                self.withheld.push(Withheld {
                    key: path.to_owned(),
                    value: node.literal(),
                    origin: node.origin.clone(),
                });
            }
        }
        let is_said = from.is_some();
        if let Some(node) = from {
            let (literal, origin) = (node.literal(), node.origin.clone());
            self.show(path, literal, origin);
        }
        (value, is_said)
    }

    /// The elements of all layers, the highest layer's first: no layer takes another's rules away.
    pub(super) fn joined<T>(&mut self, key: &Key<Vec<T>>) -> Vec<T> {
        let path = key.entry.path;
        let mut joined = Vec::new();
        let (mut literals, mut origins) = (Vec::new(), Vec::new());
        for node in self.tables.iter().rev().filter_map(|table| table.get(path)) {
            let Some(elements) = (key.read)(node, path, &mut self.cx) else {
                continue;
            };
            let counts = self.trusted
                || !matches!(node.origin, Origin::Project(_))
                || matches!(key.weight, Weight::Free);
            if counts {
                if !elements.is_empty() {
                    let literal = node.literal();
                    literals.push(literal[1..literal.len() - 1].to_owned());
                    origins.push(node.origin.clone());
                }
                joined.extend(elements);
            } else if !elements.is_empty() {
                self.withheld.push(Withheld {
                    key: path.to_owned(),
                    value: node.literal(),
                    origin: node.origin.clone(),
                });
            }
        }
        if origins.is_empty() {
            origins.push(Origin::Default);
        }
        self.shown.push(Shown {
            key: path.to_owned(),
            value: format!("[{}]", literals.join(", ")),
            origins,
        });
        joined
    }

    /// Notes what counts at a path, instead of what was noted before.
    pub(super) fn show(&mut self, path: &str, value: String, origin: Origin) {
        let new = Shown {
            key: path.to_owned(),
            value,
            origins: vec![origin],
        };
        match self.shown.iter_mut().find(|shown| shown.key == path) {
            Some(shown) => *shown = new,
            None => self.shown.push(new),
        }
    }
}
