//! Reads a settings file, and finds what does not belong into one.

use std::{
    collections::BTreeSet,
    io::{self, Read as _},
    path::Path,
    sync::Arc,
};

use super::{
    keys,
    node::{self, MAX_FILE_BYTES, Node, Value},
    origin::{Fault, FileLine, Origin, nearest},
    shown,
};
use crate::ids::PluginName;

/// Reads a settings file as far as it is one; a file that is not there says nothing. Also its content.
pub(super) fn read_layer(
    path: &Path,
    written: &Path,
    at: fn(FileLine) -> Origin,
    faults: &mut Vec<Fault>,
) -> (Node, Option<Vec<u8>>) {
    let file: Arc<str> = shown(&written.display().to_string()).into();
    let at_file = at(FileLine {
        file: file.clone(),
        line: 0,
    });
    let nothing = Node::empty_table(at_file.clone());
    let mut fault = |message: String| {
        faults.push(Fault {
            origin: at_file.clone(),
            message,
        });
    };
    let content = match read_bounded(path) {
        Ok(content) => content,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return (nothing, None),
        Err(error) => {
            fault(format!("the file cannot be read: {error}"));
            return (nothing, None);
        }
    };
    if content.len() > MAX_FILE_BYTES {
        fault(format!("the file is larger than {MAX_FILE_BYTES} bytes"));
        return (nothing, None);
    }
    let Ok(text) = std::str::from_utf8(&content) else {
        fault("the file is not UTF-8 text".to_owned());
        return (nothing, Some(content));
    };
    match node::parse(text, at, &file) {
        Ok(table) => {
            check_known(&table, "", faults);
            (table, Some(content))
        }
        Err(syntax) => {
            faults.extend(syntax);
            (nothing, Some(content))
        }
    }
}

/// One byte more than [`MAX_FILE_BYTES`] at most.
pub(super) fn read_bounded(path: &Path) -> io::Result<Vec<u8>> {
    let mut content = Vec::new();
    std::fs::File::open(path)?
        .take(MAX_FILE_BYTES as u64 + 1)
        .read_to_end(&mut content)?;
    Ok(content)
}

/// Notes every key that is not in [`keys::ALL`].
fn check_known(table: &Node, prefix: &str, faults: &mut Vec<Fault>) {
    for member in table.members() {
        let key = member.key.as_str();
        let path = join(prefix, key);
        let known = match prefix {
            "grants" | "mcp" | "secrets" => join(prefix, keys::ANY_PLUGIN),
            prefix => join(prefix, key),
        };
        let mut fault = |message: String| {
            faults.push(Fault {
                origin: member.origin.clone(),
                message,
            });
        };
        if keys::ALL.iter().any(|entry| entry.path == known) {
            continue;
        }
        let is_table = children(&known).next().is_some();
        match &member.node.value {
            Value::Table(_) if is_table && ["grants", "mcp", "secrets"].contains(&prefix) => {
                match PluginName::parse(key) {
                    Ok(_) => check_named(&member.node, prefix, &path, faults),
                    Err(error) => fault(format!("`[{prefix}.{}]`: {error}", shown(key))),
                }
            }
            Value::Table(_) if is_table => check_known(&member.node, &path, faults),
            _ if is_table => fault(format!(
                "`{}` wants a table, got {}",
                shown(&path),
                member.node.in_words()
            )),
            _ => fault(unknown_key(prefix, key)),
        }
    }
}

/// A table of one plugin or MCP server.
fn check_named(table: &Node, of: &str, path: &str, faults: &mut Vec<Fault>) {
    let prefix = join(of, keys::ANY_PLUGIN);
    for member in table.members() {
        if children(&prefix).all(|child| child != member.key) {
            let message = unknown_key(&prefix, &member.key).replace(&prefix, &shown(path));
            faults.push(Fault {
                origin: member.origin.clone(),
                message,
            });
        }
    }
}

fn unknown_key(prefix: &str, key: &str) -> String {
    let path = shown(&join(prefix, key));
    if ["key", "token", "secret", "password"]
        .iter()
        .any(|word| key.to_lowercase().ends_with(word))
    {
        return format!(
            "there is no key `{path}`; keys do not stand in files: set `ANTHROPIC_API_KEY` or `OPENAI_API_KEY`, or the same with `_FILE`"
        );
    }
    let here: BTreeSet<&str> = children(prefix).collect();
    if let Some(near) = nearest(key, here.iter().copied()) {
        return format!(
            "there is no key `{path}`; did you mean `{}`?",
            join(prefix, near)
        );
    }
    // at the top stands what was meant for a table; elsewhere a likeness says little
    let names = keys::ALL.iter().map(|entry| last_part(entry.path));
    let elsewhere = match prefix {
        "" => nearest(key, names),
        _ => Some(key),
    };
    if let Some(entry) = keys::ALL
        .iter()
        .find(|entry| Some(last_part(entry.path)) == elsewhere)
    {
        return format!("there is no key `{path}`; did you mean `{}`?", entry.path);
    }
    let here = here.into_iter().collect::<Vec<_>>().join(", ");
    match prefix {
        "" => format!("there is no key `{path}`; known are {here}"),
        prefix => format!("there is no key `{path}`; known in `[{prefix}]` are {here}"),
    }
}

fn last_part(path: &str) -> &str {
    path.rsplit('.').next().unwrap_or(path)
}

/// The names directly below a path.
fn children(path: &str) -> impl Iterator<Item = &'static str> {
    let prefix = match path {
        "" => String::new(),
        path => format!("{path}."),
    };
    keys::ALL
        .iter()
        .filter_map(move |entry| entry.path.strip_prefix(prefix.as_str())?.split('.').next())
}

fn join(prefix: &str, key: &str) -> String {
    match prefix {
        "" => key.to_owned(),
        prefix => format!("{prefix}.{key}"),
    }
}
