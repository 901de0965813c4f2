//! Tools that use what the host keeps for them.

use agentloop_sdk::{Image, Json, Result, ToolError, http, log, output, progress, tool, tools};

/// Fetch a page, and tell all that came.
#[tool(
    http("*", methods = ["GET", "POST", "TRACE"], reason = "to fetch what is asked for"),
    secret("tickets", reason = "to sign in"),
    secret("weather", reason = "to sign in elsewhere")
)]
fn fetch(url: String, method: Option<String>, headers: Option<Vec<String>>) -> Result<String> {
    let mut request = http::Request::new(method.unwrap_or("GET".to_owned()), url);
    for header in headers.iter().flatten() {
        let (name, value) = header
            .split_once(": ")
            .ok_or_else(|| ToolError::new("no header"))?;
        request = request.header(name, value);
    }
    let response = request.send()?;
    Ok(format!(
        "{} {:?} {}",
        response.status,
        response.headers,
        response.text()
    ))
}

#[output]
struct Told {
    value: String,
}

/// Tell a text in some way.
#[tool(secret("tickets", reason = "to sign in"))]
fn tell(how: String, value: String) -> Result<String> {
    match how.as_str() {
        "answer" => return Ok(format!("it is {value}")),
        "error" => return Err(ToolError::new(value)),
        "denied" => return Err(ToolError::denied(value)),
        "arguments" => return Err(ToolError::invalid_arguments(value)),
        "panic" => panic!("{value}"),
        "log" => log!(error, "{value}"),
        "progress" => progress(1, 2, value),
        "stdout" => print!("{value}"),
        "stderr" => eprintln!("{value}"),
        "pieces" => value.chars().for_each(|c| print!("{c}")),
        "environment" => return Ok(format!("{:?}", std::env::vars().collect::<Vec<_>>())),
        _ => return Err(ToolError::new("no such way")),
    }
    Ok("told".to_owned())
}

/// Tell a text in an object.
#[tool(secret("tickets", reason = "to sign in"))]
fn tell_object(value: String) -> Json<Told> {
    Json(Told { value })
}

/// Tell a text as a picture.
#[tool(secret("tickets", reason = "to sign in"))]
fn tell_picture(value: String) -> Image {
    Image::png(value.into_bytes())
}

tools![fetch, tell, tell_object, tell_picture];
