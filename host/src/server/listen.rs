//! Sockets: TLS, time-outs, how many connections, and the way to stop.

use std::{
    fs, io,
    net::SocketAddr,
    path::{Path, PathBuf},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpListener, TcpStream},
    sync::Semaphore,
    time::{Instant, Sleep},
};
use tokio_rustls::TlsAcceptor;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::Server;

/// How long peers may take, and how many there may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Patience {
    /// Connections at once; further ones wait in the kernel's queue.
    pub connections: usize,
    /// For a TLS handshake.
    pub handshake: Duration,
    /// For the head of a request, from the end of the one before; so also the longest idle time.
    pub head: Duration,
    /// For a peer that takes nothing of what it is sent.
    pub stalled: Duration,
    /// For what runs when the server is told to stop.
    pub last_words: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Self {
            connections: 1024,
            handshake: Duration::from_secs(10),
            head: Duration::from_secs(30),
            stalled: Duration::from_secs(60),
            last_words: Duration::from_secs(30),
        }
    }
}

/// Bytes of a request's head, and of what is read ahead.
const MAX_HEAD_BYTES: usize = 64 << 10;
/// Before the next attempt when the system has no more descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Why TLS can't be set up.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    #[error("can't read `{}`: {source}", path.display())]
    Unreadable { path: PathBuf, source: io::Error },
    #[error("`{}` holds no PEM {what}", path.display())]
    Pem { path: PathBuf, what: &'static str },
    #[error("certificate and key can't be used together: {0}")]
    Unusable(#[from] rustls::Error),
}

/// TLS with the certificate chain and the private key in these PEM files.
pub fn tls(certificates: &Path, key: &Path) -> Result<TlsAcceptor, TlsError> {
    let read = |path: &Path| {
        fs::read(path).map_err(|source| TlsError::Unreadable {
            path: path.to_owned(),
            source,
        })
    };
    let pem = |path: &Path, what| TlsError::Pem {
        path: path.to_owned(),
        what,
    };
    let chain = CertificateDer::pem_slice_iter(&read(certificates)?)
        .collect::<Result<Vec<_>, _>>()
        .map_err(|_| pem(certificates, "certificates"))?;
    if chain.is_empty() {
        return Err(pem(certificates, "certificates"));
    }
    let key = PrivateKeyDer::from_pem_slice(&read(key)?).map_err(|_| pem(key, "private key"))?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(chain, key)?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}

/// An open socket, with how its peers are spoken to.
pub struct Listener {
    tcp: TcpListener,
    tls: Option<TlsAcceptor>,
    patience: Patience,
}

impl Listener {
    pub async fn bind(
        address: SocketAddr,
        tls: Option<TlsAcceptor>,
        patience: Patience,
    ) -> io::Result<Self> {
        Ok(Self {
            tcp: TcpListener::bind(address).await?,
            tls,
            patience,
        })
    }

    pub fn address(&self) -> io::Result<SocketAddr> {
        self.tcp.local_addr()
    }
}

impl Server {
    /// Serves until `stop`; then nothing new is taken, what runs may end within
    /// [`last_words`](Patience::last_words), and the rest is ended.
    pub async fn serve(self, listener: Listener, stop: CancellationToken) {
        let Listener { tcp, tls, patience } = listener;
        let stopping = self.stopping();
        let runs = Arc::clone(&self.shared.runs);
        let serving = Arc::new(Serving {
            router: self.into_service(),
            tls,
            patience,
            stopping: stopping.clone(),
            at_once: CancellationToken::new(),
        });
        runs.count_what_is_left().await;
        let taking_up = tokio::spawn(Arc::clone(&runs).take_up_what_is_ready(stopping.clone()));
        let places = Arc::new(Semaphore::new(patience.connections.max(1)));
        let connections = TaskTracker::new();
        loop {
            let accepting = async {
                let place = Arc::clone(&places).acquire_owned().await.ok()?;
                Some((place, tcp.accept().await))
            };
            let accepted = tokio::select! {
                biased;
                () = stop.cancelled() => break,
                accepted = accepting => accepted,
            };
            match accepted {
                None => break,
                Some((place, Ok((stream, _)))) => {
                    let serving = Arc::clone(&serving);
                    connections.spawn(async move {
                        serving.connection(stream).await;
                        drop(place);
                    });
                }
                Some((_, Err(error))) => {
                    tracing::warn!(%error, "a connection could not be accepted");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
        drop(tcp);
        stopping.cancel();
        connections.close();
        // Nothing is begun any more by the time it is waited for what runs.
        if taking_up.await.is_err() {
            tracing::warn!("taking up runs hit a fault");
        }
        let connections_end = async {
            let all = connections.wait();
            if tokio::time::timeout(patience.last_words, all)
                .await
                .is_err()
            {
                serving.at_once.cancel();
                connections.wait().await;
            }
        };
        tokio::join!(connections_end, runs.finish(patience.last_words));
    }
}

struct Serving {
    router: Router,
    tls: Option<TlsAcceptor>,
    patience: Patience,
    /// Connections end once they have answered.
    stopping: CancellationToken,
    /// Connections end as they are.
    at_once: CancellationToken,
}

impl Serving {
    async fn connection(&self, stream: TcpStream) {
        // Small answers and events are not held back for larger packets.
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%error, "a connection was gone at once");
            return;
        }
        let stream = Impatient::new(stream, self.patience.stalled);
        let Some(tls) = &self.tls else {
            return self.speak(stream).await;
        };
        let handshake = tokio::time::timeout(self.patience.handshake, tls.accept(stream));
        let shaken = tokio::select! {
            biased;
            () = self.stopping.cancelled() => return,
            shaken = handshake => shaken,
        };
        match shaken {
            Ok(Ok(stream)) => self.speak(stream).await,
            Ok(Err(error)) => tracing::debug!(%error, "a TLS handshake failed"),
            Err(_) => tracing::debug!("a TLS handshake took too long"),
        }
    }

    async fn speak(&self, stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) {
        let service = TowerToHyperService::new(self.router.clone());
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(self.patience.head)
            .max_buf_size(MAX_HEAD_BYTES)
            .serve_connection(TokioIo::new(stream), service);
        tokio::pin!(connection);
        let ended = tokio::select! {
            biased;
            () = self.stopping.cancelled() => {
                connection.as_mut().graceful_shutdown();
                tokio::select! {
                    biased;
                    () = self.at_once.cancelled() => return,
                    ended = &mut connection => ended,
                }
            }
            ended = &mut connection => ended,
        };
        if let Err(error) = ended {
            tracing::debug!(%error, "a connection ended early");
        }
    }
}

/// A stream whose peer has to take what it is sent. A peer that stopped reading would hold its connection for
/// ever.
struct Impatient<S> {
    stream: S,
    patience: Duration,
    /// Runs while the peer takes nothing.
    stalled: Option<Pin<Box<Sleep>>>,
}

impl<S> Impatient<S> {
    fn new(stream: S, patience: Duration) -> Self {
        Self {
            stream,
            patience,
            stalled: None,
        }
    }

    /// Passes on what writing came to, and gives up on a peer that has taken nothing for too long.
    fn watched<T>(
        &mut self,
        cx: &mut Context<'_>,
        written: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.stalled = None;
            return written;
        }
        let until = Instant::now() + self.patience;
        let stalled = self
            .stalled
            .get_or_insert_with(|| Box::pin(tokio::time::sleep_until(until)));
        ready!(stalled.as_mut().poll(cx));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Impatient<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Impatient<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, buf);
        self.watched(cx, written)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, bufs);
        self.watched(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}
