//! What a component says of its tools: the custom section `agentloop-tools`, or what `list` gave. All of it is
//! a claim; here it is bounded and checked, one tool at a time, so that one bad tool costs only itself.

use std::{collections::HashSet, time::Duration};

use serde::Deserialize;
use serde_json::Value;

use super::{
    bindings::agentloop::tool::types as wit,
    limits::{
        DESCRIPTION_BYTES, METADATA_BYTES, REASON_BYTES, REQUESTS_PER_TOOL, SCHEMA_BYTES,
        TITLE_BYTES, TOOLS_PER_COMPONENT,
    },
};
use crate::{
    capability::{Access, Capability, OriginPattern, Request},
    harmless::shown,
    ids::{SecretName, ToolName},
    tool::{Annotations, ToolDefinition},
};

/// The custom section's name, in whichever core module of the component it stands.
pub(super) const SECTION: &str = "agentloop-tools";

/// The tools of a component, in its own order.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Definitions {
    pub tools: Vec<ToolDefinition>,
    pub set_aside: Vec<SetAside>,
}

/// A tool that can't be offered; the component's other tools can.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct SetAside {
    /// The name that the tool claims, bounded and made visible.
    pub what: String,
    /// Names the field.
    pub why: String,
}

/// Why nothing of a component's metadata can be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MetadataError {
    #[error("it takes {bytes} bytes, and the limit is {METADATA_BYTES}")]
    TooLarge { bytes: usize },
    #[error("it is not the JSON that `wit/tools.wit` describes: {why}")]
    NotMetadata { why: String },
    #[error("it lists {count} tools, and the limit is {TOOLS_PER_COMPONENT}")]
    TooManyTools { count: usize },
    #[error("the types of its functions can't be read: {why}")]
    Types { why: String },
    #[error("its manifest can't be used: {why}")]
    Manifest { why: String },
    #[error("it is a WIT package and no component: there is nothing in it to call")]
    WitPackage,
}

/// Reads the section's JSON.
pub(super) fn from_section(json: &[u8]) -> Result<Definitions, MetadataError> {
    if json.len() > METADATA_BYTES {
        return Err(MetadataError::TooLarge { bytes: json.len() });
    }
    let claimed: Claimed = serde_json::from_slice(json).map_err(|e| {
        let why = shown(&e.to_string(), 300, false);
        MetadataError::NotMetadata { why }
    })?;
    let tools = claimed.tools.into_iter().map(|value| {
        let name = value["name"].as_str().unwrap_or("?").to_owned();
        (
            name,
            ClaimedTool::deserialize(value).map_err(|e| e.to_string()),
        )
    });
    definitions(tools)
}

/// One tool, written as in the section.
pub(super) fn from_value(tool: Value) -> Result<ToolDefinition, String> {
    ClaimedTool::deserialize(tool)
        .map_err(|e| e.to_string())
        .and_then(ClaimedTool::check)
        .map_err(|why| shown(&why, 500, false))
}

/// Takes what `list` gave.
pub(super) fn from_list(list: Vec<wit::ToolDefinition>) -> Result<Definitions, MetadataError> {
    definitions(
        list.into_iter()
            .map(|tool| (tool.name.clone(), ClaimedTool::of_list(tool))),
    )
}

fn definitions(
    claimed: impl ExactSizeIterator<Item = (String, Result<ClaimedTool, String>)>,
) -> Result<Definitions, MetadataError> {
    if claimed.len() > TOOLS_PER_COMPONENT {
        return Err(MetadataError::TooManyTools {
            count: claimed.len(),
        });
    }
    let mut definitions = Definitions::default();
    let mut names = HashSet::new();
    for (name, claimed) in claimed {
        let checked = claimed.and_then(ClaimedTool::check).and_then(|tool| {
            if names.insert(tool.name.clone()) {
                Ok(tool)
            } else {
                Err("`name`: an earlier tool of the component has it".to_owned())
            }
        });
        match checked {
            Ok(tool) => definitions.tools.push(tool),
            Err(why) => definitions.set_aside.push(SetAside {
                what: shown(&name, 80, false),
                why: shown(&why, 500, false),
            }),
        }
    }
    Ok(definitions)
}

#[derive(Deserialize)]
struct Claimed {
    tools: Vec<Value>,
}

#[derive(Deserialize)]
struct ClaimedTool {
    name: String,
    #[serde(default)]
    title: Option<String>,
    description: String,
    input_schema: Value,
    #[serde(default)]
    output_schema: Option<Value>,
    #[serde(default)]
    annotations: Annotations,
    #[serde(default = "yes")]
    parallel_safe: bool,
    #[serde(default)]
    timeout_ms: Option<u64>,
    #[serde(default)]
    requests: Vec<ClaimedRequest>,
}

fn yes() -> bool {
    true
}

#[derive(Deserialize)]
struct ClaimedRequest {
    capability: ClaimedCapability,
    #[serde(default)]
    reason: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum ClaimedCapability {
    Folder {
        path: String,
        access: Access,
    },
    Http {
        origin: String,
        #[serde(default)]
        methods: Vec<String>,
    },
    Environment(String),
    Secret(String),
}

impl ClaimedTool {
    fn of_list(tool: wit::ToolDefinition) -> Result<Self, String> {
        let schema = |field: &str, text: &str| {
            // Parsed only if it can be kept: the text is the guest's.
            at_most(field, text.len(), SCHEMA_BYTES)?;
            serde_json::from_str(text).map_err(|e| format!("`{field}` is not JSON: {e}"))
        };
        Ok(Self {
            input_schema: schema("input_schema", &tool.input_schema)?,
            output_schema: tool
                .output_schema
                .map(|text| schema("output_schema", &text))
                .transpose()?,
            name: tool.name,
            title: tool.title,
            description: tool.description,
            annotations: Annotations {
                read_only: tool.annotations.read_only,
                destructive: tool.annotations.destructive,
                idempotent: tool.annotations.idempotent,
                open_world: tool.annotations.open_world,
            },
            parallel_safe: tool.parallel_safe,
            timeout_ms: tool.timeout_ms,
            requests: tool
                .requests
                .into_iter()
                .map(ClaimedRequest::of_list)
                .collect(),
        })
    }

    /// The definition, or which field is wrong and why.
    fn check(self) -> Result<ToolDefinition, String> {
        let name = ToolName::parse(&self.name).map_err(|e| format!("`name`: {e}"))?;
        if let Some(title) = &self.title {
            at_most("title", title.len(), TITLE_BYTES)?;
        }
        at_most("description", self.description.len(), DESCRIPTION_BYTES)?;
        check_schema("input_schema", &self.input_schema)?;
        if let Some(schema) = &self.output_schema {
            check_schema("output_schema", schema)?;
        }
        at_most("requests", self.requests.len(), REQUESTS_PER_TOOL)?;
        let requests = self
            .requests
            .into_iter()
            .map(ClaimedRequest::check)
            .collect::<Result<_, _>>()?;
        Ok(ToolDefinition {
            name,
            title: self.title,
            description: self.description,
            input_schema: self.input_schema,
            output_schema: self.output_schema,
            annotations: self.annotations,
            parallel_safe: self.parallel_safe,
            timeout: self.timeout_ms.map(Duration::from_millis),
            requests,
        })
    }
}

impl ClaimedRequest {
    fn of_list(request: wit::Request) -> Self {
        let capability = match request.capability {
            wit::Capability::Folder(folder) => ClaimedCapability::Folder {
                path: folder.path,
                access: match folder.access {
                    wit::Access::Read => Access::Read,
                    wit::Access::Write => Access::Write,
                },
            },
            wit::Capability::Http(http) => ClaimedCapability::Http {
                origin: http.origin,
                methods: http.methods,
            },
            wit::Capability::Environment(name) => ClaimedCapability::Environment(name),
        };
        Self {
            capability,
            reason: request.reason,
        }
    }

    fn check(self) -> Result<Request, String> {
        at_most("reason", self.reason.len(), REASON_BYTES)?;
        let capability = match self.capability {
            ClaimedCapability::Folder { path, access } => {
                let path = guest_path(&path).ok_or_else(|| {
                    format!("`requests`: the folder `{path}` is neither an absolute path such as `/notes` nor `*`")
                })?;
                Capability::Folder { path, access }
            }
            ClaimedCapability::Http { origin, methods } => {
                let origin =
                    OriginPattern::parse(&origin).map_err(|e| format!("`requests`: {e}"))?;
                at_most("methods", methods.len(), REQUESTS_PER_TOOL)?;
                for method in &methods {
                    let known = (1..=32).contains(&method.len())
                        && method.bytes().all(|b| b.is_ascii_uppercase() || b == b'-');
                    if !known {
                        return Err(format!(
                            "`requests`: `{method}` is not an upper-case HTTP method"
                        ));
                    }
                }
                Capability::Http { origin, methods }
            }
            ClaimedCapability::Environment(name) => {
                if name.is_empty() || name.len() > 256 || name.contains(['=', '\0', '*']) {
                    return Err(format!(
                        "`requests`: `{name}` is not the name of an environment variable"
                    ));
                }
                Capability::Environment { name }
            }
            ClaimedCapability::Secret(name) => {
                let name = SecretName::parse(&name).map_err(|e| format!("`requests`: {e}"))?;
                Capability::Secret { name }
            }
        };
        Ok(Request {
            capability,
            reason: self.reason,
        })
    }
}

/// The path in the form of [`crate::capability::FolderGrant::guest_path`], or `*`.
fn guest_path(path: &str) -> Option<String> {
    if path == "*" || path == "/" {
        return Some(path.to_owned());
    }
    let path = path.strip_suffix('/').unwrap_or(path);
    let parts = path.strip_prefix('/')?;
    let plain = path.len() <= 1024
        && parts
            .split('/')
            .all(|part| !matches!(part, "" | "." | "..") && !part.contains(['\0', '\\']));
    plain.then(|| path.to_owned())
}

fn check_schema(field: &str, schema: &Value) -> Result<(), String> {
    if !schema.is_object() {
        return Err(format!("`{field}` is not a JSON object"));
    }
    at_most(field, schema.to_string().len(), SCHEMA_BYTES)
}

fn at_most(field: &str, size: usize, limit: usize) -> Result<(), String> {
    if size > limit {
        return Err(format!(
            "`{field}` has a size of {size}, and the limit is {limit}"
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(tools: Value) -> Definitions {
        from_section(
            json!({ "package": "agentloop:tool@0.1.0", "tools": tools })
                .to_string()
                .as_bytes(),
        )
        .unwrap()
    }

    fn tool(name: &str) -> Value {
        json!({ "name": name, "description": "d", "input_schema": { "type": "object" } })
    }

    #[test]
    fn a_whole_definition_is_read() {
        let mut whole = tool("a");
        whole["timeout_ms"] = json!(5000);
        whole["parallel_safe"] = json!(false);
        whole["annotations"] = json!({ "read_only": true });
        whole["requests"] = json!([
            { "capability": { "http": { "origin": "https://api.example.org", "methods": ["POST"] } }, "reason": "r" },
            { "capability": { "folder": { "path": "/notes/", "access": "write" } }, "reason": "r" },
            { "capability": { "environment": "NAME" }, "reason": "r" },
            { "capability": { "secret": "tickets" }, "reason": "r" },
        ]);
        let definitions = read(json!([whole]));
        let tool = &definitions.tools[0];
        assert_eq!(tool.timeout, Some(Duration::from_secs(5)));
        assert!(!tool.parallel_safe);
        assert!(tool.annotations.read_only);
        assert!(tool.annotations.destructive, "MCP's default");
        assert_eq!(
            tool.requests[1].capability,
            Capability::Folder {
                path: "/notes".into(),
                access: Access::Write
            }
        );
        assert_eq!(
            tool.requests[2].capability,
            Capability::Environment {
                name: "NAME".into()
            }
        );
        assert_eq!(
            tool.requests[3].capability,
            Capability::Secret {
                name: SecretName::parse("tickets").unwrap()
            }
        );
    }

    #[test]
    fn one_bad_tool_costs_only_itself() {
        let long = |field: &str, value: Value| {
            let mut tool = tool("bad");
            tool[field] = value;
            tool
        };
        let bad = [
            (tool("no spaces"), "`name`"),
            (tool("good"), "an earlier tool"),
            (
                long("description", json!("x".repeat(DESCRIPTION_BYTES + 1))),
                "`description`",
            ),
            (long("title", json!("x".repeat(TITLE_BYTES + 1))), "`title`"),
            (long("input_schema", json!([])), "`input_schema`"),
            (
                long(
                    "input_schema",
                    json!({ "description": "x".repeat(SCHEMA_BYTES) }),
                ),
                "`input_schema`",
            ),
            (long("output_schema", json!("text")), "`output_schema`"),
            (
                long("requests", json!([{ "capability": { "teleport": {} } }])),
                "teleport",
            ),
            (
                long(
                    "requests",
                    json!([{ "capability": { "environment": "*" } }]),
                ),
                "`requests`",
            ),
            (
                long("requests", json!([{ "capability": { "secret": "*" } }])),
                "`requests`",
            ),
            (
                long(
                    "requests",
                    json!([{ "capability": { "http": { "origin": "ftp://x" } } }]),
                ),
                "`requests`",
            ),
            (
                long(
                    "requests",
                    json!([{ "capability": { "http": { "origin": "*", "methods": ["get"] } } }]),
                ),
                "`requests`",
            ),
            (
                long(
                    "requests",
                    json!([{ "capability": { "environment": "A" }, "reason": "x".repeat(REASON_BYTES + 1) }]),
                ),
                "`reason`",
            ),
            (json!(5), ""),
        ];
        for (bad, field) in bad {
            let definitions = read(json!([tool("good"), bad, tool("other")]));
            let names: Vec<_> = definitions.tools.iter().map(|t| t.name.as_str()).collect();
            assert_eq!(names, ["good", "other"], "{field}");
            let [aside] = &definitions.set_aside[..] else {
                panic!("{field}")
            };
            assert!(aside.why.contains(field), "{}", aside.why);
        }
    }

    #[test]
    fn paths_are_plain() {
        for bad in [
            "", "notes", "//notes", "/a//b", "/a/../b", "/./a", "/a\\b", "/a/.",
        ] {
            assert_eq!(guest_path(bad), None, "{bad}");
        }
        for (path, plain) in [
            ("/", "/"),
            ("*", "*"),
            ("/a/", "/a"),
            ("/a b [1] 100%25 ü", "/a b [1] 100%25 ü"),
        ] {
            assert_eq!(guest_path(path).as_deref(), Some(plain));
        }
    }

    #[test]
    fn what_is_no_metadata_is_said() {
        assert!(matches!(
            from_section(b"{"),
            Err(MetadataError::NotMetadata { .. })
        ));
        assert!(matches!(
            from_section(&[0xff; 10]),
            Err(MetadataError::NotMetadata { .. })
        ));
        assert!(matches!(
            from_section(&vec![b' '; METADATA_BYTES + 1]),
            Err(MetadataError::TooLarge { .. })
        ));
        let many: Vec<_> = (0..=TOOLS_PER_COMPONENT)
            .map(|n| tool(&format!("t{n}")))
            .collect();
        assert!(matches!(
            from_section(json!({ "tools": many }).to_string().as_bytes()),
            Err(MetadataError::TooManyTools { .. })
        ));
    }
}
