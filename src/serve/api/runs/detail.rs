//! One run, its samples, and its report.

use std::path::Path;

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::HeaderValue;
use axum::http::header::{CONTENT_SECURITY_POLICY, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use serde_json::{Value, json};
use sparktune_app::failure::Failure;
use sparktune_app::members_of_run::{MemberRow, exchange, members};
use sparktune_plan::Plan;
use sparktune_runlog::RunDir;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::api::Listed;
use crate::api::runs::list::Summary;
use crate::followed::Known;
use crate::ids::Id;
use crate::problem::{Problem, blocking};
use crate::program;
use crate::state::Shared;

/// The most outputs that are listed.
const MOST_OUTPUTS: usize = 200;
/// The policy of a report: it needs its style, and nothing else.
const REPORT_POLICY: &str =
    "default-src 'none'; style-src 'unsafe-inline'; img-src data:; frame-ancestors 'self'; sandbox";

pub(crate) fn router() -> OpenApiRouter<Shared> {
    OpenApiRouter::new().routes(routes!(read)).routes(routes!(samples)).routes(routes!(report))
}

/// A run.
#[derive(Debug, Serialize, ToSchema)]
struct Run {
    #[serde(flatten)]
    summary: Summary,
    /// The last event that this answer contains, `ATTEMPT.SEQ`. The events after it begin there.
    position: String,
    /// The folder, to be shown.
    folder: String,
    /// The remaining time and what it is computed from.
    eta: Option<Remaining>,
    /// Everything that the events say, folded, without the curves.
    #[schema(value_type = Object)]
    view: Value,
    /// The ranks of a run of several machines in words, as rank 0 saw them last; none for a run of one
    /// process.
    #[schema(value_type = Vec<Object>)]
    members: Vec<MemberRow>,
    /// How long a step waits for the exchange with other ranks, in words; null for a run of one process, and
    /// before the first exchange.
    exchange: Option<String>,
    /// Every setting with its reason; null if the plan cannot be read.
    plan: Option<PlanOfRun>,
    /// The files and folders that were made.
    outputs: Vec<Output>,
    /// Problems of its files.
    notices: Vec<String>,
}

/// The remaining time.
#[derive(Debug, Serialize, ToSchema)]
struct Remaining {
    /// The remaining time.
    seconds: f64,
    /// The number of remaining steps.
    steps_left: u64,
    /// The measured time of a step.
    step_ms: f64,
}

/// The plan of a run.
#[derive(Debug, Serialize, ToSchema)]
struct PlanOfRun {
    /// The plan as its file has it.
    toml: String,
    /// Each value with its origin and reason.
    settings: Vec<PlannedValue>,
    /// Answers that are far from what was recommended.
    warnings: Vec<String>,
}

/// A value of a plan.
#[derive(Debug, Serialize, ToSchema)]
struct PlannedValue {
    /// The key in the file.
    key: String,
    /// The value as text; empty if it is not set.
    value: String,
    /// Where it comes from.
    #[schema(value_type = String)]
    origin: sparktune_plan::Origin,
    /// Why it is so.
    reason: String,
}

/// A file or folder that a run has made.
#[derive(Debug, Serialize, ToSchema)]
struct Output {
    /// Its name below `outputs/`.
    name: String,
    /// `model`, `adapter`, `gguf` or `text`.
    kind: &'static str,
    /// Its size.
    bytes: u64,
    /// Its path, to be shown.
    path: String,
}

/// A run with everything but its curves
#[utoipa::path(get, path = "/runs/{id}", tag = "runs", params(("id" = String, Path)),
    responses((status = 200, body = Run), (status = 404, body = Problem)))]
async fn read(State(state): State<Shared>, Id(id): Id) -> Result<Json<Run>, Problem> {
    blocking(move || {
        let followed = state.followed.get(&state.runs, &id)?;
        let known = followed.read()?;
        let eta = known.liveness.is_live().then(|| known.view.eta()).flatten();
        Ok(Json(Run {
            summary: Summary::of(&followed.run, &known.view, known.liveness),
            position: position(&known),
            folder: followed.run.path().display().to_string(),
            eta: eta.map(|eta| Remaining {
                seconds: eta.seconds,
                steps_left: eta.steps_left,
                step_ms: eta.ms_per_step,
            }),
            view: view(&known),
            members: members(&known.view),
            exchange: exchange(&known.view),
            plan: plan(&followed.run),
            outputs: outputs(&followed.run),
            notices: known.notices.clone(),
        }))
    })
    .await
}

/// Returns the position of the last event, for a stream of those after it.
pub(crate) fn position(known: &Known) -> String {
    format!("{}.{}", known.position.0, known.position.1)
}

/// Returns the view without its curves, which are thousands of numbers.
fn view(known: &Known) -> Value {
    let view = &known.view;
    let best = view.best().map(|(step, loss_nats)| json!({"step": step, "loss_nats": loss_nats}));
    json!({
        "attempts": view.attempts,
        "phase": view.phase,
        "progress": view.progress,
        "last_step": view.last_step,
        "loss_ema": view.loss_ema,
        "base_eval": view.base_eval,
        "last_eval": view.last_eval,
        "best": best,
        "fp8_loss": view.fp8_loss,
        "head_evals": view.head_evals,
        "device": view.device,
        "checkpoints": view.checkpoints,
        "warnings": view.warnings,
        "warning_count": view.warning_count,
        "last_control": view.last_control,
        "unknown_events": view.unknown_events,
        "last_event_us": view.last_event_us,
        "last_work_us": view.last_work_us,
        "exported_step": view.exported_step(),
        "mem_peak_bytes": view.mem_peak_bytes(),
        "step_parts": view.step_parts(),
        "marks": view.marks(),
    })
}

fn plan(run: &RunDir) -> Option<PlanOfRun> {
    let toml = run.read_plan().ok()?;
    let advice = Plan::from_toml(&toml, "plan.toml").ok().and_then(|plan| plan.advice);
    let (explain, warnings) = advice.map(|advice| (advice.explain, advice.warnings)).unwrap_or_default();
    let settings = explain.into_iter().map(|row| PlannedValue {
        key: row.key,
        value: row.value,
        origin: row.origin,
        reason: row.reason,
    });
    Some(PlanOfRun { toml, settings: settings.collect(), warnings })
}

/// Lists what is in `outputs/`.
fn outputs(run: &RunDir) -> Vec<Output> {
    let folder = run.outputs();
    let Ok(entries) = std::fs::read_dir(&folder) else { return Vec::new() };
    let mut outputs: Vec<Output> = entries
        .flatten()
        .filter(|entry| !entry.file_name().as_encoded_bytes().starts_with(b"."))
        .take(MOST_OUTPUTS)
        .map(|entry| {
            let path = entry.path();
            let name = entry.file_name().to_string_lossy().into_owned();
            let kind = kind_of(&name, &path);
            Output { kind, bytes: size_of(&path), path: path.display().to_string(), name }
        })
        .collect();
    outputs.sort_by(|one, other| one.name.cmp(&other.name));
    outputs
}

fn kind_of(name: &str, path: &Path) -> &'static str {
    let has = |file: &str| path.join(file).is_file();
    match name {
        _ if name == "gguf" || name.ends_with(".gguf") => "gguf",
        _ if has("adapter_config.json") => "adapter",
        _ if has("config.json") => "model",
        _ => "text",
    }
}

/// Returns the size of a file, or of the files in a folder and in the folders in it.
fn size_of(path: &Path) -> u64 {
    let Ok(meta) = path.symlink_metadata() else { return 0 };
    if !meta.is_dir() {
        return meta.len();
    }
    let entries = std::fs::read_dir(path).into_iter().flatten().flatten();
    entries.map(|entry| size_of(&entry.path())).sum()
}

/// An answer that the model gave during training.
#[derive(Debug, Serialize, ToSchema)]
struct Answer {
    /// Steps trained so far; 0 for the base.
    step: u64,
    /// The prompt.
    prompt: String,
    /// The answer.
    text: String,
    /// Its tokens.
    tokens: u64,
    /// Whether a later attempt repeated its step.
    discarded: bool,
}

/// The answers that the model gave during training
#[utoipa::path(get, path = "/runs/{id}/samples", tag = "runs", params(("id" = String, Path)),
    responses((status = 200, body = Listed<Answer>), (status = 404, body = Problem)))]
async fn samples(State(state): State<Shared>, Id(id): Id) -> Result<Json<Listed<Answer>>, Problem> {
    blocking(move || {
        let followed = state.followed.get(&state.runs, &id)?;
        let known = followed.read()?;
        let answers = known.samples.iter().map(|(sample, discarded)| Answer {
            step: sample.step,
            prompt: sample.prompt.clone(),
            text: sample.text.clone(),
            tokens: sample.tokens,
            discarded: *discarded,
        });
        Ok(Json(Listed::whole(answers.collect())))
    })
    .await
}

/// The report of a run as a page of its own
#[utoipa::path(get, path = "/runs/{id}/report", tag = "runs", params(("id" = String, Path)),
    responses((status = 200, content_type = "text/html", body = String), (status = 404, body = Problem)))]
async fn report(State(state): State<Shared>, Id(id): Id) -> Result<Response, Problem> {
    let page = blocking(move || {
        let run = crate::followed::find(&state.runs, &id)?;
        let folder =
            tempfile::tempdir().map_err(|error| Failure::io("create", &std::env::temp_dir(), &error))?;
        let file = folder.path().join("report.html");
        let arguments = ["report".as_ref(), run.path().as_os_str(), "--output".as_ref(), file.as_os_str()];
        program::run_briefly(&state.program, arguments)?;
        std::fs::read(&file).map_err(|error| Failure::io("read", &file, &error).into())
    })
    .await?;
    let mut response = Body::from(page).into_response();
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/html; charset=utf-8"));
    headers.insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static(REPORT_POLICY));
    Ok(response)
}
