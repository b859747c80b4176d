//! Starting a run: the ordinary trainer with its ordinary run folder. It is a process of its own from the
//! first step on, so the server may end at any moment.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use serde_json::json;
use sparktune_app::launch;
use sparktune_plan::{PlanError, missing};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::asked::{Asked, Obstacle, gathered};
use crate::problem::{Body, Problem, blocking};
use crate::state::Shared;
use crate::tasks::Task;

pub(crate) fn router() -> OpenApiRouter<Shared> {
    OpenApiRouter::new().routes(routes!(start))
}

/// Start a run
///
/// A task downloads what is missing, tokenises the data, creates the run's folder and starts the trainer. Its
/// result is `{"run": id}`. Cancelling it before the trainer has started leaves no run.
#[utoipa::path(post, path = "/runs", tag = "runs", request_body = Asked, responses(
    (status = 202, body = Task), (status = 400, body = Problem, description = "An answer is missing or wrong")))]
async fn start(
    State(state): State<Shared>,
    Body(asked): Body<Asked>,
) -> Result<(StatusCode, Json<Task>), Problem> {
    let served = state.clone();
    let gathered = blocking(move || {
        let gathered = gathered(&served, &asked).map_err(Obstacle::problem)?;
        match missing(&gathered.answers) {
            missing if missing.is_empty() => Ok(gathered),
            missing => Err(Obstacle::problem(Obstacle::of_error(PlanError::Missing(missing)))),
        }
    })
    .await?;
    let program = state.program.clone();
    let task = state.tasks.start("start", move |work| {
        let run = launch::start(&program, &gathered.answers, &work.listener())?;
        Ok(json!({"run": run.name()}))
    })?;
    Ok((StatusCode::ACCEPTED, Json(task)))
}
