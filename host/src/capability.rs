//! What a tool may reach: requested by the component, granted by the operator, both needed.

mod secret;

use std::{fmt, path::PathBuf, sync::Arc, time::Duration};

use serde::{Deserialize, Serialize};

use crate::ids::SecretName;

pub use self::secret::{
    InvalidSecret, MAX_SECRET_BYTES, MIN_SECRET_BYTES, SECRET_PLACEHOLDER, SecretGrant,
    SecretPlace, SecretSource, SecretValue,
};

/// How far a folder is opened. `Write` includes reading.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Access {
    Read,
    Write,
}

/// A web origin, or a pattern of origins. Parsed from `https://api.example.org[:port]`,
/// `https://*.example.org` (sub-domains only, at any depth), or `*` (any origin).
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum OriginPattern {
    Any,
    Origin {
        scheme: Scheme,
        host: HostPattern,
        port: u16,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Scheme {
    Http,
    Https,
}

impl Scheme {
    pub fn as_str(self) -> &'static str {
        match self {
            Scheme::Http => "http",
            Scheme::Https => "https",
        }
    }

    pub fn default_port(self) -> u16 {
        match self {
            Scheme::Http => 80,
            Scheme::Https => 443,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum HostPattern {
    /// Lower case, IDNA-encoded; an IPv6 address in brackets.
    Exact(String),
    /// The part after `*.`.
    SubdomainsOf(String),
}

/// Why a text is not an origin pattern.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{text}` is not a web origin: {why}; write `https://api.example.org`, `https://*.example.org`, `http://127.0.0.1:8080` or `*`"
)]
pub struct InvalidOrigin {
    text: String,
    why: &'static str,
}

impl OriginPattern {
    pub fn parse(text: &str) -> Result<Self, InvalidOrigin> {
        let no = |why| InvalidOrigin {
            text: text.chars().take(200).collect(),
            why,
        };
        if text == "*" {
            return Ok(Self::Any);
        }
        let (wild, plain) = match text.split_once("://*.") {
            Some((scheme, rest)) => (true, format!("{scheme}://{rest}")),
            None => (false, text.to_owned()),
        };
        if plain.contains('*') {
            return Err(no("`*` may only stand for whole sub-domains in front"));
        }
        let url = url::Url::parse(&plain).map_err(|_| no("it does not parse as a URL"))?;
        let scheme = match url.scheme() {
            "http" => Scheme::Http,
            "https" => Scheme::Https,
            _ => return Err(no("only http and https are known")),
        };
        if !url.username().is_empty() || url.password().is_some() {
            return Err(no("it carries a user name or password"));
        }
        if url.path() != "/"
            || url.query().is_some()
            || url.fragment().is_some()
            || plain.ends_with('/')
        {
            return Err(no("it has more than scheme, host and port"));
        }
        let host = url
            .host_str()
            .ok_or_else(|| no("it has no host"))?
            .to_owned();
        let host = if wild {
            if !matches!(url.host(), Some(url::Host::Domain(_))) {
                return Err(no("an address has no sub-domains"));
            }
            HostPattern::SubdomainsOf(host)
        } else {
            HostPattern::Exact(host)
        };
        let port = url.port().unwrap_or(scheme.default_port());
        Ok(Self::Origin { scheme, host, port })
    }

    /// Whether a request to this origin is inside the pattern. `host` as in [`url::Url::host_str`].
    pub fn covers(&self, scheme: Scheme, host: &str, port: u16) -> bool {
        match self {
            Self::Any => true,
            Self::Origin {
                scheme: s,
                host: h,
                port: p,
            } => {
                *s == scheme
                    && *p == port
                    && match h {
                        HostPattern::Exact(exact) => exact == host,
                        HostPattern::SubdomainsOf(parent) => host
                            .strip_suffix(parent.as_str())
                            .is_some_and(|sub| sub.len() > 1 && sub.ends_with('.')),
                    }
            }
        }
    }

    /// Whether the pattern names this very host (no wildcard): only then may the host resolve to an address
    /// that is not global.
    pub fn names_exactly(&self, host: &str) -> bool {
        matches!(self, Self::Origin { host: HostPattern::Exact(exact), .. } if exact == host)
    }
}

impl fmt::Display for OriginPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Any => f.write_str("*"),
            Self::Origin { scheme, host, port } => {
                write!(f, "{}://", scheme.as_str())?;
                match host {
                    HostPattern::Exact(host) => f.write_str(host)?,
                    HostPattern::SubdomainsOf(parent) => write!(f, "*.{parent}")?,
                }
                if *port != scheme.default_port() {
                    write!(f, ":{port}")?;
                }
                Ok(())
            }
        }
    }
}

/// HTTP methods that change nothing at a well-behaved server; what an empty list of methods means.
pub const READING_METHODS: [&str; 2] = ["GET", "HEAD"];

/// What a component may ask for. Grants have their own types, since they carry the operator's side
/// (a path on this machine, private addresses).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Capability {
    /// `path` is a guest path such as `/notes`, or `*` for whatever is granted.
    Folder { path: String, access: Access },
    /// Empty `methods` means [`READING_METHODS`].
    Http {
        origin: OriginPattern,
        methods: Vec<String>,
    },
    /// `*` stands for whatever is granted. Only a component that can't declare requests has that.
    Environment { name: String },
    /// The host puts it into requests; the tool never sees it.
    Secret { name: SecretName },
}

impl fmt::Display for Capability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Folder { path, access } => {
                let verb = match access {
                    Access::Read => "read",
                    Access::Write => "write",
                };
                match path.as_str() {
                    "*" => write!(f, "{verb} granted folders"),
                    path => write!(f, "{verb} the folder {path}"),
                }
            }
            Self::Http { origin, methods } => {
                match methods.as_slice() {
                    [] => f.write_str("GET and HEAD")?,
                    methods => f.write_str(&methods.join(", "))?,
                }
                match origin {
                    OriginPattern::Any => f.write_str(" at granted web origins"),
                    origin => write!(f, " at {origin}"),
                }
            }
            Self::Environment { name } if name == "*" => {
                f.write_str("granted environment variables")
            }
            Self::Environment { name } => write!(f, "the environment variable {name}"),
            Self::Secret { name } => write!(f, "the secret {name} in its requests"),
        }
    }
}

/// A capability that a component asks for, with the reason that it gives to people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    pub capability: Capability,
    pub reason: String,
}

/// A folder of this machine, opened to a plugin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FolderGrant {
    /// Absolute and canonical, so that two grants can be compared.
    pub host_path: PathBuf,
    /// Absolute, `/`-separated, without a trailing slash.
    pub guest_path: String,
    pub access: Access,
}

/// A web origin, opened to a plugin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HttpGrant {
    pub origin: OriginPattern,
    /// Upper case; empty means [`READING_METHODS`].
    pub methods: Vec<String>,
}

impl HttpGrant {
    /// Whether this grant opens the origin to the method. `host` as in [`url::Url::host_str`].
    pub fn allows(&self, method: &str, scheme: Scheme, host: &str, port: u16) -> bool {
        self.origin.covers(scheme, host, port) && method_allowed(&self.methods, method)
    }
}

/// An environment variable, opened to a plugin. The value is read once, when settings are resolved.
#[derive(Clone, PartialEq, Eq)]
pub struct EnvironmentGrant {
    pub name: String,
    pub value: String,
}

impl fmt::Debug for EnvironmentGrant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EnvironmentGrant")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

/// What the operator opened to one plugin, or what of it one tool may use. Empty: nothing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Grants {
    pub folders: Vec<FolderGrant>,
    pub http: Vec<HttpGrant>,
    pub environment: Vec<EnvironmentGrant>,
    pub secrets: Vec<Arc<SecretGrant>>,
}

fn method_allowed(methods: &[String], method: &str) -> bool {
    if methods.is_empty() {
        READING_METHODS.contains(&method)
    } else {
        methods.iter().any(|m| m == method)
    }
}

impl Request {
    fn covers_folder(&self, grant: &FolderGrant) -> Option<Access> {
        match &self.capability {
            Capability::Folder { path, access } if path == "*" || *path == grant.guest_path => {
                Some((*access).min(grant.access))
            }
            Capability::Folder { .. }
            | Capability::Http { .. }
            | Capability::Environment { .. }
            | Capability::Secret { .. } => None,
        }
    }
}

/// What one tool may reach: where its requests and its plugin's grants meet.
#[derive(Debug, Clone, Default)]
pub struct Reach {
    /// Each with the lesser access of request and grant.
    pub folders: Vec<FolderGrant>,
    /// Grants under which at least one request falls; use [`Reach::allows_http`], which asks both sides.
    pub http: Vec<HttpGrant>,
    pub environment: Vec<EnvironmentGrant>,
    pub secrets: Vec<Arc<SecretGrant>>,
    http_requests: Vec<(OriginPattern, Vec<String>)>,
    outside: bool,
}

impl Reach {
    /// That of a program which runs outside of the sandbox: nobody here knows or bounds what it touches.
    pub fn outside() -> Self {
        Self {
            outside: true,
            ..Self::default()
        }
    }

    /// Whether it is [`Reach::outside`].
    pub fn is_outside(&self) -> bool {
        self.outside
    }

    /// Reaches nothing.
    pub const NOTHING: &'static Self = &Self {
        folders: Vec::new(),
        http: Vec::new(),
        environment: Vec::new(),
        secrets: Vec::new(),
        http_requests: Vec::new(),
        outside: false,
    };

    pub fn new(requests: &[Request], grants: &Grants) -> Self {
        let folders = grants
            .folders
            .iter()
            .filter_map(|grant| {
                let access = requests
                    .iter()
                    .filter_map(|r| r.covers_folder(grant))
                    .max()?;
                Some(FolderGrant {
                    access,
                    ..grant.clone()
                })
            })
            .collect();
        let http_requests: Vec<_> = requests
            .iter()
            .filter_map(|r| match &r.capability {
                Capability::Http { origin, methods } => Some((origin.clone(), methods.clone())),
                Capability::Folder { .. }
                | Capability::Environment { .. }
                | Capability::Secret { .. } => None,
            })
            .collect();
        let http = if http_requests.is_empty() {
            Vec::new()
        } else {
            grants.http.clone()
        };
        let environment = grants
            .environment
            .iter()
            .filter(|grant| {
                requests.iter().any(
                    |r| matches!(&r.capability, Capability::Environment { name } if name == "*" || *name == grant.name),
                )
            })
            .cloned()
            .collect();
        let secrets = grants
            .secrets
            .iter()
            .filter(|grant| {
                requests.iter().any(
                    |r| matches!(&r.capability, Capability::Secret { name } if *name == grant.name),
                )
            })
            .cloned()
            .collect();
        Self {
            folders,
            http,
            environment,
            secrets,
            http_requests,
            outside: false,
        }
    }

    /// Whether a request to this origin is both requested and granted; the grant that says so.
    pub fn allows_http(
        &self,
        method: &str,
        scheme: Scheme,
        host: &str,
        port: u16,
    ) -> Option<&HttpGrant> {
        if !self.requests_http(method, scheme, host, port) {
            return None;
        }
        self.http
            .iter()
            .find(|grant| grant.allows(method, scheme, host, port))
    }

    /// Whether the component asks for it, granted or not: without this no grant can help.
    pub fn requests_http(&self, method: &str, scheme: Scheme, host: &str, port: u16) -> bool {
        self.http_requests.iter().any(|(origin, methods)| {
            origin.covers(scheme, host, port) && method_allowed(methods, method)
        })
    }

    /// True when nothing that the tool reaches can be changed by it: no folder to write, no method beyond
    /// [`READING_METHODS`]. Follows from requests and grants, never from what the tool says of itself.
    pub fn only_reads(&self) -> bool {
        let reading = |methods: &[String]| {
            methods
                .iter()
                .all(|m| READING_METHODS.contains(&m.as_str()))
        };
        !self.outside
            && self.folders.iter().all(|f| f.access == Access::Read)
            && (self.http.iter().all(|h| reading(&h.methods))
                || self
                    .http_requests
                    .iter()
                    .all(|(_, methods)| reading(methods)))
    }

    /// True when what it answers may be somebody else's words: a file's, a server's.
    pub fn brings_in(&self) -> bool {
        self.outside || !self.folders.is_empty() || !self.http.is_empty()
    }

    /// True when a call that never counts leaves no trace: nothing that it reaches can be changed, and nothing
    /// goes out.
    pub fn is_pure(&self) -> bool {
        self.only_reads() && self.http.is_empty()
    }

    /// True when one of the two may write what the other may touch, so that their calls keep call order.
    pub fn conflicts(&self, other: &Reach) -> bool {
        if self.outside && other.outside {
            return true;
        }
        self.folders.iter().any(|a| {
            other.folders.iter().any(|b| {
                (a.access == Access::Write || b.access == Access::Write)
                    && (a.host_path.starts_with(&b.host_path)
                        || b.host_path.starts_with(&a.host_path))
            })
        })
    }
}

/// What one call may use up. There is no call without limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// From the start of the guest to its end; `None` waits for ever and has to be written out by the
    /// operator.
    pub timeout: Option<Duration>,
    /// All linear memories of the call together.
    pub memory_bytes: usize,
    /// What the answer may hold, all content blocks together, before the call fails.
    pub output_bytes: usize,
    /// Instructions, roughly; `None` does not count them.
    pub fuel: Option<u64>,
}

/// What the operator says about the timeout of a plugin's calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TimeoutSetting {
    /// Nothing: the tool's own wish up to [`MAX_OWN_TIMEOUT`], else the default of [`Limits`].
    #[default]
    Unset,
    /// Written out as `none`: only the tool's own wish counts, and without one a call may take for ever.
    Never,
    /// No longer than this, whatever the tool wishes.
    After(Duration),
}

/// The longest timeout that a tool can give itself; a longer one takes the operator.
pub const MAX_OWN_TIMEOUT: Duration = Duration::from_secs(600);

impl TimeoutSetting {
    /// The timeout of a tool with this own wish.
    pub fn resolve(self, own: Option<Duration>) -> Option<Duration> {
        match (self, own) {
            (Self::Unset, None) => Limits::default().timeout,
            (Self::Unset, Some(own)) => Some(own.min(MAX_OWN_TIMEOUT)),
            (Self::Never, own) => own,
            (Self::After(limit), own) => Some(own.map_or(limit, |own| own.min(limit))),
        }
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            timeout: Some(Duration::from_secs(30)),
            memory_bytes: 64 << 20,
            output_bytes: 16 << 20,
            fuel: None,
        }
    }
}

/// What the operator says about the limits of a plugin's calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OperatorLimits {
    pub timeout: TimeoutSetting,
    pub memory_bytes: usize,
    pub output_bytes: usize,
    pub fuel: Option<u64>,
}

impl Default for OperatorLimits {
    fn default() -> Self {
        let Limits {
            memory_bytes,
            output_bytes,
            fuel,
            timeout: _,
        } = Limits::default();
        Self {
            timeout: TimeoutSetting::Unset,
            memory_bytes,
            output_bytes,
            fuel,
        }
    }
}

impl OperatorLimits {
    /// The limits of a call of a tool with this own wish.
    pub fn for_tool(self, own_timeout: Option<Duration>) -> Limits {
        Limits {
            timeout: self.timeout.resolve(own_timeout),
            memory_bytes: self.memory_bytes,
            output_bytes: self.output_bytes,
            fuel: self.fuel,
        }
    }
}
