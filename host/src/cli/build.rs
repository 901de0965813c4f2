//! `build`: from a tool crate to a checked component in the plugins folder.

mod cargo;

use std::{
    collections::HashMap,
    fs,
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::{Context as _, bail};

use self::cargo::{Cargo, ToolCrate};
use super::{
    requests::{self, Asked},
    terminal::{bad, caution, dim, good, one_line, strong},
    write,
};
use crate::{
    capability::Grants,
    cli::inspect::UNUSABLE,
    ids::PluginName,
    sandbox::{self, FileKind, Inspection},
    sdk_sources,
};

#[derive(Debug, clap::Args)]
pub struct BuildArgs {
    /// A tool crate, a workspace with tool crates, or a folder with some of these
    #[arg(value_name = "DIR", default_value = ".")]
    dir: PathBuf,
    /// Where the components go, instead of the project's plugins folder
    #[arg(long, value_name = "DIR")]
    plugins: Option<PathBuf>,
}

/// What surrounds the command.
pub struct Surroundings<'a> {
    /// Where components go unless the person says otherwise.
    pub plugins_dir: &'a Path,
    /// The user's, where the SDK's sources are unpacked.
    pub data_dir: &'a Path,
    /// What the operator grants a plugin now.
    pub grants: &'a dyn Fn(&PluginName) -> Grants,
}

/// Fails where nothing could be built; the exit code tells of components that this host can't use.
pub fn run(args: &BuildArgs, around: &Surroundings<'_>) -> anyhow::Result<ExitCode> {
    let plugins_dir = args.plugins.as_deref().unwrap_or(around.plugins_dir);
    let mut crates_of = match cargo::find(&args.dir) {
        Ok(crates_of) => crates_of,
        Err(error) => return Err(with_sdk_line(error, around.data_dir)),
    };
    check_names(crates_of.iter().flat_map(|(_, crates)| crates))?;
    let mut unusable = 0;
    for (workspace, crates) in &mut crates_of {
        for tool_crate in crates.iter() {
            check_sdk(tool_crate, around.data_dir)?;
        }
        let cargo = Cargo::in_folder(workspace);
        cargo.ensure_target()?;
        let components = cargo.build(crates)?;
        for (tool_crate, component) in crates.iter().zip(components) {
            if !install(tool_crate, &component, plugins_dir, around.grants)? {
                unusable += 1;
            }
        }
    }
    Ok(match unusable {
        0 => ExitCode::SUCCESS,
        _ => ExitCode::from(UNUSABLE),
    })
}

/// Two crates of one name would overwrite each other's component.
fn check_names<'a>(crates: impl Iterator<Item = &'a ToolCrate>) -> anyhow::Result<()> {
    let mut seen = HashMap::new();
    for tool_crate in crates {
        if let Some(other) = seen.insert(tool_crate.plugin(), &tool_crate.folder) {
            bail!(
                "two crates make the plugin `{}`, `{}` and `{}`; rename one of them",
                tool_crate.plugin(),
                other.display(),
                tool_crate.folder.display()
            );
        }
    }
    Ok(())
}

/// A crate that `new` made points to the SDK in a user's data folder: it may be another user's, or gone.
fn check_sdk(tool_crate: &ToolCrate, data_dir: &Path) -> anyhow::Result<()> {
    let Some(sdk) = &tool_crate.sdk else {
        return Ok(());
    };
    if sdk.join("Cargo.toml").exists() {
        return Ok(());
    }
    let ours = sdk_sources::unpack(data_dir)?;
    if sdk.join("Cargo.toml").exists() {
        return Ok(());
    }
    bail!(
        "`{}` depends on the SDK in `{}`, which is not there; in its Cargo.toml write\n  {}",
        tool_crate.package,
        sdk.display(),
        sdk_line(&ours)
    );
}

/// A crate that can't be read at all may be one whose SDK is gone, which cargo says in its own words.
fn with_sdk_line(error: anyhow::Error, data_dir: &Path) -> anyhow::Error {
    match sdk_sources::unpack(data_dir) {
        Ok(ours) => anyhow::anyhow!(
            "{error:#}\nif it is the SDK that is not there, write this into the Cargo.toml of the crate:\n  {}",
            sdk_line(&ours)
        ),
        Err(_) => error,
    }
}

fn sdk_line(sdk: &Path) -> String {
    format!(
        "agentloop-sdk = {{ path = {} }}",
        toml::Value::from(sdk.display().to_string())
    )
}

/// Puts the component into the plugins folder and says what it asks for; false when this host can't use it.
fn install(
    tool_crate: &ToolCrate,
    component: &Path,
    plugins_dir: &Path,
    grants: &dyn Fn(&PluginName) -> Grants,
) -> anyhow::Result<bool> {
    let wasm = fs::read(component)
        .with_context(|| format!("can't read what cargo built, `{}`", component.display()))?;
    let inspection = sandbox::inspect(&wasm);
    if let Err(why) = usable(&inspection) {
        eprintln!(
            "{} `{}` was built, and this host can't use the component: {why}\n  it stays in {}",
            bad().apply_to("error:"),
            tool_crate.package,
            component.display()
        );
        return Ok(false);
    }
    let plugin = tool_crate.plugin();
    let path = plugins_dir.join(format!("{plugin}.wasm"));
    let before = fs::read(&path).ok();
    let change = match before {
        Some(before) if before == wasm => "is up to date",
        Some(_) => "replaced",
        None => "installed",
    };
    if change != "is up to date" {
        write::file(&path, &wasm).with_context(|| format!("can't write `{}`", path.display()))?;
    }
    eprintln!(
        "{} {} ({}, {})",
        good().apply_to(change),
        strong().apply_to(path.display()),
        requests::size(wasm.len()),
        tools(&inspection)
    );
    let asked = Asked::of(requests::tools(&inspection));
    tell_requests(&plugin, &asked, &grants(&plugin));
    write::stdout(&format!("{}\n", path.display()))?;
    Ok(true)
}

/// Whether this host can use it whole: an author wants to hear of each tool that can't be offered.
fn usable(inspection: &Inspection) -> Result<(), String> {
    if let Err(error) = inspection.check() {
        let mut why = error.to_string();
        if inspection.file == FileKind::CoreModule {
            // Cargo was told the right target, so something else steers the linker.
            why.push_str(
                "; cargo was told that target, so look for a `linker` or `link-arg` in RUSTFLAGS and in .cargo/config.toml",
            );
        }
        return Err(why);
    }
    let faults = requests::faults(inspection);
    if faults.is_empty() {
        return Ok(());
    }
    Err(faults.join("; "))
}

fn tools(inspection: &Inspection) -> String {
    match requests::definitions(inspection) {
        None => "it names its tools when it is loaded".to_owned(),
        Some(definitions) => {
            let names: Vec<_> = definitions.tools.iter().map(|t| t.name.as_str()).collect();
            match names.len() {
                1 => format!("tool {}", names[0]),
                _ => format!("tools {}", one_line(&names.join(", "), 200)),
            }
        }
    }
}

fn tell_requests(plugin: &PluginName, asked: &[Asked], grants: &Grants) {
    if asked.is_empty() {
        eprintln!("  {}", dim().apply_to("it asks for nothing"));
        return;
    }
    for asked in asked {
        let granted = asked.granted(grants);
        eprintln!(
            "  {} {}: {}",
            if granted.is_whole() {
                good().apply_to("granted")
            } else {
                caution().apply_to("asks to")
            },
            one_line(&asked.capability.to_string(), 200),
            one_line(&asked.reason, 200)
        );
    }
    if let Some(lines) = requests::lines_to_add(plugin, asked, grants) {
        eprintln!("  to grant it, put this into agentloop.toml:\n");
        for line in lines.lines() {
            eprintln!("    {line}");
        }
        eprintln!();
    }
}
