//! Any number of clients over streamable HTTP, with and without sessions, at `/mcp`.
//!
//! rmcp carries out every request, and speaks the revision without sessions whole. Sessions are kept here: what
//! belongs to a call goes out on the call's own stream, an answer that nothing came before is plain JSON, and a call
//! ends when its stream closes, since there is no other way to its answer.

use std::{convert::Infallible, net::SocketAddr, pin::Pin, sync::Arc, time::Duration};

use axum::{
    Router,
    body::Body,
    extract::{Request, State},
    middleware::{self, Next},
    response::{IntoResponse as _, Response},
    routing::any,
    serve::ListenerExt as _,
};
use bytes::Bytes;
use futures_util::{Stream, StreamExt as _};
use hmac::{Hmac, KeyInit as _, Mac as _};
use http::{HeaderMap, Method, StatusCode, header};
use http_body_util::{BodyExt as _, Full, LengthLimitError, Limited};
use rmcp::{
    ErrorData, ServerHandler as _,
    model::{
        ClientJsonRpcMessage, ClientNotification, ClientRequest, ErrorCode, GetMeta as _,
        InitializeRequestParams, JsonRpcError, RequestId, ServerJsonRpcMessage, ServerResult,
        ToolListChangedNotification,
    },
    transport::streamable_http_server::{
        StreamableHttpServerConfig, StreamableHttpService, session::never::NeverSessionManager,
    },
};
use serde::Deserialize;
use serde_json::json;
use sha2::Sha256;
use tokio::{
    net::TcpListener,
    sync::{OwnedSemaphorePermit, Semaphore},
};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::{
    Handler, McpServer, NoKey, REVISIONS,
    session::{Exchange, IDLE, MAX_SESSIONS, Session, Sessions},
    stdio::{MAX_MESSAGE_BYTES, Refusal, parse},
};

const JSON: &str = "application/json";
const EVENTS: &str = "text/event-stream";
/// A comment, which keeps a stream open and says nothing.
const NOTHING: &[u8] = b":\n\n";
/// The first revision without sessions.
const STATELESS: &str = "2026-07-28";
/// How long a request's body may take to arrive.
const BODY_WAIT: Duration = Duration::from_secs(30);
/// How long a stream may be silent.
const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// Requests that may be served at once, waiting ones included.
const MAX_REQUESTS: usize = 16_384;
/// How long a stop waits for connections to be wound up.
const WIND_UP: Duration = Duration::from_secs(2);

/// Who may come in. Every route is held to all of it.
pub struct HttpSettings {
    /// Names under which this server is reached, without ports. A request for any other is refused: it comes from
    /// a page whose name was pointed here.
    pub hosts: Vec<String>,
    /// Web origins whose pages may call, such as `http://localhost:8080`, besides this server's own. Programs that
    /// are no browsers send none, and come in.
    pub origins: Vec<String>,
    /// The bearer token that every request has to carry, if any. It is never passed on.
    pub token: Option<String>,
    /// How long a session outlives its last message.
    pub session_idle: Duration,
}

impl HttpSettings {
    /// For clients on this machine, which need no token.
    pub fn loopback() -> Self {
        Self {
            hosts: ["localhost", "127.0.0.1", "[::1]"]
                .map(str::to_owned)
                .into(),
            origins: Vec::new(),
            token: None,
            session_idle: IDLE,
        }
    }
}

/// Why serving over HTTP ended or did not begin.
#[derive(Debug, thiserror::Error)]
pub enum HttpError {
    #[error(
        "{address} is not loopback, so whoever reaches it could call the tools; give a token, or serve on 127.0.0.1"
    )]
    Open { address: SocketAddr },
    #[error(transparent)]
    NoKey(#[from] NoKey),
    #[error("serving failed: {0}")]
    Serve(#[from] std::io::Error),
}

struct Http {
    server: McpServer,
    /// For the revision without sessions.
    rmcp: StreamableHttpService<Handler, NeverSessionManager>,
    sessions: Arc<Sessions>,
    settings: HttpSettings,
    token: Option<TokenCheck>,
    places: Arc<Semaphore>,
    /// Ends the sweeping of sessions with the routes.
    _swept: DropGuard,
}

impl McpServer {
    /// The routes: `/mcp`. Whoever mounts them sets `TCP_NODELAY` on what it accepts, without which every answer
    /// waits 40 ms for the client's acknowledgement.
    pub fn routes(&self, settings: HttpSettings, stop: CancellationToken) -> Result<Router, NoKey> {
        let http = self.http(settings, stop)?;
        let check = middleware::from_fn_with_state(Arc::clone(&http), admit);
        Ok(unchecked(http).layer(check))
    }

    /// The routes for a server that has checked Host, Origin and token itself, in front of all that it serves.
    pub fn unchecked_routes(&self, stop: CancellationToken) -> Result<Router, NoKey> {
        Ok(unchecked(self.http(HttpSettings::loopback(), stop)?))
    }

    fn http(&self, settings: HttpSettings, stop: CancellationToken) -> Result<Arc<Http>, NoKey> {
        let server = self.clone();
        let config = StreamableHttpServerConfig::default()
            .with_legacy_session_mode(false)
            .with_json_response(true)
            .with_sse_keep_alive(Some(KEEP_ALIVE))
            .with_max_request_body_bytes(MAX_MESSAGE_BYTES)
            .with_cancellation_token(stop.clone())
            // Checked here, for every route.
            .disable_allowed_hosts()
            .disable_allowed_origins();
        let rmcp = StreamableHttpService::new(
            move || Ok(server.handler()),
            Arc::new(NeverSessionManager::default()),
            config,
        );
        let token = settings.token.as_deref().map(TokenCheck::new).transpose()?;
        let sessions = Arc::new(Sessions::new(settings.session_idle));
        let swept = stop.child_token();
        tokio::spawn({
            let (sessions, swept) = (Arc::clone(&sessions), swept.clone());
            async move { sessions.sweep(swept).await }
        });
        Ok(Arc::new(Http {
            server: self.clone(),
            rmcp,
            sessions,
            settings,
            token,
            places: Arc::new(Semaphore::new(MAX_REQUESTS)),
            _swept: swept.drop_guard(),
        }))
    }

    /// Serves `/mcp` on this listener until `stop`, which ends all calls.
    pub async fn serve_http(
        &self,
        listener: TcpListener,
        settings: HttpSettings,
        stop: CancellationToken,
    ) -> Result<(), HttpError> {
        let address = listener.local_addr()?;
        if !address.ip().is_loopback() && settings.token.is_none() {
            return Err(HttpError::Open { address });
        }
        let routes = self.routes(settings, stop.clone())?;
        let listener = listener.tap_io(|stream| {
            if let Err(error) = stream.set_nodelay(true) {
                tracing::debug!("a connection keeps its delay: {error}");
            }
        });
        let stopped = stop.clone();
        let serving = axum::serve(listener, routes)
            .with_graceful_shutdown(async move { stopped.cancelled().await })
            .into_future();
        tokio::pin!(serving);
        tokio::select! {
            served = &mut serving => return Ok(served?),
            () = stop.cancelled() => self.end_calls(),
        }
        // Clients that keep their end open do not keep the program.
        match tokio::time::timeout(WIND_UP, serving).await {
            Ok(served) => Ok(served?),
            Err(_) => Ok(()),
        }
    }
}

fn unchecked(http: Arc<Http>) -> Router {
    Router::new().route("/mcp", any(serve)).with_state(http)
}

/// Compares tokens without telling by its time how much of one was right.
struct TokenCheck {
    key: [u8; 32],
    expected: Vec<u8>,
}

impl TokenCheck {
    fn new(token: &str) -> Result<Self, NoKey> {
        let mut key = [0; 32];
        getrandom::fill(&mut key)?;
        let expected =
            mac(&key, token).map_or_else(Vec::new, |mac| mac.finalize().into_bytes().to_vec());
        Ok(Self { key, expected })
    }

    fn admits(&self, headers: &HeaderMap) -> bool {
        let given = headers
            .get(header::AUTHORIZATION)
            .and_then(|value| value.to_str().ok())
            .and_then(|value| value.split_once(' '))
            .filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"))
            .map_or("", |(_, token)| token.trim());
        mac(&self.key, given).is_some_and(|mac| mac.verify_slice(&self.expected).is_ok())
    }
}

fn mac(key: &[u8; 32], text: &str) -> Option<Hmac<Sha256>> {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).ok()?;
    mac.update(text.as_bytes());
    Some(mac)
}

/// Host, origin and token, before anything of a request is looked at.
async fn admit(State(http): State<Arc<Http>>, mut request: Request, next: Next) -> Response {
    let settings = &http.settings;
    let host = request
        .uri()
        .authority()
        .map(|authority| authority.as_str().to_owned())
        .or_else(|| {
            let host = request.headers().get(header::HOST)?;
            host.to_str().ok().map(str::to_owned)
        });
    let is_ours = host
        .as_deref()
        .is_some_and(|host| is_host(&settings.hosts, host));
    if !is_ours {
        return refused(
            StatusCode::FORBIDDEN,
            "this server is not reached under that name; its operator says which ones there are",
        );
    }
    if let Some(origin) = request.headers().get(header::ORIGIN) {
        let is_allowed = origin.to_str().is_ok_and(|origin| {
            settings.origins.iter().any(|allowed| allowed == origin)
                // Another port of this machine is somebody else.
                || origin
                    .split_once("://")
                    .is_some_and(|(_, at)| host.as_deref().is_some_and(|host| at.eq_ignore_ascii_case(host)))
        });
        if !is_allowed {
            return refused(
                StatusCode::FORBIDDEN,
                "pages of that origin may not call this server",
            );
        }
    }
    if let Some(token) = &http.token
        && !token.admits(request.headers())
    {
        let mut response = refused(
            StatusCode::UNAUTHORIZED,
            "this server wants its bearer token in `Authorization`",
        );
        response.headers_mut().insert(
            header::WWW_AUTHENTICATE,
            header::HeaderValue::from_static("Bearer"),
        );
        return response;
    }
    // Nothing behind this needs to know it.
    request.headers_mut().remove(header::AUTHORIZATION);
    next.run(request).await
}

/// Whether this is one of our names, with any port.
fn is_host(hosts: &[String], authority: &str) -> bool {
    let name = match authority.rsplit_once(':') {
        Some((name, port)) if !port.is_empty() && port.bytes().all(|b| b.is_ascii_digit()) => name,
        Some(_) | None => authority,
    };
    hosts.iter().any(|host| host.eq_ignore_ascii_case(name))
}

fn refused(status: StatusCode, why: &'static str) -> Response {
    (status, json_headers(), json!({"error": why}).to_string()).into_response()
}

fn json_headers() -> [(header::HeaderName, &'static str); 1] {
    [(header::CONTENT_TYPE, JSON)]
}

fn jsonrpc_error(status: StatusCode, refusal: Refusal) -> Response {
    let Refusal { id, code, why } = refusal;
    let error = ServerJsonRpcMessage::Error(JsonRpcError::new(id, ErrorData::new(code, why, None)));
    let body = serde_json::to_vec(&error).unwrap_or_default();
    (status, json_headers(), body).into_response()
}

async fn serve(State(http): State<Arc<Http>>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let session = header_text(&parts.headers, "mcp-session-id");
    let revision = header_text(&parts.headers, "mcp-protocol-version");
    let is_stateless = revision.is_some_and(|revision| revision >= STATELESS);
    if !is_stateless && parts.method != Method::POST {
        return http.of_session(&parts.method, &parts.headers, session);
    }
    let body = match receive(body).await {
        Ok(body) => body,
        Err((status, why)) => {
            let (id, code) = (None, ErrorCode::INVALID_REQUEST);
            return jsonrpc_error(status, Refusal { id, code, why });
        }
    };
    let Ok(place) = Arc::clone(&http.places).try_acquire_owned() else {
        return jsonrpc_error(
            StatusCode::SERVICE_UNAVAILABLE,
            Refusal {
                id: Head::of(&body).id,
                code: ErrorCode::INTERNAL_ERROR,
                why: format!("{MAX_REQUESTS} requests are being served; try again later"),
            },
        );
    };
    if !is_stateless {
        if let Some(refusal) = refuses_headers(&parts.headers) {
            return refusal;
        }
        let message = match parse(&body) {
            Ok(Some(message)) => message,
            Ok(None) => return StatusCode::ACCEPTED.into_response(),
            Err(refusal) => return jsonrpc_error(StatusCode::BAD_REQUEST, refusal),
        };
        // A request that says its revision itself, and not in the headers, is told so below.
        let says_revision = matches!(&message, ClientJsonRpcMessage::Request(request)
            if request.request.get_meta().protocol_version().is_some());
        if !says_revision {
            return http.in_session(session, revision, message, place).await;
        }
    }
    let expects_json = refuses_headers(&parts.headers).is_none();
    let request = http::Request::from_parts(parts, Full::new(body.clone()));
    let response = http.rmcp.handle(request).await;
    if response.status() == StatusCode::UNSUPPORTED_MEDIA_TYPE && expects_json {
        return match parse(&body) {
            Err(refusal) => jsonrpc_error(StatusCode::BAD_REQUEST, refusal),
            // A notification that is not understood; the other is not reached, since it has parsed there as well.
            Ok(_) => StatusCode::ACCEPTED.into_response(),
        };
    }
    let streams = header_text(response.headers(), "content-type") == Some(EVENTS);
    if !streams {
        return response.map(Body::new);
    }
    // Its place is taken until it has said everything.
    response.map(|body| {
        Body::new(body.map_frame(move |frame| {
            let _ = &place;
            frame
        }))
    })
}

fn header_text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name).and_then(|value| value.to_str().ok())
}

/// What MCP wants of every POST: JSON, from a client that takes JSON and event streams.
fn refuses_headers(headers: &HeaderMap) -> Option<Response> {
    let is_json = header_text(headers, "content-type")
        .and_then(|value| value.split(';').next())
        .is_some_and(|value| value.trim().eq_ignore_ascii_case(JSON));
    if !is_json {
        return Some(refused(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            "a message is sent with `Content-Type: application/json`",
        ));
    }
    let accepts = |wanted: &str| {
        headers
            .get_all(header::ACCEPT)
            .iter()
            .filter_map(|value| value.to_str().ok())
            .flat_map(|value| value.split(','))
            .filter_map(|value| value.split(';').next())
            .any(|value| value.trim().eq_ignore_ascii_case(wanted))
    };
    (!accepts(JSON) || !accepts(EVENTS)).then(|| {
        refused(
            StatusCode::NOT_ACCEPTABLE,
            "a client has to accept both `application/json` and `text/event-stream`",
        )
    })
}

impl Http {
    /// A message of a client with a session, or of one that wants to have one.
    async fn in_session(
        &self,
        session: Option<&str>,
        revision: Option<&str>,
        message: ClientJsonRpcMessage,
        place: OwnedSemaphorePermit,
    ) -> Response {
        if let ClientJsonRpcMessage::Request(request) = &message
            && let ClientRequest::InitializeRequest(initialize) = &request.request
        {
            return self.open_session(request.id.clone(), initialize.params.clone());
        }
        if revision.is_some_and(|revision| REVISIONS.iter().all(|known| known.as_str() != revision))
        {
            return refused(
                StatusCode::BAD_REQUEST,
                "`MCP-Protocol-Version` names no revision that is served here",
            );
        }
        let session = match self.session(session) {
            Ok(session) => session,
            Err((status, why)) => return refused(status, why),
        };
        match message {
            ClientJsonRpcMessage::Request(request) => {
                let id = request.id.clone();
                let handler = self.server.handler_in(session.level(), session.ended());
                let message = ClientJsonRpcMessage::Request(request);
                match session.serve(handler, id.clone(), message) {
                    Some(exchange) => answer(exchange, place).await,
                    None => jsonrpc_error(
                        StatusCode::BAD_REQUEST,
                        Refusal {
                            id: Some(id),
                            code: ErrorCode::INVALID_REQUEST,
                            why: "another request with this id is running".into(),
                        },
                    ),
                }
            }
            ClientJsonRpcMessage::Notification(notification) => {
                if let ClientNotification::CancelledNotification(cancelled) =
                    &notification.notification
                    && let Some(id) = &cancelled.params.request_id
                {
                    session.cancel(id);
                }
                StatusCode::ACCEPTED.into_response()
            }
            answered @ (ClientJsonRpcMessage::Response(_) | ClientJsonRpcMessage::Error(_)) => {
                session.answered(answered);
                StatusCode::ACCEPTED.into_response()
            }
        }
    }

    fn open_session(&self, id: RequestId, mut client: InitializeRequestParams) -> Response {
        let handler = self.server.handler();
        let result = match handler.negotiate_initialize(&client) {
            Ok(result) => result,
            Err(error) => {
                let error = ServerJsonRpcMessage::Error(JsonRpcError::new(Some(id), error));
                return plain(StatusCode::BAD_REQUEST, &error);
            }
        };
        client.protocol_version = result.protocol_version.clone();
        let ended = handler.ended.child_token();
        let Some(session) = self.sessions.open(client, handler.level, ended) else {
            return jsonrpc_error(
                StatusCode::SERVICE_UNAVAILABLE,
                Refusal {
                    id: Some(id),
                    code: ErrorCode::INTERNAL_ERROR,
                    why: format!(
                        "there can't be more than {MAX_SESSIONS} sessions; try again later"
                    ),
                },
            );
        };
        let answer = ServerJsonRpcMessage::response(ServerResult::InitializeResult(result), id);
        let mut response = plain(StatusCode::OK, &answer);
        if let Ok(value) = header::HeaderValue::from_str(&session) {
            response.headers_mut().insert("mcp-session-id", value);
        }
        response
    }

    /// The session of that id, or the status and the words of a refusal.
    fn session(&self, id: Option<&str>) -> Result<Arc<Session>, (StatusCode, &'static str)> {
        let Some(id) = id else {
            return Err((
                StatusCode::BAD_REQUEST,
                "there is no `Mcp-Session-Id`; begin with `initialize`, or speak a revision without sessions",
            ));
        };
        self.sessions.get(id).ok_or((
            StatusCode::NOT_FOUND,
            "this session has ended; begin a new one with `initialize`",
        ))
    }

    /// What is no message: a stream for news, or the end of a session.
    fn of_session(&self, method: &Method, headers: &HeaderMap, session: Option<&str>) -> Response {
        if method != Method::GET && method != Method::DELETE {
            let allow = [(header::ALLOW, "GET, POST, DELETE")];
            return (allow, refused(StatusCode::METHOD_NOT_ALLOWED, "use POST")).into_response();
        }
        let open = match self.session(session) {
            Ok(open) => open,
            Err((status, why)) => return refused(status, why),
        };
        if method == Method::DELETE {
            self.sessions.close(session.unwrap_or_default());
            return StatusCode::NO_CONTENT.into_response();
        }
        if !header_text(headers, "accept").is_some_and(|accept| accept.contains(EVENTS)) {
            return refused(StatusCode::NOT_ACCEPTABLE, "this is a `text/event-stream`");
        }
        let news = self.server.shared.news.subscribe();
        let replaced = open.hear_news();
        event_stream(Box::pin(futures_util::stream::unfold(
            (news, replaced),
            |(mut news, replaced)| async move {
                tokio::select! {
                    () = replaced.cancelled() => return None,
                    changed = news.changed() => changed.ok()?,
                }
                Some((event(&tools_changed()), (news, replaced)))
            },
        )))
    }
}

fn tools_changed() -> ServerJsonRpcMessage {
    let news = ToolListChangedNotification::default();
    ServerJsonRpcMessage::notification(news.into())
}

/// The answer of a request in plain JSON, if it is the first thing to be said; else everything as a stream.
async fn answer(mut exchange: Exchange, place: OwnedSemaphorePermit) -> Response {
    // Clients and proxies give up on connections that say nothing at all.
    let first = tokio::time::timeout(KEEP_ALIVE, exchange.messages.recv()).await;
    let first = match first {
        Ok(Some(
            message @ (ServerJsonRpcMessage::Response(_) | ServerJsonRpcMessage::Error(_)),
        )) => return plain(StatusCode::OK, &message),
        Ok(first) => first.map(|message| event(&message)),
        Err(_) => Some(Bytes::from_static(NOTHING)),
    };
    let first = futures_util::stream::iter(first);
    let rest =
        futures_util::stream::unfold((exchange, place), |(mut exchange, place)| async move {
            let message = exchange.messages.recv().await?;
            Some((event(&message), (exchange, place)))
        });
    event_stream(Box::pin(first.chain(rest)))
}

fn plain(status: StatusCode, message: &ServerJsonRpcMessage) -> Response {
    let body = serde_json::to_vec(message).unwrap_or_default();
    (status, json_headers(), body).into_response()
}

fn event(message: &ServerJsonRpcMessage) -> Bytes {
    let mut event = b"data: ".to_vec();
    // Nothing in a message fails to serialize, and JSON has no raw line ends.
    let _ = serde_json::to_writer(&mut event, message);
    event.extend_from_slice(b"\n\n");
    event.into()
}

type Events = Pin<Box<dyn Stream<Item = Bytes> + Send>>;

/// Events as they come, with a comment where none comes for long.
fn event_stream(events: Events) -> Response {
    let kept_alive = futures_util::stream::unfold(events, |mut events| async move {
        match tokio::time::timeout(KEEP_ALIVE, events.next()).await {
            Ok(event) => Some((Ok::<_, Infallible>(event?), events)),
            Err(_) => Some((Ok(Bytes::from_static(NOTHING)), events)),
        }
    });
    let headers = [
        (header::CONTENT_TYPE, EVENTS),
        (header::CACHE_CONTROL, "no-cache"),
    ];
    (headers, Body::from_stream(kept_alive)).into_response()
}

/// The body of a POST, within bounds of size and time; or the status and the words of a refusal.
async fn receive(body: Body) -> Result<Bytes, (StatusCode, String)> {
    let collected = Limited::new(body, MAX_MESSAGE_BYTES).collect();
    match tokio::time::timeout(BODY_WAIT, collected).await {
        Ok(Ok(body)) => Ok(body.to_bytes()),
        Ok(Err(error)) if error.is::<LengthLimitError>() => Err((
            StatusCode::PAYLOAD_TOO_LARGE,
            format!("a message may have {MAX_MESSAGE_BYTES} bytes, and this one is longer"),
        )),
        Ok(Err(_)) => Err((StatusCode::BAD_REQUEST, "the request broke off".to_owned())),
        Err(_) => Err((
            StatusCode::REQUEST_TIMEOUT,
            format!(
                "the request did not arrive whole within {} s",
                BODY_WAIT.as_secs()
            ),
        )),
    }
}

/// What a message says of itself; everything else in it is skipped.
#[derive(Deserialize, Default)]
struct Head {
    #[serde(default)]
    id: Option<RequestId>,
}

impl Head {
    fn of(message: &[u8]) -> Self {
        serde_json::from_slice(message).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_is_ours_by_name_whatever_its_port() {
        let hosts = HttpSettings::loopback().hosts;
        for ours in [
            "localhost",
            "LOCALHOST:1",
            "127.0.0.1:65535",
            "[::1]:80",
            "[::1]",
        ] {
            assert!(is_host(&hosts, ours), "{ours}");
        }
        for other in [
            "evil.example",
            "localhost.evil.example",
            "127.0.0.1.evil.example:80",
            "",
            ":80",
            "::1",
            "localhost:x",
        ] {
            assert!(!is_host(&hosts, other), "{other}");
        }
    }

    #[test]
    fn one_token_is_right() {
        let check = TokenCheck::new("secret").unwrap();
        let with = |value: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::AUTHORIZATION, value.parse().unwrap());
            check.admits(&headers)
        };
        assert!(with("Bearer secret"));
        assert!(with("bearer  secret"));
        for wrong in [
            "Bearer secre",
            "Bearer secrets",
            "Basic secret",
            "Bearer",
            "secret",
            "",
        ] {
            assert!(!with(wrong), "{wrong}");
        }
        assert!(!check.admits(&HeaderMap::new()));
    }
}
