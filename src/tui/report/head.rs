//! The head of the page: the name of the run, its state, and its main figures.

use sparktune_app::runs::planned_by;
use sparktune_base::program_name;
use sparktune_base::units::{self, UNKNOWN, count, loss, milliseconds, or_unknown};
use sparktune_plan::Method;
use sparktune_runlog::{Eta, Liveness, Outcome, RunStarted};

use super::axis::as_f64;
use super::drawing::percent;
use super::input::ReportInput;
use super::markup::{Markup, clip};
use super::times::moment;
use super::{LINE_CHARS, absent, figures, untrusted};
use crate::plain::{fp8_loss, standing};
use crate::state::State;

pub(super) fn write(page: &mut Markup, run: &ReportInput) {
    page.element("header", &[], |page| {
        page.leaf("p", &[("class", "eyebrow")], "sparktune run");
        page.element("h1", &[], |page| untrusted(page, "span", "name", &run.name));
        state(page, run);
        for note in &run.notes {
            absent(page, note);
        }
        figures(page, &numbers(run));
        facts(page, run);
    });
}

/// Writes the state as a word, then as a sentence that says what to do.
fn state(page: &mut Markup, run: &ReportInput) {
    let liveness = match &run.liveness {
        Ok(liveness) => *liveness,
        Err(problem) => return absent(page, &format!("The state of the run is unknown: {problem}")),
    };
    let word = State::of(Some(liveness)).word;
    let class = match liveness {
        Liveness::Running => "pill live",
        Liveness::Stalled { .. } => "pill warn",
        Liveness::Crashed
        | Liveness::Gone
        | Liveness::Finished { outcome: Outcome::Failed | Outcome::Diverged } => "pill bad",
        Liveness::Finished { outcome: Outcome::Completed } => "pill good",
        Liveness::NotStarted | Liveness::Finished { .. } => "pill",
    };
    let argument = clip(&run.argument, LINE_CHARS);
    let program = program_name();
    let next = match liveness {
        Liveness::NotStarted => format!("`{program} resume {argument}` starts it."),
        Liveness::Running => {
            format!("`{program} watch {argument}` shows it live; this page does not update itself.")
        }
        Liveness::Finished { outcome: Outcome::Completed } => "See the outputs below.".to_owned(),
        Liveness::Stalled { .. } => format!(
            "Check logs/ in the run folder. `{program} stop {argument}` asks the trainer to save a checkpoint and stop. If it does not respond, end its process; `{program} resume {argument}` then continues."
        ),
        _ => String::new(),
    };
    page.element("p", &[("class", "state")], |page| {
        page.leaf("span", &[("class", class)], word);
        page.element("span", &[("dir", "auto")], |page| {
            let sentence = standing(&argument, liveness, &run.view);
            // The word itself is shown next to the sentence.
            let sentence =
                sentence.strip_prefix(word).unwrap_or(&sentence).trim_start_matches([',', ';', ' ']);
            page.sentence(&clip(sentence, 3 * LINE_CHARS));
            page.text(if next.is_empty() { "" } else { ". " });
            page.sentence(&next);
        });
    });
    let done = run.view.steps_done();
    if let Some(total) = run.view.total_steps().filter(|total| liveness.is_live() && *total > 0) {
        let share = percent((as_f64(done) / as_f64(total)).min(1.0));
        let words = format!("{} of {} steps", count(done), count(total));
        let attrs = [
            ("class", "progress"),
            ("role", "img"),
            ("aria-label", words.as_str()),
            ("width", "100%"),
            ("height", "6"),
        ];
        page.element("svg", &attrs, |page| {
            page.empty("rect", &[("class", "free"), ("width", "100%"), ("height", "6"), ("rx", "3")]);
            page.empty("rect", &[("class", "p0"), ("width", &share), ("height", "6"), ("rx", "3")]);
        });
    }
}

/// Returns the remaining time, including the planned time of what follows the steps.
fn time_left(run: &ReportInput) -> Option<Eta> {
    let mut view = run.view.clone();
    if let Some(planned) = run.plan.as_ref().ok().and_then(planned_by) {
        view.expect(planned);
    }
    view.eta()
}

fn numbers(run: &ReportInput) -> Vec<(&'static str, String, String)> {
    let view = &run.view;
    let finished = view.finished();
    let done = finished.map_or_else(|| view.steps_done(), |f| f.step);
    let of = view.total_steps().filter(|total| *total != done);
    let mut all =
        vec![("Steps", count(done), of.map_or_else(String::new, |total| format!("of {}", count(total))))];
    if let Some(eta) = run.is_live().then(|| time_left(run)).flatten() {
        let how =
            format!("{} per step over the last {}", milliseconds(eta.ms_per_step), count(eta.over_steps));
        all.push(("Time left", units::duration(eta.seconds), how));
    }
    let last = finished.and_then(|f| f.final_loss_nats).or(view.last_step.as_ref().map(|s| s.loss_nats));
    let average = view.loss_ema.map(|ema| format!("average {}", loss(ema))).unwrap_or_default();
    all.push(("Loss of the last step", or_unknown(last, loss), average));
    if let Some(base) = &view.base_eval {
        let how = "held-out loss before training".to_owned();
        let whose = if view.has_parent() { "Parent" } else { "Base model" };
        all.push((whose, loss(base.loss_nats), how));
    }
    if let Some((step, best)) = view.best() {
        all.push(("Best evaluation", loss(best), format!("at step {}", count(step))));
    }
    if let Some(step) = view.exported_step() {
        all.push(("Outputs", format!("step {}", count(step)), "the weights that were exported".into()));
    }
    if let Some(losses) = &view.fp8_loss {
        all.push((
            "With fp8",
            or_unknown(losses.fp8_nats, loss),
            format!("at step {}: {}", count(losses.step), fp8_loss(losses)),
        ));
    }
    let speed = run.times.tokens_per_s().or(view.tokens_per_s());
    all.push(("Tokens per second", or_unknown(speed, units::tokens_per_s), "mean, measured".into()));
    let memory = view.charts.mem_used_bytes.buckets().iter().map(|b| b.max).fold(f64::NAN, f64::max);
    if memory.is_finite() {
        all.push(("Memory", units::bytes(memory.max(0.0) as u64), "at most".into()));
    }
    let seconds: f64 = run.times.phases.iter().map(|(_, seconds)| seconds).sum();
    all.push((
        "Time",
        units::duration(seconds),
        attempts_in_words(view.attempts.back().map_or(0, |a| a.number)),
    ));
    if let Some((there, rate)) = run.elsewhere.zip(speed.filter(|rate| rate.is_finite())) {
        let job = there.measured(seconds, rate);
        all.push(("Elsewhere", units::duration(job.seconds), job.basis_in_words()));
    }
    all
}

fn attempts_in_words(attempts: u32) -> String {
    if attempts > 1 { format!("in {attempts} attempts") } else { String::new() }
}

fn facts(page: &mut Markup, run: &ReportInput) {
    let view = &run.view;
    let started: RunStarted = view.attempts.back().map(|a| a.started.clone()).unwrap_or_default();
    let plan = run.plan.as_ref().ok();
    let model = plan.map(|plan| plan.model.id.clone()).unwrap_or(started.model);
    let method = plan.map_or(started.method, |plan| match plan.method {
        Method::Lora { rank, alpha, .. } => format!("LoRA, rank {rank}, alpha {alpha}"),
        Method::Full => "full fine-tuning".into(),
        Method::Head => "only the MTP head".into(),
    });
    let first = view.attempts.front().map(|a| a.started_us);
    let end = if run.is_live() { "Last event" } else { "Ended" };
    page.element("dl", &[("class", "facts")], |page| {
        for (name, value) in [
            ("Model", model),
            ("Method", method),
            ("Device", started.device),
            ("Started", or_unknown(first, moment)),
            (end, or_unknown(view.last_event_us, moment)),
        ] {
            page.element("div", &[], |page| {
                page.leaf("dt", &[], name);
                untrusted(page, "dd", "said", if value.is_empty() { UNKNOWN } else { &value });
            });
        }
    });
}
