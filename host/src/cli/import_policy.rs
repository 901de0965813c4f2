//! `import-policy`: what a component was allowed in wassette, as grants of this host. It only prints: nothing is
//! granted until the operator puts the lines into settings. What can't be said here as narrowly as there is left
//! out and named, never widened.

use std::{
    fs::File,
    io::Read as _,
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::{Context as _, bail};
use saphyr::{LoadableYamlNode as _, Yaml};

use super::{
    terminal::{caution, harmless},
    write,
};
use crate::{capability::OriginPattern, ids::PluginName};

/// Largest policy that is read.
const MAX_BYTES: u64 = 64 << 10;
/// Wassette knows hosts and no methods.
const METHODS: &str = r#"["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]"#;

#[derive(Debug, clap::Args)]
pub struct ImportPolicyArgs {
    /// A policy in YAML, such as NAME.policy.yaml
    file: PathBuf,
    /// The plugin that it is for; the file's NAME unless said
    #[arg(long, value_name = "NAME")]
    plugin: Option<String>,
}

pub fn run(args: &ImportPolicyArgs) -> anyhow::Result<ExitCode> {
    let plugin = match &args.plugin {
        Some(name) => PluginName::parse(name)?,
        None => plugin_of(&args.file)?,
    };
    let file = args.file.display();
    let mut text = String::new();
    File::open(&args.file)
        .and_then(|file| file.take(MAX_BYTES + 1).read_to_string(&mut text))
        .with_context(|| format!("can't read `{file}`"))?;
    if text.len() as u64 > MAX_BYTES {
        bail!("`{file}` is larger than {MAX_BYTES} bytes, so it is no policy");
    }
    let imported = Imported::of(&text).with_context(|| format!("can't use `{file}`"))?;
    for note in &imported.notes {
        eprintln!("{} {}", caution().apply_to("note:"), harmless(note));
    }
    write::stdout(&harmless(&imported.lines(&plugin)))?;
    Ok(ExitCode::SUCCESS)
}

fn plugin_of(file: &Path) -> anyhow::Result<PluginName> {
    let stem = file.file_stem().unwrap_or_default().to_string_lossy();
    match stem.strip_suffix(".policy").unwrap_or(&stem) {
        "policy" | "" => bail!("say which plugin it is for, with `--plugin NAME`"),
        name => Ok(PluginName::of_file_stem(name)),
    }
}

/// What of a policy can be carried over, each as a value of TOML, and what can't.
#[derive(Debug, Default, PartialEq, Eq)]
struct Imported {
    folders: Vec<String>,
    http: Vec<String>,
    environment: Vec<String>,
    notes: Vec<String>,
}

impl Imported {
    fn of(text: &str) -> anyhow::Result<Self> {
        let documents = Yaml::load_from_str(text)?;
        let [policy] = documents.as_slice() else {
            bail!("it holds {} documents instead of one", documents.len());
        };
        let Some(permissions) = policy.as_mapping_get("permissions") else {
            bail!("it has no `permissions`");
        };
        let version = policy.as_mapping_get("version");
        match version.map(|version| version.as_str()) {
            Some(Some(version)) if version.starts_with("1.") => {}
            Some(_) => bail!("its `version` is not \"1.0\" or another of the first format"),
            None => bail!("it has no `version`"),
        }
        let mut imported = Self::default();
        imported.unknown(
            permissions,
            "",
            &[
                "storage",
                "network",
                "environment",
                "resources",
                "runtime",
                "ipc",
            ],
        );
        for kind in ["storage", "network", "environment"] {
            let Some(lists) = permissions.as_mapping_get(kind) else {
                continue;
            };
            let prefix = format!("{kind}.");
            // Variables are only ever allowed.
            let known: &[&str] = match kind {
                "environment" => &["allow"],
                _ => &["allow", "deny"],
            };
            imported.unknown(lists, &prefix, known);
        }
        imported.storage(permissions);
        imported.network(permissions);
        imported.environment(permissions);
        for part in ["resources", "runtime", "ipc"] {
            if permissions.as_mapping_get(part).is_some() {
                imported.note(format!(
                    "`{part}` is left out; limits of a plugin are settings of their own"
                ));
            }
        }
        Ok(imported)
    }

    /// Notes what nobody here knows, since it could have been a restriction.
    fn unknown(&mut self, within: &Yaml<'_>, prefix: &str, known: &[&str]) {
        for (key, _) in within.as_mapping().into_iter().flatten() {
            let key = key.as_str().unwrap_or("?");
            if !known.contains(&key) {
                self.note(format!(
                    "`{prefix}{key}` is not known here, and is left out"
                ));
            }
        }
    }

    fn note(&mut self, note: String) {
        self.notes.push(note);
    }

    fn storage(&mut self, permissions: &Yaml<'_>) {
        let denied: Vec<_> = entries(permissions, "storage", "deny")
            .map(|entry| text(entry, "uri").and_then(folder))
            .collect();
        for entry in entries(permissions, "storage", "allow") {
            let Some(uri) = text(entry, "uri") else {
                self.note("an entry of `storage.allow` has no `uri`".to_owned());
                continue;
            };
            let Some(path) = folder(uri) else {
                self.note(format!(
                    "`{uri}` is left out: a grant opens a whole folder, and this is a pattern; grant the folder above it if that may be"
                ));
                continue;
            };
            // A pattern that is denied could lie anywhere.
            let overlaps = |denied: &Option<&str>| {
                denied.is_none_or(|denied| {
                    Path::new(denied).starts_with(path) || Path::new(path).starts_with(denied)
                })
            };
            if denied.iter().any(overlaps) {
                self.note(format!(
                    "`{uri}` is left out: a part of it is denied, and a grant has no exceptions"
                ));
                continue;
            }
            let access = entry
                .as_mapping_get("access")
                .and_then(|access| access.as_vec())
                .map_or(&[][..], |words| words.as_slice());
            let says = |word: &str| access.iter().any(|a| a.as_str() == Some(word));
            // Whoever may write here may read.
            let access = match (says("read"), says("write")) {
                (true, true) => "write",
                (true, false) => "read",
                (false, true) => {
                    self.note(format!(
                        "`{uri}` is left out: it is to be written and not read, and a grant that writes reads as well"
                    ));
                    continue;
                }
                (false, false) => {
                    self.note(format!(
                        "`{uri}` is left out: its `access` names neither `read` nor `write`"
                    ));
                    continue;
                }
            };
            let inside = format!("/{}", path.trim_matches('/'));
            self.folders.push(format!(
                "{{ path = {}, as = {}, access = \"{access}\" }}",
                quoted(path),
                quoted(&inside)
            ));
        }
    }

    fn network(&mut self, permissions: &Yaml<'_>) {
        let denied: Vec<_> = entries(permissions, "network", "deny").collect();
        for entry in entries(permissions, "network", "allow") {
            let Some(host) = text(entry, "host") else {
                let what =
                    text(entry, "cidr").map_or("an entry".to_owned(), |cidr| format!("`{cidr}`"));
                self.note(format!(
                    "{what} of `network.allow` is left out: only hosts that are named can be granted"
                ));
                continue;
            };
            if host == "*" {
                self.note("`*` is left out: name the hosts that it needs".to_owned());
                continue;
            }
            let origin = match host.contains("://") {
                true => host.to_owned(),
                false => format!("https://{host}"),
            };
            let pattern = match OriginPattern::parse(&origin) {
                Ok(pattern) => pattern,
                Err(error) => {
                    self.note(format!("`{host}` is left out: {error}"));
                    continue;
                }
            };
            let narrowed = denied.iter().any(|denied| match text(denied, "host") {
                Some(denied) => touches(host, denied),
                // A range of addresses: nobody can tell which names it means.
                None => true,
            });
            if narrowed {
                self.note(format!(
                    "`{host}` is left out: a part of it is denied, and a grant has no exceptions"
                ));
                continue;
            }
            self.http.push(format!(
                "{{ origin = {}, methods = {METHODS} }}",
                quoted(&pattern.to_string())
            ));
        }
        if !self.http.is_empty() {
            self.note(
                "hosts are granted for https alone; write the origin as `http://HOST` where it has to be that"
                    .to_owned(),
            );
        }
    }

    fn environment(&mut self, permissions: &Yaml<'_>) {
        for entry in entries(permissions, "environment", "allow") {
            match text(entry, "key") {
                Some(key) if !key.contains('*') => self.environment.push(quoted(key)),
                Some(key) => self.note(format!(
                    "`{key}` is left out: variables are granted one by one"
                )),
                None => self.note("an entry of `environment.allow` has no `key`".to_owned()),
            }
        }
    }

    fn lines(&self, plugin: &PluginName) -> String {
        let mut lines = format!("[grants.{plugin}]\n");
        for (key, values) in [
            ("folders", &self.folders),
            ("http", &self.http),
            ("env", &self.environment),
        ] {
            if !values.is_empty() {
                lines.push_str(&format!("{key} = [\n"));
                for value in values {
                    lines.push_str(&format!("    {value},\n"));
                }
                lines.push_str("]\n");
            }
        }
        lines
    }
}

fn entries<'a, 'y>(
    permissions: &'a Yaml<'y>,
    kind: &str,
    list: &str,
) -> impl Iterator<Item = &'a Yaml<'y>> + use<'a, 'y> {
    permissions
        .as_mapping_get(kind)
        .and_then(|kind| kind.as_mapping_get(list))
        .and_then(|list| list.as_vec())
        .map_or(&[][..], |list| list.as_slice())
        .iter()
}

fn text<'a>(entry: &'a Yaml<'_>, key: &str) -> Option<&'a str> {
    entry.as_mapping_get(key)?.as_str()
}

/// The folder of `fs://PATH`, `fs://PATH/**` or `fs://PATH/*`; `None` for other patterns.
fn folder(uri: &str) -> Option<&str> {
    let path = uri.strip_prefix("fs://")?;
    let path = path
        .strip_suffix("/**")
        .or_else(|| path.strip_suffix("/*"))
        .unwrap_or(path);
    let whole = !path.contains('*') && !path.split('/').any(|part| part == "..");
    let path = if path.is_empty() { "/" } else { path };
    whole.then_some(path)
}

/// Whether a denied host lies within an allowed one, or the other way round.
fn touches(allowed: &str, denied: &str) -> bool {
    let bare = |host: &str| -> String {
        let host = host.split_once("://").map_or(host, |(_, host)| host);
        let host = host.strip_prefix('*').unwrap_or(host);
        host.to_ascii_lowercase()
    };
    let (allowed, denied) = (bare(allowed), bare(denied));
    allowed.ends_with(&denied) || denied.ends_with(&allowed)
}

/// As a TOML string.
fn quoted(text: &str) -> String {
    toml::Value::from(text).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn imported(permissions: &str) -> Imported {
        Imported::of(&format!("version: \"1.0\"\npermissions:\n{permissions}")).unwrap()
    }

    #[test]
    fn what_can_be_said_is_carried_over() {
        let imported = imported(
            r#"
  storage:
    allow:
    - uri: "fs:///srv/notes/**"
      access: ["read", "write"]
    - uri: fs://data
      access: [read]
  network:
    allow:
    - host: "api.example.org"
    - host: "*.example.net"
  environment:
    allow:
    - key: API_KEY
"#,
        );
        assert_eq!(
            imported.lines(&PluginName::parse("p").unwrap()),
            r#"[grants.p]
folders = [
    { path = "/srv/notes", as = "/srv/notes", access = "write" },
    { path = "data", as = "/data", access = "read" },
]
http = [
    { origin = "https://api.example.org", methods = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"] },
    { origin = "https://*.example.net", methods = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"] },
]
env = [
    "API_KEY",
]
"#
        );
        assert_eq!(imported.notes.len(), 1, "https alone");
    }

    #[test]
    fn what_would_be_wider_is_left_out_and_named() {
        for (permissions, left_out) in [
            (
                "  storage:\n    allow: [{uri: 'fs://a/*/b', access: [read]}]",
                "fs://a/*/b",
            ),
            (
                "  storage:\n    allow: [{uri: 'fs://../b', access: [read]}]",
                "fs://../b",
            ),
            (
                "  storage:\n    allow: [{uri: 'fs:///a/**', access: [read]}]\n    deny: [{uri: 'fs:///a/secret/**', access: [read]}]",
                "fs:///a/**",
            ),
            (
                "  storage:\n    allow: [{uri: 'fs:///a', access: [read]}]\n    deny: [{uri: 'fs://*/x', access: [read]}]",
                "fs:///a",
            ),
            ("  network:\n    allow: [{host: '*'}]", "`*`"),
            ("  network:\n    allow: [{cidr: 10.0.0.0/8}]", "10.0.0.0/8"),
            ("  network:\n    allow: [{defaults: true}]", "an entry"),
            (
                "  network:\n    allow: [{host: '*.a.org'}]\n    deny: [{host: bad.a.org}]",
                "*.a.org",
            ),
            ("  environment:\n    allow: [{key: 'A_*'}]", "A_*"),
            (
                "  storage:\n    allow: [{uri: 'fs:///a', access: [write]}]",
                "not read",
            ),
            ("  storage:\n    allow: [{uri: 'fs:///a'}]", "`access`"),
            (
                "  storage:\n    allow: [{uri: 'fs:///a', access: [execute]}]",
                "`access`",
            ),
            ("  environment:\n    deny: [{key: A}]", "environment.deny"),
            ("  devices: {gpu: true}", "devices"),
            (
                "  runtime: {docker: {security: {privileged: true}}}",
                "runtime",
            ),
            ("  ipc: {allow: [{uri: 'ipc://x'}]}", "ipc"),
            ("  resources: {memory: 64}", "resources"),
        ] {
            let imported = imported(permissions);
            assert_eq!(imported.notes.len(), 1, "{permissions}: {imported:?}");
            assert!(imported.notes[0].contains(left_out), "{imported:?}");
            let lines = imported.lines(&PluginName::parse("p").unwrap());
            assert_eq!(lines, "[grants.p]\n", "{permissions}");
        }
    }

    #[test]
    fn other_files_are_refused() {
        let other = "version: \"2.0\"\npermissions: {}";
        for text in [
            "",
            "version: 1",
            "a: [",
            "--- 1\n--- 2\n",
            "permissions: {}",
            other,
        ] {
            assert!(Imported::of(text).is_err(), "{text}");
        }
    }

    #[test]
    fn the_files_name_is_the_plugins() {
        assert_eq!(
            plugin_of(Path::new("a/fetch.policy.yaml"))
                .unwrap()
                .as_str(),
            "fetch"
        );
        assert_eq!(
            plugin_of(Path::new("fetch.yaml")).unwrap().as_str(),
            "fetch"
        );
        assert!(plugin_of(Path::new("policy.yaml")).is_err());
    }
}
