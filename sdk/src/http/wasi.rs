//! One exchange over `wasi:http`.

use std::time::Instant;

use wasip2::{
    clocks::monotonic_clock,
    http::{
        outgoing_handler,
        types::{
            ErrorCode, Fields, IncomingResponse, Method, OutgoingBody, OutgoingRequest,
            RequestOptions, Scheme, http_error_code,
        },
    },
    io::{
        poll::{Pollable, poll},
        streams::StreamError,
    },
};

use super::{Error, Limits, Response, Result, Sent, url::Url};

/// How much is asked for in one read.
const READ_BYTES: u64 = 64 << 10;

pub(super) fn exchange(sent: &Sent, url: &Url, limits: &Limits) -> Result<Response> {
    let exchange = Exchange { sent, limits };
    let response = exchange.start(url)?;
    let status = response.status();
    let headers = response
        .headers()
        .entries()
        .into_iter()
        .map(|(name, value)| (name, String::from_utf8_lossy(&value).into_owned()))
        .collect();
    Ok(Response {
        status,
        headers,
        url: String::new(),
        body: exchange.read(&response)?,
    })
}

struct Exchange<'a> {
    sent: &'a Sent,
    limits: &'a Limits,
}

impl Exchange<'_> {
    fn start(&self, url: &Url) -> Result<IncomingResponse> {
        let request = self.request(url)?;
        let body = match self.sent.body.is_empty() {
            true => None,
            false => Some(request.body().map_err(|()| self.protocol("no body"))?),
        };
        let options = RequestOptions::new();
        let left = self.left()?;
        // A host that knows no such limit says no; the deadline here holds all the same.
        let _ = options.set_connect_timeout(Some(left));
        let _ = options.set_first_byte_timeout(Some(left));
        let _ = options.set_between_bytes_timeout(Some(left));
        let future =
            outgoing_handler::handle(request, Some(options)).map_err(|code| self.error(code))?;
        if let Some(body) = body {
            self.write(body)?;
        }
        self.wait(&future.subscribe())?;
        match future.get() {
            Some(Ok(Ok(response))) => Ok(response),
            Some(Ok(Err(code))) => Err(self.error(code)),
            Some(Err(())) | None => Err(self.protocol("no response")),
        }
    }

    fn request(&self, url: &Url) -> Result<OutgoingRequest> {
        let mut headers: Vec<(String, Vec<u8>)> = self
            .sent
            .headers
            .iter()
            .map(|(name, value)| (name.clone(), value.clone().into_bytes()))
            .collect();
        if self.sent.header("user-agent").is_none() {
            let agent = concat!("agentloop-sdk/", env!("CARGO_PKG_VERSION"));
            headers.push(("user-agent".into(), agent.into()));
        }
        if !self.sent.body.is_empty() && self.sent.header("content-length").is_none() {
            let length = self.sent.body.len().to_string();
            headers.push(("content-length".into(), length.into_bytes()));
        }
        let fault = |why: &str| Error::InvalidRequest { why: why.into() };
        let headers = Fields::from_list(&headers)
            .map_err(|_| fault("the host takes no such header from a tool"))?;
        let request = OutgoingRequest::new(headers);
        request
            .set_method(&method(&self.sent.method))
            .map_err(|()| fault("the method is no word of capital letters"))?;
        let scheme = if url.https {
            Scheme::Https
        } else {
            Scheme::Http
        };
        let accepted = request
            .set_scheme(Some(&scheme))
            .and_then(|()| request.set_authority(Some(&url.authority)))
            .and_then(|()| request.set_path_with_query(Some(&url.path_and_query)));
        match accepted {
            Ok(()) => Ok(request),
            Err(()) => Err(Error::InvalidUrl {
                url: self.sent.url.clone(),
                why: "the host can't read it",
            }),
        }
    }

    /// Sends the body as far as anybody takes it. Where the host refused the request, or the server answered early, the
    /// stream ends; the reason comes with the response.
    fn write(&self, body: OutgoingBody) -> Result<()> {
        let Ok(stream) = body.write() else {
            return Err(self.protocol("no stream"));
        };
        let mut rest = self.sent.body.as_slice();
        while !rest.is_empty() {
            let allowed = match stream.check_write() {
                Ok(0) => {
                    self.wait(&stream.subscribe())?;
                    continue;
                }
                Ok(allowed) => usize::try_from(allowed).unwrap_or(usize::MAX),
                Err(_) => return Ok(()),
            };
            let (now, later) = rest.split_at(allowed.min(rest.len()));
            if stream.write(now).is_err() {
                return Ok(());
            }
            rest = later;
        }
        if stream.flush().is_ok() {
            self.wait(&stream.subscribe())?;
        }
        drop(stream);
        let _ = OutgoingBody::finish(body, None);
        Ok(())
    }

    fn read(&self, response: &IncomingResponse) -> Result<Vec<u8>> {
        let limit = self.limits.max_body_bytes;
        let body = response.consume().map_err(|()| self.protocol("no body"))?;
        let stream = body.stream().map_err(|()| self.protocol("no stream"))?;
        let readable = stream.subscribe();
        let mut bytes = Vec::new();
        loop {
            self.wait(&readable)?;
            match stream.read(READ_BYTES) {
                Ok(more) if bytes.len() + more.len() > limit => {
                    return Err(Error::TooLarge {
                        attempted: self.attempted(),
                        limit: Some(limit as u64),
                    });
                }
                Ok(more) => bytes.extend_from_slice(&more),
                Err(StreamError::Closed) => return Ok(bytes),
                Err(StreamError::LastOperationFailed(error)) => {
                    return Err(match http_error_code(&error) {
                        Some(code) => self.error(code),
                        None => self.unnamed(error.to_debug_string()),
                    });
                }
            }
        }
    }

    /// A fault inside a body comes without a code where the host's own clock ended it first.
    fn unnamed(&self, why: String) -> Error {
        if why.contains("timeout") {
            return self.timeout();
        }
        Error::Connection {
            attempted: self.attempted(),
            why,
        }
    }

    /// Until it is ready or time is up.
    fn wait(&self, pollable: &Pollable) -> Result<()> {
        if pollable.ready() {
            return Ok(());
        }
        let timer = monotonic_clock::subscribe_duration(self.left()?);
        poll(&[pollable, &timer]);
        if pollable.ready() {
            return Ok(());
        }
        Err(self.timeout())
    }

    /// Nanoseconds that are left.
    fn left(&self) -> Result<u64> {
        let left = self
            .limits
            .deadline
            .saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(self.timeout());
        }
        Ok(u64::try_from(left.as_nanos()).unwrap_or(u64::MAX))
    }

    fn attempted(&self) -> String {
        format!("{} {}", self.sent.method, self.sent.url)
    }

    fn timeout(&self) -> Error {
        Error::Timeout {
            attempted: self.attempted(),
            after: self.limits.timeout,
        }
    }

    fn protocol(&self, why: &str) -> Error {
        Error::Protocol {
            attempted: self.attempted(),
            why: why.into(),
        }
    }

    fn error(&self, code: ErrorCode) -> Error {
        let attempted = self.attempted();
        let connection = |why: &str| Error::Connection {
            attempted: self.attempted(),
            why: why.into(),
        };
        match code {
            ErrorCode::HttpRequestDenied => Error::Denied { attempted },
            ErrorCode::DestinationIpProhibited => Error::AddressDenied { attempted },
            ErrorCode::DnsTimeout
            | ErrorCode::ConnectionTimeout
            | ErrorCode::ConnectionReadTimeout
            | ErrorCode::ConnectionWriteTimeout
            | ErrorCode::HttpResponseTimeout => self.timeout(),
            ErrorCode::DnsError(_) | ErrorCode::DestinationNotFound => {
                connection("the host's name is not known")
            }
            ErrorCode::DestinationUnavailable => connection("the server is not available"),
            ErrorCode::DestinationIpUnroutable => connection("no way leads to the server"),
            ErrorCode::ConnectionRefused => connection("the server refuses connections"),
            ErrorCode::ConnectionTerminated | ErrorCode::HttpResponseIncomplete => {
                connection("it was closed before the end of the answer")
            }
            ErrorCode::ConnectionLimitReached => connection("the call has made as many requests as it may, or too many at once"),
            ErrorCode::TlsProtocolError => Error::Certificate {
                attempted,
                why: "TLS failed".into(),
            },
            ErrorCode::TlsCertificateError => Error::Certificate {
                attempted,
                why: "the server's certificate is not trusted, or is not valid for this name and time"
                    .into(),
            },
            ErrorCode::TlsAlertReceived(alert) => Error::Certificate {
                attempted,
                why: match alert.alert_message {
                    Some(message) => format!("the server answered `{message}`"),
                    None => "the server broke off".into(),
                },
            },
            ErrorCode::HttpRequestBodySize(limit) | ErrorCode::HttpResponseBodySize(limit) => {
                Error::TooLarge { attempted, limit }
            }
            ErrorCode::HttpResponseHeaderSectionSize(Some(limit)) => {
                self.protocol(&format!("its headers are larger than {limit} bytes"))
            }
            ErrorCode::HttpRequestHeaderSectionSize(Some(limit)) => Error::InvalidRequest {
                why: format!("the request's headers are larger than {limit} bytes"),
            },
            ErrorCode::HttpProtocolError => self.protocol("it is not HTTP"),
            ErrorCode::InternalError(Some(why)) => Error::Protocol { attempted, why },
            other => Error::Protocol {
                attempted,
                why: format!("{other:?}").replace("ErrorCode::", ""),
            },
        }
    }
}

fn method(name: &str) -> Method {
    match name {
        "GET" => Method::Get,
        "HEAD" => Method::Head,
        "POST" => Method::Post,
        "PUT" => Method::Put,
        "DELETE" => Method::Delete,
        "CONNECT" => Method::Connect,
        "OPTIONS" => Method::Options,
        "TRACE" => Method::Trace,
        "PATCH" => Method::Patch,
        other => Method::Other(other.into()),
    }
}
