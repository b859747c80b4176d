//! Errors as `application/problem+json` (RFC 9457): what happened, where, and what to do. Also the
//! extractors whose refusals are problems.

use axum::Json;
use axum::extract::rejection::{JsonRejection, QueryRejection};
use axum::extract::{FromRequest, FromRequestParts, Query, Request};
use axum::http::header::{CONTENT_TYPE, RETRY_AFTER};
use axum::http::request::Parts;
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use sparktune_app::failure::{Exit, Failure};
use sparktune_runlog::Error as RunError;
use utoipa::ToSchema;

/// The media type.
const MEDIA_TYPE: HeaderValue = HeaderValue::from_static("application/problem+json");

/// What went wrong. It has no `type`, so the status says which kind of problem it is. Texts may quote file
/// names, data and models: a page shows them as text.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub(crate) struct Problem {
    /// The status in words.
    pub title: String,
    /// The HTTP status.
    pub status: u16,
    /// What happened.
    pub detail: String,
    /// Where: a parameter, a field, a file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub r#where: Option<String>,
    /// What to do about it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub advice: Option<String>,
}

impl Problem {
    /// A problem with this status.
    pub(crate) fn new(status: StatusCode, detail: impl Into<String>) -> Self {
        Self {
            title: status.canonical_reason().unwrap_or("Error").to_owned(),
            status: status.as_u16(),
            detail: detail.into(),
            r#where: None,
            advice: None,
        }
    }

    /// There is nothing of this name.
    pub(crate) fn not_found(what: &str, id: &str) -> Self {
        let shown: String = id.chars().take(100).collect();
        Self::new(StatusCode::NOT_FOUND, format!("there is no {what} '{shown}'"))
    }

    /// The request says something that cannot be done.
    pub(crate) fn bad_request(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, detail)
    }

    /// Adds the place.
    #[must_use]
    pub(crate) fn at(mut self, place: impl Into<String>) -> Self {
        self.r#where = Some(place.into());
        self
    }

    /// Adds what to do.
    #[must_use]
    pub(crate) fn advise(mut self, advice: impl Into<String>) -> Self {
        self.advice = Some(advice.into());
        self
    }

    /// Returns the status.
    pub(crate) fn status(&self) -> StatusCode {
        StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let status = self.status();
        let mut response = (status, Json(self)).into_response();
        response.headers_mut().insert(CONTENT_TYPE, MEDIA_TYPE);
        if matches!(status, StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE) {
            response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("2"));
        }
        response
    }
}

impl From<Failure> for Problem {
    fn from(failure: Failure) -> Self {
        let status = match failure.exit {
            Exit::Usage => StatusCode::BAD_REQUEST,
            Exit::Data => StatusCode::UNPROCESSABLE_ENTITY,
            Exit::Device => StatusCode::INSUFFICIENT_STORAGE,
            Exit::Network => StatusCode::BAD_GATEWAY,
            Exit::Stopped | Exit::Interrupted | Exit::Diverged => StatusCode::CONFLICT,
            Exit::Skipped => StatusCode::NOT_IMPLEMENTED,
            Exit::Done | Exit::Bug => StatusCode::INTERNAL_SERVER_ERROR,
        };
        let problem = Self::new(status, failure.text);
        if failure.hints.is_empty() { problem } else { problem.advise(failure.hints.join(". ")) }
    }
}

impl From<RunError> for Problem {
    fn from(error: RunError) -> Self {
        let status = match &error {
            RunError::NoRuns { .. } | RunError::NoSuchRun { .. } | RunError::NotARun { .. } => {
                StatusCode::NOT_FOUND
            }
            RunError::AlreadyRunning { .. } | RunError::NotRunning { .. } | RunError::NotDeletable { .. } => {
                StatusCode::CONFLICT
            }
            _ => return Failure::from(error).into(),
        };
        Self::new(status, error.to_string())
    }
}

/// Runs what may wait for a disk, a lock or a process in a thread where waiting harms nobody.
///
/// # Errors
/// Those of the work; a panic of it is a problem too.
pub(crate) async fn blocking<T, F>(work: F) -> Result<T, Problem>
where
    T: Send + 'static,
    F: FnOnce() -> Result<T, Problem> + Send + 'static,
{
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|_| {
        Err(Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "a bug in sparktune ended this request")
            .advise("The terminal of the server shows the details; please report them"))
    })
}

/// A body of JSON.
pub(crate) struct Body<T>(pub T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequest<S> for Body<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, state: &S) -> Result<Self, Problem> {
        match Json::from_request(request, state).await {
            Ok(Json(value)) => Ok(Self(value)),
            Err(refused) => Err(of_body(&refused)),
        }
    }
}

fn of_body(refused: &JsonRejection) -> Problem {
    let problem = Problem::new(refused.status(), refused.body_text()).at("body");
    match refused.status() {
        StatusCode::PAYLOAD_TOO_LARGE => {
            problem.advise("Send less; data sets are uploaded to /api/v1/datasets")
        }
        StatusCode::UNSUPPORTED_MEDIA_TYPE => {
            problem.advise("Send JSON, with Content-Type: application/json")
        }
        _ => problem.advise("The document at /api/v1/openapi.json describes the body"),
    }
}

/// The parameters behind the `?` of a URL.
pub(crate) struct Params<T>(pub T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequestParts<S> for Params<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        match Query::from_request_parts(parts, state).await {
            Ok(Query(value)) => Ok(Self(value)),
            Err(refused) => Err(of_query(&refused)),
        }
    }
}

fn of_query(refused: &QueryRejection) -> Problem {
    Problem::new(refused.status(), refused.body_text()).at("query")
}
