//! Chat completions: OpenAI, and the many servers that speak like it (llama.cpp, Ollama, vLLM, OpenRouter).

pub(super) mod reply;
mod request;
mod schema;

use async_trait::async_trait;
use http::{HeaderMap, HeaderValue, header};
use serde_json::{Map, Value};
use url::Url;

use super::{
    ModelReply, ModelRequest, Phase, Provider, ProviderError, ProviderErrorKind, Retries, Secret,
    Timeouts, Watch, exchange::Exchange,
};

const NAME: &str = "openai";
const VENDOR_HOST: &str = "api.openai.com";

/// How chat completions are spoken.
#[derive(Debug, Clone)]
pub struct OpenAiSettings {
    /// With `/v1` or whatever the server has in its place; a bare host gets `/v1`.
    pub base_url: Url,
    /// `None` for servers that want no key.
    pub api_key: Option<Secret>,
    /// Whether replies are shown as they come.
    pub stream: bool,
    pub max_tokens_field: MaxTokensField,
    /// Offers the tools as one JSON schema that the reply has to fit, and reads the reply as a call or an
    /// answer: for local models that cannot call tools natively. One call per turn.
    pub tools_as_schema: bool,
    /// Members that each request gets besides ours, such as `reasoning_effort`; ours win.
    pub extra: Map<String, Value>,
    pub retries: Retries,
    pub timeouts: Timeouts,
}

/// What the limit of a reply is called.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MaxTokensField {
    /// The vendor's newer word, which its newer models insist on.
    MaxCompletionTokens,
    /// The old word, the only one that many servers know.
    MaxTokens,
}

impl MaxTokensField {
    /// What the server at this address most likely understands.
    pub fn for_base_url(base_url: &Url) -> Self {
        match base_url.host_str() == Some(VENDOR_HOST) {
            true => Self::MaxCompletionTokens,
            false => Self::MaxTokens,
        }
    }

    fn as_str(self) -> &'static str {
        match self {
            Self::MaxCompletionTokens => "max_completion_tokens",
            Self::MaxTokens => "max_tokens",
        }
    }
}

impl OpenAiSettings {
    /// Where the vendor serves it.
    pub const BASE_URL: &'static str = "https://api.openai.com/v1";
    /// The environment variable that holds the key.
    pub const KEY_VARIABLE: &'static str = "OPENAI_API_KEY";

    pub fn new(base_url: Url, api_key: Option<Secret>) -> Self {
        Self {
            max_tokens_field: MaxTokensField::for_base_url(&base_url),
            base_url,
            api_key,
            stream: true,
            tools_as_schema: false,
            extra: Map::new(),
            retries: Retries::default(),
            timeouts: Timeouts::default(),
        }
    }
}

/// A provider for chat completions.
#[derive(Debug)]
pub struct OpenAi {
    exchange: Exchange,
    /// Why the settings cannot be sent; told with the first request.
    unsendable: Option<&'static str>,
    form: request::Form,
}

impl OpenAi {
    /// `client` comes from [`model_client`](crate::http::model_client): it must follow no redirect.
    pub fn new(settings: OpenAiSettings, client: reqwest::Client) -> Self {
        let key = settings.api_key.filter(|key| !key.is_empty());
        let mut headers = HeaderMap::new();
        headers.insert(
            header::CONTENT_TYPE,
            HeaderValue::from_static("application/json"),
        );
        let mut unsendable = None;
        if let Some(key) = &key {
            match key.header("Bearer ") {
                Some(value) => drop(headers.insert(header::AUTHORIZATION, value)),
                None => {
                    unsendable = Some("the API key holds characters that a header cannot carry");
                }
            }
        }
        let path = match settings.base_url.path() {
            "" | "/" => "/v1/chat/completions",
            _ => "/chat/completions",
        };
        let url = Exchange::url(&settings.base_url, path);
        Self {
            exchange: Exchange {
                client,
                endpoint: Exchange::shown(&url),
                url,
                headers,
                key,
                key_variable: OpenAiSettings::KEY_VARIABLE,
                vendor_host: VENDOR_HOST,
                retries: settings.retries,
                timeouts: settings.timeouts,
            },
            unsendable,
            form: request::Form {
                stream: settings.stream,
                max_tokens_field: settings.max_tokens_field,
                tools_as_schema: settings.tools_as_schema,
                extra: settings.extra,
            },
        }
    }
}

#[async_trait]
impl Provider for OpenAi {
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
        if let Some(why) = self.unsendable {
            return Err(refused(ProviderErrorKind::Auth, why.to_owned()));
        }
        let body = request::body(request, &self.form)
            .map_err(|why| refused(ProviderErrorKind::Request, why.to_string()))?;
        let as_schema = self.form.tools_as_schema && !request.tools.is_empty();
        let reader = || reply::Assembly::new(request.model, request.messages.len(), as_schema);
        self.exchange.ask(request.model, body, reader, watch).await
    }
}
