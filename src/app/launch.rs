//! Starts trainers as processes of their own, and reports how they ended.
//!
//! Enters: a run folder. Leaves: a [`Following`], with which an interface that started an attempt watches the
//! process while it reads the run folder like every other interface. It must not print.

use std::fs;
use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};

use rustix::process::{Pid, Signal};
use sparktune_base::files::private_file;
use sparktune_base::regular_file::read_last_lines;
use sparktune_base::units::bytes;
use sparktune_base::{kept_pages, program_name};
use sparktune_cluster::RankCounts;
use sparktune_plan::Answers;
use sparktune_runlog::{Lease, Liveness, RunDir, RunView};
use sparktune_telemetry::{device_failure, disk_free_bytes};

use crate::cluster::elsewhere::refuse_if_possibly_succeeded;
use crate::failure::{Exit, Failure};
use crate::job;
use crate::kernel_cache::kernel_cache;
use crate::listener::Listener;
use crate::next_steps::{gone_on_elsewhere, resume_command};
use crate::program::{ON_END, Program};
use crate::run_folder::create_run;
use crate::shell::run_argument;
use crate::stop_request::{StopRequest, signal_to_stop};

/// The number of lines of the trainer's log that are shown if there is no other explanation of its end.
const LOG_LINES: usize = 20;
/// The most bytes at the end of the log that are read for these lines.
const MOST_OF_LOG: u64 = 64 << 10;

/// An attempt that this process started: the run and the trainer process.
pub struct Following {
    run: RunDir,
    attempt: u32,
    trainer: Child,
    ended: Option<ExitStatus>,
    stop_request: Option<StopRequest>,
}

/// What happens to a run whose plan, tokens or base model have changed since it started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Changes {
    /// It is refused, because its results would be of neither.
    Refused,
    /// It goes on, with a warning: the user means it.
    Accepted,
}

/// What is special about an attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Conditions {
    /// What happens if the inputs have changed.
    pub changes: Changes,
    /// The numbers of ranks whose order of sums the trainer keeps, for tests and replays.
    pub sum_as: Option<RankCounts>,
    /// Variables of the trainer beside those of this process: what makes it rank 0 of a cluster.
    pub environment: Vec<(String, String)>,
}

impl From<Changes> for Conditions {
    fn from(changes: Changes) -> Self {
        Self { changes, sum_as: None, environment: Vec::new() }
    }
}

/// The end of the trainer process of an attempt.
pub struct Ending {
    /// The resulting exit code of the interface.
    pub exit: Exit,
    /// The failure, if the trainer's events do not contain it.
    pub failure: Option<Failure>,
    /// The end of the trainer's log, if neither the events nor `failure` explain the end.
    pub log: Option<LogEnd>,
}

/// The end of a trainer's log.
pub struct LogEnd {
    /// The file.
    pub path: PathBuf,
    /// The last lines, which are untrusted and have to be escaped for a terminal.
    pub lines: Vec<String>,
}

/// Starts the next attempt of a run.
///
/// # Errors
/// The trainer cannot be started.
pub fn launch(
    program: &Program,
    run: &RunDir,
    conditions: impl Into<Conditions>,
) -> Result<Following, Failure> {
    let attempt = run.next_attempt()?;
    let trainer = spawn(program, run, attempt, conditions.into())?;
    Ok(Following { run: run.clone(), attempt, trainer, ended: None, stop_request: None })
}

/// Does everything from answers to a running, detached trainer, and returns the run. Existing prepared files
/// are used again.
///
/// # Errors
/// Anything that prevents a plan or its start; a cancel before the first step.
pub fn start(program: &Program, answers: &Answers, listener: &dyn Listener) -> Result<RunDir, Failure> {
    let job = job::plan(program, answers, listener)?;
    let run = create_run(program, job, listener)?;
    if listener.is_cancelled() {
        // The run folder contains nothing yet that the next start cannot find elsewhere.
        run.delete()?;
        return Err(Failure::new(Exit::Interrupted, "cancelled before the first step"));
    }
    launch(program, &run, Changes::Refused)?.detach();
    Ok(run)
}

/// Continues a run that is neither completed nor running, with a detached trainer. Other members of a
/// cluster may be asked about it, which can take 10 seconds.
///
/// # Errors
/// The same as for [`may_resume`], [`refuse_if_possibly_succeeded`] and [`launch`].
pub fn resume(program: &Program, run: &RunDir) -> Result<(), Failure> {
    may_resume(run)?;
    refuse_if_possibly_succeeded(run, || false)?;
    launch(program, run, Changes::Refused)?.detach();
    Ok(())
}

/// Checks that a run can be continued.
///
/// # Errors
/// The run has a trainer, or there is nothing left to do.
pub fn may_resume(run: &RunDir) -> Result<(), Failure> {
    let view = RunView::glance(run)?;
    match view.liveness(run)? {
        Liveness::Running | Liveness::Stalled { .. } => {
            let holder = Lease::holder_of(run);
            Err(sparktune_runlog::Error::AlreadyRunning { run: run.path().to_owned(), holder }.into())
        }
        Liveness::Finished { outcome } if outcome.is_complete() => Err(Failure::usage(format!(
            "{} is complete, so there is nothing to resume. Its outputs are in {}",
            run.name(),
            run.outputs().display()
        ))
        .hint(format!("`{} export {}` writes the outputs again", program_name(), run_argument(run)))
        .hint(format!("`{} resume {} --epochs N` trains it longer", program_name(), run_argument(run)))
        .hint(format!(
            "`{} resume {} --checkpoint STEP` trains again from an earlier checkpoint",
            program_name(),
            run_argument(run)
        ))),
        _ => Ok(()),
    }
}

impl Following {
    /// Returns the run.
    pub fn run(&self) -> &RunDir {
        &self.run
    }

    /// Returns the number of the attempt, from 1.
    pub fn attempt(&self) -> u32 {
        self.attempt
    }

    /// Returns whether the trainer process has ended.
    pub fn has_ended(&mut self) -> bool {
        if self.ended.is_none() {
            self.ended = self.trainer.try_wait().ok().flatten();
        }
        self.ended.is_some()
    }

    /// Requests the trainer to save a checkpoint and end.
    pub fn request_stop(&mut self) {
        self.stop_request = StopRequest::send(&self.run).ok();
        if self.stop_request.is_none() {
            // The trainer does not read requests yet. A signal has the same effect.
            signal_to_stop(Pid::from_child(&self.trainer));
        }
    }

    /// Sends the trainer a signal if it has not answered a request to stop for some time.
    pub fn insist(&mut self) {
        self.stop_request.as_mut().map(StopRequest::insist);
    }

    /// Returns how the trainer process ended, or `None` while it runs. `view` must contain all events of the
    /// run.
    pub fn ending(&mut self, view: &RunView) -> Option<Ending> {
        self.has_ended().then_some(())?;
        Some(ending(&self.run, self.attempt, self.ended?, view))
    }

    /// Detaches from the trainer.
    pub fn detach(mut self) {
        // If the trainer ends before this process, it has to be reaped, or it stays in the process table.
        std::thread::spawn(move || self.trainer.wait());
    }
}

fn spawn(program: &Program, run: &RunDir, attempt: u32, conditions: Conditions) -> Result<Child, Failure> {
    let Conditions { changes, sum_as, environment } = conditions;
    let path = run.trainer_log(attempt);
    let log = private_file().append(true).create(true).open(&path);
    let mut log = log.map_err(|error| Failure::io("write", &path, &error))?;
    let _ = writeln!(log, "sparktune {}, attempt {attempt}", env!("CARGO_PKG_VERSION"));
    let both = log.try_clone().map_err(|error| Failure::io("write", &path, &error))?;
    let folder = run.path().canonicalize().map_err(|error| Failure::io("open", run.path(), &error))?;
    let kernels = folder.parent().filter(|_| program.has_cuda).map_or_else(Vec::new, kernel_cache);
    let on_end = program.on_end.as_ref().map(|command| (ON_END, command));
    let program = program.path()?;
    Command::new(program)
        .envs(kernels)
        .envs(kept_pages())
        .envs(on_end)
        .envs(environment)
        .arg("trainer")
        .arg(folder)
        .args((changes == Changes::Accepted).then_some("--accept-changes"))
        .args(sum_as.map(|ranks| format!("--sum-as={ranks}")))
        .stdin(Stdio::null())
        .stdout(both)
        .stderr(log)
        .spawn()
        .map_err(|error| Failure::io("start", program, &error))
}

/// Interprets the end of a trainer process.
fn ending(run: &RunDir, attempt: u32, status: ExitStatus, view: &RunView) -> Ending {
    let failed = |failure: Failure| Ending { exit: failure.exit, failure: Some(failure), log: None };
    let log = run.trainer_log(attempt);
    let crash_report = run.crash_report(attempt);
    let outside_signals = [Signal::KILL, Signal::TERM, Signal::INT, Signal::HUP];
    let from_outside =
        status.signal().is_some_and(|signal| outside_signals.iter().any(|s| s.as_raw() == signal));
    let crashed = !from_outside && status.code().is_none_or(|code| Exit::from_code(code) == Exit::Bug);
    // If the GPU's runtime panics during shutdown, the trainer ends without a final event.
    if let Some(what) = crashed.then(|| device_failure_of(run, attempt)).flatten() {
        let text = format!("{what}. The crash report is {}", crash_report.display());
        return failed(Failure::new(Exit::Device, text));
    }
    if let Some(signal) = status.signal() {
        let is_kill = signal == Signal::KILL.as_raw();
        let cause = if is_kill { " (often sent by the system when memory runs out)" } else { "" };
        let exit = if from_outside { Exit::Stopped } else { Exit::Bug };
        let text = format!("the trainer was ended by signal {signal}{cause}. Its log is {}", log.display());
        let failure = gone_on_elsewhere(view).into_iter().fold(Failure::new(exit, text), Failure::hint);
        let resume = resume_command(&run_argument(run), view);
        return failed(failure.hint(format!("{resume} continues the run")));
    }
    let exit = Exit::from_code(status.code().unwrap_or(Exit::Bug as i32));
    let own = view.attempts.back().filter(|newest| newest.number == attempt);
    let events_say_why =
        own.and_then(|own| own.finished.as_ref()).is_some_and(|finished| finished.reason.is_some());
    match exit {
        Exit::Done | Exit::Stopped | Exit::Diverged => Ending { exit, failure: None, log: None },
        Exit::Bug if crash_report.is_file() => failed(Failure::new(
            Exit::Bug,
            format!(
                "the trainer ended because of a bug in sparktune. The crash report is {}",
                crash_report.display()
            ),
        )),
        _ if events_say_why => Ending { exit, failure: None, log: None },
        _ => {
            let end = read_last_lines(&log, MOST_OF_LOG).unwrap_or_default();
            let text = String::from_utf8_lossy(&end);
            if text.trim().is_empty() {
                return failed(without_a_word(run, exit));
            }
            let lines: Vec<&str> = text.lines().collect();
            let last = &lines[lines.len().saturating_sub(LOG_LINES)..];
            let lines = last.iter().map(|line| (*line).to_owned()).collect();
            Ending { exit, failure: None, log: Some(LogEnd { path: log, lines }) }
        }
    }
}

/// Explains the end of a trainer that has written neither events nor a log, which a full disk prevents.
fn without_a_word(run: &RunDir, exit: Exit) -> Failure {
    let free = disk_free_bytes(run.path()).map(|free| format!(" ({} are free)", bytes(free)));
    let text = format!("the trainer ended and could not write why in {}", run.path().display());
    let full = format!("The disk may be full{}", free.unwrap_or_default());
    let resume = format!("`{} resume {}` continues the run", program_name(), run_argument(run));
    Failure::new(exit, text).hint(full).hint(resume)
}

/// Returns the explanation of a GPU failure in the crash report of an attempt, if there is one.
fn device_failure_of(run: &RunDir, attempt: u32) -> Option<String> {
    device_failure(&fs::read_to_string(run.crash_report(attempt)).ok()?)
}

#[cfg(test)]
mod tests {
    use sparktune_runlog::RunsRoot;

    use super::*;

    #[test]
    fn a_trainer_that_could_write_nothing_is_not_explained_by_an_earlier_attempt() {
        let folder = tempfile::tempdir().unwrap();
        let run = RunsRoot::new(folder.path()).create("tiny", "lora").unwrap();
        let earlier = concat!(
            r#"{"v":1,"attempt":1,"seq":1,"time_us":1,"kind":"run_started"}"#,
            "\n",
            r#"{"v":1,"attempt":1,"seq":2,"time_us":2,"kind":"run_finished","outcome":"failed","reason":"the loss is not finite"}"#,
            "\n"
        );
        fs::write(run.event_file(1), earlier).unwrap();
        let view = RunView::glance(&run).unwrap();
        let ended = |attempt| ending(&run, attempt, ExitStatus::from_raw(4 << 8), &view);
        assert!(ended(1).failure.is_none(), "the events say why");
        let failure = ended(2).failure.unwrap();
        assert_eq!(failure.exit, Exit::Device);
        let words = failure.to_string();
        assert!(words.contains("could not write why") && words.contains("may be full ("), "{words}");
        // Whatever has written into the log, and however much.
        let log = [&b"x\n".repeat(1 << 20)[..], b"\xff\xfe\nlast words\n"].concat();
        fs::write(run.trainer_log(2), log).unwrap();
        let told = ended(2).log.unwrap().lines;
        assert_eq!(told[told.len() - 2..], ["\u{fffd}\u{fffd}", "last words"]);
    }
}
