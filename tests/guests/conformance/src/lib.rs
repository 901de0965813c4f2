//! What the MCP conformance suite wants a server's tools to do, as far as a component can do it.
#![allow(
    non_camel_case_types,
    reason = "a tool's type has the name that the suite calls"
)]

use std::{thread, time::Duration};

use agentloop_sdk::{
    Audio, Content, Definition, Image, Resource, Result, Tool, ToolError, Value,
    definition::Annotations, json, log, progress, tool, tools,
};

/// The suite watches for things that happen one after another.
const PAUSE: Duration = Duration::from_millis(50);

/// Answer with one text.
#[tool(read_only, closed_world)]
fn test_simple_text() -> &'static str {
    "This is a simple text response for testing."
}

/// Answer with one picture.
#[tool(read_only, closed_world)]
fn test_image_content() -> Image {
    Image::png(PNG)
}

/// Answer with one sound.
#[tool(read_only, closed_world)]
fn test_audio_content() -> Audio {
    Audio::wav(WAV)
}

/// Answer with one document.
#[tool(read_only, closed_world)]
fn test_embedded_resource() -> Resource {
    Resource::text(
        "test://embedded-resource",
        "This is an embedded resource content.",
    )
    .media_type("text/plain")
}

/// Answer with a text, a picture and a document.
#[tool(read_only, closed_world)]
fn test_multiple_content_types() -> (&'static str, Image, Resource) {
    let document = Resource::text(
        "test://mixed-content-resource",
        r#"{"test":"data","value":123}"#,
    );
    (
        "Multiple content types test:",
        Image::png(PNG),
        document.media_type("application/json"),
    )
}

/// Log three lines.
#[tool(read_only, closed_world)]
fn test_tool_with_logging() -> &'static str {
    log!(info, "Tool execution started");
    thread::sleep(PAUSE);
    log!(info, "Tool processing data");
    thread::sleep(PAUSE);
    log!(info, "Tool execution completed");
    "Tool with logging executed successfully"
}

/// Log a line, which goes out only where it is asked for.
#[tool(read_only, closed_world)]
fn test_logging_tool() -> &'static str {
    log!(info, "a line that nobody asked for");
    "logged"
}

/// Fail.
#[tool(read_only, closed_world)]
fn test_error_handling() -> Result<String> {
    Err(ToolError::new(
        "This tool intentionally returns an error for testing",
    ))
}

/// Report progress three times.
#[tool(read_only, closed_world)]
fn test_tool_with_progress() -> &'static str {
    for done in [0, 50, 100] {
        progress(done, 100, "");
        if done < 100 {
            thread::sleep(PAUSE);
        }
    }
    "Tool with progress executed successfully"
}

/// Stream reports and nothing that wants an answer.
#[tool(read_only, closed_world)]
fn test_streaming_elicitation() -> &'static str {
    progress(1, 1, "");
    "streamed"
}

/// Greet by name.
#[tool(read_only, closed_world)]
fn greet(name: String) -> String {
    format!("Hello, {name}!")
}

/// Answer with links.
#[tool(read_only, closed_world)]
fn test_resource_links() -> Resource {
    let links = "# The first\ntest://first\ntest://second.txt\n";
    Resource::text("test://links", links).media_type("text/uri-list")
}

/// Add two numbers, and say the sum as JSON of a known shape.
struct test_structured_output;

impl Tool for test_structured_output {
    const DEFINITION: &'static Definition = &by_hand(
        "test_structured_output",
        r#"{"type":"object","properties":{"a":{"type":"integer"},"b":{"type":"integer"}},"required":["a","b"]}"#,
        Some(r#"{"type":"object","properties":{"sum":{"type":"integer"}},"required":["sum"]}"#),
    );

    fn call(arguments: &str) -> Result<Vec<Content>> {
        let arguments: Value = arguments.parse()?;
        let sum = arguments["a"].as_i64().unwrap_or(0) + arguments["b"].as_i64().unwrap_or(0);
        Ok(vec![Content::Json(json!({ "sum": sum }))])
    }
}

/// Its schema has to arrive as it stands here.
struct json_schema_2020_12_tool;

impl Tool for json_schema_2020_12_tool {
    const DEFINITION: &'static Definition = &by_hand(
        "json_schema_2020_12_tool",
        concat!(
            r#"{"$schema":"https://json-schema.org/draft/2020-12/schema","type":"object","#,
            r#""$defs":{"address":{"$anchor":"addressDef","type":"object","#,
            r#""properties":{"street":{"type":"string"},"city":{"type":"string"}}}},"#,
            r##""properties":{"name":{"type":"string"},"address":{"$ref":"#/$defs/address"},"##,
            r#""contactMethod":{"type":"string","enum":["phone","email"]},"#,
            r#""phone":{"type":"string"},"email":{"type":"string"}},"#,
            r#""allOf":[{"anyOf":[{"required":["phone"]},{"required":["email"]}]}],"#,
            r#""if":{"properties":{"contactMethod":{"const":"phone"}},"required":["contactMethod"]},"#,
            r#""then":{"required":["phone"]},"else":{"required":["email"]},"additionalProperties":false}"#,
        ),
        None,
    );

    fn call(arguments: &str) -> Result<Vec<Content>> {
        Ok(vec![Content::Text(arguments.to_owned())])
    }
}

/// One of its arguments also stands in a header.
struct test_header_argument;

impl Tool for test_header_argument {
    const DEFINITION: &'static Definition = &by_hand(
        "test_header_argument",
        concat!(
            r#"{"type":"object","properties":{"region":{"type":"string","x-mcp-header":"Region"}},"#,
            r#""required":["region"]}"#,
        ),
        None,
    );

    fn call(arguments: &str) -> Result<Vec<Content>> {
        Ok(vec![Content::Text(arguments.to_owned())])
    }
}

/// For schemas that the macro would not write in just this way.
const fn by_hand(
    name: &'static str,
    input_schema: &'static str,
    output_schema: Option<&'static str>,
) -> Definition {
    Definition {
        name,
        title: None,
        description: "A tool whose schema is written by hand.",
        input_schema,
        output_schema,
        annotations: Annotations {
            read_only: true,
            destructive: false,
            idempotent: true,
            open_world: false,
        },
        parallel_safe: true,
        timeout_ms: None,
        requests: &[],
    }
}

/// One transparent pixel.
const PNG: &[u8] = &[
    0x89, 0x50, 0x4e, 0x47, 0x0d, 0x0a, 0x1a, 0x0a, 0x00, 0x00, 0x00, 0x0d, 0x49, 0x48, 0x44, 0x52,
    0x00, 0x00, 0x00, 0x01, 0x00, 0x00, 0x00, 0x01, 0x08, 0x06, 0x00, 0x00, 0x00, 0x1f, 0x15, 0xc4,
    0x89, 0x00, 0x00, 0x00, 0x0a, 0x49, 0x44, 0x41, 0x54, 0x78, 0x9c, 0x63, 0x00, 0x01, 0x00, 0x00,
    0x05, 0x00, 0x01, 0x0d, 0x0a, 0x2d, 0xb4, 0x00, 0x00, 0x00, 0x00, 0x49, 0x45, 0x4e, 0x44, 0xae,
    0x42, 0x60, 0x82,
];

/// No samples, 8 kHz, one channel of 8 bits.
const WAV: &[u8] = &[
    0x52, 0x49, 0x46, 0x46, 0x24, 0x00, 0x00, 0x00, 0x57, 0x41, 0x56, 0x45, 0x66, 0x6d, 0x74, 0x20,
    0x10, 0x00, 0x00, 0x00, 0x01, 0x00, 0x01, 0x00, 0x40, 0x1f, 0x00, 0x00, 0x40, 0x1f, 0x00, 0x00,
    0x01, 0x00, 0x08, 0x00, 0x64, 0x61, 0x74, 0x61, 0x00, 0x00, 0x00, 0x00,
];

tools![
    test_simple_text,
    test_image_content,
    test_audio_content,
    test_embedded_resource,
    test_multiple_content_types,
    test_tool_with_logging,
    test_logging_tool,
    test_error_handling,
    test_tool_with_progress,
    test_streaming_elicitation,
    test_resource_links,
    greet,
    test_structured_output,
    json_schema_2020_12_tool,
    test_header_argument,
];
