//! The tools, and a call of one.

use std::{sync::Arc, time::Duration};

use axum::{Json, extract::State};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use http::StatusCode;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::{
    Shared,
    extract::{JsonBody, Segment},
    metrics::CallWatch,
    problem::Problem,
};
use crate::{
    agent::{self, call::CallRecord, result::outcome_word},
    event::Observer,
    registry::Tool,
    tool::{Content, ResourceBody, ToolOutcome},
    transcript::{ResultContent, ToolUse},
};

/// When a full server may be asked again.
const RETRY_AFTER: Duration = Duration::from_secs(1);

#[derive(Serialize, ToSchema)]
pub(super) struct Tools {
    tools: Vec<Described>,
    /// What could not be offered as it was declared
    set_aside: Vec<Aside>,
}

/// A tool. Its texts, schemas and annotations are its own claims.
#[derive(Serialize, ToSchema)]
struct Described {
    name: String,
    /// None for a tool of the host's own
    plugin: Option<String>,
    /// `plugin.tool`, as permission rules name it
    rule_name: String,
    /// SHA-256 of the component
    digest: Option<String>,
    title: Option<String>,
    description: String,
    #[schema(value_type = Object)]
    input_schema: Value,
    #[schema(value_type = Option<Object>)]
    output_schema: Option<Value>,
    annotations: Annotations,
    parallel_safe: bool,
    /// None waits for ever
    timeout_ms: Option<u64>,
    memory_bytes: usize,
    /// False: it runs outside the sandbox, as part of the host
    sandboxed: bool,
    /// What it asks for
    requests: Vec<Requested>,
    /// What calls may touch: where requests and grants meet
    may_touch: Vec<String>,
}

#[derive(Serialize, ToSchema)]
struct Annotations {
    read_only: bool,
    destructive: bool,
    idempotent: bool,
    open_world: bool,
}

#[derive(Serialize, ToSchema)]
struct Requested {
    capability: String,
    /// The tool's own words
    reason: String,
}

#[derive(Serialize, ToSchema)]
struct Aside {
    what: String,
    why: String,
}

/// All tools
#[utoipa::path(
    get, path = "/v1/tools", tag = "tools",
    responses((status = 200, description = "The tools, in the order in which models see them", body = Tools)),
)]
pub(super) async fn list(State(shared): State<Arc<Shared>>) -> Json<Tools> {
    let registry = shared.registry.now();
    let set_aside = registry.set_aside().iter().map(|aside| Aside {
        what: aside.what.clone(),
        why: aside.why.clone(),
    });
    Json(Tools {
        tools: registry
            .tools()
            .iter()
            .map(|tool| described(tool))
            .collect(),
        set_aside: set_aside.collect(),
    })
}

fn described(tool: &Tool) -> Described {
    let definition = &tool.definition;
    let millis = |timeout: Duration| u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX);
    let requests = definition.requests.iter().map(|request| Requested {
        capability: request.capability.to_string(),
        reason: request.reason.clone(),
    });
    Described {
        name: tool.name.to_string(),
        plugin: tool.plugin().map(ToString::to_string),
        rule_name: tool.rule_name.clone(),
        digest: tool.digest().map(|digest| digest.hex()),
        title: definition.title.clone(),
        description: definition.description.clone(),
        input_schema: definition.input_schema.clone(),
        output_schema: definition.output_schema.clone(),
        annotations: Annotations {
            read_only: definition.annotations.read_only,
            destructive: definition.annotations.destructive,
            idempotent: definition.annotations.idempotent,
            open_world: definition.annotations.open_world,
        },
        parallel_safe: definition.parallel_safe,
        timeout_ms: tool.limits.timeout.map(millis),
        memory_bytes: tool.limits.memory_bytes,
        sandboxed: tool.reach.is_some(),
        requests: requests.collect(),
        may_touch: tool
            .reach
            .as_ref()
            .map(agent::dispatch::may_touch)
            .unwrap_or_default(),
    }
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct CallRequest {
    /// As the tool's input schema says
    #[serde(default)]
    #[schema(value_type = Object)]
    arguments: Map<String, Value>,
}

/// How a call ended.
#[derive(Serialize, ToSchema)]
pub(super) struct CallAnswer {
    /// One word: `ok`, or why there is no answer, such as `denied`, `error`, `trap`, `timeout` or `memory`
    outcome: &'static str,
    /// Whether `content` says what went wrong
    is_error: bool,
    content: Vec<Part>,
    /// Guest time; none when the tool never started
    ran_ms: Option<f64>,
}

/// A piece of an answer, as the tool gave it.
#[derive(Serialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Part {
    Text {
        text: String,
    },
    Image {
        media_type: String,
        /// In base64
        data: String,
    },
    Audio {
        media_type: String,
        /// In base64
        data: String,
    },
    Resource {
        uri: String,
        media_type: Option<String>,
        text: Option<String>,
        /// In base64
        data: Option<String>,
    },
    /// Structured output
    Json {
        #[schema(value_type = Value)]
        value: Value,
    },
}

/// Call one tool
///
/// The rules of permissions hold as they do for a model's calls; a call that has to be asked about waits below
/// `/v1/approvals`. Closing the connection ends the call.
#[utoipa::path(
    post, path = "/v1/tools/{name}/call", tag = "tools",
    params(("name" = String, Path, description = "As models call it, or `plugin.tool`")),
    request_body = CallRequest,
    responses(
        (status = 200, description = "The call ended; `outcome` says how", body = CallAnswer),
        (status = 404, description = "There is no such tool", body = Problem, content_type = "application/problem+json"),
        (status = 429, description = "Too many calls are waiting; `retry-after` says when to try again", body = Problem, content_type = "application/problem+json"),
    ),
)]
pub(super) async fn call(
    State(shared): State<Arc<Shared>>,
    Segment(name): Segment,
    JsonBody(request): JsonBody<CallRequest>,
) -> Result<Json<CallAnswer>, Problem> {
    let registry = shared.registry.now();
    let Some(tool) = registry.find(&name) else {
        return Err(Problem::new(
            StatusCode::NOT_FOUND,
            "unknown_tool",
            "there is no such tool; `GET /v1/tools` lists them",
        ));
    };
    let Ok(_place) = shared.calls.try_acquire() else {
        return Err(Problem::busy(
            "as many calls are waiting as this server takes",
            RETRY_AFTER,
        ));
    };
    let arguments = Value::Object(request.arguments);
    let tool_use =
        ToolUse::new("call_0_0", tool.name.as_str(), arguments).map_err(|_| Problem::internal())?;
    let observers: [Arc<dyn Observer>; 1] = [Arc::new(CallWatch::new(&shared.metrics))];
    let stored = || shared.runs.approver(None);
    let approver = shared.deps.approver.clone().unwrap_or_else(stored);
    let record = agent::run_call(
        &tool_use,
        &registry,
        &shared.deps,
        Some(approver),
        &observers,
    )
    .await;
    answer(record)
}

fn answer(record: CallRecord) -> Result<Json<CallAnswer>, Problem> {
    let outcome = outcome_word(&record.outcome);
    let content = match record.outcome {
        ToolOutcome::Answered(content) => content.into_iter().map(part).collect(),
        ToolOutcome::InvalidArguments { faults } => {
            return Err(Problem::new(
                StatusCode::UNPROCESSABLE_ENTITY,
                "invalid_arguments",
                "the arguments do not fit the tool's input schema",
            )
            .with_faults(faults));
        }
        ToolOutcome::MalformedArguments { .. }
        | ToolOutcome::UnknownTool { .. }
        | ToolOutcome::Denied { .. }
        | ToolOutcome::ApprovalFailed { .. }
        | ToolOutcome::Failed { .. }
        | ToolOutcome::CapabilityRefused { .. }
        | ToolOutcome::Trapped { .. }
        | ToolOutcome::TimedOut { .. }
        | ToolOutcome::Abandoned { .. }
        | ToolOutcome::OutOfFuel { .. }
        | ToolOutcome::OutOfMemory { .. }
        | ToolOutcome::OutputTooLarge { .. }
        | ToolOutcome::BadOutput { .. }
        | ToolOutcome::Cancelled { .. }
        | ToolOutcome::OutcomeUnknown
        | ToolOutcome::Internal { .. } => {
            record.traced.result.content.into_iter().map(said).collect()
        }
    };
    Ok(Json(CallAnswer {
        outcome,
        is_error: record.traced.result.is_error,
        content,
        ran_ms: record.traced.ran.map(|ran| ran.as_secs_f64() * 1e3),
    }))
}

fn part(content: Content) -> Part {
    match content {
        Content::Text(text) => Part::Text { text },
        Content::Image { media_type, data } => Part::Image {
            media_type,
            data: STANDARD.encode(data),
        },
        Content::Audio { media_type, data } => Part::Audio {
            media_type,
            data: STANDARD.encode(data),
        },
        Content::Resource {
            uri,
            media_type,
            body,
        } => {
            let (text, data) = match body {
                ResourceBody::Text(text) => (Some(text), None),
                ResourceBody::Bytes(bytes) => (None, Some(STANDARD.encode(bytes))),
            };
            Part::Resource {
                uri,
                media_type,
                text,
                data,
            }
        }
        Content::Json(value) => Part::Json { value },
    }
}

/// The host's words for how a call ended.
fn said(content: ResultContent) -> Part {
    match content {
        ResultContent::Text { text } => Part::Text { text },
        ResultContent::Image(image) => Part::Image {
            media_type: image.media_type,
            data: image.base64,
        },
    }
}
