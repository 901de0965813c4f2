//! The component's export: the contract's types on one side, the tools on the other.

use crate::{
    Content, ToolError,
    bindings::agentloop::tool::types,
    call::Entry,
    content::ResourceBody,
    definition::{Capability, Definition},
};

pub fn list(tools: &[Entry]) -> Vec<types::ToolDefinition> {
    tools
        .iter()
        .map(|tool| definition(tool.definition))
        .collect()
}

pub fn call(
    tools: &[Entry],
    name: &str,
    arguments: &str,
) -> Result<Vec<types::Content>, types::CallError> {
    let Some(tool) = tools.iter().find(|tool| tool.definition.name == name) else {
        return Err(types::CallError::UnknownTool);
    };
    match (tool.call)(arguments) {
        Ok(blocks) => Ok(blocks.into_iter().map(content).collect()),
        Err(ToolError::InvalidArguments(message)) => {
            Err(types::CallError::InvalidArguments(message))
        }
        Err(ToolError::Denied(message)) => Err(types::CallError::Denied(message)),
        Err(ToolError::Failed(message)) => Err(types::CallError::Failed(message)),
    }
}

fn definition(definition: &Definition) -> types::ToolDefinition {
    types::ToolDefinition {
        name: definition.name.into(),
        title: definition.title.map(Into::into),
        description: definition.description.into(),
        input_schema: definition.input_schema.into(),
        output_schema: definition.output_schema.map(Into::into),
        annotations: types::Annotations {
            read_only: definition.annotations.read_only,
            destructive: definition.annotations.destructive,
            idempotent: definition.annotations.idempotent,
            open_world: definition.annotations.open_world,
        },
        parallel_safe: definition.parallel_safe,
        timeout_ms: definition.timeout_ms,
        requests: definition
            .requests
            .iter()
            .filter_map(|request| {
                Some(types::Request {
                    capability: capability(&request.capability)?,
                    reason: request.reason.into(),
                })
            })
            .collect(),
    }
}

/// `None`: only the section can say it.
fn capability(capability: &Capability) -> Option<types::Capability> {
    Some(match *capability {
        Capability::Folder { path, write } => types::Capability::Folder(types::Folder {
            path: path.into(),
            access: if write {
                types::Access::Write
            } else {
                types::Access::Read
            },
        }),
        Capability::Http { origin, methods } => types::Capability::Http(types::Http {
            origin: origin.into(),
            methods: methods.iter().map(|&method| method.into()).collect(),
        }),
        Capability::Environment(name) => types::Capability::Environment(name.into()),
        Capability::Secret(_) => return None,
    })
}

fn content(content: Content) -> types::Content {
    match content {
        Content::Text(text) => types::Content::Text(text),
        Content::Image(image) => types::Content::Image(types::Media {
            media_type: image.media_type,
            data: image.data,
        }),
        Content::Audio(audio) => types::Content::Audio(types::Media {
            media_type: audio.media_type,
            data: audio.data,
        }),
        Content::Resource(resource) => types::Content::Resource(types::Embedded {
            uri: resource.uri,
            media_type: resource.media_type,
            body: match resource.body {
                ResourceBody::Text(text) => types::Body::Text(text),
                ResourceBody::Bytes(bytes) => types::Body::Bytes(bytes),
            },
        }),
        Content::Json(value) => types::Content::Json(value.to_string()),
    }
}
