//! Writing files so that what was there is not lost: not when the disk is full, and not when the call is stopped.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write},
    time::{SystemTime, UNIX_EPOCH},
};

use agentloop_sdk::{Result, ToolError};

use crate::folders::told;

/// Writes a file and the folders that lead to it; true when it replaced one.
pub(crate) fn whole(path: &str, text: &str, overwrite: bool) -> Result<bool> {
    let told = |error| told(path, &error);
    match fs::symlink_metadata(path) {
        Ok(_) if overwrite => return replace(path, text).map(|()| true),
        Ok(_) => {
            return Err(ToolError::new(format!(
                "`{path}` exists already; set `overwrite` to replace it, or use `edit_file`"
            )));
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(told(error)),
    }
    if let Some((folder, _)) = path.rsplit_once('/')
        && !folder.is_empty()
        && fs::metadata(folder).is_err()
    {
        fs::create_dir_all(folder).map_err(told)?;
    }
    let file = OpenOptions::new().write(true).create_new(true).open(path);
    fill(file.map_err(told)?, text).map_err(|error| {
        let _ = fs::remove_file(path);
        told(error)
    })?;
    Ok(false)
}

/// Replaces a file by way of another one beside it.
pub(crate) fn replace(path: &str, text: &str) -> Result<()> {
    let told = |error| told(path, &error);
    let metadata = fs::symlink_metadata(path).map_err(told)?;
    if metadata.is_symlink() {
        return Err(ToolError::new(format!(
            "`{path}` is a link; write to the file that it leads to"
        )));
    }
    if !metadata.is_file() {
        return Err(ToolError::new(format!("`{path}` is not a file")));
    }
    let (folder, name) = path.rsplit_once('/').unwrap_or_default();
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    let beside = format!("{folder}/.{name}.{}.part", now.as_nanos());
    let file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .open(&beside);
    fill(file.map_err(told)?, text)
        .and_then(|()| fs::rename(&beside, path))
        .map_err(|error| {
            let _ = fs::remove_file(&beside);
            told(error)
        })
}

fn fill(mut file: File, text: &str) -> io::Result<()> {
    file.write_all(text.as_bytes())?;
    file.sync_data()
}
