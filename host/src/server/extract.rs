//! What routes take out of requests, with refusals in the one shape.

use axum::{
    body::Bytes,
    extract::{FromRequest, FromRequestParts, Path, Query, Request},
};
use http::{HeaderMap, StatusCode, header, request::Parts};
use serde::de::DeserializeOwned;

use super::problem::Problem;

/// The one variable part of a path.
pub(super) struct Segment(pub(super) String);

impl<S: Send + Sync> FromRequestParts<S> for Segment {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        match Path::<String>::from_request_parts(parts, state).await {
            Ok(Path(text)) => Ok(Self(text)),
            Err(_) => Err(Problem::bad_request(
                "path",
                "the path is not UTF-8 text once it is decoded",
            )),
        }
    }
}

/// What stands behind the `?`.
pub(super) struct Params<T>(pub(super) T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for Params<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        match Query::<T>::from_request_parts(parts, state).await {
            Ok(Query(params)) => Ok(Self(params)),
            Err(error) => Err(Problem::bad_request("query", error.body_text())),
        }
    }
}

/// A body of JSON. It has to be called so: a form of a foreign page can't do that.
pub(super) struct JsonBody<T>(pub(super) T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for JsonBody<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, state: &S) -> Result<Self, Problem> {
        if !is_json(request.headers()) {
            return Err(Problem::new(
                StatusCode::UNSUPPORTED_MEDIA_TYPE,
                "not_json",
                "send the body as JSON, with the header `content-type: application/json`",
            ));
        }
        // The door has read it.
        let body = Bytes::from_request(request, state)
            .await
            .map_err(|_| Problem::internal())?;
        match serde_json::from_slice(&body) {
            Ok(value) => Ok(Self(value)),
            Err(error) if error.is_data() => Err(Problem::new(
                StatusCode::UNPROCESSABLE_ENTITY,
                "unfit_body",
                format!("the body is not what this route takes: {error}"),
            )),
            Err(error) => Err(Problem::bad_request(
                "malformed_json",
                format!("the body is not JSON: {error}"),
            )),
        }
    }
}

fn is_json(headers: &HeaderMap) -> bool {
    let media_type = headers
        .get(header::CONTENT_TYPE)
        .and_then(|value| value.to_str().ok())
        .and_then(|value| value.split(';').next());
    media_type.is_some_and(|media_type| media_type.trim().eq_ignore_ascii_case("application/json"))
}
