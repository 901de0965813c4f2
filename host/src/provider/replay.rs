//! A history as any endpoint takes it: roles alternate, results stand first in their message, and nothing is
//! sent that this endpoint would refuse or that means nothing to it. How it is spelled is the endpoint's own
//! affair.

use std::borrow::Cow;

use serde::Deserialize as _;
use serde_json::{Map, Value};

use crate::{
    http::printable,
    ids::{MAX_NAME_BYTES, ToolName},
    transcript::{ContentBlock, Media, Message, Role, Seal, ToolResult, ToolUse},
};

/// Stands for a result that has nothing in it.
pub(super) const NOTHING: &str = "(no output)";

/// Neighbouring messages of one role in one.
#[derive(Debug, PartialEq)]
pub(super) struct Turn<'a> {
    pub(super) role: Role,
    /// Never empty.
    pub(super) blocks: Vec<Block<'a>>,
}

/// What is sent of a [`ContentBlock`].
#[derive(Debug, PartialEq)]
pub(super) enum Block<'a> {
    /// Never blank.
    Text {
        text: Cow<'a, str>,
        extra: Option<&'a Map<String, Value>>,
    },
    Image(&'a Media),
    /// For the endpoint and the model that sealed it.
    Reasoning(&'a str),
    /// For the endpoint and the model that sealed it.
    Foreign(&'a str),
    ToolUse(&'a ToolUse),
    ToolResult(&'a ToolResult),
}

/// What of `messages` goes to `model` at the provider of this name.
pub(super) fn turns<'a>(messages: &'a [Message], provider: &str, model: &str) -> Vec<Turn<'a>> {
    let own = |seal: &Seal| seal.provider == provider && seal.model == model;
    let mut turns: Vec<Turn<'a>> = Vec::new();
    for message in messages {
        let blocks = message.content.iter().filter_map(|block| match block {
            ContentBlock::Text { text, .. } if text.trim().is_empty() => None,
            ContentBlock::Text { text, extra } => Some(Block::Text {
                text: text.into(),
                extra: Some(extra).filter(|extra| !extra.is_empty()),
            }),
            ContentBlock::Image(media) if message.role == Role::User => Some(Block::Image(media)),
            ContentBlock::Image(media) => Some(note(format!(
                "[an image of type {} was here]",
                printable(&media.media_type)
            ))),
            ContentBlock::Reasoning { seal, .. } => {
                own(seal).then_some(Block::Reasoning(&seal.raw))
            }
            ContentBlock::Foreign(seal) if own(seal) => Some(Block::Foreign(&seal.raw)),
            ContentBlock::Foreign(seal) => Some(note(format!(
                "[a block of type {} from {} was here]",
                printable(&type_of(&seal.raw)),
                printable(&seal.provider)
            ))),
            ContentBlock::ToolUse(tool_use) => Some(Block::ToolUse(tool_use)),
            ContentBlock::ToolResult(result) => Some(Block::ToolResult(result)),
        });
        let blocks: Vec<_> = blocks.collect();
        if blocks.is_empty() {
            continue;
        }
        match turns.last_mut() {
            Some(last) if last.role == message.role => last.blocks.extend(blocks),
            _ => turns.push(Turn {
                role: message.role,
                blocks,
            }),
        }
    }
    for turn in &mut turns {
        turn.blocks
            .sort_by_key(|block| !matches!(block, Block::ToolResult(_)));
    }
    turns
}

/// A call's name as an endpoint takes it back: the model may have written anything.
pub(super) fn name(written: &str) -> Cow<'_, str> {
    if ToolName::parse(written).is_ok() {
        return written.into();
    }
    let safe = |c: char| match c.is_ascii_alphanumeric() || c == '_' || c == '-' {
        true => c,
        false => '_',
    };
    let name: String = written.chars().map(safe).take(MAX_NAME_BYTES).collect();
    match name.is_empty() {
        true => "_".into(),
        false => name.into(),
    }
}

fn note(text: String) -> Block<'static> {
    Block::Text {
        text: text.into(),
        extra: None,
    }
}

fn type_of(raw: &str) -> String {
    let mut json = serde_json::Deserializer::from_str(raw);
    let value = Value::deserialize(&mut json).unwrap_or_default();
    let word = value.get("type").and_then(Value::as_str);
    word.unwrap_or("unknown").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sealed(provider: &str, model: &str) -> Seal {
        Seal {
            provider: provider.into(),
            model: model.into(),
            raw: r#"{"type":"search","n":1.50}"#.into(),
        }
    }

    fn message(role: Role, content: Vec<ContentBlock>) -> Message {
        Message { role, content }
    }

    #[test]
    fn blank_texts_and_what_is_empty_then_are_left_out() {
        let messages = [
            Message::user("a"),
            message(Role::Assistant, vec![ContentBlock::text(" \n")]),
            Message::user("b"),
            message(Role::Assistant, vec![]),
        ];
        let turns = turns(&messages, "p", "m");
        assert_eq!(turns.len(), 1);
        assert_eq!(turns[0].role, Role::User);
        assert_eq!(turns[0].blocks.len(), 2);
    }

    #[test]
    fn seals_open_only_for_their_own_provider_and_model() {
        let reasoning = |seal| ContentBlock::Reasoning {
            text: "hm".into(),
            seal,
        };
        for (provider, model, own) in [("p", "m", true), ("p", "n", false), ("q", "m", false)] {
            let messages = [message(
                Role::Assistant,
                vec![
                    reasoning(sealed("p", "m")),
                    ContentBlock::Foreign(sealed("p", "m")),
                ],
            )];
            let turns = turns(&messages, provider, model);
            let raw = r#"{"type":"search","n":1.50}"#;
            let wanted = match own {
                true => vec![Block::Reasoning(raw), Block::Foreign(raw)],
                false => vec![note("[a block of type search from p was here]".into())],
            };
            assert_eq!(turns[0].blocks, wanted);
        }
    }

    #[test]
    fn names_are_made_sendable() {
        assert_eq!(name("read-file_2"), "read-file_2");
        assert_eq!(name("read file\u{202e}é"), "read_file__");
        assert_eq!(name(""), "_");
        assert_eq!(name(&"x".repeat(90)).len(), 64);
    }
}
