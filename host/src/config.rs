//! Settings, resolved once: flag, then environment, then project file, then user file, then default.
pub mod permissions;

use std::{
    io::{self, Write as _},
    path::Path,
};

/// A piece of somebody's text, fit for a message: bounded, and with control and direction characters
/// escaped.
fn shown(text: &str) -> String {
    const MAX_CHARS: usize = 120;
    let mut shown = String::new();
    for c in text.chars().take(MAX_CHARS) {
        match c {
            '\\' | '\'' | '"' => shown.push(c),
            c => shown.extend(c.escape_debug()),
        }
    }
    if text.chars().nth(MAX_CHARS).is_some() {
        shown.push('…');
    }
    shown
}

/// Replaces a file in one step: a reader sees the old content or the new one, also after a crash.
fn write_atomically(path: &Path, content: &[u8]) -> io::Result<()> {
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    let mut file = tempfile::NamedTempFile::new_in(folder)?;
    file.write_all(content)?;
    if let Ok(metadata) = std::fs::metadata(path) {
        file.as_file().set_permissions(metadata.permissions())?;
    }
    file.as_file().sync_all()?;
    file.persist(path)?;
    Ok(())
}
