//! The host over HTTP: its tools for any client, its health and its figures.
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
//! | `tools` | the tools, and a call of one |
//! | `openapi` | the description of it all, from the code |
//! | `metrics` | what is counted |

pub mod access;
mod door;
mod extract;
mod health;
pub mod listen;
mod metrics;
mod openapi;
pub mod problem;
mod tools;

use std::{sync::Arc, time::Duration};

use axum::{
    Router, middleware,
    response::{IntoResponse, Response},
};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use self::{access::Access, metrics::Metrics, problem::Problem};
use crate::{agent::Deps, registry::live::LiveRegistry};

/// What one server holds at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// Bytes of a request's body.
    pub body: usize,
    /// From the end of a request's head to the end of its body.
    pub body_wait: Duration,
    /// Calls of `POST /v1/tools/{name}/call`, running and waiting; one more is answered with 429.
    pub calls: usize,
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            body: 4 << 20,
            body_wait: Duration::from_secs(30),
            calls: 256,
        }
    }
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
    /// No longer ready: it has been told to stop.
    stopping: CancellationToken,
}

/// A server of one registry, not yet listening.
pub struct Server {
    shared: Arc<Shared>,
    router: Router,
}

impl Server {
    /// `deps` gives the rules and bounds of every call. Where it has no approver, a call that has to be asked
    /// about is refused with the line that would allow it.
    pub fn new(
        registry: impl Into<LiveRegistry>,
        deps: Deps,
        access: Access,
        bounds: Bounds,
    ) -> Self {
        let shared = Arc::new(Shared {
            metrics: Metrics::new(),
            registry: registry.into(),
            deps,
            access,
            bounds,
            calls: Semaphore::new(bounds.calls),
            stopping: CancellationToken::new(),
        });
        let (router, document) = openapi::routes().split_for_parts();
        let router = router
            .with_state(Arc::clone(&shared))
            .merge(openapi::served(document));
        Self { shared, router }
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
