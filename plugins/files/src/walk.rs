//! All files below some folders, in a stable order.

use std::{fs, io};

use agentloop_sdk::{Result, ToolError};

#[cfg(all(target_arch = "wasm32", target_os = "wasi", target_env = "p2"))]
use crate::folders::covers;
use crate::folders::told;

/// Files and folders that are looked at in one call.
const MAX_VISITED: usize = 100_000;

pub(crate) struct Found<'a> {
    pub(crate) path: &'a str,
    /// `path` below the folder where the walk began.
    pub(crate) below: &'a str,
    pub(crate) kind: Kind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// With its size in bytes.
    File(u64),
    Folder,
    /// Never followed: it could lead in circles.
    Link,
    Other,
}

/// What there is to say of a walk besides what it found.
#[derive(Default)]
pub(crate) struct Walked {
    notes: Vec<String>,
    not_utf8: usize,
    unreadable: usize,
}

impl Walked {
    pub(crate) fn note(&mut self, note: String) {
        self.notes.push(note);
    }

    /// All notes, each on a line of its own, with a line end in front.
    pub(crate) fn notes(mut self) -> String {
        if self.not_utf8 > 0 {
            self.note(format!(
                "names left out since they are not UTF-8: {}",
                self.not_utf8
            ));
        }
        if self.unreadable > 0 {
            self.note(format!("folders that can't be read: {}", self.unreadable));
        }
        self.notes
            .iter()
            .map(|note| format!("\n[{note}]"))
            .collect()
    }
}

/// Visits what lies in these folders, `depth` levels deep, each folder before what it holds, by name. A file among the
/// `roots` is visited itself. Ends when `visit` says false.
pub(crate) fn walk(
    roots: &[String],
    depth: usize,
    mut visit: impl FnMut(Found<'_>) -> Result<bool>,
) -> Result<Walked> {
    let mut walked = Walked::default();
    let mut visited = 0;
    for root in roots {
        let start = root.trim_end_matches('/').len() + 1;
        let metadata = fs::metadata(root).map_err(|error| told(root, &error))?;
        if !metadata.is_dir() {
            if depth < usize::MAX {
                return Err(ToolError::invalid_arguments(format!(
                    "`{root}` is a file; `read_file` reads it"
                )));
            }
            let below = root.rsplit('/').next().unwrap_or_default();
            visit(Found {
                path: root,
                below,
                kind: Kind::File(metadata.len()),
            })?;
            continue;
        }
        // What is still to be visited, the next one last.
        let mut ahead = entries(root, 1, &mut walked).map_err(|error| told(root, &error))?;
        while let Some((path, level, kind)) = ahead.pop() {
            visited += 1;
            if visited > MAX_VISITED {
                walked.note(format!(
                    "only the first {MAX_VISITED} files and folders were looked at"
                ));
                return Ok(walked);
            }
            let below = path.get(start..).unwrap_or_default();
            if !visit(Found {
                path: &path,
                below,
                kind,
            })? {
                return Ok(walked);
            }
            if kind == Kind::Folder && level < depth {
                match entries(&path, level + 1, &mut walked) {
                    Ok(more) => ahead.extend(more),
                    Err(_) => walked.unreadable += 1,
                }
            }
        }
    }
    Ok(walked)
}

type Entry = (String, usize, Kind);

/// What is in a folder, the last name first.
fn entries(folder: &str, level: usize, walked: &mut Walked) -> io::Result<Vec<Entry>> {
    let mut names = names(folder, walked)?;
    names.sort_unstable_by(|a, b| b.cmp(a));
    let entry = |name: String| {
        let path = format!("{}/{name}", folder.trim_end_matches('/'));
        let kind = match fs::symlink_metadata(&path) {
            Ok(metadata) if metadata.is_symlink() => Kind::Link,
            Ok(metadata) if metadata.is_dir() => Kind::Folder,
            Ok(metadata) if metadata.is_file() => Kind::File(metadata.len()),
            _ => Kind::Other,
        };
        (path, level, kind)
    };
    Ok(names.into_iter().map(entry).collect())
}

#[cfg(not(all(target_arch = "wasm32", target_os = "wasi", target_env = "p2")))]
fn names(folder: &str, walked: &mut Walked) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(folder)? {
        match entry?.file_name().into_string() {
            Ok(name) => names.push(name),
            Err(_) => walked.not_utf8 += 1,
        }
    }
    Ok(names)
}

/// The host tells of a name that is not UTF-8 by an error, and the standard library reads no further then.
#[cfg(all(target_arch = "wasm32", target_os = "wasi", target_env = "p2"))]
fn names(folder: &str, walked: &mut Walked) -> io::Result<Vec<String>> {
    use wasip2::filesystem::{
        preopens::get_directories,
        types::{DescriptorFlags, ErrorCode, OpenFlags, PathFlags},
    };

    // Its errors are the ones that people know.
    drop(fs::read_dir(folder)?);
    let granted = get_directories()
        .into_iter()
        .filter(|(_, path)| covers(path, folder))
        .max_by_key(|(_, path)| path.len());
    let Some((granted, path)) = granted else {
        return Err(io::ErrorKind::NotFound.into());
    };
    let below = match folder[path.trim_end_matches('/').len()..].trim_start_matches('/') {
        "" => ".",
        below => below,
    };
    let failed = |code: ErrorCode| io::Error::other(code.message());
    let opened = granted
        .open_at(
            PathFlags::SYMLINK_FOLLOW,
            below,
            OpenFlags::DIRECTORY,
            DescriptorFlags::READ,
        )
        .map_err(failed)?;
    let entries = opened.read_directory().map_err(failed)?;
    let mut names = Vec::new();
    loop {
        match entries.read_directory_entry() {
            Ok(Some(entry)) => names.push(entry.name),
            Ok(None) => return Ok(names),
            Err(ErrorCode::IllegalByteSequence) => walked.not_utf8 += 1,
            Err(code) => return Err(failed(code)),
        }
    }
}
