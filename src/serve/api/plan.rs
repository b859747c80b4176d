//! The plan for some answers.
//!
//! Once model and data are known, a plan with other settings needs no reading and is made at once.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde_json::Value;
use sparktune_plan::{PlanError, missing};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::asked::{Asked, Gathered, Obstacle, gathered};
use crate::facts::{Known, read, stamps};
use crate::planned::{Planned, planned};
use crate::problem::{Body, Problem, blocking};
use crate::state::{Served, Shared};
use crate::tasks::{Task, Work};

pub(crate) fn router() -> OpenApiRouter<Shared> {
    OpenApiRouter::new().routes(routes!(plan))
}

/// Make a plan
///
/// A plan is made at once if model and data are known. Otherwise they are read first: the answer is 202 and a
/// task, whose result is the plan. What prevents a start is no error: it is in `problems`. Without data, a
/// plan for chats of ordinary length is made.
#[utoipa::path(post, path = "/plan", tag = "plan", request_body = Asked, responses(
    (status = 200, body = Planned), (status = 202, body = Task, description = "Model and data are being read"),
    (status = 400, body = Problem)))]
async fn plan(State(state): State<Shared>, Body(asked): Body<Asked>) -> Result<Response, Problem> {
    let planned = {
        let state = state.clone();
        blocking(move || Ok(at_once(&state, &asked))).await?
    };
    match planned {
        AtOnce::Planned(planned) => Ok(Json(planned).into_response()),
        AtOnce::ToRead(gathered) => {
            let served = state.clone();
            let task = state.tasks.start("plan", move |work| after_reading(&served, &gathered, work))?;
            Ok((StatusCode::ACCEPTED, Json(task)).into_response())
        }
    }
}

/// What can be said about answers without reading anything.
enum AtOnce {
    Planned(Box<Planned>),
    ToRead(Box<Gathered>),
}

fn at_once(state: &Served, asked: &Asked) -> AtOnce {
    let refused = |problems| AtOnce::Planned(Box::new(Planned::prevented(problems)));
    let gathered = match gathered(state, asked) {
        Ok(gathered) => gathered,
        Err(problems) => return refused(problems),
    };
    // Without data, ordinary chats are assumed; without a model, nothing can be said.
    let missing = missing(&gathered.answers);
    if gathered.answers.model.is_none() || (!missing.is_empty() && gathered.answers.from.is_some()) {
        return refused(Obstacle::of_error(PlanError::Missing(missing)));
    }
    match state.facts.get(&gathered.answers) {
        Some(known) => AtOnce::Planned(Box::new(planned(state, &gathered, &known))),
        None => AtOnce::ToRead(Box::new(gathered)),
    }
}

fn after_reading(state: &Served, gathered: &Gathered, work: &Work) -> Result<Value, Problem> {
    let planned = match known(state, gathered, work) {
        Ok(known) => planned(state, gathered, &known),
        // A cancelled task has no result.
        Err(problem) if work.is_cancelled() => return Err(problem),
        Err(Problem { r#where: setting, detail: what, advice, .. }) => {
            Planned::prevented(vec![Obstacle { setting, what, advice }])
        }
    };
    serde_json::to_value(planned).map_err(|error| Problem::bad_request(error.to_string()))
}

/// Returns what is known for these answers, after reading it if necessary.
///
/// # Errors
/// Model or data cannot be read.
fn known(state: &Served, gathered: &Gathered, work: &Work) -> Result<Arc<Known>, Problem> {
    if let Some(known) = state.facts.get(&gathered.answers) {
        return Ok(known);
    }
    let stamps = stamps(&gathered.answers);
    let known = read(&state.program, &gathered.answers, &work.listener())?;
    Ok(state.facts.put(&gathered.answers, stamps, known))
}
