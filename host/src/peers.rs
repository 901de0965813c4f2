//! MCP servers whose tools are used beside those of components. They are programs of other people that run
//! outside of the sandbox, with the rights of whoever starts them, so nothing of them runs unasked: what a server
//! offers is taken only as far as the operator listed it, each call is asked about unless a rule says otherwise,
//! and a call that is over its time ends the server's whole process group.

mod convert;
mod process;

use std::{sync::Arc, time::Duration};

use rmcp::{
    RoleClient, ServiceExt as _,
    model::{CallToolRequestParams, PaginatedRequestParams},
    service::{Peer as Connection, RunningService, ServiceError},
    transport::streamable_http_client::{
        StreamableHttpClientTransport, StreamableHttpClientTransportConfig,
    },
};
use tokio::{sync::Mutex, time::Instant};

use self::process::{MESSAGE_BYTES, Process};
use crate::{
    capability::EnvironmentGrant,
    http::{ClientError, ClientSettings, model_client},
    ids::PluginName,
    policy::Authorized,
    sandbox::{Ending, SetAside},
    tool::{Effects, ToolDefinition, ToolOutcome},
};

/// How long a server may take to start and to list its tools.
const START_TIMEOUT: Duration = Duration::from_secs(30);
/// Tools and pages of tools that are looked at.
const MAX_TOOLS: usize = 1000;
const MAX_PAGES: usize = 100;

/// A server, as the operator set it up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerSettings {
    /// As permission rules name it, and in front of its tools' names.
    pub name: PluginName,
    pub at: PeerAt,
    /// The tools that are taken, by the server's own names; `*` takes all.
    pub tools: Vec<String>,
    /// How long a call may take; `None` waits for ever.
    pub timeout: Option<Duration>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PeerAt {
    /// Started here, and spoken with over its standard input and output.
    Command {
        /// The program and its arguments; no shell.
        argv: Vec<String>,
        /// What it sees besides the few variables that programs need to start.
        environment: Vec<EnvironmentGrant>,
    },
    /// Over streamable HTTP.
    Url(String),
}

/// Why a server's tools are not there. The text follows the server's name and a colon.
#[derive(Debug, thiserror::Error)]
pub enum PeerError {
    #[error("`{program}` can't be started: {source}")]
    Start {
        program: String,
        source: std::io::Error,
    },
    #[error("it has no command")]
    NoCommand,
    #[error("it does not answer as an MCP server: {0}")]
    Initialize(String),
    #[error("it does not list its tools: {0}")]
    List(String),
    #[error("it was not ready within {} s", START_TIMEOUT.as_secs())]
    Late,
    #[error(transparent)]
    Client(#[from] ClientError),
}

/// What a server offers, as far as it is taken.
pub struct Offer {
    pub peer: Arc<Peer>,
    pub tools: Vec<PeerTool>,
    pub set_aside: Vec<SetAside>,
}

/// One tool of a server.
#[derive(Debug, Clone)]
pub struct PeerTool {
    /// With a name that models can be shown.
    pub definition: ToolDefinition,
    /// As the server calls it.
    pub original: String,
}

/// A server that is, or will be again, connected.
pub struct Peer {
    settings: PeerSettings,
    http: ClientSettings,
    live: Mutex<Option<Arc<Live>>>,
}

/// One connection. The process dies with it.
struct Live {
    connection: Connection<RoleClient>,
    _service: RunningService<RoleClient, ()>,
    process: Option<Process>,
}

impl Peer {
    /// Starts or reaches the server and asks for its tools.
    pub async fn connect(settings: PeerSettings, http: ClientSettings) -> Result<Offer, PeerError> {
        let peer = Arc::new(Self {
            settings,
            http,
            live: Mutex::new(None),
        });
        let listing = async {
            let live = peer.live().await?;
            list(&live).await
        };
        let listed = tokio::time::timeout(START_TIMEOUT, listing)
            .await
            .map_err(|_| PeerError::Late)??;
        let (tools, set_aside) = convert::definitions(&peer.settings, listed);
        Ok(Offer {
            peer,
            tools,
            set_aside,
        })
    }

    pub fn name(&self) -> &PluginName {
        &self.settings.name
    }

    pub fn timeout(&self) -> Option<Duration> {
        self.settings.timeout
    }

    /// Carries out one call; its clock starts now. When its time is over, or nobody waits for it any more, the
    /// server is told, and one that was started here is killed with all that it started; the next call starts it
    /// anew.
    pub(crate) async fn call(
        &self,
        original: &str,
        call: Authorized,
        timeout: Option<Duration>,
        limit_bytes: usize,
    ) -> Ending {
        let started = Instant::now();
        let arguments = call.into_call().input;
        let work = async {
            let live = match self.live().await {
                Ok(live) => live,
                Err(error) => {
                    return ToolOutcome::Failed {
                        message: format!("the MCP server `{}`: {error}", self.settings.name),
                    };
                }
            };
            let mut unfinished = Unfinished(Some(live.clone()));
            let params = CallToolRequestParams::new(original.to_owned()).with_arguments(arguments);
            let result = live.connection.call_tool(params).await;
            // One that sends without end is ended, as one that does not answer.
            if !live.sent_too_much() {
                unfinished.0 = None;
            }
            match result {
                Ok(result) => convert::outcome(result, limit_bytes),
                Err(error) => ToolOutcome::Failed {
                    message: convert::shown(&live.why(&error)),
                },
            }
        };
        let outcome = match timeout {
            None => work.await,
            Some(after) => match tokio::time::timeout(after, work).await {
                Ok(outcome) => outcome,
                Err(_) => ToolOutcome::TimedOut {
                    after,
                    // Nobody here sees what it does.
                    effects: Effects::Unknown {
                        folders: Vec::new(),
                        sent: Vec::new(),
                    },
                },
            },
        };
        Ending {
            outcome,
            ran: started.elapsed(),
            peak_memory_bytes: 0,
            fuel_used: None,
        }
    }

    /// The connection, a new one if there is none that works.
    async fn live(&self) -> Result<Arc<Live>, PeerError> {
        let mut slot = self.live.lock().await;
        if let Some(live) = slot.as_ref().filter(|live| live.works()) {
            return Ok(live.clone());
        }
        *slot = None;
        let starting = Live::start(&self.settings, &self.http);
        let live = tokio::time::timeout(START_TIMEOUT, starting)
            .await
            .map_err(|_| PeerError::Late)??;
        let live = Arc::new(live);
        *slot = Some(live.clone());
        Ok(live)
    }
}

impl Live {
    async fn start(settings: &PeerSettings, http: &ClientSettings) -> Result<Self, PeerError> {
        let initialize = |e: rmcp::service::ClientInitializeError| {
            PeerError::Initialize(convert::shown(&e.to_string()))
        };
        let (service, process) = match &settings.at {
            PeerAt::Command { argv, environment } => {
                let (process, stdout, stdin) = Process::start(&settings.name, argv, environment)?;
                let service = ().serve((stdout, stdin)).await.map_err(|e| {
                    if process.sent_too_much() {
                        PeerError::Initialize(sent_too_much())
                    } else {
                        initialize(e)
                    }
                })?;
                (service, Some(process))
            }
            PeerAt::Url(url) => {
                let client = model_client(http)?;
                let config = StreamableHttpClientTransportConfig::with_uri(url.as_str());
                let transport = StreamableHttpClientTransport::with_client(client, config);
                (().serve(transport).await.map_err(initialize)?, None)
            }
        };
        Ok(Self {
            connection: service.peer().clone(),
            _service: service,
            process,
        })
    }

    fn sent_too_much(&self) -> bool {
        self.process.as_ref().is_some_and(Process::sent_too_much)
    }

    /// Why a request came to nothing.
    fn why(&self, error: &ServiceError) -> String {
        match error {
            ServiceError::McpError(data) => data.message.to_string(),
            _ if self.sent_too_much() => sent_too_much(),
            ServiceError::TransportClosed => "the server ended before it answered".to_owned(),
            error => error.to_string(),
        }
    }

    fn works(&self) -> bool {
        !self.connection.is_transport_closed()
            && self
                .process
                .as_ref()
                .is_none_or(|process| !process.is_killed())
    }
}

/// A call whose end has not come. Dropped before that, it ends the server.
struct Unfinished(Option<Arc<Live>>);

impl Drop for Unfinished {
    fn drop(&mut self) {
        if let Some(process) = self
            .0
            .take()
            .as_ref()
            .and_then(|live| live.process.as_ref())
        {
            process.kill();
        }
    }
}

/// All tools, within bounds.
async fn list(live: &Live) -> Result<Vec<rmcp::model::Tool>, PeerError> {
    let mut tools = Vec::new();
    let mut cursor = None;
    for _ in 0..MAX_PAGES {
        let params = PaginatedRequestParams::default().with_cursor(cursor);
        let page = live
            .connection
            .list_tools(Some(params))
            .await
            .map_err(|e| PeerError::List(convert::shown(&live.why(&e))))?;
        tools.extend(page.tools);
        if tools.len() > MAX_TOOLS {
            return Err(PeerError::List(format!("it has more than {MAX_TOOLS}")));
        }
        cursor = page.next_cursor;
        if cursor.is_none() {
            return Ok(tools);
        }
    }
    Err(PeerError::List(format!(
        "they take more than {MAX_PAGES} pages"
    )))
}

fn sent_too_much() -> String {
    format!(
        "the server sent a message of more than {MESSAGE_BYTES} bytes, so it was ended; ask it for less at once"
    )
}
