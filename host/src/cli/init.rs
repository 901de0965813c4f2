//! `init`: a settings file with comments, and the shipped tools.

use std::{
    fs, io,
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::Context as _;

use super::{
    terminal::{can_ask, caution, dim, good, strong},
    write,
};
use crate::config::{PLUGINS_DIR, PROJECT_FILE};

#[derive(Debug, clap::Args)]
pub struct InitArgs {
    /// The project's folder
    #[arg(value_name = "DIR", default_value = ".")]
    pub dir: PathBuf,
    /// Replace shipped tools that were changed, without asking
    #[arg(short, long)]
    yes: bool,
}

/// `template` is the text of a fresh settings file. A settings file that is there stays as it is; a tool that
/// differs from the shipped one is replaced only when the person says so.
pub fn run(args: &InitArgs, template: &str, shipped: &[Shipped<'_>]) -> anyhow::Result<ExitCode> {
    init(args, template, shipped, |path| {
        if args.yes || !can_ask() {
            return Ok(args.yes);
        }
        ask(&format!(
            "`{}` differs from the shipped one; replace it?",
            path.display()
        ))
    })
}

/// Name without `.wasm`, and content.
pub type Shipped<'a> = (&'a str, &'a [u8]);

fn init(
    args: &InitArgs,
    template: &str,
    shipped: &[Shipped<'_>],
    replace: impl Fn(&Path) -> io::Result<bool>,
) -> anyhow::Result<ExitCode> {
    let settings = args.dir.join(PROJECT_FILE);
    let mut did = Vec::new();
    did.push((
        put(&settings, template.as_bytes(), |_| Ok(false))?,
        settings,
    ));
    for (name, wasm) in shipped {
        let path = args.dir.join(PLUGINS_DIR).join(format!("{name}.wasm"));
        did.push((put(&path, wasm, &replace)?, path));
    }
    for (did, path) in &did {
        let word = match did {
            Did::Created => good().apply_to("created"),
            Did::Replaced => caution().apply_to("replaced"),
            Did::Kept => caution().apply_to("kept"),
            Did::Nothing => dim().apply_to("is there"),
        };
        eprintln!("{word:>8} {}", path.display());
    }
    if did.iter().skip(1).any(|(did, _)| *did == Did::Kept) {
        eprintln!(
            "what was kept differs from what is shipped; `agentloop-host init --yes` replaces the tools"
        );
    }
    eprintln!(
        "next: {} lists what is there, {} needs no key, and with ANTHROPIC_API_KEY or OPENAI_API_KEY set {} asks a model",
        strong().apply_to("agentloop-host tools"),
        strong().apply_to("agentloop-host demo"),
        strong().apply_to("agentloop-host run \"What time is it in Lima?\""),
    );
    Ok(ExitCode::SUCCESS)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Did {
    Created,
    Replaced,
    /// It is there, with other content.
    Kept,
    /// It is there, with this very content.
    Nothing,
}

fn put(
    path: &Path,
    content: &[u8],
    replace: impl FnOnce(&Path) -> io::Result<bool>,
) -> anyhow::Result<Did> {
    let did = match fs::read(path) {
        Ok(found) if found == content => return Ok(Did::Nothing),
        Ok(_) if !replace(path)? => return Ok(Did::Kept),
        Ok(_) => Did::Replaced,
        Err(error) if error.kind() == io::ErrorKind::NotFound => Did::Created,
        Err(error) => {
            return Err(error).with_context(|| format!("can't read `{}`", path.display()));
        }
    };
    write::file(path, content).with_context(|| format!("can't write `{}`", path.display()))?;
    Ok(did)
}

fn ask(question: &str) -> io::Result<bool> {
    eprint!("{} {question} [y/N] ", caution().apply_to("?"));
    let mut answer = String::new();
    io::stdin().read_line(&mut answer)?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(dir: &Path, yes: bool) -> InitArgs {
        let dir = dir.to_owned();
        InitArgs { dir, yes }
    }

    const SHIPPED: &[Shipped<'_>] = &[("calc", b"shipped")];

    #[test]
    fn a_second_time_changes_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let stamps = || {
            ["agentloop.toml", "plugins/calc.wasm"].map(|file| {
                let metadata = fs::metadata(dir.path().join(file)).unwrap();
                metadata.modified().unwrap()
            })
        };
        let init = || init(&args(dir.path(), true), "# text\n", SHIPPED, |_| Ok(true));
        init().unwrap();
        let first = stamps();
        init().unwrap();
        assert_eq!(stamps(), first);
    }

    #[test]
    fn what_a_person_changed_is_not_lost() {
        let dir = tempfile::tempdir().unwrap();
        let settings = dir.path().join("agentloop.toml");
        let tool = dir.path().join("plugins/calc.wasm");
        fs::create_dir(dir.path().join("plugins")).unwrap();
        fs::write(&settings, "mine").unwrap();
        fs::write(&tool, "mine").unwrap();

        let args = args(dir.path(), false);
        init(&args, "# text\n", SHIPPED, |_| Ok(false)).unwrap();
        assert_eq!(fs::read(&tool).unwrap(), b"mine");

        init(&args, "# text\n", SHIPPED, |_| Ok(true)).unwrap();
        assert_eq!(fs::read(&tool).unwrap(), b"shipped");
        assert_eq!(fs::read(&settings).unwrap(), b"mine");
    }
}
