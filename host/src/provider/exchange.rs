//! One request to a model endpoint over HTTP, with its repetitions. What the answer says is read by a
//! [`Reader`]; here is everything that is the same for all endpoints.

use std::time::{Duration, SystemTime};

use bytes::Bytes;
use futures_util::StreamExt as _;
use http::{HeaderMap, StatusCode, header};
use serde_json::Value;
use sse_stream::Sse;
use tokio::time::Instant;
use url::Url;

use super::{
    Delta, ModelReply, Phase, ProviderError, ProviderErrorKind, Retries, Secret, Watch, retry,
    sse::{self, BodyFault, Pace},
};
use crate::{
    http::{TransportFault, explain, printable},
    transcript::{ContentBlock, ToolInput, Usage},
};

/// How much of an error's body is read.
const MAX_ERROR_BYTES: usize = 64 << 10;

/// How long the parts of one attempt may take. Connecting has its own limit, in
/// [`ClientSettings`](crate::http::ClientSettings).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Timeouts {
    /// Until the answer begins. Without streaming that is when the model has said everything.
    pub answer: Duration,
    /// The longest silence inside an answer.
    pub idle: Duration,
    /// For the whole answer.
    pub reply: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self {
            answer: Duration::from_secs(600),
            idle: Duration::from_secs(300),
            reply: Duration::from_secs(3600),
        }
    }
}

/// Makes a reply out of what an endpoint sends, either event by event or from a whole body.
pub(super) trait Reader: Send {
    /// Takes one event; true when the reply is complete.
    fn event(&mut self, event: &Sse, watch: &mut dyn Watch) -> Result<bool, Fault>;

    /// Takes an answer that is no stream.
    fn whole(&mut self, body: &[u8]) -> Result<(), Fault>;

    /// The reply, or why there is none: the stream may have ended too early.
    fn finish(self) -> Result<ModelReply, Fault>;

    /// The tokens that are known so far.
    fn usage(&self) -> Usage;

    /// Whether a reply can only be shown when it is complete.
    fn held_back(&self) -> bool {
        false
    }
}

/// What is wrong with an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Fault {
    pub(super) kind: ProviderErrorKind,
    pub(super) message: String,
}

impl Fault {
    pub(super) fn protocol(message: impl Into<String>) -> Self {
        Self {
            kind: ProviderErrorKind::Protocol,
            message: message.into(),
        }
    }

    /// A body that is not the JSON of a reply.
    pub(super) fn unreadable(error: &serde_json::Error, body: &[u8]) -> Self {
        let body = String::from_utf8_lossy(body);
        Self::protocol(format!("a reply that is not readable ({error}): {body}"))
    }

    /// A body with status 200 that holds an error, or nothing that we know.
    pub(super) fn instead_of_reply(error: Option<&Value>, body: &[u8]) -> Self {
        match error {
            Some(error) => {
                let said = Said::of(error);
                Self {
                    kind: said.kind(),
                    message: said.message,
                }
            }
            None => {
                let body = String::from_utf8_lossy(body);
                Self::protocol(format!("a reply without content: {body}"))
            }
        }
    }
}

/// Where requests go, and how.
#[derive(Debug, Clone)]
pub(super) struct Exchange {
    pub(super) client: reqwest::Client,
    pub(super) url: Url,
    /// `url` as people are shown it: without credentials and query.
    pub(super) endpoint: String,
    pub(super) headers: HeaderMap,
    pub(super) key: Option<Secret>,
    /// The environment variable that people put the key in.
    pub(super) key_variable: &'static str,
    /// The vendor's own host, which answers nobody without a key.
    pub(super) vendor_host: &'static str,
    pub(super) retries: Retries,
    pub(super) timeouts: Timeouts,
}

/// An attempt that failed, and what the endpoint said of repeating it.
struct Failure {
    error: Box<ProviderError>,
    should_retry: Option<bool>,
}

impl Exchange {
    /// `base` with `path` behind it. A base that ends in `/v1` has the first part of the path already.
    pub(super) fn url(base: &Url, path: &str) -> Url {
        let mut url = base.clone();
        let stem = base.path().trim_end_matches('/').to_owned();
        let path = match (stem.ends_with("/v1"), path.strip_prefix("/v1")) {
            (true, Some(rest)) => rest,
            _ => path,
        };
        url.set_path(&format!("{stem}{path}"));
        url
    }

    /// A URL without what may be secret in it.
    pub(super) fn shown(url: &Url) -> String {
        let mut url = url.clone();
        // Both fail only for URLs that cannot have these parts.
        let _ = url.set_username("");
        let _ = url.set_password(None);
        url.set_query(None);
        url.set_fragment(None);
        url.to_string()
    }

    /// Sends `body` until there is a reply, or a reason to give up.
    pub(super) async fn ask<R: Reader>(
        &self,
        model: &str,
        body: Vec<u8>,
        reader: impl Fn() -> R + Send + Sync,
        watch: &mut dyn Watch,
    ) -> Result<ModelReply, ProviderError> {
        if self.key.is_none() && self.url.host_str() == Some(self.vendor_host) {
            let message = "no API key is set".to_owned();
            return Err(self.error(ProviderErrorKind::Auth, Phase::Connecting, message, model));
        }
        let body = Bytes::from(body);
        let mut attempt = 1;
        loop {
            let mut shown = Shown {
                watch: &mut *watch,
                any: false,
            };
            let failure = match self
                .attempt(model, body.clone(), reader(), &mut shown)
                .await
            {
                Ok(reply) => return Ok(reply),
                Err(failure) => failure,
            };
            let any_shown = shown.any;
            let repeatable = failure.is_repeatable() && !any_shown;
            let mut error = *failure.error;
            error.attempts = attempt;
            let wait = self
                .retries
                .wait(attempt, error.retry_after, retry::random())
                .filter(|_| repeatable);
            let Some(wait) = wait else {
                return Err(error);
            };
            watch.retrying(attempt, wait, &error);
            tokio::time::sleep(wait).await;
            attempt += 1;
        }
    }

    async fn attempt<R: Reader>(
        &self,
        model: &str,
        body: Bytes,
        mut reader: R,
        watch: &mut dyn Watch,
    ) -> Result<ModelReply, Failure> {
        let sent = self
            .client
            .post(self.url.clone())
            .headers(self.headers.clone())
            .body(body)
            .send();
        let response = match tokio::time::timeout(self.timeouts.answer, sent).await {
            Ok(Ok(response)) => response,
            Ok(Err(error)) => return Err(self.not_sent(&error, model).into()),
            Err(_) => {
                let message = format!("no answer within {} s", self.timeouts.answer.as_secs_f64());
                let kind = ProviderErrorKind::Network;
                return Err(self.error(kind, Phase::Waiting, message, model).into());
            }
        };
        let request_id = request_id(response.headers());
        if response.status() != StatusCode::OK {
            let mut failure = self.refused(response, model).await;
            failure.error.request_id = failure.error.request_id.take().or(request_id);
            return Err(failure);
        }
        let read = self.read(response, &mut reader, watch).await;
        let usage = reader.usage();
        let reply = match read {
            Ok(streamed) => reader.finish().map(|reply| (reply, streamed)),
            Err(fault) => Err(fault),
        };
        match reply {
            Ok((mut reply, streamed)) => {
                if !streamed {
                    show(&reply.content, watch);
                }
                reply.request_id = request_id;
                Ok(reply)
            }
            Err(fault) => {
                let mut error = self.error(fault.kind, Phase::Reading, fault.message, model);
                error.usage = usage;
                error.request_id = request_id;
                Err(error.into())
            }
        }
    }

    /// True: what came has been shown.
    async fn read<R: Reader>(
        &self,
        response: reqwest::Response,
        reader: &mut R,
        watch: &mut dyn Watch,
    ) -> Result<bool, Fault> {
        let pace = Pace {
            idle: self.timeouts.idle,
            total: self.timeouts.reply,
            deadline: Instant::now() + self.timeouts.reply,
        };
        let media_type = media_type(response.headers());
        let chunks = sse::chunks(response, pace, sse::MAX_REPLY_BYTES);
        if media_type != "text/event-stream" {
            let body = sse::whole(chunks).await?;
            if media_type == "text/html" {
                return Err(Fault {
                    kind: ProviderErrorKind::Request,
                    message: "it answers with a web page, so the base URL is not that of a model endpoint".into(),
                });
            }
            return reader.whole(&body).map(|()| false);
        }
        let mut events = std::pin::pin!(sse::events(chunks));
        while let Some(event) = events.next().await {
            if reader.event(&event?, watch)? {
                break;
            }
        }
        Ok(!reader.held_back())
    }

    /// The error for a request that got no answer.
    fn not_sent(&self, error: &reqwest::Error, model: &str) -> ProviderError {
        let fault = TransportFault::of(error);
        let kind = match fault {
            TransportFault::UntrustedCertificate | TransportFault::BadCertificate => {
                ProviderErrorKind::Certificate
            }
            TransportFault::Tls
            | TransportFault::Timeout
            | TransportFault::Dns
            | TransportFault::Refused
            | TransportFault::Unreachable
            | TransportFault::Closed
            | TransportFault::Other => ProviderErrorKind::Network,
        };
        let phase = match error.is_connect() {
            true => Phase::Connecting,
            false => Phase::Waiting,
        };
        let explained = explain(error);
        let fault_text = fault.to_string();
        let message = match explained.contains(&fault_text) {
            true => explained,
            false => format!("{fault_text}: {explained}"),
        };
        let mut made = self.error(kind, phase, message, model);
        if let Some(hint) = fault.hint() {
            made.hint = Some(hint.to_owned());
        }
        made
    }

    /// The error for an answer with another status than 200.
    async fn refused(&self, response: reqwest::Response, model: &str) -> Failure {
        let status = response.status();
        let headers = response.headers().clone();
        let pace = Pace {
            idle: self.timeouts.idle,
            total: self.timeouts.idle,
            deadline: Instant::now() + self.timeouts.idle,
        };
        let body = sse::whole(sse::chunks(response, pace, MAX_ERROR_BYTES))
            .await
            .unwrap_or_default();
        let said = Said::read(&body);
        let mut message = match said.message.trim() {
            "" => status
                .canonical_reason()
                .unwrap_or("no reason given")
                .to_lowercase(),
            text => text.to_owned(),
        };
        if status.is_redirection() {
            let to = headers
                .get(header::LOCATION)
                .and_then(|to| to.to_str().ok());
            message = format!("it redirects to `{}`", to.unwrap_or_default());
        }
        let mut error = self.error(
            kind_of_status(status, &said),
            Phase::Waiting,
            message,
            model,
        );
        error.status = Some(status.as_u16());
        error.retry_after = retry::asked_wait(&headers, SystemTime::now());
        error.request_id = said.request_id.as_deref().map(printable);
        if status == StatusCode::NOT_FOUND {
            error.hint = Some(format!(
                "check the model name `{}` and the base URL",
                printable(model)
            ));
        } else if status.is_redirection() {
            error.hint = Some("set the base URL to where the endpoint really is".into());
        }
        Failure {
            error: Box::new(error),
            should_retry: retry::should_retry(&headers),
        }
    }

    pub(super) fn error(
        &self,
        kind: ProviderErrorKind,
        phase: Phase,
        message: String,
        model: &str,
    ) -> ProviderError {
        let message = match &self.key {
            Some(key) => key.redact(&message),
            None => message,
        };
        ProviderError {
            kind,
            phase,
            endpoint: self.endpoint.clone(),
            message: printable(&message),
            hint: self.hint(kind, phase, model),
            attempts: 1,
            status: None,
            request_id: None,
            retry_after: None,
            usage: Usage::default(),
        }
    }

    fn hint(&self, kind: ProviderErrorKind, phase: Phase, model: &str) -> Option<String> {
        let variable = self.key_variable;
        match kind {
            ProviderErrorKind::Auth if self.key.is_none() => Some(format!("set `{variable}`")),
            ProviderErrorKind::Auth => Some(format!("check the key in `{variable}`")),
            ProviderErrorKind::Network if phase == Phase::Connecting => {
                let origin = self.url.origin().ascii_serialization();
                Some(format!("is the server running at `{origin}`?"))
            }
            ProviderErrorKind::ContextTooLong => Some(format!(
                "shorten the conversation, or use a model with a longer context than `{}`",
                printable(model)
            )),
            ProviderErrorKind::Network
            | ProviderErrorKind::Request
            | ProviderErrorKind::Overloaded
            | ProviderErrorKind::Server
            | ProviderErrorKind::Certificate
            | ProviderErrorKind::Protocol
            | ProviderErrorKind::Script => None,
        }
    }
}

impl Failure {
    /// What the endpoint says wins, but for faults that no repetition can mend.
    fn is_repeatable(&self) -> bool {
        let kind = self.error.kind;
        match self.should_retry {
            Some(false) => false,
            Some(true) => {
                let hopeless = matches!(
                    kind,
                    ProviderErrorKind::Auth
                        | ProviderErrorKind::ContextTooLong
                        | ProviderErrorKind::Certificate
                ) || self.error.status == Some(400);
                !hopeless
            }
            None => kind.is_retryable(),
        }
    }
}

impl From<ProviderError> for Failure {
    fn from(error: ProviderError) -> Self {
        Self {
            error: Box::new(error),
            should_retry: None,
        }
    }
}

impl From<BodyFault> for Fault {
    fn from(fault: BodyFault) -> Self {
        let kind = match &fault {
            BodyFault::Idle(_) | BodyFault::TooSlow(_) | BodyFault::Transport { .. } => {
                ProviderErrorKind::Network
            }
            BodyFault::TooLarge | BodyFault::NotUtf8 => ProviderErrorKind::Protocol,
        };
        Self {
            kind,
            message: fault.to_string(),
        }
    }
}

/// Passes on what is heard, and knows whether anything was.
struct Shown<'a> {
    watch: &'a mut dyn Watch,
    any: bool,
}

impl Watch for Shown<'_> {
    fn delta(&mut self, delta: Delta<'_>) {
        self.any = true;
        self.watch.delta(delta);
    }

    fn tool_use(&mut self, name: &str, input: &ToolInput) {
        self.watch.tool_use(name, input);
    }

    fn retrying(&mut self, attempt: u32, wait: Duration, error: &ProviderError) {
        self.watch.retrying(attempt, wait, error);
    }
}

/// Tells of a reply that came all at once.
pub(super) fn show(content: &[ContentBlock], watch: &mut dyn Watch) {
    for block in content {
        match block {
            ContentBlock::Text { text, .. } if !text.is_empty() => watch.delta(Delta::Text(text)),
            ContentBlock::Reasoning { text, .. } if !text.is_empty() => {
                watch.delta(Delta::Reasoning(text));
            }
            ContentBlock::ToolUse(call) => watch.delta(Delta::ToolUse { name: &call.name }),
            ContentBlock::Text { .. }
            | ContentBlock::Reasoning { .. }
            | ContentBlock::Image(_)
            | ContentBlock::ToolResult(_)
            | ContentBlock::Foreign(_) => {}
        }
    }
}

/// What the body of an error says. Every vendor has its own form.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Said {
    pub(super) message: String,
    /// `type` and `code`.
    pub(super) words: Vec<String>,
    pub(super) request_id: Option<String>,
}

impl Said {
    pub(super) fn read(body: &[u8]) -> Self {
        match serde_json::from_slice(body) {
            Ok(value) => Self::of(&value),
            Err(_) => Self {
                message: String::from_utf8_lossy(body).into_owned(),
                ..Self::default()
            },
        }
    }

    pub(super) fn of(body: &Value) -> Self {
        let error = body.get("error").unwrap_or(body);
        let text = |member: &str| error.get(member)?.as_str().map(str::to_owned);
        let message = text("message")
            .or_else(|| text("detail"))
            .or_else(|| error.as_str().map(str::to_owned))
            .unwrap_or_else(|| error.to_string());
        let id = body.get("request_id").and_then(Value::as_str);
        Self {
            message,
            words: [text("type"), text("code")].into_iter().flatten().collect(),
            request_id: id.map(str::to_owned),
        }
    }

    fn has(&self, word: &str) -> bool {
        self.words.iter().any(|w| w == word)
    }

    fn is_context_too_long(&self) -> bool {
        const WORDS: [&str; 2] = ["context_length_exceeded", "exceed_context_size_error"];
        const SENTENCES: [&str; 5] = [
            "prompt is too long",
            "maximum context length",
            "exceed context limit",
            "exceeds the available context size",
            "exceeds the context window",
        ];
        let message = self.message.to_lowercase();
        WORDS.iter().any(|word| self.has(word)) || SENTENCES.iter().any(|s| message.contains(s))
    }

    /// The kind of an error that came in a stream, where there is no status.
    pub(super) fn kind(&self) -> ProviderErrorKind {
        if self.is_context_too_long() {
            return ProviderErrorKind::ContextTooLong;
        }
        for word in &self.words {
            return match word.as_str() {
                "overloaded_error" | "rate_limit_error" | "rate_limit_exceeded" => {
                    ProviderErrorKind::Overloaded
                }
                "authentication_error" | "permission_error" | "invalid_api_key" => {
                    ProviderErrorKind::Auth
                }
                "invalid_request_error"
                | "not_found_error"
                | "billing_error"
                | "insufficient_quota"
                | "request_too_large" => ProviderErrorKind::Request,
                _ => continue,
            };
        }
        ProviderErrorKind::Server
    }
}

fn kind_of_status(status: StatusCode, said: &Said) -> ProviderErrorKind {
    match status.as_u16() {
        401 | 403 => ProviderErrorKind::Auth,
        // A quota that is used up is not there again in seconds.
        429 if said.has("insufficient_quota") => ProviderErrorKind::Request,
        429 | 529 => ProviderErrorKind::Overloaded,
        408 | 409 | 500.. => ProviderErrorKind::Server,
        400..=499 if said.is_context_too_long() => ProviderErrorKind::ContextTooLong,
        300..=499 => ProviderErrorKind::Request,
        _ => ProviderErrorKind::Protocol,
    }
}

fn request_id(headers: &HeaderMap) -> Option<String> {
    let id = headers
        .get("request-id")
        .or_else(|| headers.get("x-request-id"))?;
    Some(printable(&String::from_utf8_lossy(id.as_bytes())))
}

fn media_type(headers: &HeaderMap) -> String {
    let value = headers
        .get(header::CONTENT_TYPE)
        .and_then(|v| v.to_str().ok());
    let essence = value.unwrap_or_default().split(';').next();
    essence.unwrap_or_default().trim().to_ascii_lowercase()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_with_and_without_a_version() {
        for (base, url) in [
            ("https://h", "https://h/v1/messages"),
            ("https://h/", "https://h/v1/messages"),
            ("https://h/v1", "https://h/v1/messages"),
            ("https://h/v1/", "https://h/v1/messages"),
            ("https://h/api?k=1", "https://h/api/v1/messages?k=1"),
        ] {
            let made = Exchange::url(&Url::parse(base).unwrap(), "/v1/messages");
            assert_eq!(made.as_str(), url);
        }
    }

    #[test]
    fn a_shown_url_has_no_secrets() {
        let url = Url::parse("https://user:pass@h/v1?key=k#f").unwrap();
        assert_eq!(Exchange::shown(&url), "https://h/v1");
    }

    #[test]
    fn errors_are_read_in_every_form() {
        for (body, message, words) in [
            (
                r#"{"type":"error","error":{"type":"overloaded_error","message":"Busy"}}"#,
                "Busy",
                vec!["overloaded_error"],
            ),
            (
                r#"{"error":{"message":"No","type":"t","code":"c"}}"#,
                "No",
                vec!["t", "c"],
            ),
            (r#"{"error":"model not found"}"#, "model not found", vec![]),
            (r#"{"detail":"Not Found"}"#, "Not Found", vec![]),
            (r#"{"x":1}"#, r#"{"x":1}"#, vec![]),
            ("Bad Gateway", "Bad Gateway", vec![]),
            ("", "", vec![]),
        ] {
            let said = Said::read(body.as_bytes());
            assert_eq!(said.message, message);
            assert_eq!(said.words, words);
        }
    }

    #[test]
    fn statuses_and_words_make_the_kind() {
        use ProviderErrorKind as Kind;
        let said = |message: &str, word: &str| Said {
            message: message.into(),
            words: vec![word.into()],
            request_id: None,
        };
        for (status, message, word, kind) in [
            (400, "bad", "invalid_request_error", Kind::Request),
            (
                400,
                "prompt is too long: 9 tokens > 8 maximum",
                "",
                Kind::ContextTooLong,
            ),
            (400, "", "context_length_exceeded", Kind::ContextTooLong),
            (400, "", "exceed_context_size_error", Kind::ContextTooLong),
            (401, "", "", Kind::Auth),
            (403, "", "", Kind::Auth),
            (404, "", "", Kind::Request),
            (408, "", "", Kind::Server),
            (409, "", "", Kind::Server),
            (413, "", "", Kind::Request),
            (422, "", "", Kind::Request),
            (429, "", "rate_limit_error", Kind::Overloaded),
            (429, "", "insufficient_quota", Kind::Request),
            (500, "", "", Kind::Server),
            (503, "", "unavailable_error", Kind::Server),
            (529, "", "overloaded_error", Kind::Overloaded),
            (302, "", "", Kind::Request),
            (204, "", "", Kind::Protocol),
        ] {
            let status = StatusCode::from_u16(status).unwrap();
            assert_eq!(
                kind_of_status(status, &said(message, word)),
                kind,
                "{status} {message}"
            );
        }
        assert_eq!(said("", "api_error").kind(), Kind::Server);
        assert_eq!(said("", "rate_limit_error").kind(), Kind::Overloaded);
        assert_eq!(said("", "invalid_request_error").kind(), Kind::Request);
        assert_eq!(said("", "authentication_error").kind(), Kind::Auth);
        assert_eq!(said("prompt is too long", "").kind(), Kind::ContextTooLong);
    }
}
