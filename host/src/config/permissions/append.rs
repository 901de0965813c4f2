//! Writes the rule of an "always" into the operator's file.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use toml_edit::{Array, DocumentMut, InlineTable, Item, Table, Value};

use super::{InvalidRule, Rule};
use crate::{config::write_atomically, ids::PluginName};

/// Why a rule could not be written. The file is as it was.
#[derive(Debug, thiserror::Error)]
pub enum AppendError {
    #[error(transparent)]
    Rule(#[from] InvalidRule),
    #[error("cannot read `{}`", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("`{}` is not valid TOML; correct it, then try again", path.display())]
    Syntax {
        path: PathBuf,
        source: toml_edit::TomlError,
    },
    #[error(
        "`{key}` in `{}` is not {wanted}; correct it, then try again", path.display()
    )]
    Shape {
        path: PathBuf,
        key: &'static str,
        wanted: &'static str,
    },
    #[error("cannot write `{}`", path.display())]
    Write { path: PathBuf, source: io::Error },
}

/// Adds an allow rule to the `[permissions]` of a settings file and keeps everything else in it, comments
/// included. A file that is not there is made; a rule that is there already is not repeated.
///
/// The content of a project file changes with this, and trust in it ends: use
/// `trust::TrustStore::append_allow` for those.
pub fn append_allow(path: &Path, rule: &str) -> Result<(), AppendError> {
    let rule = Rule::parse(rule)?;
    let text = match fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
        Err(source) => {
            return Err(AppendError::Read {
                path: path.into(),
                source,
            });
        }
    };
    let text = with_allow_rule(path, &text, &rule)?;
    write_atomically(path, text.as_bytes()).map_err(|source| AppendError::Write {
        path: path.into(),
        source,
    })
}

/// The text of a settings file with one more allow rule. `path` is for messages.
pub(in crate::config) fn with_allow_rule(
    path: &Path,
    text: &str,
    rule: &Rule,
) -> Result<String, AppendError> {
    let mut document = parsed(path, text)?;
    let shape = |key, wanted| AppendError::Shape {
        path: path.into(),
        key,
        wanted,
    };
    // comments of a file that sets nothing would end up behind what is added
    let mut table = Table::new();
    if document.is_empty() {
        let comments = document.trailing().as_str().unwrap_or_default().to_owned();
        table.decor_mut().set_prefix(comments);
        document.set_trailing("");
    }
    let permissions = document
        .entry("permissions")
        .or_insert_with(|| Item::Table(table))
        .as_table_like_mut()
        .ok_or_else(|| shape("permissions", "a table"))?;
    let allow = permissions
        .entry("allow")
        .or_insert_with(|| Item::Value(Value::Array(Array::new())))
        .as_array_mut()
        .ok_or_else(|| shape("permissions.allow", "a list"))?;
    if !allow
        .iter()
        .any(|known| known.as_str() == Some(rule.as_str()))
    {
        push_in_style(allow, rule.as_str());
    }
    Ok(document.to_string())
}

/// What `grant` adds to the `[grants.NAME]` of a plugin.
#[derive(Debug, Clone, Default)]
pub struct GrantLines {
    /// Path, guest path, and whether it may write.
    pub folders: Vec<(String, String, bool)>,
    /// Origin and methods.
    pub http: Vec<(String, Vec<String>)>,
    pub environment: Vec<String>,
    pub secrets: Vec<String>,
}

impl GrantLines {
    pub fn is_empty(&self) -> bool {
        self.folders.is_empty()
            && self.http.is_empty()
            && self.environment.is_empty()
            && self.secrets.is_empty()
    }

    /// The lines as they would stand in a file that says nothing else of the plugin.
    pub fn in_toml(&self, plugin: &PluginName) -> String {
        with_grants(Path::new(""), "", plugin, self).unwrap_or_default()
    }

    fn values(&self) -> [(&'static str, Vec<Value>); 4] {
        let folders = self.folders.iter().map(|(path, guest, writes)| {
            let mut table = InlineTable::new();
            table.insert("path", path.as_str().into());
            table.insert("as", guest.as_str().into());
            if *writes {
                table.insert("access", "write".into());
            }
            table.into()
        });
        let http = self.http.iter().map(|(origin, methods)| {
            if methods.is_empty() {
                return origin.as_str().into();
            }
            let mut table = InlineTable::new();
            table.insert("origin", origin.as_str().into());
            let methods: Array = methods.iter().map(String::as_str).collect();
            table.insert("methods", methods.into());
            table.into()
        });
        let environment = self.environment.iter().map(|name| name.as_str().into());
        let secrets = self.secrets.iter().map(|name| name.as_str().into());
        [
            ("folders", folders.collect()),
            ("http", http.collect()),
            ("env", environment.collect()),
            ("secrets", secrets.collect()),
        ]
    }
}

/// The text of a settings file with more grants for a plugin; what is granted already is not repeated.
pub(in crate::config) fn with_grants(
    path: &Path,
    text: &str,
    plugin: &PluginName,
    lines: &GrantLines,
) -> Result<String, AppendError> {
    let mut document = parsed(path, text)?;
    let shape = |key, wanted| AppendError::Shape {
        path: path.into(),
        key,
        wanted,
    };
    let implicit = || {
        let mut table = Table::new();
        table.set_implicit(true);
        Item::Table(table)
    };
    let grants = document
        .entry("grants")
        .or_insert_with(implicit)
        .as_table_like_mut()
        .ok_or_else(|| shape("grants", "a table"))?;
    let own = grants
        .entry(plugin.as_str())
        .or_insert_with(|| Item::Table(Table::new()))
        .as_table_like_mut()
        .ok_or_else(|| shape("grants", "a table of tables"))?;
    for (key, values) in lines.values() {
        if values.is_empty() {
            continue;
        }
        let list = own
            .entry(key)
            .or_insert_with(|| Item::Value(Value::Array(Array::new())))
            .as_array_mut()
            .ok_or_else(|| shape(key, "a list"))?;
        for value in values {
            let is_known = |known: &Value| known.to_string().trim() == value.to_string().trim();
            if !list.iter().any(is_known) {
                list.push(value);
            }
        }
    }
    Ok(document.to_string())
}

/// The text of a settings file without any grants for a plugin.
pub(in crate::config) fn without_grants(
    path: &Path,
    text: &str,
    plugin: &PluginName,
) -> Result<String, AppendError> {
    let mut document = parsed(path, text)?;
    let grants = document.get_mut("grants").and_then(Item::as_table_like_mut);
    if let Some(grants) = grants {
        grants.remove(plugin.as_str());
    }
    Ok(document.to_string())
}

fn parsed(path: &Path, text: &str) -> Result<DocumentMut, AppendError> {
    text.parse().map_err(|source| AppendError::Syntax {
        path: path.into(),
        source,
    })
}

/// Pushes as the list is written: on a line of its own where the others have one. A comment that follows the
/// last comma belongs to the rule before it and stays there.
fn push_in_style(list: &mut Array, text: &str) {
    let indent = (list.iter().last())
        .and_then(|last| last.decor().prefix()?.as_str())
        .and_then(|prefix| prefix.rsplit_once('\n'))
        .map(|(_, indent)| indent.to_owned());
    match indent {
        Some(indent) => {
            let trailing = list
                .trailing()
                .as_str()
                .unwrap_or_default()
                .trim_end()
                .to_owned();
            list.push_formatted(Value::from(text).decorated(format!("{trailing}\n{indent}"), ""));
            list.set_trailing("\n");
        }
        None => list.push(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn add(text: &str, rule: &str) -> String {
        with_allow_rule(
            Path::new("agentloop.toml"),
            text,
            &Rule::parse(rule).unwrap(),
        )
        .unwrap()
    }

    #[test]
    fn a_rule_joins_the_list_and_comments_stay() {
        assert_eq!(add("", "calc.*"), "[permissions]\nallow = [\"calc.*\"]\n");
        assert_eq!(
            add(
                "# mine\nmodel = \"m\" # why\n\n[permissions]\n# careful\nmode = \"deny\"\n",
                "a.b"
            ),
            "# mine\nmodel = \"m\" # why\n\n[permissions]\n# careful\nmode = \"deny\"\nallow = [\"a.b\"]\n"
        );
        assert_eq!(
            add("permissions = { allow = [\"a.b\"] }\n", "c.d"),
            "permissions = { allow = [\"a.b\", \"c.d\"] }\n"
        );
        assert_eq!(
            add(
                "permissions.allow = [\n  # first\n  \"a.b\", # one\n]\n",
                "c.d(x:\"1\")"
            ),
            "permissions.allow = [\n  # first\n  \"a.b\", # one\n  'c.d(x:\"1\")',\n]\n"
        );
    }

    #[test]
    fn a_rule_is_not_repeated() {
        let text = "[permissions]\nallow = [ \"a.b\" ] # kept as it is\n";
        assert_eq!(add(text, "a.b"), text);
    }

    #[test]
    fn a_file_of_another_shape_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("agentloop.toml");
        for (text, wanted) in [
            ("permissions = 3\n", "is not a table"),
            ("[permissions]\nallow = \"a.b\"\n", "is not a list"),
            ("[permissions\n", "is not valid TOML"),
        ] {
            fs::write(&path, text).unwrap();
            let error = append_allow(&path, "a.b").unwrap_err().to_string();
            assert!(error.contains(wanted), "{error}");
            assert_eq!(fs::read_to_string(&path).unwrap(), text);
        }
        assert!(matches!(
            append_allow(&path, "a b").unwrap_err(),
            AppendError::Rule(_)
        ));
    }
}
