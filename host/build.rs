//! Builds the shipped plugins to components, so that they travel inside the binary (`src/shipped.rs`).

use std::{
    env,
    error::Error,
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
    process::{Command, ExitCode},
};

const TARGET: &str = "wasm32-wasip2";

fn main() -> ExitCode {
    match build() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            println!("cargo::error={}", error.to_string().replace('\n', " "));
            ExitCode::FAILURE
        }
    }
}

fn build() -> Result<(), Box<dyn Error>> {
    // Asked for when it runs: a build folder may have come from a checkout in another place.
    let package = PathBuf::from(env::var("CARGO_MANIFEST_DIR")?);
    let root = package
        .parent()
        .ok_or("the package `agentloop-host` stands in the folder of its workspace")?;
    let out = PathBuf::from(env::var("OUT_DIR")?);
    let workspace = root.join("plugins");
    let names = plugins(&workspace)?;
    watch(root, &workspace, &names);

    check_target()?;
    let guests = guests_dir(&out)?;
    let status = cargo()?
        .current_dir(&workspace)
        .args(["build", "--release", "--locked", "--target", TARGET])
        .arg("--target-dir")
        .arg(&guests)
        .status()
        .map_err(|error| format!("cargo can't be started to build the plugins: {error}"))?;
    if !status.success() {
        return Err(
            "the shipped plugins do not build: their errors stand above, and `cargo test` in `plugins` finds more".into(),
        );
    }

    let mut list = String::from("&[");
    for name in &names {
        let file = format!("{name}.wasm");
        let built = guests.join(TARGET).join("release").join(&file);
        // A copy, since another build may write there at any time.
        fs::copy(&built, out.join(&file)).map_err(|error| {
            format!(
                "`{}` can't be taken over: {error}; is `{name}` a member in `plugins/Cargo.toml`?",
                built.display()
            )
        })?;
        write!(
            list,
            "Shipped {{ name: {name:?}, wasm: include_bytes!({file:?}) }},"
        )?;
    }
    list.push(']');
    fs::write(out.join("shipped.rs"), list)?;
    Ok(())
}

/// The names of the plugins, which are those of their folders, sorted.
fn plugins(workspace: &Path) -> Result<Vec<String>, Box<dyn Error>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(workspace)
        .map_err(|error| format!("`{}` can't be read: {error}", workspace.display()))?
    {
        let entry = entry?;
        if entry.path().join("Cargo.toml").is_file() {
            names.push(entry.file_name().to_string_lossy().into_owned());
        }
    }
    names.sort();
    Ok(names)
}

/// Names what the components are made of, and no folder in which a build of something else could write.
fn watch(root: &Path, workspace: &Path, names: &[String]) {
    let parts = ["Cargo.toml", "Cargo.lock", "build.rs", ".cargo", "src"];
    let crates = names.iter().map(|name| workspace.join(name));
    let of_crates = [
        workspace.to_owned(),
        root.join("sdk"),
        root.join("sdk/macros"),
    ]
    .into_iter()
    .chain(crates)
    .flat_map(|folder| parts.map(|part| folder.join(part)))
    .filter(|path| path.exists());
    for path in of_crates.chain([root.join("wit"), root.join("host/build.rs")]) {
        println!("cargo::rerun-if-changed={}", path.display());
    }
}

/// Without this check a missing target is told once for each crate, as a missing `core`.
fn check_target() -> Result<(), Box<dyn Error>> {
    let rustc = env::var_os("RUSTC").ok_or("cargo does not say which rustc to use")?;
    let output = Command::new(rustc).args(["--print", "sysroot"]).output()?;
    let sysroot = PathBuf::from(String::from_utf8(output.stdout)?.trim());
    if sysroot.join("lib/rustlib").join(TARGET).is_dir() {
        return Ok(());
    }
    Err(format!(
        "the shipped plugins are components, and this toolchain can't build these yet: run `rustup target add {TARGET}`, then the same command again"
    )
    .into())
}

/// `guests` in the target folder of the outer build. An own folder, since the outer cargo holds the lock of its.
fn guests_dir(out: &Path) -> Result<PathBuf, Box<dyn Error>> {
    // <target>/<profile>/build/<package>/out, where <target> may end with a triple.
    let target = out
        .ancestors()
        .nth(4)
        .ok_or_else(|| format!("`{}` is not inside a target folder", out.display()))?;
    Ok(target.join("guests"))
}

/// A cargo that builds for the guests' target as if this build were not there: flags, wrappers (such as
/// `clippy-driver`) and folders of the outer one would leak in through the environment.
fn cargo() -> Result<Command, Box<dyn Error>> {
    let mut cargo = Command::new(env::var_os("CARGO").ok_or("cargo does not say where it is")?);
    for (name, _) in env::vars_os() {
        if name.to_str().is_some_and(leaks) {
            cargo.env_remove(name);
        }
    }
    Ok(cargo)
}

fn leaks(name: &str) -> bool {
    const KEPT: [&str; 7] = [
        "CARGO_HOME",
        // The outer build's job server: together they use no more cores than one.
        "CARGO_MAKEFLAGS",
        "CARGO_HTTP_",
        "CARGO_NET_",
        "CARGO_REGISTR",
        "CARGO_SOURCE_",
        "CARGO_TERM_",
    ];
    const LEAKING: [&str; 5] = ["CARGO", "__CARGO", "RUSTFLAGS", "RUSTDOC", "CLIPPY"];
    let starts = |prefix: &&str| name.starts_with(prefix);
    (LEAKING.iter().any(starts) && !KEPT.iter().any(starts))
        || (name.starts_with("RUSTC_") && name != "RUSTC_LINKER")
}
