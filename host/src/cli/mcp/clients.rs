//! How MCP clients are told to start this program: whose settings look how, and where they are.

use std::{
    fs, io,
    path::{Path, PathBuf},
    time::Duration,
};

use clap::ValueEnum;
use serde_json::{Map, Value, json};

use crate::cli::write;

/// How long a stop waits for calls and the client's pipes to be wound up.
pub(super) const PATIENCE: Duration = Duration::from_secs(3);

/// A program that starts MCP servers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Client {
    ClaudeDesktop,
    ClaudeCode,
    Cursor,
    Vscode,
    Zed,
    Goose,
    Codex,
}

/// What a client is to start.
#[derive(Debug, Clone)]
pub(super) struct Launch {
    pub(super) command: String,
    pub(super) args: Vec<String>,
}

/// Why the entry could not be put into the client's settings.
#[derive(Debug, thiserror::Error)]
pub(super) enum InstallError {
    #[error(
        "can't find this user's home folder, and with it the client's settings; name the file with `--file`"
    )]
    NoHome(#[from] etcetera::HomeDirError),
    #[error("can't read {file}: {source}")]
    Read { file: String, source: io::Error },
    #[error("can't write {file}: {source}")]
    Write { file: String, source: io::Error },
    #[error("{file} can't be changed without risk to what it holds ({why}); add by hand:\n{entry}")]
    NotMine {
        file: String,
        why: String,
        entry: String,
    },
}

impl Client {
    /// Where this user's settings of the client are, or those of this folder where the client goes by folders.
    pub(super) fn file(self) -> Result<PathBuf, InstallError> {
        let home = etcetera::home_dir()?;
        // Where programs with windows keep their settings.
        let windows_or_mac = || {
            if cfg!(target_os = "macos") {
                home.join("Library/Application Support")
            } else if cfg!(windows) {
                home.join("AppData/Roaming")
            } else {
                xdg_config(&home)
            }
        };
        Ok(match self {
            Self::ClaudeDesktop => windows_or_mac().join("Claude/claude_desktop_config.json"),
            Self::ClaudeCode => PathBuf::from(".mcp.json"),
            Self::Cursor => home.join(".cursor/mcp.json"),
            Self::Vscode => PathBuf::from(".vscode/mcp.json"),
            Self::Zed => {
                if cfg!(windows) {
                    home.join("AppData/Roaming/Zed/settings.json")
                } else {
                    xdg_config(&home).join("zed/settings.json")
                }
            }
            Self::Goose => xdg_config(&home).join("goose/config.yaml"),
            Self::Codex => home.join(".codex/config.toml"),
        })
    }

    /// The whole file with nothing but the entry.
    pub(super) fn entry(self, name: &str, launch: &Launch) -> String {
        match self {
            Self::Goose => format!("extensions:\n{}", yaml(name, launch, "  ")),
            Self::Codex => {
                let mut document = toml_edit::DocumentMut::new();
                toml(&mut document, name, launch);
                document.to_string()
            }
            Self::ClaudeDesktop | Self::ClaudeCode | Self::Cursor | Self::Vscode | Self::Zed => {
                let mut document = Map::new();
                self.json(&mut document, name, launch);
                format!("{:#}\n", Value::Object(document))
            }
        }
    }

    /// Puts the entry among those of a file in JSON; false where its servers are not an object.
    fn json(self, document: &mut Map<String, Value>, name: &str, launch: &Launch) -> bool {
        let Launch { command, args } = launch;
        let (key, entry) = match self {
            Self::Vscode => (
                "servers",
                json!({"type": "stdio", "command": command, "args": args}),
            ),
            Self::ClaudeCode => (
                "mcpServers",
                json!({"type": "stdio", "command": command, "args": args}),
            ),
            Self::Zed => (
                "context_servers",
                json!({"source": "custom", "command": command, "args": args, "env": {}}),
            ),
            Self::ClaudeDesktop | Self::Cursor | Self::Goose | Self::Codex => {
                ("mcpServers", json!({"command": command, "args": args}))
            }
        };
        let servers = document
            .entry(key)
            .or_insert_with(|| Value::Object(Map::new()));
        let Value::Object(servers) = servers else {
            return false;
        };
        servers.insert(name.to_owned(), entry);
        true
    }
}

fn xdg_config(home: &Path) -> PathBuf {
    std::env::var_os("XDG_CONFIG_HOME")
        .map(PathBuf::from)
        .filter(|path| path.is_absolute())
        .unwrap_or_else(|| home.join(".config"))
}

/// Puts the entry into the client's settings, in the place of an earlier one of the same name.
pub(super) fn install(
    client: Client,
    file: &Path,
    name: &str,
    launch: &Launch,
) -> Result<(), InstallError> {
    let shown = || file.display().to_string();
    let old = match fs::read_to_string(file) {
        Ok(old) => old,
        Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
        Err(source) => {
            return Err(InstallError::Read {
                file: shown(),
                source,
            });
        }
    };
    let new = merged(client, &old, name, launch).map_err(|why| InstallError::NotMine {
        file: shown(),
        why,
        entry: client.entry(name, launch),
    })?;
    // A link to where the settings really are stays one.
    let target = fs::canonicalize(file).unwrap_or_else(|_| file.to_owned());
    write::file(&target, new.as_bytes()).map_err(|source| InstallError::Write {
        file: shown(),
        source,
    })
}

fn merged(client: Client, old: &str, name: &str, launch: &Launch) -> Result<String, String> {
    if old.trim().is_empty() {
        return Ok(client.entry(name, launch));
    }
    match client {
        Client::Codex => {
            let mut document: toml_edit::DocumentMut =
                old.parse().map_err(|_| "it is not TOML".to_owned())?;
            if !toml(&mut document, name, launch) {
                return Err("its `mcp_servers` is not a table".into());
            }
            Ok(document.to_string())
        }
        Client::Goose => merged_yaml(old, name, launch),
        Client::ClaudeDesktop
        | Client::ClaudeCode
        | Client::Cursor
        | Client::Vscode
        | Client::Zed => {
            let document: Value = serde_json::from_str(old)
                .map_err(|_| "it is not plain JSON; comments would be lost".to_owned())?;
            let Value::Object(mut document) = document else {
                return Err("it is not a JSON object".into());
            };
            if !client.json(&mut document, name, launch) {
                return Err("its list of servers is not an object".into());
            }
            Ok(format!("{:#}\n", Value::Object(document)))
        }
    }
}

/// Puts the entry into a document in TOML; false where its servers are not a table.
fn toml(document: &mut toml_edit::DocumentMut, name: &str, launch: &Launch) -> bool {
    let servers = document.entry("mcp_servers").or_insert_with(|| {
        let mut table = toml_edit::Table::new();
        table.set_implicit(true);
        toml_edit::Item::Table(table)
    });
    let Some(servers) = servers.as_table_mut() else {
        return false;
    };
    let mut entry = toml_edit::Table::new();
    entry["command"] = toml_edit::value(&launch.command);
    entry["args"] = toml_edit::value(launch.args.iter().collect::<toml_edit::Array>());
    servers[name] = toml_edit::Item::Table(entry);
    true
}

/// A JSON text is YAML too, quotes and all.
fn yaml(name: &str, launch: &Launch, indent: &str) -> String {
    let fields = [
        ("name", json!(name)),
        ("type", json!("stdio")),
        ("enabled", json!(true)),
        ("cmd", json!(launch.command)),
        ("args", json!(launch.args)),
        ("timeout", json!(300)),
    ];
    let mut text = format!("{indent}{}:\n", json!(name));
    for (key, value) in fields {
        text.push_str(&format!("{indent}{indent}{key}: {value}\n"));
    }
    text
}

/// Below `extensions:`, in the depth of what stands there already.
fn merged_yaml(old: &str, name: &str, launch: &Launch) -> Result<String, String> {
    let taken = [name.to_owned(), json!(name).to_string()];
    let is_taken = old.lines().any(|line| {
        line.starts_with(' ')
            && line
                .trim()
                .strip_suffix(':')
                .is_some_and(|key| taken.iter().any(|taken| taken == key))
    });
    if is_taken {
        return Err(format!("it seems to have a `{name}` already"));
    }
    let mut new = String::new();
    let mut lines = old.lines().peekable();
    let mut is_in = false;
    while let Some(line) = lines.next() {
        new.push_str(line);
        new.push('\n');
        if line.trim_end() == "extensions:" && !is_in {
            is_in = true;
            let next = lines.peek().copied().unwrap_or_default();
            let depth = next.len() - next.trim_start_matches(' ').len();
            let indent = if depth == 0 { 2 } else { depth };
            new.push_str(&yaml(name, launch, &" ".repeat(indent)));
        } else if line.starts_with("extensions:") && !is_in {
            return Err("its `extensions` are written in one line".into());
        }
    }
    if !is_in {
        new.push_str("extensions:\n");
        new.push_str(&yaml(name, launch, "  "));
    }
    Ok(new)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn launch() -> Launch {
        Launch {
            command: "/bin/agentloop-host".into(),
            args: vec!["--config".into(), "/p/a \"b\".toml".into(), "mcp".into()],
        }
    }

    const JSON_CLIENTS: [(Client, &str); 5] = [
        (Client::ClaudeDesktop, "mcpServers"),
        (Client::ClaudeCode, "mcpServers"),
        (Client::Cursor, "mcpServers"),
        (Client::Vscode, "servers"),
        (Client::Zed, "context_servers"),
    ];

    #[test]
    fn entries_stand_beside_what_is_there() {
        for (client, key) in JSON_CLIENTS {
            let old = format!(r#"{{"theme": "x", "{key}": {{"other": {{"command": "o"}}}}}}"#);
            let new = merged(client, &old, "tools", &launch()).unwrap();
            let new: Value = serde_json::from_str(&new).unwrap();
            assert_eq!(new["theme"], "x");
            assert_eq!(new[key]["other"]["command"], "o");
            assert_eq!(new[key]["tools"]["command"], "/bin/agentloop-host");
            assert_eq!(new[key]["tools"]["args"], json!(launch().args));
        }
    }

    #[test]
    fn what_can_not_be_merged_safely_is_left_alone() {
        for (client, old) in [
            (Client::Zed, "{ // my theme\n}"),
            (Client::Cursor, "[]"),
            (Client::Vscode, r#"{"servers": 1}"#),
            (Client::Codex, "a = "),
            (Client::Codex, "mcp_servers = 1"),
            (Client::Goose, "extensions: {}\n"),
            (Client::Goose, "extensions:\n  tools:\n    enabled: true\n"),
        ] {
            assert!(merged(client, old, "tools", &launch()).is_err(), "{old}");
        }
    }

    #[test]
    fn toml_keeps_comments_and_yaml_keeps_its_depth() {
        let old = "# mine\nmodel = \"m\"\n\n[mcp_servers.other]\ncommand = \"o\"\n";
        let new = merged(Client::Codex, old, "tools", &launch()).unwrap();
        assert!(new.starts_with(old), "{new}");
        let parsed: toml::Value = toml::from_str(&new).unwrap();
        assert_eq!(
            parsed["mcp_servers"]["tools"]["args"][1].as_str(),
            Some("/p/a \"b\".toml")
        );

        let old = "a: 1\nextensions:\n    dev:\n        enabled: true\nz: 2\n";
        let new = merged(Client::Goose, old, "tools", &launch()).unwrap();
        assert_eq!(
            new,
            "a: 1\nextensions:\n    \"tools\":\n        name: \"tools\"\n        type: \"stdio\"\n        \
             enabled: true\n        cmd: \"/bin/agentloop-host\"\n        \
             args: [\"--config\",\"/p/a \\\"b\\\".toml\",\"mcp\"]\n        timeout: 300\n    dev:\n        \
             enabled: true\nz: 2\n"
        );
        let alone = merged(Client::Goose, "a: 1\n", "tools", &launch()).unwrap();
        assert!(
            alone.contains("\nextensions:\n  \"tools\":\n    name:"),
            "{alone}"
        );
    }

    #[test]
    fn an_entry_of_the_same_name_is_replaced() {
        for client in [Client::Cursor, Client::Codex] {
            let once = merged(client, "", "tools", &launch()).unwrap();
            assert_eq!(merged(client, &once, "tools", &launch()).unwrap(), once);
        }
    }
}
