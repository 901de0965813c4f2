//! The host over HTTP: runs, approvals and tools for any client, health and figures.
//!
//! A surface: it parses, calls through [`crate::agent`], and renders. Every request passes one door before any
//! route sees it, so that a route can't be forgotten.
//!
//! | file | |
//! |---|---|
//! | [`access`] | who may come in: Host, Origin and token; pure |
//! | `door` | the one layer in front of every route: access, the body within its bounds, headers of every answer |
//! | [`listen`] | sockets: TLS, time-outs, how many connections, the way to stop |
//! | [`problem`] | the one shape of everything that is not an answer |
//! | `health` | alive, ready, figures |
//! | `runs`, `events` | runs: begin, look at, continue, stop; their events as they come |
//! | `approvals` | what waits for a person, and the person's word |
//! | `tools` | the tools, and a call of one |
//! | `live` | the runs that this process drives; [`crate::storage`] has all of them |
//! | `page` | all of it for a person with a browser |
//! | `openapi` | the description of it all, from the code |
//! | `metrics` | what is counted |

pub mod access;
mod approvals;
mod door;
mod events;
mod extract;
mod health;
pub mod listen;
mod live;
mod metrics;
mod openapi;
mod page;
pub mod problem;
mod runs;
mod tools;

pub use self::live::NewAgent;

use std::{sync::Arc, time::Duration};

use axum::{
    Extension, Router, middleware,
    response::{IntoResponse, Response},
};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use self::{
    access::Access, live::Runs, metrics::Metrics, page::sign_in::Sessions, problem::Problem,
};
use crate::{agent::Deps, approvals::Remember, registry::live::LiveRegistry, storage::RunStore};

/// What one server holds at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// Bytes of a request's body.
    pub body: usize,
    /// From the end of a request's head to the end of its body.
    pub body_wait: Duration,
    /// Calls of `POST /v1/tools/{name}/call`, running and waiting; one more is answered with 429.
    pub calls: usize,
    /// Runs that have not ended, those among them that wait for a person; one more is answered with 429.
    pub live_runs: usize,
    /// Runs that have ended and are still known, give or take a hundredth; those that ended first are forgotten first.
    pub ended_runs: usize,
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            body: 4 << 20,
            body_wait: Duration::from_secs(30),
            calls: 256,
            live_runs: 8192,
            ended_runs: 10_000,
        }
    }
}

/// What a server is made of.
pub struct Parts {
    pub registry: LiveRegistry,
    /// The rules and bounds of clients' own calls. Where it has no approver, a call that has to be asked about
    /// waits below `/v1/approvals`.
    pub deps: Deps,
    pub access: Access,
    pub bounds: Bounds,
    /// Where runs and questions are kept.
    pub store: Arc<dyn RunStore>,
    /// Names the settings that the agents and tools here come from: the server shows, answers and drives only what
    /// was begun over HTTP in the same scope.
    pub scope: String,
    /// Makes the agent of a run. Where that has no approver, its calls wait in the same place.
    pub agents: NewAgent,
    /// What `always` does besides holding for as long as the server lives.
    pub remember: Option<Remember>,
}

/// What the routes share.
pub(crate) struct Shared {
    registry: LiveRegistry,
    deps: Deps,
    access: Access,
    bounds: Bounds,
    metrics: Metrics,
    /// Places for calls.
    calls: Semaphore,
    store: Arc<dyn RunStore>,
    scope: String,
    runs: Arc<Runs>,
    agents: NewAgent,
    remember: Option<Remember>,
    /// Whose browsers have shown the token.
    sessions: Sessions,
    /// No longer ready: it has been told to stop.
    stopping: CancellationToken,
}

/// A server that does not listen yet.
pub struct Server {
    shared: Arc<Shared>,
    router: Router,
}

impl Server {
    pub fn new(parts: Parts) -> Self {
        let Parts {
            registry,
            deps,
            access,
            bounds,
            store,
            scope,
            agents,
            remember,
        } = parts;
        let metrics = Metrics::new();
        let runs = Runs::new(
            Arc::clone(&store),
            scope.clone(),
            Arc::clone(&agents),
            metrics.clone(),
            bounds.live_runs,
            bounds.ended_runs,
        );
        let shared = Arc::new(Shared {
            registry,
            deps,
            access,
            bounds,
            metrics,
            calls: Semaphore::new(bounds.calls),
            store,
            scope,
            runs: Arc::new(runs),
            agents,
            remember,
            sessions: Sessions::default(),
            stopping: CancellationToken::new(),
        });
        let (router, document) = openapi::routes().split_for_parts();
        let router = router
            .merge(page::routes())
            .with_state(Arc::clone(&shared))
            .merge(openapi::served(document));
        Self { shared, router }
    }

    /// What the page tells of the settings: a line for each, with its origin and without any secret.
    pub fn with_settings(mut self, lines: Vec<String>) -> Self {
        self.router = self
            .router
            .layer(Extension(page::SettingLines(lines.into())));
        self
    }

    /// Puts other routes behind the same door: the MCP endpoint, for example. They get bodies that are whole and
    /// within the bounds.
    pub fn with_routes(mut self, routes: Router) -> Self {
        self.router = self.router.merge(routes);
        self
    }

    /// Cancelled when the server is told to stop; whatever streams without an end ends by it.
    pub fn stopping(&self) -> CancellationToken {
        self.shared.stopping.clone()
    }

    /// Everything, with the door in front.
    pub(crate) fn into_service(self) -> Router {
        let not_found = || async { Problem::not_found("there is nothing at this path") };
        let not_allowed = || async { Problem::method_not_allowed() };
        self.router
            .fallback(not_found)
            .method_not_allowed_fallback(not_allowed)
            .layer(middleware::from_fn_with_state(
                Arc::clone(&self.shared),
                door::pass,
            ))
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        self.response()
    }
}
