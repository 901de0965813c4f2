//! The token, shown once, becomes a session: a random number in a cookie that scripts can't read and other sites
//! can't send. The token itself is not kept in the browser.
//!
//! A browser sends cookies to every port of a host, so another server on the same name is sent this one and could use
//! it; a page can't, since the door wants this server's own Origin with it. Whoever runs servers that they do not trust
//! on the same host name should give this one a name of its own.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use askama::Template;
use axum::{
    Form,
    extract::{FromRequest as _, Query, Request, State},
    response::Response,
};
use http::{HeaderMap, HeaderValue, StatusCode, header, uri::Authority};
use serde::Deserialize;
use sha2::{Digest as _, Sha256};

use super::{html, is_screen, see_other};
use crate::server::{Shared, problem::Problem};

/// One more ends the oldest.
const MAX_SESSIONS: usize = 256;
const LIFETIME: Duration = Duration::from_secs(12 * 60 * 60);

/// Who is signed in, as digests of the cookies, the oldest first. It ends with the process.
#[derive(Default)]
pub(in crate::server) struct Sessions(Mutex<VecDeque<([u8; 32], Instant)>>);

impl Sessions {
    fn begin(&self) -> Result<String, Problem> {
        let mut bytes = [0; 32];
        getrandom::fill(&mut bytes).map_err(|_| Problem::internal())?;
        let secret: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        let mut sessions = self.sessions();
        if sessions.len() == MAX_SESSIONS {
            sessions.pop_front();
        }
        sessions.push_back((digest(&secret), Instant::now()));
        Ok(secret)
    }

    /// Whether a request shows the cookie of a session that has not ended.
    pub(in crate::server) fn has(&self, headers: &HeaderMap) -> bool {
        let Some(shown) = cookie(headers).map(digest) else {
            return false;
        };
        let sessions = self.sessions();
        let mut matching = sessions.iter().filter(|(known, _)| *known == shown);
        matching.any(|(_, begun)| begun.elapsed() < LIFETIME)
    }

    fn end(&self, headers: &HeaderMap) {
        if let Some(shown) = cookie(headers).map(digest) {
            self.sessions().retain(|(known, _)| *known != shown);
        }
    }

    fn sessions(&self) -> std::sync::MutexGuard<'_, VecDeque<([u8; 32], Instant)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn digest(secret: &str) -> [u8; 32] {
    Sha256::digest(secret).into()
}

/// Cookies know no ports, so that the name tells apart two servers on one machine.
fn cookie_name(headers: &HeaderMap) -> String {
    let host: Option<Authority> = headers
        .get(header::HOST)
        .and_then(|host| host.to_str().ok())
        .and_then(|host| host.parse().ok());
    match host.and_then(|host| host.port_u16()) {
        Some(port) => format!("agentloop_session_{port}"),
        None => "agentloop_session".to_owned(),
    }
}

/// The session's cookie; none where there are several, since then somebody else has set one.
fn cookie(headers: &HeaderMap) -> Option<&str> {
    let name = cookie_name(headers);
    let mut values = headers
        .get_all(header::COOKIE)
        .iter()
        .filter_map(|cookies| cookies.to_str().ok())
        .flat_map(|cookies| cookies.split(';'))
        .filter_map(|pair| pair.trim().split_once('='))
        .filter(|(known, _)| *known == name)
        .map(|(_, value)| value);
    match (values.next(), values.next()) {
        (Some(value), None) => Some(value),
        _ => None,
    }
}

fn set_cookie(headers: &HeaderMap, value: &str, seconds: u64) -> Option<HeaderValue> {
    // The page's own word for how it was reached, also where a proxy speaks TLS for us.
    let is_secure = headers
        .get(header::ORIGIN)
        .is_some_and(|origin| origin.as_bytes().starts_with(b"https://"));
    let name = cookie_name(headers);
    let secure = if is_secure { "; Secure" } else { "" };
    let text =
        format!("{name}={value}; Path=/; Max-Age={seconds}; HttpOnly; SameSite=Strict{secure}");
    HeaderValue::from_str(&text).ok()
}

#[derive(Template)]
#[template(path = "sign_in.html")]
struct Asking<'a> {
    to: &'a str,
    wrong: bool,
}

#[derive(Deserialize)]
pub(super) struct AskParams {
    to: Option<String>,
}

#[derive(Deserialize)]
struct Shown {
    token: String,
    to: Option<String>,
}

/// A screen of this server, whatever was asked for.
fn destination(to: Option<&str>) -> &str {
    to.filter(|to| is_screen(to)).unwrap_or("/")
}

pub(super) async fn ask(
    State(shared): State<Arc<Shared>>,
    Query(params): Query<AskParams>,
    headers: HeaderMap,
) -> Response {
    let to = destination(params.to.as_deref());
    if !shared.access.has_token() || shared.sessions.has(&headers) {
        return see_other(to);
    }
    html(StatusCode::OK, &Asking { to, wrong: false })
}

pub(super) async fn sign_in(
    State(shared): State<Arc<Shared>>,
    request: Request,
) -> Result<Response, Problem> {
    let headers = request.headers().clone();
    let Form(shown) = Form::<Shown>::from_request(request, &())
        .await
        .map_err(|_| Problem::bad_request("form", "the form holds one field `token`"))?;
    let to = destination(shown.to.as_deref());
    if !shared.access.is_token(shown.token.trim()) {
        return Ok(html(StatusCode::FORBIDDEN, &Asking { to, wrong: true }));
    }
    let secret = shared.sessions.begin()?;
    Ok(with_cookie(
        see_other(to),
        &headers,
        &secret,
        LIFETIME.as_secs(),
    ))
}

pub(super) async fn sign_out(State(shared): State<Arc<Shared>>, headers: HeaderMap) -> Response {
    shared.sessions.end(&headers);
    with_cookie(see_other("/sign-in"), &headers, "", 0)
}

fn with_cookie(mut response: Response, headers: &HeaderMap, value: &str, seconds: u64) -> Response {
    if let Some(cookie) = set_cookie(headers, value, seconds) {
        response.headers_mut().insert(header::SET_COOKIE, cookie);
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(host: &str, cookies: &[&str]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(header::HOST, host.parse().unwrap());
        for cookie in cookies {
            headers.append(header::COOKIE, cookie.parse().unwrap());
        }
        headers
    }

    #[test]
    fn a_session_is_known_by_its_cookie_until_it_ends() {
        let sessions = Sessions::default();
        let secret = sessions.begin().unwrap();
        assert_eq!(secret.len(), 64);
        let own = format!("a=b; agentloop_session_8720={secret}; c=d");
        assert!(sessions.has(&headers("localhost:8720", &[&own])));
        assert!(!sessions.has(&headers("localhost:8721", &[&own])));
        assert!(!sessions.has(&headers("localhost", &[&own])));
        assert!(!sessions.has(&headers("localhost:8720", &[&own, &own])));
        assert!(!sessions.has(&headers("localhost:8720", &["agentloop_session_8720="])));
        assert!(!sessions.has(&headers("localhost:8720", &[])));
        sessions.end(&headers("localhost:8720", &[&own]));
        assert!(!sessions.has(&headers("localhost:8720", &[&own])));
    }

    #[test]
    fn one_session_too_many_ends_the_oldest() {
        let sessions = Sessions::default();
        let known = |secret: &str| {
            let cookie = format!("agentloop_session={secret}");
            sessions.has(&headers("localhost", &[&cookie]))
        };
        let first = sessions.begin().unwrap();
        let second = sessions.begin().unwrap();
        for _ in 2..MAX_SESSIONS {
            sessions.begin().unwrap();
        }
        assert!(known(&first));
        sessions.begin().unwrap();
        assert!(!known(&first) && known(&second));
    }

    #[test]
    fn a_way_back_is_a_screen_of_this_server() {
        for to in ["/approvals", "/runs/0a1b", "/"] {
            assert_eq!(destination(Some(to)), to);
        }
        for to in [
            "//evil.example",
            "https://evil.example/",
            "/\\evil",
            "/v1/runs",
            "/runs/../x",
            "",
        ] {
            assert_eq!(destination(Some(to)), "/");
        }
        assert_eq!(destination(None), "/");
    }
}
