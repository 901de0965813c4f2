//! The `[grants.<plugin>]` tables: what a plugin's components may reach on this machine.

use std::path::{Component, Path, PathBuf};

use super::{
    env_vars, key,
    layers::Context,
    node::{Node, Value},
    origin::{Fault, nearest},
    shown,
};
use crate::capability::{Access, FolderGrant, HttpGrant, OriginPattern};

/// A folder grant, and the path as it stands in the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct WrittenFolder {
    pub(super) grant: FolderGrant,
    pub(super) written: String,
}

pub(super) fn folders(node: &Node, key: &str, cx: &mut Context) -> Option<Vec<WrittenFolder>> {
    let folders = key::list(node, key, "a list of folders", cx, folder)?;
    for (i, folder) in folders.iter().enumerate() {
        let path = &folder.grant.guest_path;
        if folders[..i]
            .iter()
            .any(|other| other.grant.guest_path == *path)
        {
            cx.faults.push(node.fault(format!(
                "`{key}` opens two folders as `{}`; give one of them another `as`",
                shown(path)
            )));
            return None;
        }
    }
    Some(folders)
}

fn folder(node: &Node, key: &str, cx: &mut Context) -> Option<WrittenFolder> {
    let (path, guest_path, access) = match &node.value {
        Value::Table(_) => {
            let fields = fields(node, key, &["path", "as", "access"], cx)?;
            let access = match fields[2] {
                None => Access::Read,
                Some(access) => {
                    let words = [("read", Access::Read), ("write", Access::Write)];
                    key::word(access, &format!("{key}.access"), &words, cx)?
                }
            };
            let Some(path) = fields[0] else {
                cx.faults
                    .push(node.fault(format!("`{key}` has a folder without `path`")));
                return None;
            };
            (path, fields[1], access)
        }
        _ => (node, None, Access::Read),
    };
    let written = key::text(path, key, cx)?;
    let host_path = existing_folder(path, key, &written, cx)?;
    let guest_path = match guest_path {
        Some(node) => {
            let text = key::text(node, &format!("{key}.as"), cx)?;
            if let Err(why) = check_guest_path(&text) {
                cx.faults.push(node.fault(format!(
                    "`{key}.as` wants a path such as `/notes`, got `{}`: {why}",
                    shown(&text)
                )));
                return None;
            }
            text
        }
        None => match default_guest_path(&written) {
            Some(guest_path) => guest_path,
            None => {
                cx.faults.push(path.fault(format!(
                    "`{key}` has the folder `{}`, which gives no name; add `as = \"/name\"`",
                    shown(&written)
                )));
                return None;
            }
        },
    };
    if access == Access::Write {
        check_not_closed(path, key, &written, &host_path, cx)?;
    }
    Some(WrittenFolder {
        grant: FolderGrant {
            host_path,
            guest_path,
            access,
        },
        written,
    })
}

/// `/` and the last part of the path as written, if it has one.
fn default_guest_path(written: &str) -> Option<String> {
    match Path::new(written).components().next_back()? {
        Component::Normal(name) if name != "~" => {
            let guest_path = format!("/{}", name.to_str()?);
            check_guest_path(&guest_path).ok().map(|()| guest_path)
        }
        _ => None,
    }
}

fn existing_folder(node: &Node, key: &str, written: &str, cx: &mut Context) -> Option<PathBuf> {
    let path = cx.resolve(written, &node.origin);
    let why = match path.canonicalize() {
        Ok(canonical) if canonical.is_dir() => return Some(canonical),
        Ok(_) => "is not a folder".to_owned(),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => "does not exist".to_owned(),
        Err(error) => format!("cannot be opened: {error}"),
    };
    cx.faults.push(node.fault(format!(
        "`{key}` names the folder `{}`, which {why} (looked for `{}`)",
        shown(written),
        shown(&path.display().to_string())
    )));
    None
}

/// A tool that could write there could grant itself anything, or plant native code.
fn check_not_closed(
    node: &Node,
    key: &str,
    written: &str,
    path: &Path,
    cx: &mut Context,
) -> Option<()> {
    let overlaps = |own: &&PathBuf| path.starts_with(own) || own.starts_with(path);
    let Some(closed) = cx.closed_to_tools.iter().find(overlaps) else {
        return Some(());
    };
    let closed = shown(&closed.display().to_string());
    cx.faults.push(node.fault(format!(
        "`{key}` opens the folder `{}` for writing, which holds this program's own `{closed}`; open a folder beside it",
        shown(written)
    )));
    None
}

fn check_guest_path(text: &str) -> Result<(), &'static str> {
    if text == "/" {
        return Ok(());
    }
    let Some(inside) = text.strip_prefix('/') else {
        return Err("it has to begin with `/`");
    };
    if text.contains('\\') || text.contains(char::is_control) {
        return Err("it holds a character that paths of components do not have");
    }
    if inside
        .split('/')
        .any(|segment| matches!(segment, "" | "." | ".."))
    {
        return Err("it has an empty segment, `.` or `..`");
    }
    Ok(())
}

pub(super) fn http(node: &Node, key: &str, cx: &mut Context) -> Option<HttpGrant> {
    let (origin, methods) = match &node.value {
        Value::Table(_) => {
            let fields = fields(node, key, &["origin", "methods"], cx)?;
            let Some(origin) = fields[0] else {
                cx.faults
                    .push(node.fault(format!("`{key}` has an entry without `origin`")));
                return None;
            };
            let methods = match fields[1] {
                None => Vec::new(),
                Some(methods) => self::methods(methods, &format!("{key}.methods"), cx)?,
            };
            (origin, methods)
        }
        _ => (node, Vec::new()),
    };
    let text = key::text(origin, key, cx)?;
    match OriginPattern::parse(&text) {
        Ok(origin) => Some(HttpGrant { origin, methods }),
        Err(error) => {
            // the error quotes the file
            let error = crate::harmless::harmless(&error.to_string());
            cx.faults.push(origin.fault(format!("`{key}`: {error}")));
            None
        }
    }
}

fn methods(node: &Node, key: &str, cx: &mut Context) -> Option<Vec<String>> {
    /// Longer than any registered method.
    const MAX_METHOD_BYTES: usize = 32;
    let methods = key::list(node, key, "a list of methods", cx, |node, key, cx| {
        let method = key::text(node, key, cx)?.to_ascii_uppercase();
        let is_method = method.len() <= MAX_METHOD_BYTES
            && method
                .bytes()
                .all(|b| b.is_ascii_alphanumeric() || b == b'-')
            && method != "CONNECT";
        if !is_method {
            cx.faults.push(node.fault(format!(
                "`{key}` wants methods such as \"GET\" or \"POST\", got {}",
                node.in_words()
            )));
            return None;
        }
        Some(method)
    })?;
    if methods.is_empty() {
        cx.faults.push(node.fault(format!(
            "`{key}` is empty; leave it out for GET and HEAD, or leave out the origin"
        )));
        return None;
    }
    Some(methods)
}

pub(super) fn environment(node: &Node, key: &str, cx: &mut Context) -> Option<String> {
    let name = key::text(node, key, cx)?;
    let why = if name.contains(['*', '?', '[']) {
        "variables are granted one by one, by their names"
    } else if env_vars::is_reserved(&name) {
        "it belongs to this program and is never given to a tool"
    } else if name.contains(['=', '\0']) || name.contains(char::is_whitespace) {
        "it is not the name of a variable"
    } else {
        return Some(name);
    };
    cx.faults
        .push(node.fault(format!("`{key}` names `{}`: {why}", shown(&name))));
    None
}

/// The members of an inline table in the order of their names, after a check that there are no others.
fn fields<'a>(
    node: &'a Node,
    key: &str,
    names: &[&'static str],
    cx: &mut Context,
) -> Option<Vec<Option<&'a Node>>> {
    let mut known = true;
    for member in node.members() {
        if names.contains(&member.key.as_str()) {
            continue;
        }
        known = false;
        let hint = match nearest(&member.key, names.iter().copied()) {
            Some(near) => format!("did you mean `{near}`?"),
            None => format!("it takes {}", names.join(", ")),
        };
        cx.faults.push(Fault {
            origin: member.origin.clone(),
            message: format!("`{key}` has no `{}`; {hint}", shown(&member.key)),
        });
    }
    known.then(|| names.iter().map(|name| node.get(name)).collect())
}
