//! From the way a call ended to the result that a client reads.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use rmcp::model::{CallToolResult, ContentBlock, Resource, ResourceContents};
use serde_json::Value;

use crate::{
    agent::call::CallRecord,
    tool::{Content, ResourceBody, ToolOutcome},
    transcript::ResultContent,
};

/// A text resource of this media type stands for links: RFC 2483, one URI a line, `#` before a comment, which
/// here names the links that follow.
const LINKS: &str = "text/uri-list";
/// Links of one answer.
const MAX_LINKS: usize = 1000;

/// The result of a call. An answer goes out whole, since the sandbox has bounded it; any other ending is the text
/// that a model would read.
pub(super) fn result(record: CallRecord) -> CallToolResult {
    match record.outcome {
        ToolOutcome::Answered(content) => answer(content),
        ToolOutcome::MalformedArguments { .. }
        | ToolOutcome::UnknownTool { .. }
        | ToolOutcome::InvalidArguments { .. }
        | ToolOutcome::Denied { .. }
        | ToolOutcome::ApprovalFailed { .. }
        | ToolOutcome::Failed { .. }
        | ToolOutcome::CapabilityRefused { .. }
        | ToolOutcome::Trapped { .. }
        | ToolOutcome::TimedOut { .. }
        | ToolOutcome::Abandoned { .. }
        | ToolOutcome::OutOfFuel { .. }
        | ToolOutcome::OutOfMemory { .. }
        | ToolOutcome::OutputTooLarge { .. }
        | ToolOutcome::BadOutput { .. }
        | ToolOutcome::Cancelled { .. }
        | ToolOutcome::OutcomeUnknown
        | ToolOutcome::Internal { .. } => CallToolResult::error(
            record
                .traced
                .result
                .content
                .into_iter()
                .map(block)
                .collect(),
        ),
    }
}

fn block(content: ResultContent) -> ContentBlock {
    match content {
        ResultContent::Text { text } => ContentBlock::text(text),
        ResultContent::Image(image) => ContentBlock::image(image.base64, image.media_type),
    }
}

fn answer(content: Vec<Content>) -> CallToolResult {
    let mut blocks = Vec::with_capacity(content.len());
    let mut structured = None;
    // Clients that know nothing of structured output read it as text, unless the tool has said it itself.
    let said = |value: &Value, content: &[Content]| {
        content.iter().any(|part| match part {
            Content::Text(text) => {
                serde_json::from_str::<Value>(text).is_ok_and(|said| said == *value)
            }
            Content::Image { .. }
            | Content::Audio { .. }
            | Content::Resource { .. }
            | Content::Json(_) => false,
        })
    };
    let is_said = content.iter().any(|part| match part {
        Content::Json(value) => said(value, &content),
        Content::Text(_)
        | Content::Image { .. }
        | Content::Audio { .. }
        | Content::Resource { .. } => false,
    });
    for part in content {
        match part {
            Content::Text(text) => blocks.push(ContentBlock::text(text)),
            Content::Image { media_type, data } => {
                blocks.push(ContentBlock::image(STANDARD.encode(data), media_type));
            }
            Content::Audio { media_type, data } => {
                blocks.push(ContentBlock::audio(STANDARD.encode(data), media_type));
            }
            Content::Resource {
                uri,
                media_type: Some(media_type),
                body: ResourceBody::Text(list),
            } if media_type == LINKS => blocks.extend(links(&uri, &list)),
            Content::Resource {
                uri,
                media_type,
                body,
            } => blocks.push(ContentBlock::resource(contents(uri, media_type, body))),
            Content::Json(value) => {
                if !is_said {
                    blocks.push(ContentBlock::text(value.to_string()));
                }
                structured = Some(value);
            }
        }
    }
    let mut result = CallToolResult::success(blocks);
    result.structured_content = structured;
    result
}

fn contents(uri: String, mime_type: Option<String>, body: ResourceBody) -> ResourceContents {
    match body {
        ResourceBody::Text(text) => ResourceContents::TextResourceContents {
            uri,
            mime_type,
            text,
            meta: None,
        },
        ResourceBody::Bytes(bytes) => ResourceContents::BlobResourceContents {
            uri,
            mime_type,
            blob: STANDARD.encode(bytes),
            meta: None,
        },
    }
}

/// The links of a list. An empty list is a link to the resource that it came as.
fn links(uri: &str, list: &str) -> Vec<ContentBlock> {
    let mut name = None;
    let mut links = Vec::new();
    for line in list.lines().map(str::trim).filter(|line| !line.is_empty()) {
        if let Some(comment) = line.strip_prefix('#') {
            name = Some(comment.trim());
        } else if links.len() < MAX_LINKS {
            links.push(link(line, name.take()));
        }
    }
    if links.is_empty() {
        links.push(link(uri, name));
    }
    links
}

fn link(uri: &str, name: Option<&str>) -> ContentBlock {
    let last = || uri.trim_end_matches('/').rsplit('/').next().unwrap_or(uri);
    ContentBlock::ResourceLink(Resource::new(uri, name.unwrap_or_else(last)))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{capability::Capability, ids::ToolUseId, tool::Refusal, transcript::ToolUse};

    fn rendered(outcome: ToolOutcome) -> Value {
        let id = ToolUseId::parse("call").unwrap();
        let result = crate::agent::result::tool_result(&id, "tool", &outcome);
        let tool_use = ToolUse::new("call", "tool", json!({})).unwrap();
        let record = CallRecord::new(&tool_use, outcome, result, None);
        serde_json::to_value(super::result(record)).unwrap()
    }

    #[test]
    fn every_kind_of_content_has_its_block() {
        let resource = |media_type: &str, body| Content::Resource {
            uri: "test://r".into(),
            media_type: Some(media_type.into()),
            body,
        };
        let result = rendered(ToolOutcome::Answered(vec![
            Content::Text("hi".into()),
            Content::Image {
                media_type: "image/png".into(),
                data: vec![1, 2],
            },
            Content::Audio {
                media_type: "audio/wav".into(),
                data: vec![3],
            },
            resource("text/plain", ResourceBody::Text("body".into())),
            resource("image/png", ResourceBody::Bytes(vec![4])),
            resource(
                LINKS,
                ResourceBody::Text("# The notes\nfile:///notes/a\nfile:///notes/b.txt\n".into()),
            ),
            Content::Json(json!({"n": 1})),
        ]));
        assert_eq!(
            result,
            json!({
                "resultType": "complete",
                "isError": false,
                "structuredContent": {"n": 1},
                "content": [
                    {"type": "text", "text": "hi"},
                    {"type": "image", "data": "AQI=", "mimeType": "image/png"},
                    {"type": "audio", "data": "Aw==", "mimeType": "audio/wav"},
                    {"type": "resource", "resource": {"uri": "test://r", "mimeType": "text/plain", "text": "body"}},
                    {"type": "resource", "resource": {"uri": "test://r", "mimeType": "image/png", "blob": "BA=="}},
                    {"type": "resource_link", "uri": "file:///notes/a", "name": "The notes"},
                    {"type": "resource_link", "uri": "file:///notes/b.txt", "name": "b.txt"},
                    {"type": "text", "text": "{\"n\":1}"},
                ],
            })
        );
    }

    #[test]
    fn structured_output_that_the_tool_has_said_is_not_said_again() {
        let result = rendered(ToolOutcome::Answered(vec![
            Content::Text("{ \"n\": 1 }".into()),
            Content::Json(json!({"n": 1})),
        ]));
        assert_eq!(result["content"].as_array().unwrap().len(), 1);
        assert_eq!(result["structuredContent"], json!({"n": 1}));
    }

    #[test]
    fn a_refused_access_is_an_error_result_with_class_target_and_remedy() {
        let result = rendered(ToolOutcome::CapabilityRefused {
            message: "no".into(),
            refusals: vec![Refusal {
                attempted: "GET https://api.example.org/v1".into(),
                missing: Capability::Environment { name: "KEY".into() },
                requested: true,
                remedy: "Add `x`.".into(),
            }],
        });
        assert_eq!(result["isError"], true);
        let text = result["content"][0]["text"].as_str().unwrap();
        for part in ["KEY", "GET https://api.example.org/v1", "Add `x`."] {
            assert!(text.contains(part), "{text}");
        }
    }
}
