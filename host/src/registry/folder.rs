//! From folders of `.wasm` files to plugins. A file that can't be used is named with its cause, and the
//! others load.

use std::{
    io::Read as _,
    path::{Path, PathBuf},
    sync::Arc,
};

use cap_std::{ambient_authority, fs::Dir};
use futures_util::future::join_all;

use crate::{
    capability::{Grants, OperatorLimits},
    ids::PluginName,
    registry::{Plugin, SetAside},
    sandbox::{Beside, MANIFEST_BYTES, MAX_COMPONENT_BYTES, Sandbox},
};

/// What the folders held.
#[derive(Default)]
pub struct Loaded {
    /// Sorted by folder, then file name.
    pub plugins: Vec<Plugin>,
    pub set_aside: Vec<SetAside>,
}

/// Loads every `.wasm` file that lies directly in one of the folders. Links that lead out of the folder are
/// not followed. `operator` says what the operator grants a plugin, and within which limits.
pub async fn load(
    folders: &[PathBuf],
    sandbox: &Sandbox,
    operator: impl Fn(&PluginName) -> (Grants, OperatorLimits),
) -> Loaded {
    let mut loaded = Loaded::default();
    let mut files = Vec::new();
    for folder in folders {
        match list(folder) {
            Ok(found) => files.extend(found),
            Err(error) => loaded.set_aside.push(SetAside {
                what: folder.display().to_string(),
                why: format!("the plugins folder can't be read: {error}"),
            }),
        }
    }
    let loads = files.into_iter().map(|file| async move {
        let Found {
            path,
            stem,
            wasm,
            manifest,
        } = file;
        let component = match (stem, wasm) {
            (None, _) => Err("its name is not UTF-8; rename it".to_owned()),
            (_, Err(why)) => Err(why),
            (Some(stem), Ok(wasm)) => {
                let beside = manifest.map(|manifest| Beside {
                    program: stem.clone(),
                    manifest,
                });
                match sandbox.load_with(wasm, beside).await {
                    Ok(component) => Ok((PluginName::of_file_stem(&stem), component)),
                    Err(error) => Err(error.to_string()),
                }
            }
        };
        (path, component)
    });
    for (file, component) in join_all(loads).await {
        match component {
            Ok((name, component)) => {
                for set_aside in component.set_aside() {
                    let what = format!("{file} ({})", set_aside.what);
                    loaded.set_aside.push(SetAside {
                        what,
                        why: set_aside.why.clone(),
                    });
                }
                let (grants, limits) = operator(&name);
                loaded.plugins.push(Plugin {
                    name,
                    file,
                    component,
                    grants,
                    limits,
                });
            }
            Err(why) => loaded.set_aside.push(SetAside { what: file, why }),
        }
    }
    loaded
}

struct Found {
    path: String,
    /// `None`: not UTF-8.
    stem: Option<String>,
    wasm: Result<Arc<[u8]>, String>,
    /// The `.toml` of the same name, if there is one that can be read.
    manifest: Option<String>,
}

/// Sorted, since the order in which a folder lists its files is nobody's promise.
fn list(folder: &Path) -> std::io::Result<Vec<Found>> {
    let dir = Dir::open_ambient_dir(folder, ambient_authority())?;
    let mut names: Vec<_> = dir
        .entries()?
        .filter_map(|entry| Some(entry.ok()?.file_name()))
        .collect();
    names.retain(|name| {
        Path::new(name)
            .extension()
            .is_some_and(|extension| extension == "wasm")
    });
    names.sort();
    let found = names.into_iter().map(|name| Found {
        path: folder.join(&name).display().to_string(),
        stem: Path::new(&name)
            .file_stem()
            .and_then(|stem| stem.to_str())
            .map(str::to_owned),
        wasm: read(&dir, Path::new(&name)),
        manifest: manifest(&dir, &Path::new(&name).with_extension("toml")),
    });
    Ok(found.collect())
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
    let cannot = |error: std::io::Error| {
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
