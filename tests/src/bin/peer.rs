//! An MCP server over standard input and output, with tools that behave and some that do not.

use std::{
    env,
    io::{self, BufRead as _, Write as _},
    process::Command,
    thread,
    time::Duration,
};

use serde_json::{Value, json};

fn main() {
    let stdin = io::stdin();
    for line in stdin.lock().lines().map_while(Result::ok) {
        let Ok(request) = serde_json::from_str::<Value>(&line) else {
            continue;
        };
        let Some(id) = request.get("id") else {
            continue;
        };
        let answer = match request["method"].as_str().unwrap_or_default() {
            "initialize" => json!({ "result": {
                "protocolVersion": request["params"]["protocolVersion"],
                "capabilities": { "tools": {} },
                "serverInfo": { "name": "peer", "version": "1" },
            } }),
            "tools/list" => json!({ "result": { "tools": tools() } }),
            "tools/call" => {
                let name = request["params"]["name"].as_str().unwrap_or_default();
                call(name, &request["params"]["arguments"])
            }
            _ => json!({ "error": { "code": -32601, "message": "no such method" } }),
        };
        let mut answer = answer;
        answer["jsonrpc"] = json!("2.0");
        answer["id"] = id.clone();
        println!("{answer}");
        let _ = io::stdout().flush();
    }
}

fn tools() -> Value {
    let text = json!({ "type": "object", "properties": { "text": { "type": "string" } }, "required": ["text"] });
    let tool = |name: &str, schema: &Value| json!({ "name": name, "description": format!("The tool {name}"), "inputSchema": schema });
    json!([
        tool("echo", &text),
        tool("fail", &text),
        tool("odd.name", &text),
        tool("variables", &json!({ "type": "object" })),
        tool("picture", &json!({ "type": "object" })),
        tool("structured", &json!({ "type": "object" })),
        tool("count", &json!({ "type": "object" })),
        tool("die", &json!({ "type": "object" })),
        tool("hang", &text),
        tool("flood", &json!({ "type": "object" })),
        tool("unlisted", &json!({ "type": "object" })),
    ])
}

fn call(name: &str, arguments: &Value) -> Value {
    static CALLS: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
    let text =
        |text: String| json!({ "result": { "content": [{ "type": "text", "text": text }] } });
    let given = arguments["text"].as_str().unwrap_or_default();
    match name {
        "echo" | "odd.name" => text(given.to_owned()),
        "fail" => {
            json!({ "result": { "isError": true, "content": [{ "type": "text", "text": given }] } })
        }
        "variables" => {
            let mut names: Vec<_> = env::vars().map(|(name, _)| name).collect();
            names.sort();
            text(names.join(" "))
        }
        "picture" => json!({ "result": { "content": [
            { "type": "image", "mimeType": "image/png", "data": "AP+A" },
        ] } }),
        "structured" => json!({ "result": {
            "content": [{ "type": "text", "text": "{\"a\":1}" }],
            "structuredContent": { "a": 1 },
        } }),
        "count" => {
            let calls = CALLS.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            text((calls + 1).to_string())
        }
        "die" => std::process::exit(1),
        // Its child would outlive it, and says so by holding the file open for ever.
        "hang" => {
            let child = Command::new("sleep").arg("600").spawn();
            if let Ok(child) = child {
                let _ = std::fs::write(given, child.id().to_string());
            }
            loop {
                thread::sleep(Duration::from_secs(1));
            }
        }
        "flood" => text("x".repeat(20 << 20)),
        _ => json!({ "error": { "code": -32602, "message": "no such tool" } }),
    }
}
