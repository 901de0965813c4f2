//! `permissions import`: rules of a Claude Code settings file as rules of this host. It only prints. A rule that can't
//! be said here as narrowly as there is left out of `allow` and named; one that forbids or asks is widened instead.

use std::{fs::File, io::Read as _, path::PathBuf};

use anyhow::{Context as _, bail};
use serde::Deserialize;

use crate::{
    cli::{
        exit::Exit,
        terminal::{caution, harmless},
        write,
    },
    config::permissions::{Rule, Verdict},
};

/// Largest file that is read.
const MAX_BYTES: u64 = 1 << 20;

#[derive(Debug, clap::Args)]
pub(super) struct ImportArgs {
    /// A settings file, such as .claude/settings.json
    file: PathBuf,
}

pub(super) fn import(args: &ImportArgs) -> anyhow::Result<Exit> {
    let file = args.file.display();
    let mut text = String::new();
    File::open(&args.file)
        .and_then(|file| file.take(MAX_BYTES + 1).read_to_string(&mut text))
        .with_context(|| format!("can't read `{file}`"))?;
    if text.len() as u64 > MAX_BYTES {
        bail!("`{file}` is larger than {MAX_BYTES} bytes, so it is no settings file");
    }
    let imported = Imported::of(&text).with_context(|| format!("can't use `{file}`"))?;
    for note in &imported.notes {
        eprintln!("{} {}", caution().apply_to("note:"), harmless(note));
    }
    write::stdout(&imported.lines())?;
    Ok(Exit::Done)
}

#[derive(Deserialize)]
struct SettingsFile {
    permissions: Permissions,
}

#[derive(Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct Permissions {
    allow: Vec<String>,
    ask: Vec<String>,
    deny: Vec<String>,
    default_mode: Option<String>,
}

#[derive(Debug, Default, PartialEq, Eq)]
struct Imported {
    mode: Option<&'static str>,
    deny: Vec<String>,
    ask: Vec<String>,
    allow: Vec<String>,
    notes: Vec<String>,
}

impl Imported {
    fn of(text: &str) -> anyhow::Result<Self> {
        let SettingsFile { permissions } = serde_json::from_str(text)?;
        let mut imported = Self::default();
        let lists = [
            (Verdict::Deny, &permissions.deny),
            (Verdict::Ask, &permissions.ask),
            (Verdict::Allow, &permissions.allow),
        ];
        for (verdict, rules) in lists {
            for rule in rules {
                imported.add(verdict, rule);
            }
        }
        imported.mode = match permissions.default_mode.as_deref() {
            None => None,
            Some("default" | "manual") => Some("ask"),
            Some("dontAsk") => Some("deny"),
            Some(other) => {
                imported.notes.push(format!(
                    "the mode `{other}` has no like here; the mode stays `ask`, which lets run what provably only reads"
                ));
                Some("ask")
            }
        };
        Ok(imported)
    }

    fn add(&mut self, verdict: Verdict, rule: &str) {
        let (name, spec) = match rule.split_once('(') {
            Some((name, rest)) => (name, Some(rest.strip_suffix(')').unwrap_or(rest))),
            None => (rule, None),
        };
        let files = |tools: &[&str]| tools.iter().map(|tool| format!("files.{tool}")).collect();
        let (rules, is_whole): (Vec<String>, bool) = match (name, spec) {
            ("WebFetch", None) => (vec!["fetch.fetch".into()], true),
            ("WebFetch", Some(spec)) => match spec.strip_prefix("domain:") {
                Some(domain) => (vec![format!("fetch.fetch(url:https://{domain}/**)")], true),
                None => (vec!["fetch.fetch".into()], false),
            },
            ("Read" | "Grep" | "Glob", spec) => {
                let tools = ["list_files", "read_file", "search_files"];
                (files(&tools), spec.is_none())
            }
            ("Edit" | "Write" | "MultiEdit", spec) => {
                (files(&["write_file", "edit_file"]), spec.is_none())
            }
            (name, spec) => match name.strip_prefix("mcp__") {
                Some(name) => match name.split_once("__") {
                    Some((server, tool)) => (vec![format!("{server}.{tool}")], spec.is_none()),
                    None => (vec![format!("{name}.*")], spec.is_none()),
                },
                None => {
                    self.notes.push(format!(
                        "{} `{rule}`: there is no tool like `{name}` here",
                        verdict.as_str()
                    ));
                    return;
                }
            },
        };
        if !is_whole {
            match verdict {
                Verdict::Allow => {
                    self.notes.push(format!(
                        "allow `{rule}`: paths and arguments are the tool's own here, so it is left out; write it yourself, such as `{}(path:/notes/**)`",
                        rules.last().map_or("files.read_file", String::as_str)
                    ));
                    return;
                }
                Verdict::Ask | Verdict::Deny => self.notes.push(format!(
                    "{} `{rule}`: it is about the whole tool here, since paths and arguments are the tool's own",
                    verdict.as_str()
                )),
            }
        }
        for new in rules {
            if let Err(error) = Rule::parse(&new) {
                self.notes
                    .push(format!("{} `{rule}`: {error}", verdict.as_str()));
                continue;
            }
            let list = match verdict {
                Verdict::Deny => &mut self.deny,
                Verdict::Ask => &mut self.ask,
                Verdict::Allow => &mut self.allow,
            };
            if !list.contains(&new) {
                list.push(new);
            }
        }
    }

    fn lines(&self) -> String {
        let mut text = "[permissions]\n".to_owned();
        if let Some(mode) = self.mode {
            text.push_str(&format!("mode = \"{mode}\"\n"));
        }
        for (key, rules) in [
            ("deny", &self.deny),
            ("ask", &self.ask),
            ("allow", &self.allow),
        ] {
            if !rules.is_empty() {
                let rules: Vec<toml::Value> =
                    rules.iter().map(|rule| rule.as_str().into()).collect();
                text.push_str(&format!("{key} = {}\n", toml::Value::Array(rules)));
            }
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_can_be_said_here_is_and_nothing_is_allowed_that_was_not() {
        let imported = Imported::of(
            r#"{
                "permissions": {
                    "allow": ["WebFetch(domain:docs.rs)", "mcp__github__get_issue", "mcp__jira", "Read(./docs/**)",
                              "Read", "Bash(npm run *)", "mcp__a__b c"],
                    "ask": ["Edit(./src/**)"],
                    "deny": ["WebFetch", "Read(./.env)", "Write"],
                    "defaultMode": "acceptEdits"
                },
                "other": 1
            }"#,
        )
        .unwrap();
        assert_eq!(
            imported.allow,
            [
                "fetch.fetch(url:https://docs.rs/**)",
                "github.get_issue",
                "jira.*",
                "files.list_files",
                "files.read_file",
                "files.search_files",
            ]
        );
        assert_eq!(imported.ask, ["files.write_file", "files.edit_file"]);
        // A part of it was forbidden, and all of it is.
        assert_eq!(
            imported.deny,
            [
                "fetch.fetch",
                "files.list_files",
                "files.read_file",
                "files.search_files",
                "files.write_file",
                "files.edit_file",
            ]
        );
        assert_eq!(imported.mode, Some("ask"));
        let notes = imported.notes.join("\n");
        for words in [
            "allow `Read(./docs/**)`",
            "allow `Bash(npm run *)`: there is no tool like `Bash`",
            "deny `Read(./.env)`: it is about the whole tool",
            "ask `Edit(./src/**)`",
            "allow `mcp__a__b c`",
            "`acceptEdits` has no like",
        ] {
            assert!(notes.contains(words), "no `{words}` in {notes}");
        }
        let lines = imported.lines();
        let table: toml::Table = lines.parse().unwrap();
        assert_eq!(
            table["permissions"]["ask"][0].as_str(),
            Some("files.write_file")
        );
    }

    #[test]
    fn modes_and_files_that_are_none() {
        let mode = |mode: &str| {
            let text = format!(r#"{{"permissions": {{"defaultMode": "{mode}"}}}}"#);
            Imported::of(&text).unwrap().mode
        };
        assert_eq!(mode("default"), Some("ask"));
        assert_eq!(mode("dontAsk"), Some("deny"));
        assert_eq!(mode("bypassPermissions"), Some("ask"), "never looser");
        assert_eq!(Imported::of(r#"{"permissions": {}}"#).unwrap().mode, None);
        for text in ["", "{}", "[]", r#"{"permissions": {"allow": "x"}}"#] {
            assert!(Imported::of(text).is_err(), "{text}");
        }
    }
}
