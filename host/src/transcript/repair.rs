//! A history that came from outside, made into one that every endpoint accepts: exactly one result per call,
//! in call order, first in the message right after the call; one id per call; turns that alternate and begin
//! with the user; nothing empty.
//!
//! Calls and results are paired by position and id together, since ids repeat in histories of some gateways.

use std::{
    collections::{HashMap, HashSet},
    fmt,
};

use serde_json::Value;

use super::{ContentBlock, Message, ResultContent, Role, ToolResult};
use crate::ids::ToolUseId;

/// What stands first where a history begins with the assistant.
const BEGINNING: &str = "(The beginning of this conversation is not available.)";
/// Characters of a name or an id inside a sentence.
const MAX_SHOWN_CHARS: usize = 64;

/// One thing that was changed in a history. Its text is a complete sentence without a final stop.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Repair {
    /// The result was put in as an error.
    ResultMissing { tool: String, id: ToolUseId },
    /// The result stood elsewhere than at its place right after the call.
    ResultMoved { id: ToolUseId },
    /// There is no call, or it has its result already.
    ResultDropped { id: ToolUseId },
    /// The id was used before, or is none.
    IdReplaced { before: String, after: ToolUseId },
    /// So many blank texts, which endpoints refuse.
    BlankTextsDropped { n: usize },
    /// So many messages without anything in them.
    EmptyMessagesDropped { n: usize },
    /// So many messages that followed one of the same role.
    MessagesMerged { n: usize },
    /// So many blocks of the user's that only an assistant can say: calls and reasoning.
    ForeignToRoleDropped { n: usize },
    /// The history began with the assistant.
    BeginningAdded,
}

impl fmt::Display for Repair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ResultMissing { tool, id } => write!(
                f,
                "the call `{id}` of `{}` had no result: it counts as interrupted, outcome unknown",
                shown(tool)
            ),
            Self::ResultMoved { id } => {
                write!(
                    f,
                    "the result of the call `{id}` was moved right after its call"
                )
            }
            Self::ResultDropped { id } => write!(
                f,
                "a result for `{id}` was dropped, since no call waits for it"
            ),
            Self::IdReplaced { before, after } => write!(
                f,
                "a call's id `{}` was replaced by `{after}`, since ids have to be unique and well-formed",
                shown(before)
            ),
            Self::BlankTextsDropped { n } => {
                write!(f, "{} dropped", were(*n, "blank text block"))
            }
            Self::EmptyMessagesDropped { n } => {
                write!(f, "{} dropped", were(*n, "empty message"))
            }
            Self::MessagesMerged { n } => write!(
                f,
                "{} merged with the one before, which had the same role",
                were(*n, "message")
            ),
            Self::ForeignToRoleDropped { n } => write!(
                f,
                "{} dropped that only an assistant can say",
                were(*n, "block")
            ),
            Self::BeginningAdded => write!(
                f,
                "a first user message was added, since the history began with the assistant"
            ),
        }
    }
}

fn were(n: usize, what: &str) -> String {
    match n {
        1 => format!("1 {what} was"),
        _ => format!("{n} {what}s were"),
    }
}

/// What the model reads of a call whose end nobody saw.
pub fn outcome_unknown(tool: &str) -> String {
    format!(
        "Error: {tool} was interrupted, outcome unknown: it may or may not have had its effects, so check before calling it again"
    )
}

/// Reads a stored history, whatever its ids, and repairs it. Fails where the value is not a list of messages.
pub fn from_value(mut value: Value) -> Result<(Vec<Message>, Vec<Repair>), serde_json::Error> {
    let mut repairs = replace_ill_formed_ids(&mut value);
    let (messages, more) = repair(serde_json::from_value(value)?);
    repairs.extend(more);
    Ok((messages, repairs))
}

/// Makes a history valid in both directions, and says what was changed. A valid one is returned as it is.
pub fn repair(mut messages: Vec<Message>) -> (Vec<Message>, Vec<Repair>) {
    let mut repairs = Vec::new();
    drop_blocks(&mut messages, &mut repairs);
    let mut results = take_results(&mut messages, &mut repairs);
    rename_calls(&mut messages, &mut repairs);
    let messages = rebuild(messages, &mut results, &mut repairs);
    (messages, repairs)
}

/// Where a block stands: message and block within it, counted before anything is moved.
type Place = (usize, usize);

/// What was taken out of the messages to be put right.
struct Results {
    /// By the place of the call.
    of_calls: HashMap<Place, Taken>,
    /// For each message whether it held any result, kept or not.
    had_results: Vec<bool>,
}

struct Taken {
    result: ToolResult,
    from: Place,
}

/// A call that waits for the user message after it.
struct Open {
    place: Place,
    tool: String,
    id: ToolUseId,
}

/// Blank texts, and what a user can't say.
fn drop_blocks(messages: &mut [Message], repairs: &mut Vec<Repair>) {
    let (mut blank, mut foreign) = (0, 0);
    for message in messages {
        let role = message.role;
        message.content.retain_mut(|block| match block {
            ContentBlock::Text { text, .. } => {
                let keep = !text.trim().is_empty();
                blank += usize::from(!keep);
                keep
            }
            ContentBlock::ToolUse(_) | ContentBlock::Reasoning { .. } => {
                let keep = role == Role::Assistant;
                foreign += usize::from(!keep);
                keep
            }
            ContentBlock::ToolResult(result) => {
                let before = result.content.len();
                result.content.retain(|part| match part {
                    ResultContent::Text { text } => !text.trim().is_empty(),
                    ResultContent::Image(_) => true,
                });
                blank += before - result.content.len();
                true
            }
            ContentBlock::Image(_) | ContentBlock::Foreign(_) => true,
        });
    }
    if blank > 0 {
        repairs.push(Repair::BlankTextsDropped { n: blank });
    }
    if foreign > 0 {
        repairs.push(Repair::ForeignToRoleDropped { n: foreign });
    }
}

/// Takes all results out and gives each to the call that it answers: of the last message before it that has
/// calls of this id, the first one still open.
fn take_results(messages: &mut [Message], repairs: &mut Vec<Repair>) -> Results {
    let mut latest: HashMap<ToolUseId, Vec<Place>> = HashMap::new();
    let mut of_calls: HashMap<Place, Taken> = HashMap::new();
    let mut had_results = vec![false; messages.len()];
    for (m, message) in messages.iter_mut().enumerate() {
        let mut kept = Vec::with_capacity(message.content.len());
        for (b, block) in std::mem::take(&mut message.content).into_iter().enumerate() {
            match block {
                ContentBlock::ToolResult(result) => {
                    had_results[m] = true;
                    let open = latest
                        .get(&result.tool_use_id)
                        .into_iter()
                        .flatten()
                        .find(|call| !of_calls.contains_key(*call));
                    match open {
                        Some(call) => {
                            let taken = Taken {
                                result,
                                from: (m, b),
                            };
                            of_calls.insert(*call, taken);
                        }
                        None => repairs.push(Repair::ResultDropped {
                            id: result.tool_use_id,
                        }),
                    }
                }
                block => {
                    if let ContentBlock::ToolUse(call) = &block {
                        let places = latest.entry(call.id.clone()).or_default();
                        if places.last().is_some_and(|(before, _)| *before != m) {
                            places.clear();
                        }
                        places.push((m, kept.len()));
                    }
                    kept.push(block);
                }
            }
        }
        message.content = kept;
    }
    Results {
        of_calls,
        had_results,
    }
}

fn rename_calls(messages: &mut [Message], repairs: &mut Vec<Repair>) {
    let mut taken: HashSet<ToolUseId> = messages
        .iter()
        .flat_map(Message::tool_uses)
        .map(|call| call.id.clone())
        .collect();
    let mut seen = HashSet::new();
    for (m, message) in messages.iter_mut().enumerate() {
        for block in &mut message.content {
            let ContentBlock::ToolUse(call) = block else {
                continue;
            };
            if seen.insert(call.id.clone()) {
                continue;
            }
            let fresh = unused(m, &mut taken);
            let before = std::mem::replace(&mut call.id, fresh.clone());
            call.provider_id
                .get_or_insert_with(|| before.as_str().to_owned());
            repairs.push(Repair::IdReplaced {
                before: before.as_str().to_owned(),
                after: fresh.clone(),
            });
            seen.insert(fresh);
        }
    }
}

fn unused(turn: usize, taken: &mut HashSet<ToolUseId>) -> ToolUseId {
    let mut n = 0;
    loop {
        let id = ToolUseId::minted(turn, n);
        if taken.insert(id.clone()) {
            return id;
        }
        n += 1;
    }
}

fn rebuild(
    messages: Vec<Message>,
    results: &mut Results,
    repairs: &mut Vec<Repair>,
) -> Vec<Message> {
    let mut rebuilt: Vec<Message> = Vec::with_capacity(messages.len());
    let mut open: Vec<Open> = Vec::new();
    let (mut empty, mut merged) = (0, 0);
    for (m, message) in messages.into_iter().enumerate() {
        let had_results = results.had_results[m];
        let Message { role, mut content } = message;
        if content.is_empty() && !had_results {
            empty += 1;
            continue;
        }
        match role {
            Role::Assistant if content.is_empty() => {
                empty += 1;
                continue;
            }
            Role::Assistant => {
                let calls = content.iter().enumerate().filter_map(|(b, block)| {
                    let call = block.as_tool_use()?;
                    Some(Open {
                        place: (m, b),
                        tool: call.name.clone(),
                        id: call.id.clone(),
                    })
                });
                open.extend(calls);
                if rebuilt.is_empty() {
                    repairs.push(Repair::BeginningAdded);
                    rebuilt.push(Message::user(BEGINNING));
                }
            }
            Role::User => {
                let mut whole = results_of(&mut open, m, results, repairs);
                if content.is_empty() && whole.is_empty() {
                    empty += 1;
                    continue;
                }
                whole.append(&mut content);
                content = whole;
            }
        }
        match rebuilt.last_mut() {
            Some(last) if last.role == role => {
                last.content.append(&mut content);
                merged += 1;
            }
            _ => rebuilt.push(Message { role, content }),
        }
    }
    if !open.is_empty() {
        let content = results_of(&mut open, usize::MAX, results, repairs);
        rebuilt.push(Message {
            role: Role::User,
            content,
        });
    }
    if empty > 0 {
        repairs.push(Repair::EmptyMessagesDropped { n: empty });
    }
    if merged > 0 {
        repairs.push(Repair::MessagesMerged { n: merged });
    }
    rebuilt
}

/// The results of the open calls, in call order, for the message at `m`.
fn results_of(
    open: &mut Vec<Open>,
    m: usize,
    results: &mut Results,
    repairs: &mut Vec<Repair>,
) -> Vec<ContentBlock> {
    open.drain(..)
        .enumerate()
        .map(|(b, Open { place, tool, id })| {
            let result = match results.of_calls.remove(&place) {
                Some(Taken { result, from }) => {
                    if from != (m, b) {
                        repairs.push(Repair::ResultMoved { id: id.clone() });
                    }
                    ToolResult {
                        tool_use_id: id,
                        ..result
                    }
                }
                None => {
                    let text = outcome_unknown(&shown(&tool));
                    repairs.push(Repair::ResultMissing {
                        tool,
                        id: id.clone(),
                    });
                    ToolResult {
                        tool_use_id: id,
                        content: vec![ResultContent::Text { text }],
                        is_error: true,
                    }
                }
            };
            ContentBlock::ToolResult(result)
        })
        .collect()
}

/// Ids that are not 1 to 64 of `A-Z a-z 0-9 _ -` can't even be read. Each such text becomes one id that
/// nothing else has, in calls and results alike; [`repair`] then tells apart what has the same one.
fn replace_ill_formed_ids(messages: &mut Value) -> Vec<Repair> {
    let mut taken: HashSet<ToolUseId> = HashSet::new();
    each_id(messages, &mut |_, _, id| {
        taken.extend(id.as_str().and_then(|text| ToolUseId::parse(text).ok()));
    });
    let mut fresh: HashMap<String, ToolUseId> = HashMap::new();
    let mut repairs = Vec::new();
    each_id(messages, &mut |m, provider_id, id| {
        if id
            .as_str()
            .is_some_and(|text| ToolUseId::parse(text).is_ok())
        {
            return;
        }
        let before = match &*id {
            Value::String(text) => text.clone(),
            Value::Null => String::new(),
            other => other.to_string(),
        };
        let after = fresh
            .entry(before.clone())
            .or_insert_with(|| unused(m, &mut taken))
            .clone();
        *id = Value::from(after.as_str());
        if let Some(provider_id) = provider_id {
            if provider_id.is_null() {
                *provider_id = Value::from(before.as_str());
            }
            repairs.push(Repair::IdReplaced { before, after });
        }
    });
    repairs
}

/// Calls `f` for the id of each call, with the number of its message and its `provider_id`, and for that of
/// each result, without one.
fn each_id(messages: &mut Value, f: &mut dyn FnMut(usize, Option<&mut Value>, &mut Value)) {
    for (m, message) in messages.as_array_mut().into_iter().flatten().enumerate() {
        let blocks = message.get_mut("content").and_then(Value::as_array_mut);
        for block in blocks
            .into_iter()
            .flatten()
            .filter_map(Value::as_object_mut)
        {
            match block.get("type").and_then(Value::as_str) {
                Some("tool_use") => {
                    let mut id = block.get("id").cloned().unwrap_or_default();
                    let mut provider_id = block.get("provider_id").cloned().unwrap_or_default();
                    f(m, Some(&mut provider_id), &mut id);
                    block.insert("id".to_owned(), id);
                    if !provider_id.is_null() {
                        block.insert("provider_id".to_owned(), provider_id);
                    }
                }
                Some("tool_result") => {
                    f(m, None, block.entry("tool_use_id").or_insert(Value::Null));
                }
                _ => {}
            }
        }
    }
}

/// Model-written text inside a sentence of ours.
fn shown(text: &str) -> String {
    let mut shown: String = text
        .chars()
        .take(MAX_SHOWN_CHARS)
        .map(|c| if c.is_control() { ' ' } else { c })
        .collect();
    if text.chars().nth(MAX_SHOWN_CHARS).is_some() {
        shown.push('…');
    }
    shown
}

#[cfg(test)]
mod tests;
