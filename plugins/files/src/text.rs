//! Text files.

use std::fs;

use agentloop_sdk::{Result, ToolError};

use crate::folders::told;

/// Of a file that is read whole, well below the 64 MiB of memory that a call has.
pub(crate) const MAX_FILE_BYTES: u64 = 16 << 20;

pub(crate) fn read_text(path: &str) -> Result<String> {
    let told = |error| told(path, &error);
    let metadata = fs::metadata(path).map_err(told)?;
    if metadata.is_dir() {
        return Err(ToolError::invalid_arguments(format!(
            "`{path}` is a folder; `list_files` lists it"
        )));
    }
    if metadata.len() > MAX_FILE_BYTES {
        return Err(ToolError::new(format!(
            "`{path}` has {} bytes; files with at most {MAX_FILE_BYTES} are read",
            metadata.len()
        )));
    }
    let bytes = fs::read(path).map_err(told)?;
    if is_binary(&bytes) {
        return Err(ToolError::new(format!(
            "`{path}` is not text: it has null bytes"
        )));
    }
    String::from_utf8(bytes).map_err(|error| {
        ToolError::new(format!(
            "`{path}` is not text in UTF-8: see its byte {}",
            error.utf8_error().valid_up_to()
        ))
    })
}

/// As other tools tell it: text has no null bytes.
pub(crate) fn is_binary(bytes: &[u8]) -> bool {
    bytes.iter().take(8 << 10).any(|&byte| byte == 0)
}

/// The lines with their ends.
pub(crate) fn lines(text: &str) -> impl Iterator<Item = &str> {
    text.split_inclusive('\n')
}

/// The number of the line at this byte, from 1.
pub(crate) fn line_of(text: &str, at: usize) -> usize {
    text.as_bytes()[..at]
        .iter()
        .filter(|&&byte| byte == b'\n')
        .count()
        + 1
}
