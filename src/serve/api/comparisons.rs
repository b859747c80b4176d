//! Comparisons of models: the suites, starting one, and those that were made.

use std::time::{Duration, Instant};

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sparktune_app::comparison::{self, MOST_MODELS, Request, store};
use sparktune_app::failure::{Exit, Failure};
use sparktune_app::models;
use sparktune_compare::{Comparison, Suite};
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::api::Listed;
use crate::ids::Id;
use crate::problem::{Body, Problem, blocking};
use crate::state::{Served, Shared};
use crate::tasks::{Task, Work};
use crate::votes;

/// The number of answers that are computed at a time.
const AT_A_TIME: usize = 4;
/// How long a comparison waits for room on the disk, and how often it looks.
const WAIT_FOR_ROOM: Duration = Duration::from_secs(3600);
const BETWEEN_TRIES: Duration = Duration::from_secs(2);

pub(crate) fn router() -> OpenApiRouter<Shared> {
    OpenApiRouter::new().routes(routes!(suites)).routes(routes!(list, start)).routes(routes!(read, forget))
}

/// A suite of prompts that is part of the program.
#[derive(Debug, Serialize, ToSchema)]
struct ListedSuite {
    /// Its name.
    name: &'static str,
    /// What it is about, in a sentence.
    about: &'static str,
    /// The number of its prompts.
    prompts: usize,
}

/// The suites of prompts, the usual one first
#[utoipa::path(get, path = "/suites", tag = "comparisons", responses((status = 200, body = Listed<ListedSuite>)))]
async fn suites() -> Json<Listed<ListedSuite>> {
    let items = comparison::suites().into_iter();
    let items =
        items.map(|suite| ListedSuite { name: suite.name, about: suite.about, prompts: suite.prompts });
    Json(Listed::whole(items.collect()))
}

/// A comparison in a list.
#[derive(Debug, Serialize, ToSchema)]
struct ListedComparison {
    /// Its id.
    id: String,
    /// The time of its end, in microseconds since the Unix epoch.
    created_us: u64,
    /// The name of its suite.
    suite: String,
    /// The number of its prompts.
    prompts: usize,
    /// The names of its models.
    models: Vec<String>,
    /// The verdict on each model after the first, by the most telling measure.
    #[schema(value_type = Vec<String>)]
    verdicts: Vec<Value>,
}

/// The comparisons, the newest first
#[utoipa::path(get, path = "/comparisons", tag = "comparisons",
    responses((status = 200, body = Listed<ListedComparison>)))]
async fn list(State(state): State<Shared>) -> Result<Json<Listed<ListedComparison>>, Problem> {
    blocking(move || {
        let items = store::list(state.runs.path()).into_iter().map(|listed| ListedComparison {
            verdicts: listed.verdicts.iter().map(|verdict| json!(verdict)).collect(),
            id: listed.id,
            created_us: listed.created_us,
            suite: listed.suite,
            prompts: listed.prompts,
            models: listed.models,
        });
        Ok(Json(Listed::whole(items.collect())))
    })
    .await
}

/// What to compare.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct WantedComparison {
    /// The ids of the models. The others are compared with the first; `run:NAME@base` is what a run started
    /// from, and `edited:NAME@base` the base of an edited model.
    models: Vec<String>,
    /// The name of a suite.
    suite: String,
    /// Ask at most this many prompts, spread over the suite.
    #[serde(default)]
    max_prompts: Option<usize>,
}

/// Compare models
///
/// The result of the task names the comparison. Code that models write is not run, and no command judges:
/// both can only be asked for in a terminal.
#[utoipa::path(post, path = "/comparisons", tag = "comparisons", request_body = WantedComparison,
    responses((status = 202, body = Task), (status = 400, body = Problem), (status = 404, body = Problem)))]
async fn start(
    State(state): State<Shared>,
    Body(wanted): Body<WantedComparison>,
) -> Result<(StatusCode, Json<Task>), Problem> {
    blocking(move || {
        if wanted.models.is_empty() || wanted.models.len() > MOST_MODELS {
            let text = format!("{} models cannot be compared", wanted.models.len());
            return Err(Problem::bad_request(text).at("models").advise(format!("Name 1 to {MOST_MODELS}")));
        }
        let suite = suite_of(&wanted)?;
        let find = |id: &String| {
            models::find(id, state.runs.path(), &state.models).ok_or_else(|| {
                Problem::not_found("model", id).at("models").advise("GET /api/v1/models lists them")
            })
        };
        let request = Request {
            models: wanted.models.iter().map(find).collect::<Result<_, _>>()?,
            suite,
            judge: None,
            run_code: false,
            at_a_time: AT_A_TIME,
            decoding: state.limits.models.decoding,
        };
        let served = state.clone();
        let program = state.program.clone();
        let task = state.tasks.start("comparison", move |work| {
            let mut comparison = comparison::compare(&program, &request, &work.listener())?;
            keep(&served, &mut comparison, work)?;
            Ok(json!({"comparison": comparison.id}))
        })?;
        Ok((StatusCode::ACCEPTED, Json(task)))
    })
    .await
}

/// Keeps a comparison. While the disk is full it waits, because the answers may have taken an hour.
fn keep(state: &Served, comparison: &mut Comparison, work: &Work) -> Result<(), Failure> {
    let deadline = Instant::now() + WAIT_FOR_ROOM;
    loop {
        match store::keep(state.runs.path(), comparison) {
            Err(failure)
                if failure.exit == Exit::Device && Instant::now() < deadline && !work.is_cancelled() =>
            {
                work.says(format!("{failure}. This is tried again until there is room, for up to an hour"));
                std::thread::sleep(BETWEEN_TRIES);
            }
            ended => return ended,
        }
    }
}

/// Returns the suite of the program that is asked for. A name that is none is never taken as that of a file.
fn suite_of(wanted: &WantedComparison) -> Result<Suite, Problem> {
    let names: Vec<&str> = comparison::suites().iter().map(|suite| suite.name).collect();
    if !names.contains(&wanted.suite.as_str()) {
        return Err(Problem::not_found("suite", &wanted.suite)
            .at("suite")
            .advise(format!("There are {}", names.join(", "))));
    }
    let mut suite = comparison::find_suite(&wanted.suite)?;
    if let Some(most) = wanted.max_prompts {
        suite.limit(most.max(1));
    }
    Ok(suite)
}

/// A comparison with all answers
#[utoipa::path(get, path = "/comparisons/{id}", tag = "comparisons", params(("id" = String, Path)),
    responses((status = 200, body = Object), (status = 404, body = Problem)))]
async fn read(State(state): State<Shared>, Id(id): Id) -> Result<Json<Value>, Problem> {
    blocking(move || Ok(Json(json!(find(&state, &id)?)))).await
}

/// Delete a comparison, and the votes on it
#[utoipa::path(delete, path = "/comparisons/{id}", tag = "comparisons", params(("id" = String, Path)),
    responses((status = 204, description = "It is deleted"), (status = 404, body = Problem)))]
async fn forget(State(state): State<Shared>, Id(id): Id) -> Result<StatusCode, Problem> {
    blocking(move || {
        refuse_unknown(&state, &id)?;
        store::delete(state.runs.path(), &id)?;
        votes::forget(&state, &id)?;
        Ok(StatusCode::NO_CONTENT)
    })
    .await
}

/// Returns the comparison of this id.
pub(crate) fn find(state: &Shared, id: &str) -> Result<Comparison, Problem> {
    refuse_unknown(state, id)?;
    Ok(store::read(state.runs.path(), id)?)
}

fn refuse_unknown(state: &Shared, id: &str) -> Result<(), Problem> {
    if store::is_kept(state.runs.path(), id) {
        return Ok(());
    }
    Err(Problem::not_found("comparison", id).advise("GET /api/v1/comparisons lists them"))
}
