//! The one layer in front of every route.

use std::{panic::AssertUnwindSafe, sync::Arc};

use axum::{
    body::{Body, Bytes},
    extract::{Request, State},
    middleware::Next,
    response::{IntoResponse as _, Response},
};
use futures_util::FutureExt as _;
use http::{HeaderName, HeaderValue, StatusCode, header};
use http_body::Body as _;
use http_body_util::{BodyExt as _, LengthLimitError, Limited};

use super::{
    Bounds, Shared,
    access::{Admitted, Refused},
    page,
    problem::Problem,
};

/// What everybody may know: whoever watches the machine has no token.
const PUBLIC: [&str; 2] = ["/healthz", "/readyz"];

/// What pages of a listed origin may send and read; MCP clients in a browser need all of it.
const METHODS: &str = "GET, POST, DELETE";
const SENDABLE: &str = "accept, authorization, content-type, idempotency-key, last-event-id, mcp-method, mcp-name, \
     mcp-protocol-version, mcp-session-id";
const READABLE: &str = "mcp-protocol-version, mcp-session-id, retry-after, www-authenticate";
const PREFLIGHT_SECONDS: &str = "600";

/// Nothing that is served here is a page of its own unless its route says so.
const NO_PAGE: &str = "default-src 'none'; frame-ancestors 'none'";

pub(super) async fn pass(
    State(shared): State<Arc<Shared>>,
    request: Request,
    next: Next,
) -> Response {
    let (head, body) = request.into_parts();
    let path = head.uri.path();
    let needs_token = !PUBLIC.contains(&path) && !page::is_public(path);
    let has_session = page::takes_session(path) && shared.sessions.has(&head.headers);
    let (response, shared_with) = match shared.access.admit(&head, needs_token, has_session) {
        Err(refused) => {
            let Refused {
                problem,
                shared_with,
            } = *refused;
            shared.metrics.refused(problem.code);
            let response = match StatusCode::UNAUTHORIZED.as_u16() == problem.status {
                true => page::way_in(&head.method, head.uri.path()),
                false => None,
            };
            (
                response.unwrap_or_else(|| problem.into_response()),
                shared_with,
            )
        }
        Ok(Admitted {
            shared_with,
            is_preflight: true,
        }) => (preflight(), shared_with),
        Ok(Admitted { shared_with, .. }) => {
            let response = match whole(body, &shared.bounds).await {
                Ok(body) => {
                    let request = Request::from_parts(head, Body::from(body));
                    let answer = AssertUnwindSafe(next.run(request)).catch_unwind();
                    answer
                        .await
                        .unwrap_or_else(|_| Problem::internal().into_response())
                }
                Err(problem) => problem.into_response(),
            };
            (response, shared_with)
        }
    };
    dressed(response, shared_with)
}

/// The body, within its bounds of size and time.
async fn whole(body: Body, bounds: &Bounds) -> Result<Bytes, Problem> {
    let too_large = || {
        let detail = format!("a body holds at most {} bytes", bounds.body);
        Problem::new(StatusCode::PAYLOAD_TOO_LARGE, "body_too_large", detail)
    };
    if body.is_end_stream() {
        return Ok(Bytes::new());
    }
    // Said beforehand, so nothing needs to be read.
    if body.size_hint().lower() > bounds.body as u64 {
        return Err(too_large());
    }
    let limited = Limited::new(body, bounds.body).collect();
    match tokio::time::timeout(bounds.body_wait, limited).await {
        Ok(Ok(body)) => Ok(body.to_bytes()),
        Ok(Err(error)) if error.is::<LengthLimitError>() => Err(too_large()),
        Ok(Err(_)) => Err(Problem::bad_request(
            "body",
            "the body broke off or is not what its headers say",
        )),
        Err(_) => Err(Problem::new(
            StatusCode::REQUEST_TIMEOUT,
            "body_timeout",
            format!("the body took longer than {} s", bounds.body_wait.as_secs()),
        )),
    }
}

fn preflight() -> Response {
    let mut response = StatusCode::NO_CONTENT.into_response();
    let headers = response.headers_mut();
    for (name, value) in [
        (header::ACCESS_CONTROL_ALLOW_METHODS, METHODS),
        (header::ACCESS_CONTROL_ALLOW_HEADERS, SENDABLE),
        (header::ACCESS_CONTROL_MAX_AGE, PREFLIGHT_SECONDS),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    response
}

/// The headers of every answer.
fn dressed(mut response: Response, shared_with: Option<HeaderValue>) -> Response {
    let headers = response.headers_mut();
    let defaults: [(HeaderName, &'static str); 5] = [
        (header::CACHE_CONTROL, "no-store"),
        (header::CONTENT_SECURITY_POLICY, NO_PAGE),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (
            HeaderName::from_static("cross-origin-resource-policy"),
            "same-origin",
        ),
    ];
    for (name, value) in defaults {
        headers
            .entry(name)
            .or_insert(HeaderValue::from_static(value));
    }
    headers.append(header::VARY, HeaderValue::from_static("origin"));
    if let Some(origin) = shared_with {
        headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
        headers.insert(
            header::ACCESS_CONTROL_EXPOSE_HEADERS,
            HeaderValue::from_static(READABLE),
        );
    }
    response
}
