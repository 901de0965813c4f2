//! Approvals: what waits for a person, and the person's word.

use std::sync::Arc;

use axum::{Json, extract::State};
use http::StatusCode;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::{
    Shared,
    extract::{JsonBody, Segment},
    problem::Problem,
};
use crate::{
    approvals::{Answer, ApprovalRequest},
    storage::{Question, Undecidable},
};

/// A person's reason, in bytes.
const MAX_REASON_BYTES: usize = 4 << 10;

#[derive(Serialize, ToSchema)]
pub(super) struct Pending {
    approvals: Vec<Approval>,
}

/// A call that waits for a person. The arguments are the model's; what the call may touch is the host's word.
#[derive(Serialize, ToSchema)]
struct Approval {
    /// Names this one question
    id: String,
    /// None: a client's own call
    run: Option<String>,
    /// The call's id in its run
    call: String,
    tool: String,
    /// `plugin.tool`; the rule that `always` writes
    rule_name: String,
    /// SHA-256 of the component that would run
    digest: Option<String>,
    /// Exactly what the tool would get
    #[schema(value_type = Object)]
    arguments: Map<String, Value>,
    may_touch: Vec<String>,
    /// Why it is asked
    why: String,
    /// Milliseconds since 1970
    asked_ms: u64,
    /// Milliseconds since 1970; from then on it counts as denied
    expires_ms: u64,
}

impl From<Question> for Approval {
    fn from(question: Question) -> Self {
        let request = question.request;
        Self {
            id: question.id,
            run: question.run.map(|run| run.to_string()),
            call: request.call.id.to_string(),
            tool: request.call.tool.to_string(),
            rule_name: request.rule_name,
            digest: request.digest.map(|digest| digest.hex()),
            arguments: request.call.input,
            may_touch: request.may_touch,
            why: request.why,
            asked_ms: question.asked_ms,
            expires_ms: question.expires_ms,
        }
    }
}

/// A person's word.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Decision {
    pub(super) verdict: Verdict,
    /// With `deny`: the model reads it
    pub(super) reason: Option<String>,
}

#[derive(Deserialize, ToSchema, Clone, Copy, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub(super) enum Verdict {
    /// This call
    Once,
    /// Also every later call of this tool in this run
    Run,
    /// Also in later runs: a rule is written
    Always,
    Deny,
    /// Deny, and stop the run
    Stop,
}

#[derive(Serialize, ToSchema)]
pub(super) struct Decided {
    /// With `always`: where the rule went, or why it could not be written
    pub(super) remembered: Option<String>,
}

/// What waits for a person, the longest waiting first
#[utoipa::path(
    get, path = "/v1/approvals", tag = "approvals",
    responses((status = 200, description = "All that waits", body = Pending)),
)]
pub(super) async fn list(State(shared): State<Arc<Shared>>) -> Result<Json<Pending>, Problem> {
    let open = shared.store.open_questions().await?.into_iter();
    let ours = open.filter(|question| question.scope == shared.scope);
    Ok(Json(Pending {
        approvals: ours.map(Approval::from).collect(),
    }))
}

/// Answer
#[utoipa::path(
    post, path = "/v1/approvals/{id}", tag = "approvals",
    params(("id" = String, Path)),
    request_body = Decision,
    responses(
        (status = 200, description = "The call learns of it", body = Decided),
        (status = 404, description = "Nothing was asked under this id", body = Problem, content_type = "application/problem+json"),
        (status = 409, description = "It was answered before, its time is over, or the call no longer waits", body = Problem, content_type = "application/problem+json"),
    ),
)]
pub(super) async fn decide(
    State(shared): State<Arc<Shared>>,
    Segment(id): Segment,
    JsonBody(decision): JsonBody<Decision>,
) -> Result<Json<Decided>, Problem> {
    answer(&shared, &id, decision).await.map(Json)
}

pub(super) async fn answer(
    shared: &Shared,
    id: &str,
    decision: Decision,
) -> Result<Decided, Problem> {
    let reason = decision.reason.filter(|reason| !reason.trim().is_empty());
    let unfit =
        |detail: String| Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "unfit_body", detail);
    match &reason {
        Some(reason) if reason.len() > MAX_REASON_BYTES => {
            return Err(unfit(format!(
                "a reason holds at most {MAX_REASON_BYTES} bytes"
            )));
        }
        Some(_) if decision.verdict != Verdict::Deny => {
            return Err(unfit("only `deny` takes a reason".into()));
        }
        Some(_) | None => {}
    }
    let answer = match decision.verdict {
        Verdict::Once => Answer::Once,
        Verdict::Run => Answer::ForThisRun,
        Verdict::Always => Answer::Always,
        Verdict::Deny => Answer::Deny { reason },
        Verdict::Stop => Answer::Stop,
    };
    let open = shared.store.open_questions().await?;
    let is_foreign = |question: &Question| question.id == id && question.scope != shared.scope;
    if open.iter().any(is_foreign) {
        return Err(undecidable(Undecidable::Unknown));
    }
    let is_always = answer == Answer::Always;
    let decided = shared.store.decide(id, answer, "http").await?;
    let question = decided.map_err(undecidable)?;
    let remembered = match is_always {
        true => Some(remember(shared, question.request).await),
        false => None,
    };
    Ok(Decided { remembered })
}

async fn remember(shared: &Shared, request: ApprovalRequest) -> String {
    let Some(remember) = shared.remember.clone() else {
        return "it holds until this server ends; there is no file to write it into".into();
    };
    let written = tokio::task::spawn_blocking(move || remember(&request)).await;
    match written {
        Ok(Ok(where_to)) => where_to,
        Ok(Err(why)) => format!("it holds until this server ends only: {why}"),
        Err(_) => "it holds until this server ends only: writing the rule hit a fault".into(),
    }
}

fn undecidable(why: Undecidable) -> Problem {
    match why {
        Undecidable::Unknown => Problem::new(
            StatusCode::NOT_FOUND,
            "unknown_approval",
            "nothing was asked under this id; `GET /v1/approvals` lists what waits",
        ),
        Undecidable::Answered => Problem::new(
            StatusCode::CONFLICT,
            "already_answered",
            "somebody has answered this before",
        ),
        Undecidable::Withdrawn => Problem::new(
            StatusCode::CONFLICT,
            "no_longer_asked",
            "the call no longer waits: its run ended or its client went away",
        ),
        Undecidable::Expired => Problem::new(
            StatusCode::CONFLICT,
            "expired",
            "the time for an answer is over; the call counts as denied",
        ),
    }
}
