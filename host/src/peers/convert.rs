//! From a server's words to this host's: tools, answers and errors. All of it is the server's claim, and bounded.

use std::collections::HashSet;

use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use rmcp::model::{CallToolResult, ContentBlock, ResourceContents, Tool};
use serde_json::Value;

use super::{PeerSettings, PeerTool};
use crate::{
    ids::ToolName,
    sandbox::{
        SetAside,
        limits::{DESCRIPTION_BYTES, SCHEMA_BYTES, TITLE_BYTES, TRAP_TEXT_BYTES},
    },
    tool::{Annotations, Content, ResourceBody, ToolDefinition, ToolOutcome},
};

/// The listed tools that the operator takes, and what of them can't be offered.
pub(super) fn definitions(
    settings: &PeerSettings,
    listed: Vec<Tool>,
) -> (Vec<PeerTool>, Vec<SetAside>) {
    let mut tools = Vec::new();
    let mut set_aside = Vec::new();
    let mut others = Vec::new();
    let mut names = HashSet::new();
    let takes_all = settings.tools.iter().any(|name| name == "*");
    for tool in &listed {
        if !takes_all && !settings.tools.iter().any(|name| *name == tool.name) {
            others.push(shown(&tool.name));
            continue;
        }
        let made = definition(tool).and_then(|definition| {
            if names.insert(definition.name.clone()) {
                Ok(definition)
            } else {
                Err("another of its tools comes to the same name".to_owned())
            }
        });
        match made {
            Ok(definition) => tools.push(PeerTool {
                definition,
                original: tool.name.to_string(),
            }),
            Err(why) => set_aside.push(SetAside {
                what: format!("{}.{}", settings.name, shown(&tool.name)),
                why,
            }),
        }
    }
    if !others.is_empty() {
        others.sort();
        set_aside.push(SetAside {
            what: format!("the MCP server `{}`", settings.name),
            why: format!(
                "it also has {}; `mcp.{}.tools` does not list them",
                shown(&others.join(", ")),
                settings.name
            ),
        });
    }
    for name in &settings.tools {
        if name != "*" && !listed.iter().any(|tool| tool.name == *name) {
            set_aside.push(SetAside {
                what: format!("the MCP server `{}`", settings.name),
                why: format!(
                    "it has no tool `{}`, which `mcp.{}.tools` lists",
                    shown(name),
                    settings.name
                ),
            });
        }
    }
    (tools, set_aside)
}

fn definition(tool: &Tool) -> Result<ToolDefinition, String> {
    let name: String = tool
        .name
        .chars()
        .map(|c| {
            if c.is_ascii_alphanumeric() || c == '-' {
                c
            } else {
                '_'
            }
        })
        .collect();
    let name = ToolName::parse(&name).map_err(|e| format!("its name can't be used: {e}"))?;
    let at_most = |field: &str, size: usize, limit: usize| {
        if size > limit {
            Err(format!(
                "its {field} has {size} bytes, and the limit is {limit}"
            ))
        } else {
            Ok(())
        }
    };
    let description = tool.description.as_deref().unwrap_or_default();
    at_most("description", description.len(), DESCRIPTION_BYTES)?;
    let input = Value::Object(tool.input_schema.as_ref().clone());
    at_most("input schema", input.to_string().len(), SCHEMA_BYTES)?;
    let output = tool
        .output_schema
        .as_ref()
        .map(|schema| Value::Object(schema.as_ref().clone()));
    if let Some(output) = &output {
        at_most("output schema", output.to_string().len(), SCHEMA_BYTES)?;
    }
    let mut definition = ToolDefinition::new(name, description, input);
    definition.output_schema = output;
    definition.title = tool
        .title
        .clone()
        .filter(|title| title.len() <= TITLE_BYTES);
    if let Some(hints) = &tool.annotations {
        let default = Annotations::default();
        definition.annotations = Annotations {
            read_only: hints.read_only_hint.unwrap_or(default.read_only),
            destructive: hints.destructive_hint.unwrap_or(default.destructive),
            idempotent: hints.idempotent_hint.unwrap_or(default.idempotent),
            open_world: hints.open_world_hint.unwrap_or(default.open_world),
        };
    }
    Ok(definition)
}

pub(super) fn outcome(result: CallToolResult, limit_bytes: usize) -> ToolOutcome {
    let mut bytes = 0_usize;
    let mut blocks = Vec::with_capacity(result.content.len());
    for block in result.content {
        let block = match content(block) {
            Ok(block) => block,
            Err(why) => return ToolOutcome::BadOutput { why },
        };
        bytes = bytes.saturating_add(size(&block));
        blocks.push(block);
    }
    if result.is_error == Some(true) {
        let texts = blocks.iter().filter_map(|block| match block {
            Content::Text(text) => Some(text.as_str()),
            _ => None,
        });
        let message = texts.collect::<Vec<_>>().join("\n");
        return if message.len() > limit_bytes {
            ToolOutcome::OutputTooLarge { limit_bytes }
        } else {
            ToolOutcome::Failed { message }
        };
    }
    if let Some(structured) = result.structured_content {
        bytes = bytes.saturating_add(structured.to_string().len());
        // By the protocol the texts say the same once more.
        blocks.retain(|block| !matches!(block, Content::Text(_)));
        blocks.push(Content::Json(structured));
    }
    if bytes > limit_bytes {
        return ToolOutcome::OutputTooLarge { limit_bytes };
    }
    ToolOutcome::Answered(blocks)
}

fn content(block: ContentBlock) -> Result<Content, String> {
    let decode = |data: &str| {
        BASE64
            .decode(data)
            .map_err(|_| "a block of its answer is not base64".to_owned())
    };
    Ok(match block {
        ContentBlock::Text(text) => Content::Text(text.text),
        ContentBlock::Image(image) => Content::Image {
            data: decode(&image.data)?,
            media_type: image.mime_type,
        },
        ContentBlock::Audio(audio) => Content::Audio {
            data: decode(&audio.data)?,
            media_type: audio.mime_type,
        },
        ContentBlock::Resource(embedded) => match embedded.resource {
            ResourceContents::TextResourceContents {
                uri,
                mime_type,
                text,
                ..
            } => Content::Resource {
                uri,
                media_type: mime_type,
                body: ResourceBody::Text(text),
            },
            ResourceContents::BlobResourceContents {
                uri,
                mime_type,
                blob,
                ..
            } => Content::Resource {
                uri,
                media_type: mime_type,
                body: ResourceBody::Bytes(decode(&blob)?),
            },
            _ => {
                return Err("its answer has a resource of a kind that is not known here".to_owned());
            }
        },
        ContentBlock::ResourceLink(link) => Content::Text(format!("{}: {}", link.name, link.uri)),
        _ => return Err("its answer has a block of a kind that is not known here".to_owned()),
    })
}

fn size(block: &Content) -> usize {
    match block {
        Content::Text(text) => text.len(),
        Content::Image { media_type, data } | Content::Audio { media_type, data } => {
            media_type.len() + data.len()
        }
        Content::Resource { uri, body, .. } => {
            uri.len()
                + match body {
                    ResourceBody::Text(text) => text.len(),
                    ResourceBody::Bytes(bytes) => bytes.len(),
                }
        }
        Content::Json(value) => value.to_string().len(),
    }
}

/// A server's text on its way into a message.
pub(super) fn shown(text: &str) -> String {
    crate::harmless::shown(text, TRAP_TEXT_BYTES / 2, false)
}
