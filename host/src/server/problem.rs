//! The one shape of everything that is not an answer: RFC 9457 with a `code` that programs can match.

use std::time::Duration;

use axum::{body::Body, response::Response};
use http::{HeaderValue, StatusCode, header};
use serde::Serialize;
use utoipa::ToSchema;

use crate::storage::StorageError;

/// Why a request was not carried out, as `application/problem+json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct Problem {
    /// The HTTP status again
    #[schema(minimum = 400, maximum = 599)]
    pub status: u16,
    /// The status in words
    pub title: &'static str,
    /// One word that stays the same from version to version
    pub code: &'static str,
    /// What happened, and what to do about it
    pub detail: String,
    /// Single faults, where there can be several
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false)]
    pub faults: Vec<String>,
    #[serde(skip)]
    #[schema(ignore)]
    retry_after: Option<Duration>,
}

/// When storage may be tried again.
const STORAGE_RETRY: Duration = Duration::from_secs(5);

impl From<StorageError> for Problem {
    fn from(error: StorageError) -> Self {
        tracing::warn!("{error}");
        Self::storage(&error)
    }
}

impl Problem {
    pub fn new(status: StatusCode, code: &'static str, detail: impl Into<String>) -> Self {
        Self {
            status: status.as_u16(),
            title: status.canonical_reason().unwrap_or("Error"),
            code,
            detail: detail.into(),
            faults: Vec::new(),
            retry_after: None,
        }
    }

    pub fn bad_request(code: &'static str, detail: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, code, detail)
    }

    pub fn not_found(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, "not_found", detail)
    }

    pub fn method_not_allowed() -> Self {
        Self::new(
            StatusCode::METHOD_NOT_ALLOWED,
            "method_not_allowed",
            "this path does not take this method; the header `allow` names those that it takes",
        )
    }

    /// Its queue is full; the same request can succeed later.
    pub fn busy(detail: impl Into<String>, retry_after: Duration) -> Self {
        Self {
            retry_after: Some(retry_after),
            ..Self::new(StatusCode::TOO_MANY_REQUESTS, "busy", detail)
        }
    }

    /// It takes no new work.
    pub fn stopping() -> Self {
        Self::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "stopping",
            "this server is stopping and takes no new work",
        )
    }

    /// What is kept can't be read or written now.
    pub fn storage(error: &StorageError) -> Self {
        Self {
            retry_after: Some(STORAGE_RETRY),
            ..Self::new(
                StatusCode::SERVICE_UNAVAILABLE,
                "storage_unavailable",
                error.to_string(),
            )
        }
    }

    pub fn internal() -> Self {
        Self::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            "internal",
            "this host has a fault; its log has the details",
        )
    }

    pub fn with_faults(mut self, faults: Vec<String>) -> Self {
        self.faults = faults;
        self
    }

    pub(super) fn response(&self) -> Response {
        let body = serde_json::to_vec(self).unwrap_or_default();
        let mut response = Response::new(Body::from(body));
        *response.status_mut() =
            StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let headers = response.headers_mut();
        headers.insert(
            header::CONTENT_TYPE,
            HeaderValue::from_static("application/problem+json"),
        );
        if let Some(wait) = self.retry_after {
            headers.insert(header::RETRY_AFTER, wait.as_secs().max(1).into());
        }
        if self.status == StatusCode::UNAUTHORIZED {
            headers.insert(
                header::WWW_AUTHENTICATE,
                HeaderValue::from_static("Bearer realm=\"agentloop-host\""),
            );
        }
        response
    }
}
