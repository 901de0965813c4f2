//! Compiled components, kept between starts: loading one takes a millisecond, compiling a large one seconds. So
//! are the schemas of plain functions, whose file has to be read whole for them.
//!
//! An entry is native code that will run outside of every sandbox, so it is only ever taken from here, a folder
//! of this user's alone, and only if it carries this host's own seal. The seal is an HMAC under a random key
//! that lies beside the entries: a file from elsewhere, a cut one or one of another component is a miss, and a
//! miss costs a compilation and nothing else.

use std::{
    fs, io,
    path::{Path, PathBuf},
    time::SystemTime,
};

use hmac::{Hmac, KeyInit as _, Mac as _};
use serde::{Serialize, de::DeserializeOwned};
use sha2::Sha256;
use wasmtime::component::Component;

use super::{engine::GuestEngine, limits::COMPILED_BYTES};
use crate::ids::ComponentDigest;

/// Entries together; the oldest are removed for new ones. A Python component takes 34 MiB.
const MAX_BYTES: u64 = 2 << 30;
/// A block of SHA-256, which HMAC takes as it is.
const KEY_BYTES: usize = 64;
const SEAL_BYTES: usize = 32;

/// Why a folder is not used. Costs only time.
#[derive(Debug, thiserror::Error)]
pub(super) enum CacheError {
    #[error("can't use `{}`: {source}", path.display())]
    Io { path: PathBuf, source: io::Error },
    #[error("`{}` belongs to another user", path.display())]
    ForeignOwner { path: PathBuf },
    #[error("`{}` is open to other users; `chmod go= '{}'` closes it", path.display(), path.display())]
    OpenToOthers { path: PathBuf },
    #[error("`{}` is not a key of this cache; delete it", path.display())]
    BadKey { path: PathBuf },
    #[error("the system gives no random bytes: {0}")]
    Random(getrandom::Error),
}

pub(super) struct Cache {
    entries: PathBuf,
    key: [u8; KEY_BYTES],
}

impl Cache {
    /// Opens or makes the folder.
    pub(super) fn open(dir: &Path) -> Result<Self, CacheError> {
        let entries = dir.join("compiled");
        private_dir(dir)?;
        private_dir(&entries)?;
        Ok(Self {
            key: key(dir)?,
            entries,
        })
    }

    /// The compiled component, unless there is none that this host has sealed.
    pub(super) fn get(&self, guest: &GuestEngine, digest: &ComponentDigest) -> Option<Component> {
        let (name, path) = self.entry(guest, digest);
        drop(self.sealed(&name, &path)?);
        #[expect(
            unsafe_code,
            reason = "the file is what this host wrote: it lies in a folder that only this user can write, and its \
                      seal has just been checked; wasmtime itself checks that version and settings fit"
        )]
        // SAFETY: see above. Writers replace entries by renaming and never change one in place, so the mapping
        // stays as it was checked.
        let component = unsafe { Component::deserialize_file(&guest.engine, &path) };
        component
            .inspect_err(|e| tracing::debug!("`{}` does not fit: {e:#}", path.display()))
            .ok()
    }

    /// What was worked out of a component by the code that `derivation` stands for.
    pub(super) fn derived<T: DeserializeOwned>(
        &self,
        digest: &ComponentDigest,
        derivation: u64,
    ) -> Option<T> {
        let (name, path) = self.derived_entry(digest, derivation);
        let bytes = self.sealed(&name, &path)?;
        serde_json::from_slice(&bytes)
            .inspect_err(|e| tracing::warn!("`{}` can't be read: {e}", path.display()))
            .ok()
    }

    /// Keeps what was worked out of a component. A failure is told and costs nothing else.
    pub(super) fn put_derived<T: Serialize>(
        &self,
        digest: &ComponentDigest,
        derivation: u64,
        derived: &T,
    ) {
        let (name, path) = self.derived_entry(digest, derivation);
        let written = serde_json::to_vec(derived)
            .map_err(io::Error::from)
            .and_then(|bytes| self.write(&name, &path, &bytes));
        if let Err(e) = written {
            tracing::warn!(
                "can't write `{}`, so it will be worked out again: {e}",
                path.display()
            );
        }
    }

    /// An entry's content, without its seal.
    fn sealed(&self, name: &str, path: &Path) -> Option<Vec<u8>> {
        let mut bytes = match read_bounded(path) {
            Ok(bytes) => bytes,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return None,
            Err(e) => {
                tracing::warn!("can't read `{}` in the cache: {e}", path.display());
                return None;
            }
        };
        let content = bytes
            .split_last_chunk::<SEAL_BYTES>()
            .filter(|(content, seal)| self.seal(name, content).verify_slice(*seal).is_ok())
            .map(|(content, _)| content.len());
        let Some(content) = content else {
            tracing::warn!(
                "`{}` in the cache is damaged: it is made again",
                path.display()
            );
            return None;
        };
        bytes.truncate(content);
        Some(bytes)
    }

    /// Keeps compiled code that this host has made or had made. A failure is told and costs nothing else.
    pub(super) fn put(&self, guest: &GuestEngine, digest: &ComponentDigest, code: &[u8]) {
        let (name, path) = self.entry(guest, digest);
        if let Err(e) = self.write(&name, &path, code) {
            tracing::warn!(
                "can't write `{}`, so it will be compiled again: {e}",
                path.display()
            );
        }
    }

    fn write(&self, name: &str, path: &Path, code: &[u8]) -> io::Result<()> {
        self.make_room(code.len() as u64)?;
        let mut file = tempfile::Builder::new()
            .prefix(".new-")
            .tempfile_in(&self.entries)?;
        io::Write::write_all(&mut file, code)?;
        io::Write::write_all(&mut file, &self.seal(name, code).finalize().into_bytes())?;
        file.as_file().sync_all()?;
        file.persist(path)?;
        Ok(())
    }

    /// Removes the oldest entries until `bytes` more fit, and whatever a killed host left half-written.
    fn make_room(&self, bytes: u64) -> io::Result<()> {
        let mut entries = Vec::new();
        for entry in fs::read_dir(&self.entries)? {
            let entry = entry?;
            let metadata = entry.metadata()?;
            let changed = metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH);
            entries.push((changed, metadata.len(), entry.path()));
        }
        entries.sort();
        let mut total = bytes + entries.iter().map(|(_, len, _)| len).sum::<u64>();
        for (_, len, path) in entries {
            if total <= MAX_BYTES {
                break;
            }
            fs::remove_file(path)?;
            total -= len;
        }
        Ok(())
    }

    fn entry(&self, guest: &GuestEngine, digest: &ComponentDigest) -> (String, PathBuf) {
        let name = format!(
            "{}-{:016x}-{}.cwasm",
            digest.hex(),
            compatibility(guest),
            guest.profile.as_str()
        );
        let path = self.entries.join(&name);
        (name, path)
    }

    fn derived_entry(&self, digest: &ComponentDigest, derivation: u64) -> (String, PathBuf) {
        let name = format!("{}-{derivation:016x}.functions", digest.hex());
        let path = self.entries.join(&name);
        (name, path)
    }

    /// Over the name as well, so that no entry can stand in for another.
    fn seal(&self, name: &str, code: &[u8]) -> Hmac<Sha256> {
        let mut mac = Hmac::<Sha256>::new(&self.key.into());
        mac.update(&(name.len() as u64).to_le_bytes());
        mac.update(name.as_bytes());
        mac.update(code);
        mac
    }
}

/// Takes compiled code that this host has just had made and could not keep.
pub(super) fn adopt(guest: &GuestEngine, code: &[u8]) -> wasmtime::Result<Component> {
    #[expect(
        unsafe_code,
        reason = "the code came over a pipe from this very program, which the host has started to compile it"
    )]
    // SAFETY: see above; wasmtime itself checks that version and settings fit.
    unsafe {
        Component::deserialize(&guest.engine, code)
    }
}

/// Changes with wasmtime's version, the compiler's settings and the processor. Only picks the file's name:
/// wasmtime checks the content itself.
fn compatibility(guest: &GuestEngine) -> u64 {
    use std::hash::{DefaultHasher, Hash as _, Hasher as _};
    let mut hasher = DefaultHasher::new();
    guest
        .engine
        .precompile_compatibility_hash()
        .hash(&mut hasher);
    hasher.finish()
}

fn read_bounded(path: &Path) -> io::Result<Vec<u8>> {
    if fs::metadata(path)?.len() > (COMPILED_BYTES + SEAL_BYTES as u64) {
        return Err(io::ErrorKind::FileTooLarge.into());
    }
    fs::read(path)
}

fn key(dir: &Path) -> Result<[u8; KEY_BYTES], CacheError> {
    let path = dir.join("key");
    let io = |source| CacheError::Io {
        path: path.clone(),
        source,
    };
    if !path.try_exists().map_err(io)? {
        let mut key = [0; KEY_BYTES];
        getrandom::fill(&mut key).map_err(CacheError::Random)?;
        let mut file = tempfile::NamedTempFile::new_in(dir).map_err(io)?;
        io::Write::write_all(&mut file, &key).map_err(io)?;
        file.as_file().sync_all().map_err(io)?;
        match file.persist_noclobber(&path) {
            Ok(_) => {}
            // Another host was first: its key counts.
            Err(e) if e.error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(e) => return Err(io(e.error)),
        }
    }
    check_private(&path)?;
    let bytes = read_bounded(&path).map_err(io)?;
    bytes
        .try_into()
        .map_err(|_| CacheError::BadKey { path: path.clone() })
}

fn private_dir(dir: &Path) -> Result<(), CacheError> {
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(dir).map_err(|source| CacheError::Io {
        path: dir.to_owned(),
        source,
    })?;
    check_private(dir)
}

/// That nobody else could have written it. On Windows the user's own folders are private by themselves.
fn check_private(path: &Path) -> Result<(), CacheError> {
    let path = path.to_owned();
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt as _;
        let metadata = match fs::metadata(&path) {
            Ok(metadata) => metadata,
            Err(source) => return Err(CacheError::Io { path, source }),
        };
        if metadata.uid() != rustix::process::geteuid().as_raw() {
            return Err(CacheError::ForeignOwner { path });
        }
        if metadata.mode() & 0o077 != 0 {
            return Err(CacheError::OpenToOthers { path });
        }
    }
    Ok(())
}
