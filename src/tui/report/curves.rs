//! The section of curves: a large chart of the loss, and smaller charts of the other metrics.

use sparktune_base::units;
use sparktune_base::units::{count, counted, milliseconds};
use sparktune_runlog::{About, METRICS, Unit};

use super::chart::{Chart, LARGE, Mark, SMALL};
use super::input::ReportInput;
use super::markup::Markup;
use super::{absent, bars, section};
use crate::held_out::of_zero_line;

/// Writes the charts over steps.
pub(super) fn write(page: &mut Markup, run: &ReportInput) {
    section(page, "Training", |page| {
        let Some(span) = span(run) else {
            return absent(page, "No step has been trained yet, so there are no curves.");
        };
        let (kept, discarded) = (&run.view.charts, &run.view.discarded);
        let resumes: Vec<u64> =
            run.view.attempts.iter().filter_map(|attempt| attempt.started.resumed_from_step).collect();
        Chart {
            title: "Training loss",
            unit: Unit::Nats,
            detail: LARGE,
            span,
            kept: &kept.loss,
            discarded: &discarded.loss,
            eval: Some([&kept.eval_loss, &discarded.eval_loss]),
            best: run.view.best_eval().map(|eval| eval.step),
            base: run
                .view
                .base_eval
                .as_ref()
                .map(|eval| (of_zero_line(&run.view), eval.loss_nats))
                .filter(|(_, loss)| loss.is_finite()),
            checkpoints: checkpoints(run),
            resumes: resumes.clone(),
        }
        .write(page);
        page.element("div", &[("class", "sides")], |page| {
            for metric in METRICS.iter().filter(|metric| metric.about != About::Head) {
                let (kept, discarded) = ((metric.series)(kept), (metric.series)(discarded));
                // A single point is not drawn as a curve.
                if kept.buckets().len() + discarded.buckets().len() < 2 {
                    continue;
                }
                Chart {
                    title: &capitalised(metric.title),
                    unit: metric.unit,
                    detail: SMALL,
                    span,
                    kept,
                    discarded,
                    eval: None,
                    best: None,
                    base: None,
                    checkpoints: Vec::new(),
                    resumes: resumes.clone(),
                }
                .write(page);
            }
        });
        parts_of_a_step(page, run);
    });
}

/// Returns the text with a capital first letter.
fn capitalised(words: &str) -> String {
    let mut letters = words.chars();
    letters.next().map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
}

/// Returns the first and last step of all charts, including earlier attempts.
fn span(run: &ReportInput) -> Option<(u64, u64)> {
    let ends =
        || [&run.view.charts, &run.view.discarded].into_iter().flat_map(|charts| charts.loss.buckets());
    let (first, last) = (ends().map(|b| b.first_step).min()?, ends().map(|b| b.last_step).max()?);
    Some((if first <= last / 20 { 0 } else { first }, last))
}

fn checkpoints(run: &ReportInput) -> Vec<Mark> {
    let title = |c: &sparktune_runlog::CheckpointCommitted| {
        let best = if c.best { ", the best so far" } else { "" };
        format!("checkpoint at step {}, {}{best}", count(c.step), units::bytes(c.bytes))
    };
    run.view.checkpoints.iter().map(|c| Mark { step: c.step, title: title(c) }).collect()
}

/// Writes how the time of a step is spent, on average.
fn parts_of_a_step(page: &mut Markup, run: &ReportInput) {
    let times = &run.times;
    if times.step_ms <= 0.0 {
        return;
    }
    let measured: f64 = times.parts.iter().map(|(_, ms)| ms).sum();
    let rest = ("forward, backward and everything else", times.step_ms - measured);
    let all = times.parts.iter().copied().chain([rest]);
    let mean = |ms: f64| ms / times.steps as f64;
    let parts: Vec<bars::Part> = all
        .filter(|(_, ms)| *ms > 0.0)
        .map(|(name, ms)| {
            let shown = format!("{} ({})", milliseconds(mean(ms)), units::percent(ms / times.step_ms));
            bars::Part { name, size: ms, shown }
        })
        .collect();
    page.leaf("h3", &[], "Where the time of a step goes");
    let words = format!(
        "{} per step on average, measured over {} of all attempts.",
        milliseconds(mean(times.step_ms)),
        counted(times.steps, "step")
    );
    page.leaf("p", &[("class", "note")], &words);
    bars::stacked(page, "Time of a step by part", &parts, times.step_ms.max(measured), None);
}
