//! Tools that behave.

use std::{fs, path::Path, thread, time::Duration};

use agentloop_sdk::{Image, Json, Result, ToolError, http, log, output, progress, tool, tools};

/// Give the text back.
#[tool(read_only, closed_world, idempotent)]
fn echo(text: String) -> String {
    text
}

/// Add two numbers.
#[tool(read_only, closed_world, idempotent)]
fn add(a: i64, b: i64) -> i64 {
    a + b
}

/// Wait a while.
#[tool(read_only, closed_world)]
fn sleep(
    /// In milliseconds
    ms: u64,
) -> String {
    thread::sleep(Duration::from_millis(ms));
    format!("slept {ms} ms")
}

/// Compute for a while, with the time told by a clock.
#[tool(read_only, closed_world)]
fn work(
    /// In milliseconds
    ms: u64,
) -> String {
    let start = std::time::Instant::now();
    let mut rounds = 0_u64;
    while start.elapsed() < Duration::from_millis(ms) {
        rounds = std::hint::black_box(rounds + 1);
    }
    "done".to_owned()
}

/// Compute the same amount whatever the time.
#[tool(read_only, closed_world)]
fn count(to: u64) -> u64 {
    let mut n = 0;
    while n < to {
        n = std::hint::black_box(n + 1);
    }
    n
}

/// Always fails.
#[tool(read_only, closed_world)]
fn fail(message: String) -> Result<String> {
    Err(ToolError::new(message))
}

/// Say that the arguments are wrong.
#[tool(read_only, closed_world)]
fn reject(fault: String) -> Result<String> {
    Err(ToolError::invalid_arguments(fault))
}

/// Log lines and report progress.
#[tool(read_only, closed_world)]
fn narrate(lines: u32) -> String {
    for n in 0..lines {
        log!(info, "line {n}");
        progress(n + 1, lines, "going on");
    }
    println!("printed");
    eprintln!("complained");
    "told".to_owned()
}

#[output]
struct Sum {
    sum: i64,
}

/// Add two numbers and tell it in every way.
#[tool(read_only, closed_world)]
fn show(a: i64, b: i64) -> (String, Image, Json<Sum>) {
    let text = format!("{a} + {b}");
    (text, Image::png(PNG), Json(Sum { sum: a + b }))
}

/// One transparent pixel.
const PNG: &[u8] = &[
    0x89, 0x50, 0x4e, 0x47, 0x0d, 0x0a, 0x1a, 0x0a, 0x00, 0x00, 0x00, 0x0d, 0x49, 0x48, 0x44, 0x52,
    0x00, 0x00, 0x00, 0x01, 0x00, 0x00, 0x00, 0x01, 0x08, 0x06, 0x00, 0x00, 0x00, 0x1f, 0x15, 0xc4,
    0x89, 0x00, 0x00, 0x00, 0x0a, 0x49, 0x44, 0x41, 0x54, 0x78, 0x9c, 0x63, 0x00, 0x01, 0x00, 0x00,
    0x05, 0x00, 0x01, 0x0d, 0x0a, 0x2d, 0xb4, 0x00, 0x00, 0x00, 0x00, 0x49, 0x45, 0x4e, 0x44, 0xae,
    0x42, 0x60, 0x82,
];

/// Read a file.
#[tool(read_only, folder("*", read, reason = "to read what is asked for"))]
fn read(path: String) -> Result<String> {
    Ok(fs::read_to_string(path)?)
}

/// Write a file.
#[tool(folder("*", write, reason = "to write what is asked for"))]
fn write(path: String, text: String) -> Result<String> {
    fs::write(path, text)?;
    Ok("written".to_owned())
}

/// List a folder.
#[tool(read_only, folder("*", read, reason = "to look around"))]
fn list(path: String) -> Result<String> {
    let mut names = fs::read_dir(path)?
        .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
        .collect::<std::io::Result<Vec<_>>>()?;
    names.sort();
    Ok(names.join("\n"))
}

/// Read the notes, which have a fixed place.
#[tool(read_only, folder("/notes", read, reason = "the notes are there"))]
fn notes() -> Result<String> {
    Ok(fs::read_to_string(Path::new("/notes/today.txt"))?)
}

/// Write to a folder and then never end.
#[tool(folder("/out", write, reason = "to leave something"))]
fn write_and_hang() -> Result<String> {
    fs::write("/out/left.txt", "left")?;
    loop {
        thread::sleep(Duration::from_secs(60));
    }
}

/// Tell the environment.
#[tool(
    read_only,
    env("FOO", reason = "to tell it"),
    env("BAR", reason = "to tell it")
)]
fn environment() -> String {
    let mut all: Vec<_> = std::env::vars().map(|(k, v)| format!("{k}={v}")).collect();
    all.sort();
    format!(
        "{}|{:?}|{:?}",
        all.join(","),
        std::env::args().collect::<Vec<_>>(),
        std::io::read_to_string(std::io::stdin()),
    )
}

/// Fetch a page.
#[tool(read_only, http("*", reason = "to fetch what is asked for"))]
fn fetch(url: String) -> Result<String> {
    Ok(http::get(url)?.error_for_status()?.text())
}

/// Send so many bytes, and say what came back.
#[tool(http("*", methods = ["POST"], reason = "to send what is asked for"))]
fn post(url: String, bytes: usize) -> Result<String> {
    let request = http::Request::post(url).body(vec![b'x'; bytes]);
    Ok(request.send()?.error_for_status()?.text())
}

/// Fetch a page of an origin that was not asked for.
#[tool(
    read_only,
    http("https://api.example.org", reason = "to fetch from there")
)]
fn fetch_elsewhere(url: String) -> Result<String> {
    Ok(http::get(url)?.text())
}

tools![
    echo,
    add,
    sleep,
    work,
    count,
    fail,
    reject,
    narrate,
    show,
    read,
    write,
    list,
    notes,
    write_and_hang,
    environment,
    fetch,
    post,
    fetch_elsewhere,
];
