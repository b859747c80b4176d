//! The models that chat and comparisons can open, and which of them are loaded.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use serde::{Deserialize, Serialize};
use serde_json::json;
use sparktune_app::models::{self, ModelKind, OpenableModel};
use tokio::runtime::Handle;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::api::Listed;
use crate::problem::{Body, Problem, blocking};
use crate::state::{Served, Shared};
use crate::tasks::{Task, cancelled};
use crate::workers::Refusal;

pub(crate) fn router() -> OpenApiRouter<Shared> {
    OpenApiRouter::new().routes(routes!(all)).routes(routes!(load)).routes(routes!(unload))
}

/// A model that can be opened.
#[derive(Debug, Serialize, ToSchema)]
struct ListedModel {
    /// Its id, which requests use: `hub:OWNER/NAME`, `run:NAME`, `dir:NAME` or `edited:NAME`.
    id: String,
    /// The id without what it begins with.
    name: String,
    /// `base`, `run`, `adapter`, `merged` or `edited`.
    #[schema(value_type = String)]
    kind: ModelKind,
    /// The base of a run, an adapter or an edited model, if it is known.
    base: Option<String>,
    /// The parameters of the text model, if its config can be read.
    parameters: Option<u64>,
    /// Whether it is loaded.
    loaded: bool,
    /// Of a loaded model: the largest number of tokens of a prompt with its answer.
    context_tokens: Option<usize>,
    /// Of a loaded model: the memory that it is planned with, with all adapters of its base.
    planned_bytes: Option<u64>,
    /// Of a loaded model: the tokens that its MTP head drafts at once; 0 without one.
    draft_tokens: Option<usize>,
    /// Of a loaded model: the answers that it generates or that wait, with those of its base.
    answers: Option<usize>,
}

/// A request about a model.
#[derive(Debug, Deserialize, ToSchema)]
struct OneModel {
    /// Its id.
    model: String,
}

/// The models that can be opened, and which of them are loaded
///
/// Models of the hub that are completely on this machine, runs with exported weights, edited models, and
/// folders that the server was started with.
#[utoipa::path(get, path = "/models", tag = "models", responses((status = 200, body = Listed<ListedModel>)))]
async fn all(State(state): State<Shared>) -> Result<Json<Listed<ListedModel>>, Problem> {
    let loaded = state.workers.loaded();
    let found = blocking(move || Ok(models::list(state.runs.path(), &state.models))).await?;
    let items = found.into_iter().map(|model| {
        let of_it = loaded.iter().find(|loaded| loaded.models.contains(&model.id));
        ListedModel {
            loaded: of_it.is_some(),
            context_tokens: of_it.map(|loaded| loaded.ready.context_tokens),
            planned_bytes: of_it.map(|loaded| loaded.ready.planned_bytes),
            draft_tokens: of_it.map(|loaded| loaded.ready.draft_tokens),
            answers: of_it.map(|loaded| loaded.answers),
            id: model.id,
            name: model.name,
            kind: model.kind,
            base: model.base.map(|base| models::shown_name(&base).to_owned()),
            parameters: model.parameters,
        }
    });
    Ok(Json(Listed::whole(items.collect())))
}

/// Load a model
///
/// Requests for answers do so by themselves. The result of the task is what is known of the loaded model. It
/// fails in words if the model does not fit into the memory, for example beside a training run. Cancelling it
/// ends only the waiting. A model whose loading has begun is loaded to the end and can then be unloaded; one
/// that still waits for another is not loaded.
#[utoipa::path(post, path = "/models/load", tag = "models", request_body = OneModel,
    responses((status = 202, body = Task), (status = 404, body = Problem)))]
async fn load(
    State(state): State<Shared>,
    Body(asked): Body<OneModel>,
) -> Result<(StatusCode, Json<Task>), Problem> {
    let (state, model) = found(state, asked.model).await?;
    let (runtime, served) = (Handle::current(), state.clone());
    let task = state.tasks.start("load", move |work| {
        work.says(format!("loading {}", model.id));
        let opening = model.opening()?;
        let (_, ready) = runtime.block_on(async {
            tokio::select! {
                loaded = served.workers.load(&model, &opening) => Ok(loaded?),
                () = work.cancelled() => Err(cancelled()),
            }
        })?;
        Ok(json!({ "model": model.id, "context_tokens": ready.context_tokens,
            "planned_bytes": ready.planned_bytes, "draft_tokens": ready.draft_tokens }))
    })?;
    Ok((StatusCode::ACCEPTED, Json(task)))
}

/// Unload a model
///
/// Its memory is free then, unless the base of another loaded model is in it.
#[utoipa::path(post, path = "/models/unload", tag = "models", request_body = OneModel,
    responses((status = 204, description = "It is not loaded any more"), (status = 404, body = Problem),
        (status = 409, body = Problem)))]
async fn unload(State(state): State<Shared>, Body(asked): Body<OneModel>) -> Result<StatusCode, Problem> {
    let (state, model) = found(state, asked.model).await?;
    blocking(move || {
        state.workers.unload(&model, &model.opening()?)?;
        Ok(StatusCode::NO_CONTENT)
    })
    .await
}

async fn found(state: Shared, id: String) -> Result<(Shared, OpenableModel), Problem> {
    let find = move |state: &Served| {
        models::find(&id, state.runs.path(), &state.models)
            .ok_or_else(|| Problem::not_found("model", &id).advise("GET /api/v1/models lists them"))
    };
    blocking(move || find(&state).map(|model| (state, model))).await
}

impl From<Refusal> for Problem {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Invalid(text) => Self::bad_request(text),
            Refusal::Busy(_) => Self::new(StatusCode::TOO_MANY_REQUESTS, refusal.to_string()),
            Refusal::Answering(_) => Self::new(StatusCode::CONFLICT, refusal.to_string()),
            Refusal::NoRoom(_) | Refusal::Gone(_) | Refusal::Died(_) => {
                Self::new(StatusCode::SERVICE_UNAVAILABLE, refusal.to_string())
            }
            Refusal::Broken(failure) => failure.into(),
        }
    }
}
