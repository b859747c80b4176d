//! This machine: what it is, how it is doing, and whether training on it is exact.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use serde::Serialize;
use sparktune_app::findings::Finding;
use sparktune_app::machine::glance_at_machine;
use sparktune_telemetry::{DeviceSample, Machine};
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::locked::lock;
use crate::problem::{Problem, blocking};
use crate::program;
use crate::state::Shared;
use crate::tasks::Task;

pub(crate) fn router() -> OpenApiRouter<Shared> {
    OpenApiRouter::new().routes(routes!(machine)).routes(routes!(sample)).routes(routes!(doctor))
}

/// This machine.
#[derive(Debug, Serialize, ToSchema)]
struct DescribedMachine {
    /// The facts: processor, memory, GPUs, driver.
    #[schema(value_type = Object)]
    facts: Machine,
    /// What follows from them for training: `what`, `found`, `advice`, and a `severity` of `good`,
    /// `skipped`, `unknown`, `note` or `problem`.
    #[schema(value_type = Vec<Object>)]
    findings: Vec<Finding>,
    /// The findings in words, one line each.
    sentences: Vec<String>,
}

/// What this machine is
#[utoipa::path(get, path = "/machine", tag = "machine", responses((status = 200, body = DescribedMachine)))]
async fn machine(State(state): State<Shared>) -> Result<Json<DescribedMachine>, Problem> {
    blocking(move || {
        let findings = glance_at_machine(&state.program, state.runs.path());
        let sentence = |finding: &Finding| format!("{}: {}", finding.what, finding.found);
        let sentences = findings.iter().map(sentence).collect();
        Ok(Json(DescribedMachine { facts: Machine::gather(), findings, sentences }))
    })
    .await
}

/// How this machine is doing now
///
/// Memory, load of the CPU since the previous sample, GPUs. What cannot be measured is absent.
#[utoipa::path(get, path = "/machine/sample", tag = "machine", responses((status = 200, body = Object)))]
async fn sample(State(state): State<Shared>) -> Result<Json<DeviceSample>, Problem> {
    blocking(move || Ok(Json(lock(&state.sampler).sample()))).await
}

/// Check this machine, and whether training on it is exact
///
/// The result of the task is what `sparktune doctor --json` prints.
#[utoipa::path(post, path = "/doctor", tag = "machine", responses((status = 202, body = Task)))]
async fn doctor(State(state): State<Shared>) -> Result<(StatusCode, Json<Task>), Problem> {
    let program = state.program.clone();
    let runs_dir = state.runs.path().to_owned();
    let task = state.tasks.start("doctor", move |work| {
        let arguments = ["doctor".as_ref(), "--runs-dir".as_ref(), runs_dir.as_os_str()];
        program::run_and_accept_any_end(&program, arguments, work)
    })?;
    Ok((StatusCode::ACCEPTED, Json(task)))
}
