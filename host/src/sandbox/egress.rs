//! The door through which guests reach web origins: who may ask for what, where it may lead, and how much of
//! it there may be.
//!
//! - A request leaves only if its method and origin are both requested by the component and granted by the
//!   operator. The guest sees redirects as they are and asks again, so that each hop is judged like a first
//!   request.
//! - Names are resolved here, every address is checked, and a checked address is the one connected to.
//! - Addresses that are not public are reachable only as themselves: as an address, or as `localhost`, in a
//!   grant that names it exactly. No name and no wildcard leads there, since the owner of a name decides where
//!   it points. `localhost` is never looked up: it means the loopback addresses (RFC 6761, 6.3).
//! - A secret is put into a request once all of this is settled, and taken out of what comes back before the guest
//!   sees it.
//! - `HTTP_PROXY` and its like mean nothing here: a proxy would do the resolving, unchecked.

mod address;
mod exchange;
mod network;
mod target;

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    path::PathBuf,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::{
    sync::{OnceCell, Semaphore},
    time::{Instant, timeout, timeout_at},
};
use tokio_rustls::TlsConnector;
use wasmtime_wasi_http::{Error, RequestOptions, WasiBody, WasiHttpHooks};

use self::{
    exchange::{NoConnection, Stream},
    network::{Network, SystemNetwork},
    target::Target,
};
use super::secrets::{CallSecrets, CommandValues, Missing};
use crate::{
    capability::{Capability, READING_METHODS, Reach, Scheme},
    http::{
        CONNECT_TIMEOUT, ClientError, ExtraRoots, TransportFault, UNTRUSTED_HINT, client_config,
    },
    ids::PluginName,
    tool::Refusal,
};

/// Requests that one call may make, refused ones among them.
pub(super) const MAX_REQUESTS: usize = 32;
/// Requests of one call that may be under way at once; further ones wait in line, on their own time.
pub(super) const MAX_REQUESTS_AT_ONCE: usize = 6;
pub(super) const MAX_REQUEST_BODY_BYTES: u64 = 10 << 20;
pub(super) const MAX_RESPONSE_BODY_BYTES: u64 = 10 << 20;
/// All headers of one request or response together; trailers of a response have the same limit.
pub(super) const MAX_HEADER_BYTES: usize = 32 << 10;
/// Authority, path and query together. RFC 9110 asks for 8,000 at least.
pub(super) const MAX_URI_BYTES: usize = 8 << 10;
/// From the end of sending to the first byte of the answer.
pub(super) const FIRST_BYTE_TIMEOUT: Duration = Duration::from_secs(15);
/// Longest silence inside of an answer.
pub(super) const GAP_TIMEOUT: Duration = Duration::from_secs(15);
/// From the request to the end of its answer, waiting in line included.
pub(super) const TOTAL_TIMEOUT: Duration = Duration::from_secs(30);
/// Refusals of one call that are told; a guest can produce one for each request.
const MAX_REFUSALS: usize = 8;

type Answer<T> = Box<dyn Future<Output = Result<T, Error>> + Send>;

/// How much one call may do. A guest's own time-outs count where they are shorter.
#[derive(Debug, Clone, Copy)]
struct EgressLimits {
    requests: usize,
    at_once: usize,
    request_body_bytes: u64,
    response_body_bytes: u64,
    header_bytes: usize,
    connect: Duration,
    first_byte: Duration,
    gap: Duration,
    total: Duration,
}

impl Default for EgressLimits {
    fn default() -> Self {
        Self {
            requests: MAX_REQUESTS,
            at_once: MAX_REQUESTS_AT_ONCE,
            request_body_bytes: MAX_REQUEST_BODY_BYTES,
            response_body_bytes: MAX_RESPONSE_BODY_BYTES,
            header_bytes: MAX_HEADER_BYTES,
            connect: CONNECT_TIMEOUT,
            first_byte: FIRST_BYTE_TIMEOUT,
            gap: GAP_TIMEOUT,
            total: TOTAL_TIMEOUT,
        }
    }
}

/// What all calls of a sandbox share.
#[derive(Clone)]
pub(super) struct Egress(Arc<Shared>);

struct Shared {
    network: Box<dyn Network>,
    limits: EgressLimits,
    extra_roots: ExtraRoots,
    commands: CommandValues,
    /// Made with the first `https` request, since reading the system's trust store takes milliseconds.
    tls: OnceCell<TlsConnector>,
}

impl Egress {
    /// Reads and checks the PEM files.
    pub(super) fn new(extra_ca_files: &[PathBuf]) -> Result<Self, ClientError> {
        Self::over(
            Box::new(SystemNetwork),
            EgressLimits::default(),
            extra_ca_files,
        )
    }

    fn over(
        network: Box<dyn Network>,
        limits: EgressLimits,
        extra_ca_files: &[PathBuf],
    ) -> Result<Self, ClientError> {
        Ok(Self(Arc::new(Shared {
            network,
            limits,
            extra_roots: ExtraRoots::read(extra_ca_files)?,
            commands: CommandValues::default(),
            tls: OnceCell::new(),
        })))
    }

    /// The values of what a call may use; `None`: it may use none. Reading them is on nobody's clock.
    pub(super) async fn secrets(&self, reach: &Reach) -> Option<CallSecrets> {
        match &*reach.secrets {
            [] => None,
            granted => Some(CallSecrets::load(granted, &self.0.commands).await),
        }
    }

    /// The door of one call. Nothing of it outlives the guest's handles: dropping the guest's store closes its
    /// connections.
    pub(super) fn for_call(
        &self,
        reach: &Reach,
        plugin: &PluginName,
        secrets: Option<CallSecrets>,
        deadline: Option<std::time::Instant>,
    ) -> CallEgress {
        CallEgress(Arc::new(Call {
            shared: self.0.clone(),
            reach: reach.clone(),
            plugin: plugin.clone(),
            secrets,
            deadline: deadline.map(Instant::from_std),
            started: AtomicUsize::new(0),
            slots: Arc::new(Semaphore::new(self.0.limits.at_once)),
            log: Mutex::default(),
        }))
    }
}

impl Shared {
    async fn tls(&self) -> Result<&TlsConnector, Error> {
        self.tls
            .get_or_try_init(|| async {
                let roots = self.extra_roots.clone();
                let config =
                    tokio::task::spawn_blocking(move || client_config(&roots, &[b"http/1.1"]));
                match config.await {
                    Ok(Ok(config)) => Ok(TlsConnector::from(Arc::new(config))),
                    Ok(Err(error)) => {
                        tracing::error!(%error, "tools can't use https");
                        Err(Error::ConfigurationError)
                    }
                    // Only when the runtime shuts down.
                    Err(_) => Err(Error::ConfigurationError),
                }
            })
            .await
    }
}

/// What one call sends, and what of it was refused.
pub(super) struct CallEgress(Arc<Call>);

impl CallEgress {
    /// The requests that left, in order: `GET https://host/path`, without query and bounded; at most
    /// [`MAX_REQUESTS`].
    pub(super) fn sent(&self) -> Vec<String> {
        self.0.log().sent.clone()
    }

    /// What was reached for and not there; each capability once.
    pub(super) fn refusals(&self) -> Vec<Refusal> {
        self.0.log().refusals.clone()
    }

    /// What an operator can do about requests that failed for another reason than a missing grant; complete
    /// sentences, to go with the failure that the tool reports.
    pub(super) fn hints(&self) -> Vec<String> {
        self.0.log().hints.clone()
    }
}

impl WasiHttpHooks for CallEgress {
    fn send_request(
        &mut self,
        request: http::Request<WasiBody>,
        options: Option<RequestOptions>,
        _response_processed: Answer<()>,
    ) -> Answer<(http::Response<WasiBody>, Answer<()>)> {
        let call = self.0.clone();
        Box::new(async move { call.send(request, options.unwrap_or_default()).await })
    }
}

struct Call {
    shared: Arc<Shared>,
    reach: Reach,
    plugin: PluginName,
    secrets: Option<CallSecrets>,
    deadline: Option<Instant>,
    started: AtomicUsize,
    slots: Arc<Semaphore>,
    log: Mutex<Log>,
}

#[derive(Default)]
struct Log {
    sent: Vec<String>,
    refusals: Vec<Refusal>,
    hints: Vec<String>,
}

/// Why a request may not leave.
#[derive(Debug, Clone, Copy)]
enum Denial {
    NotRequested,
    NotGranted,
    /// Granted, but only by a pattern, and the address is not public.
    PrivateAddress,
    /// Granted, but the name leads to an address that is not public.
    PrivateBehindName,
}

impl Call {
    fn log(&self) -> MutexGuard<'_, Log> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn send(
        &self,
        mut request: http::Request<WasiBody>,
        options: RequestOptions,
    ) -> Result<(http::Response<WasiBody>, Answer<()>), Error> {
        if self.started.fetch_add(1, Ordering::Relaxed) >= self.shared.limits.requests {
            return Err(Error::ConnectionLimitReached);
        }
        let mut target = Target::of(&request)?;
        let literal = self.admit(&target)?;
        if target.has_user_info {
            return Err(Error::HttpRequestUriInvalid);
        }
        let limits = self.limits_for(options);
        check_size(&request, &limits)?;
        self.put_secrets(&mut request, &mut target, literal.as_deref())?;

        let end = Instant::now() + limits.total;
        let end = self.deadline.map_or(end, |deadline| end.min(deadline));
        let slot = timeout_at(end, self.slots.clone().acquire_owned())
            .await
            .map_err(|_| Error::ConnectionLimitReached)?
            .map_err(|_| Error::ConnectionLimitReached)?;
        let exchange = async {
            let stream = self.connect(&target, literal, &limits).await?;
            self.record_sent(&target);
            exchange::exchange(stream, request, &target, &limits, end, slot).await
        };
        let mut answer = match timeout_at(end, exchange).await {
            Ok(answer) => answer,
            Err(_) => Err(Error::HttpResponseTimeout),
        };
        if let Some(secrets) = &self.secrets {
            answer = answer.and_then(|(response, driver)| {
                Ok((exchange::without_secrets(response, secrets)?, driver))
            });
        }
        if let Err(error) = &answer {
            tracing::debug!(plugin = %self.plugin, request = %target, %error, "a tool's request failed");
        }
        answer
    }

    /// Whether the request may leave, as far as it can be said without looking a name up. `localhost` and
    /// addresses come back as what to connect to.
    fn admit(&self, target: &Target) -> Result<Option<Vec<SocketAddr>>, Error> {
        let (method, host, port) = (target.method.as_str(), &target.host_text, target.port);
        let granted = self
            .reach
            .allows_http(method, target.scheme, host, port)
            .is_some();
        if !granted {
            let requested = self.reach.requests_http(method, target.scheme, host, port);
            self.refuse(
                target,
                match requested {
                    true => Denial::NotGranted,
                    false => Denial::NotRequested,
                },
            );
            return Err(Error::HttpRequestDenied);
        }
        let addresses: Vec<IpAddr> = match &target.host {
            url::Host::Ipv4(address) => vec![(*address).into()],
            url::Host::Ipv6(address) => vec![(*address).into()],
            url::Host::Domain(name) if name == "localhost" => {
                vec![Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()]
            }
            url::Host::Domain(_) => return Ok(None),
        };
        let named = || {
            self.reach.http.iter().any(|grant| {
                grant.allows(method, target.scheme, host, port) && grant.origin.names_exactly(host)
            })
        };
        if !addresses.iter().all(|address| address::is_global(*address)) && !named() {
            self.refuse(target, Denial::PrivateAddress);
            return Err(Error::DestinationIpProhibited);
        }
        let with_port = |address| SocketAddr::new(address, port);
        Ok(Some(addresses.into_iter().map(with_port).collect()))
    }

    /// After all checks, since what is refused never sees a secret.
    fn put_secrets(
        &self,
        request: &mut http::Request<WasiBody>,
        target: &mut Target,
        literal: Option<&[SocketAddr]>,
    ) -> Result<(), Error> {
        let Some(secrets) = &self.secrets else {
            return Ok(());
        };
        let is_private =
            literal.is_some_and(|addresses| addresses.iter().all(|a| a.ip().is_loopback()));
        let origin = (target.scheme, &*target.host_text, target.port);
        let put = secrets.put_into(request.headers_mut(), &mut target.path, origin, is_private);
        match put {
            Ok(()) => Ok(()),
            Err(Missing { name, why }) => {
                self.record_refusal(Refusal {
                    attempted: target.to_string(),
                    missing: Capability::Secret { name: name.clone() },
                    requested: true,
                    remedy: format!("The secret `{name}` is granted and has no value: {why}."),
                });
                Err(Error::HttpRequestDenied)
            }
        }
    }

    async fn connect(
        &self,
        target: &Target,
        literal: Option<Vec<SocketAddr>>,
        limits: &EgressLimits,
    ) -> Result<Box<dyn Stream>, Error> {
        let connecting = async {
            let addresses = match literal {
                Some(addresses) => addresses,
                None => self.resolve(target).await?,
            };
            let tls = match target.scheme {
                Scheme::Http => None,
                Scheme::Https => Some(self.shared.tls().await?),
            };
            let network = &*self.shared.network;
            exchange::connect(network, &addresses, target, tls, limits.connect)
                .await
                .map_err(|failure| self.no_connection(target, failure))
        };
        match timeout(limits.connect, connecting).await {
            Ok(stream) => stream,
            Err(_) => Err(Error::ConnectionTimeout),
        }
    }

    /// The public addresses of a name.
    async fn resolve(&self, target: &Target) -> Result<Vec<SocketAddr>, Error> {
        let addresses = match self
            .shared
            .network
            .resolve(&target.host_text, target.port)
            .await
        {
            Ok(addresses) if !addresses.is_empty() => addresses,
            Ok(_) | Err(_) => return Err(NoConnection::new(TransportFault::Dns).error),
        };
        let public: Vec<SocketAddr> = addresses
            .iter()
            .copied()
            .filter(|address| address::is_global(address.ip()))
            .collect();
        if public.is_empty() {
            // Which address it is stays in the log: a tool must not map the inside of a network.
            tracing::warn!(
                plugin = %self.plugin, request = %target, ?addresses,
                "refused a name that leads to no public address"
            );
            self.refuse(target, Denial::PrivateBehindName);
            return Err(Error::DestinationIpProhibited);
        }
        Ok(public)
    }

    fn no_connection(&self, target: &Target, failure: NoConnection) -> Error {
        let NoConnection { error, fault } = failure;
        if fault == TransportFault::UntrustedCertificate {
            let origin = target.origin();
            tracing::warn!(plugin = %self.plugin, %origin, "{fault}; {UNTRUSTED_HINT}");
            let hint = format!("{fault} ({origin}); {UNTRUSTED_HINT}.");
            let mut log = self.log();
            if log.hints.len() < MAX_REFUSALS && !log.hints.contains(&hint) {
                log.hints.push(hint);
            }
        }
        error
    }

    fn record_sent(&self, target: &Target) {
        let mut log = self.log();
        if log.sent.len() < MAX_REQUESTS {
            log.sent.push(target.to_string());
        }
    }

    fn refuse(&self, target: &Target, denial: Denial) {
        let refusal = Refusal {
            attempted: target.to_string(),
            missing: target.capability(),
            requested: !matches!(denial, Denial::NotRequested),
            remedy: remedy(target, denial, &self.plugin),
        };
        tracing::info!(
            plugin = %self.plugin, attempted = refusal.attempted, ?denial,
            "refused a tool's request"
        );
        self.record_refusal(refusal);
    }

    fn record_refusal(&self, refusal: Refusal) {
        let mut log = self.log();
        let known = log.refusals.iter().any(|r| r.missing == refusal.missing);
        if log.refusals.len() < MAX_REFUSALS && !known {
            log.refusals.push(refusal);
        }
    }

    fn limits_for(&self, options: RequestOptions) -> EgressLimits {
        let shorter =
            |ours: Duration, guests: Option<Duration>| guests.map_or(ours, |g| g.min(ours));
        let limits = self.shared.limits;
        EgressLimits {
            connect: shorter(limits.connect, options.connect_timeout),
            first_byte: shorter(limits.first_byte, options.first_byte_timeout),
            gap: shorter(limits.gap, options.between_bytes_timeout),
            ..limits
        }
    }
}

/// What can be refused by its head alone.
fn check_size(request: &http::Request<WasiBody>, limits: &EgressLimits) -> Result<(), Error> {
    /// `: ` and the end of the line.
    const LINE_OVERHEAD: usize = 4;
    let headers = request.headers();
    let size: usize = headers
        .iter()
        .map(|(name, value)| name.as_str().len() + value.len() + LINE_OVERHEAD)
        .sum();
    if size > limits.header_bytes {
        let limit = u32::try_from(limits.header_bytes).ok();
        return Err(Error::HttpRequestHeaderSectionSize(limit));
    }
    let announced = headers
        .get(http::header::CONTENT_LENGTH)
        .and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
    if announced.is_some_and(|bytes| bytes > limits.request_body_bytes) {
        return Err(Error::HttpRequestBodySize(Some(limits.request_body_bytes)));
    }
    Ok(())
}

/// What the operator can do, with the lines to write.
fn remedy(target: &Target, denial: Denial, plugin: &PluginName) -> String {
    let (method, origin) = (&target.method, target.origin());
    let entry = match READING_METHODS.contains(&method.as_str()) {
        true => format!("\"{origin}\""),
        false => format!("{{ origin = \"{origin}\", methods = [\"{method}\"] }}"),
    };
    let host = &target.host_text;
    let lines = format!("in agentloop.toml:\n[grants.{plugin}]\nhttp = [{entry}]");
    match denial {
        Denial::NotRequested => format!(
            "Only the author of the tool can change this: the component does not request {method} at \
             {origin}, and what is not requested can't be granted."
        ),
        Denial::NotGranted => format!("To allow it, add the origin to the plugin's grants {lines}"),
        Denial::PrivateAddress => format!(
            "{host} is not a public address, so a grant has to name it exactly; to allow it, add it to the \
             plugin's grants {lines}"
        ),
        Denial::PrivateBehindName => format!(
            "{host} leads to an address that is not public, and no grant of a name opens such an address: \
             only a tool that asks for the address itself can be granted it, as in \
             `http = [\"http://10.0.0.5:8080\"]`."
        ),
    }
}

#[cfg(test)]
mod tests;
