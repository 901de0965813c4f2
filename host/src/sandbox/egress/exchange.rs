//! One request over one connection of its own: opened, used and closed. No pool, no redirects, no proxy, no
//! decompression, no cookies; a connection is never shared between calls or plugins.

use std::{
    error::Error as _,
    future::Future,
    net::SocketAddr,
    pin::{Pin, pin},
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, header};
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt as _;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::OwnedSemaphorePermit,
    time::{Instant, Sleep, sleep, sleep_until},
};
use tokio_rustls::TlsConnector;
use wasmtime_wasi_http::{Error, WasiBody};

use super::{
    super::{scrub::Scrubbing, secrets::CallSecrets},
    Answer, EgressLimits,
    network::Network,
    target::Target,
};
use crate::http::TransportFault;

/// Addresses of one name that are tried before giving up.
const MAX_ADDRESSES: usize = 8;

/// A connection, encrypted or not.
pub(super) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// Why there is no connection.
pub(super) struct NoConnection {
    pub(super) error: Error,
    pub(super) fault: TransportFault,
}

impl NoConnection {
    pub(super) fn new(fault: TransportFault) -> Self {
        Self {
            error: wasi_error(fault),
            fault,
        }
    }
}

/// Connects to one of the addresses, which the caller has checked, and shakes hands when `tls` is there. The
/// caller bounds the time; each address gets its share of `patience`.
pub(super) async fn connect(
    network: &dyn Network,
    addresses: &[SocketAddr],
    target: &Target,
    tls: Option<&TlsConnector>,
    patience: Duration,
) -> Result<Box<dyn Stream>, NoConnection> {
    let addresses = &addresses[..addresses.len().min(MAX_ADDRESSES)];
    let start = Instant::now();
    let mut fault = TransportFault::Unreachable;
    for (index, address) in addresses.iter().enumerate() {
        let others = (addresses.len() - index) as u32;
        let share = patience.saturating_sub(start.elapsed()) / others;
        let stream = match tokio::time::timeout(share, network.connect(*address)).await {
            Ok(Ok(stream)) => stream,
            Ok(Err(error)) => {
                fault = TransportFault::of(&error);
                continue;
            }
            Err(_) => {
                fault = TransportFault::Timeout;
                continue;
            }
        };
        // A request is written in few pieces; waiting to fill packets would only delay it.
        let _ = stream.set_nodelay(true);
        let Some(tls) = tls else {
            return Ok(Box::new(stream));
        };
        let name = match &target.host {
            url::Host::Domain(name) => ServerName::try_from(name.clone()),
            url::Host::Ipv4(address) => Ok(ServerName::from(std::net::IpAddr::V4(*address))),
            url::Host::Ipv6(address) => Ok(ServerName::from(std::net::IpAddr::V6(*address))),
        }
        .map_err(|_| NoConnection::new(TransportFault::BadCertificate))?;
        return match tls.connect(name, stream).await {
            Ok(stream) => Ok(Box::new(stream)),
            Err(error) => Err(NoConnection::new(TransportFault::of(&error))),
        };
    }
    Err(NoConnection::new(fault))
}

/// Sends the request and waits for the answer's head. The second half of the answer drives the connection
/// and has to be polled while the body is read; dropping either closes the connection.
pub(super) async fn exchange(
    stream: Box<dyn Stream>,
    request: http::Request<WasiBody>,
    target: &Target,
    limits: &EgressLimits,
    end: Instant,
    slot: OwnedSemaphorePermit,
) -> Result<(http::Response<WasiBody>, Answer<()>), Error> {
    let broken = |error: hyper::Error| wasi_error_of(&error, limits);
    let (mut sender, connection) = http1::Builder::new()
        .max_header_size(limits.header_bytes)
        .max_buf_size(limits.header_bytes.max(8 << 10) * 2)
        .handshake::<_, Upload>(TokioIo::new(stream))
        .await
        .map_err(broken)?;
    let mut connection = Box::pin(connection);
    let progress = Progress::default();
    let request = outgoing(request, target, limits, progress.clone())?;

    let mut sending = pin!(sender.send_request(request));
    let mut connected = true;
    let response = tokio::select! {
        response = &mut sending => response,
        // Errors of the connection come out of `sending`.
        _ = &mut connection => {
            connected = false;
            sending.await
        }
        () = progress.silence(limits.first_byte) => return Err(Error::ConnectionReadTimeout),
    };
    let response = response.map_err(broken)?;
    if response.body().size_hint().lower() > limits.response_body_bytes {
        return Err(Error::HttpResponseBodySize(Some(
            limits.response_body_bytes,
        )));
    }
    let response = response.map(|body| {
        Download {
            open: Some((body, slot)),
            left: limits.response_body_bytes,
            limits: *limits,
            end: Box::pin(sleep_until(end)),
            gap: None,
        }
        .boxed_unsync()
    });
    let driver: Answer<()> = match connected {
        // How it ends is told by the body.
        true => Box::new(async move {
            let _ = connection.await;
            Ok(())
        }),
        false => Box::new(async { Ok(()) }),
    };
    Ok((response, driver))
}

/// The answer, without the values of secrets. What is packed can't be looked through, and is not passed on.
pub(super) fn without_secrets(
    response: http::Response<WasiBody>,
    secrets: &CallSecrets,
) -> Result<http::Response<WasiBody>, Error> {
    let (mut parts, body) = response.into_parts();
    let mut codings = parts.headers.get_all(header::CONTENT_ENCODING).iter();
    if let Some(coding) =
        codings.find(|coding| !coding.as_bytes().eq_ignore_ascii_case(b"identity"))
    {
        let coding = String::from_utf8_lossy(coding.as_bytes());
        let coding = crate::http::printable(&coding);
        return Err(Error::HttpResponseContentCoding(Some(coding.to_string())));
    }
    secrets.scrub_headers(&mut parts.headers);
    let body = Scrubbed {
        body,
        scrubbing: Scrubbing::new(secrets.scrubber().clone()),
        secrets: secrets.clone(),
        trailers: None,
        ended: false,
    };
    Ok(http::Response::from_parts(parts, body.boxed_unsync()))
}

/// A response's body without the values of secrets. Holds back what may be the beginning of one.
struct Scrubbed {
    body: WasiBody,
    scrubbing: Scrubbing,
    secrets: CallSecrets,
    trailers: Option<Frame<Bytes>>,
    ended: bool,
}

impl Body for Scrubbed {
    type Data = Bytes;
    type Error = Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Error>>> {
        while !self.ended {
            let frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
            let told = match frame {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => self.scrubbing.push(&data),
                    Err(mut frame) => {
                        if let Some(trailers) = frame.trailers_mut() {
                            self.secrets.scrub_headers(trailers);
                        }
                        self.trailers = Some(frame);
                        self.ended = true;
                        self.scrubbing.end()
                    }
                },
                Some(Err(error)) => {
                    self.ended = true;
                    return Poll::Ready(Some(Err(error)));
                }
                None => {
                    self.ended = true;
                    self.scrubbing.end()
                }
            };
            if !told.is_empty() {
                return Poll::Ready(Some(Ok(Frame::data(told))));
            }
        }
        Poll::Ready(self.trailers.take().map(Ok))
    }

    fn is_end_stream(&self) -> bool {
        let is_over = self.ended || self.body.is_end_stream();
        is_over && self.scrubbing.is_empty() && self.trailers.is_none()
    }
}

/// The request as it goes out: only the path in its first line, and the headers that are the guest's to set.
fn outgoing(
    request: http::Request<WasiBody>,
    target: &Target,
    limits: &EgressLimits,
    progress: Progress,
) -> Result<http::Request<Upload>, Error> {
    let (mut parts, body) = request.into_parts();
    let host =
        HeaderValue::try_from(target.authority()).map_err(|_| Error::HttpRequestUriInvalid)?;
    drop_connection_headers(&mut parts.headers);
    parts.headers.insert(header::HOST, host);
    parts
        .headers
        .insert(header::CONNECTION, HeaderValue::from_static("close"));
    parts
        .headers
        .entry(header::USER_AGENT)
        .or_insert(HeaderValue::from_static(concat!(
            "agentloop-host/",
            env!("CARGO_PKG_VERSION")
        )));
    parts.uri = http::Uri::from(target.path.clone());
    parts.version = http::Version::HTTP_11;
    let body = Upload {
        body,
        left: limits.request_body_bytes,
        limit: limits.request_body_bytes,
        progress,
    };
    Ok(http::Request::from_parts(parts, body))
}

/// Headers that belong to a connection and not to a message (RFC 9110, 7.6.1), and `host`, which follows from
/// the address that was checked.
fn drop_connection_headers(headers: &mut HeaderMap) {
    const DROPPED: [&str; 10] = [
        "host",
        "connection",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    ];
    let named: Vec<String> = headers
        .get_all(header::CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .map(|name| name.trim().to_ascii_lowercase())
        .collect();
    for name in named.iter().map(String::as_str).chain(DROPPED) {
        headers.remove(name);
    }
    headers.remove("http2-settings");
}

/// When a request last moved on, so that a long upload does not count as a server's silence.
#[derive(Clone)]
struct Progress(Arc<Mutex<Instant>>);

impl Default for Progress {
    fn default() -> Self {
        Self(Arc::new(Mutex::new(Instant::now())))
    }
}

impl Progress {
    fn mark(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }

    /// Ends once nothing has moved for so long.
    async fn silence(&self, patience: Duration) {
        loop {
            let last = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
            let until = last + patience;
            if until <= Instant::now() {
                return;
            }
            sleep_until(until).await;
        }
    }
}

/// A request's body on its way out, counted.
struct Upload {
    body: WasiBody,
    left: u64,
    limit: u64,
    progress: Progress,
}

impl Body for Upload {
    type Data = Bytes;
    type Error = Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Error>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
        self.progress.mark();
        match frame {
            Some(Ok(frame)) => match frame.into_data() {
                Ok(data) => match self.left.checked_sub(data.len() as u64) {
                    Some(left) => {
                        self.left = left;
                        Poll::Ready(Some(Ok(Frame::data(data))))
                    }
                    None => Poll::Ready(Some(Err(Error::HttpRequestBodySize(Some(self.limit))))),
                },
                // Trailers of requests are not sent.
                Err(_) => Poll::Ready(None),
            },
            ended => Poll::Ready(ended),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// A response's body on its way in: counted, and given up when it stalls. Holds its place among the requests
/// at once until it ends.
struct Download {
    open: Option<(hyper::body::Incoming, OwnedSemaphorePermit)>,
    left: u64,
    limits: EgressLimits,
    end: Pin<Box<Sleep>>,
    /// Runs only while a reader waits: a guest that is busy with other things is not the server's fault.
    gap: Option<Pin<Box<Sleep>>>,
}

impl Download {
    fn poll_open(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Error>>> {
        let Some((body, _)) = &mut self.open else {
            return Poll::Ready(None);
        };
        if self.end.as_mut().poll(cx).is_ready() {
            return Poll::Ready(Some(Err(Error::HttpResponseTimeout)));
        }
        let frame = match Pin::new(body).poll_frame(cx) {
            Poll::Ready(frame) => frame,
            Poll::Pending => {
                let gap = self
                    .gap
                    .get_or_insert_with(|| Box::pin(sleep(self.limits.gap)));
                ready!(gap.as_mut().poll(cx));
                return Poll::Ready(Some(Err(Error::ConnectionReadTimeout)));
            }
        };
        self.gap = None;
        Poll::Ready(match frame {
            None => None,
            Some(Err(error)) => Some(Err(match wasi_error_of(&error, &self.limits) {
                Error::ConnectionTerminated => Error::HttpResponseIncomplete,
                error => error,
            })),
            Some(Ok(frame)) => {
                let size = frame.data_ref().map_or(0, Bytes::len) as u64;
                match self.left.checked_sub(size) {
                    Some(left) => {
                        self.left = left;
                        Some(Ok(frame))
                    }
                    None => Some(Err(Error::HttpResponseBodySize(Some(
                        self.limits.response_body_bytes,
                    )))),
                }
            }
        })
    }
}

impl Body for Download {
    type Data = Bytes;
    type Error = Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Error>>> {
        let frame = ready!(self.poll_open(cx));
        if !matches!(frame, Some(Ok(_))) {
            self.open = None;
        }
        Poll::Ready(frame)
    }

    fn size_hint(&self) -> SizeHint {
        self.open
            .as_ref()
            .map_or(SizeHint::with_exact(0), |(body, _)| body.size_hint())
    }

    fn is_end_stream(&self) -> bool {
        self.open
            .as_ref()
            .is_none_or(|(body, _)| body.is_end_stream())
    }
}

/// The word that a guest knows for a fault.
fn wasi_error(fault: TransportFault) -> Error {
    match fault {
        TransportFault::UntrustedCertificate | TransportFault::BadCertificate => {
            Error::TlsCertificateError
        }
        TransportFault::Tls => Error::TlsProtocolError,
        TransportFault::Timeout => Error::ConnectionTimeout,
        TransportFault::Dns => Error::DnsError {
            rcode: Some(fault.to_string()),
            info_code: None,
        },
        TransportFault::Refused => Error::ConnectionRefused,
        TransportFault::Unreachable => Error::DestinationUnavailable,
        TransportFault::Closed => Error::ConnectionTerminated,
        TransportFault::Other => Error::HttpProtocolError,
    }
}

fn wasi_error_of(error: &hyper::Error, limits: &EgressLimits) -> Error {
    // An error of the request's body comes back wrapped: ours or, for a guest that gave up, wasi-http's.
    let body = error.source().and_then(|cause| cause.downcast_ref());
    if let Some(Error::HttpRequestBodySize(limit)) = body {
        return Error::HttpRequestBodySize(*limit);
    }
    if error.is_parse_too_large() {
        let limit = u32::try_from(limits.header_bytes).ok();
        return Error::HttpResponseHeaderSectionSize(limit);
    }
    if error.is_parse() || error.is_user() {
        return Error::HttpProtocolError;
    }
    match TransportFault::of(error) {
        // The connection was there, so this is no failure to connect.
        TransportFault::Timeout => Error::ConnectionReadTimeout,
        fault => wasi_error(fault),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_long_upload_is_no_silence_of_the_servers() {
        let patience = Duration::from_secs(10);
        let progress = Progress::default();
        let frames = (0..5).map(|_| Ok(Frame::data(Bytes::from_static(b"piece"))));
        let body = http_body_util::StreamBody::new(futures_util::stream::iter(frames));
        let mut upload = Upload {
            body: WasiBody::new(body),
            left: 1000,
            limit: 1000,
            progress: progress.clone(),
        };
        let silence = tokio::spawn(async move { progress.silence(patience).await });
        while upload.frame().await.is_some() {
            sleep(patience - Duration::from_secs(1)).await;
            assert!(!silence.is_finished());
        }
        silence.await.unwrap();
    }
}
