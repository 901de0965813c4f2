//! What every HTTP client of the host shares: which certificates are trusted, how long to wait, and what a
//! failed exchange means.

use std::{
    error::Error,
    fmt,
    fs::File,
    io::{self, Read as _},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use rustls::{
    CertificateError, ClientConfig, RootCertStore,
    crypto::CryptoProvider,
    pki_types::{CertificateDer, pem::PemObject as _},
};
use rustls_platform_verifier::Verifier;

/// How long a connection may take, look-up and TLS handshake included.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// How long a model endpoint may be silent: reasoning models can think for minutes before the first byte.
pub const MODEL_READ_TIMEOUT: Duration = Duration::from_secs(600);

/// Largest PEM file that is read: the bundles of operating systems have less than 1 MiB.
pub const MAX_CA_FILE_BYTES: u64 = 8 << 20;

/// What a person is told when a certificate is not trusted.
pub const UNTRUSTED_HINT: &str = "if the certificate comes from a private certificate authority (a company proxy, for example), add \
     its PEM file to `extra_ca_files`";

/// How the host connects; the operator's side.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientSettings {
    /// PEM files with certificate authorities that are trusted besides the system's.
    pub extra_ca_files: Vec<PathBuf>,
    pub connect_timeout: Duration,
    /// Longest silence between two reads, and before the first.
    pub read_timeout: Duration,
    /// Whether `HTTPS_PROXY`, `HTTP_PROXY`, `ALL_PROXY` and `NO_PROXY` count. For endpoints on this machine
    /// set it to false. Tools never use a proxy of the host's.
    pub environment_proxy: bool,
}

impl Default for ClientSettings {
    fn default() -> Self {
        Self {
            extra_ca_files: Vec::new(),
            connect_timeout: CONNECT_TIMEOUT,
            read_timeout: MODEL_READ_TIMEOUT,
            environment_proxy: true,
        }
    }
}

/// Why a client can't be set up.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    #[error("can't read `{}`, which `extra_ca_files` names: {source}", path.display())]
    Unreadable { path: PathBuf, source: io::Error },
    #[error(
        "`{}`, which `extra_ca_files` names, is not a PEM file of certificates: {why}",
        path.display()
    )]
    NotCertificates { path: PathBuf, why: String },
    #[error("can't set up TLS")]
    Tls(#[source] rustls::Error),
    #[error("can't set up the HTTP client")]
    Client(#[source] reqwest::Error),
}

/// A client for a model endpoint. Follows no redirect, since a redirect could carry the key away.
pub fn model_client(settings: &ClientSettings) -> Result<reqwest::Client, ClientError> {
    let roots = ExtraRoots::read(&settings.extra_ca_files)?;
    let tls = client_config(&roots, &[b"h2", b"http/1.1"])?;
    let builder = reqwest::Client::builder()
        .tls_backend_preconfigured(tls)
        .redirect(reqwest::redirect::Policy::none())
        .referer(false)
        .tcp_nodelay(true)
        .connect_timeout(settings.connect_timeout)
        .read_timeout(settings.read_timeout)
        .user_agent(concat!("agentloop-host/", env!("CARGO_PKG_VERSION")));
    let builder = match settings.environment_proxy {
        true => builder,
        false => builder.no_proxy(),
    };
    builder.build().map_err(ClientError::Client)
}

/// Certificate authorities out of PEM files, each checked to be usable.
#[derive(Debug, Clone, Default)]
pub struct ExtraRoots(Vec<CertificateDer<'static>>);

impl ExtraRoots {
    /// Blocks on the file system; settings are resolved once, at the start.
    pub fn read(files: &[PathBuf]) -> Result<Self, ClientError> {
        let mut roots = Vec::new();
        for path in files {
            roots.extend(read_ca_file(path)?);
        }
        Ok(Self(roots))
    }
}

/// TLS for clients: the system's trust store and `extra`, TLS 1.2 and 1.3, and the protocols to offer in order
/// of preference. A machine without a trust store is no error here: its connections fail as untrusted.
pub fn client_config(extra: &ExtraRoots, alpn: &[&[u8]]) -> Result<ClientConfig, ClientError> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let system = Verifier::new_with_extra_roots(extra.0.iter().cloned(), provider.clone());
    with_verifier(system, extra, provider, alpn)
}

fn with_verifier(
    system: Result<Verifier, rustls::Error>,
    extra: &ExtraRoots,
    provider: Arc<CryptoProvider>,
    alpn: &[&[u8]],
) -> Result<ClientConfig, ClientError> {
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(ClientError::Tls)?;
    let builder = match system {
        // `dangerous` is rustls's word for any verifier but its own; this one asks the operating system.
        Ok(verifier) => builder
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(verifier)),
        Err(error) => {
            tracing::warn!(
                %error,
                "the system's certificate authorities can't be used: only `extra_ca_files` are trusted"
            );
            let mut roots = RootCertStore::empty();
            roots.add_parsable_certificates(extra.0.iter().cloned());
            builder.with_root_certificates(roots)
        }
    };
    let mut config = builder.with_no_client_auth();
    config.alpn_protocols = alpn.iter().map(|protocol| protocol.to_vec()).collect();
    Ok(config)
}

fn read_ca_file(path: &Path) -> Result<Vec<CertificateDer<'static>>, ClientError> {
    let unreadable = |source| ClientError::Unreadable {
        path: path.to_owned(),
        source,
    };
    let not_certificates = |why: String| ClientError::NotCertificates {
        path: path.to_owned(),
        why,
    };
    let mut pem = Vec::new();
    File::open(path)
        .map_err(unreadable)?
        .take(MAX_CA_FILE_BYTES + 1)
        .read_to_end(&mut pem)
        .map_err(unreadable)?;
    if pem.len() as u64 > MAX_CA_FILE_BYTES {
        return Err(not_certificates(format!(
            "it has more than {MAX_CA_FILE_BYTES} bytes"
        )));
    }
    let certificates = CertificateDer::pem_slice_iter(&pem)
        .collect::<Result<Vec<_>, _>>()
        .map_err(|_| not_certificates("a section in it is cut off or damaged".into()))?;
    if certificates.is_empty() {
        return Err(not_certificates(
            "it has no `-----BEGIN CERTIFICATE-----`".into(),
        ));
    }
    let mut usable = RootCertStore::empty();
    for (index, certificate) in certificates.iter().enumerate() {
        usable.add(certificate.clone()).map_err(|error| {
            not_certificates(format!("certificate {} in it: {error}", index + 1))
        })?;
    }
    Ok(certificates)
}

/// Why an exchange came to nothing before there was an answer, or broke off in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TransportFault {
    /// No authority that is trusted here has signed the server's certificate.
    UntrustedCertificate,
    /// For another name, expired, revoked or malformed: more trust would not help.
    BadCertificate,
    /// The handshake failed for another reason.
    Tls,
    Timeout,
    Dns,
    Refused,
    /// No way to the address.
    Unreachable,
    /// The connection ended in the middle.
    Closed,
    Other,
}

impl TransportFault {
    /// Looks through an error's causes; made for [`reqwest::Error`], good for any that has `io`, rustls or
    /// hyper errors inside.
    pub fn of(error: &(dyn Error + 'static)) -> Self {
        // A DNS failure may have an `io` error of a telling kind inside, and stays a DNS failure.
        if error
            .downcast_ref::<reqwest::Error>()
            .is_some_and(reqwest::Error::is_dns)
        {
            return Self::Dns;
        }
        let mut told = Self::Other;
        for cause in causes(error) {
            match Self::of_cause(cause) {
                Some(Self::Closed) => told = Self::Closed,
                Some(fault) => return fault,
                None => {}
            }
        }
        if let Some(error) = error.downcast_ref::<reqwest::Error>()
            && error.is_timeout()
        {
            return Self::Timeout;
        }
        told
    }

    fn of_cause(cause: &(dyn Error + 'static)) -> Option<Self> {
        if let Some(tls) = cause.downcast_ref::<rustls::Error>() {
            return Some(match tls {
                rustls::Error::InvalidCertificate(CertificateError::UnknownIssuer) => {
                    Self::UntrustedCertificate
                }
                rustls::Error::InvalidCertificate(_) => Self::BadCertificate,
                _ => Self::Tls,
            });
        }
        if let Some(hyper) = cause.downcast_ref::<hyper::Error>() {
            if hyper.is_timeout() {
                return Some(Self::Timeout);
            }
            return (hyper.is_incomplete_message() || hyper.is_closed() || hyper.is_canceled())
                .then_some(Self::Closed);
        }
        match cause.downcast_ref::<io::Error>()?.kind() {
            io::ErrorKind::TimedOut => Some(Self::Timeout),
            io::ErrorKind::ConnectionRefused => Some(Self::Refused),
            io::ErrorKind::HostUnreachable
            | io::ErrorKind::NetworkUnreachable
            | io::ErrorKind::AddrNotAvailable => Some(Self::Unreachable),
            io::ErrorKind::ConnectionReset
            | io::ErrorKind::ConnectionAborted
            | io::ErrorKind::BrokenPipe
            | io::ErrorKind::NotConnected
            | io::ErrorKind::UnexpectedEof => Some(Self::Closed),
            _ => None,
        }
    }

    /// What a person can do about it, where we know.
    pub fn hint(self) -> Option<&'static str> {
        match self {
            Self::UntrustedCertificate => Some(UNTRUSTED_HINT),
            Self::BadCertificate
            | Self::Tls
            | Self::Timeout
            | Self::Dns
            | Self::Refused
            | Self::Unreachable
            | Self::Closed
            | Self::Other => None,
        }
    }
}

impl fmt::Display for TransportFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::UntrustedCertificate => "the server's certificate is not trusted",
            Self::BadCertificate => "the server's certificate is not valid",
            Self::Tls => "the TLS handshake failed",
            Self::Timeout => "the server did not answer in time",
            Self::Dns => "the host name could not be resolved",
            Self::Refused => "the connection was refused",
            Self::Unreachable => "the host can't be reached",
            Self::Closed => "the connection was closed",
            Self::Other => "the exchange failed",
        })
    }
}

/// An error's causes in one line, outermost first, without the URL (its query may hold a key), bounded and
/// free of control characters.
pub fn explain(error: &reqwest::Error) -> String {
    let inner = error.source();
    let mut line = String::new();
    for cause in inner.into_iter().flat_map(causes) {
        let text = cause.to_string();
        // Wrappers often repeat what they wrap.
        if text.is_empty() || line.ends_with(&text) {
            continue;
        }
        if !line.is_empty() {
            line.push_str(": ");
        }
        line.push_str(&text);
    }
    if line.is_empty() {
        line = TransportFault::of(error).to_string();
    }
    printable(&line)
}

/// The error and everything below it. `io::Error` hides the error that it wraps from `source`.
fn causes<'a>(
    error: &'a (dyn Error + 'static),
) -> impl Iterator<Item = &'a (dyn Error + 'static)> + 'a {
    /// Longer chains are loops or jokes.
    const MAX_DEPTH: usize = 32;
    std::iter::successors(Some(error), |error| {
        let error: &'a (dyn Error + 'static) = *error;
        match error
            .downcast_ref::<io::Error>()
            .and_then(io::Error::get_ref)
        {
            Some(wrapped) => Some(wrapped as &(dyn Error + 'static)),
            None => error.source(),
        }
    })
    .take(MAX_DEPTH)
}

/// Characters of a peer's text that get into a message of ours.
const MAX_PEER_TEXT_CHARS: usize = 400;

/// A peer's text with control and direction-changing characters escaped, cut to [`MAX_PEER_TEXT_CHARS`].
pub(crate) fn printable(text: &str) -> String {
    let mut out = String::new();
    for (index, c) in text.chars().enumerate() {
        if index == MAX_PEER_TEXT_CHARS {
            out.push('…');
            break;
        }
        match c {
            '\u{200e}'
            | '\u{200f}'
            | '\u{061c}'
            | '\u{202a}'..='\u{202e}'
            | '\u{2066}'..='\u{2069}' => out.extend(c.escape_unicode()),
            c if c.is_control() => out.extend(c.escape_default()),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(content: &[u8]) -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), content).unwrap();
        file
    }

    fn refused(path: &Path) -> String {
        let settings = ClientSettings {
            extra_ca_files: vec![path.to_owned()],
            ..ClientSettings::default()
        };
        model_client(&settings).unwrap_err().to_string()
    }

    #[test]
    fn a_missing_ca_file_is_named_with_its_setting() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("corp.pem");
        let said = refused(&path);
        assert!(said.contains(path.to_str().unwrap()), "{said}");
        assert!(said.contains("`extra_ca_files`"), "{said}");
    }

    #[test]
    fn a_ca_file_without_usable_certificates_is_named_with_its_setting() {
        let key = b"-----BEGIN PRIVATE KEY-----\nMIIB\n-----END PRIVATE KEY-----\n";
        let cut = b"-----BEGIN CERTIFICATE-----\nMIIB\n";
        let nonsense = b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
        let cases: [(&[u8], &str); 5] = [
            (b"", "no `-----BEGIN CERTIFICATE-----`"),
            (b"<html>", "no `-----BEGIN CERTIFICATE-----`"),
            (key, "no `-----BEGIN CERTIFICATE-----`"),
            (cut, "cut off"),
            (nonsense, "certificate 1"),
        ];
        for (content, why) in cases {
            let file = file(content);
            let said = refused(file.path());
            assert!(said.contains(file.path().to_str().unwrap()), "{said}");
            assert!(said.contains("`extra_ca_files`"), "{said}");
            assert!(said.contains(why), "{said} should contain {why}");
        }
    }

    #[test]
    fn an_oversized_ca_file_is_refused() {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(MAX_CA_FILE_BYTES + 1).unwrap();
        assert!(refused(file.path()).contains("more than"));
    }

    #[test]
    fn a_machine_without_a_trust_store_still_has_a_client() {
        let none = Err(rustls::Error::General("no CA certificates".into()));
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = with_verifier(none, &ExtraRoots::default(), provider, &[b"h2"]).unwrap();
        assert_eq!(config.alpn_protocols, [b"h2"]);
    }

    #[test]
    fn faults_are_found_below_wrappers() {
        use CertificateError::*;
        let tls = |error| io::Error::other(rustls::Error::InvalidCertificate(error));
        let io = |kind: io::ErrorKind| io::Error::from(kind);
        let table = [
            (tls(UnknownIssuer), TransportFault::UntrustedCertificate),
            (tls(NotValidForName), TransportFault::BadCertificate),
            (tls(Expired), TransportFault::BadCertificate),
            (
                io::Error::other(rustls::Error::DecryptError),
                TransportFault::Tls,
            ),
            (io(io::ErrorKind::TimedOut), TransportFault::Timeout),
            (
                io(io::ErrorKind::ConnectionRefused),
                TransportFault::Refused,
            ),
            (
                io(io::ErrorKind::HostUnreachable),
                TransportFault::Unreachable,
            ),
            (io(io::ErrorKind::ConnectionReset), TransportFault::Closed),
            (io(io::ErrorKind::PermissionDenied), TransportFault::Other),
        ];
        for (error, fault) in table {
            let wrapped = io::Error::other(error);
            assert_eq!(TransportFault::of(&wrapped), fault, "{wrapped:?}");
        }
    }

    #[test]
    fn only_an_untrusted_certificate_points_at_the_setting() {
        let hint = TransportFault::UntrustedCertificate.hint().unwrap();
        assert!(hint.contains("`extra_ca_files`"));
        assert_eq!(TransportFault::BadCertificate.hint(), None);
    }

    #[test]
    fn peers_texts_are_bounded_and_printable() {
        assert_eq!(
            printable("a\x1b[31m\u{202e}b\n"),
            "a\\u{1b}[31m\\u{202e}b\\n"
        );
        assert_eq!(
            printable(&"é".repeat(1000)).chars().count(),
            MAX_PEER_TEXT_CHARS + 1
        );
    }
}
