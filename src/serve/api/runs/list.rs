//! The list of runs.

use std::collections::HashMap;
use std::sync::{LazyLock, Mutex};

use axum::Json;
use axum::extract::State;
use serde::{Deserialize, Serialize};
use sparktune_app::models::shown_name;
use sparktune_app::runs::planned;
use sparktune_plan::Plan;
use sparktune_runlog::{Error, Lease, Liveness, Outcome, RunDir, RunView, RunsRoot, label_of};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::api::Listed;
use crate::locked::lock;
use crate::problem::{Params, Problem, blocking};
use crate::state::Shared;

/// The number of runs of one answer.
const USUAL: usize = 50;
const MOST: usize = 500;
/// The number of summaries that are kept in memory.
const KEPT: usize = 2000;

pub(crate) fn router() -> OpenApiRouter<Shared> {
    OpenApiRouter::new().routes(routes!(list))
}

/// A run in a few figures. What is not known is null.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct Summary {
    /// The name of its folder.
    pub id: String,
    /// The name that the user chose, or that of the model.
    pub name: String,
    /// The model that is trained: an id of the hub, or the name of a folder.
    pub model: Option<String>,
    /// `lora`, `full` or `head`.
    pub method: Option<String>,
    /// The peak learning rate.
    pub learning_rate: Option<f64>,
    /// The LoRA rank; none for full fine-tuning.
    pub rank: Option<u32>,
    /// The device, in words.
    pub device: Option<String>,
    /// The run or adapter that it started from, if not from a published model.
    pub from: Option<String>,
    /// `not_started`, `running`, `stalled`, `crashed`, `stopped`, `done`, `failed`, `diverged`, `gone` or
    /// `unreadable`.
    pub state: &'static str,
    /// Why it ended so, or why it cannot be read.
    pub reason: Option<String>,
    /// Steps done.
    pub step: u64,
    /// Steps of the whole run.
    pub steps_total: Option<u64>,
    /// The share of the steps that is done.
    pub progress: Option<f64>,
    /// The moving average of the training loss.
    pub loss_nats: Option<f64>,
    /// The base's held-out loss.
    pub base_eval_nats: Option<f64>,
    /// The last held-out loss.
    pub last_eval_nats: Option<f64>,
    /// The lowest held-out loss.
    pub best_eval_nats: Option<f64>,
    /// Its step.
    pub best_step: Option<u64>,
    /// Tokens per second.
    pub tokens_per_s: Option<f64>,
    /// The remaining time.
    pub eta_s: Option<f64>,
    /// When the run started, in microseconds since the Unix epoch.
    pub started_us: Option<u64>,
    /// The time of its last event.
    pub last_event_us: Option<u64>,
}

impl Summary {
    /// Describes a run by its events and its state.
    pub(crate) fn of(run: &RunDir, view: &RunView, liveness: Liveness) -> Self {
        let id = run.name();
        let started = view.attempts.back().map(|attempt| &attempt.started);
        let text = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
        let (step, steps_total) = (view.steps_done(), view.total_steps());
        let plan = run.read_plan().ok().and_then(|text| Plan::from_toml(&text, "plan.toml").ok());
        let finite = |value: Option<f64>| value.filter(|value| value.is_finite());
        Self {
            name: label_of(&id).unwrap_or(&id).to_owned(),
            model: started.and_then(|started| text(shown_name(&started.model))),
            method: started.and_then(|started| text(&started.method)),
            learning_rate: plan.as_ref().map(|plan| plan.optimizer.learning_rate),
            rank: plan.map(|plan| plan.method.rank()).filter(|rank| *rank > 0),
            device: started.and_then(|started| text(&started.device)),
            from: started.and_then(|started| started.from.clone()),
            state: word(liveness),
            reason: view.finished().and_then(|finished| finished.reason.clone()),
            step,
            steps_total,
            progress: steps_total.filter(|total| *total > 0).map(|total| step as f64 / total as f64),
            loss_nats: finite(view.loss_ema),
            base_eval_nats: finite(view.base_eval.as_ref().map(|eval| eval.loss_nats)),
            last_eval_nats: finite(view.last_eval.as_ref().map(|eval| eval.loss_nats)),
            best_eval_nats: finite(view.best().map(|(_, loss)| loss)),
            best_step: view.best().map(|(step, _)| step),
            tokens_per_s: finite(view.tokens_per_s()),
            eta_s: liveness.is_live().then(|| view.eta()).flatten().map(|eta| eta.seconds),
            started_us: view.attempts.front().map(|attempt| attempt.started_us),
            last_event_us: view.last_event_us,
            id,
        }
    }

    /// Describes a run that cannot be read.
    fn unreadable(run: &RunDir, error: &Error) -> Self {
        let empty = Self::of(run, &RunView::default(), Liveness::NotStarted);
        Self { state: "unreadable", reason: Some(error.to_string()), ..empty }
    }
}

/// Returns the word for a state.
pub(crate) fn word(liveness: Liveness) -> &'static str {
    match liveness {
        Liveness::NotStarted => "not_started",
        Liveness::Running => "running",
        Liveness::Stalled { .. } => "stalled",
        Liveness::Crashed => "crashed",
        Liveness::Gone => "gone",
        Liveness::Finished { outcome } => match outcome {
            Outcome::Completed => "done",
            Outcome::Diverged => "diverged",
            Outcome::Stopped => "stopped",
            Outcome::Failed | Outcome::Unknown => "failed",
        },
    }
}

/// The newest attempt of a run and the size of its log: a run whose trainer has ended changes only with
/// them.
type Signature = (u32, u64);

/// Summaries of runs whose trainer has ended, so that a long list is read once.
static ENDED: LazyLock<Mutex<HashMap<std::path::PathBuf, (Signature, Summary)>>> =
    LazyLock::new(Mutex::default);

/// Returns the summary of a run.
fn summary(run: &RunDir) -> Summary {
    read(run).unwrap_or_else(|error| Summary::unreadable(run, &error))
}

fn read(run: &RunDir) -> Result<Summary, Error> {
    let attempt = run.attempts()?.last().copied().unwrap_or(0);
    let bytes = std::fs::metadata(run.event_file(attempt)).map_or(0, |file| file.len());
    let signature = (attempt, bytes);
    let is_held = Lease::is_held(run)?;
    if !is_held
        && let Some((known, summary)) = lock(&ENDED).get(run.path())
        && *known == signature
    {
        return Ok(summary.clone());
    }
    let mut view = RunView::glance(run)?;
    if let Some(planned) = planned(run) {
        view.expect(planned);
    }
    let liveness = view.liveness(run)?;
    let summary = Summary::of(run, &view, liveness);
    if !is_held && !liveness.is_live() {
        let mut ended = lock(&ENDED);
        if ended.len() >= KEPT {
            ended.clear();
        }
        ended.insert(run.path().to_owned(), (signature, summary.clone()));
    }
    Ok(summary)
}

/// Returns the newest runs that are older than `before`, and whether there are more.
///
/// # Errors
/// The folder cannot be listed.
pub(crate) fn newest(
    root: &RunsRoot,
    before: Option<&str>,
    most: usize,
) -> Result<(Vec<Summary>, bool), Error> {
    let runs = root.list()?;
    let mut older = runs.iter().rev().filter(|run| before.is_none_or(|before| run.name().as_str() < before));
    let summaries = older.by_ref().take(most).map(summary).collect();
    Ok((summaries, older.next().is_some()))
}

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
struct Page {
    /// The number of runs, 50 by default and 500 at most.
    limit: Option<usize>,
    /// Only runs older than this one: `next` of the previous answer.
    before: Option<String>,
}

/// The runs, the newest first
#[utoipa::path(get, path = "/runs", tag = "runs", params(Page), responses((status = 200, body = Listed<Summary>)))]
async fn list(
    State(state): State<Shared>,
    Params(page): Params<Page>,
) -> Result<Json<Listed<Summary>>, Problem> {
    blocking(move || {
        let most = page.limit.unwrap_or(USUAL).clamp(1, MOST);
        let (items, has_more) = newest(&state.runs, page.before.as_deref(), most)?;
        let next = items.last().filter(|_| has_more).map(|last| last.id.clone());
        Ok(Json(Listed { items, next }))
    })
    .await
}
