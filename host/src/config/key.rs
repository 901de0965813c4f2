//! A key: what it is called, what it takes, and what an untrusted file may do with it.

use std::path::PathBuf;

use super::{
    layers::Context,
    node::{Node, Value},
    shown,
};

/// A key without its type: what documentation, templates and variables need.
#[derive(Debug, Clone, Copy)]
pub(super) struct Entry {
    /// Dotted; `<plugin>` stands for the name of a plugin.
    pub(super) path: &'static str,
    pub(super) form: Form,
    pub(super) default: Default_,
    /// One sentence.
    pub(super) doc: &'static str,
}

/// How a value is written where there is no TOML: in a variable or behind a flag.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    /// As it is.
    Word,
    /// A number or a truth value; anything else is a word.
    Bare,
    /// With commas between, or a TOML list. A flag gives one element each time.
    List,
    /// In a file only.
    FileOnly,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Default_ {
    /// In TOML.
    Is(&'static str),
    /// Found out at start; the example, in TOML, is for the template.
    Found { example: &'static str },
}

/// What a value is worth that stands in a project file which nobody trusts.
pub(super) enum Weight<T> {
    /// It can do no harm.
    Free,
    /// It counts only when trusted.
    Trusted,
    /// It counts when it is at least as strict as what holds without it: `f(new, without)`.
    Stricter(fn(&T, &T) -> bool),
}

pub(super) struct Key<T> {
    pub(super) entry: Entry,
    pub(super) weight: Weight<T>,
    /// `None`: it is wrong, and the context has the faults. The text is the full path, for messages.
    pub(super) read: fn(&Node, &str, &mut Context) -> Option<T>,
}

type Cx<'a> = &'a mut Context;

fn wrong<T>(node: &Node, path: &str, wanted: &str, cx: Cx<'_>) -> Option<T> {
    cx.faults
        .push(node.fault(format!("`{path}` wants {wanted}, got {}", node.in_words())));
    None
}

pub(super) fn text(node: &Node, path: &str, cx: Cx<'_>) -> Option<String> {
    match &node.value {
        Value::Text(text) if !text.trim().is_empty() => Some(text.clone()),
        Value::Text(_) => wrong(node, path, "a text that is not empty", cx),
        _ => wrong(node, path, "a text in quotes", cx),
    }
}

pub(super) fn text_or_unset(node: &Node, path: &str, cx: Cx<'_>) -> Option<Option<String>> {
    text(node, path, cx).map(Some)
}

pub(super) fn flag(node: &Node, path: &str, cx: Cx<'_>) -> Option<bool> {
    match node.value {
        Value::Boolean(flag) => Some(flag),
        _ => wrong(node, path, "true or false", cx),
    }
}

/// From 1.
pub(super) fn count<N: TryFrom<i64>>(node: &Node, path: &str, cx: Cx<'_>) -> Option<N> {
    match node.value {
        Value::Integer(number) if number >= 1 => match N::try_from(number) {
            Ok(number) => Some(number),
            Err(_) => wrong(node, path, "a smaller whole number", cx),
        },
        _ => wrong(node, path, "a whole number from 1", cx),
    }
}

fn is_none(node: &Node) -> bool {
    matches!(&node.value, Value::Text(text) if text == "none")
}

pub(super) fn count_or_none<N: TryFrom<i64>>(
    node: &Node,
    path: &str,
    cx: Cx<'_>,
) -> Option<Option<N>> {
    if is_none(node) {
        return Some(None);
    }
    match node.value {
        Value::Integer(number) if number >= 1 => count(node, path, cx).map(Some),
        _ => wrong(node, path, "a whole number from 1, or \"none\"", cx),
    }
}

pub(super) fn duration_or_none(
    node: &Node,
    path: &str,
    cx: Cx<'_>,
) -> Option<Option<std::time::Duration>> {
    const WANTED: &str = "a duration such as \"500ms\", \"30s\", \"5m\" or \"2h\", or \"none\"";
    if is_none(node) {
        return Some(None);
    }
    match &node.value {
        Value::Text(text) => match super::units::parse_duration(text) {
            Ok(duration) => Some(Some(duration)),
            Err(why) => wrong_because(node, path, WANTED, why, cx),
        },
        _ => wrong(node, path, WANTED, cx),
    }
}

fn wrong_because<T>(node: &Node, path: &str, wanted: &str, why: &str, cx: Cx<'_>) -> Option<T> {
    let got = node.in_words();
    cx.faults
        .push(node.fault(format!("`{path}` wants {wanted}, got {got}: {why}")));
    None
}

fn size(node: &Node, path: &str, min: u64, max: u64, cx: Cx<'_>) -> Option<usize> {
    const WANTED: &str = "a size such as \"512KiB\", \"64MiB\" or \"1GiB\"";
    let Value::Text(text) = &node.value else {
        return wrong(node, path, WANTED, cx);
    };
    match super::units::parse_size(text) {
        Ok(bytes) if bytes < min => wrong_because(node, path, WANTED, "it is too small", cx),
        Ok(bytes) if bytes > max => wrong_because(node, path, WANTED, "it is too large", cx),
        Ok(bytes) => usize::try_from(bytes).ok(),
        Err(why) => wrong_because(node, path, WANTED, why, cx),
    }
}

/// From one page of WebAssembly to all that it can address.
pub(super) fn memory(node: &Node, path: &str, cx: Cx<'_>) -> Option<usize> {
    size(node, path, 64 << 10, 4 << 30, cx)
}

/// An answer is held in memory, several times over while it is written down.
pub(super) fn output(node: &Node, path: &str, cx: Cx<'_>) -> Option<usize> {
    size(node, path, 1 << 10, 1 << 30, cx)
}

pub(super) fn path(node: &Node, path: &str, cx: Cx<'_>) -> Option<PathBuf> {
    let written = text(node, path, cx)?;
    Some(cx.resolve(&written, &node.origin))
}

pub(super) fn path_or_unset(node: &Node, key: &str, cx: Cx<'_>) -> Option<Option<PathBuf>> {
    path(node, key, cx).map(Some)
}

/// `"none"`: no folder.
pub(super) fn cache_dir(node: &Node, key: &str, cx: Cx<'_>) -> Option<super::CacheDir> {
    if is_none(node) {
        return Some(super::CacheDir::None);
    }
    path(node, key, cx).map(super::CacheDir::At)
}

/// Each element by itself, so that all their faults are told.
pub(super) fn list<T>(
    node: &Node,
    path: &str,
    wanted: &str,
    cx: Cx<'_>,
    element: fn(&Node, &str, Cx<'_>) -> Option<T>,
) -> Option<Vec<T>> {
    let Value::List(elements) = &node.value else {
        return wrong(node, path, wanted, cx);
    };
    let read: Vec<Option<T>> = elements.iter().map(|e| element(e, path, cx)).collect();
    read.into_iter().collect()
}

pub(super) fn paths_or_unset(node: &Node, key: &str, cx: Cx<'_>) -> Option<Option<Vec<PathBuf>>> {
    list(node, key, "a list of paths", cx, path).map(Some)
}

/// Files that have to be there.
pub(super) fn files(node: &Node, key: &str, cx: Cx<'_>) -> Option<Vec<PathBuf>> {
    list(node, key, "a list of paths", cx, |node, key, cx| {
        let file = path(node, key, cx)?;
        if file.is_file() {
            return Some(file);
        }
        let written = node.in_words();
        let looked = file.display().to_string();
        cx.faults.push(node.fault(format!(
            "`{key}` names the file {written}, which does not exist (looked for `{}`)",
            shown(&looked)
        )));
        None
    })
}

/// Checks `https://host[:port][/path]`; without a slash at its end.
pub(super) fn base_url(node: &Node, path: &str, cx: Cx<'_>) -> Option<Option<String>> {
    const WANTED: &str = "a web address such as \"https://api.example.org/v1\"";
    let written = text(node, path, cx)?;
    let why = match url::Url::parse(&written) {
        Err(_) => "it does not parse as a URL",
        Ok(url) if !matches!(url.scheme(), "http" | "https") => "only http and https are known",
        Ok(url) if !url.username().is_empty() || url.password().is_some() => {
            cx.faults.push(node.fault(format!(
                "`{path}` carries a user name or password; put the key into its environment variable"
            )));
            return None;
        }
        Ok(url) if url.query().is_some() || url.fragment().is_some() => {
            "it has a query or fragment"
        }
        Ok(_) => return Some(Some(written.trim_end_matches('/').to_owned())),
    };
    wrong_because(node, path, WANTED, why, cx)
}

/// One of a few words.
pub(super) fn word<T: Copy>(node: &Node, path: &str, words: &[(&str, T)], cx: Cx<'_>) -> Option<T> {
    let known = words.iter().map(|(word, _)| *word);
    let wanted = known
        .clone()
        .map(|word| format!("\"{word}\""))
        .collect::<Vec<_>>()
        .join(", ");
    let wanted = format!("one of {wanted}");
    let Value::Text(text) = &node.value else {
        return wrong(node, path, &wanted, cx);
    };
    if let Some((_, value)) = words.iter().find(|(word, _)| word == text) {
        return Some(*value);
    }
    match super::origin::nearest(text, known) {
        Some(near) => wrong_because(
            node,
            path,
            &wanted,
            &format!("did you mean \"{near}\"?"),
            cx,
        ),
        None => wrong(node, path, &wanted, cx),
    }
}

pub(super) fn no_wider<T: Ord>(new: &T, without: &T) -> bool {
    new <= without
}

/// `None` is without bound.
pub(super) fn no_wider_or_none<T: Ord>(new: &Option<T>, without: &Option<T>) -> bool {
    match (new, without) {
        (_, None) => true,
        (None, Some(_)) => false,
        (Some(new), Some(without)) => new <= without,
    }
}
