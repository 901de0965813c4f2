//! What a test hears of a streamed reply.

use std::time::Duration;

use super::{Delta, ProviderError, Watch};

/// Text as it is, reasoning in round and the names of calls in angle brackets.
#[derive(Default)]
pub(super) struct Heard(pub(super) String);

impl Watch for Heard {
    fn delta(&mut self, delta: Delta<'_>) {
        match delta {
            Delta::Text(text) => self.0.push_str(text),
            Delta::Reasoning(text) => self.0.push_str(&format!("({text})")),
            Delta::ToolUse { name } => self.0.push_str(&format!("<{name}>")),
        }
    }

    fn retrying(&mut self, _: u32, _: Duration, _: &ProviderError) {}
}
