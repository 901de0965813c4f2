//! What a run came to.

use std::fmt::Write as _;

use serde::Serialize;
use serde_json::{Map, Value};

use crate::{
    agent::run::{RunStatus, TurnRecord},
    transcript::{Message, Role, StopReason, Usage},
};

/// The end of a run: its history, its trace and its counts.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RunResult {
    #[serde(flatten)]
    pub status: RunStatus,
    /// Of the last reply; none when the model never answered.
    pub stop_reason: Option<StopReason>,
    /// The whole conversation. It is valid whatever the status, so a run can be continued from it.
    pub messages: Vec<Message>,
    /// One record per reply.
    pub trace: Vec<TurnRecord>,
    /// All requests together.
    pub tokens: Usage,
    /// What was counted before attempts to ask the model broke off: partial, and not part of `tokens`.
    pub lost_tokens: Usage,
}

impl RunResult {
    /// The last text of the model's, if the conversation ends with it or has one at all.
    pub fn final_text(&self) -> Option<&str> {
        let replies = self
            .messages
            .iter()
            .rev()
            .filter(|message| message.role == Role::Assistant);
        replies.filter_map(Message::last_text).next()
    }

    /// The trace for people: a step per reply, with its calls, results and tokens.
    pub fn to_markdown(&self) -> String {
        let mut text = String::new();
        for turn in &self.trace {
            let dropped = if turn.dropped { " (not kept)" } else { "" };
            let _ = writeln!(
                text,
                "## Step {} stop_reason={}{dropped}",
                turn.turn,
                turn.stop_reason.as_str()
            );
            for call in &turn.calls {
                let label = if call.result.is_error { "error" } else { "ok" };
                let _ = writeln!(
                    text,
                    "- `{}({})` → [{label}] {}",
                    call.tool,
                    spaced(&call.input),
                    call.result.text().replace('\n', "\n  ")
                );
            }
            for line in turn.text.lines() {
                let _ = writeln!(text, "> {line}");
            }
            let _ = writeln!(
                text,
                "*tokens: {} in / {} out*\n",
                count(turn.usage.input),
                count(turn.usage.output)
            );
        }
        let Usage {
            input,
            output,
            cache_read,
            cache_write,
        } = self.tokens;
        let _ = writeln!(
            text,
            "## Total tokens — input: {} output: {} cache_read: {} cache_write: {}",
            count(input),
            count(output),
            count(cache_read),
            count(cache_write)
        );
        text
    }
}

fn count(tokens: Option<u64>) -> String {
    tokens.map_or_else(|| "?".into(), |n| n.to_string())
}

/// JSON with a blank after `:` and `,`, as people write it on one line.
fn spaced(input: &Map<String, Value>) -> String {
    struct Spaced;
    impl serde_json::ser::Formatter for Spaced {
        fn begin_object_key<W: ?Sized + std::io::Write>(
            &mut self,
            to: &mut W,
            first: bool,
        ) -> std::io::Result<()> {
            if first { Ok(()) } else { to.write_all(b", ") }
        }
        fn begin_object_value<W: ?Sized + std::io::Write>(
            &mut self,
            to: &mut W,
        ) -> std::io::Result<()> {
            to.write_all(b": ")
        }
        fn begin_array_value<W: ?Sized + std::io::Write>(
            &mut self,
            to: &mut W,
            first: bool,
        ) -> std::io::Result<()> {
            if first { Ok(()) } else { to.write_all(b", ") }
        }
    }
    let mut bytes = Vec::new();
    let mut serializer = serde_json::Serializer::with_formatter(&mut bytes, Spaced);
    match input.serialize(&mut serializer) {
        Ok(()) => String::from_utf8_lossy(&bytes).into_owned(),
        Err(_) => Value::Object(input.clone()).to_string(),
    }
}
