//! Keeps what is known about each run. Runs are read a few at a time, so that a key never waits for the disk.

use std::fs;
use std::time::{Duration, Instant};

use sparktune_app::runs::planned;
use sparktune_base::escape::escape;
use sparktune_base::units::{count, counted, duration, loss, milliseconds, tokens_per_s};
use sparktune_runlog::{Bucket, Checkpoints, Lease, Liveness, Outcome, RunDir, RunView, RunsRoot};

use super::ask::outputs;
use crate::held_out::base_to_best;
use crate::plain::from_checkpoint;
use crate::runs_table::{RunRow, glance};
use crate::state::{State, outcome_word};

/// The time after which reading ends for this tick. In tests, it does not depend on when the thread runs.
const BUDGET: Duration = if cfg!(test) { Duration::MAX } else { Duration::from_millis(40) };
/// The number of ticks between two listings of the folder (2 s).
const LIST_EVERY: u64 = 8;
/// The number of ticks between two reads of a running run (1 s).
const LIVE_EVERY: u64 = 4;
/// The number of runs checked for changes in one tick.
const STAMPS: usize = 64;
/// The number of newest points of the loss curve that are kept. For most runs this is everything that is
/// read.
const POINTS: usize = 1024;

/// The data that the list shows about a run.
#[derive(Debug, PartialEq)]
pub(super) struct Look {
    pub run: RunDir,
    /// The name, escaped.
    pub name: String,
    /// The row; `None` until it was read.
    pub row: Option<RunRow>,
    /// The end of the loss curve; `None` stands for values that are not finite.
    pub losses: Vec<Option<f64>>,
    /// The remaining time of a running run, in seconds.
    pub left_s: Option<f64>,
    /// A sentence about the run's state and the key for the next step, or why it cannot be read.
    pub stands: String,
    /// Labels and values for the pane, escaped.
    pub facts: Vec<(&'static str, String)>,
    stamp: Option<Stamp>,
}

/// A cheap fingerprint that changes when the run does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stamp {
    held: bool,
    attempt: u32,
    bytes: u64,
}

impl Stamp {
    fn of(run: &RunDir) -> Self {
        let attempt = run.attempts().ok().and_then(|attempts| attempts.last().copied()).unwrap_or(0);
        let bytes = fs::metadata(run.event_file(attempt)).map_or(0, |meta| meta.len());
        Stamp { held: Lease::is_held(run).unwrap_or(false), attempt, bytes }
    }
}

impl Look {
    fn unread(run: RunDir) -> Self {
        let name = escape(&run.name()).into_owned();
        Look {
            run,
            name,
            row: None,
            losses: Vec::new(),
            left_s: None,
            stands: String::new(),
            facts: Vec::new(),
            stamp: None,
        }
    }

    /// Reads the run. If it cannot be read, the result says why.
    pub(super) fn read(run: &RunDir) -> Self {
        let stamp = Some(Stamp::of(run));
        let mut seen = glance(run);
        if let (Ok((_, view)), Some(planned)) = (&mut seen, planned(run)) {
            view.expect(planned);
        }
        let row = RunRow::of(run, &seen);
        let look = Look { stamp, ..Look::unread(run.clone()) };
        match &seen {
            Err(_) => {
                let problem = row.problem.as_deref().map(|problem| escape(problem).into_owned());
                Look { stands: problem.unwrap_or_default(), row: Some(row), ..look }
            }
            Ok((liveness, view)) => Look {
                losses: losses(view),
                left_s: liveness.is_live().then(|| view.eta()).flatten().map(|eta| eta.seconds),
                stands: stands(run, *liveness, view),
                facts: facts(run, &row, *liveness, view),
                row: Some(row),
                ..look
            },
        }
    }

    pub(super) fn liveness(&self) -> Option<Liveness> {
        self.row.as_ref()?.liveness
    }

    /// Returns the name without the date and time of its start, which the age already shows.
    pub(super) fn short_name(&self) -> &str {
        let is_moment = |text: &str| {
            text.len() == 16 && text.ends_with('Z') && text.starts_with(|c: char| c.is_ascii_digit())
        };
        match self.name.split_once('-') {
            Some((moment, rest)) if is_moment(moment) && !rest.is_empty() => rest,
            _ => &self.name,
        }
    }

    /// Returns whether the name, state or model contains this word, given in lower case.
    pub(super) fn mentions(&self, word: &str) -> bool {
        let state = self.row.as_ref().map_or("", |row| State::of(row.liveness).word);
        let model = self.facts.iter().find(|(label, _)| *label == MODEL).map_or("", |(_, model)| model);
        [&self.name, state, model].iter().any(|text| text.to_lowercase().contains(word))
    }
}

fn losses(view: &RunView) -> Vec<Option<f64>> {
    let buckets = view.charts.loss.buckets();
    let mean = |bucket: &Bucket| bucket.mean().filter(|_| bucket.nonfinite == 0);
    buckets[buckets.len().saturating_sub(POINTS)..].iter().map(mean).collect()
}

/// Describes the state of the run and the key for the next step.
fn stands(run: &RunDir, liveness: Liveness, view: &RunView) -> String {
    let step = count(view.steps_done());
    let resume = || match Checkpoints::new(run).steps().unwrap_or_default().last() {
        Some(newest) => format!("r continues {}", from_checkpoint(*newest, view)),
        None => "r starts it again, because there is no checkpoint yet".to_owned(),
    };
    match liveness {
        Liveness::NotStarted => "its trainer has not started; r starts it".to_owned(),
        Liveness::Running => "running; Enter watches it, s stops it after a checkpoint".to_owned(),
        Liveness::Stalled { silent_s } => format!(
            "its trainer is alive but has logged nothing for {}; Enter shows details, s asks it to stop",
            duration(Duration::from_secs(silent_s).as_secs_f64())
        ),
        Liveness::Crashed => {
            format!("its trainer was killed after step {step}, or its log (in logs/) says why; {}", resume())
        }
        Liveness::Gone => "its folder is gone; it was moved or deleted".to_owned(),
        Liveness::Finished { outcome: Outcome::Completed } => {
            "done; Enter shows its charts, e exports its outputs again".to_owned()
        }
        Liveness::Finished { outcome: Outcome::Diverged } => {
            "done, but its loss diverged; Enter shows its charts and why".to_owned()
        }
        Liveness::Finished { outcome } => {
            let reason = view.finished().and_then(|finished| finished.reason.as_deref());
            let reason = reason.map(|reason| format!(", {}", escape(reason))).unwrap_or_default();
            format!("{} at step {step}{reason}; {}", outcome_word(outcome), resume())
        }
    }
}

const MODEL: &str = "model";

/// Returns the details for the pane. Values that are unknown are left out.
fn facts(run: &RunDir, row: &RunRow, liveness: Liveness, view: &RunView) -> Vec<(&'static str, String)> {
    let started = view.attempts.back().map(|attempt| &attempt.started);
    let known_text = |text: Option<&String>| text.filter(|t| !t.is_empty()).map(|t| escape(t).into_owned());
    let eval =
        |eval: &sparktune_runlog::Eval| format!("{} at step {}", loss(eval.loss_nats), count(eval.step));
    let steps = Checkpoints::new(run).steps().unwrap_or_default();
    let checkpoints = steps.last().map(|newest| {
        let older = if steps.len() > 1 { format!(" and {} older", steps.len() - 1) } else { String::new() };
        format!("step {}{older}", count(*newest))
    });
    let outputs = outputs(run);
    let rate = view.tokens_per_s().filter(|rate| rate.is_finite() && *rate >= 0.0);
    let eta = view.eta().filter(|_| liveness.is_live()).map(|eta| {
        format!(
            "{} ({} at {})",
            duration(eta.seconds),
            counted(eta.steps_left, "step"),
            milliseconds(eta.ms_per_step)
        )
    });
    let steps = view.total_steps().map(|total| format!("{} of {}", count(view.steps_done()), count(total)));
    let phase = view.phase.as_ref().filter(|_| liveness.is_live()).map(|phase| &phase.phase);
    let of_rank = row.rank.map(|rank| format!(", rank {}", count(rank.into()))).unwrap_or_default();
    let at_rate = row.learning_rate.map(|rate| format!(", learning rate {rate:e}")).unwrap_or_default();
    let settings = of_rank + &at_rate;
    let rows = [
        (MODEL, known_text(started.map(|s| &s.model))),
        ("method", known_text(started.map(|s| &s.method)).map(|method| method + &settings)),
        ("device", known_text(started.map(|s| &s.device))),
        ("attempt", view.attempts.back().map(|attempt| attempt.number.to_string())),
        ("phase", known_text(phase)),
        ("steps", steps),
        ("left", eta),
        ("loss", view.loss_ema.map(|ema| format!("{} (moving average)", loss(ema)))),
        ("last eval", view.last_eval.as_ref().map(eval)),
        ("held out", base_to_best(view)),
        ("exported", view.exported_step().map(|step| format!("step {}", count(step)))),
        ("speed", rate.map(|rate| format!("{} tokens/s", tokens_per_s(rate)))),
        ("checkpoint", Some(checkpoints.unwrap_or_else(|| "none yet".to_owned()))),
        ("outputs", (!outputs.is_empty()).then(|| outputs.join(", "))),
        ("warning", view.warnings.back().map(|warning| escape(&warning.what.message).into_owned())),
    ];
    rows.into_iter().filter_map(|(label, value)| Some((label, value?))).collect()
}

/// The folder and its runs, newest first.
#[derive(Debug)]
pub(super) struct Shelf {
    pub(super) root: RunsRoot,
    pub(super) looks: Vec<Look>,
    /// The reason why the folder cannot be listed.
    pub(super) problem: Option<String>,
    ticks: u64,
    /// The index of the next run to check for changes.
    next: usize,
    list_now: bool,
}

impl Shelf {
    pub(super) fn new(root: RunsRoot) -> Self {
        Shelf { root, looks: Vec::new(), problem: None, ticks: 0, next: 0, list_now: true }
    }

    /// Makes the next call to [`Shelf::look`] list the folder.
    pub(super) fn list_again(&mut self) {
        self.list_now = true;
    }

    /// Makes the next call to [`Shelf::look`] read the run again.
    pub(super) fn forget(&mut self, run: &RunDir) {
        if let Some(look) = self.looks.iter_mut().find(|look| look.run == *run) {
            look.stamp = None;
        }
        self.list_now = true;
    }

    /// Does the work of one tick: lists the folder from time to time, checks some runs for changes, and reads
    /// those that changed, new ones first. Returns whether anything is different.
    pub(super) fn look(&mut self) -> bool {
        let begun = Instant::now();
        let mut changed = false;
        if std::mem::take(&mut self.list_now) || self.ticks.is_multiple_of(LIST_EVERY) {
            changed |= self.list();
        }
        self.ask_for_changes();
        self.ticks += 1;
        let unread = |look: &Look| look.row.is_none();
        let stale = |look: &Look| look.row.is_some() && look.stamp.is_none();
        for wants in [&unread as &dyn Fn(&Look) -> bool, &stale] {
            for look in self.looks.iter_mut().filter(|look| wants(look)) {
                let mut new = Look::read(&look.run);
                let stamp = new.stamp.take();
                changed |= *look != new;
                *look = Look { stamp, ..new };
                if begun.elapsed() > BUDGET {
                    return changed;
                }
            }
        }
        changed
    }

    fn list(&mut self) -> bool {
        let (runs, problem) = match self.root.list() {
            Ok(runs) => (runs, None),
            Err(error) => (Vec::new(), Some(escape(&error.to_string()).into_owned())),
        };
        let before: Vec<RunDir> = self.looks.iter().map(|look| look.run.clone()).collect();
        let mut old = std::mem::take(&mut self.looks);
        self.looks = runs
            .into_iter()
            .rev()
            .map(|run| match old.iter().position(|look| look.run == run) {
                Some(at) => old.swap_remove(at),
                None => Look::unread(run),
            })
            .collect();
        let changed = problem != self.problem || !self.looks.iter().map(|look| &look.run).eq(&before);
        self.problem = problem;
        changed
    }

    fn ask_for_changes(&mut self) {
        let live_too = self.ticks.is_multiple_of(LIVE_EVERY);
        for look in &mut self.looks {
            if live_too && look.liveness().is_some_and(Liveness::is_live) {
                look.stamp = None;
            }
        }
        for _ in 0..self.looks.len().min(STAMPS) {
            self.next = (self.next + 1) % self.looks.len();
            let look = &mut self.looks[self.next];
            if look.stamp.is_some_and(|stamp| stamp != Stamp::of(&look.run)) {
                look.stamp = None;
            }
        }
    }
}
