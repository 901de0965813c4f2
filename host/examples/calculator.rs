//! Several questions at once: the model calls one tool three times in one reply, and the calls run in
//! parallel.
//!
//! `cargo run -p agentloop-host --example calculator` lets a script be the model. With `ANTHROPIC_API_KEY`
//! set, a real one answers.

use std::sync::Arc;

use agentloop_host::{
    agent::ToolLoop,
    provider::{Anthropic, AnthropicSettings, Provider, Scripted, Secret},
    registry::{Registry, native::NativeTool},
    transcript::Message,
};
use serde_json::{Map, Value, json};

const QUESTION: &str = "What are 17 * 23, 2 to the power of 16, and 1001 / 7?";

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let schema = json!({
        "type": "object",
        "properties": {
            "a": {"type": "number"},
            "operator": {"type": "string", "enum": ["+", "-", "*", "/", "^"]},
            "b": {"type": "number"},
        },
        "required": ["a", "operator", "b"],
    });
    let calculate = NativeTool::new(
        "calculate",
        "Compute one operation exactly.",
        schema,
        calculate,
    )?;
    let mut agent = ToolLoop::new(
        model()?,
        "claude-opus-4-8",
        Arc::new(Registry::new([calculate])?),
    );
    agent.system = Some("You are a precise assistant. Always use tools for arithmetic.".into());

    let result = agent.run(vec![Message::user(QUESTION)]).await;
    println!("{}", result.to_markdown());
    println!(
        "{}",
        result.final_text().unwrap_or("(the model said nothing)")
    );
    Ok(())
}

fn calculate(arguments: Map<String, Value>) -> Result<Value, String> {
    let number = |name: &str| arguments[name].as_f64().ok_or("not a number");
    let (a, b) = (number("a")?, number("b")?);
    match arguments["operator"].as_str() {
        Some("+") => Ok(json!(a + b)),
        Some("-") => Ok(json!(a - b)),
        Some("*") => Ok(json!(a * b)),
        Some("/") if b == 0.0 => Err("division by zero".into()),
        Some("/") => Ok(json!(a / b)),
        Some("^") => Ok(json!(a.powf(b))),
        _ => Err("an operator that is not one of + - * / ^".into()),
    }
}

fn model() -> Result<Arc<dyn Provider>, Box<dyn std::error::Error>> {
    if let Ok(key) = std::env::var("ANTHROPIC_API_KEY") {
        let settings = AnthropicSettings::new(
            "https://api.anthropic.com".parse()?,
            Some(Secret::new(&key)),
        );
        let client =
            agentloop_host::http::model_client(&agentloop_host::http::ClientSettings::default())?;
        return Ok(Arc::new(Anthropic::new(settings, client)));
    }
    let call = |a: f64, operator: &str, b: f64| json!({"type": "tool_use", "name": "calculate", "input": {"a": a, "operator": operator, "b": b}});
    let script = json!({"replies": [
        {"content": [call(17.0, "*", 23.0), call(2.0, "^", 16.0), call(1001.0, "/", 7.0)]},
        {"content": [{"type": "text", "text": "They are 391, 65536 and 143."}]},
    ]});
    Ok(Arc::new(Scripted::from_value(&script)?))
}
