//! A value before its key gives it a type, with the place where it stands.

use std::{ops::Range, sync::Arc};

use toml::{Spanned, de::DeTable, de::DeValue};

use super::{
    origin::{Fault, FileLine, Origin},
    shown,
};

/// Largest settings file, in bytes.
pub(super) const MAX_FILE_BYTES: usize = 1 << 20;

#[derive(Debug, Clone, PartialEq)]
pub(super) struct Node {
    pub(super) value: Value,
    pub(super) origin: Origin,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) enum Value {
    Text(String),
    Integer(i64),
    Boolean(bool),
    List(Vec<Node>),
    Table(Vec<Member>),
    /// Something that no key takes, in words.
    Other(&'static str),
}

#[derive(Debug, Clone, PartialEq)]
pub(super) struct Member {
    pub(super) key: String,
    pub(super) origin: Origin,
    pub(super) node: Node,
}

impl Node {
    pub(super) fn text(text: impl Into<String>, origin: Origin) -> Self {
        Self {
            value: Value::Text(text.into()),
            origin,
        }
    }

    pub(super) fn empty_table(origin: Origin) -> Self {
        Self {
            value: Value::Table(Vec::new()),
            origin,
        }
    }

    pub(super) fn fault(&self, message: String) -> Fault {
        Fault {
            origin: self.origin.clone(),
            message,
        }
    }

    pub(super) fn members(&self) -> &[Member] {
        match &self.value {
            Value::Table(members) => members,
            Value::Text(_)
            | Value::Integer(_)
            | Value::Boolean(_)
            | Value::List(_)
            | Value::Other(_) => &[],
        }
    }

    /// What stands at a dotted path.
    pub(super) fn get(&self, path: &str) -> Option<&Node> {
        let (first, rest) = match path.split_once('.') {
            Some((first, rest)) => (first, Some(rest)),
            None => (path, None),
        };
        let member = self.members().iter().find(|member| member.key == first)?;
        match rest {
            Some(rest) => member.node.get(rest),
            None => Some(&member.node),
        }
    }

    /// Puts a value at a dotted path; what stands there already is replaced, or joined where both are lists.
    pub(super) fn set(&mut self, path: &str, node: Node) {
        let Value::Table(members) = &mut self.value else {
            return;
        };
        let (first, rest) = match path.split_once('.') {
            Some((first, rest)) => (first, Some(rest)),
            None => (path, None),
        };
        let index = match members.iter().position(|member| member.key == first) {
            Some(index) => index,
            None => {
                members.push(Member {
                    key: first.to_owned(),
                    origin: node.origin.clone(),
                    node: Node::empty_table(node.origin.clone()),
                });
                members.len() - 1
            }
        };
        let place = &mut members[index].node;
        match (rest, node.value) {
            (Some(rest), value) => {
                let origin = node.origin;
                place.set(rest, Node { value, origin });
            }
            (None, Value::List(more)) if matches!(place.value, Value::List(_)) => {
                if let Value::List(elements) = &mut place.value {
                    elements.extend(more);
                }
            }
            (None, value) => {
                *place = Node {
                    value,
                    origin: node.origin,
                };
            }
        }
    }

    /// As TOML on one line.
    pub(super) fn literal(&self) -> String {
        match &self.value {
            Value::Text(text) => quoted(text),
            Value::Integer(number) => number.to_string(),
            Value::Boolean(flag) => flag.to_string(),
            Value::List(elements) => {
                let elements: Vec<_> = elements.iter().map(Node::literal).collect();
                format!("[{}]", elements.join(", "))
            }
            Value::Table(members) => {
                let members: Vec<_> = (members.iter())
                    .map(|m| format!("{} = {}", toml_edit::Key::new(&m.key), m.node.literal()))
                    .collect();
                format!("{{ {} }}", members.join(", "))
            }
            Value::Other(words) => format!("({words})"),
        }
    }

    /// For "got …".
    pub(super) fn in_words(&self) -> String {
        match &self.value {
            Value::Text(text) => format!("\"{}\"", shown(text)),
            Value::Integer(number) => number.to_string(),
            Value::Boolean(flag) => flag.to_string(),
            Value::List(_) => "a list".to_owned(),
            Value::Table(_) => "a table".to_owned(),
            Value::Other(words) => (*words).to_owned(),
        }
    }
}

/// A TOML string on one line, without characters that a terminal acts on.
fn quoted(text: &str) -> String {
    let mut quoted = String::from("\"");
    for c in text.chars() {
        match c {
            '"' => quoted.push_str("\\\""),
            '\\' => quoted.push_str("\\\\"),
            '\'' => quoted.push('\''),
            '\n' => quoted.push_str("\\n"),
            '\t' => quoted.push_str("\\t"),
            c if c.escape_debug().len() == 1 => quoted.push(c),
            c => quoted.push_str(&format!("\\U{:08X}", u32::from(c))),
        }
    }
    quoted.push('"');
    quoted
}

/// Reads a TOML document. All its syntax faults are found at once.
pub(super) fn parse(
    text: &str,
    at: impl Fn(FileLine) -> Origin,
    file: &Arc<str>,
) -> Result<Node, Vec<Fault>> {
    let reader = Reader { text, at, file };
    let (table, errors) = DeTable::parse_recoverable(text);
    if errors.is_empty() {
        return Ok(Node {
            value: reader.table(table.get_ref()),
            origin: reader.origin(table.span()),
        });
    }
    Err(errors
        .into_iter()
        .map(|error| Fault {
            origin: reader.origin(error.span().unwrap_or_default()),
            message: format!("not valid TOML: {}", shown(error.message())),
        })
        .collect())
}

/// One TOML value that stands for itself, as in a variable or a default.
pub(super) fn parse_literal(literal: &str, origin: &Origin) -> Option<Node> {
    let value = DeValue::parse(literal).ok()?;
    let reader = Reader {
        text: literal,
        at: |_| origin.clone(),
        file: &Arc::from(""),
    };
    Some(reader.node(&value))
}

struct Reader<'a, At> {
    text: &'a str,
    at: At,
    file: &'a Arc<str>,
}

impl<At: Fn(FileLine) -> Origin> Reader<'_, At> {
    fn origin(&self, span: Range<usize>) -> Origin {
        let before = self.text.get(..span.start).unwrap_or(self.text);
        (self.at)(FileLine {
            file: self.file.clone(),
            line: 1 + before.bytes().filter(|b| *b == b'\n').count(),
        })
    }

    fn table(&self, table: &DeTable<'_>) -> Value {
        Value::Table(
            table
                .iter()
                .map(|(key, value)| Member {
                    key: key.get_ref().to_string(),
                    origin: self.origin(key.span()),
                    node: self.node(value),
                })
                .collect(),
        )
    }

    fn node(&self, value: &Spanned<DeValue<'_>>) -> Node {
        let origin = self.origin(value.span());
        let value = match value.get_ref() {
            DeValue::String(text) => Value::Text(text.to_string()),
            DeValue::Integer(number) => {
                match i64::from_str_radix(number.as_str(), number.radix()) {
                    Ok(number) => Value::Integer(number),
                    Err(_) => Value::Other("a number beyond all bounds"),
                }
            }
            DeValue::Float(_) => Value::Other("a number with a fraction"),
            DeValue::Boolean(flag) => Value::Boolean(*flag),
            DeValue::Datetime(_) => Value::Other("a date"),
            DeValue::Array(elements) => {
                Value::List(elements.iter().map(|e| self.node(e)).collect())
            }
            DeValue::Table(members) => self.table(members),
        };
        Node { value, origin }
    }
}
