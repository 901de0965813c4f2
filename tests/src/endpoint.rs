//! A model endpoint on a real socket that says what a test tells it to, and refuses what the real ones refuse.

mod anthropic;
mod openai;

use std::{
    collections::VecDeque,
    convert::Infallible,
    io,
    sync::{Arc, Mutex, MutexGuard},
};

use axum::{
    Router,
    body::{Body, Bytes},
    extract::State,
    http::{HeaderMap, HeaderName, HeaderValue, StatusCode, Uri, header},
    response::Response,
    serve::ListenerExt as _,
};
use futures_util::{StreamExt as _, stream};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

/// Which API an endpoint speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Api {
    Anthropic,
    OpenAi,
}

/// A running endpoint; it ends when it is dropped.
pub struct Endpoint {
    api: Api,
    origin: String,
    shared: Arc<Mutex<Shared>>,
    server: JoinHandle<()>,
}

/// A request as it arrived.
#[derive(Debug, Clone)]
pub struct Recorded {
    pub path: String,
    pub headers: HeaderMap,
    /// `null` where it was no JSON.
    pub body: Value,
    pub raw: String,
    /// Why the real endpoint would not have taken it; the client got status 400 or 401 with this.
    pub refused: Option<String>,
}

/// Finds the answer to a request's body.
type Answering = Box<dyn Fn(&Value) -> Option<Answer> + Send>;

struct Shared {
    api: Api,
    answers: VecDeque<Answer>,
    /// Instead of `answers`.
    answering: Option<Answering>,
    requests: Vec<Recorded>,
    /// Blocks as they were sent, which have to come back as they are.
    sealed: Vec<String>,
}

impl Endpoint {
    /// Speaks the Anthropic Messages API.
    pub fn anthropic(answers: impl IntoIterator<Item = Answer>) -> Self {
        Self::start(Api::Anthropic, answers)
    }

    /// Speaks chat completions.
    pub fn openai(answers: impl IntoIterator<Item = Answer>) -> Self {
        Self::start(Api::OpenAi, answers)
    }

    /// Gives these answers, one per request that is not refused.
    pub fn start(api: Api, answers: impl IntoIterator<Item = Answer>) -> Self {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let origin = format!("http://{}", listener.local_addr().unwrap());
        let listener = tokio::net::TcpListener::from_std(listener).unwrap();
        let shared = Arc::new(Mutex::new(Shared {
            api,
            answers: answers.into_iter().collect(),
            answering: None,
            requests: Vec::new(),
            sealed: Vec::new(),
        }));
        let app = Router::new().fallback(serve).with_state(shared.clone());
        let server = tokio::spawn(async move {
            let listener = listener.tap_io(|stream| stream.set_nodelay(true).unwrap());
            axum::serve(listener, app).await.unwrap();
        });
        Self {
            api,
            origin,
            shared,
            server,
        }
    }

    /// Speaks the Anthropic Messages API, and says the same to whoever asks the same, as often as they ask.
    pub fn stateless(answering: impl Fn(&Value) -> Option<Answer> + Send + 'static) -> Self {
        let endpoint = Self::anthropic([]);
        lock(&endpoint.shared).answering = Some(Box::new(answering));
        endpoint
    }

    /// What a provider takes as its base URL.
    pub fn base_url(&self) -> String {
        match self.api {
            Api::Anthropic => self.origin.clone(),
            Api::OpenAi => format!("{}/v1", self.origin),
        }
    }

    /// Every request so far, in order, refused ones as well.
    pub fn requests(&self) -> Vec<Recorded> {
        lock(&self.shared).requests.clone()
    }

    /// The reasons of all refusals so far.
    pub fn refusals(&self) -> Vec<String> {
        let requests = self.requests();
        requests.into_iter().filter_map(|r| r.refused).collect()
    }

    /// How many answers nobody has asked for yet.
    pub fn remaining(&self) -> usize {
        lock(&self.shared).answers.len()
    }

    pub fn push(&self, answer: Answer) {
        lock(&self.shared).answers.push_back(answer);
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        self.server.abort();
    }
}

/// How many replies the conversation in a request has.
pub fn n_replies(body: &Value) -> usize {
    let messages = body["messages"].as_array().into_iter().flatten();
    messages
        .filter(|message| message["role"] == "assistant")
        .count()
}

fn lock(shared: &Mutex<Shared>) -> MutexGuard<'_, Shared> {
    shared.lock().unwrap()
}

/// What an endpoint does with one request.
#[derive(Debug, Clone)]
pub struct Answer {
    what: What,
    headers: Vec<(&'static str, String)>,
    /// How many bytes go out at once; `None` is all.
    chunk: Option<usize>,
    end: End,
    after: Option<usize>,
    style: Style,
}

#[derive(Debug, Clone)]
enum What {
    Reply(Box<Reply>),
    Fixed {
        status: StatusCode,
        media_type: &'static str,
        body: Vec<u8>,
    },
    Silence,
}

/// A reply in the words of the Anthropic API; chat completions are derived from it.
#[derive(Debug, Clone)]
struct Reply {
    /// JSON as it goes out.
    blocks: Vec<String>,
    stop_reason: Value,
    stop_details: Value,
    usage: Value,
    /// The usage in the first event, where it differs.
    start_usage: Option<Value>,
}

/// How an answer's body ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    /// As it should.
    Whole,
    /// The connection breaks.
    Broken,
    /// The body ends as if it were complete.
    Short,
    /// Nothing more comes.
    Stalled,
}

/// How a stream is spelled.
#[derive(Debug, Clone, Copy)]
struct Style {
    /// Characters in one delta.
    piece: usize,
    crlf: bool,
    /// Comments, pings and unknown events between the others.
    noise: bool,
    /// All blocks begin before the first ends, and take turns.
    interleaved: bool,
}

impl Answer {
    /// A reply of one text.
    pub fn text(text: &str) -> Self {
        Self::reply(json!([{"type": "text", "text": text}]))
    }

    /// A reply of these blocks.
    pub fn reply(blocks: Value) -> Self {
        let blocks = blocks.as_array().expect("blocks are an array");
        Self::raw_reply(blocks.iter().map(Value::to_string))
    }

    /// A reply of blocks that are sent exactly so.
    pub fn raw_reply(blocks: impl IntoIterator<Item = impl Into<String>>) -> Self {
        let blocks: Vec<String> = blocks.into_iter().map(Into::into).collect();
        let calls = blocks
            .iter()
            .any(|block| block.contains(r#""type":"tool_use""#));
        Self::of(What::Reply(Box::new(Reply {
            blocks,
            stop_reason: json!(if calls { "tool_use" } else { "end_turn" }),
            stop_details: Value::Null,
            usage: json!({"input_tokens": 10, "output_tokens": 5}),
            start_usage: None,
        })))
    }

    /// An error with a body as the API has it.
    pub fn status(status: u16, kind: &str, message: &str) -> Self {
        let error = json!({"type": kind, "message": message});
        let body = json!({"type": "error", "error": error, "request_id": "req_1"});
        Self::fixed(status, "application/json", body.to_string())
    }

    /// Exactly this.
    pub fn fixed(status: u16, media_type: &'static str, body: impl Into<Vec<u8>>) -> Self {
        Self::of(What::Fixed {
            status: StatusCode::from_u16(status).unwrap(),
            media_type,
            body: body.into(),
        })
    }

    /// No answer at all.
    pub fn silence() -> Self {
        Self::of(What::Silence)
    }

    fn of(what: What) -> Self {
        Self {
            what,
            headers: Vec::new(),
            chunk: None,
            end: End::Whole,
            after: None,
            style: Style {
                piece: 7,
                crlf: false,
                noise: false,
                interleaved: false,
            },
        }
    }

    fn with_reply(mut self, change: impl FnOnce(&mut Reply)) -> Self {
        match &mut self.what {
            What::Reply(reply) => change(reply),
            other => panic!("{other:?} is no reply"),
        }
        self
    }

    /// The stop reason, in Anthropic's words; `null` is none.
    #[must_use]
    pub fn stop(self, reason: impl Into<Value>) -> Self {
        let reason = reason.into();
        self.with_reply(|reply| reply.stop_reason = reason)
    }

    #[must_use]
    pub fn stop_details(self, details: Value) -> Self {
        self.with_reply(|reply| reply.stop_details = details)
    }

    /// The usage, in Anthropic's words.
    #[must_use]
    pub fn usage(self, usage: Value) -> Self {
        self.with_reply(|reply| reply.usage = usage)
    }

    /// The usage in the first event of a stream.
    #[must_use]
    pub fn start_usage(self, usage: Value) -> Self {
        self.with_reply(|reply| reply.start_usage = Some(usage))
    }

    #[must_use]
    pub fn header(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.headers.push((name, value.into()));
        self
    }

    /// Sends so many bytes at a time.
    #[must_use]
    pub fn chunks_of(mut self, bytes: usize) -> Self {
        self.chunk = Some(bytes);
        self
    }

    /// Breaks the connection after so many bytes of the body.
    #[must_use]
    pub fn broken_after(mut self, bytes: usize) -> Self {
        (self.end, self.after) = (End::Broken, Some(bytes));
        self
    }

    /// Ends the body after so many bytes, as if that were all.
    #[must_use]
    pub fn short_after(mut self, bytes: usize) -> Self {
        (self.end, self.after) = (End::Short, Some(bytes));
        self
    }

    /// Sends nothing more after so many bytes of the body.
    #[must_use]
    pub fn stalled_after(mut self, bytes: usize) -> Self {
        (self.end, self.after) = (End::Stalled, Some(bytes));
        self
    }

    /// Streams so many characters in one delta.
    #[must_use]
    pub fn pieces_of(mut self, chars: usize) -> Self {
        self.style.piece = chars.max(1);
        self
    }

    #[must_use]
    pub fn crlf(mut self) -> Self {
        self.style.crlf = true;
        self
    }

    /// Puts comments, pings and unknown events between the others.
    #[must_use]
    pub fn noisy(mut self) -> Self {
        self.style.noise = true;
        self
    }

    /// Streams all blocks at once, a piece of each in turn.
    #[must_use]
    pub fn interleaved(mut self) -> Self {
        self.style.interleaved = true;
        self
    }

    /// The body that a stream of this answer has.
    pub fn as_sse(&self, api: Api) -> Vec<u8> {
        match &self.what {
            What::Reply(reply) => match api {
                Api::Anthropic => anthropic::events(reply, self.style),
                Api::OpenAi => openai::events(reply, self.style),
            }
            .into_bytes(),
            What::Fixed { body, .. } => body.clone(),
            What::Silence => Vec::new(),
        }
    }

    fn as_json(&self, api: Api) -> Vec<u8> {
        match (&self.what, api) {
            (What::Reply(reply), Api::Anthropic) => anthropic::whole(reply).into_bytes(),
            (What::Reply(reply), Api::OpenAi) => openai::whole(reply).into_bytes(),
            (What::Fixed { .. } | What::Silence, _) => self.as_sse(api),
        }
    }
}

async fn serve(
    State(shared): State<Arc<Mutex<Shared>>>,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let answer = take(&shared, &uri, headers, &body);
    let (answer, api, streamed) = match answer {
        Ok(found) => found,
        Err((status, why)) => {
            let kind = match status {
                401 => "authentication_error",
                404 => "not_found_error",
                _ => "invalid_request_error",
            };
            let refusal = Answer::status(status, kind, &why);
            (refusal, Api::Anthropic, false)
        }
    };
    if matches!(answer.what, What::Silence) {
        return std::future::pending().await;
    }
    let (status, media_type) = match &answer.what {
        What::Fixed {
            status, media_type, ..
        } => (*status, *media_type),
        _ if streamed => (StatusCode::OK, "text/event-stream; charset=utf-8"),
        _ => (StatusCode::OK, "application/json"),
    };
    let bytes = match streamed {
        true => answer.as_sse(api),
        false => answer.as_json(api),
    };
    let mut response = Response::new(body_of(bytes, &answer));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(media_type));
    headers.insert("request-id", HeaderValue::from_static("req_1"));
    for (name, value) in &answer.headers {
        let name = HeaderName::from_static(name);
        headers.insert(name, HeaderValue::from_str(value).unwrap());
    }
    response
}

/// Records the request, and finds its answer or refuses it.
fn take(
    shared: &Mutex<Shared>,
    uri: &Uri,
    headers: HeaderMap,
    body: &[u8],
) -> Result<(Answer, Api, bool), Refusal> {
    let mut shared = lock(shared);
    let api = shared.api;
    let raw = String::from_utf8_lossy(body).into_owned();
    let parsed = serde_json::from_slice(body);
    let wanted = match api {
        Api::Anthropic => "/v1/messages",
        Api::OpenAi => "/v1/chat/completions",
    };
    let checked = match &parsed {
        _ if uri.path() != wanted => Err((404, format!("Not found: {}", uri.path()))),
        Err(error) => Err((400, format!("The request body is not valid JSON: {error}"))),
        Ok(value) => match api {
            Api::Anthropic => anthropic::check(&headers, value, &raw, &shared.sealed),
            Api::OpenAi => openai::check(&headers, value),
        },
    };
    let body: Value = parsed.unwrap_or_default();
    let streamed = body["stream"] == true;
    let answer = checked.and_then(|()| {
        let left = match &shared.answering {
            None => shared.answers.pop_front(),
            Some(answering) => answering(&body),
        };
        left.ok_or((400, "the test has no answer left".to_owned()))
    });
    shared.requests.push(Recorded {
        path: uri.path().to_owned(),
        headers,
        body,
        raw,
        refused: answer.as_ref().err().map(|(_, why)| why.clone()),
    });
    let answer = answer?;
    if let What::Reply(reply) = &answer.what {
        shared.sealed.extend(reply.blocks.iter().cloned());
    }
    Ok((answer, api, streamed))
}

fn body_of(mut bytes: Vec<u8>, answer: &Answer) -> Body {
    if let Some(after) = answer.after {
        bytes.truncate(after);
    }
    if answer.chunk.is_none() && matches!(answer.end, End::Whole | End::Short) {
        return Body::from(bytes);
    }
    let size = answer.chunk.unwrap_or(bytes.len().max(1));
    let chunks: Vec<Bytes> = bytes.chunks(size).map(Bytes::copy_from_slice).collect();
    // A pause lets the writer send each piece by itself.
    let pieces = stream::iter(chunks).then(|chunk| async move {
        tokio::task::yield_now().await;
        Ok::<_, Infallible>(chunk)
    });
    let pieces = pieces.map(|Ok(chunk)| Ok::<_, io::Error>(chunk));
    match answer.end {
        End::Whole | End::Short => Body::from_stream(pieces),
        End::Broken => Body::from_stream(pieces.chain(stream::once(async {
            // What was written before has to leave before the connection breaks.
            tokio::task::yield_now().await;
            Err(io::Error::other("broken by the test"))
        }))),
        End::Stalled => Body::from_stream(pieces.chain(stream::pending())),
    }
}

/// A refusal: the status and the words.
type Refusal = (u16, String);

fn refuse<T>(why: impl Into<String>) -> Result<T, Refusal> {
    Err((400, why.into()))
}

/// Refuses members beyond the known ones.
fn only(value: &Value, known: &[&str], place: &str) -> Result<(), Refusal> {
    let Value::Object(members) = value else {
        return refuse(format!("{place}: Input should be a valid dictionary"));
    };
    for name in members.keys() {
        if !known.contains(&name.as_str()) {
            return refuse(format!("{place}.{name}: Extra inputs are not permitted"));
        }
    }
    Ok(())
}

fn is_name(text: &str, max: usize) -> bool {
    (1..=max).contains(&text.len())
        && text
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-')
}

/// Refuses schemas that no endpoint takes at a tool's root.
fn check_schema(schema: &Value, place: &str) -> Result<(), Refusal> {
    if schema["type"] != "object" {
        return refuse(format!("{place}.type: Input should be 'object'"));
    }
    for word in ["oneOf", "anyOf", "allOf"] {
        if schema.get(word).is_some() {
            return refuse(format!(
                "{place}: input_schema does not support oneOf, allOf, or anyOf at the top level"
            ));
        }
    }
    Ok(())
}

/// Whether base64 data begins as its type says.
fn image_fits(media_type: &str, base64: &str) -> bool {
    match media_type {
        "image/png" => base64.starts_with("iVBOR"),
        "image/jpeg" => base64.starts_with("/9j/"),
        "image/gif" => base64.starts_with("R0lGOD"),
        "image/webp" => base64.starts_with("UklGR"),
        _ => false,
    }
}

/// Writes one event.
fn event(out: &mut String, name: Option<&str>, data: &str, style: Style) {
    let end = if style.crlf { "\r\n" } else { "\n" };
    if style.noise {
        out.push_str(&format!(": a comment{end}"));
    }
    if let Some(name) = name {
        out.push_str(&format!("event: {name}{end}"));
    }
    // The blank after the colon is optional.
    let blank = if style.noise { "" } else { " " };
    out.push_str(&format!("data:{blank}{data}{end}{end}"));
}

/// A text in pieces; an empty text is one empty piece.
fn pieces(text: &str, size: usize) -> Vec<String> {
    if text.is_empty() {
        return vec![String::new()];
    }
    let chars: Vec<char> = text.chars().collect();
    chars
        .chunks(size)
        .map(|piece| piece.iter().collect())
        .collect()
}
