//! Model Context Protocol: the registry's tools for any client, on stdio and over streamable HTTP.
//!
//! A surface: it parses, calls through [`crate::agent`], and renders. What a call may do is decided where it is
//! decided for models, by policy and grants. Protocol revisions with a session (2025-06-18, 2025-11-25) and the
//! stateless 2026-07-28 are served side by side; which one a request speaks is told by the request.
//!
//! | file | |
//! |---|---|
//! | `offer` | the registry as a list of MCP tools, and its pages |
//! | `call` | one call: running it, what it says meanwhile, what it asks of the client |
//! | `ask` | from a question to a request that clients answer, and back |
//! | `suspended` | calls that wait for the client's next round, and the state that names them |
//! | `render` | from the way a call ended to the result that a client reads |
//! | `stdio` | one client at the other end of two pipes |
//! | `http` | any number of clients over streamable HTTP; `session` keeps what those with a session said |
#![expect(deprecated, reason = "log lines are for the revisions that have them")]

mod ask;
mod call;
pub mod http;
mod offer;
mod render;
mod session;
pub mod stdio;
mod suspended;

use std::{
    borrow::Cow,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU8, Ordering},
    },
    time::Duration,
};

use futures_util::future::join_all;
use rmcp::{
    ErrorData, Peer, RoleServer, ServerHandler,
    model::{
        CallToolRequestParams, CallToolResponse, CustomRequest, CustomResult, ErrorCode,
        Implementation, InitializeRequestParams, InitializeResult, ListToolsResult, LoggingLevel,
        PaginatedRequestParams, ProtocolVersion, ServerCapabilities, ServerConfig,
        SetLevelRequestParams, SubscriptionFilter, Tool as McpTool,
    },
    service::{NotificationContext, RequestContext, SubscriptionContext},
};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use self::{
    offer::Offer,
    suspended::{StateKey, Suspended},
};
use crate::{
    agent::Deps,
    registry::{Registry, live::LiveRegistry},
};

/// How long a client may take to accept the news that the list of tools has changed.
const NEWS_WAIT: Duration = Duration::from_secs(5);

/// What is told to a client, and through it to its model, before anything is called.
const INSTRUCTIONS: &str = "Each tool runs in a WebAssembly sandbox of its own, in a fresh instance for every call, \
     and reaches only what the operator of this server has granted. A call that was refused says what it lacked and \
     which line of the operator's settings would grant it; repeating it unchanged will not help.";

/// Methods with parameters. One of these that nothing else takes has the wrong ones.
const METHODS: [&str; 4] = [
    "server/discover",
    "subscriptions/listen",
    "tools/call",
    "tools/list",
];
/// As [`METHODS`], where there are sessions.
const SESSION_METHODS: [&str; 2] = ["initialize", "logging/setLevel"];
const MAX_SHOWN_METHOD_BYTES: usize = 100;

/// The revisions that are served, oldest first.
const REVISIONS: [ProtocolVersion; 3] = [
    ProtocolVersion::V_2025_06_18,
    ProtocolVersion::V_2025_11_25,
    ProtocolVersion::V_2026_07_28,
];

/// The tools of one registry, as an MCP server. Cheap to clone.
#[derive(Clone)]
pub struct McpServer {
    shared: Arc<Shared>,
}

struct Shared {
    offer: watch::Sender<Arc<Offer>>,
    /// Told when the list that clients see has changed.
    news: watch::Sender<()>,
    deps: Deps,
    config: ServerConfig,
    /// Clients with a session; those of the stateless revision listen by themselves.
    peers: Mutex<Vec<Peer<RoleServer>>>,
    suspended: Suspended,
    /// Ends every running call.
    ended: CancellationToken,
}

/// There is no randomness for the key that authenticates request state.
#[derive(Debug, thiserror::Error)]
#[error("this system gives no randomness for the key of request state: {0}")]
pub struct NoKey(#[from] getrandom::Error);

impl McpServer {
    /// A server of these tools. `deps` gives the rules and bounds of every call. Where it has no approver, the
    /// person behind the client is asked, if the client can do that.
    pub fn new(registry: Arc<Registry>, deps: Deps) -> Result<Self, NoKey> {
        let capabilities = ServerCapabilities::builder()
            .enable_logging()
            .enable_tools()
            .enable_tool_list_changed()
            .build();
        let itself = Implementation::new("agentloop-host", env!("CARGO_PKG_VERSION"))
            .with_title("agentloop-host");
        let config = ServerConfig::new(capabilities)
            .with_server_info(itself)
            .with_instructions(INSTRUCTIONS);
        Ok(Self {
            shared: Arc::new(Shared {
                offer: watch::Sender::new(Arc::new(Offer::new(registry))),
                news: watch::Sender::new(()),
                deps,
                config,
                peers: Mutex::default(),
                suspended: Suspended::new(StateKey::random()?),
                ended: CancellationToken::new(),
            }),
        })
    }

    /// Offers what `live` offers, for as long as this is polled.
    pub async fn follow(&self, live: &LiveRegistry) {
        let mut changes = live.subscribe();
        self.replace(live.now()).await;
        while changes.changed().await.is_ok() {
            let now = Arc::clone(&changes.borrow_and_update());
            self.replace(now).await;
        }
    }

    /// Offers other tools from now on, and tells all clients if their list is another one. Running calls keep what
    /// they were started with.
    pub async fn replace(&self, registry: Arc<Registry>) {
        let offer = Arc::new(Offer::new(registry));
        let before = self.shared.offer.send_replace(Arc::clone(&offer));
        if before.lists_the_same(&offer) {
            return;
        }
        self.shared.news.send_replace(());
        let peers: Vec<_> = {
            let mut peers = self.peers();
            peers.retain(|peer| !peer.is_transport_closed());
            peers.clone()
        };
        let tell = |peer: Peer<RoleServer>| async move {
            let told = tokio::time::timeout(NEWS_WAIT, peer.notify_tool_list_changed()).await;
            if !matches!(told, Ok(Ok(()))) {
                tracing::debug!("a client did not take the news that the tools have changed");
            }
        };
        join_all(peers.into_iter().map(tell)).await;
    }

    /// Ends every running and every waiting call, now and from now on.
    pub fn end_calls(&self) {
        self.shared.ended.cancel();
        self.shared.suspended.clear();
    }

    /// The handler of one client, or of one request of the stateless revision.
    fn handler(&self) -> Handler {
        Handler {
            shared: Arc::clone(&self.shared),
            ended: self.shared.ended.child_token(),
            level: Arc::new(AtomicU8::new(rank(LoggingLevel::Info))),
        }
    }

    /// The handler of one request of a session.
    fn handler_in(&self, level: Arc<AtomicU8>, ended: &CancellationToken) -> Handler {
        Handler {
            shared: Arc::clone(&self.shared),
            ended: ended.child_token(),
            level,
        }
    }

    fn peers(&self) -> std::sync::MutexGuard<'_, Vec<Peer<RoleServer>>> {
        self.shared
            .peers
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

/// What one session knows besides the server.
struct Handler {
    shared: Arc<Shared>,
    /// Ends the calls of this client.
    ended: CancellationToken,
    /// The [`rank`] below which the client wants no log lines.
    level: Arc<AtomicU8>,
}

impl Handler {
    /// The least log level that this request's client wants to hear of; without a session only a request that
    /// asks for lines gets any.
    fn wanted_level(&self, context: &RequestContext<RoleServer>) -> Option<u8> {
        if is_stateless(context) {
            context.meta.log_level().map(rank)
        } else {
            Some(self.level.load(Ordering::Relaxed))
        }
    }
}

/// Whether a request belongs to the revision without sessions.
fn is_stateless(context: &RequestContext<RoleServer>) -> bool {
    context
        .protocol_version()
        .is_some_and(|version| version.as_str() >= ProtocolVersion::V_2026_07_28.as_str())
}

/// Higher is graver.
fn rank(level: LoggingLevel) -> u8 {
    match level {
        LoggingLevel::Debug => 0,
        LoggingLevel::Info => 1,
        LoggingLevel::Notice => 2,
        LoggingLevel::Warning => 3,
        LoggingLevel::Error => 4,
        LoggingLevel::Critical => 5,
        LoggingLevel::Alert => 6,
        LoggingLevel::Emergency => 7,
    }
}

impl ServerHandler for Handler {
    fn get_info(&self) -> ServerConfig {
        self.shared.config.clone()
    }

    fn supported_protocol_versions(&self) -> Cow<'static, [ProtocolVersion]> {
        Cow::Borrowed(&REVISIONS)
    }

    async fn initialize(
        &self,
        request: InitializeRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<InitializeResult, ErrorData> {
        let result = self.negotiate_initialize(&request)?;
        context.peer.set_peer_info(request);
        Ok(result)
    }

    async fn on_initialized(&self, context: NotificationContext<RoleServer>) {
        let mut peers = self
            .shared
            .peers
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        // Those that are gone are looked for only as often as the list doubles.
        if peers.len() == peers.capacity() {
            peers.retain(|peer| !peer.is_transport_closed());
        }
        peers.push(context.peer);
    }

    async fn set_level(
        &self,
        request: SetLevelRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        if is_stateless(&context) {
            return Err(ErrorData::method_not_found::<
                rmcp::model::SetLevelRequestMethod,
            >());
        }
        self.level.store(rank(request.level), Ordering::Relaxed);
        Ok(())
    }

    async fn list_tools(
        &self,
        request: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        let offer = Arc::clone(&self.shared.offer.borrow());
        offer.page(request.and_then(|request| request.cursor).as_deref())
    }

    fn get_tool(&self, name: &str) -> Option<McpTool> {
        self.shared.offer.borrow().tool(name).cloned()
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        call::answer(self, request, context).await
    }

    /// What no other method takes: an unknown one, or a known one whose parameters are not its own.
    async fn on_custom_request(
        &self,
        request: CustomRequest,
        context: RequestContext<RoleServer>,
    ) -> Result<CustomResult, ErrorData> {
        let method = request.method;
        let is_known = METHODS.contains(&method.as_str())
            || (SESSION_METHODS.contains(&method.as_str()) && !is_stateless(&context));
        if is_known {
            return Err(ErrorData::invalid_params(
                format!("the parameters are not those of `{method}`"),
                None,
            ));
        }
        let shown = ask::harmless(&method, MAX_SHOWN_METHOD_BYTES);
        Err(ErrorData::new(
            ErrorCode::METHOD_NOT_FOUND,
            format!("this server has no method `{shown}`"),
            None,
        ))
    }

    fn accepted_subscription_filter(
        &self,
        requested: &SubscriptionFilter,
    ) -> Option<SubscriptionFilter> {
        Some(requested.supported_by(&self.shared.config.capabilities))
    }

    async fn listen(&self, context: SubscriptionContext) -> Result<(), ErrorData> {
        let mut news = self.shared.news.subscribe();
        loop {
            tokio::select! {
                () = context.cancelled() => return Ok(()),
                () = self.ended.cancelled() => return Ok(()),
                changed = news.changed() => {
                    if changed.is_err() || context.sink().notify_tool_list_changed().await.is_err() {
                        return Ok(());
                    }
                }
            }
        }
    }
}
