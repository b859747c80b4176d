//! The white paper about QubGPU's claims, made of the results that the program carries.

use axum::Json;
use axum::body::Body;
use axum::http::HeaderValue;
use axum::http::header::{CONTENT_DISPOSITION, CONTENT_SECURITY_POLICY, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};
use sparktune_app::failure::{Exit, Failure};
use sparktune_paper::{Document, EditResults, ResultsError, Speeds, committed, html, write};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::problem::{Problem, blocking};
use crate::state::Shared;

/// The policy of the file: it needs its style, and nothing else.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'self'; sandbox";

pub(crate) fn router() -> OpenApiRouter<Shared> {
    OpenApiRouter::new().routes(routes!(read)).routes(routes!(file))
}

fn document() -> Result<Document, Problem> {
    let unreadable = |error: ResultsError| Failure::new(Exit::Bug, error.to_string());
    let results = committed().map_err(unreadable)?;
    let speeds = Speeds::committed().map_err(unreadable)?;
    Ok(write(&results, &speeds, &EditResults::committed().map_err(unreadable)?))
}

/// The white paper as blocks: paragraphs, tables, charts, verdicts
#[utoipa::path(get, path = "/white-paper", tag = "benchmarks", responses((status = 200, body = Object)))]
async fn read() -> Result<Json<Value>, Problem> {
    blocking(|| Ok(Json(json!(document()?)))).await
}

/// The white paper as one HTML file
#[utoipa::path(get, path = "/white-paper/file", tag = "benchmarks",
    responses((status = 200, content_type = "text/html", body = String)))]
async fn file() -> Result<Response, Problem> {
    let page = blocking(|| Ok(html(&document()?))).await?;
    let mut response = Body::from(page).into_response();
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/html; charset=utf-8"));
    headers.insert(CONTENT_DISPOSITION, HeaderValue::from_static("inline; filename=\"white-paper.html\""));
    headers.insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY));
    Ok(response)
}
