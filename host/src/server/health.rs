//! Alive, ready, figures.

use std::sync::Arc;

use axum::{Json, extract::State};
use http::header;
use serde::Serialize;
use utoipa::ToSchema;

use super::{Shared, problem::Problem};

#[derive(Serialize, ToSchema)]
pub(super) struct Health {
    /// Always `ok`
    status: &'static str,
    version: &'static str,
}

const HEALTHY: Health = Health {
    status: "ok",
    version: env!("CARGO_PKG_VERSION"),
};

/// Whether the process answers
#[utoipa::path(
    get, path = "/healthz", tag = "health", security(()),
    responses((status = 200, description = "It does", body = Health)),
)]
pub(super) async fn healthz() -> Json<Health> {
    Json(HEALTHY)
}

/// Whether new work should be sent here
#[utoipa::path(
    get, path = "/readyz", tag = "health", security(()),
    responses(
        (status = 200, description = "It should", body = Health),
        (status = 503, description = "It is stopping", body = Problem, content_type = "application/problem+json"),
    ),
)]
pub(super) async fn readyz(State(shared): State<Arc<Shared>>) -> Result<Json<Health>, Problem> {
    if shared.stopping.is_cancelled() {
        return Err(Problem::stopping());
    }
    Ok(Json(HEALTHY))
}

/// Figures in the text format of OpenMetrics, as Prometheus reads it
#[utoipa::path(
    get, path = "/metrics", tag = "health",
    responses((status = 200, description = "All figures", body = String, content_type = "application/openmetrics-text")),
)]
pub(super) async fn metrics(
    State(shared): State<Arc<Shared>>,
) -> ([(header::HeaderName, &'static str); 1], String) {
    match shared.store.open_questions().await {
        Ok(open) => {
            let ours = open
                .iter()
                .filter(|question| question.scope == shared.scope);
            shared.metrics.questions(ours.count());
        }
        Err(error) => tracing::warn!("{error}"),
    }
    let media_type = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    ([(header::CONTENT_TYPE, media_type)], shared.metrics.text())
}
