//! `config`: what holds here, where it comes from, and whether this project may say so.

use clap::{Args, Subcommand};

use crate::{
    cli::{
        Global,
        exit::Exit,
        terminal::{can_ask, caution, dim, harmless, strong},
        write,
    },
    config::{Flags, Places, Settings, env_vars, trust::TrustStore},
};

#[derive(Debug, Args)]
pub struct ConfigArgs {
    #[command(subcommand)]
    pub command: ConfigCommand,
}

#[derive(Debug, Subcommand)]
pub enum ConfigCommand {
    /// Print every setting
    Show {
        /// Also print where each value comes from
        #[arg(long)]
        origin: bool,
    },
    /// Let the project file of this folder count in full, as it is now
    Trust {
        /// Do not ask
        #[arg(long, short = 'y')]
        yes: bool,
    },
    /// Print the environment variables that are read
    Env,
}

pub fn run(args: &ConfigArgs, global: &Global) -> anyhow::Result<Exit> {
    match &args.command {
        ConfigCommand::Show { origin } => {
            let settings = global.settings(global.flags())?;
            let mut text = String::new();
            for line in settings.origin_lines() {
                let line = match line.split_once("  # from ") {
                    Some((value, _)) if !origin => value,
                    Some(_) | None => &line,
                };
                text += &harmless(line);
                text.push('\n');
            }
            write::stdout(&text)?;
            Ok(Exit::Done)
        }
        ConfigCommand::Trust { yes } => {
            let settings = global.settings(global.flags())?;
            let store = TrustStore::new(&Places::of_this_user()?.state_dir);
            show_withheld(&settings);
            let path = settings.project.path.display().to_string();
            if settings.withheld.is_empty() {
                eprintln!("nothing in {} waits for trust", harmless(&path));
                return Ok(Exit::Done);
            }
            if !yes {
                anyhow::ensure!(
                    can_ask(),
                    "nobody can be asked here; `config trust --yes` trusts {path} as it is"
                );
                if !confirm("  trust all of this, as it stands now? [y/N] ")? {
                    return Ok(Exit::Denied);
                }
            }
            store.trust(&settings.project)?;
            eprintln!("{} is trusted until it changes", harmless(&path));
            Ok(Exit::Done)
        }
        ConfigCommand::Env => {
            write::stdout(&env_vars::reference())?;
            Ok(Exit::Done)
        }
    }
}

/// Settings for a command that runs tools. What of the project file does not count is shown, and where a
/// person can be asked they may trust the file on the spot.
pub fn settings_for_tools(global: &Global, flags: Flags) -> anyhow::Result<Settings> {
    let settings = global.settings(flags.clone())?;
    if settings.withheld.is_empty() {
        return Ok(settings);
    }
    show_withheld(&settings);
    if !can_ask() || !confirm("  trust all of this, as it stands now? [y/N] ")? {
        return Ok(settings);
    }
    TrustStore::new(&Places::of_this_user()?.state_dir).trust(&settings.project)?;
    global.settings(flags)
}

/// What of the project file does not count, if anything.
fn show_withheld(settings: &Settings) {
    if settings.withheld.is_empty() {
        return;
    }
    let file = &settings.project.path;
    // A folder's own plugins wait for trust without any settings, too.
    let (path, of_it) = match file.parent() {
        Some(folder) if !file.exists() => (folder, "this of it does"),
        Some(_) | None => (file.as_path(), "these of its settings do"),
    };
    eprintln!(
        "{} {} is not trusted, so {of_it} not count:",
        caution().apply_to("note:"),
        strong().apply_to(harmless(&path.display().to_string()))
    );
    for withheld in &settings.withheld {
        eprintln!("  {}", harmless(&withheld.to_string()));
    }
    eprintln!(
        "  {}",
        dim().apply_to("`agentloop-host config trust` trusts it, `--trust` does so once")
    );
}

/// Asks a yes-or-no question on the terminal.
pub fn confirm(question: &str) -> std::io::Result<bool> {
    eprint!("{question}");
    let mut line = String::new();
    std::io::stdin().read_line(&mut line)?;
    Ok(matches!(
        line.trim().to_ascii_lowercase().as_str(),
        "y" | "yes"
    ))
}
