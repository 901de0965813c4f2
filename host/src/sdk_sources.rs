//! The sources of the SDK and of the contract, which travel in the binary: a tool crate depends on them by
//! path as long as the SDK is in no package registry.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use include_dir::{Dir, DirEntry, include_dir};
use sha2::{Digest as _, Sha256};

static SDK: Dir<'_> = include_dir!("$CARGO_MANIFEST_DIR/../sdk");
static WIT: Dir<'_> = include_dir!("$CARGO_MANIFEST_DIR/../wit");

/// Why the sources are not on disk.
#[derive(Debug, thiserror::Error)]
#[error("can't unpack the SDK into `{}`: {source}; that folder has to be writable", folder.display())]
pub(crate) struct UnpackError {
    folder: PathBuf,
    source: io::Error,
}

/// The folder below `data_dir` that [`unpack`] fills: another one for each content.
pub(crate) fn folder(data_dir: &Path) -> PathBuf {
    let mut sha256 = Sha256::new();
    for (path, content) in files() {
        sha256.update((path.len() as u64).to_le_bytes());
        sha256.update(path);
        sha256.update((content.len() as u64).to_le_bytes());
        sha256.update(content);
    }
    let hash: String = sha256.finalize()[..6]
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    data_dir.join(format!("sdk-{}-{hash}", version()))
}

/// Puts the crate `agentloop-sdk` there, and the contract into its folder `wit`. What is there already and
/// whole is left alone; other processes never see a half of it.
pub(crate) fn unpack(data_dir: &Path) -> Result<PathBuf, UnpackError> {
    let folder = folder(data_dir);
    let put = || {
        if is_whole(&folder) {
            return Ok(());
        }
        fs::create_dir_all(data_dir)?;
        let scratch = tempfile::Builder::new()
            .prefix(".sdk-")
            .tempdir_in(data_dir)?;
        let fresh = scratch.path().join("fresh");
        for (path, content) in files() {
            let path = fresh.join(path);
            fs::create_dir_all(path.parent().unwrap_or(&fresh))?;
            fs::write(path, content)?;
        }
        if folder.exists() {
            fs::rename(&folder, scratch.path().join("damaged"))?;
        }
        match fs::rename(&fresh, &folder) {
            // Another process was faster.
            Err(_) if is_whole(&folder) => Ok(()),
            renamed => renamed,
        }
    };
    match put() {
        Ok(()) => Ok(folder),
        Err(source) => Err(UnpackError { folder, source }),
    }
}

fn is_whole(folder: &Path) -> bool {
    files().all(|(path, content)| fs::read(folder.join(path)).is_ok_and(|found| found == content))
}

/// With `/`-separated paths, in a fixed order. Only what a tool crate is built from.
fn files() -> impl Iterator<Item = (String, &'static [u8])> {
    fn collect(dir: &'static Dir<'static>, below: &str, files: &mut Vec<(String, &'static [u8])>) {
        for entry in dir.entries() {
            match entry {
                DirEntry::Dir(dir) => {
                    let name = dir.path().file_name().and_then(|name| name.to_str());
                    if !matches!(name, Some("target" | "tests" | "benches" | "examples")) {
                        collect(dir, below, files);
                    }
                }
                DirEntry::File(file) => {
                    let path = file.path();
                    let is_source = path
                        .extension()
                        .and_then(|extension| extension.to_str())
                        .is_some_and(|e| matches!(e, "rs" | "toml" | "md" | "wit"));
                    if is_source {
                        let path = path.to_string_lossy().replace('\\', "/");
                        files.push((format!("{below}{path}"), file.contents()));
                    }
                }
            }
        }
    }
    let mut all = Vec::new();
    collect(&SDK, "", &mut all);
    collect(&WIT, "wit/", &mut all);
    all.sort();
    all.into_iter()
}

/// The version of the crate, from its manifest.
fn version() -> String {
    let manifest = SDK
        .get_file("Cargo.toml")
        .and_then(|file| file.contents_utf8())
        .unwrap_or_default();
    let version = manifest.parse::<toml::Table>().ok().and_then(|manifest| {
        Some(
            manifest
                .get("package")?
                .get("version")?
                .as_str()?
                .to_owned(),
        )
    });
    version.unwrap_or_else(|| "unknown".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sources_are_those_of_the_repository() {
        let data = tempfile::tempdir().unwrap();
        let folder = unpack(data.path()).unwrap();
        let name = folder.file_name().unwrap().to_str().unwrap();
        assert!(name.starts_with("sdk-0."), "{name}");
        let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        for (theirs, ours) in [
            ("sdk/Cargo.toml", "Cargo.toml"),
            ("sdk/src/lib.rs", "src/lib.rs"),
            ("sdk/macros/src/lib.rs", "macros/src/lib.rs"),
            ("wit/world.wit", "wit/world.wit"),
        ] {
            let theirs = fs::read(repository.join(theirs)).unwrap();
            assert_eq!(fs::read(folder.join(ours)).unwrap(), theirs, "{ours}");
        }
        let left: Vec<_> = fs::read_dir(data.path()).unwrap().collect();
        assert_eq!(left.len(), 1, "{left:?}");
    }

    #[test]
    fn a_whole_copy_is_left_alone_and_a_damaged_one_replaced() {
        let data = tempfile::tempdir().unwrap();
        let folder = unpack(data.path()).unwrap();
        fs::write(folder.join("Cargo.lock"), "of somebody").unwrap();
        unpack(data.path()).unwrap();
        assert!(folder.join("Cargo.lock").exists());

        fs::write(folder.join("src/lib.rs"), "half").unwrap();
        fs::remove_file(folder.join("Cargo.toml")).unwrap();
        assert_eq!(unpack(data.path()).unwrap(), folder);
        assert!(is_whole(&folder));
    }

    #[test]
    fn a_folder_that_cannot_be_written_is_named() {
        let data = tempfile::NamedTempFile::new().unwrap();
        let error = unpack(data.path()).unwrap_err().to_string();
        let named = data.path().display().to_string();
        assert!(
            error.contains(&named) && error.contains("writable"),
            "{error}"
        );
    }
}
