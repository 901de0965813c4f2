//! The text of a fresh settings file: every key, what it is, and its default, all commented out.

use std::fmt::Write as _;

use super::{
    key::{Default_, Entry},
    keys,
};

/// What `init` writes. As it stands it sets nothing and so allows nothing; with each `# key = value` uncommented
/// it sets exactly the defaults.
pub fn project_template() -> String {
    let mut text = String::from(
        "# Settings of this project. A line `# key = value` shows the default; remove the `# ` to change it.\n\
         # A flag or an environment variable comes before this file, the user's own file after it.\n\
         # What this file grants or loosens counts once the file, as it stands, is trusted.\n",
    );
    let mut table = "";
    for entry in keys::ALL {
        let Some((in_table, key)) = place(entry) else {
            continue;
        };
        if in_table != table {
            table = in_table;
            let _ = write!(text, "\n[{table}]");
        }
        text.push('\n');
        push_comment(&mut text, "# ", entry.doc.trim());
        let _ = match entry.default {
            Default_::Is(literal) => writeln!(text, "# {key} = {literal}"),
            Default_::Found { example } => writeln!(text, "#   for example: {key} = {example}"),
        };
    }
    text.push_str(
        "\n# What a plugin may reach on this machine, by the plugin's name; a component gets what it requests\n\
         # and is granted here, and nothing else. Paths are relative to this file.\n\
         #   for example:\n\
         #   [grants.files]\n",
    );
    let prefix = format!("grants.{}.", keys::ANY_PLUGIN);
    for (entry, key) in keys::ALL
        .iter()
        .filter_map(|entry| Some((entry, entry.path.strip_prefix(&prefix)?)))
    {
        let example = match (key, entry.default) {
            ("folders", _) => r#"[{ path = "notes", as = "/notes", access = "write" }]"#,
            ("http", _) => r#"["https://api.example.org"]"#,
            ("env", _) => r#"["HOME_CITY"]"#,
            ("secrets", _) => r#"["tickets"]"#,
            (_, Default_::Is(example) | Default_::Found { example }) => example,
        };
        push_comment(&mut text, "#   # ", entry.doc.trim());
        let _ = writeln!(text, "#   {key} = {example}");
    }
    text.push_str(
        "\n# What the host puts into requests of the plugins that are granted it, unseen by them. A value has one\n\
         # source, and one place: a header or a parameter of the query. For example:\n\
         #   [secrets.tickets]\n",
    );
    let prefix = format!("secrets.{}.", keys::ANY_PLUGIN);
    for (entry, key) in keys::ALL
        .iter()
        .filter_map(|entry| Some((entry, entry.path.strip_prefix(&prefix)?)))
    {
        let example = match (key, entry.default) {
            ("hosts", _) => r#"["api.example.org", "*.example.net"]"#,
            ("file", _) => {
                text.push_str("#   [secrets.weather]\n#   hosts = [\"api.example.net\"]\n");
                r#""weather.key""#
            }
            ("command", _) => {
                text.push_str(
                    "#   [secrets.maps]\n#   hosts = [\"maps.example.org\"]\n#   header = \"x-key\"\n",
                );
                r#"["pass", "show", "maps"]"#
            }
            (_, Default_::Is(example) | Default_::Found { example }) => example,
        };
        push_comment(&mut text, "#   # ", entry.doc.trim());
        let _ = writeln!(text, "#   {key} = {example}");
    }
    text.push_str(
        "\n# MCP servers whose tools are used as well. They run outside the sandbox, and each call is asked about\n\
         # unless a rule in `permissions` says otherwise. For example:\n\
         #   [mcp.everything]\n",
    );
    let prefix = format!("mcp.{}.", keys::ANY_PLUGIN);
    for (entry, key) in keys::ALL
        .iter()
        .filter_map(|entry| Some((entry, entry.path.strip_prefix(&prefix)?)))
    {
        let example = match (key, entry.default) {
            ("command", _) => r#"["npx", "-y", "@modelcontextprotocol/server-everything"]"#,
            // Either a command or a URL.
            ("url", _) => {
                text.push_str("#   [mcp.elsewhere]\n");
                r#""https://mcp.example.org/mcp""#
            }
            ("tools", _) => r#"["echo"]"#,
            ("env", _) => r#"["API_KEY"]"#,
            (_, Default_::Is(example) | Default_::Found { example }) => example,
        };
        push_comment(&mut text, "#   # ", entry.doc.trim());
        let _ = writeln!(text, "#   {key} = {example}");
    }
    text
}

/// Broken into lines at blanks.
fn push_comment(text: &mut String, prefix: &str, comment: &str) {
    const MAX_COLUMNS: usize = 100;
    let mut column = MAX_COLUMNS;
    for word in comment.split(' ') {
        let width = 1 + word.chars().count();
        if column + width > MAX_COLUMNS {
            if !text.ends_with('\n') {
                text.push('\n');
            }
            text.push_str(prefix);
            column = prefix.len();
        } else {
            text.push(' ');
        }
        text.push_str(word);
        column += width;
    }
    text.push('\n');
}

/// The table and the key in it, unless it is a plugin's.
fn place(entry: &Entry) -> Option<(&'static str, &'static str)> {
    if entry.path.contains(keys::ANY_PLUGIN) {
        return None;
    }
    Some(match entry.path.split_once('.') {
        Some((table, key)) => (table, key),
        None => ("", entry.path),
    })
}
