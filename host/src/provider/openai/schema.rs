//! Tools for models that cannot call any: one JSON schema that the server holds the reply to, and the words
//! that explain it. The reply is `{"tool": NAME, "arguments": {…}}` or `{"answer": TEXT}`.

use serde::Deserialize;
use serde_json::{Map, Value, json, value::RawValue};

use crate::provider::{
    ToolSchema,
    pieces::{self, Lone},
};

/// The `response_format` of a request.
pub(super) fn response_format(tools: &[ToolSchema]) -> Value {
    let mut definitions = Map::new();
    let mut any: Vec<Value> = Vec::new();
    for (n, tool) in tools.iter().enumerate() {
        let place = Place {
            pointer: format!("#/anyOf/{n}/properties/arguments"),
            definitions: format!("#/$defs/{n}_"),
        };
        let mut arguments = place.rebased(&tool.input_schema);
        for name in DEFINITIONS {
            if let Some(Value::Object(own)) = remove(&mut arguments, name) {
                let own = own.into_iter();
                definitions.extend(own.map(|(name, schema)| (format!("{n}_{name}"), schema)));
            }
        }
        remove(&mut arguments, "$schema");
        any.push(json!({
            "type": "object",
            "properties": {
                "tool": {"type": "string", "const": tool.name.as_str()},
                "arguments": arguments,
            },
            "required": ["tool", "arguments"],
            "additionalProperties": false,
        }));
    }
    any.push(json!({
        "type": "object",
        "properties": {"answer": {"type": "string"}},
        "required": ["answer"],
        "additionalProperties": false,
    }));
    let mut schema = json!({"anyOf": any});
    if !definitions.is_empty() {
        schema["$defs"] = Value::Object(definitions);
    }
    json!({
        "type": "json_schema",
        "json_schema": {"name": "call_or_answer", "schema": schema},
    })
}

/// The system text with the tools in it.
pub(super) fn system(system: Option<&str>, tools: &[ToolSchema]) -> String {
    let mut text = String::new();
    if let Some(system) = system.filter(|text| !text.trim().is_empty()) {
        text.push_str(system);
        text.push_str("\n\n");
    }
    text.push_str("Tools:\n");
    for tool in tools {
        let description = tool.description.trim();
        text.push_str(&format!(
            "- {}: {description} Arguments: {}\n",
            tool.name, tool.input_schema
        ));
    }
    text.push_str(
        "\nReply with one JSON object and nothing else. To use a tool: \
         {\"tool\": NAME, \"arguments\": {…}}. Its result comes in the next message. \
         When you know the answer: {\"answer\": TEXT}.",
    );
    text
}

/// A call as the model itself would write it.
pub(super) fn call(name: &str, arguments: &Value) -> String {
    json!({"tool": name, "arguments": arguments}).to_string()
}

/// An answer as the model itself would write it.
pub(super) fn answer(text: &str) -> String {
    json!({"answer": text}).to_string()
}

/// What a reply says.
#[derive(Debug, PartialEq)]
pub(super) enum Read {
    Call {
        name: String,
        /// JSON as the model wrote it.
        arguments: String,
    },
    Answer(String),
    /// The server did not hold the reply to the schema.
    Neither,
}

#[derive(Deserialize)]
struct Object {
    tool: Option<String>,
    arguments: Option<Box<RawValue>>,
    answer: Option<Box<RawValue>>,
}

pub(super) fn read(text: &str) -> Read {
    let Ok(object) = serde_json::from_str::<Object>(text) else {
        return Read::Neither;
    };
    match (object.tool, object.answer) {
        (Some(name), _) => Read::Call {
            name,
            arguments: object
                .arguments
                .map(|raw| raw.get().to_owned())
                .unwrap_or_default(),
        },
        (None, Some(answer)) => Read::Answer(
            pieces::string(&answer, Lone::Replaced).unwrap_or_else(|| answer.get().to_owned()),
        ),
        (None, None) => Read::Neither,
    }
}

/// Where a schema keeps what it refers to.
const DEFINITIONS: [&str; 2] = ["$defs", "definitions"];

/// Where a tool's schema stands in the larger one. Definitions move to the root, which is the only place
/// where every server looks for them.
struct Place {
    pointer: String,
    definitions: String,
}

impl Place {
    /// The schema with its references into itself pointing to where things are now.
    fn rebased(&self, schema: &Value) -> Value {
        match schema {
            Value::Object(members) => members
                .iter()
                .map(|(name, value)| {
                    let value = match (name.as_str(), value) {
                        ("$ref", Value::String(to)) => self.rebased_reference(to).into(),
                        // Values, not schemas.
                        ("const" | "enum" | "default" | "examples", _) => value.clone(),
                        _ => self.rebased(value),
                    };
                    (name.clone(), value)
                })
                .collect(),
            Value::Array(items) => items.iter().map(|item| self.rebased(item)).collect(),
            other => other.clone(),
        }
    }

    fn rebased_reference(&self, to: &str) -> String {
        let definition = DEFINITIONS
            .iter()
            .find_map(|name| to.strip_prefix("#/")?.strip_prefix(name)?.strip_prefix('/'));
        match (definition, to.strip_prefix('#')) {
            (Some(name), _) => format!("{}{name}", self.definitions),
            (None, Some(inside)) => format!("{}{inside}", self.pointer),
            (None, None) => to.to_owned(),
        }
    }
}

fn remove(schema: &mut Value, name: &str) -> Option<Value> {
    schema.as_object_mut()?.shift_remove(name)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::ids::ToolName;

    fn tool() -> ToolSchema {
        ToolSchema {
            name: ToolName::parse("add").unwrap(),
            description: Arc::from("Adds."),
            input_schema: Arc::new(json!({
                "$schema": "https://json-schema.org/draft/2020-12/schema",
                "type": "object",
                "properties": {
                    "a": {"$ref": "#/$defs/n"},
                    "b": {"default": {"$ref": "#/x"}},
                    "c": {"$ref": "#/properties/a"},
                },
                "$defs": {"n": {"type": "number"}, "list": {"items": {"$ref": "#/$defs/list"}}},
            })),
        }
    }

    #[test]
    fn references_point_into_the_larger_schema() {
        let format = response_format(&[tool()]);
        let schema = &format["json_schema"]["schema"];
        let arguments = &schema["anyOf"][0]["properties"]["arguments"];
        let target = |name: &str| {
            let to = arguments["properties"][name]["$ref"].as_str().unwrap();
            schema.pointer(&to[1..]).unwrap()
        };
        assert_eq!(*target("a"), json!({"type": "number"}));
        assert_eq!(*target("c"), arguments["properties"]["a"]);
        let list = &schema["$defs"]["0_list"];
        assert_eq!(list["items"]["$ref"], "#/$defs/0_list");
        assert_eq!(arguments.get("$defs"), None);
        assert_eq!(
            arguments["properties"]["b"]["default"],
            json!({"$ref": "#/x"})
        );
        assert_eq!(arguments.get("$schema"), None);
        assert_eq!(schema["anyOf"].as_array().unwrap().len(), 2);
    }

    #[test]
    fn the_system_text_names_each_tool() {
        let text = system(Some("Be brief."), &[tool()]);
        assert!(
            text.starts_with("Be brief.\n\nTools:\n- add: Adds. Arguments: {"),
            "{text}"
        );
    }

    #[test]
    fn replies_are_calls_or_answers() {
        let call_of = |name: &str, arguments: &str| Read::Call {
            name: name.into(),
            arguments: arguments.into(),
        };
        for (text, wanted) in [
            (
                r#"{"tool":"add","arguments":{"b":1,"a":2.0}}"#,
                call_of("add", r#"{"b":1,"a":2.0}"#),
            ),
            (r#"{"tool":"now"}"#, call_of("now", "")),
            (
                r#" {"answer":"hi \ud83d"} "#,
                Read::Answer("hi \u{fffd}".into()),
            ),
            (r#"{"answer":42}"#, Read::Answer("42".into())),
            (r#"{"else":1}"#, Read::Neither),
            ("hello", Read::Neither),
            (r#"{"answer":"hi"#, Read::Neither),
        ] {
            assert_eq!(read(text), wanted, "{text}");
        }
        assert_eq!(
            read(&call("add", &json!({"a": 1}))),
            call_of("add", r#"{"a":1}"#)
        );
        assert_eq!(read(&answer("a\"b")), Read::Answer("a\"b".into()));
    }
}
