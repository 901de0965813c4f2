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
    inbox::{Question, Unanswerable},
    problem::Problem,
};
use crate::approvals::{Answer, ApprovalRequest};

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
}

impl From<Question> for Approval {
    fn from(question: Question) -> Self {
        let request = question.request;
        Self {
            id: question.id,
            run: question.run,
            call: request.call.id.to_string(),
            tool: request.call.tool.to_string(),
            rule_name: request.rule_name,
            digest: request.digest.map(|digest| digest.hex()),
            arguments: request.call.input,
            may_touch: request.may_touch,
            why: request.why,
            asked_ms: question.asked_ms,
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
pub(super) async fn list(State(shared): State<Arc<Shared>>) -> Json<Pending> {
    let approvals = shared.inbox.open().into_iter().map(Approval::from);
    Json(Pending {
        approvals: approvals.collect(),
    })
}

/// Answer
#[utoipa::path(
    post, path = "/v1/approvals/{id}", tag = "approvals",
    params(("id" = String, Path)),
    request_body = Decision,
    responses(
        (status = 200, description = "The call learns of it", body = Decided),
        (status = 404, description = "Nothing was asked under this id", body = Problem, content_type = "application/problem+json"),
        (status = 409, description = "It was answered before, or the call no longer waits", body = Problem, content_type = "application/problem+json"),
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
    let claimed = shared.inbox.claim(id).map_err(unanswerable)?;
    let mut remembered = None;
    let answer = match decision.verdict {
        Verdict::Once => Answer::Once,
        Verdict::Run => Answer::ForThisRun,
        Verdict::Deny => Answer::Deny { reason },
        Verdict::Stop => Answer::Stop,
        Verdict::Always => {
            let request = &claimed.question.request;
            shared.inbox.allow_always(request);
            remembered = Some(remember(shared, request.clone()).await);
            Answer::Always
        }
    };
    match claimed.answer(answer) {
        true => Ok(Decided { remembered }),
        false => Err(unanswerable(Unanswerable::Withdrawn)),
    }
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

fn unanswerable(why: Unanswerable) -> Problem {
    match why {
        Unanswerable::Unknown => Problem::new(
            StatusCode::NOT_FOUND,
            "unknown_approval",
            "nothing was asked under this id; `GET /v1/approvals` lists what waits",
        ),
        Unanswerable::Answered => Problem::new(
            StatusCode::CONFLICT,
            "already_answered",
            "somebody has answered this before",
        ),
        Unanswerable::Withdrawn => Problem::new(
            StatusCode::CONFLICT,
            "no_longer_asked",
            "the call no longer waits: its run ended or its client went away",
        ),
    }
}
