//! `NAME.toml` beside `NAME.wasm`: what a program that knows nothing of tools is as one.
//!
//! ```toml
//! description = "Find the lines that hold a word"
//! argv = ["--max={limit}", "--", "{word}"]
//! stdin = "{text}"
//!
//! [input_schema]
//! type = "object"
//! required = ["word", "text"]
//! properties.word.type = "string"
//! properties.text.type = "string"
//! properties.limit.type = "integer"
//! ```
//!
//! | in `argv` and `stdin` | is |
//! |---|---|
//! | `{name}` | the argument: a string as it is, anything else as JSON |
//! | `{{`, `}}` | a brace |
//! | an item with an argument that is absent or null | left out |
//! | an item with an argument that is an array | one item for each element |
//! | `{ when = "name", argv = […] }` | these items, if the argument is there and neither null nor false |
//!
//! A string that begins with `-` would be taken for an option. Where it would begin an item, it is refused, unless
//! a `--` stands before.

use serde::Deserialize;
use serde_json::{Map, Value};

use super::super::{
    limits::{ARGV_BYTES, ARGV_ITEMS, MANIFEST_BYTES},
    metadata::{self, MetadataError},
};
use crate::{capability::Request, ids::PluginName, tool::ToolDefinition};

#[derive(Debug, Clone, PartialEq)]
pub(in super::super) struct Manifest {
    pub(super) tool: ToolDefinition,
    pub(super) output: Output,
    argv: Vec<Item>,
    stdin: Template,
}

/// What standard output holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Output {
    #[default]
    Text,
    Json,
}

#[derive(Debug, Clone, PartialEq)]
enum Item {
    One(Template),
    When {
        argument: String,
        then: Vec<Template>,
    },
}

/// A text with places for arguments.
#[derive(Debug, Clone, PartialEq, Default)]
struct Template(Vec<Piece>);

#[derive(Debug, Clone, PartialEq)]
enum Piece {
    Text(String),
    Argument(String),
}

/// The keys that are not a tool's own.
#[derive(Deserialize)]
struct Written {
    #[serde(default)]
    argv: Vec<WrittenItem>,
    #[serde(default)]
    stdin: String,
    #[serde(default)]
    output: Output,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum WrittenItem {
    One(String),
    When { when: String, argv: Vec<String> },
}

const KEYS: [&str; 11] = [
    "argv",
    "stdin",
    "output",
    "name",
    "title",
    "description",
    "input_schema",
    "output_schema",
    "annotations",
    "parallel_safe",
    "timeout_ms",
];

impl Manifest {
    /// `program`: the tool's name where the manifest gives none. `requests`: what the component could use.
    pub(in super::super) fn read(
        text: &str,
        program: &str,
        requests: Vec<Request>,
    ) -> Result<Self, MetadataError> {
        let wrong = |why: String| MetadataError::Manifest { why };
        if text.len() > MANIFEST_BYTES {
            return Err(wrong(format!(
                "it has {} bytes, and the limit is {MANIFEST_BYTES}",
                text.len()
            )));
        }
        let mut table: Map<String, Value> =
            toml::from_str(text).map_err(|e| wrong(e.to_string().trim().to_owned()))?;
        if let Some(key) = table.keys().find(|key| !KEYS.contains(&key.as_str())) {
            return Err(wrong(format!(
                "it has no key `{key}`; the keys are {}",
                KEYS.join(", ")
            )));
        }
        for key in ["description", "name", "title", "stdin", "output"] {
            if table.get(key).is_some_and(|value| !value.is_string()) {
                return Err(wrong(format!("`{key}` is not a text")));
            }
        }
        let written: Written = Written::deserialize(Value::Object(table.clone()))
            .map_err(|e| wrong(format!("`argv`, `stdin` or `output`: {e}")))?;
        table
            .entry("name")
            .or_insert_with(|| PluginName::of_file_stem(program).as_str().into());
        table.entry("input_schema").or_insert_with(
            || serde_json::json!({ "type": "object", "properties": {}, "additionalProperties": false }),
        );
        let mut tool = metadata::from_value(Value::Object(table)).map_err(wrong)?;
        tool.requests = requests;
        let argv = written.argv.into_iter().map(Item::parse);
        let manifest = Self {
            argv: argv.collect::<Result<_, _>>().map_err(wrong)?,
            stdin: Template::parse(&written.stdin).map_err(wrong)?,
            output: written.output,
            tool,
        };
        manifest.check().map_err(wrong)?;
        Ok(manifest)
    }

    pub(in super::super) fn tool(&self) -> &ToolDefinition {
        &self.tool
    }

    /// That each place is for an argument that the schema has.
    fn check(&self) -> Result<(), String> {
        let properties = self.tool.input_schema["properties"].as_object();
        let has = |name: &str| properties.is_some_and(|properties| properties.contains_key(name));
        let of_items = self.argv.iter().flat_map(|item| match item {
            Item::One(template) => template.names().collect::<Vec<_>>(),
            Item::When { argument, then } => std::iter::once(argument.as_str())
                .chain(then.iter().flat_map(Template::names))
                .collect(),
        });
        match of_items.chain(self.stdin.names()).find(|name| !has(name)) {
            Some(name) => Err(format!(
                "`argv` or `stdin` names the argument `{name}`, and `input_schema` has no such property"
            )),
            None => Ok(()),
        }
    }

    /// The program's arguments after its name.
    pub(super) fn argv(&self, arguments: &Map<String, Value>) -> Result<Vec<String>, String> {
        let mut argv = Vec::new();
        for item in &self.argv {
            match item {
                Item::One(template) => template.items(arguments, &mut argv)?,
                Item::When { argument, then } => {
                    let given = arguments.get(argument);
                    if !matches!(given, None | Some(Value::Null | Value::Bool(false))) {
                        for template in then {
                            template.items(arguments, &mut argv)?;
                        }
                    }
                }
            }
        }
        let bytes: usize = argv.iter().map(String::len).sum();
        if argv.len() > ARGV_ITEMS || bytes > ARGV_BYTES {
            return Err(format!(
                "the program's arguments come to {} with {bytes} bytes; the limits are {ARGV_ITEMS} and {ARGV_BYTES}",
                argv.len()
            ));
        }
        Ok(argv)
    }

    pub(super) fn stdin(&self, arguments: &Map<String, Value>) -> Result<String, String> {
        let mut stdin = String::new();
        for piece in &self.stdin.0 {
            match piece {
                Piece::Text(text) => stdin.push_str(text),
                Piece::Argument(name) => {
                    if let Some(value) = arguments.get(name) {
                        stdin.push_str(&as_text(value));
                    }
                }
            }
        }
        Ok(stdin)
    }
}

impl Item {
    fn parse(written: WrittenItem) -> Result<Self, String> {
        Ok(match written {
            WrittenItem::One(text) => Self::One(Template::parse(&text)?),
            WrittenItem::When { when, argv } => Self::When {
                argument: when,
                then: argv
                    .iter()
                    .map(|text| Template::parse(text))
                    .collect::<Result<_, _>>()?,
            },
        })
    }
}

impl Template {
    fn parse(text: &str) -> Result<Self, String> {
        let wrong = |why: &str| {
            Err(format!(
                "the template `{text}` {why}; a brace itself is `{{{{` or `}}}}`"
            ))
        };
        let mut pieces = Vec::new();
        let mut plain = String::new();
        let mut chars = text.chars().peekable();
        while let Some(c) = chars.next() {
            match c {
                '{' | '}' if chars.next_if_eq(&c).is_some() => plain.push(c),
                '{' => {
                    let mut name = String::new();
                    loop {
                        match chars.next() {
                            Some('}') => break,
                            Some(c) if c != '{' => name.push(c),
                            _ => return wrong("has a `{` without its `}`"),
                        }
                    }
                    if name.is_empty() {
                        return wrong("has a place without a name");
                    }
                    if !plain.is_empty() {
                        pieces.push(Piece::Text(std::mem::take(&mut plain)));
                    }
                    pieces.push(Piece::Argument(name));
                }
                '}' => return wrong("has a `}` without its `{`"),
                c => plain.push(c),
            }
        }
        if !plain.is_empty() || pieces.is_empty() {
            pieces.push(Piece::Text(plain));
        }
        Ok(Self(pieces))
    }

    fn names(&self) -> impl Iterator<Item = &str> {
        self.0.iter().filter_map(|piece| match piece {
            Piece::Argument(name) => Some(name.as_str()),
            Piece::Text(_) => None,
        })
    }

    /// Adds the items that come of it: none where an argument is absent, one for each element of an array.
    fn items(&self, arguments: &Map<String, Value>, argv: &mut Vec<String>) -> Result<(), String> {
        let mut rows: Option<&[Value]> = None;
        for name in self.names() {
            match arguments.get(name) {
                None | Some(Value::Null) => return Ok(()),
                Some(Value::Array(items)) => {
                    if rows.replace(items).is_some() {
                        return Err(format!(
                            "`{name}`: two arrays can't stand in one item of the program's arguments"
                        ));
                    }
                }
                Some(_) => {}
            }
        }
        let count = rows.map_or(1, <[Value]>::len);
        if argv.len().saturating_add(count) > ARGV_ITEMS {
            return Err(format!(
                "the program's arguments are more than {ARGV_ITEMS}"
            ));
        }
        for row in 0..count {
            let mut item = String::new();
            for piece in &self.0 {
                let name = match piece {
                    Piece::Text(text) => {
                        item.push_str(text);
                        continue;
                    }
                    Piece::Argument(name) => name,
                };
                let value = match arguments.get(name) {
                    Some(Value::Array(items)) => items.get(row).unwrap_or(&Value::Null),
                    Some(value) => value,
                    None => &Value::Null,
                };
                let text = as_text(value);
                let is_option = item.is_empty() && value.is_string() && text.starts_with('-');
                if is_option && !argv.iter().any(|item| item == "--") {
                    return Err(format!(
                        "`{name}`: it begins with `-`, so the program would take it for an option"
                    ));
                }
                item.push_str(&text);
            }
            if item.contains('\0') {
                return Err("no argument of a program can hold a NUL".to_owned());
            }
            argv.push(item);
        }
        Ok(())
    }
}

fn as_text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        value => value.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn manifest(argv: &str) -> Manifest {
        let text = format!(
            r#"description = "d"
            argv = {argv}
            stdin = "<{{text}}>"
            [input_schema]
            type = "object"
            properties.text = {{}}
            properties.n = {{}}
            properties.all = {{}}"#
        );
        Manifest::read(&text, "my prog", Vec::new()).unwrap()
    }

    fn argv(template: &str, arguments: Value) -> Result<Vec<String>, String> {
        let Value::Object(arguments) = arguments else {
            panic!()
        };
        manifest(template).argv(&arguments)
    }

    #[test]
    fn templates_become_arguments() {
        for (template, arguments, expected) in [
            (
                r#"["-x", "{text}"]"#,
                json!({ "text": "a b; $(c)" }),
                vec!["-x", "a b; $(c)"],
            ),
            (r#"["--n={n}"]"#, json!({ "n": 5 }), vec!["--n=5"]),
            (r#"["--n={n}", "{text}"]"#, json!({}), vec![]),
            (r#"["{n}"]"#, json!({ "n": -5 }), vec!["-5"]),
            (r#"["{all}"]"#, json!({ "all": ["a", "b"] }), vec!["a", "b"]),
            (
                r#"["-f{all}"]"#,
                json!({ "all": ["a", 1] }),
                vec!["-fa", "-f1"],
            ),
            (r#"["{{{text}}}"]"#, json!({ "text": "a" }), vec!["{a}"]),
            (
                r#"[{ when = "n", argv = ["-v", "{text}"] }, ""]"#,
                json!({ "n": true, "text": "a" }),
                vec!["-v", "a", ""],
            ),
            (
                r#"[{ when = "n", argv = ["-v"] }]"#,
                json!({ "n": false }),
                vec![],
            ),
            (
                r#"["--", "{text}"]"#,
                json!({ "text": "-a" }),
                vec!["--", "-a"],
            ),
            (
                r#"["--text={text}"]"#,
                json!({ "text": "-a" }),
                vec!["--text=-a"],
            ),
        ] {
            assert_eq!(argv(template, arguments).unwrap(), expected, "{template}");
        }
    }

    #[test]
    fn no_argument_becomes_an_option() {
        let fault = argv(r#"["{text}", "--"]"#, json!({ "text": "--output=/etc" })).unwrap_err();
        assert!(fault.contains("option"), "{fault}");
        let fault = argv(r#"["{all}"]"#, json!({ "all": ["a", "-b"] })).unwrap_err();
        assert!(fault.contains("option"), "{fault}");
    }

    #[test]
    fn arguments_are_bounded() {
        let many: Vec<_> = (0..=ARGV_ITEMS).collect();
        assert!(argv(r#"["{all}"]"#, json!({ "all": many })).is_err());
        let long = "x".repeat(ARGV_BYTES + 1);
        assert!(argv(r#"["{text}"]"#, json!({ "text": long })).is_err());
        assert!(argv(r#"["{text}"]"#, json!({ "text": "a\0b" })).is_err());
    }

    #[test]
    fn stdin_is_a_template_too() {
        let manifest = manifest("[]");
        let stdin = |arguments: Value| manifest.stdin(arguments.as_object().unwrap()).unwrap();
        assert_eq!(stdin(json!({ "text": "-a\n" })), "<-a\n>");
        assert_eq!(stdin(json!({})), "<>");
        assert_eq!(manifest.tool().name.as_str(), "my_prog");
    }

    #[test]
    fn faults_name_what_is_wrong() {
        for (text, says) in [
            ("description = 5", "description"),
            ("", "description"),
            ("description = \"d\"\nargs = []", "`args`"),
            ("description = \"d\"\nargv = [\"{a\"]", "`{a`"),
            ("description = \"d\"\nargv = [\"a}\"]", "`a}`"),
            ("description = \"d\"\nargv = [\"{a}\"]", "`a`"),
            ("description = \"d\"\nstdin = \"{a}\"", "`a`"),
            ("description = \"d\"\noutput = \"xml\"", "output"),
            ("description = ", "line 1"),
        ] {
            let fault = Manifest::read(text, "p", Vec::new()).unwrap_err();
            assert!(fault.to_string().contains(says), "{text}: {fault}");
        }
    }
}
