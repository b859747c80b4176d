//! Describes the run: its outputs, its attempts, and its plan with estimates next to measurements.

use ratatui::text::{Line, Span};
use sparktune_app::next_steps::compare_command;
use sparktune_base::escape::escape;
use sparktune_base::program_name;
use sparktune_base::regular_file::read_regular;
use sparktune_base::units::{self, clock, count, counted, or_unknown};
use sparktune_plan::{Plan, render};
use sparktune_runlog::{Attempt, RunDir};

use super::reading::Known;
use crate::held_out::{base_to_best, exported};
use crate::screen::{Role, Theme};
use crate::state::outcome_word;
use crate::wrap::wrap;

/// The heading above the page on serving.
pub(super) const HOW_TO_SERVE: &str = "how to serve the model (outputs/SERVE.md)";

/// The largest part of a page that is shown, in bytes.
const LONGEST_PAGE: usize = 64 * 1024;
const MOST_PAGE_BYTES: u64 = 1 << 20;

/// Facts from the run's other files.
#[derive(Debug, Default)]
pub(super) struct Facts {
    plan: Option<Result<Plan, String>>,
    /// `outputs/SERVE.md`, once the run wrote it.
    serve: Option<String>,
}

impl Facts {
    /// Reads the files that exist now and were not read before.
    pub(super) fn read(&mut self, run: &RunDir, known: &Known) {
        if self.plan.is_none() {
            let text = run.read_plan().map_err(|error| error.to_string());
            let plan =
                text.and_then(|text| Plan::from_toml(&text, "plan.toml").map_err(|error| error.to_string()));
            self.plan = Some(plan);
        }
        if self.serve.is_none() && known.view.finished().is_some() {
            let page = read_regular(&run.outputs().join("SERVE.md"), MOST_PAGE_BYTES);
            let page = page.ok().map(|page| String::from_utf8_lossy(&page).into_owned());
            self.serve = page.map(|page| page.chars().take(LONGEST_PAGE).collect());
        }
    }

    /// Returns the plan, if it could be read.
    pub(super) fn plan(&self) -> Option<&Plan> {
        self.plan.as_ref()?.as_ref().ok()
    }

    /// Returns the page on serving the model, once the run wrote it.
    pub(super) fn serve(&self) -> Option<&str> {
        self.serve.as_deref()
    }

    /// Creates facts from a plan and a page.
    #[cfg(test)]
    pub(super) fn of(plan: Plan, serve: &str) -> Self {
        Self { plan: Some(Ok(plan)), serve: Some(serve.to_owned()) }
    }
}

/// Returns all facts in lines of at most `width` columns. `run` is the argument for commands, quoted for a
/// shell and escaped for a terminal.
pub(super) fn lines(
    run: &str,
    known: &Known,
    facts: &Facts,
    width: u16,
    theme: &Theme,
) -> Vec<Line<'static>> {
    let mut page = Page { lines: Vec::new(), width: usize::from(width), theme };
    outputs(run, known, facts, &mut page);
    page.title("attempts");
    for attempt in &known.view.attempts {
        page.text(&attempt_words(attempt));
    }
    let checkpoints = Some(counted(known.view.checkpoints.len() as u64, "checkpoint"));
    let gained = [checkpoints, base_to_best(&known.view), exported(&known.view)];
    page.text(&gained.into_iter().flatten().collect::<Vec<_>>().join("; "));
    page.title("plan");
    match &facts.plan {
        Some(Ok(plan)) => {
            for line in render::fitted(&render::summary(plan), page.width).lines() {
                page.text(&escape(line));
            }
            measured(known, plan, &mut page);
        }
        Some(Err(problem)) => page.text(&escape(problem)),
        None => page.text("there is no plan.toml in the run folder"),
    }
    page.lines
}

fn outputs(run: &str, known: &Known, facts: &Facts, page: &mut Page<'_>) {
    let Some(finished) = known.view.finished().filter(|finished| !finished.outputs.is_empty()) else {
        return;
    };
    page.title("outputs, in the run folder");
    for output in &finished.outputs {
        page.text(&escape(output));
    }
    if let Some(serve) = &facts.serve {
        page.title("before and after");
        let program = program_name();
        page.text(&format!(
            "`{program} chat {run} --beside base` talks to this model and its base side by side."
        ));
        let plan = facts.plan.as_ref().and_then(|plan| plan.as_ref().ok());
        page.text(&format!(
            "`{}` asks both the same questions and says which differences are more than chance.",
            compare_command(run, plan)
        ));
        page.title(HOW_TO_SERVE);
        for line in serve.lines() {
            page.text(&escape(line));
        }
    }
}

fn attempt_words(attempt: &Attempt) -> String {
    let from = match attempt.started.resumed_from_step {
        Some(step) => format!("from step {}", count(step)),
        None => match &attempt.started.from {
            Some(from) => format!("from {}", escape(from)),
            None => "from the base model".to_owned(),
        },
    };
    let end = match &attempt.finished {
        Some(finished) => {
            let reason = finished.reason.as_deref().map(|r| format!(" ({})", escape(r)));
            format!(", {}{}", outcome_word(finished.outcome), reason.unwrap_or_default())
        }
        None => String::new(),
    };
    let version = escape(&attempt.started.sparktune);
    format!(
        "{}: {} UTC {from} to step {}{end}{}",
        attempt.number,
        clock(attempt.started_us),
        count(attempt.last_step),
        if version.is_empty() { String::new() } else { format!(", sparktune {version}") }
    )
}

/// Compares the plan's estimates with measurements of the run.
fn measured(known: &Known, plan: &Plan, page: &mut Page<'_>) {
    let Some(advice) = &plan.advice else { return };
    let view = &known.view;
    page.title("estimated and measured");
    // Until the run has ended and logged its peak, that of the last step is known.
    let last_step = || view.last_step.as_ref().and_then(|step| step.mem_used_bytes);
    let peak = view.mem_peak_bytes().or_else(last_step);
    let words = match peak {
        Some(peak) => format!("{} at most so far", units::bytes(peak)),
        None => format!("{} estimated with the reserve", units::bytes(advice.memory.needed_bytes())),
    };
    page.text(&format!("memory  {words}"));
    let rate = |rate: f64| count(rate.round().max(0.0) as u64);
    page.text(&format!(
        "tok/s   {} estimated, {} measured",
        or_unknown(advice.time.tokens_per_s, rate),
        or_unknown(view.tokens_per_s().filter(|r| r.is_finite()), rate)
    ));
}

struct Page<'a> {
    lines: Vec<Line<'static>>,
    width: usize,
    theme: &'a Theme,
}

impl Page<'_> {
    fn title(&mut self, title: &str) {
        if !self.lines.is_empty() {
            self.lines.push(Line::default());
        }
        self.lines.push(Line::from(Span::styled(title.to_owned(), self.theme.style(Role::Title))));
    }

    /// Adds text, escaped.
    fn text(&mut self, text: &str) {
        self.lines.extend(wrap(text, self.width).into_iter().map(Line::raw));
    }
}
