//! `grants`, `grant`, `revoke`: what components request, what they are granted, and for which component that is.

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use clap::Args;
use serde_json::{Value, json};

use super::{
    Global,
    config::confirm,
    exit::{Exit, Misuse},
    terminal::{can_ask, caution, dim, good, harmless, one_line, strong},
    write,
};
use crate::{
    app::App,
    config::{
        Places, Settings,
        lock::{Held, Lock, Standing},
        trust::{GrantLines, TrustStore},
    },
    ids::PluginName,
};

#[derive(Debug, Args)]
pub struct GrantsArgs {
    /// One JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
pub struct GrantArgs {
    /// The plugin: its file's name without `.wasm`
    plugin: PluginArg,
    /// Let it read a folder: `PATH`, or `PATH=/as/the/plugin/sees/it`; several times
    #[arg(long, value_name = "FOLDER")]
    read: Vec<String>,
    /// Let it read and write a folder
    #[arg(long, value_name = "FOLDER")]
    write: Vec<String>,
    /// Let it reach a web origin: `https://api.example.org`, or with methods `https://api.example.org=GET,POST`
    #[arg(long, value_name = "ORIGIN")]
    http: Vec<String>,
    /// Let it see an environment variable
    #[arg(long, value_name = "NAME")]
    env: Vec<String>,
    /// Put a secret of the settings (`[secrets.NAME]`) into its requests, unseen by it
    #[arg(long, value_name = "NAME")]
    secret: Vec<String>,
    /// Do not ask
    #[arg(long, short = 'y')]
    yes: bool,
}

#[derive(Debug, Args)]
pub struct RevokeArgs {
    /// The plugin: its file's name without `.wasm`
    plugin: PluginArg,
}

#[derive(Debug, Clone)]
struct PluginArg(PluginName);

impl std::str::FromStr for PluginArg {
    type Err = crate::ids::InvalidName;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let stem = text.strip_suffix(".wasm").unwrap_or(text);
        PluginName::parse(stem).map(Self)
    }
}

/// A plugin of the configured folders, as it is now.
struct Row {
    file: String,
    held: Held,
    standing: Standing,
}

async fn rows(settings: &Settings) -> anyhow::Result<(Vec<Row>, Lock)> {
    let lock = settings.lock.read()?;
    let held = App::held(settings).await?;
    let rows = held.into_iter().map(|(file, held)| {
        let standing = match held.granted.is_empty() {
            true => Standing::Same,
            false => lock.standing(&held),
        };
        Row {
            file,
            held,
            standing,
        }
    });
    let rows = rows.collect();
    Ok((rows, lock))
}

pub async fn grants(args: &GrantsArgs, global: &Global) -> anyhow::Result<Exit> {
    let settings = global.settings(global.flags())?;
    let (rows, lock) = rows(&settings).await?;
    let text = match args.json {
        true => format!("{:#}\n", in_json(&rows, &lock)),
        false if rows.is_empty() => "there are no plugins\n".to_owned(),
        false => rows.iter().map(|row| in_text(row, &lock)).collect(),
    };
    write::stdout(&text)?;
    Ok(Exit::Done)
}

fn in_json(rows: &[Row], lock: &Lock) -> Value {
    let plugins = rows.iter().map(|row| {
        let pinned = lock.entry(&row.held.name);
        json!({
            "plugin": row.held.name,
            "file": row.file,
            "sha256": row.held.digest.hex(),
            "requested": row.held.requested,
            "granted": row.held.granted,
            "counts": row.standing.fault(&row.held).is_none(),
            "why_not": row.standing.fault(&row.held),
            "pinned": pinned.map(|pinned| json!({
                "sha256": pinned.sha256, "at": pinned.at, "by": pinned.by, "requested": pinned.requested,
                "granted": pinned.granted,
            })),
        })
    });
    json!({"plugins": plugins.collect::<Vec<_>>()})
}

fn in_text(row: &Row, lock: &Lock) -> String {
    let mut text = format!(
        "{}  {}\n",
        strong().for_stdout().apply_to(&row.held.name),
        dim()
            .for_stdout()
            .apply_to(format!("sha256:{}", &row.held.digest.hex()[..16]))
    );
    let list = |word: &str, lines: &[String]| -> String {
        let lines = lines.iter();
        lines
            .map(|line| format!("  {word:<9}  {}\n", one_line(line, 140)))
            .collect()
    };
    text.push_str(&list("requests", &row.held.requested));
    text.push_str(&list("granted", &row.held.granted));
    match (row.standing.fault(&row.held), lock.entry(&row.held.name)) {
        (Some(why), _) => text.push_str(&format!(
            "  {}  {}\n",
            caution().for_stdout().apply_to("not now"),
            harmless(&why)
        )),
        (None, Some(pinned)) if !row.held.granted.is_empty() => text.push_str(&format!(
            "  {}  {}\n",
            good().for_stdout().apply_to("counts"),
            harmless(&format!("since {} by {}", pinned.at, pinned.by))
        )),
        (None, _) => {}
    }
    text
}

pub async fn grant(args: &GrantArgs, global: &Global) -> anyhow::Result<Exit> {
    let name = &args.plugin.0;
    let settings = global.settings(global.flags())?;
    let lines = lines(args)?;
    let settings = match lines.is_empty() {
        true => settings,
        false => added(name, &lines, settings, args.yes, global)?,
    };
    let (rows, mut lock) = rows(&settings).await?;
    let Some(row) = rows.iter().find(|row| row.held.name == *name) else {
        return Err(Misuse(format!(
            "there is no plugin `{name}` in {}",
            folders(&settings.plugin_dirs)
        ))
        .into());
    };
    if row.held.granted.is_empty() {
        return Err(Misuse(format!(
            "nothing is granted to `{name}`; say what, with `--read`, `--write`, `--http`, `--env` or `--secret`. It requests: {}",
            match &*row.held.requested {
                [] => "nothing".to_owned(),
                requested => requested.join(", "),
            }
        ))
        .into());
    }
    eprint!("{}", console::strip_ansi_codes(&in_text(row, &lock)));
    if !args.yes {
        anyhow::ensure!(
            can_ask(),
            "nobody can be asked here; `agentloop-host grant {name} --yes` grants it as it stands"
        );
        if !confirm("  is this component to have this? [y/N] ")? {
            return Ok(Exit::Denied);
        }
    }
    lock.take_over();
    lock.pin(&row.held);
    lock.save()?;
    write::stdout(&format!(
        "{name} has what it is granted, as sha256:{}\n",
        row.held.digest.hex()
    ))?;
    Ok(Exit::Done)
}

fn folders(folders: &[PathBuf]) -> String {
    let folders: Vec<String> = folders
        .iter()
        .map(|folder| format!("`{}`", folder.display()))
        .collect();
    folders.join(", ")
}

fn lines(args: &GrantArgs) -> anyhow::Result<GrantLines> {
    let folder = |text: &String, writes: bool| {
        let (path, guest) = match text.split_once('=') {
            Some((path, guest)) => (path, guest.to_owned()),
            None => {
                let last = Path::new(text).file_name().and_then(|name| name.to_str());
                let last = last.with_context(|| {
                    format!("say how the plugin sees `{text}`, such as `{text}=/folder`")
                })?;
                (text.as_str(), format!("/{last}"))
            }
        };
        anyhow::Ok((path.to_owned(), guest, writes))
    };
    let read = args.read.iter().map(|text| folder(text, false));
    let write = args.write.iter().map(|text| folder(text, true));
    let http = args.http.iter().map(|text| match text.split_once('=') {
        None => (text.clone(), Vec::new()),
        Some((origin, methods)) => {
            let methods = methods.split(',').map(|m| m.trim().to_ascii_uppercase());
            (origin.to_owned(), methods.collect())
        }
    });
    Ok(GrantLines {
        folders: read.chain(write).collect::<Result<_, _>>()?,
        http: http.collect(),
        environment: args.env.clone(),
        secrets: args.secret.clone(),
    })
}

/// Settings with these lines among the plugin's grants.
fn added(
    name: &PluginName,
    lines: &GrantLines,
    mut settings: Settings,
    yes: bool,
    global: &Global,
) -> anyhow::Result<Settings> {
    eprintln!("{}", harmless(&lines.in_toml(name)));
    if !yes {
        anyhow::ensure!(
            can_ask(),
            "nobody can be asked here; `--yes` adds this to {}",
            settings.project.path.display()
        );
        if !confirm(&format!(
            "  add this to {}? [y/N] ",
            settings.project.path.display()
        ))? {
            return Err(Misuse("nothing was changed".to_owned()).into());
        }
    }
    let store = TrustStore::new(&Places::of_this_user()?.state_dir);
    let before = std::fs::read_to_string(&settings.project.path).ok();
    store.add_grants(&mut settings.project, name, lines)?;
    match global.settings(global.flags()) {
        Ok(settings) => Ok(settings),
        Err(error) => {
            // What can't be granted is not left in the file.
            store.put_back(&mut settings.project, before.as_deref())?;
            Err(error)
        }
    }
}

pub async fn revoke(args: &RevokeArgs, global: &Global) -> anyhow::Result<Exit> {
    let name = &args.plugin.0;
    let mut settings = global.settings(global.flags())?;
    let store = TrustStore::new(&Places::of_this_user()?.state_dir);
    let was_there = store.remove_grants(&mut settings.project, name)?;
    let mut lock = settings.lock.read()?;
    if lock.forget(name) {
        lock.save()?;
    }
    let left = global.settings(global.flags())?.grants_for(name);
    if left != crate::capability::Grants::default() {
        return Err(Misuse(format!(
            "`{name}` is still granted something in another file; `agentloop-host config show --origin` says where"
        ))
        .into());
    }
    write::stdout(&match was_there {
        true => format!("{name} has nothing any more\n"),
        false => format!("{name} had nothing\n"),
    })?;
    Ok(Exit::Done)
}
