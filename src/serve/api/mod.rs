//! The endpoints, and the OpenAPI document that is made from them. A router of an area is merged here, and
//! nowhere else.

mod arena;
mod benchmarks;
mod catalog;
mod chats;
mod comparisons;
mod datasets;
mod examples;
mod guide;
mod health;
mod knowledge;
mod machine;
mod metrics;
mod models;
mod packets;
mod plan;
mod presets;
mod runs;
mod session;
mod settings;
mod starts;
mod tasks;
mod white_paper;

use std::sync::Arc;

use axum::extract::DefaultBodyLimit;
use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;
use axum::routing::get;
use axum::{Router, http::StatusCode};
use serde::Serialize;
use utoipa::ToSchema;
use utoipa::openapi::security::{Http, HttpAuthScheme, SecurityRequirement, SecurityScheme};
use utoipa::openapi::{Components, Info, OpenApi, OpenApiBuilder};
use utoipa_axum::router::OpenApiRouter;

use crate::openai;
use crate::problem::Problem;
use crate::state::Shared;

/// Where the endpoints begin.
pub(crate) const ROOT: &str = "/api/v1";

/// A part of a list.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Listed<T> {
    /// The items.
    pub items: Vec<T>,
    /// Where the next part begins, if there is one: the value of the parameter that continues the list.
    pub next: Option<String>,
}

impl<T> Listed<T> {
    /// A list that is complete.
    pub(crate) fn whole(items: Vec<T>) -> Self {
        Self { items, next: None }
    }
}

/// The endpoints below [`ROOT`], each with its description.
fn endpoints() -> OpenApiRouter<Shared> {
    OpenApiRouter::default()
        .merge(arena::router())
        .merge(benchmarks::router())
        .merge(catalog::router())
        .merge(chats::router())
        .merge(comparisons::router())
        .merge(datasets::router())
        .merge(examples::router())
        .merge(guide::router())
        .merge(health::router())
        .merge(knowledge::router())
        .merge(machine::router())
        .merge(metrics::router())
        .merge(models::router())
        .merge(packets::router())
        .merge(plan::router())
        .merge(presets::router())
        .merge(runs::router())
        .merge(session::router())
        .merge(settings::router())
        .merge(starts::router())
        .merge(tasks::router())
        .merge(white_paper::router())
}

/// The endpoints with other addresses, each with its description.
fn others() -> OpenApiRouter<Shared> {
    OpenApiRouter::default().merge(openai::router())
}

/// Returns all endpoints with the document that describes them.
pub(crate) fn router(state: &Shared) -> Router<Shared> {
    let (router, document) = described();
    let json: Arc<str> = document.to_json().expect("the document is JSON").into();
    let document = move || {
        let json = json.clone();
        async move { ([(CONTENT_TYPE, "application/json")], json.to_string()) }
    };
    router
        .route(&format!("{ROOT}/openapi.json"), get(document))
        // Prometheus looks here first.
        .route("/metrics", get(metrics::metrics))
        .method_not_allowed_fallback(wrong_method)
        .layer(DefaultBodyLimit::max(state.limits.body_bytes))
}

/// Returns all endpoints and their description.
pub(crate) fn described() -> (Router<Shared>, OpenApi) {
    let info = Info::builder()
        .title("sparktune")
        .version(env!("CARGO_PKG_VERSION"))
        .description(Some(
            "Everything that the page can do, and what other programs need. Errors are problem+json. Long work is \
             a task: the answer is 202 and a task, whose state can be read, followed and cancelled below /tasks.",
        ))
        .build();
    let token = SecurityScheme::Http(Http::new(HttpAuthScheme::Bearer));
    let document = OpenApiBuilder::new()
        .info(info)
        .components(Some(Components::builder().security_scheme("token", token).build()))
        .security(Some([SecurityRequirement::new("token", Vec::<String>::new())]))
        .build();
    let root = OpenApiRouter::with_openapi(document);
    let (router, mut document) = root.nest(ROOT, endpoints()).merge(others()).split_for_parts();
    name_operations(&mut document);
    (router, document)
}

/// Names each operation after its method and path. Functions in different files may have the same name.
fn name_operations(document: &mut OpenApi) {
    for (path, item) in &mut document.paths.paths {
        let words = path.trim_start_matches(ROOT).split(['/', '{', '}', '.']).filter(|word| !word.is_empty());
        let name = words.collect::<Vec<_>>().join("_");
        let operations = [
            ("get", &mut item.get),
            ("put", &mut item.put),
            ("post", &mut item.post),
            ("delete", &mut item.delete),
        ];
        for (method, operation) in operations {
            if let Some(operation) = operation {
                operation.operation_id = Some(format!("{method}_{name}"));
            }
        }
    }
}

async fn wrong_method() -> impl IntoResponse {
    Problem::new(StatusCode::METHOD_NOT_ALLOWED, "this endpoint has no such method")
        .advise("/api/docs/ lists the endpoints")
}
