//! Web servers on the loopback interface that behave, and some that do not. HTTP/1.1 by hand: what a server
//! may get wrong is exactly what a library would not let us send.
//!
//! Depends on nothing of the host's, since the host's unit tests include this file as well.

use std::{
    collections::VecDeque,
    net::SocketAddr,
    path::Path,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _},
    net::TcpListener,
    sync::watch,
    task::JoinHandle,
};
use tokio_rustls::{
    TlsAcceptor,
    rustls::{self, pki_types::PrivateKeyDer},
};

/// Largest request that a test sends.
const MAX_REQUEST_BYTES: usize = 32 << 20;

/// What a server was asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Received {
    pub method: String,
    /// As it stood in the first line.
    pub target: String,
    /// Names in lower case.
    pub headers: Vec<(String, String)>,
    /// Without the framing of chunks.
    pub body: Vec<u8>,
}

impl Received {
    pub fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(n, _)| n == name);
        found.map(|(_, value)| value.as_str())
    }
}

/// What a server does once it has read a request. Without [`Step::Stall`] at its end it closes the connection.
#[derive(Debug, Clone)]
pub enum Step {
    Send(Vec<u8>),
    Wait(Duration),
    /// Sends the same bytes until the client is gone.
    Endless(Vec<u8>),
    /// Sends the same bytes again and again, with a pause before each, until the client is gone.
    Drip(Vec<u8>, Duration),
    /// Does nothing until the client is gone.
    Stall,
}

/// An answer, as steps.
#[derive(Debug, Clone)]
pub struct Reply(pub VecDeque<Step>);

impl Reply {
    pub fn steps(steps: impl IntoIterator<Item = Step>) -> Self {
        Self(steps.into_iter().collect())
    }

    /// A whole response with a length.
    pub fn whole(status: u16, headers: &[(&str, &str)], body: impl AsRef<[u8]>) -> Self {
        let body = body.as_ref();
        let length = body.len().to_string();
        let mut head = headers.to_vec();
        head.push(("content-length", &length));
        let mut bytes = response_head(status, &head);
        bytes.extend_from_slice(body);
        Self::steps([Step::Send(bytes)])
    }

    /// 200 with a text.
    pub fn text(body: &str) -> Self {
        Self::whole(200, &[("content-type", "text/plain")], body)
    }

    pub fn redirect(to: &str) -> Self {
        Self::whole(302, &[("location", to)], "")
    }

    /// Reads the request and never answers.
    pub fn silent() -> Self {
        Self::steps([Step::Stall])
    }

    /// Says that there is more to come and then says nothing.
    pub fn stalling(start: &str) -> Self {
        let mut bytes = response_head(200, &[("content-length", "1000000")]);
        bytes.extend_from_slice(start.as_bytes());
        Self::steps([Step::Send(bytes), Step::Stall])
    }

    /// Never silent for long, and never done.
    pub fn dripping(every: Duration) -> Self {
        let head = response_head(200, &[("content-length", "1000000")]);
        Self::steps([Step::Send(head), Step::Drip(b".".to_vec(), every)])
    }

    /// A body without a length that never ends.
    pub fn endless() -> Self {
        let head = response_head(200, &[("connection", "close")]);
        Self::steps([Step::Send(head), Step::Endless(vec![b'x'; 16 << 10])])
    }

    /// Announces more than it sends, and closes.
    pub fn truncated() -> Self {
        let mut bytes = response_head(200, &[("content-length", "1000")]);
        bytes.extend_from_slice(b"not all of it");
        Self::steps([Step::Send(bytes)])
    }

    /// 64 KiB of zeros in [`GZIP_BOMB`].
    pub fn gzip_bomb() -> Self {
        Self::whole(200, &[("content-encoding", "gzip")], GZIP_BOMB)
    }

    /// A head of about so many bytes.
    pub fn large_head(bytes: usize) -> Self {
        let value = "v".repeat(1000);
        let names: Vec<_> = (0..bytes / 1000).map(|n| format!("x-{n}")).collect();
        let headers: Vec<_> = names.iter().map(|n| (n.as_str(), value.as_str())).collect();
        Self::whole(200, &headers, "")
    }
}

/// 64 KiB of zeros, compressed.
pub const GZIP_BOMB: [u8; 96] = [
    31, 139, 8, 0, 0, 0, 0, 0, 2, 3, 237, 193, 1, 1, 0, 0, 0, 128, 144, 254, 175, 238, 8, 10, 0, 0,
    0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
    0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 106,
    235, 142, 151, 215, 0, 0, 1, 0,
];

/// The first lines of a response, up to and with the empty one.
pub fn response_head(status: u16, headers: &[(&str, &str)]) -> Vec<u8> {
    let mut head = format!("HTTP/1.1 {status} Said\r\n");
    for (name, value) in headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    head.push_str("\r\n");
    head.into_bytes()
}

/// A server on a free port of 127.0.0.1; ends when dropped.
pub struct Server {
    address: SocketAddr,
    scheme: &'static str,
    heard: Arc<Heard>,
    accepting: JoinHandle<()>,
}

struct Heard {
    connections: AtomicUsize,
    requests: Mutex<Vec<Received>>,
    /// How many connections have ended.
    ended: watch::Sender<usize>,
    /// How many are open now, and the most that ever were.
    open: Mutex<(usize, usize)>,
}

type Answering = dyn Fn(&Received) -> Reply + Send + Sync;

impl Server {
    pub async fn start(answer: impl Fn(&Received) -> Reply + Send + Sync + 'static) -> Self {
        Self::start_with(None, Arc::new(answer)).await
    }

    pub async fn start_tls(
        tls: Arc<rustls::ServerConfig>,
        answer: impl Fn(&Received) -> Reply + Send + Sync + 'static,
    ) -> Self {
        Self::start_with(Some(TlsAcceptor::from(tls)), Arc::new(answer)).await
    }

    async fn start_with(tls: Option<TlsAcceptor>, answer: Arc<Answering>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let scheme = if tls.is_some() { "https" } else { "http" };
        let heard = Arc::new(Heard {
            connections: AtomicUsize::new(0),
            requests: Mutex::default(),
            ended: watch::Sender::new(0),
            open: Mutex::default(),
        });
        let accepting = tokio::spawn(accept(listener, tls, answer, heard.clone()));
        Self {
            address,
            scheme,
            heard,
            accepting,
        }
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// `http://127.0.0.1:PORT`.
    pub fn origin(&self) -> String {
        format!("{}://{}", self.scheme, self.address)
    }

    /// The origin under another name for this machine.
    pub fn origin_as(&self, host: &str) -> String {
        format!("{}://{host}:{}", self.scheme, self.address.port())
    }

    pub fn url(&self, path: &str) -> String {
        self.origin() + path
    }

    /// Connections that arrived, whether or not a request came.
    pub fn connections(&self) -> usize {
        self.heard.connections.load(Ordering::SeqCst)
    }

    /// The most connections that were open at one time.
    pub fn most_at_once(&self) -> usize {
        self.heard.open.lock().unwrap().1
    }

    pub fn requests(&self) -> Vec<Received> {
        self.heard.requests.lock().unwrap().clone()
    }

    /// Waits until so many connections have ended, by either side.
    pub async fn ended(&self, count: usize) {
        let mut ended = self.heard.ended.subscribe();
        let waiting = ended.wait_for(|ended| *ended >= count);
        tokio::time::timeout(Duration::from_secs(30), waiting)
            .await
            .expect("connections did not end")
            .unwrap();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

async fn accept(
    listener: TcpListener,
    tls: Option<TlsAcceptor>,
    answer: Arc<Answering>,
    heard: Arc<Heard>,
) {
    // Dropped with this task, and takes the connections along.
    let mut connections = tokio::task::JoinSet::new();
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        heard.connections.fetch_add(1, Ordering::SeqCst);
        {
            let mut open = heard.open.lock().unwrap();
            open.0 += 1;
            open.1 = open.1.max(open.0);
        }
        let (tls, answer, heard) = (tls.clone(), answer.clone(), heard.clone());
        connections.spawn(async move {
            match tls {
                None => converse(stream, &*answer, &heard).await,
                Some(tls) => {
                    // A client that does not trust the certificate hangs up here.
                    if let Ok(stream) = tls.accept(stream).await {
                        converse(stream, &*answer, &heard).await;
                    }
                }
            }
            heard.open.lock().unwrap().0 -= 1;
            heard.ended.send_modify(|ended| *ended += 1);
        });
    }
}

/// One request, one answer.
async fn converse<S>(mut stream: S, answer: &Answering, heard: &Heard)
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let Some(request) = read_request(&mut stream).await else {
        return;
    };
    heard.requests.lock().unwrap().push(request.clone());
    for step in answer(&request).0 {
        let going = match step {
            Step::Send(bytes) => stream.write_all(&bytes).await.is_ok(),
            Step::Wait(time) => {
                tokio::time::sleep(time).await;
                true
            }
            Step::Endless(bytes) => {
                while stream.write_all(&bytes).await.is_ok() {}
                false
            }
            Step::Drip(bytes, every) => {
                loop {
                    tokio::time::sleep(every).await;
                    if stream.write_all(&bytes).await.is_err() {
                        break;
                    }
                }
                false
            }
            Step::Stall => {
                let mut rest = [0; 1024];
                while matches!(stream.read(&mut rest).await, Ok(1..)) {}
                false
            }
        };
        if !going {
            return;
        }
    }
    let _ = stream.shutdown().await;
}

async fn read_request<S: AsyncRead + Unpin>(stream: &mut S) -> Option<Received> {
    let mut bytes = Vec::new();
    let head_end = loop {
        if let Some(at) = find(&bytes, b"\r\n\r\n") {
            break at;
        }
        more(stream, &mut bytes).await?;
    };
    let head = String::from_utf8(bytes[..head_end].to_vec()).unwrap();
    let mut lines = head.split("\r\n");
    let mut first = lines.next()?.split(' ');
    let (method, target) = (first.next()?.to_owned(), first.next()?.to_owned());
    let headers: Vec<(String, String)> = lines
        .filter_map(|line| line.split_once(": "))
        .map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned()))
        .collect();
    let mut request = Received {
        method,
        target,
        headers,
        body: Vec::new(),
    };
    let mut rest = bytes.split_off(head_end + 4);
    if request.header("transfer-encoding") == Some("chunked") {
        loop {
            let line_end = loop {
                if let Some(at) = find(&rest, b"\r\n") {
                    break at;
                }
                more(stream, &mut rest).await?;
            };
            let size = std::str::from_utf8(&rest[..line_end]).unwrap();
            let size = usize::from_str_radix(size, 16).unwrap();
            while rest.len() < line_end + 2 + size + 2 {
                more(stream, &mut rest).await?;
            }
            request
                .body
                .extend_from_slice(&rest[line_end + 2..][..size]);
            rest.drain(..line_end + 2 + size + 2);
            if size == 0 {
                return Some(request);
            }
        }
    }
    let length = request.header("content-length");
    let length: usize = length.map_or(0, |length| length.parse().unwrap());
    while rest.len() < length {
        more(stream, &mut rest).await?;
    }
    request.body = rest;
    Some(request)
}

async fn more<S: AsyncRead + Unpin>(stream: &mut S, bytes: &mut Vec<u8>) -> Option<()> {
    assert!(bytes.len() < MAX_REQUEST_BYTES);
    match stream.read_buf(bytes).await {
        Ok(1..) => Some(()),
        Ok(0) | Err(_) => None,
    }
}

fn find(bytes: &[u8], what: &[u8]) -> Option<usize> {
    bytes.windows(what.len()).position(|window| window == what)
}

/// A certificate authority that nobody trusts of their own accord.
pub struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    pub fn generate() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        Self(CertifiedIssuer::self_signed(params, key).unwrap())
    }

    pub fn pem(&self) -> String {
        self.0.pem()
    }

    pub fn write_pem(&self, path: &Path) {
        std::fs::write(path, self.pem()).unwrap();
    }

    /// A server set-up with a fresh certificate for these names or addresses.
    pub fn server_config(&self, names: &[&str]) -> Arc<rustls::ServerConfig> {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(names).unwrap();
        let certificate = params.signed_by(&key, &self.0).unwrap();
        let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![certificate.der().clone()], key)
            .unwrap();
        Arc::new(config)
    }
}
