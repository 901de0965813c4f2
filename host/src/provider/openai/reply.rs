//! From what the endpoint sends to a neutral reply. A whole reply is read as a stream of one chunk.

use indexmap::IndexMap;
use serde::Deserialize;
use serde_json::{
    Map, Value,
    value::{RawValue, to_raw_value},
};
use sse_stream::Sse;

use super::{NAME, schema};
use crate::{
    http::printable,
    provider::{
        Delta, ModelReply, Watch,
        exchange::{Fault, Reader, Said},
        pieces::{Lone, Pieces},
        tool_use_id,
    },
    transcript::{ContentBlock, Seal, StopReason, ToolInput, ToolUse, Usage},
};

/// More calls than any reply has.
const MAX_CALLS: usize = 4096;

/// A reply in the making.
pub(in crate::provider) struct Assembly {
    model: String,
    /// How many messages stand before the reply.
    turn: usize,
    /// The reply is a call or an answer in JSON, and is shown when it is known which.
    as_schema: bool,
    text: Pieces,
    refusal: Pieces,
    /// Under the names that the servers have for it.
    reasoning: IndexMap<&'static str, Pieces>,
    reasoning_details: Vec<Box<RawValue>>,
    calls: Vec<Call>,
    finish_reason: Option<String>,
    tokens: Tokens,
    /// The stream's closing mark came.
    done: bool,
}

#[derive(Default)]
struct Call {
    index: u64,
    id: Option<String>,
    name: String,
    arguments: Pieces,
    /// Arguments that are no text: some servers send the object itself.
    object: String,
}

/// Counts as they come: the prompt's hold those of the cache.
#[derive(Clone, Copy, Default)]
struct Tokens {
    prompt: Option<u64>,
    completion: Option<u64>,
    cached: Option<u64>,
    cache_write: Option<u64>,
}

#[derive(Deserialize)]
struct Chunk {
    choices: Option<Vec<Choice>>,
    #[serde(default)]
    usage: Value,
    error: Option<Value>,
}

#[derive(Deserialize)]
struct Choice {
    #[serde(default)]
    index: u64,
    delta: Option<Part>,
    message: Option<Part>,
    finish_reason: Option<String>,
}

#[derive(Deserialize)]
struct Part {
    content: Option<Box<RawValue>>,
    refusal: Option<Box<RawValue>>,
    reasoning_content: Option<Box<RawValue>>,
    reasoning: Option<Box<RawValue>>,
    reasoning_details: Option<Vec<Box<RawValue>>>,
    tool_calls: Option<Vec<CallPart>>,
    /// The form before `tool_calls`.
    function_call: Option<Function>,
}

#[derive(Deserialize)]
struct CallPart {
    index: Option<u64>,
    id: Option<String>,
    function: Option<Function>,
}

#[derive(Deserialize)]
struct Function {
    name: Option<String>,
    arguments: Option<Box<RawValue>>,
}

impl Tokens {
    fn update(&mut self, wire: &Value) {
        let count = |path: &str| wire.pointer(path).and_then(Value::as_u64);
        let details = "/prompt_tokens_details";
        self.prompt = count("/prompt_tokens").or(self.prompt);
        self.completion = count("/completion_tokens").or(self.completion);
        self.cached = count(&format!("{details}/cached_tokens")).or(self.cached);
        self.cache_write = count(&format!("{details}/cache_write_tokens")).or(self.cache_write);
    }

    fn usage(self) -> Usage {
        let cache = self
            .cached
            .unwrap_or(0)
            .saturating_add(self.cache_write.unwrap_or(0));
        Usage {
            input: self.prompt.map(|prompt| prompt.saturating_sub(cache)),
            output: self.completion,
            cache_read: self.cached,
            cache_write: self.cache_write,
        }
    }
}

impl Part {
    /// Of a message that came whole: what stands in it twice are two calls, whatever their ids.
    fn with_each_call_its_own(mut self) -> Self {
        for (n, call) in self.tool_calls.iter_mut().flatten().enumerate() {
            call.index = Some(n as u64);
        }
        self
    }
}

impl Assembly {
    pub(in crate::provider) fn new(model: &str, turn: usize, as_schema: bool) -> Self {
        Self {
            model: model.to_owned(),
            turn,
            as_schema,
            text: Pieces::default(),
            refusal: Pieces::default(),
            reasoning: IndexMap::new(),
            reasoning_details: Vec::new(),
            calls: Vec::new(),
            finish_reason: None,
            tokens: Tokens::default(),
            done: false,
        }
    }

    fn add(&mut self, chunk: Chunk, watch: &mut dyn Watch) -> Result<(), Fault> {
        if let Some(error) = chunk.error {
            let said = Said::of(&error);
            return Err(Fault {
                kind: said.kind(),
                message: said.message,
            });
        }
        self.tokens.update(&chunk.usage);
        for choice in chunk.choices.unwrap_or_default() {
            if choice.index != 0 {
                continue;
            }
            let part = choice
                .delta
                .or_else(|| choice.message.map(Part::with_each_call_its_own));
            if let Some(part) = part {
                self.add_part(part, watch)?;
            }
            self.finish_reason = choice.finish_reason.or(self.finish_reason.take());
        }
        Ok(())
    }

    fn add_part(&mut self, part: Part, watch: &mut dyn Watch) -> Result<(), Fault> {
        let as_schema = self.as_schema;
        let mut show = |delta: Delta<'_>| match delta {
            Delta::Text("") | Delta::Reasoning("") => {}
            _ if as_schema => {}
            delta => watch.delta(delta),
        };
        let members = [
            ("reasoning_content", part.reasoning_content),
            ("reasoning", part.reasoning),
        ];
        for (name, literal) in members {
            if let Some(literal) = literal {
                let pieces = self.reasoning.entry(name).or_default();
                show(Delta::Reasoning(push(pieces, &literal, Lone::Replaced)?));
            }
        }
        self.reasoning_details
            .extend(part.reasoning_details.unwrap_or_default());
        if let Some(content) = part.content {
            for literal in texts(content) {
                show(Delta::Text(push(&mut self.text, &literal, Lone::Replaced)?));
            }
        }
        if let Some(refusal) = part.refusal {
            show(Delta::Text(push(
                &mut self.refusal,
                &refusal,
                Lone::Replaced,
            )?));
        }
        let old_form = part.function_call.map(|function| CallPart {
            index: None,
            id: None,
            function: Some(function),
        });
        for piece in part.tool_calls.into_iter().flatten().chain(old_form) {
            self.add_call(piece, &mut show)?;
        }
        Ok(())
    }

    fn add_call(&mut self, piece: CallPart, show: &mut dyn FnMut(Delta<'_>)) -> Result<(), Fault> {
        let id = piece.id.filter(|id| !id.is_empty());
        let function = piece.function.unwrap_or(Function {
            name: None,
            arguments: None,
        });
        let name = function.name.unwrap_or_default();
        // Servers that give no index, or one index to all, begin a call with its id or its name.
        let same = self.calls.iter().rposition(|call| {
            let index = piece.index.is_none_or(|index| index == call.index);
            index && (id.is_none() || id == call.id)
        });
        let same = same.filter(|_| piece.index.is_some() || id.is_some() || name.is_empty());
        let at = match same {
            Some(at) => at,
            None if self.calls.len() == MAX_CALLS => {
                return Err(Fault::protocol(format!(
                    "it has more than {MAX_CALLS} calls"
                )));
            }
            None => {
                self.calls.push(Call {
                    index: piece.index.unwrap_or(self.calls.len() as u64),
                    id,
                    ..Call::default()
                });
                self.calls.len() - 1
            }
        };
        let call = &mut self.calls[at];
        if call.name.is_empty() && !name.is_empty() {
            call.name = name;
            show(Delta::ToolUse { name: &call.name });
        }
        if let Some(arguments) = function.arguments {
            match arguments.get() {
                "null" => {}
                text if text.starts_with('"') => {
                    push(&mut call.arguments, &arguments, Lone::Kept)?;
                }
                object => object.clone_into(&mut call.object),
            }
        }
        Ok(())
    }

    fn reasoning(&mut self) -> Result<Option<ContentBlock>, Fault> {
        let unwritable = |error| Fault::protocol(format!("reasoning that cannot be kept: {error}"));
        let mut text = String::new();
        let mut members: IndexMap<&str, Box<RawValue>> = IndexMap::new();
        for (name, pieces) in std::mem::take(&mut self.reasoning) {
            let whole = pieces.finish(Lone::Replaced);
            if whole.is_empty() {
                continue;
            }
            members.insert(name, to_raw_value(&whole).map_err(unwritable)?);
            text = whole;
        }
        if !self.reasoning_details.is_empty() {
            let details = to_raw_value(&self.reasoning_details).map_err(unwritable)?;
            members.insert("reasoning_details", details);
        }
        if members.is_empty() {
            return Ok(None);
        }
        let raw = to_raw_value(&members).map_err(unwritable)?;
        Ok(Some(ContentBlock::Reasoning {
            text,
            seal: Seal {
                provider: NAME.into(),
                model: self.model.clone(),
                raw: raw.get().to_owned(),
            },
        }))
    }

    fn tool_use(&self, n: usize, id: Option<&str>, name: String, arguments: &str) -> ContentBlock {
        let (id, provider_id) = tool_use_id(id, self.turn, n);
        ContentBlock::ToolUse(ToolUse {
            id,
            provider_id,
            name,
            input: ToolInput::parse(arguments),
            extra: Map::new(),
        })
    }
}

impl Reader for Assembly {
    fn event(&mut self, event: &Sse, watch: &mut dyn Watch) -> Result<bool, Fault> {
        let Some(data) = event.data.as_deref().filter(|data| !data.trim().is_empty()) else {
            return Ok(false);
        };
        if data.trim() == "[DONE]" {
            self.done = true;
            return Ok(true);
        }
        let chunk: Chunk = serde_json::from_str(data).map_err(|error| {
            Fault::protocol(format!("an event that is not readable ({error}): {data}"))
        })?;
        self.add(chunk, watch)?;
        Ok(false)
    }

    fn whole(&mut self, body: &[u8]) -> Result<(), Fault> {
        let chunk: Chunk =
            serde_json::from_slice(body).map_err(|error| Fault::unreadable(&error, body))?;
        let has_reply = chunk
            .choices
            .iter()
            .flatten()
            .any(|choice| choice.message.is_some());
        if !has_reply {
            return Err(Fault::instead_of_reply(chunk.error.as_ref(), body));
        }
        self.done = true;
        self.add(chunk, &mut ())
    }

    fn finish(mut self) -> Result<ModelReply, Fault> {
        // Some servers leave the closing mark out; what comes after the reason is not part of the reply.
        if !self.done && self.finish_reason.is_none() {
            return Err(Fault::protocol("the stream ended before the reply did"));
        }
        let mut content: Vec<ContentBlock> = self.reasoning()?.into_iter().collect();
        let mut stop_reason = stop_reason(self.finish_reason.as_deref());
        let text = std::mem::take(&mut self.text).finish(Lone::Replaced);
        let refusal = std::mem::take(&mut self.refusal).finish(Lone::Replaced);
        let refused = !refusal.trim().is_empty();
        if refused {
            stop_reason = StopReason::Refusal;
            content.push(ContentBlock::text(&refusal));
        }
        let read = match self.as_schema {
            true => schema::read(&text),
            false => schema::Read::Neither,
        };
        match read {
            schema::Read::Call { name, arguments } => {
                content.push(self.tool_use(0, None, name, &arguments));
                if stop_reason == StopReason::EndTurn {
                    stop_reason = StopReason::ToolUse;
                }
            }
            schema::Read::Answer(answer) => content.push(ContentBlock::text(answer)),
            // Half an object says nothing.
            schema::Read::Neither if self.as_schema && stop_reason == StopReason::MaxTokens => {}
            schema::Read::Neither if text.is_empty() => {}
            schema::Read::Neither => content.push(ContentBlock::text(text)),
        }
        let mut calls = std::mem::take(&mut self.calls);
        calls.sort_by_key(|call| call.index);
        for (n, call) in calls.into_iter().enumerate() {
            let arguments = match call.object.is_empty() {
                true => call.arguments.finish(Lone::Kept),
                false => call.object,
            };
            content.push(self.tool_use(n, call.id.as_deref(), call.name, &arguments));
        }
        Ok(ModelReply {
            content,
            stop_reason,
            stop_details: refused.then(|| printable(&refusal)),
            usage: self.tokens.usage(),
            request_id: None,
        })
    }

    fn usage(&self) -> Usage {
        self.tokens.usage()
    }

    fn held_back(&self) -> bool {
        self.as_schema
    }
}

fn push<'a>(pieces: &'a mut Pieces, literal: &RawValue, lone: Lone) -> Result<&'a str, Fault> {
    pieces
        .push(literal, lone)
        .ok_or_else(|| Fault::protocol(format!("a piece that is not text: {literal}")))
}

/// Content is a text, or parts some of which are.
fn texts(content: Box<RawValue>) -> Vec<Box<RawValue>> {
    #[derive(Deserialize)]
    struct TextPart {
        text: Option<Box<RawValue>>,
    }
    match serde_json::from_str::<Vec<TextPart>>(content.get()) {
        Ok(parts) => parts.into_iter().filter_map(|part| part.text).collect(),
        Err(_) => vec![content],
    }
}

fn stop_reason(word: Option<&str>) -> StopReason {
    match word.unwrap_or_default() {
        "stop" => StopReason::EndTurn,
        "length" => StopReason::MaxTokens,
        "tool_calls" | "function_call" => StopReason::ToolUse,
        "content_filter" => StopReason::Refusal,
        other => StopReason::Unknown(printable(other)),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::provider::heard::Heard;

    fn streamed(chunks: &[Value]) -> (ModelReply, String) {
        let mut assembly = Assembly::new("m", 3, false);
        let mut heard = Heard::default();
        for chunk in chunks {
            let event = Sse::default().data(chunk.to_string());
            assert!(!assembly.event(&event, &mut heard).unwrap());
        }
        let end = Sse::default().data("[DONE]");
        assert!(assembly.event(&end, &mut heard).unwrap());
        (assembly.finish().unwrap(), heard.0)
    }

    fn whole(message: Value, finish_reason: Value, as_schema: bool) -> ModelReply {
        let mut assembly = Assembly::new("m", 3, as_schema);
        let body = json!({"choices": [{"message": message, "finish_reason": finish_reason}]});
        assembly.whole(body.to_string().as_bytes()).unwrap();
        assembly.finish().unwrap()
    }

    fn delta(delta: Value) -> Value {
        json!({"choices": [{"index": 0, "delta": delta}]})
    }

    fn calls(reply: &ModelReply) -> Vec<(&str, &str, String)> {
        reply
            .content
            .iter()
            .filter_map(|block| match block {
                ContentBlock::ToolUse(call) => Some((
                    call.id.as_str(),
                    call.name.as_str(),
                    serde_json::to_string(&call.input).unwrap(),
                )),
                _ => None,
            })
            .collect()
    }

    fn piece(index: Option<u64>, id: Option<&str>, name: Option<&str>, arguments: &str) -> Value {
        delta(json!({"tool_calls": [{
            "index": index, "id": id, "function": {"name": name, "arguments": arguments},
        }]}))
    }

    #[test]
    fn calls_are_put_together_by_index() {
        let arguments = r#"{"text":"a\"\\\u00e9 😀 {]"}"#;
        let mut chunks = vec![
            delta(json!({"role": "assistant", "content": null})),
            piece(Some(1), Some("b"), Some("two"), ""),
            piece(Some(0), Some("a"), Some("one"), ""),
        ];
        for c in arguments.chars() {
            chunks.push(piece(Some(0), None, None, &c.to_string()));
            chunks.push(piece(Some(1), None, None, ""));
        }
        chunks.push(json!({"choices": [{"delta": {}, "finish_reason": "tool_calls"}]}));
        chunks.push(
            json!({"choices": [], "usage": {"prompt_tokens": 10, "completion_tokens": 4,
            "prompt_tokens_details": {"cached_tokens": 7, "cache_write_tokens": 1}}}),
        );
        let (reply, heard) = streamed(&chunks);
        let text = r#"{"text":"a\"\\é 😀 {]"}"#.to_owned();
        assert_eq!(
            calls(&reply),
            [("a", "one", text), ("b", "two", "{}".to_owned())]
        );
        assert_eq!(reply.stop_reason, StopReason::ToolUse);
        assert_eq!(heard, "<two><one>");
        let usage = Usage {
            input: Some(2),
            output: Some(4),
            cache_read: Some(7),
            cache_write: Some(1),
        };
        assert_eq!(reply.usage, usage);
    }

    #[test]
    fn servers_that_give_no_index_or_the_same_one_to_all() {
        for (first, second) in [(None, None), (Some(0), Some(0))] {
            let (reply, _) = streamed(&[
                piece(first, Some("a"), Some("one"), "{\"n\":"),
                piece(first, None, None, "1}"),
                piece(second, Some("b"), Some("two"), "{}"),
            ]);
            let wanted = [
                ("a", "one", r#"{"n":1}"#.to_owned()),
                ("b", "two", "{}".to_owned()),
            ];
            assert_eq!(calls(&reply), wanted);
        }
        let (reply, _) = streamed(&[
            piece(None, None, Some("one"), "{}"),
            piece(None, None, Some("one"), "{}"),
        ]);
        let ids: Vec<&str> = calls(&reply).iter().map(|call| call.0).collect();
        assert_eq!(ids, ["call_3_0", "call_3_1"]);
    }

    #[test]
    fn arguments_in_every_form() {
        let call = |function: Value| json!({"tool_calls": [{"id": "a", "function": function}]});
        for (function, input) in [
            (
                json!({"name": "n", "arguments": "{\"b\":1,\"a\":2}"}),
                r#"{"b":1,"a":2}"#,
            ),
            (
                json!({"name": "n", "arguments": {"b": 1, "a": 2}}),
                r#"{"b":1,"a":2}"#,
            ),
            (json!({"name": "n", "arguments": ""}), "{}"),
            (json!({"name": "n", "arguments": null}), "{}"),
            (json!({"name": "n"}), "{}"),
        ] {
            let reply = whole(call(function), json!("tool_calls"), false);
            assert_eq!(calls(&reply), [("a", "n", input.to_owned())]);
        }
        let old = json!({"content": null, "function_call": {"name": "n", "arguments": "{}"}});
        let reply = whole(old, json!("function_call"), false);
        assert_eq!(calls(&reply), [("call_3_0", "n", "{}".to_owned())]);
        let broken = call(json!({"name": "n", "arguments": "{\"a\":\"\\ud83d\"}"}));
        let reply = whole(broken, json!("tool_calls"), false);
        assert!(calls(&reply)[0].2.contains("malformed"), "{reply:?}");
    }

    #[test]
    fn reasoning_is_kept_as_it_came() {
        let (reply, heard) = streamed(&[
            delta(json!({"reasoning_content": "so "})),
            delta(json!({"reasoning_content": "far", "content": ""})),
            delta(json!({"content": "Yes."})),
            json!({"choices": [{"index": 1, "delta": {"content": "other"}}]}),
        ]);
        assert_eq!(heard, "(so )(far)Yes.");
        let ContentBlock::Reasoning { text, seal } = &reply.content[0] else {
            panic!("{reply:?}");
        };
        assert_eq!(text, "so far");
        assert_eq!(seal.raw, r#"{"reasoning_content":"so far"}"#);
        assert_eq!(reply.content[1], ContentBlock::text("Yes."));
        assert_eq!(reply.stop_reason, StopReason::Unknown(String::new()));
        let details = json!([{"type": "reasoning.encrypted", "data": "AA="}]);
        let message = json!({"content": "x", "reasoning": "r", "reasoning_details": details});
        let reply = whole(message, json!("stop"), false);
        let ContentBlock::Reasoning { seal, .. } = &reply.content[0] else {
            panic!("{reply:?}");
        };
        let raw: Value = serde_json::from_str(&seal.raw).unwrap();
        assert_eq!(raw, json!({"reasoning": "r", "reasoning_details": details}));
    }

    #[test]
    fn stop_reasons() {
        for (word, reason) in [
            (json!("stop"), StopReason::EndTurn),
            (json!("length"), StopReason::MaxTokens),
            (json!("tool_calls"), StopReason::ToolUse),
            (json!("function_call"), StopReason::ToolUse),
            (json!("content_filter"), StopReason::Refusal),
            (json!("eos"), StopReason::Unknown("eos".into())),
            (json!(null), StopReason::Unknown(String::new())),
        ] {
            let reply = whole(json!({"content": "x"}), word, false);
            assert_eq!(reply.stop_reason, reason);
        }
        let refusal = json!({"content": null, "refusal": "I will not."});
        let reply = whole(refusal, json!("stop"), false);
        assert_eq!(reply.stop_reason, StopReason::Refusal);
        assert_eq!(reply.stop_details.as_deref(), Some("I will not."));
        assert_eq!(reply.content, [ContentBlock::text("I will not.")]);
    }

    #[test]
    fn a_reply_to_the_schema_is_a_call_or_an_answer() {
        let call = json!({"content": r#"{"tool":"add","arguments":{"a":1}}"#});
        let reply = whole(call.clone(), json!("stop"), true);
        assert_eq!(
            calls(&reply),
            [("call_3_0", "add", r#"{"a":1}"#.to_owned())]
        );
        assert_eq!(reply.stop_reason, StopReason::ToolUse);
        let reply = whole(
            json!({"content": r#"{"answer":"42"}"#}),
            json!("stop"),
            true,
        );
        assert_eq!(reply.content, [ContentBlock::text("42")]);
        assert_eq!(reply.stop_reason, StopReason::EndTurn);
        let cut = json!({"content": r#"{"tool":"add","argum"#});
        let reply = whole(cut, json!("length"), true);
        assert_eq!(reply.content, []);
        assert_eq!(reply.stop_reason, StopReason::MaxTokens);
        let reply = whole(json!({"content": "hello"}), json!("stop"), true);
        assert_eq!(reply.content, [ContentBlock::text("hello")]);
        let reply = whole(call, json!("stop"), false);
        assert!(calls(&reply).is_empty());
    }

    #[test]
    fn a_stream_that_is_not_whole_is_no_reply() {
        let end = |chunks: &[Value]| {
            let mut assembly = Assembly::new("m", 3, false);
            for chunk in chunks {
                assembly.event(&Sse::default().data(chunk.to_string()), &mut ())?;
            }
            assembly.finish()
        };
        let word = delta(json!({"content": "x"}));
        let stop = json!({"choices": [{"delta": {}, "finish_reason": "stop"}]});
        assert!(
            end(std::slice::from_ref(&word))
                .unwrap_err()
                .message
                .contains("ended before")
        );
        assert_eq!(
            end(&[word.clone(), stop]).unwrap().content,
            [ContentBlock::text("x")]
        );
        let error = json!({"error": {"message": "no slot", "type": "server_error"}});
        let error = end(&[word, error]).unwrap_err();
        assert_eq!(error.kind, crate::provider::ProviderErrorKind::Server);
        assert_eq!(error.message, "no slot");
    }
}
