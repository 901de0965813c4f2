//! The Anthropic Messages API, and servers that speak it.

pub(super) mod reply;
mod request;

use async_trait::async_trait;
use http::{HeaderMap, HeaderName, HeaderValue, header};
use serde_json::{Map, Value};
use url::Url;

use super::{
    ModelReply, ModelRequest, Phase, Provider, ProviderError, ProviderErrorKind, Retries, Secret,
    Timeouts, Watch, exchange::Exchange,
};

const NAME: &str = "anthropic";

/// How the Messages API is spoken.
#[derive(Debug, Clone)]
pub struct AnthropicSettings {
    /// With or without `/v1` at its end.
    pub base_url: Url,
    /// `None` for servers that want no key.
    pub api_key: Option<Secret>,
    pub key_header: KeyHeader,
    /// `anthropic-version`. Gateways and local servers mostly know the oldest only.
    pub version: String,
    /// `anthropic-beta`; none by default.
    pub betas: Vec<String>,
    /// Whether replies are shown as they come.
    pub stream: bool,
    /// Whether the endpoint is told what to keep in its prompt cache.
    pub prompt_cache: bool,
    /// Members that each request gets besides ours, such as `thinking`; ours win.
    pub extra: Map<String, Value>,
    pub retries: Retries,
    pub timeouts: Timeouts,
}

/// The header that carries the key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum KeyHeader {
    /// `x-api-key: KEY`, which everything that speaks this API takes.
    #[default]
    XApiKey,
    /// `Authorization: Bearer KEY`, as the vendor's newest clients and many gateways do.
    Bearer,
}

impl AnthropicSettings {
    /// Where the vendor serves it.
    pub const BASE_URL: &'static str = "https://api.anthropic.com";
    /// The environment variable that holds the key.
    pub const KEY_VARIABLE: &'static str = "ANTHROPIC_API_KEY";
    const VERSION: &'static str = "2023-06-01";

    pub fn new(base_url: Url, api_key: Option<Secret>) -> Self {
        Self {
            base_url,
            api_key,
            key_header: KeyHeader::default(),
            version: Self::VERSION.into(),
            betas: Vec::new(),
            stream: true,
            prompt_cache: true,
            extra: Map::new(),
            retries: Retries::default(),
            timeouts: Timeouts::default(),
        }
    }
}

/// A provider for the Messages API.
#[derive(Debug)]
pub struct Anthropic {
    exchange: Exchange,
    /// Why the settings cannot be sent; told with the first request.
    unsendable: Option<String>,
    stream: bool,
    prompt_cache: bool,
    extra: Map<String, Value>,
}

impl Anthropic {
    /// `client` comes from [`model_client`](crate::http::model_client): it must follow no redirect.
    pub fn new(settings: AnthropicSettings, client: reqwest::Client) -> Self {
        let key = settings.api_key.filter(|key| !key.is_empty());
        let mut headers = HeaderMap::new();
        let mut unsendable = None;
        let mut set = |name: HeaderName, what: &str, value: Option<HeaderValue>| match value {
            Some(value) => drop(headers.insert(name, value)),
            None => {
                unsendable = Some(format!(
                    "{what} holds characters that a header cannot carry"
                ));
            }
        };
        let json = HeaderValue::from_static("application/json");
        set(header::CONTENT_TYPE, "the media type", Some(json));
        let version = HeaderValue::from_str(&settings.version).ok();
        set(
            HeaderName::from_static("anthropic-version"),
            "`version`",
            version,
        );
        if let Some(key) = &key {
            let (name, scheme) = match settings.key_header {
                KeyHeader::XApiKey => (HeaderName::from_static("x-api-key"), ""),
                KeyHeader::Bearer => (header::AUTHORIZATION, "Bearer "),
            };
            set(name, "the API key", key.header(scheme));
        }
        if !settings.betas.is_empty() {
            let betas = HeaderValue::from_str(&settings.betas.join(",")).ok();
            set(HeaderName::from_static("anthropic-beta"), "`betas`", betas);
        }
        let url = Exchange::url(&settings.base_url, "/v1/messages");
        Self {
            exchange: Exchange {
                client,
                endpoint: Exchange::shown(&url),
                url,
                headers,
                key,
                key_variable: AnthropicSettings::KEY_VARIABLE,
                vendor_host: "api.anthropic.com",
                retries: settings.retries,
                timeouts: settings.timeouts,
            },
            unsendable,
            stream: settings.stream,
            prompt_cache: settings.prompt_cache,
            extra: settings.extra,
        }
    }
}

#[async_trait]
impl Provider for Anthropic {
    fn name(&self) -> &str {
        NAME
    }

    async fn ask(
        &self,
        request: &ModelRequest<'_>,
        watch: &mut dyn Watch,
    ) -> Result<ModelReply, ProviderError> {
        let refused = |kind, why: String| {
            self.exchange
                .error(kind, Phase::Connecting, why, request.model)
        };
        if let Some(why) = &self.unsendable {
            return Err(refused(ProviderErrorKind::Auth, why.clone()));
        }
        let body = request::body(request, self.stream, self.prompt_cache, &self.extra)
            .map_err(|why| refused(ProviderErrorKind::Request, why.to_string()))?;
        let reader = || reply::Assembly::new(request.model, request.messages.len());
        self.exchange.ask(request.model, body, reader, watch).await
    }
}
