//! The curves of a run: the loss large, the others side by side.

use sparktune_base::units::{self, count, counted, milliseconds};
use sparktune_runlog::{Charts, Series};

use super::chart::{Base, Chart, LARGE, Mark, SMALL, Trace, Unit};
use super::input::ReportInput;
use super::markup::Markup;
use super::{absent, bars, section};

/// A side chart: title, unit, where its axis begins, its line, and its curve.
type Side = (&'static str, Unit, Base, Trace, fn(&Charts) -> &Series);

const SIDES: &[Side] = &[
    ("Gradient norm", Unit::Of(""), Base::Fitted, Trace::Smooth, |charts| &charts.grad_norm),
    ("Learning rate", Unit::Of(""), Base::Zero, Trace::Exact, |charts| &charts.lr),
    ("Speed", Unit::Reading("tokens/s"), Base::Zero, Trace::Smooth, |charts| &charts.tokens_per_s),
    ("Memory", Unit::Bytes, Base::Zero, Trace::Exact, |charts| &charts.mem_used_bytes),
    ("GPU clock", Unit::Reading("MHz"), Base::Zero, Trace::Exact, |charts| &charts.sm_clock_mhz),
    ("GPU temperature", Unit::Reading("°C"), Base::Fitted, Trace::Exact, |charts| {
        &charts.temperature_celsius
    }),
    ("GPU power", Unit::Reading("W"), Base::Zero, Trace::Smooth, |charts| &charts.power_watts),
    ("GPU busy", Unit::Reading("%"), Base::Zero, Trace::Smooth, |charts| &charts.gpu_busy_percent),
    ("Memory pressure", Unit::Reading("% of the time"), Base::Zero, Trace::Smooth, |charts| {
        &charts.mem_pressure_percent
    }),
    ("CPU load", Unit::Reading("%"), Base::Zero, Trace::Smooth, |charts| &charts.cpu_percent),
];

/// Charts over the steps.
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
            unit: Unit::Of("nats per trained token"),
            base: Base::Fitted,
            trace: Trace::Smooth,
            detail: LARGE,
            span,
            kept: &kept.loss,
            discarded: &discarded.loss,
            eval: Some([&kept.eval_loss, &discarded.eval_loss]),
            best: run.view.best_eval().map(|eval| eval.step),
            checkpoints: checkpoints(run),
            resumes: resumes.clone(),
        }
        .write(page);
        page.element("div", &[("class", "sides")], |page| {
            for (title, unit, base, trace, series) in SIDES {
                let (kept, discarded) = (series(kept), series(discarded));
                // One point is no curve.
                if kept.buckets().len() + discarded.buckets().len() < 2 {
                    continue;
                }
                Chart {
                    title,
                    unit: *unit,
                    base: *base,
                    trace: *trace,
                    detail: SMALL,
                    span,
                    kept,
                    discarded,
                    eval: None,
                    best: None,
                    checkpoints: Vec::new(),
                    resumes: resumes.clone(),
                }
                .write(page);
            }
        });
        parts_of_a_step(page, run);
    });
}

/// First and last step of all charts, those of earlier attempts included.
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

/// Where the time of a step goes, on average.
fn parts_of_a_step(page: &mut Markup, run: &ReportInput) {
    let times = &run.times;
    if times.step_ms <= 0.0 {
        return;
    }
    let measured: f64 = times.parts.iter().map(|(_, ms)| ms).sum();
    // The trainer can tell forward from backward only where the device is waited for in between.
    let apart = times.parts[1].1 > 0.0 && times.parts[2].1 > 0.0;
    let rest = (
        if apart { "everything else" } else { "forward, backward and everything else" },
        times.step_ms - measured,
    );
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
        "{} a step on average, measured over {} of all attempts.",
        milliseconds(mean(times.step_ms)),
        counted(times.steps, "step")
    );
    page.leaf("p", &[("class", "note")], &words);
    bars::stacked(page, "Time of a step by part", &parts, times.step_ms.max(measured), None);
}
