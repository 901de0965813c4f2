//! Requests to web origins that the operator granted.
//!
//! A tool requests the origins with `#[tool(http("https://api.example.org", reason = "…"))]`; the host checks each
//! request, and each hop of a redirect anew. What it refuses is [`Error::Denied`], which `?` turns into
//! [`ToolError::Denied`](crate::ToolError::Denied), so that the model can say what is missing.
//!
//! ```
//! use agentloop_sdk::{Result, http, tool};
//!
//! /// Return the time that the server has.
//! #[tool(read_only, http("https://time.example.org", reason = "to ask for the time"))]
//! fn server_time() -> Result<String> {
//!     Ok(http::get("https://time.example.org/now")?.error_for_status()?.text())
//! }
//!
//! // Outside a component there is no network; a test answers instead.
//! let _network = http::fake(|request| {
//!     assert_eq!(request.url, "https://time.example.org/now");
//!     Ok(http::Response::new(200, "12:00"))
//! });
//! assert_eq!(server_time().unwrap(), "12:00");
//! ```

use std::{
    fmt,
    time::{Duration, Instant},
};

use serde::{Serialize, de::DeserializeOwned};

use self::url::Url;

#[cfg(not(all(target_arch = "wasm32", target_os = "wasi", target_env = "p2")))]
mod fake;
mod url;
#[cfg(all(target_arch = "wasm32", target_os = "wasi", target_env = "p2"))]
mod wasi;

#[cfg(not(all(target_arch = "wasm32", target_os = "wasi", target_env = "p2")))]
pub use fake::{Fake, fake};

#[cfg(not(all(target_arch = "wasm32", target_os = "wasi", target_env = "p2")))]
use fake::exchange;
#[cfg(all(target_arch = "wasm32", target_os = "wasi", target_env = "p2"))]
use wasi::exchange;

/// How long a request may take where it says nothing else: less than the 30 s that the host gives a call.
pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(20);

/// How much of a response's body is read where the request says nothing else.
pub const DEFAULT_MAX_BODY_BYTES: usize = 8 << 20;

/// How many redirects are followed where the request says nothing else.
pub const DEFAULT_MAX_REDIRECTS: u32 = 5;

pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Sends a `GET` request.
pub fn get(url: impl Into<String>) -> Result<Response> {
    Request::get(url).send()
}

/// A request that is being put together.
///
/// ```no_run
/// # fn main() -> agentloop_sdk::Result<()> {
/// use std::time::Duration;
/// use agentloop_sdk::{http::Request, json};
///
/// let answer = Request::post("https://api.example.org/search")
///     .query("lang", "en")
///     .header("authorization", "Bearer …")
///     .json(&json!({"text": "rain"}))
///     .timeout(Duration::from_secs(5))
///     .send()?
///     .error_for_status()?;
/// let found: agentloop_sdk::Value = answer.json()?;
/// # Ok(()) }
/// ```
#[derive(Debug, Clone)]
#[must_use = "nothing is sent without `send`"]
pub struct Request {
    method: String,
    url: String,
    headers: Vec<(String, String)>,
    body: Vec<u8>,
    timeout: Duration,
    max_body_bytes: usize,
    max_redirects: u32,
    /// The first fault, told by `send`.
    fault: Option<Error>,
}

impl Request {
    /// A request with any method, written in capitals.
    pub fn new(method: impl Into<String>, url: impl Into<String>) -> Self {
        Self {
            method: method.into(),
            url: url.into(),
            headers: Vec::new(),
            body: Vec::new(),
            timeout: DEFAULT_TIMEOUT,
            max_body_bytes: DEFAULT_MAX_BODY_BYTES,
            max_redirects: DEFAULT_MAX_REDIRECTS,
            fault: None,
        }
    }

    pub fn get(url: impl Into<String>) -> Self {
        Self::new("GET", url)
    }

    pub fn head(url: impl Into<String>) -> Self {
        Self::new("HEAD", url)
    }

    pub fn post(url: impl Into<String>) -> Self {
        Self::new("POST", url)
    }

    pub fn put(url: impl Into<String>) -> Self {
        Self::new("PUT", url)
    }

    pub fn patch(url: impl Into<String>) -> Self {
        Self::new("PATCH", url)
    }

    pub fn delete(url: impl Into<String>) -> Self {
        Self::new("DELETE", url)
    }

    /// Adds a header.
    pub fn header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        let (name, value) = (name.into(), value.into());
        let token = |b: u8| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b);
        let printable = |b: u8| b == b'\t' || (b >= 0x20 && b != 0x7f);
        if name.is_empty() || !name.bytes().all(token) {
            self.fault("its name has to be letters, digits and hyphens", &name);
        } else if !value.bytes().all(printable) {
            self.fault("its value has control characters", &name);
        }
        self.headers.push((name, value));
        self
    }

    /// Adds a parameter to the URL's query, encoded.
    pub fn query(mut self, name: impl AsRef<str>, value: impl fmt::Display) -> Self {
        let (url, fragment) = match self.url.split_once('#') {
            Some((url, fragment)) => (url, Some(fragment)),
            None => (self.url.as_str(), None),
        };
        let mut new = url.to_owned();
        new.push(if url.contains('?') { '&' } else { '?' });
        url::encode(&mut new, name.as_ref());
        new.push('=');
        url::encode(&mut new, &value.to_string());
        if let Some(fragment) = fragment {
            new.push('#');
            new.push_str(fragment);
        }
        self.url = new;
        self
    }

    /// Sends these bytes or this text.
    pub fn body(mut self, body: impl Into<Vec<u8>>) -> Self {
        self.body = body.into();
        self
    }

    /// Sends the value as JSON, with the header that says so.
    pub fn json(mut self, value: &impl Serialize) -> Self {
        match serde_json::to_vec(value) {
            Ok(body) => {
                self.body = body;
                if !has(&self.headers, "content-type") {
                    self.headers
                        .push(("content-type".into(), "application/json".into()));
                }
            }
            Err(error) => {
                self.fault.get_or_insert(Error::InvalidRequest {
                    why: format!("the body can't be written as JSON: {error}"),
                });
            }
        }
        self
    }

    /// How long all of it may take, redirects and reading the body included; 20 seconds otherwise. The call's own
    /// deadline holds besides.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// The largest body that is taken; 8 MiB otherwise.
    pub fn max_body_bytes(mut self, bytes: usize) -> Self {
        self.max_body_bytes = bytes;
        self
    }

    /// How many redirects are followed; 5 otherwise. With 0 the redirect itself is the response.
    pub fn max_redirects(mut self, count: u32) -> Self {
        self.max_redirects = count;
        self
    }

    /// Sends the request and reads the whole response. Any status is a response; see
    /// [`Response::error_for_status`].
    pub fn send(self) -> Result<Response> {
        if let Some(fault) = self.fault {
            return Err(fault);
        }
        let limits = Limits {
            deadline: Instant::now() + self.timeout,
            timeout: self.timeout,
            max_body_bytes: self.max_body_bytes,
        };
        let mut url = Url::parse(&self.url)?;
        let mut sent = Sent {
            method: self.method,
            url: url.to_string(),
            headers: self.headers,
            body: self.body,
        };
        for _ in 0..=self.max_redirects {
            let mut response = exchange(&sent, &url, &limits)?;
            response.url = sent.url.clone();
            let Some(next) = response.redirect(&url)? else {
                return Ok(response);
            };
            if self.max_redirects == 0 {
                return Ok(response);
            }
            sent.redirected(response.status, &url, &next);
            url = next;
        }
        Err(Error::TooManyRedirects {
            limit: self.max_redirects,
        })
    }

    fn fault(&mut self, why: &str, header: &str) {
        self.fault.get_or_insert(Error::InvalidRequest {
            why: format!("the header `{}`: {why}", header.escape_default()),
        });
    }
}

/// One request as it leaves: what a redirect makes of it is another one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sent {
    pub method: String,
    pub url: String,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Sent {
    /// The value of the first header of that name, whatever its case.
    pub fn header(&self, name: &str) -> Option<&str> {
        find(&self.headers, name)
    }

    /// RFC 9110 §15.4 for the method; credentials stay with the origin that they were meant for.
    fn redirected(&mut self, status: u16, from: &Url, to: &Url) {
        let becomes_get = match status {
            303 => self.method != "HEAD",
            301 | 302 => self.method == "POST",
            _ => false,
        };
        if becomes_get {
            self.method = "GET".into();
            self.body.clear();
        }
        let another_origin = !from.same_origin(to);
        self.headers.retain(|(name, _)| {
            let is_one =
                |others: &[&str]| others.iter().any(|other| name.eq_ignore_ascii_case(other));
            let of_body = is_one(&["content-type", "content-length", "content-encoding"]);
            let secret = is_one(&["authorization", "cookie", "proxy-authorization"]);
            !(becomes_get && of_body || another_origin && secret)
        });
        self.url = to.to_string();
    }
}

/// What an exchange is bounded by.
struct Limits {
    deadline: Instant,
    /// For the message.
    timeout: Duration,
    max_body_bytes: usize,
}

/// A response with its whole body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Response {
    pub status: u16,
    /// In the order in which they came. Values that are not UTF-8 have their bytes replaced.
    pub headers: Vec<(String, String)>,
    /// Where it came from, after redirects.
    pub url: String,
    body: Vec<u8>,
}

impl Response {
    /// A response for tests.
    pub fn new(status: u16, body: impl Into<Vec<u8>>) -> Self {
        Self {
            status,
            headers: Vec::new(),
            url: String::new(),
            body: body.into(),
        }
    }

    /// Adds a header, for tests.
    pub fn with_header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.headers.push((name.into(), value.into()));
        self
    }

    /// The value of the first header of that name, whatever its case.
    pub fn header(&self, name: &str) -> Option<&str> {
        find(&self.headers, name)
    }

    pub fn is_success(&self) -> bool {
        (200..300).contains(&self.status)
    }

    /// An error unless the status is 2xx.
    pub fn error_for_status(self) -> Result<Self> {
        if self.is_success() {
            return Ok(self);
        }
        Err(Error::Status {
            status: self.status,
            url: self.url.clone(),
            body: excerpt(&self.body),
        })
    }

    pub fn bytes(&self) -> &[u8] {
        &self.body
    }

    pub fn into_bytes(self) -> Vec<u8> {
        self.body
    }

    /// The body as text; bytes that are not UTF-8 are replaced.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// The body, decoded from JSON into an `#[args]` type or an `agentloop_sdk::Value`.
    pub fn json<T: DeserializeOwned>(&self) -> Result<T> {
        serde_json::from_slice(&self.body).map_err(|error| Error::Json {
            url: self.url.clone(),
            why: error.to_string(),
            body: excerpt(&self.body),
        })
    }

    /// Where the response sends the request on to, if it does.
    fn redirect(&self, from: &Url) -> Result<Option<Url>> {
        match (self.status, self.header("location")) {
            (301 | 302 | 303 | 307 | 308, Some(location)) => from.join(location).map(Some),
            _ => Ok(None),
        }
    }
}

/// Why there is no response.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// The URL can't be used.
    InvalidUrl { url: String, why: &'static str },
    /// A header or the body can't be sent.
    InvalidRequest { why: String },
    /// The host refused the request: this method and origin are not both requested by the tool and granted by
    /// the operator.
    Denied { attempted: String },
    /// The host refused the address behind the name, which is not a public one.
    AddressDenied { attempted: String },
    /// It took too long.
    Timeout { attempted: String, after: Duration },
    /// No connection came about, or it broke.
    Connection { attempted: String, why: String },
    /// The server's certificate is not trusted, or TLS failed.
    Certificate { attempted: String, why: String },
    /// The response's (or request's) body is larger than allowed.
    TooLarge {
        attempted: String,
        limit: Option<u64>,
    },
    /// One redirect after the other.
    TooManyRedirects { limit: u32 },
    /// The server answered with something that is not HTTP.
    Protocol { attempted: String, why: String },
    /// The status is not 2xx; only from [`Response::error_for_status`].
    Status {
        status: u16,
        url: String,
        /// The body's beginning.
        body: String,
    },
    /// The body is not the JSON that was expected; only from [`Response::json`].
    Json {
        url: String,
        why: String,
        /// The body's beginning.
        body: String,
    },
    /// There is no network outside a component; a test answers with `http::fake`.
    OutsideComponent { attempted: String },
}

impl Error {
    /// Whether the host refused what was not granted.
    pub fn is_denied(&self) -> bool {
        matches!(self, Self::Denied { .. } | Self::AddressDenied { .. })
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InvalidUrl { url, why } => write!(f, "`{url}` can't be requested: {why}"),
            Self::InvalidRequest { why } => f.write_str(why),
            Self::Denied { attempted } => write!(
                f,
                "the host refused `{attempted}`: the tool was not granted this method at this origin"
            ),
            Self::AddressDenied { attempted } => write!(
                f,
                "the host refused `{attempted}`: it leads to an address that is not public"
            ),
            Self::Timeout { attempted, after } => {
                write!(f, "`{attempted}` gave no answer within {after:?}")
            }
            Self::Connection { attempted, why } => {
                write!(f, "`{attempted}` failed: {why}")
            }
            Self::Certificate { attempted, why } => {
                write!(f, "`{attempted}` failed: {why}")
            }
            Self::TooLarge {
                attempted,
                limit: Some(limit),
            } => write!(f, "the body of `{attempted}` is larger than {limit} bytes"),
            Self::TooLarge {
                attempted,
                limit: None,
            } => write!(
                f,
                "the body of `{attempted}` is larger than the host allows"
            ),
            Self::TooManyRedirects { limit } => write!(f, "more than {limit} redirects"),
            Self::Protocol { attempted, why } => {
                write!(f, "`{attempted}` got an answer that can't be used: {why}")
            }
            Self::Status { status, url, body } => {
                write!(f, "`{url}` answered with status {status}")?;
                match body.as_str() {
                    "" => Ok(()),
                    body => write!(f, ": {body}"),
                }
            }
            Self::Json { url, why, body } => write!(
                f,
                "`{url}` answered with something else than the expected JSON: {why}; it begins with: {body}"
            ),
            Self::OutsideComponent { attempted } => write!(
                f,
                "`{attempted}`: there is no network outside a component; answer with `agentloop_sdk::http::fake` in a test"
            ),
        }
    }
}

impl std::error::Error for Error {}

fn has(headers: &[(String, String)], name: &str) -> bool {
    find(headers, name).is_some()
}

fn find<'a>(headers: &'a [(String, String)], name: &str) -> Option<&'a str> {
    headers
        .iter()
        .find(|(other, _)| other.eq_ignore_ascii_case(name))
        .map(|(_, value)| value.as_str())
}

/// How much of a body stands in an error.
const EXCERPT_CHARS: usize = 300;

fn excerpt(body: &[u8]) -> String {
    // A char has at most 4 bytes.
    let start = &body[..body.len().min(4 * EXCERPT_CHARS)];
    let text = String::from_utf8_lossy(start);
    let text = text.trim();
    let mut short: String = text.chars().take(EXCERPT_CHARS).collect();
    if short.len() < text.len() || start.len() < body.len() {
        short.push('…');
    }
    short
}

#[cfg(test)]
mod tests {
    use std::{cell::RefCell, rc::Rc};

    use super::*;

    /// Answers with these responses, one after the other; what was sent is noted.
    fn script(responses: impl IntoIterator<Item = Response>) -> (Fake, Rc<RefCell<Vec<Sent>>>) {
        let mut responses: Vec<_> = responses.into_iter().collect();
        responses.reverse();
        let sent = Rc::new(RefCell::new(Vec::new()));
        let noted = sent.clone();
        let fake = fake(move |request| {
            noted.borrow_mut().push(request.clone());
            Ok(responses.pop().expect("one response more"))
        });
        (fake, sent)
    }

    fn to(status: u16, location: &str) -> Response {
        Response::new(status, "").with_header("Location", location)
    }

    #[test]
    fn a_redirect_is_a_request_of_its_own() {
        let (_network, sent) = script([
            to(302, "/b?x=1#part"),
            to(307, "c"),
            Response::new(200, "there"),
        ]);
        let response = get("https://a.example/a").unwrap();
        assert_eq!(response.text(), "there");
        assert_eq!(response.url, "https://a.example/c");
        let urls: Vec<_> = sent.borrow().iter().map(|sent| sent.url.clone()).collect();
        assert_eq!(
            urls,
            [
                "https://a.example/a",
                "https://a.example/b?x=1",
                "https://a.example/c"
            ]
        );
    }

    #[test]
    fn the_method_changes_as_the_status_says() {
        for (method, status, then) in [
            ("POST", 301, "GET"),
            ("POST", 302, "GET"),
            ("POST", 303, "GET"),
            ("POST", 307, "POST"),
            ("POST", 308, "POST"),
            ("PUT", 302, "PUT"),
            ("PUT", 303, "GET"),
            ("HEAD", 303, "HEAD"),
            ("GET", 308, "GET"),
        ] {
            let (_network, sent) = script([to(status, "/b"), Response::new(200, "")]);
            Request::new(method, "https://a.example/")
                .json(&1)
                .header("x-kept", "1")
                .send()
                .unwrap();
            let sent = &sent.borrow()[1];
            assert_eq!(sent.method, then, "{method} {status}");
            let body_stays = method == then;
            assert_eq!(sent.body == b"1", body_stays, "{method} {status}");
            assert_eq!(
                sent.header("content-type").is_some(),
                body_stays,
                "{method} {status}"
            );
            assert_eq!(sent.header("x-kept"), Some("1"));
        }
    }

    #[test]
    fn credentials_stay_with_their_origin() {
        for (from, location, kept) in [
            ("https://a.example/", "/b", true),
            ("https://a.example/", "https://A.example:443/b", true),
            ("https://a.example/", "https://b.example/", false),
            ("https://a.example/", "//b.example/", false),
            ("https://a.example/", "http://a.example/", false),
            ("https://a.example/", "https://a.example:8443/", false),
            ("https://a.example/", "https://sub.a.example/", false),
        ] {
            let (_network, sent) = script([to(302, location), Response::new(200, "")]);
            Request::get(from)
                .header("Authorization", "Bearer 1")
                .header("cookie", "a=b")
                .header("Proxy-Authorization", "x")
                .header("accept", "text/html")
                .send()
                .unwrap();
            let sent = &sent.borrow()[1];
            for secret in ["authorization", "cookie", "proxy-authorization"] {
                assert_eq!(sent.header(secret).is_some(), kept, "{location} {secret}");
            }
            assert_eq!(sent.header("accept"), Some("text/html"));
        }
    }

    #[test]
    fn redirects_end() {
        let (_network, sent) = script((0..6).map(|_| to(302, "/again")));
        assert_eq!(
            get("https://a.example/"),
            Err(Error::TooManyRedirects { limit: 5 })
        );
        assert_eq!(sent.borrow().len(), 6);

        let (_network, sent) = script([to(302, "/again")]);
        let response = Request::get("https://a.example/")
            .max_redirects(0)
            .send()
            .unwrap();
        assert_eq!((response.status, sent.borrow().len()), (302, 1));
    }

    #[test]
    fn a_redirect_to_elsewhere_than_the_web_is_an_error() {
        let (_network, _) = script([to(302, "file:///etc/passwd")]);
        let error = get("https://a.example/").unwrap_err();
        assert!(matches!(error, Error::InvalidUrl { .. }), "{error}");
    }

    #[test]
    fn what_is_no_redirect_is_a_response() {
        for response in [Response::new(302, ""), to(300, "/b"), to(304, "/b")] {
            let status = response.status;
            let (_network, _) = script([response]);
            assert_eq!(get("https://a.example/").unwrap().status, status);
        }
    }

    #[test]
    fn query_parameters_are_encoded() {
        let (_network, sent) = script([Response::new(200, ""), Response::new(200, "")]);
        Request::get("https://a.example/find#part")
            .query("q", "a b&c=ä")
            .query("n", 3)
            .send()
            .unwrap();
        Request::get("https://a.example/?x=1")
            .query("y", true)
            .send()
            .unwrap();
        assert_eq!(
            sent.borrow()[0].url,
            "https://a.example/find?q=a%20b%26c%3D%C3%A4&n=3"
        );
        assert_eq!(sent.borrow()[1].url, "https://a.example/?x=1&y=true");
    }

    #[test]
    fn a_header_cannot_bring_another_one() {
        for (name, value) in [
            ("x", "a\r\nhost: b"),
            ("x:y", "a"),
            ("", "a"),
            ("x", "\u{7f}"),
        ] {
            let error = Request::get("https://a.example/")
                .header(name, value)
                .send()
                .unwrap_err();
            assert!(matches!(error, Error::InvalidRequest { .. }), "{name:?}");
        }
    }

    #[test]
    fn a_status_can_be_an_error() {
        let (_network, _) = script([Response::new(404, "no such city\n")]);
        let error = get("https://a.example/x")
            .unwrap()
            .error_for_status()
            .unwrap_err();
        assert_eq!(
            error.to_string(),
            "`https://a.example/x` answered with status 404: no such city"
        );
        let long = "ä".repeat(2_000);
        assert_eq!(excerpt(long.as_bytes()), format!("{}…", "ä".repeat(300)));
    }

    #[test]
    fn json_comes_and_goes() {
        let (_network, sent) = script([
            Response::new(200, r#"{"n":[1,2]}"#),
            Response::new(200, "<html>"),
        ]);
        let response = Request::post("https://a.example/")
            .json(&serde_json::json!({"a": 1}))
            .send()
            .unwrap();
        assert_eq!(response.json::<serde_json::Value>().unwrap()["n"][1], 2);
        assert_eq!(sent.borrow()[0].body, br#"{"a":1}"#);
        assert_eq!(
            sent.borrow()[0].header("Content-Type"),
            Some("application/json")
        );
        let error = get("https://a.example/").unwrap().json::<u8>().unwrap_err();
        assert!(
            error.to_string().ends_with("it begins with: <html>"),
            "{error}"
        );
    }

    #[test]
    fn a_refusal_reaches_the_model_as_one() {
        let denied = Error::Denied {
            attempted: "GET https://a.example/".into(),
        };
        assert!(matches!(
            crate::ToolError::from(denied),
            crate::ToolError::Denied(message) if message.contains("GET https://a.example/")
        ));
        let timeout = Error::Timeout {
            attempted: "GET https://a.example/".into(),
            after: Duration::from_secs(5),
        };
        assert_eq!(
            crate::ToolError::from(timeout),
            crate::ToolError::new("`GET https://a.example/` gave no answer within 5s")
        );
    }

    #[test]
    fn without_a_component_or_a_fake_there_is_no_network() {
        let error = get("https://a.example/").unwrap_err();
        assert!(matches!(error, Error::OutsideComponent { .. }));
    }
}
