//! Runs: begin, list, look at, continue, stop.

use std::{sync::Arc, time::Duration};

use axum::{
    Json,
    extract::State,
    response::{IntoResponse as _, Response},
};
use http::{HeaderMap, HeaderValue, StatusCode, header};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest as _, Sha256};
use utoipa::{IntoParams, ToSchema};

use super::{
    Shared,
    extract::{JsonBody, Params, Segment},
    live::NotBegun,
    problem::Problem,
};
use crate::{
    agent::{
        RunResult, ToolLoop,
        durable::{self, RunSpec, Unreadable},
    },
    config::permissions::ToolPattern,
    ids::RunId,
    storage::{IdempotencyKey, RunKind, RunState, StoredRun, Wanted},
    transcript::{Message, Role, Usage},
};

/// When a full server may be asked again.
const RETRY_AFTER: Duration = Duration::from_secs(5);
const MAX_KEY_BYTES: usize = 255;
const PAGE_RUNS: usize = 50;
const MAX_PAGE_RUNS: usize = 500;
const PAGE_EVENTS: usize = 1000;
const MAX_TOOL_PATTERNS: usize = 100;

/// What is to be done. Limits and tools can only narrow what the operator's settings say.
#[derive(Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RunRequest {
    /// The task; this or `messages`
    pub(super) prompt: Option<String>,
    /// A conversation as `GET /v1/runs/{id}` gives it, whose last message is the user's; this or `prompt`
    #[schema(value_type = Option<Vec<Object>>)]
    messages: Option<Vec<Message>>,
    /// Which model to ask, instead of the one in the settings
    pub(super) model: Option<String>,
    /// The system prompt, instead of the one in the settings
    system: Option<String>,
    /// Offer only these: `plugin.tool` with `*`
    tools: Option<Vec<String>>,
    limits: Option<LimitsRequest>,
}

#[derive(Deserialize, Serialize, ToSchema, Default, Clone, Copy)]
#[serde(deny_unknown_fields)]
struct LimitsRequest {
    /// Model requests
    #[schema(minimum = 1)]
    max_iterations: Option<u32>,
    /// Output tokens of one reply
    #[schema(minimum = 1)]
    max_tokens: Option<u32>,
    max_tool_calls: Option<u32>,
    /// Input and output together
    max_total_tokens: Option<u64>,
    #[schema(minimum = 1)]
    wall_time_ms: Option<u64>,
}

/// What is to be done next.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct MoreRequest {
    /// What the user says
    text: String,
}

/// A run in short.
#[derive(Serialize, ToSchema)]
pub(super) struct Summary {
    id: String,
    /// `running`, `waiting` for an approval, or how it ended: `completed`, `failed`, `cancelled` or a limit
    state: String,
    /// The beginning of the task
    title: String,
    model: String,
    /// Milliseconds since 1970
    created_ms: u64,
    /// Milliseconds since 1970
    ended_ms: Option<u64>,
    turns: u32,
    calls: u32,
    usage: TokenCounts,
    /// The number of the newest event; none before the first
    last_seq: Option<u64>,
}

/// Tokens; none is unknown, not zero.
#[derive(Serialize, ToSchema)]
struct TokenCounts {
    input: Option<u64>,
    output: Option<u64>,
    cache_read: Option<u64>,
    cache_write: Option<u64>,
}

impl From<Usage> for TokenCounts {
    fn from(usage: Usage) -> Self {
        Self {
            input: usage.input,
            output: usage.output,
            cache_read: usage.cache_read,
            cache_write: usage.cache_write,
        }
    }
}

#[derive(Serialize, ToSchema)]
pub(super) struct Page {
    runs: Vec<Summary>,
    /// The `before` of the next page, where there is one
    next: Option<u64>,
}

/// A run, and what it came to.
#[derive(Serialize, ToSchema)]
pub(super) struct Detail {
    #[serde(flatten)]
    summary: Summary,
    /// How it ended, in a sentence
    ending: Option<String>,
    /// The model's last text
    text: Option<String>,
    /// The conversation so far
    #[schema(value_type = Vec<Object>)]
    messages: Value,
}

impl Summary {
    fn of(run: StoredRun) -> Self {
        Self {
            id: run.id.to_string(),
            state: run.word,
            title: run.title,
            model: run.model,
            created_ms: run.created_ms,
            ended_ms: run.ended_ms,
            turns: run.turns,
            calls: run.calls,
            usage: run.usage.into(),
            last_seq: run.next_seq.checked_sub(1),
        }
    }
}

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct ListParams {
    /// Only runs in this state
    state: Option<String>,
    /// The `next` of the page before
    before: Option<u64>,
    /// At most so many; 50 unless given
    #[param(minimum = 1, maximum = 500)]
    limit: Option<usize>,
}

/// Begin a run
///
/// With the header `Idempotency-Key` the same request begins one run, however often it arrives.
#[utoipa::path(
    post, path = "/v1/runs", tag = "runs",
    params(("Idempotency-Key" = Option<String>, Header, description = "1 to 255 visible ASCII characters")),
    request_body = RunRequest,
    responses(
        (status = 201, description = "It has begun", body = Summary, headers(("location" = String, description = "Where it is"))),
        (status = 200, description = "The same request began it before", body = Summary),
        (status = 409, description = "The key came with another request before", body = Problem, content_type = "application/problem+json"),
        (status = 429, description = "As many runs are live as this server takes", body = Problem, content_type = "application/problem+json"),
        (status = 503, description = "There is no model to ask", body = Problem, content_type = "application/problem+json"),
    ),
)]
pub(super) async fn begin(
    State(shared): State<Arc<Shared>>,
    headers: HeaderMap,
    JsonBody(request): JsonBody<RunRequest>,
) -> Result<Response, Problem> {
    let key = idempotency_key(&headers, &request)?;
    let (run, is_new) = submit(&shared, request, key).await?;
    let status = match is_new {
        true => StatusCode::CREATED,
        false => StatusCode::OK,
    };
    let location = HeaderValue::from_str(&format!("/v1/runs/{}", run.id));
    let mut response = (status, Json(Summary::of(run))).into_response();
    if is_new && let Ok(location) = location {
        response.headers_mut().insert(header::LOCATION, location);
    }
    Ok(response)
}

/// Begins what is asked for, or finds what the same key began.
pub(super) async fn submit(
    shared: &Shared,
    mut request: RunRequest,
    key: Option<IdempotencyKey>,
) -> Result<(StoredRun, bool), Problem> {
    refuse_when_stopping(shared)?;
    let messages = messages(&mut request)?;
    let (agent, spec) = asked_for(shared, &request, messages)?;
    let begun = shared.runs.begin(agent, spec, key).await;
    begun.map_err(|why| not_begun(&why))
}

fn refuse_when_stopping(shared: &Shared) -> Result<(), Problem> {
    match shared.stopping.is_cancelled() {
        true => Err(Problem::stopping()),
        false => Ok(()),
    }
}

fn unfit(detail: impl Into<String>) -> Problem {
    Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "unfit_body", detail)
}

fn messages(request: &mut RunRequest) -> Result<Vec<Message>, Problem> {
    let messages = match (request.prompt.take(), request.messages.take()) {
        (Some(prompt), None) if !prompt.trim().is_empty() => vec![Message::user(prompt)],
        (Some(_), None) => return Err(unfit("the prompt is empty; say what is to be done")),
        (None, Some(messages)) => messages,
        (Some(_), Some(_)) | (None, None) => {
            return Err(unfit("give `prompt` or `messages`, one of them"));
        }
    };
    match messages.last() {
        Some(last) if last.role == Role::User => Ok(messages),
        Some(_) | None => Err(unfit("the last message has to be the user's")),
    }
}

/// The operator's agent, narrowed to what the request wants.
fn asked_for(
    shared: &Shared,
    request: &RunRequest,
    messages: Vec<Message>,
) -> Result<(ToolLoop, RunSpec), Problem> {
    let agent = new_agent(shared)?;
    let mut spec = RunSpec::of(&agent, messages);
    if let Some(model) = &request.model {
        if model.trim().is_empty() {
            return Err(unfit("the model's name is empty"));
        }
        spec.model.clone_from(model);
    }
    if let Some(system) = &request.system {
        spec.system = Some(system.clone());
    }
    if let Some(tools) = &request.tools {
        if tools.len() > MAX_TOOL_PATTERNS {
            return Err(unfit(format!(
                "`tools` holds more than {MAX_TOOL_PATTERNS} patterns"
            )));
        }
        for text in tools {
            ToolPattern::parse(text).map_err(|error| unfit(format!("`tools`: {error}")))?;
        }
        spec.tools = Some(tools.clone());
    }
    let limits = request.limits.unwrap_or_default();
    if [limits.max_iterations, limits.max_tokens].contains(&Some(0))
        || limits.wall_time_ms == Some(0)
    {
        return Err(unfit("a limit of 0 leaves nothing to do"));
    }
    let own = &mut spec.limits;
    own.max_iterations = narrower(own.max_iterations, limits.max_iterations);
    own.max_tokens = narrower(own.max_tokens, limits.max_tokens);
    own.max_tokens_ceiling = narrower(own.max_tokens_ceiling, limits.max_tokens);
    own.max_tool_calls = narrower_or_none(own.max_tool_calls, limits.max_tool_calls);
    own.max_total_tokens = narrower_or_none(own.max_total_tokens, limits.max_total_tokens);
    let wall_time = limits.wall_time_ms.map(Duration::from_millis);
    spec.wall_time = narrower_or_none(spec.wall_time, wall_time);
    let agent = spec
        .applied_to(agent)
        .map_err(|error| unfit(format!("`tools`: {error}")))?;
    Ok((agent, spec))
}

fn new_agent(shared: &Shared) -> Result<ToolLoop, Problem> {
    (shared.agents)().map_err(|why| Problem::new(StatusCode::SERVICE_UNAVAILABLE, "no_model", why))
}

fn narrower<T: Ord>(own: T, wanted: Option<T>) -> T {
    match wanted {
        Some(wanted) => own.min(wanted),
        None => own,
    }
}

fn narrower_or_none<T: Ord>(own: Option<T>, wanted: Option<T>) -> Option<T> {
    match own {
        Some(own) => Some(narrower(own, wanted)),
        None => wanted,
    }
}

fn idempotency_key(
    headers: &HeaderMap,
    request: &RunRequest,
) -> Result<Option<IdempotencyKey>, Problem> {
    let mut keys = headers.get_all("idempotency-key").iter();
    let Some(key) = keys.next() else {
        return Ok(None);
    };
    let key = key.to_str().ok().filter(|key| {
        (1..=MAX_KEY_BYTES).contains(&key.len()) && key.bytes().all(|b| b.is_ascii_graphic())
    });
    let (Some(key), None) = (key, keys.next()) else {
        return Err(Problem::bad_request(
            "idempotency_key",
            "the header `idempotency-key` holds one key of 1 to 255 visible ASCII characters",
        ));
    };
    let request = serde_json::to_vec(request).map_err(|_| Problem::internal())?;
    Ok(Some(IdempotencyKey {
        key: key.to_owned(),
        request: Sha256::digest(&request).into(),
    }))
}

fn not_begun(why: &NotBegun) -> Problem {
    let conflict = |code, detail: &str| Problem::new(StatusCode::CONFLICT, code, detail);
    match why {
        NotBegun::Full => Problem::busy("as many runs are live as this server takes", RETRY_AFTER),
        NotBegun::OtherRequest => conflict(
            "idempotency_key_reused",
            "this idempotency key came with another request before; use a new one",
        ),
        NotBegun::IsLive => conflict(
            "run_is_live",
            "this run has not ended; wait for its end, or cancel it first",
        ),
        NotBegun::IsElsewhere => conflict(
            "run_is_elsewhere",
            "another process drives this run; wait for its end, or stop it there",
        ),
        NotBegun::NoRandomness => Problem::internal(),
        NotBegun::Unreadable(error) => unreadable(error),
    }
}

fn unreadable(error: &Unreadable) -> Problem {
    match error {
        Unreadable::Storage(error) => Problem::storage(error),
        Unreadable::Spec { .. } => Problem::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "run_unreadable",
            error.to_string(),
        ),
    }
}

/// The runs, the newest first
#[utoipa::path(
    get, path = "/v1/runs", tag = "runs", params(ListParams),
    responses((status = 200, description = "A page of them", body = Page)),
)]
pub(super) async fn list(
    State(shared): State<Arc<Shared>>,
    Params(params): Params<ListParams>,
) -> Result<Json<Page>, Problem> {
    let limit = params.limit.unwrap_or(PAGE_RUNS);
    if !(1..=MAX_PAGE_RUNS).contains(&limit) {
        return Err(Problem::bad_request(
            "query",
            format!("`limit` is 1 to {MAX_PAGE_RUNS}"),
        ));
    }
    let wanted = Wanted {
        word: params.state,
        of: Some((RunKind::Served, shared.scope.clone())),
        before: params.before,
        limit: limit + 1,
    };
    let mut runs = shared.store.runs(wanted).await?;
    let is_more = runs.len() > limit;
    runs.truncate(limit);
    let next = runs.last().filter(|_| is_more).map(|run| run.number);
    let runs = runs.into_iter().map(Summary::of).collect();
    Ok(Json(Page { runs, next }))
}

/// One run
#[utoipa::path(
    get, path = "/v1/runs/{id}", tag = "runs",
    params(("id" = String, Path)),
    responses(
        (status = 200, description = "As it is now", body = Detail),
        (status = 404, description = "There is no such run", body = Problem, content_type = "application/problem+json"),
    ),
)]
pub(super) async fn show(
    State(shared): State<Arc<Shared>>,
    Segment(id): Segment,
) -> Result<Json<Detail>, Problem> {
    let run = find(&shared, &id).await?;
    let result = result(&shared, &run).await?;
    let text = result.final_text().map(str::to_owned);
    let messages = serde_json::to_value(&result.messages).map_err(|_| Problem::internal())?;
    Ok(Json(Detail {
        ending: run.ending.clone(),
        summary: Summary::of(run),
        text,
        messages,
    }))
}

/// What a run came to so far.
pub(super) async fn result(shared: &Shared, run: &StoredRun) -> Result<RunResult, Problem> {
    let replayed = async {
        let spec = durable::spec(&*shared.store, run).await?;
        Ok(durable::replayed(&*shared.store, run, &spec).await?)
    };
    let replayed = replayed.await.map_err(|error| unreadable(&error))?;
    Ok(replayed.into_result())
}

pub(super) async fn find(shared: &Shared, id: &str) -> Result<StoredRun, Problem> {
    let unknown = || {
        Problem::new(
            StatusCode::NOT_FOUND,
            "unknown_run",
            "there is no such run; `GET /v1/runs` lists those that this server still knows",
        )
    };
    let id = RunId::parse(id).ok_or_else(unknown)?;
    let run = shared.store.run(id).await?;
    let is_ours = |run: &StoredRun| run.kind == RunKind::Served && run.scope == shared.scope;
    run.filter(is_ours).ok_or_else(unknown)
}

/// Say more in a run that has ended
///
/// It goes on with the same settings as a new run, in the same event stream.
#[utoipa::path(
    post, path = "/v1/runs/{id}/messages", tag = "runs",
    params(("id" = String, Path)),
    request_body = MoreRequest,
    responses(
        (status = 202, description = "It goes on", body = Summary),
        (status = 404, description = "There is no such run", body = Problem, content_type = "application/problem+json"),
        (status = 409, description = "It has not ended", body = Problem, content_type = "application/problem+json"),
        (status = 429, description = "As many runs are live as this server takes", body = Problem, content_type = "application/problem+json"),
        (status = 503, description = "There is no model to ask", body = Problem, content_type = "application/problem+json"),
    ),
)]
pub(super) async fn say(
    State(shared): State<Arc<Shared>>,
    Segment(id): Segment,
    JsonBody(request): JsonBody<MoreRequest>,
) -> Result<(StatusCode, Json<Summary>), Problem> {
    let run = find(&shared, &id).await?;
    go_on(&shared, &run, request.text).await?;
    let run = find(&shared, &id).await?;
    Ok((StatusCode::ACCEPTED, Json(Summary::of(run))))
}

pub(super) async fn go_on(shared: &Shared, run: &StoredRun, text: String) -> Result<(), Problem> {
    refuse_when_stopping(shared)?;
    if text.trim().is_empty() {
        return Err(unfit("the text is empty; say what is to be done"));
    }
    if run.state != RunState::Ended {
        return Err(not_begun(&NotBegun::IsLive));
    }
    // A missing model is this server's fault and not the run's.
    new_agent(shared)?;
    let said = shared.runs.say(run.id, text).await;
    said.map_err(|why| not_begun(&why))
}

/// Stop a run
///
/// Its calls end, and its guests with them. A run that has ended stays as it is.
#[utoipa::path(
    post, path = "/v1/runs/{id}/cancel", tag = "runs",
    params(("id" = String, Path)),
    responses(
        (status = 202, description = "It is ending, or has ended", body = Summary),
        (status = 404, description = "There is no such run", body = Problem, content_type = "application/problem+json"),
        (status = 409, description = "Another process drives it", body = Problem, content_type = "application/problem+json"),
    ),
)]
pub(super) async fn cancel(
    State(shared): State<Arc<Shared>>,
    Segment(id): Segment,
) -> Result<(StatusCode, Json<Summary>), Problem> {
    let run = find(&shared, &id).await?;
    let stopped = shared.runs.stop(run.id).await;
    stopped.map_err(|why| not_begun(&why))?;
    Ok((StatusCode::ACCEPTED, Json(Summary::of(run))))
}

/// A run for people, in Markdown
#[utoipa::path(
    get, path = "/v1/runs/{id}/trace.md", tag = "runs",
    params(("id" = String, Path)),
    responses(
        (status = 200, description = "Its steps, calls and results", body = String, content_type = "text/markdown"),
        (status = 404, description = "There is no such run", body = Problem, content_type = "application/problem+json"),
    ),
)]
pub(super) async fn markdown(
    State(shared): State<Arc<Shared>>,
    Segment(id): Segment,
) -> Result<([(header::HeaderName, &'static str); 1], String), Problem> {
    let run = find(&shared, &id).await?;
    let result = result(&shared, &run).await?;
    Ok((
        [(header::CONTENT_TYPE, "text/markdown; charset=utf-8")],
        result.to_markdown(),
    ))
}

/// All events of a run so far, a line of JSON each
#[utoipa::path(
    get, path = "/v1/runs/{id}/trace.jsonl", tag = "runs",
    params(("id" = String, Path)),
    responses(
        (status = 200, description = "The lines, as `agentloop-host schema` describes them", body = String, content_type = "application/jsonl"),
        (status = 404, description = "There is no such run", body = Problem, content_type = "application/problem+json"),
    ),
)]
pub(super) async fn lines(
    State(shared): State<Arc<Shared>>,
    Segment(id): Segment,
) -> Result<([(header::HeaderName, &'static str); 1], Vec<u8>), Problem> {
    let run = find(&shared, &id).await?;
    let id = run.id.to_string();
    let mut bytes = Vec::new();
    let mut next = 0;
    while next < run.next_seq {
        let events = shared.store.read(run.number, next, PAGE_EVENTS).await?;
        let Some(last) = events.last() else { break };
        next = last.seq + 1;
        for event in &events {
            serde_json::to_writer(&mut bytes, &event.line(&id)).map_err(|_| Problem::internal())?;
            bytes.push(b'\n');
        }
    }
    Ok(([(header::CONTENT_TYPE, "application/jsonl")], bytes))
}
