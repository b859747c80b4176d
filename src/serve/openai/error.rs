//! Errors as OpenAI's API has them: `{"error": {"message", "type", "param", "code"}}`.

use axum::Json;
use axum::extract::rejection::{JsonRejection, PathRejection};
use axum::http::header::{HeaderName, RETRY_AFTER};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use serde_json::{Value, json};
use utoipa::ToSchema;

use crate::problem::Problem;
use crate::workers::Refusal;

/// Tells OpenAI's clients whether to send a request again by themselves.
const SHOULD_RETRY: HeaderName = HeaderName::from_static("x-should-retry");

/// An error in OpenAI's form.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub(crate) struct ApiError {
    /// What is wrong, and what to do.
    pub message: String,
    /// The kind: `invalid_request_error`, `rate_limit_error`, `server_error`.
    #[serde(rename = "type")]
    pub kind: &'static str,
    /// The parameter that is wrong.
    pub param: Option<String>,
    /// A word for programs.
    pub code: Option<&'static str>,
    /// The HTTP status.
    #[serde(skip)]
    pub status: u16,
}

/// The body of an error.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ErrorBody {
    error: ApiError,
}

impl ApiError {
    fn new(status: StatusCode, kind: &'static str, message: impl Into<String>) -> Self {
        Self { message: message.into(), kind, param: None, code: None, status: status.as_u16() }
    }

    /// The request cannot be answered as it is.
    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "invalid_request_error", message)
    }

    /// An answer that had begun cannot be completed.
    pub(crate) fn failed(message: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "server_error", message)
    }

    /// There is no such model.
    pub(crate) fn no_model(id: &str) -> Self {
        let shown: String = id.chars().take(100).collect();
        let message =
            format!("there is no model `{shown}` here. GET /v1/models lists those that can be opened");
        let error = Self::new(StatusCode::NOT_FOUND, "invalid_request_error", message);
        error.at("model").coded("model_not_found")
    }

    /// Adds the parameter.
    pub(crate) fn at(mut self, param: impl Into<String>) -> Self {
        self.param = Some(param.into());
        self
    }

    fn coded(mut self, code: &'static str) -> Self {
        self.code = Some(code);
        self
    }

    /// Returns the error as the data of an event, for an answer that has begun.
    pub(crate) fn event(&self) -> Value {
        json!({ "error": self })
    }
}

impl From<Refusal> for ApiError {
    fn from(refusal: Refusal) -> Self {
        let message = refusal.to_string();
        let server = |status| Self::new(status, "server_error", message.clone());
        match refusal {
            Refusal::Invalid(_) => Self::invalid(message),
            Refusal::Busy(_) => Self::new(StatusCode::TOO_MANY_REQUESTS, "rate_limit_error", message)
                .coded("rate_limit_exceeded"),
            Refusal::NoRoom(_) => server(StatusCode::SERVICE_UNAVAILABLE).coded("no_room"),
            Refusal::Gone(_) | Refusal::Died(_) => {
                server(StatusCode::SERVICE_UNAVAILABLE).coded("worker_ended")
            }
            Refusal::Answering(_) => server(StatusCode::CONFLICT),
            Refusal::Broken(_) => {
                server(StatusCode::INTERNAL_SERVER_ERROR).at("model").coded("model_cannot_be_opened")
            }
        }
    }
}

impl From<Problem> for ApiError {
    fn from(problem: Problem) -> Self {
        let advice = problem.advice.as_ref().map_or_else(String::new, |advice| format!(". {advice}"));
        let kind = if problem.status < 500 { "invalid_request_error" } else { "server_error" };
        let mut error = Self::new(problem.status(), kind, format!("{}{advice}", problem.detail));
        error.param = problem.r#where;
        error
    }
}

impl From<PathRejection> for ApiError {
    fn from(refused: PathRejection) -> Self {
        Self::new(refused.status(), "invalid_request_error", refused.body_text())
    }
}

impl From<JsonRejection> for ApiError {
    fn from(refused: JsonRejection) -> Self {
        // OpenAI has one status for whatever is wrong with a body that can be read.
        let status = match refused.status() {
            StatusCode::UNPROCESSABLE_ENTITY => StatusCode::BAD_REQUEST,
            status => status,
        };
        let advice = match status {
            StatusCode::PAYLOAD_TOO_LARGE => ". Send fewer or shorter messages",
            StatusCode::UNSUPPORTED_MEDIA_TYPE => ". Send JSON with `Content-Type: application/json`",
            _ => "",
        };
        Self::new(status, "invalid_request_error", format!("{}{advice}", refused.body_text()))
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let is_lasting = matches!(self.code, Some("no_room" | "model_cannot_be_opened"));
        let mut response = (status, Json(ErrorBody { error: self })).into_response();
        if status == StatusCode::TOO_MANY_REQUESTS {
            response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("2"));
        }
        if is_lasting {
            response.headers_mut().insert(SHOULD_RETRY, HeaderValue::from_static("false"));
        }
        response
    }
}
