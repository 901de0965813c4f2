//! The log on stderr, and spans to a collector where the standard variables of OpenTelemetry name one.

use std::{fmt, time::Duration};

use anyhow::Context as _;
use async_trait::async_trait;
use bytes::Bytes;
use opentelemetry::trace::TracerProvider as _;
use opentelemetry_http::{HttpClient, HttpError};
use opentelemetry_otlp::{Protocol, WithExportConfig as _, WithHttpConfig as _};
use opentelemetry_sdk::{Resource, trace::SdkTracerProvider};
use tokio::runtime::Handle;
use tracing_subscriber::{
    EnvFilter, Layer as _, filter::Targets, layer::SubscriberExt as _, util::SubscriberInitExt as _,
};

use crate::{
    config::env_vars,
    http::{ClientSettings, model_client},
};

/// How long a collector may take for one delivery.
const DELIVERY: Duration = Duration::from_secs(10);

/// Sends what is left when it is dropped. Outside of the runtime, while that still runs.
pub(super) struct Telemetry(Option<SdkTracerProvider>);

impl Drop for Telemetry {
    fn drop(&mut self) {
        if let Some(provider) = &self.0
            && let Err(error) = provider.shutdown()
        {
            eprintln!("note: spans were not delivered: {error}");
        }
    }
}

/// Sets both up for the process. `filter` is for the log unless `RUST_LOG` says otherwise.
pub(super) fn start(filter: &str, runtime: &Handle) -> anyhow::Result<Telemetry> {
    let provider = provider(runtime)?;
    let log = tracing_subscriber::fmt::layer()
        .with_writer(std::io::stderr)
        .with_ansi(console::colors_enabled_stderr())
        .with_filter(EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(filter)));
    let spans = provider.as_ref().map(|provider| {
        // Of this host's own only, and no lines of its log.
        let own = Targets::new().with_target("agentloop_host::agent::spans", tracing::Level::INFO);
        tracing_opentelemetry::layer()
            .with_tracer(provider.tracer("agentloop-host"))
            .with_location(false)
            .with_threads(false)
            .with_tracked_inactivity(false)
            .with_filter(own)
    });
    tracing_subscriber::registry().with(log).with(spans).init();
    Ok(Telemetry(provider))
}

fn is_set(name: &str) -> bool {
    std::env::var_os(name).is_some_and(|value| !value.is_empty())
}

fn provider(runtime: &Handle) -> anyhow::Result<Option<SdkTracerProvider>> {
    let is_off = std::env::var(env_vars::OTEL_DISABLED).is_ok_and(|value| value == "true");
    let has_place = [env_vars::OTEL_ENDPOINT, env_vars::OTEL_TRACES_ENDPOINT]
        .into_iter()
        .any(is_set);
    if is_off || !has_place {
        return Ok(None);
    }
    let client = Client {
        client: model_client(&ClientSettings {
            read_timeout: DELIVERY,
            ..ClientSettings::default()
        })?,
        runtime: runtime.clone(),
    };
    let exporter = opentelemetry_otlp::SpanExporter::builder()
        .with_http()
        .with_protocol(Protocol::HttpBinary)
        .with_http_client(client)
        .build()
        .context("the collector of spans can't be used")?;
    let mut resource = Resource::builder();
    if !is_set(env_vars::OTEL_SERVICE) {
        resource = resource.with_service_name("agentloop-host");
    }
    let provider = SdkTracerProvider::builder()
        .with_batch_exporter(exporter)
        .with_resource(resource.build())
        .build();
    Ok(Some(provider))
}

/// The host's own client, for a thread that is none of the runtime's.
struct Client {
    client: reqwest::Client,
    runtime: Handle,
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Client")
    }
}

#[async_trait]
impl HttpClient for Client {
    async fn send_bytes(
        &self,
        request: http::Request<Bytes>,
    ) -> Result<http::Response<Bytes>, HttpError> {
        let (client, request) = (self.client.clone(), reqwest::Request::try_from(request)?);
        let sending = async move {
            let response = client.execute(request).await?;
            let status = response.status();
            // Nothing in it is used.
            Ok::<_, reqwest::Error>(status)
        };
        // The timer needs the runtime as well.
        let sent = async move { tokio::time::timeout(DELIVERY, sending).await };
        let status = self.runtime.spawn(sent).await???;
        let mut response = http::Response::new(Bytes::new());
        *response.status_mut() = status;
        Ok(response)
    }
}
