//! What holds here, as the server itself tells it.

use std::sync::Arc;

use askama::Template;
use axum::{Extension, extract::State, response::Response};
use http::StatusCode;

use super::html;
use crate::server::Shared;

/// Every setting with its origin, a line each, without any secret.
#[derive(Clone)]
pub(in crate::server) struct SettingLines(pub(in crate::server) Arc<[String]>);

struct Setting<'a> {
    value: &'a str,
    origin: &'a str,
}

#[derive(Template)]
#[template(path = "settings.html")]
struct Shown<'a> {
    title: &'static str,
    name: &'static str,
    has_sign_out: bool,
    version: &'static str,
    /// Provider and model, or why there is none.
    model: Result<(String, String), String>,
    facts: Vec<(&'static str, String)>,
    settings: Vec<Setting<'a>>,
}

pub(super) async fn show(
    State(shared): State<Arc<Shared>>,
    lines: Option<Extension<SettingLines>>,
) -> Response {
    let lines = lines.map(|Extension(lines)| lines.0).unwrap_or_default();
    let settings = lines
        .iter()
        .map(|line| match line.split_once("  # from ") {
            Some((value, origin)) => Setting { value, origin },
            None => Setting {
                value: line,
                origin: "",
            },
        })
        .collect();
    let model = (shared.agents)().map(|agent| (agent.provider.name().to_owned(), agent.model));
    let bounds = &shared.bounds;
    let seconds = |wait: std::time::Duration| format!("{} s", wait.as_secs_f64());
    let facts = vec![
        ("Live runs at most", bounds.live_runs.to_string()),
        ("Ended runs kept", bounds.ended_runs.to_string()),
        ("Clients' calls at once", bounds.calls.to_string()),
        (
            "A request's body at most",
            format!("{} KiB", bounds.body >> 10),
        ),
        ("Time for a body", seconds(bounds.body_wait)),
    ];
    let shown = Shown {
        title: "Settings and health",
        name: "settings",
        has_sign_out: shared.access.has_token(),
        version: env!("CARGO_PKG_VERSION"),
        model,
        facts,
        settings,
    };
    html(StatusCode::OK, &shown)
}
