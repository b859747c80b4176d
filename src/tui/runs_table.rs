//! The table of `sparktune runs`, one row per run.

use std::path::{Path, PathBuf};

use serde::Serialize;
use sparktune_base::escape::escape;
use sparktune_base::units::{bytes, count, loss, or_unknown, rough_duration};
use sparktune_plan::Plan;
use sparktune_runlog::{Liveness, Result, RunDir, RunView, RunsRoot};
use unicode_width::UnicodeWidthStr;

use crate::state::State;

/// The most important facts about a run; serialises for `runs --json`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RunRow {
    /// The run's name.
    pub name: String,
    /// The run's folder. In JSON, bytes that are not UTF-8 become U+FFFD.
    #[serde(serialize_with = "as_text")]
    pub path: PathBuf,
    /// The run's state, or `None` if it could not be read.
    #[serde(flatten)]
    pub liveness: Option<Liveness>,
    /// The reason why it could not be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
    /// The number of steps done.
    pub step: Option<u64>,
    /// The number of steps of the whole run.
    pub total_steps: Option<u64>,
    /// The model's id or folder.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// The peak learning rate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub learning_rate: Option<f64>,
    /// The LoRA rank; none for full fine-tuning.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rank: Option<u32>,
    /// The moving average of the training loss, in nats.
    pub loss_nats: Option<f64>,
    /// The base model's loss on the eval set, in nats. A long run's log is not read to where it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub base_eval_nats: Option<f64>,
    /// The step of the best evaluation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub best_step: Option<u64>,
    /// The loss of the best evaluation, in nats.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub best_eval_nats: Option<f64>,
    /// The step of the weights that the outputs contain.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exported_step: Option<u64>,
    /// The time of the last event, in microseconds since the Unix epoch.
    pub last_event_us: Option<u64>,
    /// The size of its files in bytes.
    pub size_bytes: u64,
}

/// Serialises a path as text. A name that is not UTF-8 must not make the whole list fail.
fn as_text<S: serde::Serializer>(path: &Path, serializer: S) -> std::result::Result<S::Ok, S::Error> {
    serializer.collect_str(&path.display())
}

impl RunRow {
    /// Reads the row of a run. A run that cannot be read becomes a row that says so instead of an error,
    /// because the other rows are still wanted.
    pub fn read(run: &RunDir) -> Self {
        Self::of(run, &glance(run))
    }

    /// Returns whether all of these words are in the name, the state or the model, whatever their case.
    pub fn matches(&self, words: &str) -> bool {
        let model = self.model.as_deref().unwrap_or_default();
        let about = format!("{} {} {model}", self.name, State::of(self.liveness).word).to_lowercase();
        words.to_lowercase().split_whitespace().all(|word| about.contains(word))
    }

    /// Makes the row from the result of [`glance`] and the run's plan.
    pub(crate) fn of(run: &RunDir, seen: &Result<(Liveness, RunView)>) -> Self {
        let plan = run.read_plan().ok().and_then(|text| Plan::from_toml(&text, "plan.toml").ok());
        let row = RunRow {
            name: run.name(),
            path: run.path().to_owned(),
            liveness: None,
            problem: None,
            step: None,
            total_steps: None,
            learning_rate: plan.as_ref().map(|plan| plan.optimizer.learning_rate),
            rank: plan.as_ref().map(|plan| plan.method.rank()).filter(|rank| *rank > 0),
            model: plan.map(|plan| plan.model.id),
            loss_nats: None,
            base_eval_nats: None,
            best_step: None,
            best_eval_nats: None,
            exported_step: None,
            last_event_us: None,
            size_bytes: run.size_bytes(),
        };
        match seen {
            Err(problem) => RunRow { problem: Some(problem.to_string()), ..row },
            Ok((liveness, view)) => RunRow {
                liveness: Some(*liveness),
                step: view.last_event_us.map(|_| view.steps_done()),
                total_steps: view.total_steps(),
                loss_nats: view.loss_ema,
                base_eval_nats: view.base_eval.as_ref().map(|eval| eval.loss_nats),
                best_step: view.best().map(|(step, _)| step),
                best_eval_nats: view.best().map(|(_, loss)| loss),
                exported_step: view.exported_step(),
                last_event_us: view.last_event_us,
                ..row
            },
        }
    }
}

/// Reads the rows of the newest `most` runs, the newest first. Also returns the number of older runs, which
/// are not read.
///
/// # Errors
/// The folder cannot be listed.
pub fn newest_rows(root: &RunsRoot, most: usize) -> Result<(Vec<RunRow>, usize)> {
    let runs = root.list()?;
    let rows: Vec<RunRow> = runs.iter().rev().take(most).map(RunRow::read).collect();
    let older = runs.len() - rows.len();
    Ok((rows, older))
}

/// Reads the state of a run, and only the beginning and the end of its log.
///
/// # Errors
/// A folder or file cannot be read.
pub(crate) fn glance(run: &RunDir) -> Result<(Liveness, RunView)> {
    let view = RunView::glance(run)?;
    Ok((view.liveness(run)?, view))
}

/// The space between two columns.
const GAP: usize = 2;

/// The headings of the table.
const HEADINGS: [&str; 11] = [
    "NAME",
    "STATE",
    "STEP",
    "LR",
    "RANK",
    "AVG LOSS",
    "BASE EVAL",
    "BEST EVAL",
    "EXPORTED",
    "LAST EVENT",
    "SIZE",
];

/// The columns that are left out where there is no room for all, in this order.
const DISPENSABLE: [&str; 8] =
    ["EXPORTED", "BASE EVAL", "AVG LOSS", "SIZE", "LAST EVENT", "RANK", "LR", "STEP"];

/// Formats the table, ending in a newline. Ages are computed from `now_us`, the current time in microseconds
/// since the Unix epoch. On a terminal of `columns`, what does not fit is left out, and a line says so.
/// Problems are listed below the table.
pub fn runs_table(rows: &[RunRow], now_us: u64, columns: Option<usize>) -> String {
    let mut cells = vec![HEADINGS.map(str::to_owned)];
    for row in rows {
        cells.push([
            escape(&row.name).into_owned(),
            State::of(row.liveness).word.to_owned(),
            or_unknown(row.step, |step| format!("{}/{}", count(step), or_unknown(row.total_steps, count))),
            or_unknown(row.learning_rate, |rate| format!("{rate:e}")),
            or_unknown(row.rank, |rank| count(rank.into())),
            or_unknown(row.loss_nats, loss),
            or_unknown(row.base_eval_nats, loss),
            or_unknown(row.best_eval_nats.zip(row.best_step), |(best, step)| {
                format!("{} at {}", loss(best), count(step))
            }),
            or_unknown(row.exported_step, |step| format!("step {}", count(step))),
            or_unknown(row.last_event_us, |at| age(at, now_us)),
            bytes(row.size_bytes),
        ]);
    }
    let width = |column: usize| cells.iter().map(|row| row[column].width()).max().unwrap_or(0);
    let widths: [usize; 11] = std::array::from_fn(width);
    let mut left_out: Vec<&str> = Vec::new();
    let is_shown = |heading: &str, left_out: &[&str]| !left_out.contains(&heading);
    for dispensable in DISPENSABLE {
        let shown = HEADINGS.iter().zip(widths).filter(|(heading, _)| is_shown(heading, &left_out));
        let used: usize = shown.map(|(_, width)| width + GAP).sum();
        if columns.is_none_or(|columns| used <= columns + GAP) {
            break;
        }
        left_out.push(dispensable);
    }
    let mut table = String::new();
    for row in &cells {
        let padded: Vec<String> = row
            .iter()
            .zip(widths)
            .zip(HEADINGS)
            .filter(|(_, heading)| is_shown(heading, &left_out))
            .map(|((cell, width), _)| cell.clone() + &" ".repeat(width - cell.width()))
            .collect();
        table.push_str(padded.join(&" ".repeat(GAP)).trim_end());
        table.push('\n');
    }
    for row in rows {
        if let Some(problem) = &row.problem {
            table.push_str(&format!("{}: {}\n", escape(&row.name), escape(problem)));
        }
    }
    if !left_out.is_empty() {
        let words = left_out.join(", ").to_lowercase();
        table.push_str(&format!("a wider terminal also shows: {words}\n"));
    }
    table
}

/// Returns how long ago a time was. One that is still to come is that of a machine whose clock was set back,
/// or of another machine.
fn age(at_us: u64, now_us: u64) -> String {
    match now_us.checked_sub(at_us) {
        Some(us) => format!("{} ago", rough_duration(us as f64 / 1e6)),
        None => "in the future".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use sparktune_runlog::{EventWriter, Kind, Lease, Outcome, RunStarted, RunsRoot, Step};

    use super::*;

    fn row(name: &str, liveness: Liveness) -> RunRow {
        RunRow {
            name: name.into(),
            path: name.into(),
            liveness: Some(liveness),
            problem: None,
            step: Some(1200),
            total_steps: None,
            model: Some("Org/Small".into()),
            learning_rate: Some(2e-4),
            rank: Some(128),
            loss_nats: Some(1.25),
            base_eval_nats: Some(2.31),
            best_step: Some(600),
            best_eval_nats: Some(1.42),
            exported_step: Some(600),
            last_event_us: Some(1_000_000),
            size_bytes: 1 << 20,
        }
    }

    #[test]
    fn the_table_lines_up_and_marks_what_is_unknown() {
        let mut fresh = row("b", Liveness::NotStarted);
        (fresh.step, fresh.loss_nats, fresh.last_event_us) = (None, None, None);
        (fresh.best_step, fresh.best_eval_nats) = (None, None);
        (fresh.base_eval_nats, fresh.exported_step, fresh.rank) = (None, None, None);
        let mut newer = row("c\u{1b}[0m", Liveness::Running);
        (newer.liveness, newer.problem) = (None, Some("event format v2 is newer\n".into()));
        newer.last_event_us = Some(u64::MAX);
        let rows = [row("long-name", Liveness::Finished { outcome: Outcome::Completed }), fresh, newer];
        let expected = "\
NAME        STATE        STEP     LR    RANK  AVG LOSS  BASE EVAL  BEST EVAL      EXPORTED  LAST EVENT     SIZE
long-name   completed    1,200/–  2e-4  128   1.2500    2.3100     1.4200 at 600  step 600  1 min ago      1.0 MB
b           not started  –        2e-4  –     –         –          –              –         –              1.0 MB
c\\u{1b}[0m  unreadable   1,200/–  2e-4  128   1.2500    2.3100     1.4200 at 600  step 600  in the future  1.0 MB
c\\u{1b}[0m: event format v2 is newer\\n
";
        assert_eq!(runs_table(&rows, 61_000_000, None), expected);
        assert_eq!(runs_table(&rows, 61_000_000, Some(113)), expected);
        let narrow = "\
NAME        STATE        STEP     LR    RANK  BEST EVAL
long-name   completed    1,200/–  2e-4  128   1.4200 at 600
b           not started  –        2e-4  –     –
c\\u{1b}[0m  unreadable   1,200/–  2e-4  128   1.4200 at 600
c\\u{1b}[0m: event format v2 is newer\\n
a wider terminal also shows: exported, base eval, avg loss, size, last event
";
        assert_eq!(runs_table(&rows, 61_000_000, Some(68)), narrow);
        let found = |words| rows.iter().filter(|row| row.matches(words)).count();
        assert_eq!([found("small COMPLETED"), found("org/"), found("long unreadable")], [1, 3, 0]);
    }

    #[test]
    fn rows_tell_a_running_run_from_a_crashed_and_an_unreadable_one() {
        let root = tempfile::tempdir().unwrap();
        let runs = RunsRoot::new(root.path());
        let run = runs.create("m", "lora").unwrap();
        assert_eq!(RunRow::read(&run).liveness, Some(Liveness::NotStarted));
        let lease = Lease::acquire(&run).unwrap();
        let writer = EventWriter::open(&lease).unwrap();
        writer.emit(Kind::RunStarted(RunStarted { total_steps: Some(9), ..RunStarted::default() }));
        writer.emit(Kind::Step(Step { step: 4, loss_nats: 0.5, ..Step::default() }));
        let running = RunRow::read(&run);
        assert_eq!(
            (running.liveness, running.step, running.total_steps),
            (Some(Liveness::Running), Some(4), Some(9))
        );
        assert!(running.size_bytes > 0);
        assert_eq!(serde_json::to_value(&running).unwrap()["state"], "running");
        drop(lease);
        assert_eq!(RunRow::read(&run).liveness, Some(Liveness::Crashed));
        std::fs::write(run.event_file(2), "{\"v\":9}\n").unwrap();
        assert!(RunRow::read(&run).problem.unwrap().contains("v9"));
    }

    #[test]
    fn names_with_newlines_quotes_and_broken_unicode_stay_on_their_line_and_in_the_json() {
        use std::os::unix::ffi::OsStrExt;
        let root = tempfile::tempdir().unwrap();
        for name in [&b"a\nb \x1b[2J"[..], b"it's \"quoted\"", b"broken \xff"] {
            std::fs::create_dir_all(root.path().join(std::ffi::OsStr::from_bytes(name)).join("events"))
                .unwrap();
        }
        std::fs::write(root.path().join("it's \"quoted\"/events/0001.jsonl"), "{\"v\":9}\n").unwrap();
        let rows: Vec<RunRow> = RunsRoot::new(root.path()).list().unwrap().iter().map(RunRow::read).collect();
        let table = runs_table(&rows, 0, None);
        assert_eq!(table.lines().count(), 5, "a heading, three runs and one problem:\n{table}");
        assert!(table.contains("a\\nb \\u{1b}[2J  not started"), "{table}");
        assert!(table.contains("broken \u{fffd}") && table.contains("it's \"quoted\": "), "{table}");
        let json = serde_json::to_string(&rows).unwrap();
        assert!(json.contains("broken \u{fffd}"), "{json}");
    }
}
