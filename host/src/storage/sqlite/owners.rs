//! Which processes live: each holds the lock on a file of its own, and the system lets go of it when the process
//! ends, however it ends. So a dead owner is seen at once, without a clock.

use std::{
    fs::{self, File, TryLockError},
    io,
    path::{Path, PathBuf},
};

/// This process among the owners.
pub(super) struct Owner {
    pub(super) id: String,
    folder: PathBuf,
    /// Locked for as long as this value lives.
    _file: File,
}

impl Owner {
    pub(super) fn new(folder: &Path, id: String) -> io::Result<Self> {
        fs::create_dir_all(folder)?;
        // Made under another name, so that nobody finds it before it is locked.
        let (beside, path) = (folder.join(format!("{id}.new")), folder.join(&id));
        let file = File::create(&beside)?;
        file.lock()?;
        fs::rename(&beside, &path)?;
        Ok(Self {
            id,
            folder: folder.to_owned(),
            _file: file,
        })
    }

    pub(super) fn lives(&self, other: &str) -> bool {
        other == self.id
            || match File::open(self.folder.join(other)) {
                Ok(file) => matches!(file.try_lock(), Err(TryLockError::WouldBlock)),
                Err(_) => false,
            }
    }

    /// Removes what dead owners have left.
    pub(super) fn tidy(&self) {
        let Ok(entries) = fs::read_dir(&self.folder) else {
            return;
        };
        for entry in entries.flatten() {
            let name = entry.file_name();
            let is_dead = name.to_str().is_some_and(|name| !self.lives(name));
            if is_dead {
                let _ = fs::remove_file(entry.path());
            }
        }
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        let _ = fs::remove_file(self.folder.join(&self.id));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_owner_lives_for_as_long_as_it_does() {
        let folder = tempfile::tempdir().unwrap();
        let a = Owner::new(folder.path(), "a".into()).unwrap();
        let b = Owner::new(folder.path(), "b".into()).unwrap();
        assert!(a.lives("b") && b.lives("a") && a.lives("a"));
        assert!(!a.lives("c"));
        // As a process that was killed leaves it.
        File::create(folder.path().join("c")).unwrap();
        assert!(!a.lives("c"));
        drop(b);
        assert!(!a.lives("b"));
        a.tidy();
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}
