//! Existing runs: finding one, stopping it, exporting it again, and listing the inputs of the newest ones.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use sparktune_base::program_name;
use sparktune_plan::presets::PRESETS;
use sparktune_plan::{Answers, Origin, Plan, Setting};
use sparktune_runlog::{
    Checkpoints, Error, EventTailer, Kind, Lease, Limit, Liveness, Planned, RunDir, RunView, RunsRoot,
};

use crate::answers::{gather, runs_dir};
use crate::data_sets::is_elsewhere;
use crate::failure::{Exit, Failure};
use crate::led_elsewhere::led_elsewhere;
use crate::program::Program;
use crate::stop_request::{StopRequest, is_frozen, trainer_of};

/// The number of the newest runs that are read for recently used models and data.
const RECENT_RUNS: usize = 20;

/// The time within which most trainers answer, so that nothing needs to be said before.
const PROMPT_ANSWER: Duration = Duration::from_secs(2);

/// Finds a run by its folder, a unique prefix of its name, or `latest`.
///
/// # Errors
/// There is no such run, or there are several.
pub fn find(name: &str, runs_dir_flag: Option<PathBuf>) -> Result<RunDir, Failure> {
    let root = RunsRoot::new(runs_dir(runs_dir_flag)?);
    root.resolve(name).map_err(|error| match &error {
        Error::NoSuchRun { .. } | Error::NoRuns { .. } => {
            led_elsewhere(&root, name).unwrap_or_else(|| error.into())
        }
        _ => error.into(),
    })
}

/// Finds the run that is being trained.
///
/// # Errors
/// No run is, or several are.
pub fn find_running(runs_dir_flag: Option<PathBuf>) -> Result<RunDir, Failure> {
    let root = RunsRoot::new(runs_dir(runs_dir_flag)?);
    let none = |error: Error| led_elsewhere(&root, "latest").unwrap_or_else(|| error.into());
    // That there are no runs at all is told in other words.
    root.resolve("latest").map_err(none)?;
    let mut running = root.list()?;
    // Folders that this user may not read cannot be stopped either.
    running.retain(|run| Lease::is_held(run).unwrap_or(false));
    match running.len() {
        0 => Err(none(Error::NotRunning { run: root.path().to_owned() })),
        1 => Ok(running.swap_remove(0)),
        several => {
            let names: Vec<String> = running.iter().map(RunDir::name).collect();
            let text =
                format!("{several} runs are being trained; name the one to stop:\n  {}", names.join("\n  "));
            Err(Failure::new(Exit::Usage, text))
        }
    }
}

/// Lists the names of all runs, the newest first, for completing one that is being typed.
///
/// # Errors
/// The folder cannot be listed, or the answers cannot be read.
pub fn names(runs_dir_flag: Option<PathBuf>) -> Result<Vec<String>, Failure> {
    let runs = RunsRoot::new(runs_dir(runs_dir_flag)?).list()?;
    Ok(runs.iter().rev().map(|run| run.name().to_owned()).collect())
}

/// Returns what the plan of a run says of its time; `None` where it does not say it, or cannot be read.
pub fn planned(run: &RunDir) -> Option<Planned> {
    let plan = Plan::from_toml(&run.read_plan().ok()?, "plan.toml").ok()?;
    planned_by(&plan)
}

/// Returns what a plan says of the time, to tell what follows the steps.
pub fn planned_by(plan: &Plan) -> Option<Planned> {
    let time = &plan.advice.as_ref()?.time;
    Some(Planned {
        step_ms: time.train_s? * 1000.0 / time.steps.max(1) as f64,
        head_s: time.mtp_s.unwrap_or(0.0),
        finish_s: time.finish_s.unwrap_or(0.0),
    })
}

/// A running trainer that was requested to save a checkpoint and end.
pub struct Stopping {
    run: RunDir,
    request: StopRequest,
}

/// What is known while a trainer is expected to end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Awaited {
    /// The trainer has not answered yet: it is in this phase, and has done so many steps.
    Busy {
        /// The phase, not escaped.
        phase: String,
        /// The number of steps done.
        step: u64,
    },
    /// The trainer's process is alive, but has logged nothing for this number of seconds.
    Silent(u64),
    /// The trainer ends after this step.
    EndsAfter(u64),
    /// The trainer did not answer, so it was sent a signal.
    Signalled,
    /// The trainer's process, of this id, was stopped by SIGSTOP or a debugger, and hears nothing.
    Frozen(i32),
}

/// The state of a run after its trainer was stopped.
pub struct Stopped {
    /// The state of the run.
    pub liveness: Liveness,
    /// All events of the run.
    pub view: RunView,
    /// The step after which the trainer ended on request; `None` if it ended before it read the request.
    pub acknowledged_at: Option<u64>,
}

/// Requests the trainer of a run to save a checkpoint and end.
///
/// # Errors
/// The run has no trainer.
pub fn request_stop(run: &RunDir) -> Result<Stopping, Failure> {
    Ok(Stopping { run: run.clone(), request: StopRequest::send(run)? })
}

impl Stopping {
    /// Waits until the trainer has ended, or nobody wants to know it any more. `told` receives what becomes
    /// known meanwhile.
    ///
    /// # Errors
    /// The run folder cannot be read; `is_cancelled` ends the waiting, while the request stands.
    pub fn wait(
        mut self,
        mut told: impl FnMut(Awaited),
        is_cancelled: impl Fn() -> bool,
    ) -> Result<Stopped, Failure> {
        let mut tailer = EventTailer::new(&self.run);
        let mut view = RunView::default();
        let (mut acknowledged_at, mut was_frozen, mut was_silent) = (None, false, false);
        let (asked, mut busy) = (Instant::now(), None);
        loop {
            // The state is checked before reading, so that the last events of an ending trainer are read
            // below.
            let is_live = view.liveness(&self.run)?.is_live();
            loop {
                let batch = tailer.poll(Limit::default())?;
                for record in &batch.records {
                    view.apply(&record.event);
                    if let Kind::ControlApplied(applied) = &record.event.kind
                        && self.request.is_answered_by(&applied.id)
                    {
                        acknowledged_at = Some(applied.step);
                        told(Awaited::EndsAfter(applied.step));
                    }
                }
                if batch.at_end {
                    break;
                }
            }
            if !is_live {
                return Ok(Stopped { liveness: view.liveness(&self.run)?, view, acknowledged_at });
            }
            let frozen = trainer_of(&self.run).filter(|pid| is_frozen(*pid));
            // A suspended trainer ends no step.
            if acknowledged_at.is_none() && frozen.is_none() && asked.elapsed() >= PROMPT_ANSWER {
                // It is told once in each phase.
                let phase = view.phase.as_ref().map(|phase| phase.phase.clone());
                if let Some(phase) = phase.filter(|phase| busy.as_ref() != Some(phase)) {
                    busy = Some(phase.clone());
                    told(Awaited::Busy { phase, step: view.steps_done() });
                }
            }
            // Silence can be judged only now that the log was read.
            let silent_s = match view.liveness(&self.run)? {
                Liveness::Stalled { silent_s } => Some(silent_s),
                _ => None,
            };
            if let Some(silent_s) = silent_s.filter(|_| !was_silent) {
                told(Awaited::Silent(silent_s));
            }
            was_silent = silent_s.is_some();
            if acknowledged_at.is_none() && self.request.insist() {
                told(Awaited::Signalled);
            }
            if let Some(pid) = frozen.filter(|_| !was_frozen) {
                told(Awaited::Frozen(pid.as_raw_nonzero().get()));
            }
            was_frozen = frozen.is_some();
            if is_cancelled() {
                return Err(Failure::new(
                    Exit::Interrupted,
                    "the end of the trainer is not waited for any more",
                ));
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}

/// Makes the checkpoint of this step the newest of a run, from which its next attempt continues, also if the
/// run was complete. The later ones are renamed; returns their new names.
///
/// # Errors
/// The run has a trainer, or no intact checkpoint of this step.
pub fn go_back_to(run: &RunDir, step: u64) -> Result<Vec<String>, Failure> {
    let lease = Lease::acquire(run)?;
    let aside = Checkpoints::new(run).go_back_to(step, &lease)?;
    let name = |path: PathBuf| path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    Ok(aside.into_iter().map(name).collect())
}

/// Writes the outputs of a run again from its newest checkpoint, in a separate process because this loads a
/// model.
///
/// # Errors
/// The process's own message about its failure.
pub fn export_in_process(program: &Program, run: &RunDir) -> Result<(), Failure> {
    let program = program.path()?;
    let output = Command::new(program)
        .arg("export")
        .arg(run.path())
        .stdin(Stdio::null())
        .output()
        .map_err(|error| Failure::io("start", program, &error))?;
    if output.status.success() {
        return Ok(());
    }
    let exit = output.status.code().map_or(Exit::Bug, Exit::from_code);
    Err(Failure::new(exit, error_in(&String::from_utf8_lossy(&output.stderr))))
}

/// Returns the last error that a process wrote, with its hints, as one line; otherwise its last line.
fn error_in(messages: &str) -> String {
    let lines: Vec<&str> = messages.lines().collect();
    let from =
        lines.iter().rposition(|line| line.starts_with(ERROR)).unwrap_or(lines.len().saturating_sub(1));
    let text = lines[from..].join(" ");
    let text = text.strip_prefix(ERROR).unwrap_or(&text);
    if text.is_empty() { "the export failed".to_owned() } else { text.to_owned() }
}

/// The prefix of the program's error messages.
const ERROR: &str = "error: ";

/// Returns the answers of a run, for a new one with changes: what its user decided, and not what was
/// recommended then, which is decided again. A shipped preset stays a preset.
///
/// # Errors
/// The run has no plan that can be read, or a file of the answers cannot be read.
pub fn answers_again(run: &RunDir) -> Result<Answers, Failure> {
    let text = run.read_plan()?;
    let source = run.plan().display().to_string();
    let plan = Plan::from_toml(&text, &source)?;
    if plan.is_of_head_alone() {
        let text = format!("{} trained only an MTP head, which has no questions", run.name());
        return Err(Failure::usage(text).hint(format!("`{} head` trains another", program_name())));
    }
    let all = Answers::from_toml(&text, Origin::Flag, &source)?;
    let rows = plan.advice.as_ref().map_or(&[][..], |advice| &advice.explain);
    let shipped = plan.preset.as_ref().is_some_and(|name| PRESETS.iter().any(|preset| preset.name == name));
    let is_left_out = |_: Origin, setting: &Setting| {
        let origin = rows.iter().find(|row| row.key == setting.key).map(|row| row.origin);
        match (setting.name, origin) {
            ("name", _) => true,
            // Those of the demo come with its preset, which does not name them.
            ("model" | "data", _) => false,
            ("preset", _) => !shipped,
            (_, Some(Origin::BuiltIn)) => true,
            (_, Some(Origin::Preset)) => shipped,
            // Without reasons nobody knows what was decided; then everything counts as decided.
            (_, None) => !rows.is_empty(),
            _ => false,
        }
    };
    gather(all.without(is_left_out), false)
}

/// Recently used models and data, newest first. Files that no longer exist are left out.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Recent {
    /// Data files, folders, and data sets of the hub.
    pub data: Vec<PathBuf>,
    /// Model ids and folders.
    pub models: Vec<String>,
}

/// Returns the models and data of the newest runs in `runs_dir`.
pub fn recently_used(runs_dir: &Path) -> Recent {
    let runs = RunsRoot::new(runs_dir).list().unwrap_or_default();
    let mut recent = Recent::default();
    for run in runs.iter().rev().take(RECENT_RUNS) {
        let plan = run.read_plan().ok().and_then(|text| Plan::from_toml(&text, "plan.toml").ok());
        let Some(plan) = plan else { continue };
        for path in plan.data.train {
            if (path.exists() || is_elsewhere(&path)) && !recent.data.contains(&path) {
                recent.data.push(path);
            }
        }
        if !recent.models.contains(&plan.model.id) {
            recent.models.push(plan.model.id);
        }
    }
    recent
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_run_that_is_being_trained_is_found_although_a_newer_one_has_ended() {
        let folder = tempfile::tempdir().unwrap();
        let found = || find_running(Some(folder.path().to_owned()));
        assert!(found().unwrap_err().text.contains("there are no runs"));
        let root = RunsRoot::new(folder.path());
        let [first, second] = ["a", "b"].map(|label| root.create(label, "lora").unwrap());
        let runs = root.list().unwrap();
        assert!(found().unwrap_err().text.contains("nothing to stop"));
        let older = Lease::acquire(&runs[0]).unwrap();
        assert_eq!(found().unwrap(), runs[0]);
        let _newer = Lease::acquire(&runs[1]).unwrap();
        let several = found().unwrap_err().text;
        assert!(several.contains(&first.name()) && several.contains(&second.name()), "{several}");
        drop(older);
        assert_eq!(found().unwrap(), runs[1]);
    }

    #[test]
    fn who_looks_for_a_run_where_one_of_its_other_ranks_trains_is_told_where_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let root = RunsRoot::new(folder.path());
        let look = || {
            let flag = || Some(folder.path().to_owned());
            let found =
                [find("a-run", flag()), find("a-run-lora", flag()), find("b", flag()), find_running(flag())];
            found.map(|found| found.unwrap_err().text.contains("a rank of a-run-lora"))
        };
        let (rank, _) = root.of_rank("a-run-lora", 1).unwrap();
        assert_eq!(look(), [false; 4], "it does not train");
        let _lease = Lease::acquire(&rank).unwrap();
        assert_eq!(look(), [true, true, false, true]);
        root.create("c", "lora").unwrap();
        assert_eq!(look(), [true, true, false, true]);
    }

    #[test]
    fn the_error_of_a_process_is_shown_with_its_hints_and_without_what_came_before() {
        assert_eq!(
            error_in("loading\nerror: no checkpoint\nHint: train first\n"),
            "no checkpoint Hint: train first"
        );
        assert_eq!(error_in("Killed\n"), "Killed");
        assert_eq!(error_in(""), "the export failed");
    }
}
