//! Which folders are granted, and what a path means among them.

use std::io;

use agentloop_sdk::{Result, ToolError};

/// Where an absolute path lies.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// In a granted folder: the path, without `.` and `..`.
    Inside(String),
    /// Above these granted folders.
    Above(Vec<String>),
}

impl Place {
    /// The path of what is to be a file.
    pub(crate) fn file(self) -> Result<String> {
        match self {
            Self::Inside(path) => Ok(path),
            Self::Above(folders) => Err(ToolError::invalid_arguments(format!(
                "name a file; the granted folders are {}",
                listed(&folders)
            ))),
        }
    }
}

pub(crate) fn place(path: &str) -> Result<Place> {
    place_among(path, granted())
}

fn place_among(path: &str, granted: Vec<String>) -> Result<Place> {
    if granted.is_empty() {
        return Err(ToolError::denied(format!(
            "`{path}` can't be reached: no folder is granted to this tool"
        )));
    }
    let Some(rest) = path.strip_prefix('/') else {
        return Err(ToolError::invalid_arguments(format!(
            "`{path}` is not an absolute path; the granted folders are {}",
            listed(&granted)
        )));
    };
    if rest.contains('\0') {
        return Err(ToolError::invalid_arguments(
            "a path has no null characters",
        ));
    }
    let mut parts = Vec::new();
    for part in rest.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop();
            }
            part => parts.push(part),
        }
    }
    let path = format!("/{}", parts.join("/"));
    if granted.iter().any(|folder| covers(folder, &path)) {
        return Ok(Place::Inside(path));
    }
    let below: Vec<String> = granted
        .iter()
        .filter(|folder| covers(&path, folder))
        .cloned()
        .collect();
    if below.is_empty() {
        return Err(ToolError::denied(format!(
            "`{path}` is in no folder that is granted to this tool; granted are {}",
            listed(&granted)
        )));
    }
    Ok(Place::Above(below))
}

/// Whether `path` is `folder` or lies in it.
pub(crate) fn covers(folder: &str, path: &str) -> bool {
    path.strip_prefix(folder.trim_end_matches('/'))
        .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// What went wrong with a path, for the model.
pub(crate) fn told(path: &str, error: &io::Error) -> ToolError {
    use io::ErrorKind::{
        IsADirectory, NotADirectory, NotFound, PermissionDenied, ReadOnlyFilesystem, StorageFull,
    };
    match error.kind() {
        NotFound => ToolError::new(format!("`{path}` does not exist")),
        PermissionDenied | ReadOnlyFilesystem => ToolError::denied(format!(
            "`{path}`: the host refused it; its folder may be granted for reading only, or it leads out of the folder"
        )),
        IsADirectory => ToolError::new(format!("`{path}` is a folder; `list_files` lists it")),
        NotADirectory => ToolError::new(format!("`{path}` is a file, or leads through one")),
        StorageFull => ToolError::new(format!("`{path}` can't be written: the disk is full")),
        _ => ToolError::new(format!("`{path}`: {error}")),
    }
}

fn listed(folders: &[String]) -> String {
    /// How many are named in a message.
    const MAX: usize = 10;
    let mut names: Vec<String> = folders
        .iter()
        .take(MAX)
        .map(|folder| format!("`{folder}`"))
        .collect();
    if folders.len() > MAX {
        names.push(format!("{} more", folders.len() - MAX));
    }
    names.join(", ")
}

/// The paths of the granted folders, sorted.
#[cfg(all(target_arch = "wasm32", target_os = "wasi", target_env = "p2"))]
fn granted() -> Vec<String> {
    let mut folders: Vec<String> = wasip2::filesystem::preopens::get_directories()
        .into_iter()
        .map(|(_, path)| path)
        .collect();
    folders.sort();
    folders
}

/// Outside a component the tests' folders lie here.
#[cfg(not(all(target_arch = "wasm32", target_os = "wasi", target_env = "p2")))]
fn granted() -> Vec<String> {
    let folder = std::env::temp_dir();
    let folder = folder.canonicalize().unwrap_or(folder);
    vec![folder.to_string_lossy().into_owned()]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn among(path: &str, granted: &[&str]) -> Result<Place> {
        place_among(path, granted.iter().map(|&folder| folder.into()).collect())
    }

    #[test]
    fn paths_are_found_among_the_granted_folders() {
        let granted = ["/data/a b [1]", "/notes"];
        for (path, found) in [
            ("/notes", Place::Inside("/notes".into())),
            ("/notes/", Place::Inside("/notes".into())),
            ("//notes/./x/../y.txt", Place::Inside("/notes/y.txt".into())),
            (
                "/notes/../data/a b [1]/100%25 ünï",
                Place::Inside("/data/a b [1]/100%25 ünï".into()),
            ),
            (
                "/",
                Place::Above(vec!["/data/a b [1]".into(), "/notes".into()]),
            ),
            ("/data", Place::Above(vec!["/data/a b [1]".into()])),
        ] {
            assert_eq!(among(path, &granted), Ok(found), "{path}");
        }
        assert_eq!(among("/x", &["/"]), Ok(Place::Inside("/x".into())));
        assert_eq!(among("/", &["/"]), Ok(Place::Inside("/".into())));
    }

    #[test]
    fn what_is_not_granted_is_denied() {
        for (path, granted) in [
            ("/etc/passwd", &["/notes"][..]),
            ("/notes/../etc", &["/notes"]),
            ("/notes2", &["/notes"]),
            ("/", &[]),
            ("a", &[]),
        ] {
            let error = among(path, granted).unwrap_err();
            assert!(matches!(error, ToolError::Denied(_)), "{path}: {error:?}");
        }
        for path in ["", ".", "notes/a", "/notes/a\0"] {
            let error = among(path, &["/notes"]).unwrap_err();
            assert!(
                matches!(error, ToolError::InvalidArguments(_)),
                "{path}: {error:?}"
            );
        }
        assert!(
            among("/", &["/notes"])
                .unwrap()
                .file()
                .unwrap_err()
                .message()
                .contains("`/notes`")
        );
    }
}
