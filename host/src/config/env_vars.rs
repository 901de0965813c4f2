//! The environment variables that this program reads. There are no others.

use std::{collections::BTreeMap, ffi::OsString, fmt};

use super::{
    key::{Entry, Form},
    keys,
    node::{self, Node, Value},
    origin::{Fault, Origin, nearest},
    shown,
};

/// What every variable of this program's own begins with.
pub const PREFIX: &str = "AGENTLOOP_";

/// The project file, instead of `agentloop.toml` in the working directory.
pub const CONFIG: &str = "AGENTLOOP_CONFIG";

/// What clients of `serve` have to send.
pub const TOKEN: &str = "AGENTLOOP_TOKEN";

/// Where spans go, as OpenTelemetry specifies it; other `OTEL_` variables count as it says.
pub const OTEL_ENDPOINT: &str = "OTEL_EXPORTER_OTLP_ENDPOINT";
/// As [`OTEL_ENDPOINT`], whole.
pub const OTEL_TRACES_ENDPOINT: &str = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT";
pub const OTEL_SERVICE: &str = "OTEL_SERVICE_NAME";
pub const OTEL_DISABLED: &str = "OTEL_SDK_DISABLED";

/// A variable that is read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EnvVar {
    pub name: String,
    /// The key that it sets, if it is one.
    pub key: Option<&'static str>,
    pub doc: &'static str,
}

/// Variables with names of their own; the providers' under the names that other programs use as well.
const NAMED: [(&str, &str); 13] = [
    (
        CONFIG,
        "The project file, instead of `agentloop.toml` in the working directory.",
    ),
    (
        TOKEN,
        "The token that clients of `serve` have to send, unless `--token-file` is given.",
    ),
    ("ANTHROPIC_API_KEY", "The key of the provider `anthropic`."),
    (
        "ANTHROPIC_API_KEY_FILE",
        "A file that holds the key of the provider `anthropic`.",
    ),
    (
        "ANTHROPIC_BASE_URL",
        "Where the provider `anthropic` is reached, unless `AGENTLOOP_BASE_URL` is set.",
    ),
    ("OPENAI_API_KEY", "The key of the provider `openai`."),
    (
        "OPENAI_API_KEY_FILE",
        "A file that holds the key of the provider `openai`.",
    ),
    (
        "OPENAI_BASE_URL",
        "Where the provider `openai` is reached, unless `AGENTLOOP_BASE_URL` is set.",
    ),
    (
        OTEL_ENDPOINT,
        "The collector that spans are sent to (OTLP over HTTP); without one, none are.",
    ),
    (
        OTEL_TRACES_ENDPOINT,
        "As the one above, the whole address of its traces.",
    ),
    (
        "OTEL_EXPORTER_OTLP_HEADERS",
        "What is sent to the collector as well, such as a key.",
    ),
    (OTEL_SERVICE, "The name under which spans are sent."),
    (OTEL_DISABLED, "`true`: no spans."),
];

/// All variables, in the order in which people read them.
pub fn all() -> Vec<EnvVar> {
    let named = NAMED.iter().map(|(name, doc)| EnvVar {
        name: (*name).to_owned(),
        key: None,
        doc,
    });
    let of_keys = keys::ALL
        .iter()
        .filter(|entry| entry.form != Form::FileOnly)
        .map(|entry| EnvVar {
            name: name_of(entry),
            key: Some(entry.path),
            doc: entry.doc.trim(),
        });
    named.chain(of_keys).collect()
}

/// A table in Markdown, for the documentation.
pub fn reference() -> String {
    use fmt::Write as _;
    let mut table = String::from("| variable | key | meaning |\n|---|---|---|\n");
    for var in all() {
        let key = var.key.map(|key| format!("`{key}`")).unwrap_or_default();
        let _ = writeln!(table, "| `{}` | {key} | {} |", var.name, var.doc);
    }
    table
}

/// Whether a variable is this program's own or holds a key of its own: never to be given to a tool.
pub fn is_reserved(name: &str) -> bool {
    let name = name.to_ascii_uppercase();
    name.starts_with(PREFIX) || NAMED.iter().any(|(named, _)| *named == name)
}

/// `limits.max_tokens` is `AGENTLOOP_LIMITS__MAX_TOKENS`.
fn name_of(entry: &Entry) -> String {
    format!("{PREFIX}{}", entry.path.replace('.', "__").to_uppercase())
}

/// The variables of a process, read once. An empty value counts as not set.
#[derive(Clone, Default)]
pub struct Environment(BTreeMap<OsString, OsString>);

impl fmt::Debug for Environment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

impl<N: Into<OsString>, V: Into<OsString>> FromIterator<(N, V)> for Environment {
    fn from_iter<I: IntoIterator<Item = (N, V)>>(variables: I) -> Self {
        let variables = variables
            .into_iter()
            .map(|(name, value)| (name.into(), value.into()));
        Self(variables.filter(|(_, value)| !value.is_empty()).collect())
    }
}

/// A variable holds what is not Unicode text.
#[derive(Debug)]
pub(super) struct NotText;

impl Environment {
    pub fn of_this_process() -> Self {
        std::env::vars_os().collect()
    }

    pub(super) fn get(&self, name: &str) -> Result<Option<&str>, NotText> {
        match self.0.get(std::ffi::OsStr::new(name)) {
            None => Ok(None),
            Some(value) => value.to_str().map(Some).ok_or(NotText),
        }
    }

    /// The layer that the variables of keys make, and what is wrong with them.
    pub(super) fn layer(&self, faults: &mut Vec<Fault>) -> Node {
        let mut layer = Node::empty_table(Origin::Default);
        let known = all();
        for (name, value) in &self.0 {
            let name = name.to_string_lossy();
            if !name.starts_with(PREFIX) || name == CONFIG || name == TOKEN {
                continue;
            }
            let origin = Origin::Environment(shown(&name));
            let mut fault = |message| {
                faults.push(Fault {
                    origin: origin.clone(),
                    message,
                });
            };
            let entry = keys::ALL
                .iter()
                .find(|entry| entry.form != Form::FileOnly && name_of(entry) == name);
            match (entry, value.to_str()) {
                (None, _) if name.starts_with("AGENTLOOP_GRANTS__") => {
                    fault("grants stand in a settings file only".to_owned());
                }
                (None, _) if name.starts_with("AGENTLOOP_MCP__") => {
                    fault("MCP servers stand in a settings file only".to_owned());
                }
                (None, _) => {
                    let own = known.iter().filter_map(|var| var.name.strip_prefix(PREFIX));
                    fault(match nearest(&name[PREFIX.len()..], own) {
                        Some(near) => {
                            format!("no such variable; did you mean `{PREFIX}{near}`?")
                        }
                        None => "no such variable; names are a key with `AGENTLOOP_` in front, such as `AGENTLOOP_LIMITS__MAX_TOKENS`".to_owned(),
                    });
                }
                (Some(_), None) => fault("its value is not Unicode text".to_owned()),
                (Some(entry), Some(text)) => {
                    layer.set(entry.path, from_text(entry.form, text, &origin))
                }
            }
        }
        layer
    }
}

/// A value written without TOML around it.
fn from_text(form: Form, text: &str, origin: &Origin) -> Node {
    match form {
        Form::Word | Form::FileOnly => Node::text(text, origin.clone()),
        Form::Bare => bare(text, origin),
        Form::List if text.trim_start().starts_with('[') => {
            node::parse_literal(text.trim(), origin)
                .unwrap_or_else(|| Node::text(text, origin.clone()))
        }
        Form::List => Node {
            value: Value::List(
                text.split(',')
                    .map(|element| Node::text(element.trim(), origin.clone()))
                    .collect(),
            ),
            origin: origin.clone(),
        },
    }
}

/// As [`from_text`], but a list grows by one element, whatever characters are in it.
pub(super) fn from_flag(form: Form, text: &str, origin: &Origin) -> Node {
    match form {
        Form::List => Node {
            value: Value::List(vec![Node::text(text, origin.clone())]),
            origin: origin.clone(),
        },
        Form::Word | Form::Bare | Form::FileOnly => from_text(form, text, origin),
    }
}

fn bare(text: &str, origin: &Origin) -> Node {
    let value = match text.trim() {
        "true" => Value::Boolean(true),
        "false" => Value::Boolean(false),
        number => match number.parse() {
            Ok(number) => Value::Integer(number),
            Err(_) => Value::Text(text.to_owned()),
        },
    };
    Node {
        value,
        origin: origin.clone(),
    }
}
