//! Where a request wants to go, in the one spelling that grants are compared with.

use std::fmt;

use http::{Method, uri::PathAndQuery};
use wasmtime_wasi_http::Error;

use super::MAX_URI_BYTES;
use crate::{
    capability::{Capability, HostPattern, OriginPattern, Scheme},
    http::printable,
};

/// Longest method name. The registered ones have at most 17 letters.
const MAX_METHOD_BYTES: usize = 32;
/// Longest host name that the DNS has.
const MAX_HOST_BYTES: usize = 253;

/// A request's method and address. The host is what the URL standard makes of it, so that `0x7f000001`,
/// `127.1`, `EXAMPLE.org`, `example.org.` and international names have one spelling each.
#[derive(Debug, Clone)]
pub(super) struct Target {
    pub(super) method: Method,
    pub(super) scheme: Scheme,
    pub(super) host: url::Host<String>,
    /// As in [`url::Url::host_str`]: an IPv6 address in brackets.
    pub(super) host_text: String,
    pub(super) port: u16,
    /// A user name or password before the host, which is a way to hide it: such requests are refused (RFC 9110,
    /// 4.2.4), but only after the host has been judged, so that the refusal names it.
    pub(super) has_user_info: bool,
    pub(super) path: PathAndQuery,
}

impl Target {
    pub(super) fn of<B>(request: &http::Request<B>) -> Result<Self, Error> {
        let method = request.method().clone();
        // CONNECT would turn the connection into a tunnel.
        if method == Method::CONNECT || method.as_str().len() > MAX_METHOD_BYTES {
            return Err(Error::HttpRequestMethodInvalid);
        }
        let uri = request.uri();
        let scheme = match uri.scheme_str() {
            Some("http") => Scheme::Http,
            Some("https") => Scheme::Https,
            _ => return Err(Error::HttpProtocolError),
        };
        let authority = uri.authority().ok_or(Error::HttpRequestUriInvalid)?;
        let path = uri.path_and_query().map_or("/", PathAndQuery::as_str);
        if authority.as_str().len() + path.len() > MAX_URI_BYTES {
            return Err(Error::HttpRequestUriTooLong);
        }
        let path = match path.as_bytes().first() {
            Some(b'/') => PathAndQuery::try_from(path),
            None | Some(b'?') => PathAndQuery::try_from(format!("/{path}")),
            Some(_) => return Err(Error::HttpRequestUriInvalid),
        }
        .map_err(|_| Error::HttpRequestUriInvalid)?;

        let url = url::Url::parse(&format!("{}://{authority}", scheme.as_str()))
            .map_err(|_| Error::HttpRequestUriInvalid)?;
        if url.path() != "/" || url.query().is_some() || url.fragment().is_some() {
            return Err(Error::HttpRequestUriInvalid);
        }
        let host = match url.host().ok_or(Error::HttpRequestUriInvalid)? {
            // One trailing dot marks a name as complete, and names the same host.
            url::Host::Domain(name) => {
                let name = name.strip_suffix('.').unwrap_or(name);
                if name.is_empty() || name.ends_with('.') || name.len() > MAX_HOST_BYTES {
                    return Err(Error::HttpRequestUriInvalid);
                }
                url::Host::Domain(name.to_owned())
            }
            url::Host::Ipv4(address) => url::Host::Ipv4(address),
            url::Host::Ipv6(address) => url::Host::Ipv6(address),
        };
        Ok(Self {
            method,
            scheme,
            host_text: host.to_string(),
            host,
            port: url.port().unwrap_or(scheme.default_port()),
            has_user_info: !url.username().is_empty() || url.password().is_some(),
            path,
        })
    }

    /// The origin alone, as a grant would name it.
    pub(super) fn origin(&self) -> OriginPattern {
        OriginPattern::Origin {
            scheme: self.scheme,
            host: HostPattern::Exact(self.host_text.clone()),
            port: self.port,
        }
    }

    /// What would have to be granted for this request.
    pub(super) fn capability(&self) -> Capability {
        Capability::Http {
            origin: self.origin(),
            methods: vec![self.method.as_str().to_owned()],
        }
    }

    /// The value of the `host` header.
    pub(super) fn authority(&self) -> String {
        match self.port == self.scheme.default_port() {
            true => self.host_text.clone(),
            false => format!("{}:{}", self.host_text, self.port),
        }
    }
}

/// `GET https://host/path`: without user info and query, which may hold secrets; bounded.
impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = printable(self.path.path());
        write!(f, "{} {}{path}", self.method, self.origin())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(uri: &str) -> Result<Target, Error> {
        Target::of(&http::Request::get(uri).body(()).unwrap())
    }

    #[test]
    fn hosts_have_one_spelling() {
        let table = [
            ("http://0x7f000001/", "http://127.0.0.1"),
            ("http://127.1:8080/", "http://127.0.0.1:8080"),
            ("http://2130706433/", "http://127.0.0.1"),
            ("http://0177.0.0.1/", "http://127.0.0.1"),
            ("http://127.0.0.1./", "http://127.0.0.1"),
            ("http://allowed.example@127.0.0.1/", "http://127.0.0.1"),
            ("https://API.Example.ORG/", "https://api.example.org"),
            ("https://api.example.org./", "https://api.example.org"),
            ("https://api.example.org:443/", "https://api.example.org"),
            ("http://api.example.org:443/", "http://api.example.org:443"),
            ("http://[0:0:0:0:0:0:0:1]:81/", "http://[::1]:81"),
            ("http://[::ffff:127.0.0.1]/", "http://[::ffff:7f00:1]"),
            (
                "http://xn--bcher-kva.example/",
                "http://xn--bcher-kva.example",
            ),
        ];
        for (uri, origin) in table {
            assert_eq!(target(uri).unwrap().origin().to_string(), origin, "{uri}");
        }
    }

    #[test]
    fn what_is_no_plain_web_address_is_refused() {
        for uri in [
            "ftp://example.org/",
            "http://./",
            "http://example.org../",
            "http://1.2.3.4.5/",
            "http://256.0.0.1/",
        ] {
            assert!(target(uri).is_err(), "{uri}");
        }
        let long = format!("http://example.org/{}", "a".repeat(MAX_URI_BYTES));
        assert!(matches!(target(&long), Err(Error::HttpRequestUriTooLong)));
        let connect = http::Request::connect("http://example.org/")
            .body(())
            .unwrap();
        assert!(matches!(
            Target::of(&connect),
            Err(Error::HttpRequestMethodInvalid)
        ));
    }

    #[test]
    fn what_is_shown_has_no_secrets_and_a_bound() {
        let shown = target("https://user:pw@example.org:8443/a/b?token=t")
            .unwrap()
            .to_string();
        assert_eq!(shown, "GET https://example.org:8443/a/b");
        let long = format!("https://example.org/{}", "a".repeat(5000));
        assert!(target(&long).unwrap().to_string().len() < 500);
    }
}
