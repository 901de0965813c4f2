//! From folders of `.wasm` files to plugins. A file that can't be used is named with its cause, and the
//! others load. A file that takes the place of a good one and can't be used leaves the good one serving.

pub mod watch;

use std::{
    collections::BTreeMap,
    ffi::OsString,
    io::{self, Read as _},
    path::{Path, PathBuf},
    sync::Arc,
    time::SystemTime,
};

use cap_std::{
    ambient_authority,
    fs::{Dir, Metadata},
};
use futures_util::future::join_all;

use crate::{
    capability::{Grants, OperatorLimits},
    ids::{ComponentDigest, PluginName},
    registry::{Plugin, SetAside},
    sandbox::{Beside, Component, MANIFEST_BYTES, MAX_COMPONENT_BYTES, Sandbox},
};

/// What the folders held.
#[derive(Default)]
pub struct Loaded {
    /// Sorted by folder, then file name.
    pub plugins: Vec<Plugin>,
    pub set_aside: Vec<SetAside>,
}

type Operator = Box<dyn Fn(&PluginName) -> (Grants, OperatorLimits) + Send + Sync>;

/// Folders of plugins, and what was last found in them. Every `.wasm` file that lies directly in one of them is a
/// plugin. Links that lead out of their folder are not followed.
pub struct Folders {
    folders: Vec<PathBuf>,
    sandbox: Sandbox,
    operator: Operator,
    files: BTreeMap<Place, Known>,
}

/// Which folder, and the file's name in it.
type Place = (usize, OsString);

/// A file as it was when it was read.
struct Known {
    stamp: Stamp,
    /// What is served: what is in the file, or was there before it was spoilt.
    component: Option<(PluginName, Component)>,
    fault: Option<String>,
}

/// What tells a file that was changed, without reading it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Stamp {
    file: Option<Version>,
    /// Of the `.toml` of the same name.
    manifest: Option<Version>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Version {
    bytes: u64,
    modified: Option<SystemTime>,
    /// The file itself and when it was last changed in any way, where there is such a thing.
    inode: (u64, i64, i64),
}

/// What lies in the folders, unread.
#[derive(Debug, PartialEq, Eq)]
struct Listing {
    files: BTreeMap<Place, Stamp>,
    faults: Vec<SetAside>,
}

/// What serves, to be compared.
#[derive(Debug, PartialEq, Eq)]
struct Serving {
    plugins: Vec<(String, ComponentDigest)>,
    set_aside: Vec<SetAside>,
}

/// Loads every plugin of the folders, once.
pub async fn load(
    folders: &[PathBuf],
    sandbox: &Sandbox,
    operator: impl Fn(&PluginName) -> (Grants, OperatorLimits) + Send + Sync + 'static,
) -> Loaded {
    Folders::new(folders.to_vec(), sandbox.clone(), operator)
        .read()
        .await
}

impl Folders {
    /// `operator` says what the operator grants a plugin, and within which limits.
    pub fn new(
        folders: Vec<PathBuf>,
        sandbox: Sandbox,
        operator: impl Fn(&PluginName) -> (Grants, OperatorLimits) + Send + Sync + 'static,
    ) -> Self {
        Self {
            folders,
            sandbox,
            operator: Box::new(operator),
            files: BTreeMap::new(),
        }
    }

    /// Reads what is new or was changed since the last time.
    pub async fn read(&mut self) -> Loaded {
        let listing = list(&self.folders).await;
        let changed: Vec<(&Place, &Stamp)> = listing
            .files
            .iter()
            .filter(|(place, stamp)| {
                self.files
                    .get(*place)
                    .is_none_or(|known| known.stamp != **stamp)
            })
            .collect();
        let loads = changed.iter().map(|(place, _)| self.load(place));
        let results = join_all(loads).await;
        let mut files: BTreeMap<Place, Known> = BTreeMap::new();
        for ((place, stamp), result) in changed.into_iter().zip(results) {
            let before = self.files.remove(place).and_then(|known| known.component);
            let (component, fault) = match (result, before) {
                (Ok(component), _) => (Some(component), None),
                (Err(why), None) => (None, Some(why)),
                (Err(why), Some(before)) => {
                    let fault = format!("{why}; what it held before goes on serving");
                    (Some(before), Some(fault))
                }
            };
            files.insert(
                place.clone(),
                Known {
                    stamp: stamp.clone(),
                    component,
                    fault,
                },
            );
        }
        // What is left was not changed, or is gone.
        for (place, known) in std::mem::take(&mut self.files) {
            if listing.files.contains_key(&place) {
                files.insert(place, known);
            }
        }
        self.files = files;
        self.loaded(listing.faults)
    }

    async fn load(&self, place: &Place) -> Result<(PluginName, Component), String> {
        let (folder, name) = (self.folders[place.0].clone(), PathBuf::from(&place.1));
        let stem = name.file_stem().and_then(|stem| stem.to_str());
        let Some(stem) = stem.map(str::to_owned) else {
            return Err("its name is not UTF-8; rename it".to_owned());
        };
        let reading = blocking(move || {
            let dir = Dir::open_ambient_dir(&folder, ambient_authority())
                .map_err(|error| format!("its folder can't be read: {error}"))?;
            Ok::<_, String>((read(&dir, &name)?, manifest(&dir, &manifest_name(&name))))
        });
        let (wasm, manifest) = reading.await?;
        let beside = manifest.map(|manifest| Beside {
            program: stem.clone(),
            manifest,
        });
        match self.sandbox.load_with(wasm, beside).await {
            Ok(component) => Ok((PluginName::of_file_stem(&stem), component)),
            Err(error) => Err(error.to_string()),
        }
    }

    fn loaded(&self, faults: Vec<SetAside>) -> Loaded {
        let mut loaded = Loaded {
            plugins: Vec::new(),
            set_aside: faults,
        };
        for ((folder, name), known) in &self.files {
            let file = self.folders[*folder].join(name).display().to_string();
            if let Some(why) = &known.fault {
                loaded.set_aside.push(SetAside {
                    what: file.clone(),
                    why: why.clone(),
                });
            }
            let Some((name, component)) = &known.component else {
                continue;
            };
            for set_aside in component.set_aside() {
                loaded.set_aside.push(SetAside {
                    what: format!("{file} ({})", set_aside.what),
                    why: set_aside.why.clone(),
                });
            }
            let (grants, limits) = (self.operator)(name);
            loaded.plugins.push(Plugin {
                name: name.clone(),
                file,
                component: component.clone(),
                grants,
                limits,
            });
        }
        loaded
    }
}

impl Loaded {
    fn serving(&self) -> Serving {
        Serving {
            plugins: self
                .plugins
                .iter()
                .map(|plugin| (plugin.file.clone(), plugin.component.digest()))
                .collect(),
            set_aside: self.set_aside.clone(),
        }
    }
}

/// Sorted, since the order in which a folder lists its files is nobody's promise.
async fn list(folders: &[PathBuf]) -> Listing {
    let folders = folders.to_vec();
    blocking(move || {
        let mut listing = Listing {
            files: BTreeMap::new(),
            faults: Vec::new(),
        };
        for (n, folder) in folders.iter().enumerate() {
            match list_one(folder) {
                Ok(files) => listing
                    .files
                    .extend(files.into_iter().map(|(name, stamp)| ((n, name), stamp))),
                // It may come yet.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => listing.faults.push(SetAside {
                    what: folder.display().to_string(),
                    why: format!("the plugins folder can't be read: {error}"),
                }),
            }
        }
        listing
    })
    .await
}

fn list_one(folder: &Path) -> io::Result<Vec<(OsString, Stamp)>> {
    let dir = Dir::open_ambient_dir(folder, ambient_authority())?;
    let mut files = Vec::new();
    for entry in dir.entries()? {
        let name = entry?.file_name();
        let path = Path::new(&name);
        if path
            .extension()
            .is_some_and(|extension| extension == "wasm")
        {
            let version = |path: &Path| dir.metadata(path).ok().map(|metadata| version(&metadata));
            let stamp = Stamp {
                file: version(path),
                manifest: version(&manifest_name(path)),
            };
            files.push((name, stamp));
        }
    }
    Ok(files)
}

fn version(metadata: &Metadata) -> Version {
    #[cfg(unix)]
    let inode = {
        use cap_std::fs::MetadataExt as _;
        (metadata.ino(), metadata.ctime(), metadata.ctime_nsec())
    };
    #[cfg(not(unix))]
    let inode = (0, 0, 0);
    Version {
        bytes: metadata.len(),
        modified: metadata.modified().ok().map(|time| time.into_std()),
        inode,
    }
}

fn manifest_name(wasm: &Path) -> PathBuf {
    wasm.with_extension("toml")
}

fn manifest(dir: &Dir, name: &Path) -> Option<String> {
    let file = dir.open(name).ok()?;
    if !file.metadata().ok()?.is_file() {
        return None;
    }
    let mut text = String::new();
    // One more than the bound, so that one that is too long is told.
    file.take(MANIFEST_BYTES as u64 + 1)
        .read_to_string(&mut text)
        .ok()?;
    Some(text)
}

fn read(dir: &Dir, name: &Path) -> Result<Arc<[u8]>, String> {
    let cannot = |error: io::Error| {
        let leads_out = dir.symlink_metadata(name).is_ok_and(|m| m.is_symlink());
        if leads_out {
            format!(
                "it is a link that leads out of the folder ({error}); copy the file here instead"
            )
        } else {
            format!("it can't be read: {error}")
        }
    };
    let file = dir.open(name).map_err(cannot)?;
    let metadata = file.metadata().map_err(cannot)?;
    if !metadata.is_file() {
        return Err("it is not a file".to_owned());
    }
    let too_large = || format!("it is larger than {} MiB", MAX_COMPONENT_BYTES >> 20);
    if metadata.len() > MAX_COMPONENT_BYTES as u64 {
        return Err(too_large());
    }
    let mut bytes = Vec::with_capacity(usize::try_from(metadata.len()).unwrap_or_default());
    // One more than the bound, so that a file that grows meanwhile is noticed.
    file.take(MAX_COMPONENT_BYTES as u64 + 1)
        .read_to_end(&mut bytes)
        .map_err(cannot)?;
    if bytes.len() > MAX_COMPONENT_BYTES {
        return Err(too_large());
    }
    Ok(bytes.into())
}

/// A disk may be slow, and a network share more so.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
        // Only when the runtime shuts down, and then nobody waits any more.
        Err(_) => std::future::pending().await,
    }
}
