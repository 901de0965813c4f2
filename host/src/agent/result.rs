//! From the way a call ended to the one result that the model reads.
//!
//! Every sentence here reaches a model and often a person. What a tool wrote stands after a colon, so that
//! nobody takes it for the host's word. Escaping for terminals is left to whoever prints it.

mod picture;

use std::{fmt::Write as _, time::Duration};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde_json::Value;

use crate::{
    ids::{ToolName, ToolUseId},
    tool::{Canceller, Content, Effects, Refusal, ResourceBody, ToolOutcome},
    transcript::{Media, ResultContent, ToolResult, repair::outcome_unknown},
};

/// How much text of one result reaches the model, in bytes, unless the operator says otherwise.
pub const MAX_RESULT_BYTES: usize = 256 << 10;
/// The largest picture that model endpoints take, in bytes of base64.
pub const MAX_IMAGE_BASE64_BYTES: usize = 5 << 20;
/// The longest side of a picture that model endpoints take, in pixels.
pub const MAX_IMAGE_SIDE: u32 = 8_000;
/// Pictures in one result; further ones are described in words.
pub const MAX_IMAGES: usize = 20;
/// Text of a panic or of a broken contract inside a sentence of ours, in bytes.
const MAX_MESSAGE_BYTES: usize = 8 << 10;
/// Names, paths and other short texts inside a sentence of ours, in bytes.
const MAX_PHRASE_BYTES: usize = 500;
/// Entries of any list inside a sentence of ours.
const MAX_LISTED: usize = 20;
/// What a model reads of a call that said nothing, since endpoints refuse empty text.
const EMPTY_ANSWER: &str = "(the tool answered with nothing)";

/// The one result of a call, with at most [`MAX_RESULT_BYTES`] of text. `tool` is the name that the model
/// called, whether or not there is such a tool.
pub fn tool_result(id: &ToolUseId, tool: &str, outcome: &ToolOutcome) -> ToolResult {
    tool_result_within(id, tool, outcome, MAX_RESULT_BYTES)
}

/// As [`tool_result`], with a limit of the caller's for the text, in bytes.
pub fn tool_result_within(
    id: &ToolUseId,
    tool: &str,
    outcome: &ToolOutcome,
    max_text_bytes: usize,
) -> ToolResult {
    let (content, is_error) = match answer(outcome) {
        Some(parts) => (shape(parts, max_text_bytes), false),
        None => {
            let mut text = Text::new(max_text_bytes);
            text.push(&error_text(tool, outcome));
            (text.finish(), true)
        }
    };
    ToolResult {
        tool_use_id: id.clone(),
        content,
        is_error,
    }
}

/// The word for a call of a tool that there is not.
pub(crate) const UNKNOWN_TOOL: &str = "unknown_tool";

/// How a call ended, in one word, for events, logs and metrics.
pub fn outcome_word(outcome: &ToolOutcome) -> &'static str {
    match outcome {
        ToolOutcome::Answered(_) => "ok",
        ToolOutcome::MalformedArguments { .. } => "malformed_arguments",
        ToolOutcome::UnknownTool { .. } => UNKNOWN_TOOL,
        ToolOutcome::InvalidArguments { .. } => "invalid_arguments",
        ToolOutcome::Denied { .. } => "denied",
        ToolOutcome::ApprovalFailed { .. } => "approval_failed",
        ToolOutcome::Failed { .. } => "error",
        ToolOutcome::CapabilityRefused { .. } => "capability_refused",
        ToolOutcome::Trapped { .. } => "trap",
        ToolOutcome::TimedOut { .. } => "timeout",
        ToolOutcome::Abandoned { .. } => "timeout",
        ToolOutcome::OutOfFuel { .. } => "fuel",
        ToolOutcome::OutOfMemory { .. } => "memory",
        ToolOutcome::OutputTooLarge { .. } => "output_too_large",
        ToolOutcome::BadOutput { .. } => "bad_output",
        ToolOutcome::Cancelled { .. } => "cancelled",
        ToolOutcome::OutcomeUnknown => "outcome_unknown",
        ToolOutcome::Internal { .. } => "internal",
    }
}

/// The `n` names closest to `name`, the closest first; equally close ones in the order given.
pub fn nearest(name: &str, tools: &[ToolName], n: usize) -> Vec<ToolName> {
    let wanted: String = name.chars().take(80).flat_map(char::to_lowercase).collect();
    let mut scored: Vec<(f64, &ToolName)> = tools
        .iter()
        .map(|tool| {
            let have = tool.as_str().to_ascii_lowercase();
            let contains = !wanted.is_empty() && (have.contains(&wanted) || wanted.contains(&have));
            let closeness = strsim::normalized_damerau_levenshtein(&wanted, &have)
                + if contains { 0.5 } else { 0.0 };
            (closeness, tool)
        })
        .collect();
    scored.sort_by(|(a, _), (b, _)| b.total_cmp(a));
    scored
        .into_iter()
        .take(n)
        .map(|(_, tool)| tool.clone())
        .collect()
}

fn answer(outcome: &ToolOutcome) -> Option<&[Content]> {
    match outcome {
        ToolOutcome::Answered(parts) => Some(parts),
        ToolOutcome::MalformedArguments { .. }
        | ToolOutcome::UnknownTool { .. }
        | ToolOutcome::InvalidArguments { .. }
        | ToolOutcome::Denied { .. }
        | ToolOutcome::ApprovalFailed { .. }
        | ToolOutcome::Failed { .. }
        | ToolOutcome::CapabilityRefused { .. }
        | ToolOutcome::Trapped { .. }
        | ToolOutcome::TimedOut { .. }
        | ToolOutcome::Abandoned { .. }
        | ToolOutcome::OutOfFuel { .. }
        | ToolOutcome::OutOfMemory { .. }
        | ToolOutcome::OutputTooLarge { .. }
        | ToolOutcome::BadOutput { .. }
        | ToolOutcome::Cancelled { .. }
        | ToolOutcome::OutcomeUnknown
        | ToolOutcome::Internal { .. } => None,
    }
}

fn error_text(tool: &str, outcome: &ToolOutcome) -> String {
    let name = phrase(tool);
    match outcome {
        // An answer is shaped, not told.
        ToolOutcome::Answered(_) => String::new(),
        ToolOutcome::MalformedArguments { why, received } => format!(
            "Could not parse arguments as JSON ({}). Received: '{}'. Re-issue with valid JSON.",
            phrase(why),
            phrase(received)
        ),
        ToolOutcome::UnknownTool { name, available } => {
            let offered: Vec<&str> = available.iter().map(ToolName::as_str).collect();
            format!(
                "Unknown tool '{}'. Available: [{}]",
                phrase(name),
                offered.join(", ")
            )
        }
        ToolOutcome::InvalidArguments { faults } => {
            format!("Invalid arguments for {name}: {}", faults.join("; "))
        }
        ToolOutcome::Denied { reason } if reason.trim().is_empty() => {
            "Denied: no reason was given".to_owned()
        }
        ToolOutcome::Denied { reason } => format!("Denied: {reason}"),
        ToolOutcome::ApprovalFailed { why } => {
            format!("Error: the approval hook failed: {}", message(why))
        }
        ToolOutcome::Failed { message } if message.trim().is_empty() => {
            format!("Error: {name} failed and did not say why")
        }
        ToolOutcome::Failed { message } => format!("Error: {message}"),
        ToolOutcome::CapabilityRefused { message, refusals } => refused(&name, message, refusals),
        ToolOutcome::Trapped { message: text } if text.trim().is_empty() => {
            format!("Error: {name} failed: it stopped without a message")
        }
        ToolOutcome::Trapped { message: text } => {
            format!("Error: {name} failed: {}", message(text))
        }
        ToolOutcome::TimedOut { after, effects } => format!(
            "Error: {name} timed out after {} and was stopped; {}",
            seconds(*after),
            effects_text(effects)
        ),
        ToolOutcome::Abandoned { after } => format!(
            "Error: {name} timed out after {} and could not be stopped, since it runs outside the sandbox; what it did is not known",
            seconds(*after)
        ),
        ToolOutcome::OutOfFuel { budget } => format!(
            "Error: {name} used up its budget of {budget} instructions and was stopped; give it less to do in one call"
        ),
        ToolOutcome::OutOfMemory { limit_bytes } => format!(
            "Error: {name} needed more memory than its limit of {} and was stopped; give it less to do in one call",
            size(*limit_bytes)
        ),
        ToolOutcome::OutputTooLarge { limit_bytes } => format!(
            "Error: the answer of {name} is larger than its limit of {}; ask for less in one call",
            size(*limit_bytes)
        ),
        ToolOutcome::BadOutput { why } => format!(
            "Error: the answer of {name} is not what it promises: {}",
            message(why)
        ),
        ToolOutcome::Cancelled { by } => match by {
            Canceller::User => "Cancelled: by the user, who stopped the run".to_owned(),
            Canceller::RunLimit => {
                "Cancelled: by the run's own limit, which was reached".to_owned()
            }
        },
        ToolOutcome::OutcomeUnknown => outcome_unknown(&name),
        ToolOutcome::Internal { why } => format!(
            "Error: the host failed while it ran {name}: {}",
            message(why)
        ),
    }
}

fn refused(name: &str, said: &str, refusals: &[Refusal]) -> String {
    let mut text = if said.trim().is_empty() {
        format!("Error: {name} was refused something that it needs")
    } else {
        format!("Error: {}", message(said))
    };
    for refusal in refusals.iter().take(MAX_LISTED) {
        let Refusal {
            attempted,
            missing,
            requested,
            remedy,
        } = refusal;
        let missing = phrase(&missing.to_string());
        let lacks = if *requested {
            "not granted by the operator"
        } else {
            "not requested by the tool"
        };
        let _ = write!(text, "\nMissing capability: {missing} ({lacks}");
        if !attempted.trim().is_empty() {
            let _ = write!(text, "; tried: {}", phrase(attempted));
        }
        text.push(')');
        let remedy = remedy.trim();
        if !remedy.is_empty() {
            let _ = write!(text, ". {}", message(remedy));
        }
    }
    if refusals.len() > MAX_LISTED {
        let _ = write!(text, "\nand {} more", refusals.len() - MAX_LISTED);
    }
    text
}

fn effects_text(effects: &Effects) -> String {
    match effects {
        Effects::None => "nothing outside was changed".to_owned(),
        Effects::Sent(requests) if requests.is_empty() => "nothing had been sent".to_owned(),
        Effects::Sent(requests) => format!("these requests had been sent: {}", list(requests)),
        Effects::Unknown { folders, sent } => {
            let mut text = match folders.as_slice() {
                [] => "what it changed by then is unknown".to_owned(),
                folders => format!("what it wrote in {} by then is unknown", list(folders)),
            };
            if sent.is_empty() {
                text.push_str("; no request had been sent");
            } else {
                let _ = write!(text, "; these requests had been sent: {}", list(sent));
            }
            text
        }
    }
}

fn list(entries: &[String]) -> String {
    let shown: Vec<String> = entries.iter().take(MAX_LISTED).map(|e| phrase(e)).collect();
    let mut text = shown.join(", ");
    if entries.len() > MAX_LISTED {
        let _ = write!(text, " and {} more", entries.len() - MAX_LISTED);
    }
    text
}

/// What endpoints take, in the tool's order: texts and pictures stay, everything else is said in words.
fn shape(parts: &[Content], max_text_bytes: usize) -> Vec<ResultContent> {
    let mut text = Text::new(max_text_bytes);
    let mut images = 0;
    for part in parts {
        match part {
            Content::Text(said) => text.push(said),
            Content::Json(value) => {
                if !parts.iter().any(|other| says_the_same(other, value)) {
                    text.push(&value.to_string());
                }
            }
            Content::Image { media_type, data } => match image(media_type, data) {
                Ok(_) if images == MAX_IMAGES => text.push(&format!(
                    "[image left out: {}, {}; a result holds at most {MAX_IMAGES} images]",
                    phrase(media_type),
                    size(data.len())
                )),
                Ok(media) => {
                    images += 1;
                    text.done.push(ResultContent::Image(media));
                }
                Err(note) => text.push(&note),
            },
            Content::Audio { media_type, data } => text.push(&format!(
                "[audio, not shown: {}, {}]",
                phrase(media_type),
                size(data.len())
            )),
            Content::Resource {
                uri,
                media_type,
                body,
            } => match body {
                ResourceBody::Text(body) => {
                    text.push(&format!("[resource {}]\n{body}", phrase(uri)));
                }
                ResourceBody::Bytes(bytes) => text.push(&format!(
                    "[resource {}, not shown: {}, {}]",
                    phrase(uri),
                    media_type
                        .as_deref()
                        .map_or_else(|| "unknown type".to_owned(), phrase),
                    size(bytes.len())
                )),
            },
        }
    }
    text.finish()
}

/// MCP has tools send structured output a second time as text; the model needs it once.
fn says_the_same(part: &Content, value: &Value) -> bool {
    match part {
        Content::Text(text) => serde_json::from_str::<Value>(text).is_ok_and(|said| said == *value),
        Content::Image { .. }
        | Content::Audio { .. }
        | Content::Resource { .. }
        | Content::Json(_) => false,
    }
}

/// A picture as endpoints take it, its type read from its bytes; or a note on why it can't go out.
fn image(label: &str, data: &[u8]) -> Result<Media, String> {
    let left_out = |kind: &str, why: &str| {
        Err(format!(
            "[image, not shown: {}, {}; {why}]",
            phrase(kind),
            size(data.len())
        ))
    };
    let Some(picture) = picture::read(data) else {
        return left_out(label, "only PNG, JPEG, GIF and WebP can be shown");
    };
    let media_type = picture.media_type;
    match picture.size {
        None => return left_out(media_type, "its header is broken"),
        Some((width, height)) if width.max(height) > MAX_IMAGE_SIDE => {
            let why = format!(
                "it has {width}×{height} pixels, and {MAX_IMAGE_SIDE} to a side is the most"
            );
            return left_out(media_type, &why);
        }
        Some(_) => {}
    }
    if data.len().div_ceil(3).saturating_mul(4) > MAX_IMAGE_BASE64_BYTES {
        let why = format!("the limit is {} of base64", size(MAX_IMAGE_BASE64_BYTES));
        return left_out(media_type, &why);
    }
    Ok(Media {
        media_type: media_type.to_owned(),
        base64: STANDARD.encode(data),
    })
}

/// Collects blocks under one limit for all their text, and never makes an empty text block.
struct Text {
    done: Vec<ResultContent>,
    left: usize,
    limit: usize,
    /// What all texts together would have been.
    whole: usize,
}

impl Text {
    fn new(limit: usize) -> Self {
        Self {
            done: Vec::new(),
            left: limit,
            limit,
            whole: 0,
        }
    }

    fn push(&mut self, text: &str) {
        let text = text.replace('\0', "");
        if text.trim().is_empty() {
            return;
        }
        self.whole += text.len();
        let shown = &text[..text.floor_char_boundary(self.left)];
        // A cut text means that nothing of later ones is shown, however short they are.
        self.left = if shown.len() < text.len() {
            0
        } else {
            self.left - shown.len()
        };
        if !shown.trim().is_empty() {
            self.done.push(ResultContent::Text {
                text: shown.to_owned(),
            });
        }
    }

    fn finish(mut self) -> Vec<ResultContent> {
        if self.whole > self.limit {
            self.done.push(ResultContent::Text {
                text: format!(
                    "[cut by the host: the whole text is {} bytes, of which the first {} or fewer are shown]",
                    self.whole, self.limit
                ),
            });
        }
        if self.done.is_empty() {
            self.done.push(ResultContent::Text {
                text: EMPTY_ANSWER.to_owned(),
            });
        }
        self.done
    }
}

fn phrase(text: &str) -> String {
    bounded(text, MAX_PHRASE_BYTES)
}

fn message(text: &str) -> String {
    bounded(text, MAX_MESSAGE_BYTES)
}

fn bounded(text: &str, limit: usize) -> String {
    if text.len() <= limit {
        return text.to_owned();
    }
    let shown = &text[..text.floor_char_boundary(limit)];
    format!("{shown}… ({} bytes in all)", text.len())
}

/// `30s`, `1.5s`, `0.02s`.
fn seconds(duration: Duration) -> String {
    format!("{}s", (duration.as_secs_f64() * 1e3).round() / 1e3)
}

fn size(bytes: usize) -> String {
    const UNITS: [&str; 3] = ["KiB", "MiB", "GiB"];
    if bytes < 1 << 10 {
        return format!("{bytes} bytes");
    }
    #[expect(clippy::cast_precision_loss, reason = "shown with one digit")]
    let mut value = bytes as f64 / 1024.0;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{} {}", (value * 10.0).round() / 10.0, UNITS[unit])
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::capability::{Access, Capability};

    const PNG: &[u8] = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\0\x01\0\0\0\x01";

    fn result(outcome: &ToolOutcome) -> ToolResult {
        tool_result(&ToolUseId::parse("call_1").unwrap(), "echo", outcome)
    }

    fn error(outcome: ToolOutcome) -> String {
        let result = result(&outcome);
        assert!(result.is_error, "{outcome:?}");
        assert_eq!(result.content.len(), 1, "{outcome:?}");
        result.text()
    }

    fn answered(parts: Vec<Content>) -> Vec<ResultContent> {
        let result = result(&ToolOutcome::Answered(parts));
        assert!(!result.is_error);
        for block in &result.content {
            if let ResultContent::Text { text } = block {
                assert!(!text.trim().is_empty(), "no endpoint takes empty text");
            }
        }
        result.content
    }

    fn text(text: &str) -> ResultContent {
        ResultContent::Text { text: text.into() }
    }

    fn picture(media_type: &str, data: &[u8]) -> Content {
        Content::Image {
            media_type: media_type.into(),
            data: data.to_vec(),
        }
    }

    fn names(names: &[&str]) -> Vec<ToolName> {
        names.iter().map(|n| ToolName::parse(n).unwrap()).collect()
    }

    #[test]
    fn each_ending_has_its_own_words() {
        let table = [
            (
                ToolOutcome::MalformedArguments {
                    why: "EOF while parsing".into(),
                    received: "{\"text\":".into(),
                },
                "malformed_arguments",
                "Could not parse arguments as JSON (EOF while parsing). Received: '{\"text\":'. Re-issue with valid JSON.",
            ),
            (
                ToolOutcome::UnknownTool {
                    name: "read_fil".into(),
                    available: names(&["read_file", "echo"]),
                },
                "unknown_tool",
                "Unknown tool 'read_fil'. Available: [read_file, echo]",
            ),
            (
                ToolOutcome::InvalidArguments {
                    faults: vec![
                        "limit: an integer, got \"five\"".into(),
                        "q: a string is required, got nothing".into(),
                    ],
                },
                "invalid_arguments",
                "Invalid arguments for echo: limit: an integer, got \"five\"; q: a string is required, got nothing",
            ),
            (
                ToolOutcome::Denied {
                    reason: "not today".into(),
                },
                "denied",
                "Denied: not today",
            ),
            (
                ToolOutcome::ApprovalFailed {
                    why: "no terminal".into(),
                },
                "approval_failed",
                "Error: the approval hook failed: no terminal",
            ),
            (
                ToolOutcome::Failed {
                    message: "no such city: `Pariis`".into(),
                },
                "error",
                "Error: no such city: `Pariis`",
            ),
            (
                ToolOutcome::Failed {
                    message: " ".into(),
                },
                "error",
                "Error: echo failed and did not say why",
            ),
            (
                ToolOutcome::Trapped {
                    message: "index out of bounds".into(),
                },
                "trap",
                "Error: echo failed: index out of bounds",
            ),
            (
                ToolOutcome::TimedOut {
                    after: Duration::from_secs(30),
                    effects: Effects::None,
                },
                "timeout",
                "Error: echo timed out after 30s and was stopped; nothing outside was changed",
            ),
            (
                ToolOutcome::TimedOut {
                    after: Duration::from_millis(1500),
                    effects: Effects::Sent(vec![]),
                },
                "timeout",
                "Error: echo timed out after 1.5s and was stopped; nothing had been sent",
            ),
            (
                ToolOutcome::TimedOut {
                    after: Duration::from_millis(20),
                    effects: Effects::Sent(vec!["GET https://a.example/x".into()]),
                },
                "timeout",
                "Error: echo timed out after 0.02s and was stopped; these requests had been sent: GET https://a.example/x",
            ),
            (
                ToolOutcome::TimedOut {
                    after: Duration::from_secs(1),
                    effects: Effects::Unknown {
                        folders: vec!["/notes".into()],
                        sent: vec![],
                    },
                },
                "timeout",
                "Error: echo timed out after 1s and was stopped; what it wrote in /notes by then is unknown; no request had been sent",
            ),
            (
                ToolOutcome::OutOfFuel { budget: 1_000_000 },
                "fuel",
                "Error: echo used up its budget of 1000000 instructions and was stopped; give it less to do in one call",
            ),
            (
                ToolOutcome::OutOfMemory {
                    limit_bytes: 64 << 20,
                },
                "memory",
                "Error: echo needed more memory than its limit of 64 MiB and was stopped; give it less to do in one call",
            ),
            (
                ToolOutcome::OutputTooLarge {
                    limit_bytes: 16 << 20,
                },
                "output_too_large",
                "Error: the answer of echo is larger than its limit of 16 MiB; ask for less in one call",
            ),
            (
                ToolOutcome::BadOutput {
                    why: "two json parts".into(),
                },
                "bad_output",
                "Error: the answer of echo is not what it promises: two json parts",
            ),
            (
                ToolOutcome::Cancelled {
                    by: Canceller::User,
                },
                "cancelled",
                "Cancelled: by the user, who stopped the run",
            ),
            (
                ToolOutcome::Cancelled {
                    by: Canceller::RunLimit,
                },
                "cancelled",
                "Cancelled: by the run's own limit, which was reached",
            ),
            (
                ToolOutcome::OutcomeUnknown,
                "outcome_unknown",
                "Error: echo was interrupted, outcome unknown: it may or may not have had its effects, so check before calling it again",
            ),
            (
                ToolOutcome::Internal {
                    why: "disk full".into(),
                },
                "internal",
                "Error: the host failed while it ran echo: disk full",
            ),
        ];
        for (outcome, word, sentence) in table {
            assert_eq!(outcome_word(&outcome), word);
            assert_eq!(error(outcome), sentence);
        }
        assert_eq!(outcome_word(&ToolOutcome::Answered(vec![])), "ok");
    }

    #[test]
    fn a_refusal_names_the_capability_and_the_remedy() {
        let refusal = |requested, remedy: &str| Refusal {
            attempted: "open /notes/a.md".into(),
            missing: Capability::Folder {
                path: "/notes".into(),
                access: Access::Read,
            },
            requested,
            remedy: remedy.into(),
        };
        let outcome = ToolOutcome::CapabilityRefused {
            message: "cannot read a.md".into(),
            refusals: vec![
                refusal(true, "Run `agentloop-host grant files --folder /notes=.`."),
                refusal(false, ""),
            ],
        };
        assert_eq!(outcome_word(&outcome), "capability_refused");
        assert_eq!(
            error(outcome),
            "Error: cannot read a.md\n\
             Missing capability: read the folder /notes (not granted by the operator; tried: open /notes/a.md). \
             Run `agentloop-host grant files --folder /notes=.`.\n\
             Missing capability: read the folder /notes (not requested by the tool; tried: open /notes/a.md)"
        );
    }

    #[test]
    fn nothing_becomes_a_note_and_never_empty_text() {
        for parts in [
            vec![],
            vec![Content::Text(String::new())],
            vec![Content::Text(" \n\0".into())],
        ] {
            assert_eq!(answered(parts), [text(EMPTY_ANSWER)]);
        }
        assert_eq!(
            answered(vec![
                Content::Text(String::new()),
                Content::Text("x\0y".into())
            ]),
            [text("xy")]
        );
    }

    #[test]
    fn text_is_cut_at_a_character_with_its_full_size() {
        let id = ToolUseId::parse("call_1").unwrap();
        let answer = |said: &str, limit| {
            tool_result_within(
                &id,
                "echo",
                &ToolOutcome::Answered(vec![Content::Text(said.into()), Content::Text("z".into())]),
                limit,
            )
            .content
        };
        assert_eq!(answer("äöü", 7), [text("äöü"), text("z")]);
        assert_eq!(
            answer("äöü", 5),
            [
                text("äö"),
                text(
                    "[cut by the host: the whole text is 7 bytes, of which the first 5 or fewer are shown]"
                )
            ]
        );
        let long = "x".repeat(MAX_RESULT_BYTES + 1);
        let result = result(&ToolOutcome::Failed { message: long });
        assert!(result.text().len() < MAX_RESULT_BYTES + 200);
        assert!(result.text().contains("262152 bytes"));
    }

    #[test]
    fn pictures_go_out_only_as_what_their_bytes_are() {
        let parts = vec![
            picture("image/svg+xml", b"<svg/>"),
            picture("image/jpeg", PNG),
            Content::Text("ok".into()),
            Content::Json(json!({"n": 1})),
        ];
        let png = Media {
            media_type: "image/png".into(),
            base64: STANDARD.encode(PNG),
        };
        assert_eq!(
            answered(parts),
            [
                text(
                    "[image, not shown: image/svg+xml, 6 bytes; only PNG, JPEG, GIF and WebP can be shown]"
                ),
                ResultContent::Image(png),
                text("ok"),
                text("{\"n\":1}"),
            ]
        );
    }

    #[test]
    fn a_picture_that_endpoints_would_refuse_is_a_note() {
        let huge = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\x1f\x41\0\0\0\x01";
        assert_eq!(
            answered(vec![
                picture("image/png", huge),
                picture("image/gif", b"GIF89a"),
            ]),
            [
                text(
                    "[image, not shown: image/png, 24 bytes; it has 8001×1 pixels, and 8000 to a side is the most]"
                ),
                text("[image, not shown: image/gif, 6 bytes; its header is broken]"),
            ]
        );
    }

    #[test]
    fn a_picture_too_large_for_endpoints_is_a_note() {
        let mut data = PNG.to_vec();
        data.resize(MAX_IMAGE_BASE64_BYTES / 4 * 3, 0);
        let fits = answered(vec![picture("image/png", &data)]);
        assert!(
            matches!(&fits[..], [ResultContent::Image(media)] if media.base64.len() == MAX_IMAGE_BASE64_BYTES)
        );
        data.push(0);
        assert_eq!(
            answered(vec![picture("image/png", &data)]),
            [text(
                "[image, not shown: image/png, 3.8 MiB; the limit is 5 MiB of base64]"
            )]
        );
        let many = answered(vec![picture("image/png", PNG); MAX_IMAGES + 1]);
        assert!(matches!(many.last(), Some(ResultContent::Text { .. })));
    }

    #[test]
    fn other_kinds_are_told_in_words() {
        let resource = |body| Content::Resource {
            uri: "file:///a".into(),
            media_type: None,
            body,
        };
        assert_eq!(
            answered(vec![
                Content::Audio {
                    media_type: "audio/wav".into(),
                    data: vec![0; 2048],
                },
                resource(ResourceBody::Text("hello".into())),
                resource(ResourceBody::Bytes(vec![1, 2, 3])),
            ]),
            [
                text("[audio, not shown: audio/wav, 2 KiB]"),
                text("[resource file:///a]\nhello"),
                text("[resource file:///a, not shown: unknown type, 3 bytes]"),
            ]
        );
    }

    #[test]
    fn structured_output_that_a_text_repeats_is_sent_once() {
        let value = json!({"a": [1, 2]});
        assert_eq!(
            answered(vec![
                Content::Text("{ \"a\": [1, 2] }".into()),
                Content::Json(value.clone()),
            ]),
            [text("{ \"a\": [1, 2] }")]
        );
        assert_eq!(
            answered(vec![Content::Text("two".into()), Content::Json(value)]),
            [text("two"), text("{\"a\":[1,2]}")]
        );
    }

    #[test]
    fn the_closest_names_come_first() {
        let tools = names(&["echo", "fetch", "read_file", "write_file", "read_dir"]);
        assert_eq!(
            nearest("read_fil", &tools, 2),
            names(&["read_file", "read_dir"])
        );
        assert_eq!(nearest("files.Read_File", &tools, 1), names(&["read_file"]));
        assert_eq!(nearest("", &tools, 2), names(&["echo", "fetch"]));
        assert_eq!(nearest(&"x".repeat(1 << 20), &tools, 9).len(), 5);
    }

    #[test]
    fn what_others_wrote_is_bounded_inside_our_sentences() {
        let long = "ä".repeat(1 << 20);
        for outcome in [
            ToolOutcome::MalformedArguments {
                why: long.clone(),
                received: long.clone(),
            },
            ToolOutcome::UnknownTool {
                name: long.clone(),
                available: vec![],
            },
            ToolOutcome::Trapped {
                message: long.clone(),
            },
            ToolOutcome::TimedOut {
                after: Duration::from_secs(1),
                effects: Effects::Sent(vec![long.clone(); 100]),
            },
        ] {
            let text = error(outcome);
            assert!(text.len() < 20_000, "{}", text.len());
            assert!(text.contains("bytes in all"));
        }
    }
}
