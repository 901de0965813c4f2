//! How a call ended, told from what the guest gave, the traps it ran into and what the host remembers of it.

use std::time::Duration;

use serde_json::Value;
use wasmtime::{Trap, WasmBacktrace};
use wasmtime_wasi::I32Exit;

use super::{
    bindings::agentloop::tool::types::{self as wit, CallError},
    limits::TRAP_TEXT_BYTES,
    output::GuestOutput,
    scrub::Scrubber,
};
use crate::{
    capability::Limits,
    harmless::shown,
    tool::{Content, Effects, Refusal, ResourceBody, ToolOutcome},
};

/// What came of running the guest.
pub(super) enum Ran {
    Returned(wasmtime::Result<Result<Vec<wit::Content>, CallError>>),
    /// The time was over while the guest waited in the host.
    Late,
}

/// What the host knows of a call that is over.
pub(super) struct Facts<'a> {
    pub(super) limits: &'a Limits,
    pub(super) memory_refused: bool,
    pub(super) output: &'a GuestOutput,
    /// What was reached for and not granted; asked only of a tool that gave up, with its words.
    pub(super) refusals: &'a dyn Fn(&str) -> Vec<Refusal>,
    /// What an operator can do about requests that failed for other reasons.
    pub(super) hints: Vec<String>,
    pub(super) sent: Vec<String>,
    pub(super) writable_folders: Vec<String>,
}

pub(super) fn outcome(ran: Ran, facts: Facts<'_>) -> ToolOutcome {
    match ran {
        Ran::Late => timed_out(facts),
        Ran::Returned(Ok(Ok(content))) => answered(content, facts.limits.output_bytes),
        Ran::Returned(Ok(Err(error))) => refused_by_tool(error, &facts),
        Ran::Returned(Err(error)) => stopped(&error, facts),
    }
}

fn answered(content: Vec<wit::Content>, limit_bytes: usize) -> ToolOutcome {
    let mut bytes = 0_usize;
    let mut blocks = Vec::with_capacity(content.len());
    let mut has_json = false;
    for block in content {
        bytes = bytes.saturating_add(size(&block));
        if bytes > limit_bytes {
            return ToolOutcome::OutputTooLarge { limit_bytes };
        }
        blocks.push(match block {
            wit::Content::Text(text) => Content::Text(text),
            wit::Content::Image(media) => Content::Image {
                media_type: media.media_type,
                data: media.data,
            },
            wit::Content::Audio(media) => Content::Audio {
                media_type: media.media_type,
                data: media.data,
            },
            wit::Content::Resource(embedded) => Content::Resource {
                uri: embedded.uri,
                media_type: embedded.media_type,
                body: match embedded.body {
                    wit::Body::Text(text) => ResourceBody::Text(text),
                    wit::Body::Bytes(bytes) => ResourceBody::Bytes(bytes),
                },
            },
            wit::Content::Json(_) if has_json => {
                return ToolOutcome::BadOutput {
                    why: "it gave more than one `json` block".to_owned(),
                };
            }
            wit::Content::Json(text) => {
                has_json = true;
                match serde_json::from_str(&text) {
                    Ok(value) => Content::Json(value),
                    Err(e) => {
                        return ToolOutcome::BadOutput {
                            why: format!("its `json` block is not JSON: {e}"),
                        };
                    }
                }
            }
        });
    }
    ToolOutcome::Answered(blocks)
}

fn size(block: &wit::Content) -> usize {
    match block {
        wit::Content::Text(text) | wit::Content::Json(text) => text.len(),
        wit::Content::Image(media) | wit::Content::Audio(media) => {
            media.media_type.len() + media.data.len()
        }
        wit::Content::Resource(embedded) => {
            let body = match &embedded.body {
                wit::Body::Text(text) => text.len(),
                wit::Body::Bytes(bytes) => bytes.len(),
            };
            embedded.uri.len() + embedded.media_type.as_ref().map_or(0, String::len) + body
        }
    }
}

fn refused_by_tool(error: CallError, facts: &Facts<'_>) -> ToolOutcome {
    let limit_bytes = facts.limits.output_bytes;
    match error {
        CallError::UnknownTool => ToolOutcome::BadOutput {
            why: "the component lists the tool and then says that it has none of that name"
                .to_owned(),
        },
        CallError::InvalidArguments(text) | CallError::Denied(text) | CallError::Failed(text)
            if text.len() > limit_bytes =>
        {
            ToolOutcome::OutputTooLarge { limit_bytes }
        }
        CallError::InvalidArguments(fault) => ToolOutcome::InvalidArguments {
            faults: vec![fault],
        },
        CallError::Denied(message) | CallError::Failed(message) => gave_up(message, facts),
    }
}

/// WASI's errors can't say what was refused, and a tool may pass them on as its own: so a failure counts as a
/// refusal if there was one.
fn gave_up(mut message: String, facts: &Facts<'_>) -> ToolOutcome {
    let refusals = (facts.refusals)(&message);
    if !refusals.is_empty() {
        return ToolOutcome::CapabilityRefused { message, refusals };
    }
    if facts.memory_refused {
        message.push_str(&format!(
            " (the call had reached its memory limit of {} bytes)",
            facts.limits.memory_bytes
        ));
    }
    for hint in &facts.hints {
        message.push_str(&format!(" ({hint})"));
    }
    ToolOutcome::Failed { message }
}

fn stopped(error: &wasmtime::Error, facts: Facts<'_>) -> ToolOutcome {
    let trap = error.downcast_ref::<Trap>();
    match trap {
        Some(Trap::Interrupt) => return timed_out(facts),
        Some(Trap::OutOfFuel) if !facts.memory_refused => {
            if let Some(budget) = facts.limits.fuel {
                return ToolOutcome::OutOfFuel { budget };
            }
        }
        _ => {}
    }
    if facts.memory_refused {
        return ToolOutcome::OutOfMemory {
            limit_bytes: facts.limits.memory_bytes,
        };
    }
    // No guest frame: it had returned, and its answer could not be copied out.
    if trap.is_none() && error.downcast_ref::<WasmBacktrace>().is_none() && !is_exit(error) {
        let why = error.root_cause().to_string();
        return if why.contains(COPY_LIMIT) {
            ToolOutcome::OutputTooLarge {
                limit_bytes: facts.limits.output_bytes,
            }
        } else {
            ToolOutcome::BadOutput {
                why: shown(&why, TRAP_TEXT_BYTES, false),
            }
        };
    }
    ToolOutcome::Trapped {
        message: trap_text(error, &facts.output.last_words()),
    }
}

/// Takes the values of secrets out of what a guest made of a call, and of what is told of it.
pub(super) fn scrub(outcome: &mut ToolOutcome, scrubber: &Scrubber) {
    let text = |text: &mut String| scrubber.in_place(text);
    let bytes = |bytes: &mut Vec<u8>| {
        if let Some(scrubbed) = scrubber.bytes(bytes) {
            *bytes = scrubbed;
        }
    };
    match outcome {
        ToolOutcome::Answered(blocks) => {
            for block in blocks {
                match block {
                    Content::Text(said) => text(said),
                    Content::Image { media_type, data } | Content::Audio { media_type, data } => {
                        text(media_type);
                        bytes(data);
                    }
                    Content::Resource {
                        uri,
                        media_type,
                        body,
                    } => {
                        text(uri);
                        media_type.iter_mut().for_each(text);
                        match body {
                            ResourceBody::Text(said) => text(said),
                            ResourceBody::Bytes(data) => bytes(data),
                        }
                    }
                    Content::Json(value) => scrub_json(value, scrubber),
                }
            }
        }
        ToolOutcome::InvalidArguments { faults } => faults.iter_mut().for_each(text),
        ToolOutcome::CapabilityRefused { message, refusals } => {
            text(message);
            for refusal in refusals {
                text(&mut refusal.attempted);
                text(&mut refusal.remedy);
            }
        }
        ToolOutcome::Failed { message } | ToolOutcome::Trapped { message } => text(message),
        ToolOutcome::TimedOut { effects, .. } => match effects {
            Effects::None => {}
            Effects::Sent(sent) | Effects::Unknown { sent, .. } => sent.iter_mut().for_each(text),
        },
        ToolOutcome::BadOutput { why } | ToolOutcome::Internal { why } => text(why),
        ToolOutcome::MalformedArguments { .. }
        | ToolOutcome::UnknownTool { .. }
        | ToolOutcome::Denied { .. }
        | ToolOutcome::ApprovalFailed { .. }
        | ToolOutcome::Abandoned { .. }
        | ToolOutcome::OutOfFuel { .. }
        | ToolOutcome::OutOfMemory { .. }
        | ToolOutcome::OutputTooLarge { .. }
        | ToolOutcome::Cancelled { .. }
        | ToolOutcome::OutcomeUnknown => {}
    }
}

fn scrub_json(value: &mut Value, scrubber: &Scrubber) {
    match value {
        Value::String(text) => scrubber.in_place(text),
        Value::Array(elements) => elements.iter_mut().for_each(|e| scrub_json(e, scrubber)),
        Value::Object(members) => {
            let old = std::mem::take(members);
            for (mut name, mut member) in old {
                scrubber.in_place(&mut name);
                scrub_json(&mut member, scrubber);
                members.insert(name, member);
            }
        }
        Value::Number(number) => {
            if let Some(scrubbed) = scrubber.text(&number.to_string()) {
                *value = Value::String(scrubbed);
            }
        }
        Value::Null | Value::Bool(_) => {}
    }
}

/// How wasmtime says that [`wasmtime::Store::set_hostcall_fuel`] was used up; its type is private. A test
/// of an answer of more than the limit holds this to the version in use.
const COPY_LIMIT: &str = "fuel allocated for hostcalls has been exhausted";

pub(super) fn is_interrupt(error: &wasmtime::Error) -> bool {
    matches!(error.downcast_ref::<Trap>(), Some(Trap::Interrupt))
}

fn is_exit(error: &wasmtime::Error) -> bool {
    error.downcast_ref::<I32Exit>().is_some()
}

fn timed_out(facts: Facts<'_>) -> ToolOutcome {
    let effects = if !facts.writable_folders.is_empty() {
        Effects::Unknown {
            folders: facts.writable_folders,
            sent: facts.sent,
        }
    } else if !facts.sent.is_empty() {
        Effects::Sent(facts.sent)
    } else {
        Effects::None
    };
    ToolOutcome::TimedOut {
        after: facts.limits.timeout.unwrap_or(Duration::ZERO),
        effects,
    }
}

/// The panic's own words where there are some, else the trap's. `stderr` is the end of what the guest wrote.
pub(super) fn trap_text(error: &wasmtime::Error, stderr: &str) -> String {
    if let Some(message) = panic_message(stderr) {
        return shown(&message, TRAP_TEXT_BYTES, true);
    }
    let trap = match error.downcast_ref::<I32Exit>() {
        Some(I32Exit(code)) => format!("it exited with status {code} instead of answering"),
        None => error.root_cause().to_string(),
    };
    let last_line = stderr
        .lines()
        .rev()
        .map(str::trim)
        .find(|line| !line.is_empty());
    let text = match last_line {
        Some(line) => format!("{trap}; its last words were: {line}"),
        None => trap,
    };
    shown(&text, TRAP_TEXT_BYTES, true)
}

/// The message of the last Rust panic in the text: `thread '…' panicked at PLACE:`, the message on the lines
/// below up to the note on backtraces, or behind the place on the same line.
fn panic_message(stderr: &str) -> Option<String> {
    let (_, after) = stderr.rsplit_once("panicked at ")?;
    let (place, below) = after.split_once('\n').unwrap_or((after, ""));
    // PLACE is `FILE:LINE:COLUMN:`, and a file's name may hold colons and blanks.
    let same_line = place.match_indices(": ").find_map(|(at, _)| {
        let column = place[..at].rsplit(':').next()?;
        let is_number = !column.is_empty() && column.bytes().all(|b| b.is_ascii_digit());
        is_number.then(|| place[at + 2..].trim())
    });
    if let Some(message) = same_line
        && !message.is_empty()
    {
        return Some(message.to_owned());
    }
    let message: Vec<_> = below
        .lines()
        .take_while(|line| !line.starts_with("note: ") && !line.starts_with("stack backtrace:"))
        .collect();
    let message = message.join("\n").trim().to_owned();
    Some(if message.is_empty() {
        format!("panicked at {}", place.trim_end_matches(':'))
    } else {
        message
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn panics_are_condensed() {
        for (stderr, message) in [
            (
                "\nthread '<unnamed>' (1) panicked at src/lib.rs:10:5:\nboom: it\nbroke\nnote: run with `RUST_BACKTRACE=1`\n",
                "boom: it\nbroke",
            ),
            ("panicked at src/a b.rs:1:22: boom: twice", "boom: twice"),
            (
                "panicked at src/lib.rs:1:2:\n",
                "panicked at src/lib.rs:1:2",
            ),
            (
                "thread 'main' panicked at a.rs:1:1:\nfirst\nthread 'main' panicked at a.rs:2:2:\nsecond\n",
                "second",
            ),
        ] {
            assert_eq!(panic_message(stderr).as_deref(), Some(message));
        }
        assert_eq!(panic_message("all is well"), None);
    }

    #[test]
    fn traps_have_their_own_words() {
        let trap = wasmtime::Error::from(Trap::IntegerDivisionByZero);
        assert_eq!(trap_text(&trap, ""), "wasm trap: integer divide by zero");
        assert!(
            trap_text(&trap, "Traceback:\nMemoryError\n")
                .ends_with("its last words were: MemoryError")
        );
        let exit = wasmtime::Error::from(I32Exit(1));
        assert!(trap_text(&exit, "").contains("exited with status 1"));
    }

    #[test]
    fn answers_are_measured_and_parsed() {
        let text = |n: usize| wit::Content::Text("x".repeat(n));
        let json = |text: &str| wit::Content::Json(text.to_owned());
        assert!(matches!(
            answered(vec![text(5), text(5)], 10),
            ToolOutcome::Answered(_)
        ));
        assert_eq!(
            answered(vec![text(5), text(6)], 10),
            ToolOutcome::OutputTooLarge { limit_bytes: 10 }
        );
        assert!(matches!(answered(vec![], 0), ToolOutcome::Answered(blocks) if blocks.is_empty()));
        assert!(matches!(
            answered(vec![json("{\"a\":1}")], 10),
            ToolOutcome::Answered(_)
        ));
        for bad in [vec![json("{")], vec![json("1"), json("2")]] {
            assert!(matches!(answered(bad, 10), ToolOutcome::BadOutput { .. }));
        }
    }
}
