//! The description of it all, from the code: a route is made and described by the same line.

use std::sync::Arc;

use axum::{Router, body::Bytes, routing::get};
use http::header;
use utoipa::{
    OpenApi, PartialSchema as _, ToSchema as _,
    openapi::{
        Content, HttpMethod, OpenApi as Document, RefOr, ResponseBuilder,
        security::{Http, HttpAuthScheme, SecurityScheme},
    },
};
use utoipa_axum::{router::OpenApiRouter, routes};

use super::{Shared, approvals, events, health, problem::Problem, runs, tools};

#[derive(OpenApi)]
#[openapi(
    info(
        title = "agentloop-host",
        description = "Runs tools that are sandboxed WebAssembly components.",
    ),
    tags(
        (name = "runs", description = "Tasks that an agent carries out"),
        (name = "approvals", description = "Calls that wait for a person"),
        (name = "tools", description = "The tools, each call in a fresh sandbox"),
        (name = "health", description = "Whether the server is well, and its figures"),
    ),
    security(("token" = [])),
)]
struct Description;

/// Every route but that of the description itself.
pub(super) fn routes() -> OpenApiRouter<Arc<Shared>> {
    OpenApiRouter::with_openapi(Description::openapi())
        .routes(routes!(health::healthz))
        .routes(routes!(health::readyz))
        .routes(routes!(health::metrics))
        .routes(routes!(runs::begin, runs::list))
        .routes(routes!(runs::show))
        .routes(routes!(runs::say))
        .routes(routes!(runs::cancel))
        .routes(routes!(runs::markdown))
        .routes(routes!(runs::lines))
        .routes(routes!(events::events))
        .routes(routes!(approvals::list))
        .routes(routes!(approvals::decide))
        .routes(routes!(tools::list))
        .routes(routes!(tools::call))
}

/// The document at `/openapi.json`.
pub(super) fn served(document: Document) -> Router {
    let json = Bytes::from(completed(document).to_json().unwrap_or_default());
    let answer = move || async move { ([(header::CONTENT_TYPE, "application/json")], json) };
    Router::new().route("/openapi.json", get(answer))
}

/// With what the door may answer on any route, and how to show the token.
fn completed(mut document: Document) -> Document {
    let components = document.components.get_or_insert_default();
    components.add_security_scheme(
        "token",
        SecurityScheme::Http(Http::new(HttpAuthScheme::Bearer)),
    );
    components
        .schemas
        .insert(Problem::name().into_owned(), Problem::schema());
    let always = [
        ("400", "The request is malformed"),
        ("401", "The token is missing or wrong"),
        ("403", "The Host or Origin is not allowed"),
        ("500", "This host has a fault"),
    ];
    let with_body = [
        ("408", "The body came too slowly"),
        ("413", "The body is too large"),
        ("415", "The body is not JSON"),
        ("422", "The body is not what this route takes"),
    ];
    for item in document.paths.paths.values_mut() {
        let operations = [
            (HttpMethod::Get, &mut item.get),
            (HttpMethod::Post, &mut item.post),
        ];
        for (method, operation) in operations {
            let Some(operation) = operation else { continue };
            let extra: &[_] = match method {
                HttpMethod::Post => &with_body,
                _ => &[],
            };
            for (status, description) in always.iter().chain(extra) {
                operation
                    .responses
                    .responses
                    .entry((*status).to_owned())
                    .or_insert_with(|| RefOr::T(problem(description)));
            }
        }
    }
    document
}

fn problem(description: &str) -> utoipa::openapi::Response {
    let schema = utoipa::openapi::Ref::from_schema_name(Problem::name());
    ResponseBuilder::new()
        .description(description)
        .content(
            "application/problem+json",
            Content::new(Some(RefOr::Ref(schema))),
        )
        .build()
}
