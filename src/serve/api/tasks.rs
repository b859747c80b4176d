//! Tasks: their state, their progress, their end.

use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::api::Listed;
use crate::ids::Id;
use crate::problem::Problem;
use crate::sse::{self, Waited};
use crate::state::Shared;
use crate::tasks::{Task, TaskState};

/// The shortest time between two events of a task.
const BETWEEN_EVENTS: Duration = Duration::from_millis(100);

pub(crate) fn router() -> OpenApiRouter<Shared> {
    OpenApiRouter::new().routes(routes!(list)).routes(routes!(read, cancel)).routes(routes!(follow))
}

/// The tasks of this server, the newest first
///
/// Without their results, which are read one by one.
#[utoipa::path(get, path = "/tasks", tag = "tasks", responses((status = 200, body = Listed<Task>)))]
async fn list(State(state): State<Shared>) -> Json<Listed<Task>> {
    Json(Listed::whole(state.tasks.list()))
}

/// A task
#[utoipa::path(get, path = "/tasks/{id}", tag = "tasks", params(("id" = String, Path)),
    responses((status = 200, body = Task), (status = 404, body = Problem)))]
async fn read(State(state): State<Shared>, Id(id): Id) -> Result<Json<Task>, Problem> {
    let task = state.tasks.watch(&id)?.borrow().clone();
    Ok(Json(task))
}

/// Cancel a task
///
/// It ends soon, and its state is then `cancelled`. What it has asked of others may go on: `stop`, `resume`
/// and `load` say at the requests that start them what does.
#[utoipa::path(delete, path = "/tasks/{id}", tag = "tasks", params(("id" = String, Path)),
    responses((status = 202, body = Task), (status = 404, body = Problem)))]
async fn cancel(State(state): State<Shared>, Id(id): Id) -> Result<(StatusCode, Json<Task>), Problem> {
    Ok((StatusCode::ACCEPTED, Json(state.tasks.cancel(&id)?)))
}

/// Follow a task
///
/// Server-sent events named `task`, each with the task; the stream ends with the task.
#[utoipa::path(get, path = "/tasks/{id}/events", tag = "tasks", params(("id" = String, Path)),
    responses((status = 200, content_type = "text/event-stream", body = String), (status = 404, body = Problem)))]
async fn follow(State(state): State<Shared>, Id(id): Id) -> Result<Response, Problem> {
    let mut changes = state.tasks.watch(&id)?;
    Ok(sse::stream(&state, |mut events| async move {
        loop {
            let task = changes.borrow_and_update().clone();
            let mut block = String::new();
            sse::frame(&mut block, "task", None, &serde_json::to_string(&task).unwrap_or_default());
            if !events.send(block).await || task.state != TaskState::Running {
                return;
            }
            // A task that reports nothing for long is waited for in steps, to notice a reader who has left.
            while !changes.has_changed().unwrap_or(false) {
                if events.pause(BETWEEN_EVENTS).await == Waited::Left {
                    return;
                }
            }
        }
    }))
}
