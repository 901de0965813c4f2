//! Tools that use all that the SDK has.

use std::{collections::BTreeMap, time::Duration};

use agentloop_sdk::{
    Audio, Content, Image, Json, Resource, Result, ToolError, args, http, json, log, output,
    progress, tool, tools,
};

/// Everything that can be said of a tool, with "quotes", a \ and an ü.
///
/// Two paragraphs.
#[tool(
    name = "every-option",
    title = "Every option",
    destructive = false,
    idempotent,
    closed_world,
    serial,
    timeout = "2m",
    http("https://*.example.org", methods = ["GET", "POST"], reason = "to send \"things\""),
    http("*", reason = "to look anywhere"),
    folder("/notes", write, reason = "to keep notes"),
    folder("*", read, reason = "to look around"),
    env("HOME_CITY", reason = "the default city")
)]
fn every_option(
    /// What to do
    r#do: String,
    tree: Option<Box<Node>>,
) -> Result<Json<Node>> {
    Ok(Json(Node {
        name: r#do,
        next: tree,
    }))
}

/// A node of a list.
#[args]
#[output]
struct Node {
    name: String,
    next: Option<Box<Node>>,
}

/// Answer with every kind of content.
#[tool(read_only)]
fn contents() -> (
    String,
    Image,
    Audio,
    Vec<Resource>,
    Option<Content>,
    Json<agentloop_sdk::Value>,
) {
    (
        "text".into(),
        Image::png([1, 2]),
        Audio::wav([3]),
        vec![
            Resource::text("note:1", "a note").media_type("text/plain"),
            Resource::bytes("note:2", [0xff]),
        ],
        None,
        Json(json!({"n": 1.5})),
    )
}

/// Fail in one of the ways in which a tool can.
#[tool(read_only)]
fn fail(how: How) -> Result<()> {
    match how {
        How::Invalid => Err(ToolError::invalid_arguments("`how` is no good")),
        How::Denied => Err(ToolError::denied("`how` is not granted")),
        How::Error => Ok("x".parse::<u8>().map(|_| ())?),
        How::Text => Err("only a text")?,
        How::Panic => panic!("the cat is {} on the mat", "not"),
        How::Unwrap => {
            let nothing: Option<u8> = std::hint::black_box(None);
            nothing.unwrap();
            Ok(())
        }
    }
}

#[args]
#[serde(rename_all = "lowercase")]
enum How {
    Invalid,
    Denied,
    Error,
    Text,
    Panic,
    Unwrap,
}

/// Tell the operator something.
#[tool(read_only)]
fn tell(text: String) {
    log!(debug, "{text} 1");
    log::info!("{text} 2");
    log::warn!("{} 3", text);
    log!(error, "{text} 4");
    progress(1, 2, &text);
    progress(1.5, None, "");
}

/// Send a request and tell what became of it.
#[tool(http("*", methods = ["GET", "POST"], reason = "to send what is asked for"))]
fn request(
    method: String,
    url: String,
    #[default(Default::default())] headers: BTreeMap<String, String>,
    body: Option<String>,
    #[default(5_000)] timeout_ms: u64,
    #[default(1_000_000)] max_body_bytes: u32,
) -> Json<agentloop_sdk::Value> {
    let mut request = http::Request::new(method, url)
        .timeout(Duration::from_millis(timeout_ms))
        .max_body_bytes(max_body_bytes as usize);
    for (name, value) in headers {
        request = request.header(name, value);
    }
    if let Some(body) = body {
        request = request.body(body);
    }
    Json(match request.send() {
        Ok(response) => json!({
            "status": response.status,
            "url": response.url,
            "type": response.header("content-type"),
            "text": response.text(),
        }),
        Err(error) => {
            let kind = match &error {
                http::Error::Denied { .. } => "denied",
                http::Error::AddressDenied { .. } => "address denied",
                http::Error::Timeout { .. } => "timeout",
                http::Error::Connection { .. } => "connection",
                http::Error::Certificate { .. } => "certificate",
                http::Error::TooLarge { .. } => "too large",
                _ => "other",
            };
            json!({"error": kind, "message": error.to_string()})
        }
    })
}

/// Send a request and leave its failure to the SDK.
#[tool(read_only, http("*", reason = "to send what is asked for"))]
fn get(url: String) -> Result<String> {
    Ok(http::get(url)?.text())
}

/// Read a file and leave its failure to the SDK.
#[tool(read_only, folder("/notes", read, reason = "to read notes"))]
fn read(path: String) -> Result<String> {
    Ok(std::fs::read_to_string(path)?)
}

tools![every_option, contents, fail, tell, request, get, read];
