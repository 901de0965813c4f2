//! The smallest tool: what a call costs by itself.

use agentloop_sdk::{tool, tools};

/// Give the text back.
#[tool(read_only, closed_world, idempotent)]
fn echo(text: String) -> String {
    text
}

tools![echo];
