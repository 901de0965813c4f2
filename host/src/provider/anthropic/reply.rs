//! From what the endpoint sends to a neutral reply. A streamed reply is put together to the same blocks that
//! a whole one has, and from there on both are read alike.

use std::collections::BTreeMap;

use indexmap::IndexMap;
use serde::Deserialize;
use serde_json::{
    Map, Value,
    value::{RawValue, to_raw_value},
};
use sse_stream::Sse;

use super::NAME;
use crate::{
    http::printable,
    provider::{
        Delta, ModelReply, Watch,
        exchange::{Fault, Reader, Said},
        pieces::{self, Lone, Pieces},
        tool_use_id,
    },
    transcript::{ContentBlock, Seal, StopReason, ToolInput, ToolUse, Usage},
};

/// More blocks than any reply has.
const MAX_BLOCKS: usize = 4096;

type Members = IndexMap<String, Box<RawValue>>;

/// A reply in the making.
pub(in crate::provider) struct Assembly {
    model: String,
    /// How many messages stand before the reply.
    turn: usize,
    /// By their index in the reply.
    blocks: BTreeMap<u64, OpenBlock>,
    usage: Usage,
    stop_reason: Option<String>,
    stop_details: Option<String>,
    complete: bool,
}

#[derive(Deserialize)]
struct WholeReply {
    content: Option<Vec<Box<RawValue>>>,
    stop_reason: Option<String>,
    #[serde(default)]
    stop_details: Value,
    #[serde(default)]
    usage: Value,
    error: Option<Value>,
}

#[derive(Deserialize)]
struct Event {
    r#type: Option<String>,
    #[serde(default)]
    index: u64,
    message: Option<MessageStart>,
    content_block: Option<Box<RawValue>>,
    delta: Option<Box<RawValue>>,
    #[serde(default)]
    usage: Value,
}

#[derive(Deserialize)]
struct MessageStart {
    #[serde(default)]
    usage: Value,
}

#[derive(Deserialize)]
struct MessageDelta {
    stop_reason: Option<String>,
    #[serde(default)]
    stop_details: Value,
}

fn usage(wire: &Value) -> Usage {
    let count = |name: &str| wire.get(name)?.as_u64();
    Usage {
        input: count("input_tokens"),
        output: count("output_tokens"),
        cache_read: count("cache_read_input_tokens"),
        cache_write: count("cache_creation_input_tokens"),
    }
}

fn stop_details(wire: &Value) -> Option<String> {
    let parts: Vec<&str> = ["category", "explanation"]
        .iter()
        .filter_map(|name| wire.get(name)?.as_str())
        .filter(|part| !part.trim().is_empty())
        .collect();
    (!parts.is_empty()).then(|| printable(&parts.join(": ")))
}

impl Assembly {
    pub(in crate::provider) fn new(model: &str, turn: usize) -> Self {
        Self {
            model: model.to_owned(),
            turn,
            blocks: BTreeMap::new(),
            usage: Usage::default(),
            stop_reason: None,
            stop_details: None,
            complete: false,
        }
    }

    fn start(&mut self, index: u64, block: &RawValue, watch: &mut dyn Watch) -> Result<(), Fault> {
        if self.blocks.len() == MAX_BLOCKS {
            return Err(Fault::protocol(format!(
                "it has more than {MAX_BLOCKS} blocks"
            )));
        }
        let block = OpenBlock::start(block)?;
        block.show_start(watch);
        match self.blocks.insert(index, block) {
            None => Ok(()),
            Some(_) => Err(Fault::protocol(format!("block {index} began twice"))),
        }
    }

    fn open_block(&mut self, index: u64) -> Result<&mut OpenBlock, Fault> {
        match self.blocks.get_mut(&index) {
            Some(block) if !block.stopped => Ok(block),
            Some(_) => Err(Fault::protocol(format!(
                "block {index} went on after its end"
            ))),
            None => Err(Fault::protocol(format!("block {index} never began"))),
        }
    }
}

impl Reader for Assembly {
    fn event(&mut self, event: &Sse, watch: &mut dyn Watch) -> Result<bool, Fault> {
        let Some(data) = event.data.as_deref().filter(|data| !data.trim().is_empty()) else {
            return Ok(false);
        };
        let unreadable = |error: serde_json::Error| {
            Fault::protocol(format!("an event that is not readable ({error}): {data}"))
        };
        let read: Event = serde_json::from_str(data).map_err(unreadable)?;
        let kind = read.r#type.as_deref().or(event.event.as_deref());
        let missing = |what: &str| Fault::protocol(format!("an event without `{what}`: {data}"));
        match kind.unwrap_or_default() {
            "message_start" => {
                let start = read.message.map(|message| usage(&message.usage));
                self.usage = self.usage.updated(start.unwrap_or_default());
            }
            "content_block_start" => {
                let block = read.content_block.ok_or_else(|| missing("content_block"))?;
                self.start(read.index, &block, watch)?;
            }
            "content_block_delta" => {
                let delta = read.delta.ok_or_else(|| missing("delta"))?;
                self.open_block(read.index)?.add(&delta, watch)?;
            }
            "content_block_stop" => self.open_block(read.index)?.stop(watch),
            "message_delta" => {
                if let Some(delta) = read.delta {
                    let delta: MessageDelta =
                        serde_json::from_str(delta.get()).map_err(unreadable)?;
                    self.stop_reason = delta.stop_reason.or(self.stop_reason.take());
                    let details = stop_details(&delta.stop_details);
                    self.stop_details = details.or(self.stop_details.take());
                }
                self.usage = self.usage.updated(usage(&read.usage));
            }
            "message_stop" => {
                self.complete = true;
                return Ok(true);
            }
            "error" => {
                let said = Said::read(data.as_bytes());
                return Err(Fault {
                    kind: said.kind(),
                    message: said.message,
                });
            }
            // `ping`, and whatever comes to be.
            _ => {}
        }
        Ok(false)
    }

    fn whole(&mut self, body: &[u8]) -> Result<(), Fault> {
        let reply: WholeReply =
            serde_json::from_slice(body).map_err(|error| Fault::unreadable(&error, body))?;
        let Some(content) = reply.content else {
            return Err(Fault::instead_of_reply(reply.error.as_ref(), body));
        };
        for (index, block) in (0..).zip(&content) {
            self.start(index, block, &mut ())?;
            self.open_block(index)?.stopped = true;
        }
        self.usage = usage(&reply.usage);
        self.stop_reason = reply.stop_reason;
        self.stop_details = stop_details(&reply.stop_details);
        self.complete = true;
        Ok(())
    }

    fn finish(self) -> Result<ModelReply, Fault> {
        if !self.complete {
            return Err(Fault::protocol("the stream ended before the reply did"));
        }
        let mut content = Vec::new();
        let mut calls = 0;
        for (index, block) in self.blocks {
            if !block.stopped {
                return Err(Fault::protocol(format!("block {index} has no end")));
            }
            let block = block.finish(&self.model, self.turn, calls)?;
            calls += usize::from(matches!(block, ContentBlock::ToolUse(_)));
            content.push(block);
        }
        Ok(ModelReply {
            content,
            stop_reason: stop_reason(self.stop_reason.as_deref()),
            stop_details: self.stop_details,
            usage: self.usage,
            request_id: None,
        })
    }

    fn usage(&self) -> Usage {
        self.usage
    }
}

/// A content block to which pieces may still come.
struct OpenBlock {
    kind: String,
    /// As the block began. When nothing came to it, this is the block.
    raw: Box<RawValue>,
    members: Members,
    /// The members that pieces were added to.
    strings: IndexMap<String, Pieces>,
    citations: Vec<Box<RawValue>>,
    input: Pieces,
    changed: bool,
    stopped: bool,
}

impl OpenBlock {
    fn start(raw: &RawValue) -> Result<Self, Fault> {
        let members: Members = serde_json::from_str(raw.get()).map_err(|error| {
            Fault::protocol(format!("a content block that is not one ({error}): {raw}"))
        })?;
        let kind = member(&members, "type")
            .ok_or_else(|| Fault::protocol(format!("a content block without `type`: {raw}")))?;
        Ok(Self {
            kind,
            raw: raw.to_owned(),
            members,
            strings: IndexMap::new(),
            citations: Vec::new(),
            input: Pieces::default(),
            changed: false,
            stopped: false,
        })
    }

    /// A block may begin with its first words.
    fn show_start(&self, watch: &mut dyn Watch) {
        let text = |name| member(&self.members, name).unwrap_or_default();
        match self.kind.as_str() {
            "text" => show(Delta::Text(&text("text")), watch),
            "thinking" => show(Delta::Reasoning(&text("thinking")), watch),
            "tool_use" => watch.delta(Delta::ToolUse {
                name: &text("name"),
            }),
            _ => {}
        }
    }

    fn stop(&mut self, watch: &mut dyn Watch) {
        self.stopped = true;
        if self.kind == "tool_use"
            && let Some(name) = member(&self.members, "name")
        {
            watch.tool_use(&name, &self.tool_input());
        }
    }

    /// What of the call's arguments has come.
    fn tool_input(&self) -> ToolInput {
        let streamed = (!self.input.is_empty()).then(|| self.input.clone().finish(Lone::Kept));
        tool_input(streamed, self.members.get("input").map(|raw| &**raw))
    }

    fn add(&mut self, delta: &RawValue, watch: &mut dyn Watch) -> Result<(), Fault> {
        let odd = || Fault::protocol(format!("a delta that is not one: {delta}"));
        let members: Members = serde_json::from_str(delta.get()).map_err(|_| odd())?;
        let kind = member(&members, "type").ok_or_else(odd)?;
        match kind.as_str() {
            "input_json_delta" => {
                if let Some(piece) = members.get("partial_json") {
                    self.input.push(piece, Lone::Kept).ok_or_else(odd)?;
                    self.changed = true;
                }
            }
            "citations_delta" => {
                let citation = members.get("citation").ok_or_else(odd)?;
                self.citations.push(citation.clone());
                self.changed = true;
            }
            "text_delta" => show(
                Delta::Text(self.append("text", &members).ok_or_else(odd)?),
                watch,
            ),
            "thinking_delta" => {
                let shown = self.append("thinking", &members).ok_or_else(odd)?;
                show(Delta::Reasoning(shown), watch);
            }
            // `signature_delta`, and whatever comes to be: texts grow, everything else is replaced.
            _ => {
                for (name, value) in &members {
                    if name == "type" {
                        continue;
                    }
                    if self.append(name, &members).is_none() {
                        self.members.insert(name.clone(), value.clone());
                        self.changed = true;
                    }
                }
            }
        }
        Ok(())
    }

    /// Adds to a text and gives what became readable; `None` if the delta or the block has something else.
    fn append(&mut self, name: &str, delta: &Members) -> Option<&str> {
        let piece = delta.get(name)?;
        if !piece.get().starts_with('"') {
            return None;
        }
        if !self.strings.contains_key(name) {
            let mut begun = Pieces::default();
            if let Some(start) = self.members.get(name) {
                begun.push(start, Lone::Replaced)?;
            }
            self.strings.insert(name.to_owned(), begun);
        }
        self.changed = true;
        self.strings.get_mut(name)?.push(piece, Lone::Replaced)
    }

    fn finish(mut self, model: &str, turn: usize, n: usize) -> Result<ContentBlock, Fault> {
        let unwritable = |error| Fault::protocol(format!("a block that cannot be kept: {error}"));
        for (name, pieces) in std::mem::take(&mut self.strings) {
            let text = to_raw_value(&pieces.finish(Lone::Replaced)).map_err(unwritable)?;
            self.members.insert(name, text);
        }
        if !self.citations.is_empty() {
            let before: Option<Vec<Box<RawValue>>> = self
                .members
                .get("citations")
                .and_then(|array| serde_json::from_str(array.get()).ok());
            let all = before
                .into_iter()
                .flatten()
                .chain(std::mem::take(&mut self.citations));
            let all = to_raw_value(&all.collect::<Vec<_>>()).map_err(unwritable)?;
            self.members.insert("citations".into(), all);
        }
        let text = |name: &str| {
            member(&self.members, name)
                .ok_or_else(|| Fault::protocol(format!("a `{}` block without `{name}`", self.kind)))
        };
        match self.kind.as_str() {
            "text" => Ok(ContentBlock::Text {
                text: text("text")?,
                extra: extra(&self.members, &["type", "text"]),
            }),
            "tool_use" => {
                let (id, provider_id) =
                    tool_use_id(member(&self.members, "id").as_deref(), turn, n);
                Ok(ContentBlock::ToolUse(ToolUse {
                    id,
                    provider_id,
                    name: text("name")?,
                    input: self.tool_input(),
                    extra: extra(&self.members, &["type", "id", "name", "input"]),
                }))
            }
            _ => {
                let input = (!self.input.is_empty()).then(|| self.input.finish(Lone::Kept));
                if let Some(input) = input.filter(|input| !input.trim().is_empty()) {
                    // The input of a call that the endpoint itself carries out.
                    let input = RawValue::from_string(input).map_err(unwritable)?;
                    self.members.insert("input".into(), input);
                }
                let raw = match self.changed {
                    true => to_raw_value(&self.members).map_err(unwritable)?,
                    false => self.raw,
                };
                let seal = Seal {
                    provider: NAME.into(),
                    model: model.to_owned(),
                    raw: raw.get().to_owned(),
                };
                Ok(match self.kind.as_str() {
                    "thinking" => ContentBlock::Reasoning {
                        text: member(&self.members, "thinking").unwrap_or_default(),
                        seal,
                    },
                    "redacted_thinking" => ContentBlock::Reasoning {
                        text: String::new(),
                        seal,
                    },
                    _ => ContentBlock::Foreign(seal),
                })
            }
        }
    }
}

/// What was streamed counts; what the block began with counts where nothing was.
fn tool_input(streamed: Option<String>, begun: Option<&RawValue>) -> ToolInput {
    match (streamed, begun) {
        (Some(streamed), _) if !streamed.trim().is_empty() => ToolInput::parse(&streamed),
        (_, None) => ToolInput::parse(""),
        (_, Some(begun)) => match (begun.get(), pieces::string(begun, Lone::Kept)) {
            ("null", _) => ToolInput::parse(""),
            // Some gateways hand the arguments on as the text that they got.
            (_, Some(text)) => ToolInput::parse(&text),
            (raw, None) => ToolInput::parse(raw),
        },
    }
}

fn member(members: &Members, name: &str) -> Option<String> {
    pieces::string(members.get(name)?, Lone::Replaced)
}

/// Members beyond the `known`; `null` says nothing.
fn extra(members: &Members, known: &[&str]) -> Map<String, Value> {
    members
        .iter()
        .filter(|(name, _)| !known.contains(&name.as_str()))
        .filter_map(|(name, raw)| Some((name.clone(), serde_json::from_str(raw.get()).ok()?)))
        .filter(|(_, value): &(String, Value)| !value.is_null())
        .collect()
}

fn show(delta: Delta<'_>, watch: &mut dyn Watch) {
    match delta {
        Delta::Text("") | Delta::Reasoning("") => {}
        delta => watch.delta(delta),
    }
}

fn stop_reason(word: Option<&str>) -> StopReason {
    match word.unwrap_or_default() {
        "end_turn" => StopReason::EndTurn,
        "tool_use" => StopReason::ToolUse,
        "max_tokens" => StopReason::MaxTokens,
        "stop_sequence" => StopReason::StopSequence,
        "pause_turn" => StopReason::PauseTurn,
        "refusal" => StopReason::Refusal,
        "model_context_window_exceeded" => StopReason::ModelContextWindowExceeded,
        other => StopReason::Unknown(printable(other)),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::provider::heard::Heard;

    /// The reply that these events make, given as their data.
    fn streamed(events: &[&str]) -> Result<(ModelReply, String), Fault> {
        let mut assembly = Assembly::new("m", 3);
        let mut heard = Heard::default();
        for event in events {
            if assembly.event(&Sse::default().data(*event), &mut heard)? {
                break;
            }
        }
        Ok((assembly.finish()?, heard.0))
    }

    fn whole(body: &Value) -> Result<ModelReply, Fault> {
        let mut assembly = Assembly::new("m", 3);
        assembly.whole(body.to_string().as_bytes())?;
        assembly.finish()
    }

    fn call(block: &ContentBlock) -> &ToolUse {
        match block {
            ContentBlock::ToolUse(call) => call,
            other => panic!("{other:?}"),
        }
    }

    fn delta(index: u64, delta: Value) -> String {
        json!({"type": "content_block_delta", "index": index, "delta": delta}).to_string()
    }

    const STOP: &str = r#"{"type":"message_stop"}"#;

    fn started(index: u64, block: Value) -> String {
        json!({"type": "content_block_start", "index": index, "content_block": block}).to_string()
    }

    fn stopped(index: u64) -> String {
        json!({"type": "content_block_stop", "index": index}).to_string()
    }

    /// Whoever wants to begin a call early hears of it at its own end, and of what it will be.
    #[test]
    fn a_call_is_told_of_once_it_is_whole() {
        #[derive(Default)]
        struct Whole(Vec<(String, ToolInput)>);
        impl Watch for Whole {
            fn delta(&mut self, _: Delta<'_>) {}
            fn tool_use(&mut self, name: &str, input: &ToolInput) {
                self.0.push((name.to_owned(), input.clone()));
            }
            fn retrying(
                &mut self,
                _: u32,
                _: std::time::Duration,
                _: &crate::provider::ProviderError,
            ) {
            }
        }
        let call = json!({"type":"tool_use","id":"toolu_1","name":"add","input":{}});
        let piece = |text: &str| delta(0, json!({"type":"input_json_delta","partial_json":text}));
        let mut assembly = Assembly::new("m", 3);
        let mut whole = Whole::default();
        let mut hear = |event: String, whole: &mut Whole| {
            assembly.event(&Sse::default().data(event), whole).unwrap();
        };
        for event in [started(0, call), piece("{\"a\":"), piece("1}")] {
            hear(event, &mut whole);
            assert!(whole.0.is_empty());
        }
        hear(stopped(0), &mut whole);
        assert_eq!(whole.0, [("add".to_owned(), ToolInput::parse("{\"a\":1}"))]);
    }

    #[test]
    fn a_call_without_arguments_has_none() {
        let begun = started(
            0,
            json!({"type":"tool_use","id":"toolu_1","name":"now","input":{}}),
        );
        let empty = delta(0, json!({"type":"input_json_delta","partial_json":""}));
        let blank = delta(0, json!({"type":"input_json_delta","partial_json":" \n"}));
        for deltas in [
            vec![],
            vec![empty.clone()],
            vec![blank.clone(), empty, blank],
        ] {
            let mut events = vec![begun.as_str()];
            events.extend(deltas.iter().map(String::as_str));
            let stop = stopped(0);
            events.extend([stop.as_str(), STOP]);
            let (reply, heard) = streamed(&events).unwrap();
            assert_eq!(call(&reply.content[0]).input, ToolInput::parse(""));
            assert_eq!(heard, "<now>");
        }
        for input in [json!({}), json!(null), json!(""), json!(" ")] {
            let block = json!({"type":"tool_use","id":"toolu_1","name":"now","input":input});
            let reply = whole(&json!({"content": [block], "stop_reason": "tool_use"})).unwrap();
            assert_eq!(call(&reply.content[0]).input, ToolInput::parse(""));
        }
        let block = json!({"type":"tool_use","id":"toolu_1","name":"now"});
        let reply = whole(&json!({"content": [block]})).unwrap();
        assert_eq!(call(&reply.content[0]).input, ToolInput::parse(""));
        assert_eq!(reply.stop_reason, StopReason::Unknown(String::new()));
    }

    #[test]
    fn pieces_are_joined_by_index_and_parsed_once() {
        let arguments = r#"{"text":"a\"\\\u00e9 😀 {]"}"#;
        let lone = r#"{"text":"\ud83d"}"#;
        let mut events = vec![
            started(
                0,
                json!({"type":"tool_use","id":"a","name":"echo","input":{}}),
            ),
            started(
                1,
                json!({"type":"tool_use","id":"b","name":"echo","input":{}}),
            ),
        ];
        let mut second = lone.chars();
        for c in arguments.chars() {
            for (index, c) in [(0, Some(c)), (1, second.next())] {
                let piece = c.map(String::from).unwrap_or_default();
                events.push(delta(
                    index,
                    json!({"type":"input_json_delta","partial_json":piece}),
                ));
                events.push(r#"{"type": "ping"}"#.into());
                events.push(r#"{"type": "brand_new", "index": 0}"#.into());
            }
        }
        events.extend([stopped(1), stopped(0), STOP.into()]);
        let events: Vec<&str> = events.iter().map(String::as_str).collect();
        let (reply, _) = streamed(&events).unwrap();
        assert_eq!(call(&reply.content[0]).id.as_str(), "a");
        assert_eq!(
            call(&reply.content[0]).input.replayed()["text"],
            "a\"\\é 😀 {]"
        );
        let ToolInput::Malformed { malformed, .. } = &call(&reply.content[1]).input else {
            panic!("half a character was read");
        };
        assert_eq!(malformed, lone);
    }

    #[test]
    fn half_a_character_in_a_whole_reply_is_a_fault_of_its_call_alone() {
        let body = r#"{"content":[
            {"type":"tool_use","id":"a","name":"echo","input":{"text":"\ud83d"}},
            {"type":"tool_use","id":"b","name":"echo","input":{"text":"\ud83d\ude00"}},
            {"type":"text","text":"x\ud83d"}],"stop_reason":"tool_use"}"#;
        let mut assembly = Assembly::new("m", 3);
        assembly.whole(body.as_bytes()).unwrap();
        let reply = assembly.finish().unwrap();
        assert!(matches!(
            call(&reply.content[0]).input,
            ToolInput::Malformed { .. }
        ));
        assert_eq!(call(&reply.content[1]).input.replayed()["text"], "😀");
        assert_eq!(reply.content[2], ContentBlock::text("x\u{fffd}"));
    }

    #[test]
    fn tokens_are_running_totals() {
        let (reply, _) = streamed(&[
            r#"{"type":"message_start","message":{"usage":{"input_tokens":472,"output_tokens":1}}}"#,
            r#"{"type":"message_delta","delta":{},"usage":{"output_tokens":40}}"#,
            r#"{"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"input_tokens":480,"cache_read_input_tokens":null,"output_tokens":89}}"#,
            STOP,
        ])
        .unwrap();
        let usage = Usage {
            input: Some(480),
            output: Some(89),
            cache_read: None,
            cache_write: None,
        };
        assert_eq!(reply.usage, usage);
        let whole = whole(&json!({"content": [], "stop_reason": "end_turn", "usage":
            {"input_tokens":480,"cache_read_input_tokens":null,"output_tokens":89}}));
        assert_eq!(whole.unwrap().usage, usage);
    }

    #[test]
    fn sealed_blocks_keep_their_bytes() {
        let unknown =
            r#"{ "type":"search_result",  "score": 1.50, "big": 123456789012345678901234567890 }"#;
        let begun =
            format!(r#"{{"type":"content_block_start","index":0,"content_block":{unknown}}}"#);
        let thinking = started(1, json!({"type":"thinking","thinking":"","signature":""}));
        let think = |text: &str| delta(1, json!({"type":"thinking_delta","thinking":text}));
        let sign = |text: &str| delta(1, json!({"type":"signature_delta","signature":text}));
        let server = started(
            2,
            json!({"type":"server_tool_use","id":"s","name":"x","input":{}}),
        );
        let input = delta(
            2,
            json!({"type":"input_json_delta","partial_json":"{\"q\": 1.0}"}),
        );
        let events = [
            begun,
            stopped(0),
            thinking,
            think("a"),
            think("b"),
            sign("EqQ"),
            sign("B="),
            stopped(1),
            server,
            input,
            stopped(2),
            STOP.into(),
        ];
        let events: Vec<&str> = events.iter().map(String::as_str).collect();
        let (reply, heard) = streamed(&events).unwrap();
        assert_eq!(heard, "(a)(b)");
        let raw = |block: &ContentBlock| match block {
            ContentBlock::Foreign(seal) | ContentBlock::Reasoning { seal, .. } => seal.raw.clone(),
            other => panic!("{other:?}"),
        };
        assert_eq!(raw(&reply.content[0]), unknown);
        assert_eq!(
            raw(&reply.content[1]),
            r#"{"type":"thinking","thinking":"ab","signature":"EqQB="}"#
        );
        assert_eq!(
            raw(&reply.content[2]),
            r#"{"type":"server_tool_use","id":"s","name":"x","input":{"q": 1.0}}"#
        );
        let mut assembly = Assembly::new("m", 3);
        let body = format!(r#"{{"content":[{unknown}]}}"#);
        assembly.whole(body.as_bytes()).unwrap();
        assert_eq!(raw(&assembly.finish().unwrap().content[0]), unknown);
    }

    #[test]
    fn other_members_stay_with_their_block() {
        let citation = json!({"type": "char_location", "start": 1});
        let events = [
            started(0, json!({"type":"text","text":"","citations":null})),
            delta(0, json!({"type":"text_delta","text":"x"})),
            delta(0, json!({"type":"citations_delta","citation":citation})),
            stopped(0),
            started(
                1,
                json!({"type":"tool_use","id":"a","name":"n","input":{"b":1,"a":2},"caller":{"type":"direct"},"toolset_name":null}),
            ),
            stopped(1),
            STOP.into(),
        ];
        let events: Vec<&str> = events.iter().map(String::as_str).collect();
        let (streamed, _) = streamed(&events).unwrap();
        let whole = whole(&json!({"content": [
            {"type":"text","text":"x","citations":[citation]},
            {"type":"tool_use","id":"a","name":"n","input":{"b":1,"a":2},"caller":{"type":"direct"}},
        ]}))
        .unwrap();
        assert_eq!(streamed, whole);
        let ContentBlock::Text { extra, .. } = &whole.content[0] else {
            panic!("no text");
        };
        assert_eq!(extra["citations"], json!([citation]));
        let call = call(&whole.content[1]);
        assert_eq!(call.extra["caller"], json!({"type": "direct"}));
        let order: Vec<_> = call.input.replayed().keys().cloned().collect();
        assert_eq!(order, ["b", "a"]);
    }

    #[test]
    fn ids_that_are_none_are_replaced() {
        let call_of = |id: Value| json!({"type":"tool_use","id":id,"name":"n","input":{}});
        let blocks = [
            call_of(json!("toolu_1")),
            call_of(json!("")),
            call_of(json!("a b")),
        ];
        let reply = whole(&json!({"content": blocks})).unwrap();
        let ids: Vec<_> = reply
            .content
            .iter()
            .map(|block| (call(block).id.as_str(), call(block).provider_id.as_deref()))
            .collect();
        assert_eq!(
            ids,
            [
                ("toolu_1", None),
                ("call_3_1", Some("")),
                ("call_3_2", Some("a b"))
            ]
        );
    }

    #[test]
    fn stop_reasons() {
        for (word, reason) in [
            (json!("end_turn"), StopReason::EndTurn),
            (json!("tool_use"), StopReason::ToolUse),
            (json!("max_tokens"), StopReason::MaxTokens),
            (json!("stop_sequence"), StopReason::StopSequence),
            (json!("pause_turn"), StopReason::PauseTurn),
            (
                json!("model_context_window_exceeded"),
                StopReason::ModelContextWindowExceeded,
            ),
            (json!("new_thing"), StopReason::Unknown("new_thing".into())),
            (json!(null), StopReason::Unknown(String::new())),
        ] {
            let reply = whole(&json!({"content": [], "stop_reason": word})).unwrap();
            assert_eq!(reply.stop_reason, reason);
            let event = json!({"type": "message_delta", "delta": {"stop_reason": word}});
            let (reply, _) = streamed(&[&event.to_string(), STOP]).unwrap();
            assert_eq!(reply.stop_reason, reason);
        }
        let details = json!({"type":"refusal","category":"cyber","explanation":"Not this."});
        let refusal = json!({"content": [], "stop_reason": "refusal", "stop_details": details});
        let reply = whole(&refusal).unwrap();
        assert_eq!(reply.stop_reason, StopReason::Refusal);
        assert_eq!(reply.stop_details.as_deref(), Some("cyber: Not this."));
    }

    #[test]
    fn a_stream_that_is_not_whole_is_no_reply() {
        let text = started(0, json!({"type":"text","text":""}));
        let words = delta(0, json!({"type":"text_delta","text":"x"}));
        let stop = stopped(0);
        for (events, fault) in [
            (vec![&*text, &*words, &*stop], "ended before"),
            (vec![&*text, &*words, STOP], "block 0 has no end"),
            (vec![&*words, STOP], "block 0 never began"),
            (vec![&*text, &*stop, &*words], "went on after its end"),
            (vec![&*text, &*text], "began twice"),
            (vec!["{\"type\":"], "not readable"),
            (
                vec![r#"{"type":"content_block_start","index":0}"#],
                "without `content_block`",
            ),
            (
                vec![r#"{"type":"content_block_delta","index":0}"#],
                "without `delta`",
            ),
            (vec![], "ended before"),
        ] {
            let error = streamed(&events).unwrap_err();
            assert!(error.message.contains(fault), "{error:?}");
            assert_eq!(error.kind, crate::provider::ProviderErrorKind::Protocol);
        }
        let error = streamed(&[
            r#"{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}"#,
        ])
        .unwrap_err();
        assert_eq!(error.kind, crate::provider::ProviderErrorKind::Overloaded);
        assert_eq!(error.message, "Overloaded");
    }
}
