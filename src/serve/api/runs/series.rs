//! The curves of a run.

use std::collections::BTreeMap;

use axum::body::Bytes;
use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;
use serde::{Deserialize, Serialize};
use sparktune_runlog::{About, Charts, METRICS, Mark, Series};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::api::runs::detail::position;
use crate::followed::Known;
use crate::ids::Id;
use crate::problem::{Params, Problem, blocking};
use crate::state::Shared;
use crate::steps::{Curve, LOSS, Range, of_buckets};

/// The number of columns if none is asked for, and the most.
const USUAL: usize = 1000;
const MOST: usize = 5000;

pub(crate) fn router() -> OpenApiRouter<Shared> {
    OpenApiRouter::new().routes(routes!(series))
}

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
struct Wanted {
    /// The metrics, separated by commas; all if absent.
    metrics: Option<String>,
    /// The number of columns of each curve, 1000 by default and 5000 at most.
    points: Option<usize>,
    /// The first step of the range.
    first_step: Option<u64>,
    /// The last step of the range.
    last_step: Option<u64>,
}

/// The curves of a run.
#[derive(Debug, Serialize, ToSchema)]
struct Curves {
    /// The curves by metric. One without a value is left out.
    series: BTreeMap<&'static str, Curve>,
    /// What the metrics are.
    metrics: Vec<DescribedMetric>,
    /// The evaluations in the range, and that of the base, whose step is 0.
    evals: Vec<Evaluation>,
    /// The checkpoints.
    checkpoints: Vec<Checkpoint>,
    /// Where later attempts continued.
    resumed: Vec<Resumed>,
    /// The curves of the steps that a later attempt repeated.
    discarded: BTreeMap<&'static str, Curve>,
    /// The last event that this answer contains, `ATTEMPT.SEQ`.
    position: String,
    /// The last step of the run.
    last_step: u64,
}

/// A metric.
#[derive(Debug, Serialize, ToSchema)]
struct DescribedMetric {
    /// Its name in `series`.
    name: &'static str,
    /// Its name in words.
    title: &'static str,
    /// Its unit; empty for plain numbers.
    unit: &'static str,
    /// `training`, `machine` or `head`.
    about: &'static str,
}

/// An evaluation on the eval set.
#[derive(Debug, Serialize, ToSchema)]
struct Evaluation {
    /// Steps trained so far.
    step: u64,
    /// The loss; null if it was not finite.
    loss_nats: Option<f64>,
    /// Whether it was the best so far.
    best: bool,
}

/// A checkpoint.
#[derive(Debug, Serialize, ToSchema)]
struct Checkpoint {
    /// Its step.
    step: u64,
    /// Whether its held-out loss was the lowest so far.
    best: bool,
}

/// Where an attempt continued.
#[derive(Debug, Serialize, ToSchema)]
struct Resumed {
    /// The step of the checkpoint.
    step: u64,
    /// The attempt.
    attempt: u32,
}

/// The curves of a run
///
/// Each curve has columns of the same number of steps, with the smallest, the largest, the mean and the
/// last value of each, so that a single spike in a million steps stays visible.
#[utoipa::path(get, path = "/runs/{id}/series", tag = "runs", params(("id" = String, Path), Wanted),
    responses((status = 200, body = Curves), (status = 404, body = Problem)))]
async fn series(
    State(state): State<Shared>,
    Id(id): Id,
    Params(wanted): Params<Wanted>,
) -> Result<impl IntoResponse, Problem> {
    let json = blocking(move || {
        let range = Range {
            first: wanted.first_step.unwrap_or(0),
            last: wanted.last_step.unwrap_or(u64::MAX),
            points: wanted.points.unwrap_or(USUAL).clamp(1, MOST),
        };
        let names: Option<Vec<&str>> = wanted.metrics.as_deref().map(|names| names.split(',').collect());
        if let Some(unknown) = names.iter().flatten().find(|name| !is_known(name)) {
            let known: Vec<&str> = described().map(|metric| metric.name).collect();
            return Err(Problem::bad_request(format!("there is no metric '{unknown}'"))
                .at("metrics")
                .advise(format!("There are {}", known.join(", "))));
        }
        let is_wanted = |name: &str| names.as_ref().is_none_or(|names| names.contains(&name));
        let followed = state.followed.get(&state.runs, &id)?;
        let mut known = followed.read()?;
        let question = format!("{range:?} {:?}", wanted.metrics);
        if let Some(answer) = known.answers.get(&question) {
            return Ok(answer.clone());
        }
        let curves = curves(&known, range, is_wanted);
        let answer = Bytes::from(serde_json::to_vec(&curves).expect("curves are JSON"));
        known.answers.insert(question, answer.clone());
        Ok(answer)
    })
    .await?;
    Ok(([(CONTENT_TYPE, "application/json")], json))
}

fn curves(known: &Known, range: Range, is_wanted: impl Fn(&str) -> bool) -> Curves {
    let view = &known.view;
    let all = || {
        [(LOSS, loss as fn(&Charts) -> &Series)]
            .into_iter()
            .chain(METRICS.iter().map(|one| (one.name, one.series)))
    };
    let is_some = |(_, curve): &(&'static str, Curve)| !curve.steps.is_empty();
    let series = all().filter(|(name, _)| is_wanted(name)).map(|(name, of)| {
        let exact = known.steps.curve(name, range);
        (name, exact.unwrap_or_else(|| of_buckets(of(&view.charts).buckets(), range)))
    });
    let discarded = all()
        .filter(|(name, _)| is_wanted(name))
        .map(|(name, of)| (name, of_buckets(of(&view.discarded).buckets(), range)));
    let marks = view.marks();
    Curves {
        series: series.filter(is_some).collect(),
        metrics: described().collect(),
        evals: evaluations(known, range, &marks),
        checkpoints: marks
            .iter()
            .filter_map(|mark| match *mark {
                Mark::Checkpoint { step, best } => Some(Checkpoint { step, best }),
                _ => None,
            })
            .collect(),
        resumed: marks
            .iter()
            .filter_map(|mark| match *mark {
                Mark::Resumed { step, attempt } => Some(Resumed { step, attempt }),
                _ => None,
            })
            .collect(),
        discarded: discarded.filter(is_some).collect(),
        position: position(known),
        last_step: view.steps_done(),
    }
}

fn loss(charts: &Charts) -> &Series {
    &charts.loss
}

/// Returns the evaluations in a range. Where there are thousands, neighbours share a value.
fn evaluations(known: &Known, range: Range, marks: &[Mark]) -> Vec<Evaluation> {
    let is_best =
        |step: u64| marks.iter().any(|mark| matches!(mark, Mark::Best { step: best, .. } if *best == step));
    let finite = |loss: f64| Some(loss).filter(|loss| loss.is_finite());
    let base = known.view.base_eval.iter().map(|eval| (eval.step, eval.loss_nats));
    let later = known.view.charts.eval_loss.buckets().iter().map(|bucket| (bucket.last_step, bucket.last));
    let later = later.filter(|(step, _)| (range.first..=range.last).contains(step));
    base.chain(later)
        .map(|(step, loss)| Evaluation { step, loss_nats: finite(loss), best: is_best(step) })
        .collect()
}

fn is_known(name: &str) -> bool {
    described().any(|metric| metric.name == name)
}

/// Returns what the metrics are.
fn described() -> impl Iterator<Item = DescribedMetric> {
    let loss = DescribedMetric {
        name: LOSS,
        title: "training loss",
        unit: "nats per trained token",
        about: "training",
    };
    let others = METRICS.iter().map(|metric| DescribedMetric {
        name: metric.name,
        title: metric.title,
        unit: metric.unit.name(),
        about: match metric.about {
            About::Training => "training",
            About::Machine => "machine",
            About::Head => "head",
        },
    });
    [loss].into_iter().chain(others)
}
