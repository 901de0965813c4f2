//! Cargo, as `build` uses it.

use std::{
    collections::HashMap,
    ffi::OsStr,
    fs,
    io::{self, BufReader},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context as _, anyhow, bail};
use serde_json::Value;

use crate::{
    cli::terminal::{dim, one_line},
    ids::PluginName,
};

const TARGET: &str = "wasm32-wasip2";
const SDK: &str = "agentloop-sdk";
/// How far below the folder that a person names crates are looked for.
const MAX_DEPTH: usize = 4;

/// A crate that makes a component.
#[derive(Debug)]
pub(super) struct ToolCrate {
    pub(super) package: String,
    /// Where its manifest lies.
    pub(super) folder: PathBuf,
    /// Where its dependency on the SDK points, if by path.
    pub(super) sdk: Option<PathBuf>,
    /// Cargo's own name for the package.
    id: String,
}

impl ToolCrate {
    pub(super) fn plugin(&self) -> PluginName {
        PluginName::of_file_stem(&self.package)
    }
}

/// The tool crates in a folder, by the folder in which cargo has to run for them. Never empty.
pub(super) fn find(dir: &Path) -> anyhow::Result<Vec<(PathBuf, Vec<ToolCrate>)>> {
    let dir = dir
        .canonicalize()
        .with_context(|| format!("can't look into `{}`", dir.display()))?;
    let mut found = Vec::new();
    if dir.join("Cargo.toml").exists() {
        let crates = crates_at(&dir)?;
        found.push((dir.clone(), crates));
    } else {
        let mut manifests = Vec::new();
        look_below(&dir, MAX_DEPTH, &mut manifests)
            .with_context(|| format!("can't look into `{}`", dir.display()))?;
        for folder in manifests {
            let crates = crates_at(&folder)?;
            found.push((folder, crates));
        }
    }
    found.retain(|(_, crates)| !crates.is_empty());
    if found.is_empty() {
        bail!(
            "no tool crate in `{}`: that is one with `crate-type = [\"cdylib\"]` and a dependency on {SDK}; `agentloop-host new NAME` makes one",
            dir.display()
        );
    }
    Ok(found)
}

/// The topmost folders with a manifest, sorted.
fn look_below(folder: &Path, depth: usize, manifests: &mut Vec<PathBuf>) -> io::Result<()> {
    let mut inside: Vec<_> = fs::read_dir(folder)?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| {
            let name = path.file_name().and_then(OsStr::to_str).unwrap_or(".");
            path.is_dir() && !path.is_symlink() && name != "target" && !name.starts_with('.')
        })
        .collect();
    inside.sort();
    for folder in inside {
        if folder.join("Cargo.toml").exists() {
            manifests.push(folder);
        } else if depth > 1 {
            // What can't be read has nothing to build.
            let _ = look_below(&folder, depth - 1, manifests);
        }
    }
    Ok(())
}

/// The crate of this manifest, or else all tool crates of its workspace that lie below it.
fn crates_at(folder: &Path) -> anyhow::Result<Vec<ToolCrate>> {
    let metadata = Cargo::in_folder(folder).metadata()?;
    let packages = metadata["packages"]
        .as_array()
        .map_or(&[][..], Vec::as_slice);
    let manifest = folder.join("Cargo.toml");
    let own = packages.iter().find(|package| {
        let path = package["manifest_path"].as_str().map(Path::new);
        path.is_some_and(|path| path == manifest)
    });
    let has_others = packages.len() > 1;
    if let Some(own) = own {
        if makes_component(own) {
            return Ok(vec![tool_crate(own)?]);
        }
        if !has_others && depends_on_sdk(own) {
            bail!(
                "`{}` makes no component; add this to {}:\n  [lib]\n  crate-type = [\"cdylib\"]",
                own["name"].as_str().unwrap_or_default(),
                manifest.display()
            );
        }
    }
    packages
        .iter()
        .filter(|package| makes_component(package) && depends_on_sdk(package))
        .map(tool_crate)
        .filter(|found| {
            found
                .as_ref()
                .map_or(true, |found| found.folder.starts_with(folder))
        })
        .collect()
}

fn makes_component(package: &Value) -> bool {
    targets(package).any(|target| lists(&target["crate_types"], "cdylib"))
}

fn depends_on_sdk(package: &Value) -> bool {
    sdk_dependency(package).is_some()
}

fn sdk_dependency(package: &Value) -> Option<&Value> {
    let dependencies = package["dependencies"].as_array()?;
    dependencies.iter().find(|d| d["name"] == SDK)
}

fn targets(package: &Value) -> impl Iterator<Item = &Value> {
    package["targets"].as_array().into_iter().flatten()
}

fn lists(list: &Value, word: &str) -> bool {
    list.as_array()
        .is_some_and(|list| list.iter().any(|item| item == word))
}

fn tool_crate(package: &Value) -> anyhow::Result<ToolCrate> {
    let text = |key: &str| {
        let text = package[key].as_str();
        text.ok_or_else(|| anyhow!("`cargo metadata` gave a package without `{key}`"))
    };
    let manifest = Path::new(text("manifest_path")?);
    Ok(ToolCrate {
        package: text("name")?.to_owned(),
        folder: manifest.parent().unwrap_or(manifest).to_owned(),
        sdk: sdk_dependency(package)
            .and_then(|d| d["path"].as_str())
            .map(PathBuf::from),
        id: text("id")?.to_owned(),
    })
}

/// Cargo in a folder, whose own settings and toolchain then count.
pub(super) struct Cargo<'a> {
    folder: &'a Path,
}

impl<'a> Cargo<'a> {
    pub(super) fn in_folder(folder: &'a Path) -> Self {
        Self { folder }
    }

    /// Adds the target for components where it is missing.
    pub(super) fn ensure_target(&self) -> anyhow::Result<()> {
        if self.has_target()? {
            return Ok(());
        }
        eprintln!(
            "{}",
            dim().apply_to(format!("adding the target {TARGET} with rustup"))
        );
        let mut rustup = self.command("rustup");
        // Stdout is for results.
        rustup.args(["target", "add", TARGET]).stdout(io::stderr());
        let added = match rustup.status() {
            Ok(status) => status.success(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => bail!(
                "this Rust has no target `{TARGET}`, and rustup, which could add it, is not here; install Rust with rustup (https://rustup.rs), or the package of your system with Rust's standard library for {TARGET}"
            ),
            Err(error) => return Err(error).context("can't run `rustup`"),
        };
        if !added {
            bail!(
                "rustup could not add the target `{TARGET}`; what it says stands above, and `rustup target add {TARGET}` tries again"
            );
        }
        if !self.has_target()? {
            bail!(
                "rustup added the target `{TARGET}`, and `rustc` still doesn't have it: it is not the one of rustup; put rustup's folder (~/.cargo/bin) first in PATH"
            );
        }
        Ok(())
    }

    fn has_target(&self) -> anyhow::Result<bool> {
        let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
        let mut rustc = self.command(&rustc);
        rustc.args(["--print", "target-libdir", "--target", TARGET]);
        let output = rustc.stdin(Stdio::null()).output().map_err(missing)?;
        if !output.status.success() {
            bail!(
                "this Rust doesn't know the target `{TARGET}` ({}); it takes 1.95 or newer: `rustup update`",
                one_line(&String::from_utf8_lossy(&output.stderr), 300)
            );
        }
        let folder = String::from_utf8_lossy(&output.stdout);
        Ok(Path::new(folder.trim_end_matches(['\n', '\r'])).is_dir())
    }

    fn metadata(&self) -> anyhow::Result<Value> {
        let mut cargo = self.command("cargo");
        cargo.args(["metadata", "--no-deps", "--format-version=1"]);
        let output = cargo
            .stdin(Stdio::null())
            .stderr(Stdio::inherit())
            .output()
            .map_err(missing)?;
        if !output.status.success() {
            bail!(
                "cargo can't read the crate in `{}`; what it says stands above",
                self.folder.display()
            );
        }
        serde_json::from_slice(&output.stdout).context("`cargo metadata` gave no JSON")
    }

    /// Builds the crates; a component for each, in their order.
    pub(super) fn build(&self, crates: &[ToolCrate]) -> anyhow::Result<Vec<PathBuf>> {
        let mut cargo = self.command("cargo");
        cargo.args(["build", "--release", "--lib", "--target", TARGET]);
        cargo.arg("--message-format=json-render-diagnostics");
        for tool_crate in crates {
            cargo.args(["--package", &tool_crate.id]);
        }
        let mut child = cargo
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(missing)?;
        let messages = child.stdout.take().context("cargo has no stdout")?;
        let built = artefacts(BufReader::new(messages));
        let status = child.wait().context("can't wait for cargo")?;
        let mut built = built.context("can't read what cargo says")?;
        if !status.success() {
            let names: Vec<_> = crates.iter().map(|c| format!("`{}`", c.package)).collect();
            bail!(
                "cargo could not build {}; what it says stands above",
                names.join(", ")
            );
        }
        crates
            .iter()
            .map(|tool_crate| {
                built.remove(&tool_crate.id).ok_or_else(|| {
                    anyhow!(
                        "cargo built `{}` without a .wasm file; its Cargo.toml needs `crate-type = [\"cdylib\"]` below `[lib]`",
                        tool_crate.package
                    )
                })
            })
            .collect()
    }

    fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        command.current_dir(self.folder);
        for (name, _) in std::env::vars_os() {
            if name.to_str().is_some_and(is_of_outer_cargo) {
                command.env_remove(name);
            }
        }
        command
    }
}

/// What a cargo says to the programs that it runs, such as this one under `cargo run`; it would be told to the
/// author's crates. All that steers a build, RUSTFLAGS first, is the author's and stays.
fn is_of_outer_cargo(variable: &str) -> bool {
    matches!(
        variable,
        "CARGO"
            | "CARGO_CRATE_NAME"
            | "CARGO_MAKEFLAGS"
            | "CARGO_MANIFEST_DIR"
            | "CARGO_MANIFEST_LINKS"
            | "CARGO_MANIFEST_PATH"
            | "CARGO_PRIMARY_PACKAGE"
            | "CARGO_TARGET_TMPDIR"
            | "OUT_DIR"
    ) || ["CARGO_BIN_", "CARGO_CFG_", "CARGO_FEATURE_", "CARGO_PKG_"]
        .iter()
        .any(|prefix| variable.starts_with(prefix))
}

fn missing(error: io::Error) -> anyhow::Error {
    if error.kind() == io::ErrorKind::NotFound {
        return anyhow!(
            "building tools takes Rust, and `cargo` is not here; install it from https://rustup.rs"
        );
    }
    anyhow::Error::new(error).context("can't run `cargo`")
}

/// The `.wasm` file of each package id.
fn artefacts(messages: impl io::BufRead) -> io::Result<HashMap<String, PathBuf>> {
    let mut built = HashMap::new();
    for line in messages.lines() {
        let Ok(message) = serde_json::from_str::<Value>(&line?) else {
            // Something of a build script.
            continue;
        };
        if message["reason"] != "compiler-artifact" || !lists(&message["target"]["kind"], "cdylib")
        {
            continue;
        }
        let wasm = message["filenames"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
            .find(|file| file.ends_with(".wasm"));
        if let (Some(id), Some(wasm)) = (message["package_id"].as_str(), wasm) {
            built.insert(id.to_owned(), PathBuf::from(wasm));
        }
    }
    Ok(built)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_an_outer_cargo_says_is_cleared() {
        for outer in ["CARGO", "CARGO_PKG_NAME", "CARGO_MANIFEST_DIR", "OUT_DIR"] {
            assert!(is_of_outer_cargo(outer), "{outer}");
        }
        for own in [
            "RUSTFLAGS",
            "CARGO_ENCODED_RUSTFLAGS",
            "CARGO_HOME",
            "CARGO_NET_OFFLINE",
            "CARGO_PROFILE_RELEASE_LTO",
            "CARGO_TARGET_DIR",
            "RUSTUP_TOOLCHAIN",
        ] {
            assert!(!is_of_outer_cargo(own), "{own}");
        }
    }

    #[test]
    fn the_component_of_each_package_is_found_in_what_cargo_says() {
        let says = r#"{"reason":"compiler-artifact","package_id":"dep","target":{"kind":["lib"]},"filenames":["/t/libdep.rlib"]}
not json
{"reason":"compiler-artifact","package_id":"path+file:///a%20b#0.1.0","target":{"kind":["cdylib"]},"filenames":["/t/a b.d","/t/a b.wasm"]}
{"reason":"build-finished","success":true}
"#;
        let found = artefacts(says.as_bytes()).unwrap();
        assert_eq!(found.len(), 1);
        assert_eq!(
            found["path+file:///a%20b#0.1.0"],
            PathBuf::from("/t/a b.wasm")
        );
    }

    #[test]
    fn crates_are_looked_for_only_where_they_can_be() {
        let here = tempfile::tempdir().unwrap();
        for folder in ["b/x", "a", "a/inner", "target/y", ".hidden/z"] {
            let folder = here.path().join(folder);
            fs::create_dir_all(&folder).unwrap();
            fs::write(folder.join("Cargo.toml"), "").unwrap();
        }
        let mut found = Vec::new();
        look_below(here.path(), MAX_DEPTH, &mut found).unwrap();
        assert_eq!(found, [here.path().join("a"), here.path().join("b/x")]);
    }
}
