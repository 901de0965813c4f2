//! Components that are web servers (`wasi:http/incoming-handler`): one tool, which makes them answer a request.
//! Nothing listens anywhere; the request comes from the call and the response is its answer.

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full, Limited};
use serde_json::{Map, Value, json};
use tokio::sync::oneshot;
use wasmtime::{Store, component::InstancePre};
use wasmtime_wasi_http::{
    WasiHttpView as _,
    p2::bindings::{ProxyPre, http::types::Scheme},
};

use super::{
    super::{
        bindings::agentloop::tool::types::{CallError, Content},
        store::CallState,
    },
    Answer,
};
use crate::{capability::Request, ids::ToolName, tool::ToolDefinition};

/// Whom the component hears the request come to.
const AUTHORITY: &str = "component.invalid";
const TOOL: &str = "http-request";

#[derive(Clone)]
pub(in super::super) struct Http(ProxyPre<CallState>);

/// The one tool of such a component.
pub(super) fn definition(requests: Vec<Request>) -> Option<ToolDefinition> {
    let schema = json!({
        "type": "object",
        "properties": {
            "method": {
                "type": "string",
                "pattern": "^[A-Z]{1,32}$",
                "default": "GET",
            },
            "path": {
                "type": "string",
                "pattern": "^/",
                "maxLength": 8000,
                "description": "The path, with a query behind `?` if there is one",
            },
            "headers": { "type": "object", "additionalProperties": { "type": "string" } },
            "body": { "type": "string" },
        },
        "required": ["path"],
        "additionalProperties": false,
    });
    let description = "Send a request to the web server that this component is, and get its \
                       response: status, headers and body. It runs in a sandbox; nothing goes \
                       over a network.";
    let mut tool = ToolDefinition::new(ToolName::parse(TOOL).ok()?, description, schema);
    tool.output_schema = Some(json!({
        "type": "object",
        "properties": {
            "status": { "type": "integer" },
            "headers": { "type": "object", "additionalProperties": { "type": "string" } },
            "body": { "type": "string" },
        },
        "required": ["status", "headers", "body"],
    }));
    tool.requests = requests;
    Some(tool)
}

impl Http {
    pub(super) fn link(pre: InstancePre<CallState>) -> wasmtime::Result<Self> {
        ProxyPre::new(pre).map(Self)
    }

    pub(super) async fn call(
        &self,
        store: &mut Store<CallState>,
        arguments: &Map<String, Value>,
        limit_bytes: usize,
    ) -> wasmtime::Result<Answer> {
        let request = match request(arguments) {
            Ok(request) => request,
            Err(fault) => return Ok(Err(CallError::InvalidArguments(fault))),
        };
        let (sender, receiver) = oneshot::channel();
        let mut http = store.data_mut().http();
        let request = http.new_incoming_request(Scheme::Http, request)?;
        let out = http.new_response_outparam(sender)?;
        let server = self.0.instantiate_async(&mut *store).await?;
        // A server may wait for its response to be read before it goes on.
        let reading = async {
            let response = match receiver.await {
                Ok(Ok(response)) => response,
                Ok(Err(code)) => {
                    return Err(format!("the server answered with an error: {code:?}"));
                }
                Err(_) => return Err("the server ended without a response".to_owned()),
            };
            let (head, body) = response.into_parts();
            match Limited::new(body, limit_bytes.saturating_add(1))
                .collect()
                .await
            {
                Ok(body) => Ok((head, body.to_bytes())),
                Err(e) if e.is::<http_body_util::LengthLimitError>() => {
                    Ok((head, Bytes::from(vec![b'x'; limit_bytes.saturating_add(1)])))
                }
                Err(e) => Err(format!("the response's body broke off: {e}")),
            }
        };
        let handler = server.wasi_http_incoming_handler();
        let (handled, read) = tokio::join!(
            async {
                let handled = handler.call_handle(&mut *store, request, out).await;
                // What it left open ends with its table: whoever reads the body would wait for ever.
                *store.data_mut().http().table = wasmtime_wasi::ResourceTable::new();
                handled
            },
            reading
        );
        handled?;
        Ok(match read {
            Ok((head, body)) => {
                let headers: Map<String, Value> = head
                    .headers
                    .iter()
                    .map(|(name, value)| {
                        let value = String::from_utf8_lossy(value.as_bytes()).into_owned();
                        (name.to_string(), value.into())
                    })
                    .collect();
                let answer = json!({
                    "status": head.status.as_u16(),
                    "headers": headers,
                    "body": String::from_utf8_lossy(&body),
                });
                Ok(vec![Content::Json(answer.to_string())])
            }
            Err(why) => Err(CallError::Failed(why)),
        })
    }
}

fn request(arguments: &Map<String, Value>) -> Result<http::Request<Full<Bytes>>, String> {
    let text = |name: &str| arguments.get(name).and_then(Value::as_str);
    let path = text("path").unwrap_or("/");
    let mut request = http::Request::builder()
        .method(text("method").unwrap_or("GET"))
        .uri(format!("http://{AUTHORITY}{path}"))
        .header(http::header::HOST, AUTHORITY);
    for (name, value) in arguments
        .get("headers")
        .and_then(Value::as_object)
        .into_iter()
        .flatten()
    {
        if !name.eq_ignore_ascii_case("host") {
            request = request.header(name, value.as_str().unwrap_or_default());
        }
    }
    let body = text("body").unwrap_or_default().to_owned();
    request
        .body(Full::new(Bytes::from(body)))
        .map_err(|e| format!("that is no HTTP request: {e}"))
}
