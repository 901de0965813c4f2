//! An error is something the model can work with: the file that it asks for is not there, it reads so in the
//! result, and asks for another one.
//!
//! `cargo run -p agentloop-host --example filesystem_agent`

use std::{path::PathBuf, sync::Arc};

use agentloop_host::{
    agent::ToolLoop,
    provider::Scripted,
    registry::{Registry, native::NativeTool},
    transcript::Message,
};
use serde_json::json;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = tempfile::tempdir()?;
    std::fs::write(
        folder.path().join("notes.txt"),
        "The boiler was serviced in May.",
    )?;

    let root: PathBuf = folder.path().into();
    let schema = json!({
        "type": "object",
        "properties": {"name": {"type": "string", "pattern": "^[a-z]+\\.txt$"}},
        "required": ["name"],
    });
    let read = NativeTool::new(
        "read_file",
        "Read a text file by its name.",
        schema,
        move |arguments| {
            let name = arguments["name"].as_str().ok_or("no name")?;
            std::fs::read_to_string(root.join(name)).map_err(|error| format!("{name}: {error}"))
        },
    )?;
    let model = Scripted::from_value(&json!({"replies": [
        {"content": [{"type": "tool_use", "name": "read_file", "input": {"name": "todo.txt"}}]},
        {
            "expect": {"results": [{"is_error": true, "contains": "todo.txt"}]},
            "content": [{"type": "tool_use", "name": "read_file", "input": {"name": "notes.txt"}}],
        },
        {
            "expect": {"results": [{"is_error": false, "contains": "boiler"}]},
            "content": [{"type": "text", "text": "There is no to-do list, but the notes say: serviced in May."}],
        },
    ]}))?;

    let agent = ToolLoop::new(
        Arc::new(model),
        "scripted",
        Arc::new(Registry::new([read])?),
    );
    let result = agent
        .run(vec![Message::user("When was the boiler serviced?")])
        .await;
    println!("{}", result.to_markdown());
    Ok(())
}
