//! What each component was when it was granted something: `agentloop.lock`, beside the settings that grant it.
//!
//! A grant is for a certain component. Its digest is pinned when its grants first count; another component under the
//! same name, or one that requests more, gets nothing until a person grants it again. The file only ever takes away:
//! what is granted stands in the settings. It counts as it was last written here, since it may come with a cloned
//! repository as well.

use std::{
    fs, io,
    path::{Path, PathBuf},
    time::SystemTime,
};

use serde::{Deserialize, Serialize};

use super::{
    node::MAX_FILE_BYTES,
    trust::{ProjectFile, TrustError, TrustStore},
    write_atomically,
};
use crate::{
    capability::{Access, Grants, Request},
    ids::{ComponentDigest, PluginName},
};

/// The file's name.
pub const LOCK_FILE: &str = "agentloop.lock";

const HEADING: &str = "# Which components were granted what. Written by agentloop-host; `agentloop-host grants` shows it, and\n# `agentloop-host grant NAME` renews an entry.\n\n";

/// A component, what it requests and what it is granted, in words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Held {
    pub name: PluginName,
    pub digest: ComponentDigest,
    pub requested: Vec<String>,
    pub granted: Vec<String>,
}

impl Held {
    pub fn new<'a>(
        name: &PluginName,
        digest: ComponentDigest,
        requests: impl IntoIterator<Item = &'a Request>,
        grants: &Grants,
    ) -> Self {
        let requests = requests.into_iter();
        let mut requested: Vec<String> = requests
            .map(|request| request.capability.to_string())
            .collect();
        requested.sort();
        requested.dedup();
        Self {
            name: name.clone(),
            digest,
            requested,
            granted: in_words(grants),
        }
    }
}

/// What is granted, a line each.
pub fn in_words(grants: &Grants) -> Vec<String> {
    let folders = grants.folders.iter().map(|folder| {
        let verb = match folder.access {
            Access::Read => "read",
            Access::Write => "read and write",
        };
        format!(
            "{verb} {} as {}",
            folder.host_path.display(),
            folder.guest_path
        )
    });
    let http = grants.http.iter().map(|grant| match &*grant.methods {
        [] => format!("GET and HEAD at {}", grant.origin),
        methods => format!("{} at {}", methods.join(", "), grant.origin),
    });
    let environment = grants
        .environment
        .iter()
        .map(|grant| format!("the environment variable {}", grant.name));
    let secrets = grants.secrets.iter().map(ToString::to_string);
    folders
        .chain(http)
        .chain(environment)
        .chain(secrets)
        .collect()
}

/// An entry of the file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pinned {
    pub name: String,
    /// 64 hexadecimal digits.
    pub sha256: String,
    #[serde(default)]
    pub requested: Vec<String>,
    #[serde(default)]
    pub granted: Vec<String>,
    /// When, as HTTP writes dates.
    pub at: String,
    /// By which user of this machine, as far as that is known.
    pub by: String,
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Entries {
    #[serde(default)]
    plugin: Vec<Pinned>,
}

/// How a component stands to its entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Standing {
    /// It has none.
    New,
    /// It is what was granted.
    Same,
    /// The same component, for which the settings now say something else.
    Regranted,
    /// It is another component than the one that was granted something.
    Changed { was: Pinned },
    /// Somebody else wrote the file.
    Foreign,
}

impl Standing {
    /// Why its grants do not count; `None` where they do.
    pub fn fault(&self, now: &Held) -> Option<String> {
        let name = &now.name;
        match self {
            Self::New | Self::Same | Self::Regranted => None,
            Self::Foreign => Some(format!(
                "{LOCK_FILE} was not written here, so nobody knows whether this is what its grants are for; look at it \
                 with `agentloop-host inspect`, then run `agentloop-host grant {name}`"
            )),
            Self::Changed { was } => {
                let mut why = format!(
                    "it is not what it was when it was granted something (sha256 {} then, {} now)",
                    was.sha256.get(..12).unwrap_or(&was.sha256),
                    &now.digest.hex()[..12],
                );
                let missing = |of: &[String], from: &[String]| -> Vec<String> {
                    of.iter()
                        .filter(|one| !from.contains(one))
                        .cloned()
                        .collect()
                };
                let more = missing(&now.requested, &was.requested);
                let less = missing(&was.requested, &now.requested);
                if !more.is_empty() {
                    why.push_str(&format!("; it now also requests: {}", more.join(", ")));
                }
                if !less.is_empty() {
                    why.push_str(&format!("; it no longer requests: {}", less.join(", ")));
                }
                if more.is_empty() && less.is_empty() {
                    why.push_str("; it requests the same");
                }
                Some(format!(
                    "{why}. Look at it with `agentloop-host inspect`, then run `agentloop-host grant {name}`"
                ))
            }
        }
    }
}

/// Where the file is, or would be.
#[derive(Debug, Clone)]
pub struct LockPlace {
    pub path: PathBuf,
    pub(super) state_dir: PathBuf,
    /// False: the settings beside it count this time only, and nothing is to be left behind.
    pub(super) is_written: bool,
}

/// Why the file could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    #[error("cannot read `{}`: {source}", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("`{}` is not a list of granted components ({why}); delete it, and grant them again", path.display())]
    Broken { path: PathBuf, why: String },
    #[error("cannot write `{}`: {source}", path.display())]
    Write { path: PathBuf, source: io::Error },
    #[error(transparent)]
    Trust(#[from] TrustError),
}

/// The file as it was read.
#[derive(Debug)]
pub struct Lock {
    place: LockPlace,
    entries: Entries,
    is_foreign: bool,
}

impl LockPlace {
    fn store(&self) -> TrustStore {
        TrustStore::new(&self.state_dir)
    }

    /// A file that is not there has no entries.
    pub fn read(&self) -> Result<Lock, LockError> {
        let broken = |why: String| LockError::Broken {
            path: self.path.clone(),
            why,
        };
        let text = match fs::metadata(&self.path) {
            Ok(metadata) if metadata.len() > MAX_FILE_BYTES as u64 => {
                return Err(broken("it is too large".to_owned()));
            }
            Ok(_) => fs::read_to_string(&self.path),
            Err(error) => Err(error),
        };
        let text = match text {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Ok(Lock {
                    place: self.clone(),
                    entries: Entries::default(),
                    is_foreign: false,
                });
            }
            Err(source) => {
                return Err(LockError::Read {
                    path: self.path.clone(),
                    source,
                });
            }
        };
        let entries: Entries =
            toml::from_str(&text).map_err(|error| broken(error.message().to_owned()))?;
        let file = ProjectFile::new(canonical(&self.path), text.as_bytes());
        Ok(Lock {
            place: self.clone(),
            entries,
            is_foreign: !self.store().is_trusted(&file)?,
        })
    }
}

/// The file itself may not be there yet.
fn canonical(path: &Path) -> PathBuf {
    let folder = path.parent().and_then(|folder| folder.canonicalize().ok());
    match (folder, path.file_name()) {
        (Some(folder), Some(name)) => folder.join(name),
        _ => path.to_owned(),
    }
}

impl Lock {
    pub fn entry(&self, name: &PluginName) -> Option<&Pinned> {
        self.entries
            .plugin
            .iter()
            .find(|pinned| pinned.name == name.as_str())
    }

    pub fn standing(&self, now: &Held) -> Standing {
        match self.entry(&now.name) {
            _ if self.is_foreign => Standing::Foreign,
            None => Standing::New,
            Some(was) if was.sha256 != now.digest.hex() => Standing::Changed { was: was.clone() },
            Some(was) if was.granted != now.granted => Standing::Regranted,
            Some(_) => Standing::Same,
        }
    }

    /// From now on the grants are for this.
    pub fn pin(&mut self, now: &Held) {
        self.forget(&now.name);
        let by = ["USER", "LOGNAME", "USERNAME"]
            .into_iter()
            .find_map(|name| std::env::var(name).ok())
            .unwrap_or_else(|| "unknown".to_owned());
        self.entries.plugin.push(Pinned {
            name: now.name.to_string(),
            sha256: now.digest.hex(),
            requested: now.requested.clone(),
            granted: now.granted.clone(),
            at: httpdate::fmt_http_date(SystemTime::now()),
            by: crate::harmless::one_line(&by, 64),
        });
        let plugins = &mut self.entries.plugin;
        plugins.sort_by(|a, b| a.name.cmp(&b.name));
    }

    /// False: it had no entry.
    pub fn forget(&mut self, name: &PluginName) -> bool {
        let before = self.entries.plugin.len();
        self.entries
            .plugin
            .retain(|pinned| pinned.name != name.as_str());
        before != self.entries.plugin.len()
    }

    /// Other entries of a file that somebody else wrote are dropped: they are pinned anew where they are granted.
    pub fn take_over(&mut self) {
        if std::mem::take(&mut self.is_foreign) {
            self.entries.plugin.clear();
        }
    }

    /// Writes it, unless nothing is to be left behind.
    pub fn save(&self) -> Result<(), LockError> {
        let LockPlace {
            path, is_written, ..
        } = &self.place;
        if !is_written {
            return Ok(());
        }
        let write = || {
            let body = toml::to_string_pretty(&self.entries).map_err(io::Error::other)?;
            let text = format!("{HEADING}{body}");
            if let Some(folder) = path.parent() {
                fs::create_dir_all(folder)?;
            }
            write_atomically(path, text.as_bytes())?;
            Ok(text)
        };
        let text = write().map_err(|source| LockError::Write {
            path: path.clone(),
            source,
        })?;
        let file = ProjectFile::new(canonical(path), text.as_bytes());
        Ok(self.place.store().trust(&file)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(folder: &Path) -> LockPlace {
        LockPlace {
            path: folder.join(LOCK_FILE),
            state_dir: folder.join("state"),
            is_written: true,
        }
    }

    fn held(component: &[u8], requested: &[&str]) -> Held {
        Held {
            name: PluginName::parse("notes").unwrap(),
            digest: ComponentDigest::of(component),
            requested: requested.iter().map(|one| (*one).to_owned()).collect(),
            granted: vec!["read /n as /n".to_owned()],
        }
    }

    #[test]
    fn what_was_granted_is_told_from_what_comes_later() {
        let folder = tempfile::tempdir().unwrap();
        let place = place(folder.path());
        let old = held(b"old", &["read the folder /n", "write the folder /x"]);
        let mut lock = place.read().unwrap();
        assert_eq!(lock.standing(&old), Standing::New);
        lock.pin(&old);
        lock.save().unwrap();
        let lock = place.read().unwrap();
        assert_eq!(lock.standing(&old), Standing::Same);
        assert_eq!(Standing::Same.fault(&old), None);
        let other_grant = Held {
            granted: Vec::new(),
            ..old.clone()
        };
        assert_eq!(lock.standing(&other_grant), Standing::Regranted);
        let new = held(
            b"new",
            &["read the folder /n", "GET and HEAD at https://evil"],
        );
        let fault = lock.standing(&new).fault(&new).unwrap();
        for words in [
            &old.digest.hex()[..12],
            &new.digest.hex()[..12],
            "also requests: GET and HEAD at https://evil",
            "no longer requests: write the folder /x",
            "`agentloop-host grant notes`",
        ] {
            assert!(fault.contains(words), "no `{words}` in {fault}");
        }
    }

    #[test]
    fn a_file_that_somebody_else_wrote_takes_everything_away() {
        let folder = tempfile::tempdir().unwrap();
        let place = place(folder.path());
        let now = held(b"x", &[]);
        let mut lock = place.read().unwrap();
        lock.pin(&now);
        lock.save().unwrap();
        let text = fs::read_to_string(&place.path).unwrap();
        let forged = text.replace(&now.digest.hex(), &ComponentDigest::of(b"y").hex());
        fs::write(&place.path, forged).unwrap();
        let mut lock = place.read().unwrap();
        assert_eq!(lock.standing(&held(b"y", &[])), Standing::Foreign);
        lock.take_over();
        lock.pin(&now);
        lock.save().unwrap();
        assert_eq!(place.read().unwrap().standing(&now), Standing::Same);
        for broken in ["[[plugin]]\nname = 1", "what = 1", "\u{0}"] {
            fs::write(&place.path, broken).unwrap();
            assert!(matches!(place.read(), Err(LockError::Broken { .. })));
        }
    }

    #[test]
    fn nothing_is_left_behind_where_trust_is_for_once() {
        let folder = tempfile::tempdir().unwrap();
        let place = LockPlace {
            is_written: false,
            ..place(folder.path())
        };
        let mut lock = place.read().unwrap();
        lock.pin(&held(b"x", &[]));
        lock.save().unwrap();
        assert!(!place.path.exists());
    }
}
