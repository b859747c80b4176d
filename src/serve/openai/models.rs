//! `/v1/models`.

use axum::Json;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::routing::get;
use serde::Serialize;
use sparktune_app::models::{ModelKind, OpenableModel, list};
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::error::{ApiError, ErrorBody};
use super::opened::find;
use crate::problem::blocking;
use crate::state::Shared;

pub(crate) fn router() -> OpenApiRouter<Shared> {
    let router = OpenApiRouter::default().routes(routes!(all)).routes(routes!(one));
    // Not every client encodes the slash in the id of a model of the hub.
    router.route("/v1/models/{owner}/{name}", get(with_slash))
}

/// The part of the path that names the model, if it is text.
type InPath<T> = Result<Path<T>, PathRejection>;

/// A model in OpenAI's form.
#[derive(Debug, Serialize, ToSchema)]
struct ApiModel {
    /// Its id.
    id: String,
    /// Always `model`.
    object: &'static str,
    /// When its folder was changed, in seconds since 1970.
    created: u64,
    /// Always `sparktune`.
    owned_by: &'static str,
    /// Its base, if it has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    parent: Option<String>,
    /// `base`, `run`, `adapter` or `merged`.
    #[schema(value_type = String)]
    kind: ModelKind,
}

/// All models.
#[derive(Debug, Serialize, ToSchema)]
struct ApiModels {
    /// Always `list`.
    object: &'static str,
    /// The models.
    data: Vec<ApiModel>,
}

impl ApiModel {
    fn of(model: OpenableModel) -> Self {
        let changed = model.path.metadata().and_then(|found| found.modified()).ok();
        let since = changed.and_then(|changed| changed.duration_since(std::time::UNIX_EPOCH).ok());
        Self {
            created: since.map_or(0, |since| since.as_secs()),
            id: model.id,
            object: "model",
            owned_by: "sparktune",
            parent: model.base,
            kind: model.kind,
        }
    }
}

/// The models that can be opened
#[utoipa::path(get, path = "/v1/models", tag = "openai", responses((status = 200, body = ApiModels)))]
async fn all(State(state): State<Shared>) -> Result<Json<ApiModels>, ApiError> {
    let models = blocking(move || Ok(list(state.runs.path(), &state.models))).await?;
    Ok(Json(ApiModels { object: "list", data: models.into_iter().map(ApiModel::of).collect() }))
}

/// A model
#[utoipa::path(get, path = "/v1/models/{id}", tag = "openai", params(("id" = String, Path)),
    responses((status = 200, body = ApiModel), (status = 404, body = ErrorBody)))]
async fn one(State(state): State<Shared>, path: InPath<String>) -> Result<Json<ApiModel>, ApiError> {
    let Path(id) = path?;
    find(&state, Some(id)).await.map(|model| Json(ApiModel::of(model)))
}

async fn with_slash(
    state: State<Shared>,
    path: InPath<(String, String)>,
) -> Result<Json<ApiModel>, ApiError> {
    let Path((owner, name)) = path?;
    one(state, Ok(Path(format!("{owner}/{name}")))).await
}
