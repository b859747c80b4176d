//! What can be done with a run: stop, resume, export, delete. Each is what the command of this name does.

use std::ffi::OsString;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use serde::{Deserialize, Serialize};
use serde_json::json;
use sparktune_app::cluster::elsewhere::refuse_if_possibly_succeeded;
use sparktune_app::launch::{Changes, launch, may_resume};
use sparktune_app::runs::{Awaited, request_stop};
use sparktune_runlog::RunView;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::api::runs::list::word;
use crate::followed::find;
use crate::ids::Id;
use crate::problem::{Body, Problem, blocking};
use crate::program;
use crate::state::Shared;
use crate::tasks::{Task, cancelled};

/// The time after which a trainer that has logged nothing yet is left alone.
const FIRST_WORDS: Duration = Duration::from_secs(30);
const BETWEEN_LOOKS: Duration = Duration::from_millis(100);

pub(crate) fn router() -> OpenApiRouter<Shared> {
    OpenApiRouter::new()
        .routes(routes!(stop))
        .routes(routes!(resume))
        .routes(routes!(export))
        .routes(routes!(delete))
}

type Accepted = (StatusCode, Json<Task>);

/// Ask a trainer to save a checkpoint and end
///
/// The task is done when the trainer has ended; its result is the state of the run and the step. Cancelling
/// it ends only the waiting: the trainer still saves a checkpoint and ends.
#[utoipa::path(post, path = "/runs/{id}/stop", tag = "runs", params(("id" = String, Path)),
    responses((status = 202, body = Task), (status = 404, body = Problem), (status = 409, body = Problem)))]
async fn stop(State(state): State<Shared>, Id(id): Id) -> Result<Accepted, Problem> {
    blocking(move || {
        let run = find(&state.runs, &id)?;
        // Whoever is told that there are too many tasks must not have stopped the run.
        let place = state.tasks.place_to_wait("stop")?;
        let stopping = request_stop(&run).map_err(|failure| conflict(failure.into()))?;
        let task = place.start(move |work| {
            let stopped = stopping.wait(|awaited| work.says(in_words(&awaited)), || work.is_cancelled())?;
            Ok(json!({"state": word(stopped.liveness), "step": stopped.view.steps_done()}))
        })?;
        Ok((StatusCode::ACCEPTED, Json(task)))
    })
    .await
}

/// A run that is in another state than the request needs is a conflict, not a wrong request.
fn conflict(problem: Problem) -> Problem {
    if problem.status() != StatusCode::BAD_REQUEST {
        return problem;
    }
    Problem { advice: problem.advice, ..Problem::new(StatusCode::CONFLICT, problem.detail) }
}

fn in_words(awaited: &Awaited) -> String {
    match awaited {
        Awaited::Busy { phase, step } if phase == "train" => {
            format!("waiting for the end of step {}", step + 1)
        }
        Awaited::Busy { phase, .. } => format!("waiting for the trainer, whose phase is \"{phase}\""),
        Awaited::Silent(seconds) => format!("the trainer is alive, but has logged nothing for {seconds} s"),
        Awaited::EndsAfter(step) => format!("the trainer ends after step {step}"),
        Awaited::Signalled => "the trainer has not answered yet, so it was sent a signal".to_owned(),
        Awaited::Frozen(pid) => {
            format!("the trainer is suspended and cannot end; `kill -CONT {pid}` lets it go on")
        }
    }
}

/// Continue a run from its newest checkpoint
///
/// The task is done when the trainer has written its first event. Cancelling it before then asks the trainer
/// to end.
#[utoipa::path(post, path = "/runs/{id}/resume", tag = "runs", params(("id" = String, Path)),
    responses((status = 202, body = Task), (status = 404, body = Problem), (status = 409, body = Problem)))]
async fn resume(State(state): State<Shared>, Id(id): Id) -> Result<Accepted, Problem> {
    blocking(move || {
        let run = find(&state.runs, &id)?;
        may_resume(&run).map_err(|failure| conflict(failure.into()))?;
        let program = state.program.clone();
        let task = state.tasks.start("resume", move |work| {
            let cancel = work.cancel();
            let asked = refuse_if_possibly_succeeded(&run, move || cancel.load(Ordering::Relaxed));
            asked.map_err(|failure| conflict(failure.into()))?;
            work.says("starting the trainer");
            let mut following = launch(&program, &run, Changes::Refused)?;
            let begun = Instant::now();
            loop {
                if work.is_cancelled() {
                    following.request_stop();
                    following.detach();
                    return Err(cancelled());
                }
                // Whether it has ended is asked first, so that its last events are read.
                let has_ended = following.has_ended();
                let view = match RunView::glance(&run) {
                    Ok(view) => view,
                    Err(error) => {
                        following.detach();
                        return Err(error.into());
                    }
                };
                let has_begun = view.attempts.back().is_some_and(|last| last.number >= following.attempt());
                if has_ended && let Some(ending) = following.ending(&view) {
                    let reason = view.finished().filter(|_| has_begun).and_then(|ended| ended.reason.clone());
                    let log = ending.log.map(|log| log.lines.join("\n"));
                    if let Some(failure) = ending.failure {
                        return Err(failure.into());
                    }
                    if let Some(text) = reason.or(log) {
                        return Err(Problem::new(StatusCode::CONFLICT, text));
                    }
                }
                if has_begun || has_ended || begun.elapsed() >= FIRST_WORDS {
                    let attempt = following.attempt();
                    following.detach();
                    return Ok(json!({"run": run.name(), "attempt": attempt}));
                }
                std::thread::sleep(BETWEEN_LOOKS);
            }
        })?;
        Ok((StatusCode::ACCEPTED, Json(task)))
    })
    .await
}

/// Which weights to export, and how.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
struct Export {
    /// The weights with the lowest held-out loss, instead of the planned ones.
    best: bool,
    /// Those of the checkpoint of this step.
    checkpoint: Option<u64>,
    /// As a GGUF file of this type, instead of the usual outputs.
    gguf: Option<String>,
    /// The adapter alone as a GGUF file.
    gguf_adapter: bool,
}

/// Write the outputs of a run again
///
/// The result of the task is what `sparktune export --json` prints.
#[utoipa::path(post, path = "/runs/{id}/export", tag = "runs", params(("id" = String, Path)), request_body = Export,
    responses((status = 202, body = Task), (status = 404, body = Problem)))]
async fn export(
    State(state): State<Shared>,
    Id(id): Id,
    Body(wanted): Body<Export>,
) -> Result<Accepted, Problem> {
    blocking(move || {
        let run = find(&state.runs, &id)?;
        let mut arguments: Vec<OsString> = vec!["export".into(), run.path().into()];
        if wanted.best {
            arguments.push("--best".into());
        }
        if let Some(step) = wanted.checkpoint {
            arguments.push(format!("--checkpoint={step}").into());
        }
        if let Some(kind) = wanted.gguf {
            // In one word with its flag, so that it is no flag of its own.
            arguments.push(format!("--gguf={kind}").into());
        }
        if wanted.gguf_adapter {
            arguments.push("--gguf-adapter".into());
        }
        let program = state.program.clone();
        let task = state.tasks.start("export", move |work| program::run(&program, arguments, work))?;
        Ok((StatusCode::ACCEPTED, Json(task)))
    })
    .await
}

/// What deleting a run has freed.
#[derive(Debug, Serialize, ToSchema)]
struct Freed {
    /// Its size.
    freed_bytes: u64,
}

/// Delete a run with everything in it
#[utoipa::path(delete, path = "/runs/{id}", tag = "runs", params(("id" = String, Path)),
    responses((status = 200, body = Freed), (status = 404, body = Problem), (status = 409, body = Problem)))]
async fn delete(State(state): State<Shared>, Id(id): Id) -> Result<Json<Freed>, Problem> {
    blocking(move || {
        let freed_bytes = find(&state.runs, &id)?.delete()?;
        Ok(Json(Freed { freed_bytes }))
    })
    .await
}
