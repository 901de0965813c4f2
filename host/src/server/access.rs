//! Who may come in: Host, Origin and token, in this order. Pure.
//!
//! A page in the user's browser can make it send requests here, under a name of the page's own that it has
//! pointed at this machine (DNS rebinding) or across origins. So a Host that is a name has to be one that the
//! operator knows, and an Origin has to be this server's own or one that the operator lists. A Host that is an
//! address can't be rebound.

use std::net::IpAddr;

use http::{HeaderMap, HeaderValue, Method, StatusCode, Uri, header, request, uri::Authority};
use sha2::{Digest as _, Sha256};
use url::Url;

use super::problem::Problem;

/// A shorter token can be guessed.
pub const MIN_TOKEN_CHARS: usize = 16;
pub const MAX_TOKEN_CHARS: usize = 1024;

/// What a client has to show. Kept as its digest, so that it can't be printed and a comparison tells nothing
/// of it by its time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Token([u8; 32]);

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error(
    "the token has to be {MIN_TOKEN_CHARS} to {MAX_TOKEN_CHARS} visible ASCII characters without blanks; \
     `openssl rand -hex 32` makes one"
)]
pub struct UnusableToken;

impl Token {
    /// Blanks around it are dropped, since tokens are read from files.
    pub fn parse(text: &str) -> Result<Self, UnusableToken> {
        let text = text.trim();
        let fits = (MIN_TOKEN_CHARS..=MAX_TOKEN_CHARS).contains(&text.len());
        if fits && text.bytes().all(|b| b.is_ascii_graphic()) {
            Ok(Self(Sha256::digest(text).into()))
        } else {
            Err(UnusableToken)
        }
    }

    fn is(&self, shown: &[u8]) -> bool {
        let shown: [u8; 32] = Sha256::digest(shown).into();
        // Whoever does not know the token can't choose what these digests share.
        self.0 == shown
    }
}

/// An origin that is not one.
#[derive(Debug, thiserror::Error)]
#[error("`{0}` is not a web origin; write something like `https://app.example.org`")]
pub struct InvalidOrigin(String);

/// The operator's rules for who may come in.
#[derive(Debug, Clone, Default)]
pub struct Access {
    token: Option<Token>,
    /// Lower case.
    hosts: Vec<String>,
    /// Serialised.
    origins: Vec<String>,
}

/// What an accepted request is entitled to.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Admitted {
    /// The listed origin that it came from; its answer is shared with that page.
    pub(super) shared_with: Option<HeaderValue>,
    /// A browser asks what it may send; the answer is known.
    pub(super) is_preflight: bool,
}

impl Access {
    /// Everybody who can reach the socket under an address or as `localhost`, without a token.
    pub fn open() -> Self {
        Self::default()
    }

    pub fn with_token(mut self, token: Token) -> Self {
        self.token = Some(token);
        self
    }

    /// Also under this name.
    pub fn with_host(mut self, name: &str) -> Self {
        self.hosts.push(name.to_ascii_lowercase());
        self
    }

    /// Also pages of this origin.
    pub fn with_origin(mut self, origin: &str) -> Result<Self, InvalidOrigin> {
        let parsed = web_origin(origin).ok_or_else(|| InvalidOrigin(origin.to_owned()))?;
        self.origins.push(parsed.origin().ascii_serialization());
        Ok(self)
    }

    pub fn has_token(&self) -> bool {
        self.token.is_some()
    }

    /// Whether this is the token; never where there is none.
    pub(super) fn is_token(&self, shown: &str) -> bool {
        self.token
            .as_ref()
            .is_some_and(|token| token.is(shown.as_bytes()))
    }

    /// Looks at the head of a request, before anything of its body is read. `needs_token` is false for what
    /// everybody may know; `has_session` is true where the request shows a session and its path takes one.
    pub(super) fn admit(
        &self,
        head: &request::Parts,
        needs_token: bool,
        has_session: bool,
    ) -> Result<Admitted, Box<Refused>> {
        let host = self.host(&head.uri, &head.headers)?;
        let shared_with = self.origin(head, &host)?;
        let refused = |problem| {
            Box::new(Refused {
                problem,
                shared_with: shared_with.clone(),
            })
        };
        let is_preflight = head.method == Method::OPTIONS
            && shared_with.is_some()
            && head
                .headers
                .contains_key(header::ACCESS_CONTROL_REQUEST_METHOD);
        // A browser sends a session's cookie by itself, so that only this server's own page may use it: not a
        // listed one, and nothing is changed without an Origin. A token that is shown as well decides alone.
        let by_session = has_session
            && shared_with.is_none()
            && (head.method.is_safe() || head.headers.contains_key(header::ORIGIN))
            && !head.headers.contains_key(header::AUTHORIZATION);
        // A browser sends no token with its question.
        if needs_token && !is_preflight && !by_session {
            self.token(&head.headers).map_err(refused)?;
        }
        Ok(Admitted {
            shared_with,
            is_preflight,
        })
    }

    fn host(&self, uri: &Uri, headers: &HeaderMap) -> Result<Authority, Problem> {
        let unclear = || {
            Problem::bad_request(
                "host",
                "a request needs exactly one header `host`, with the address of this server",
            )
        };
        let mut hosts = headers.get_all(header::HOST).iter();
        let (Some(host), None) = (hosts.next(), hosts.next()) else {
            return Err(unclear());
        };
        let host: Authority = host
            .to_str()
            .ok()
            .and_then(|host| host.parse().ok())
            .ok_or_else(unclear)?;
        // A request line may name a host as well; it is believed as little.
        for named in [Some(&host), uri.authority()].into_iter().flatten() {
            if !self.answers_to(named) {
                return Err(Problem::new(
                    StatusCode::FORBIDDEN,
                    "host",
                    "this server does not answer to this host name; the operator can add names with `--host`",
                ));
            }
        }
        Ok(host)
    }

    fn answers_to(&self, authority: &Authority) -> bool {
        if authority.as_str().contains('@') {
            return false;
        }
        let name = authority.host().to_ascii_lowercase();
        let address = name
            .strip_prefix('[')
            .and_then(|rest| rest.strip_suffix(']'))
            .unwrap_or(&name);
        name == "localhost" || address.parse::<IpAddr>().is_ok() || self.hosts.contains(&name)
    }

    /// The listed origin that the request comes from; nothing where it comes from no page or from this
    /// server's own.
    fn origin(
        &self,
        head: &request::Parts,
        host: &Authority,
    ) -> Result<Option<HeaderValue>, Problem> {
        let refused = || {
            Problem::new(
                StatusCode::FORBIDDEN,
                "origin",
                "pages of this origin may not use this server; the operator can add origins with `--origin`",
            )
        };
        let mut origins = head.headers.get_all(header::ORIGIN).iter();
        let Some(value) = origins.next() else {
            return match fetched_by_a_foreign_page(head) {
                true => Err(refused()),
                false => Ok(None),
            };
        };
        let (Some(origin), None) = (value.to_str().ok().and_then(web_origin), origins.next())
        else {
            return Err(refused());
        };
        if is_at(&origin, host) {
            return Ok(None);
        }
        match self
            .origins
            .contains(&origin.origin().ascii_serialization())
        {
            true => Ok(Some(value.clone())),
            false => Err(refused()),
        }
    }

    fn token(&self, headers: &HeaderMap) -> Result<(), Problem> {
        let Some(token) = &self.token else {
            return Ok(());
        };
        let mut shown = headers.get_all(header::AUTHORIZATION).iter();
        let matches = match (shown.next(), shown.next()) {
            (Some(shown), None) => bearer(shown.as_bytes()).is_some_and(|shown| token.is(shown)),
            _ => false,
        };
        match matches {
            true => Ok(()),
            false => Err(Problem::new(
                StatusCode::UNAUTHORIZED,
                "unauthorized",
                "send the server's token in the header `authorization`, as `Bearer TOKEN`",
            )),
        }
    }
}

/// A refusal, and the listed origin that may read it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Refused {
    pub(super) problem: Problem,
    pub(super) shared_with: Option<HeaderValue>,
}

impl From<Problem> for Box<Refused> {
    fn from(problem: Problem) -> Self {
        Self::new(Refused {
            problem,
            shared_with: None,
        })
    }
}

/// Requests without an Origin that a browser makes for a page of somebody else's: pictures, scripts, frames. A
/// person who follows a link from there is none.
fn fetched_by_a_foreign_page(head: &request::Parts) -> bool {
    let is = |name: &str, values: &[&str]| {
        head.headers
            .get(name)
            .is_some_and(|value| values.iter().any(|known| value == known))
    };
    let foreign = is("sec-fetch-site", &["cross-site", "same-site"]);
    let follows_a_link = head.method == Method::GET
        && is("sec-fetch-mode", &["navigate"])
        && is("sec-fetch-dest", &["document"]);
    foreign && !follows_a_link
}

/// An origin and nothing else, of a scheme that pages have.
fn web_origin(text: &str) -> Option<Url> {
    let url = Url::parse(text).ok()?;
    let is_web = matches!(url.scheme(), "http" | "https");
    (is_web && url.origin().ascii_serialization() == text.to_ascii_lowercase()).then_some(url)
}

/// Whether a page of this origin came from the host that it now asks. Its scheme may differ where a proxy
/// speaks TLS for us.
fn is_at(origin: &Url, host: &Authority) -> bool {
    let default = match origin.scheme() {
        "https" => 443,
        _ => 80,
    };
    let port = host.port_u16().unwrap_or(default);
    origin
        .host_str()
        .is_some_and(|name| name.eq_ignore_ascii_case(host.host()))
        && origin.port_or_known_default() == Some(port)
}

fn bearer(value: &[u8]) -> Option<&[u8]> {
    let (scheme, token) = value.split_at_checked("Bearer ".len())?;
    scheme.eq_ignore_ascii_case(b"Bearer ").then_some(token)
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;

    fn head(method: &str, headers: &[(&str, &str)]) -> request::Parts {
        let mut request = Request::builder().method(method).uri("/v1/tools");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        request.body(()).unwrap().into_parts().0
    }

    fn status(access: &Access, method: &str, headers: &[(&str, &str)]) -> u16 {
        match access.admit(&head(method, headers), true, false) {
            Ok(_) => 200,
            Err(refused) => refused.problem.status,
        }
    }

    #[test]
    fn hosts_are_addresses_or_known_names() {
        let access = Access::open().with_host("Agents.Example");
        for (host, expected) in [
            ("127.0.0.1", 200),
            ("127.0.0.1:8720", 200),
            ("10.1.2.3:1", 200),
            ("[::1]:8720", 200),
            ("[::ffff:127.0.0.1]", 200),
            ("localhost", 200),
            ("LOCALHOST:9", 200),
            ("agents.example", 200),
            ("AGENTS.example:443", 200),
            ("evil.example", 403),
            ("localhost.evil.example", 403),
            ("127.0.0.1.evil.example", 403),
            ("agents.example.evil", 403),
            ("localhost.", 403),
            ("0x7f.1", 403),
            ("user@localhost", 403),
            ("evil.example@localhost", 403),
            ("", 400),
            ("a b", 400),
            ("[::1", 400),
            ("localhost/x", 400),
        ] {
            assert_eq!(
                status(&access, "GET", &[("host", host)]),
                expected,
                "{host}"
            );
        }
        assert_eq!(status(&access, "GET", &[]), 400);
        let twice = [("host", "localhost"), ("host", "localhost")];
        assert_eq!(status(&access, "GET", &twice), 400);
    }

    #[test]
    fn the_host_of_the_request_line_counts_as_well() {
        let access = Access::open();
        let head = |uri: &str| {
            let request = Request::builder().uri(uri).header("host", "localhost");
            request.body(()).unwrap().into_parts().0
        };
        assert!(
            access
                .admit(&head("http://localhost/v1"), true, false)
                .is_ok()
        );
        assert!(
            access
                .admit(&head("http://evil.example/v1"), true, false)
                .is_err()
        );
    }

    #[test]
    fn origins_are_our_own_or_listed() {
        let access = Access::open()
            .with_host("agents.example")
            .with_origin("http://localhost:6274")
            .unwrap();
        for (host, origin, expected) in [
            ("localhost:8720", "http://localhost:8720", 200),
            ("127.0.0.1:8720", "http://127.0.0.1:8720", 200),
            ("[::1]:8720", "http://[::1]:8720", 200),
            ("localhost", "http://localhost", 200),
            ("localhost:80", "http://localhost", 200),
            ("agents.example", "https://agents.example", 200),
            ("localhost:8720", "http://localhost:6274", 200),
            ("localhost:8720", "http://127.0.0.1:8720", 403),
            ("localhost:8720", "http://localhost:8721", 403),
            ("localhost:8720", "http://localhost", 403),
            ("localhost:8720", "https://localhost:6274", 403),
            ("localhost:8720", "http://localhost:62745", 403),
            ("localhost:8720", "http://evil.example", 403),
            ("localhost:8720", "http://localhost:6274.evil.example", 403),
            ("localhost:8720", "null", 403),
            ("localhost:8720", "file://", 403),
            ("localhost:8720", "", 403),
            ("localhost:8720", "http://localhost:8720/path", 403),
            ("localhost:8720", "http://user@localhost:8720", 403),
        ] {
            let headers = [("host", host), ("origin", origin)];
            assert_eq!(
                status(&access, "POST", &headers),
                expected,
                "{host} {origin}"
            );
        }
        let twice = [
            ("host", "localhost"),
            ("origin", "http://localhost"),
            ("origin", "http://localhost"),
        ];
        assert_eq!(status(&access, "POST", &twice), 403);
        assert!(Access::open().with_origin("*").is_err());
        assert!(Access::open().with_origin("http://a.example/").is_err());
    }

    #[test]
    fn a_foreign_page_can_link_here_but_not_fetch() {
        let access = Access::open();
        let site = |site, mode, dest| {
            [
                ("host", "localhost"),
                ("sec-fetch-site", site),
                ("sec-fetch-mode", mode),
                ("sec-fetch-dest", dest),
            ]
        };
        for (headers, expected) in [
            (site("none", "navigate", "document"), 200),
            (site("same-origin", "cors", "empty"), 200),
            (site("cross-site", "navigate", "document"), 200),
            (site("cross-site", "navigate", "iframe"), 403),
            (site("cross-site", "no-cors", "image"), 403),
            (site("same-site", "no-cors", "script"), 403),
        ] {
            assert_eq!(status(&access, "GET", &headers), expected, "{headers:?}");
        }
        let posted = site("cross-site", "navigate", "document");
        assert_eq!(status(&access, "POST", &posted), 403);
    }

    #[test]
    fn the_token_is_shown_whole_and_once() {
        let token = "0123456789abcdef";
        let access = Access::open().with_token(Token::parse(&format!(" {token}\n")).unwrap());
        let shows = |value: &str| {
            status(
                &access,
                "GET",
                &[("host", "localhost"), ("authorization", value)],
            )
        };
        assert_eq!(shows(&format!("Bearer {token}")), 200);
        assert_eq!(shows(&format!("bearer {token}")), 200);
        for wrong in [
            "Bearer x",
            "Bearer ",
            "Bearer",
            "",
            "Basic 0123456789abcdef",
            token,
        ] {
            assert_eq!(shows(wrong), 401, "{wrong}");
        }
        assert_eq!(shows(&format!("Bearer {token}0")), 401);
        assert_eq!(shows(&format!("Bearer  {token}")), 401);
        assert_eq!(status(&access, "GET", &[("host", "localhost")]), 401);
        let right = format!("Bearer {token}");
        let twice = [
            ("host", "localhost"),
            ("authorization", right.as_str()),
            ("authorization", right.as_str()),
        ];
        assert_eq!(status(&access, "GET", &twice), 401);
        assert!(
            access
                .admit(&head("GET", &[("host", "localhost")]), false, false)
                .is_ok()
        );
    }

    #[test]
    fn a_preflight_needs_a_listed_origin_and_no_token() {
        let access = Access::open()
            .with_token(Token::parse("0123456789abcdef").unwrap())
            .with_origin("http://localhost:6274")
            .unwrap();
        let asks = |origin| {
            [
                ("host", "localhost:8720"),
                ("origin", origin),
                ("access-control-request-method", "POST"),
            ]
        };
        let admitted = access
            .admit(
                &head("OPTIONS", &asks("http://localhost:6274")),
                true,
                false,
            )
            .unwrap();
        assert!(admitted.is_preflight);
        assert_eq!(
            status(&access, "OPTIONS", &asks("http://evil.example")),
            403
        );
        assert_eq!(status(&access, "POST", &asks("http://localhost:6274")), 401);
    }

    #[test]
    fn a_session_counts_for_this_servers_own_page_only() {
        let access = Access::open()
            .with_token(Token::parse("0123456789abcdef").unwrap())
            .with_origin("http://localhost:6274")
            .unwrap();
        let host = ("host", "localhost:8720");
        let own = ("origin", "http://localhost:8720");
        let listed = ("origin", "http://localhost:6274");
        let wrong = ("authorization", "Bearer x");
        let rows = [
            ("GET", &[host][..], true),
            ("GET", &[host, own], true),
            ("POST", &[host, own], true),
            ("POST", &[host], false),
            ("DELETE", &[host], false),
            ("POST", &[host, listed], false),
            ("GET", &[host, listed], false),
            ("GET", &[host, wrong], false),
        ];
        for (method, headers, admitted) in rows {
            let with = access.admit(&head(method, headers), true, true);
            assert_eq!(with.is_ok(), admitted, "{method} {headers:?}");
            assert!(access.admit(&head(method, headers), true, false).is_err());
        }
        let foreign = head("POST", &[host, ("origin", "http://localhost:1")]);
        assert_eq!(
            access
                .admit(&foreign, true, true)
                .unwrap_err()
                .problem
                .status,
            403
        );
        assert!(access.is_token("0123456789abcdef") && !access.is_token("0123456789abcdeg"));
        assert!(!Access::open().is_token(""));
    }

    #[test]
    fn short_tokens_are_refused_and_none_is_printed() {
        assert_eq!(Token::parse("short"), Err(UnusableToken));
        assert_eq!(
            Token::parse("a token with blanks in it"),
            Err(UnusableToken)
        );
        let token = Token::parse("secret-secret-secret").unwrap();
        assert!(!format!("{token:?}").contains("secret-secret"));
    }
}
