//! From a plan to a running trainer: fetch the weights, make the run folder, start the process, follow it to its end.

use std::fs::{self, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde::{Deserialize, Serialize};
use sparktune_plan::{Device, Plan};
use sparktune_runlog::{Action, Liveness, Outcome, RunDir, RunView, RunsRoot};
use sparktune_telemetry::{MachineFacts, Verdict, cuda_checks, device_failure};
use sparktune_tui::screen::can_fill_the_screen;
use sparktune_tui::{Ended, Output, escape, follow, how_it_stands, run_argument};

use crate::failure::{Exit, Failure};
use crate::interrupt::Interrupts;
use crate::job::{Job, fetch};
use crate::output::{note, print_json};
use crate::progress::Listener;
use crate::screens::Screens;

/// Fetches what is missing of the model and makes the run folder: plan, provenance, data.
///
/// # Errors
/// A GPU that cannot be trained on, the download, or a folder that cannot be written.
pub fn make_run(job: Job, listener: &dyn Listener) -> Result<RunDir, Failure> {
    let Job { mut plan, prepared, download, hub, .. } = job;
    is_ready(&plan)?;
    let snapshot = fetch(&hub, &download, listener)?;
    let folder =
        std::path::absolute(&snapshot.folder).map_err(|e| Failure::io("find", &snapshot.folder, &e))?;
    place_model(&mut plan, &folder, snapshot.commit.as_deref());

    let label = plan.name.clone().unwrap_or_else(|| plan.model.id.clone());
    let toml = plan.to_toml()?;
    let run = RunsRoot::new(&plan.runs_dir).create(&label, plan.method.kind().word())?;
    run.write_plan(&toml)?;
    run.write_provenance(&Provenance::of(&plan, snapshot.commit, &prepared)?)?;
    let data = run.data();
    let report = prepared.train.with_file_name("report.json");
    for file in [&prepared.train, &prepared.eval, &report].into_iter().chain(prepared.rejected.as_ref()) {
        let name = file.file_name().expect("prepared files have names");
        link_or_copy(file, &data.join(name))?;
    }
    Ok(run)
}

/// Refuses a training on the GPU that would fail with its first kernel, before anything is fetched for it.
fn is_ready(plan: &Plan) -> Result<(), Failure> {
    if plan.device != Device::Cuda {
        return Ok(());
    }
    let checks = cuda_checks(&MachineFacts::gather(), true);
    let failed: Vec<String> = checks
        .into_iter()
        .filter(|check| check.verdict == Verdict::Failed)
        .map(|check| {
            let fix = check.fix.map_or_else(String::new, |fix| format!(". To do: {fix}"));
            escape(&format!("{}: {}{fix}", check.name, check.found)).into_owned()
        })
        .collect();
    match failed.is_empty() {
        true => Ok(()),
        false => Err(Failure {
            exit: Exit::Device,
            text: format!(
                "this machine cannot train on its GPU yet (`sparktune doctor` shows all of it; --device cpu is for small models)\n  {}",
                failed.join("\n  ")
            ),
        }),
    }
}

/// The folder of the weights is known only now.
fn place_model(plan: &mut Plan, folder: &Path, commit: Option<&str>) {
    if plan.model.path.as_deref() == Some(folder) {
        return;
    }
    plan.model.path = Some(folder.to_owned());
    let rows = plan.advice.iter_mut().flat_map(|advice| &mut advice.explain);
    for row in rows.filter(|row| row.key == "model.path") {
        row.value = folder.display().to_string();
        row.reason = commit.map_or_else(|| "as given".into(), |commit| format!("fetched, commit {commit}"));
    }
}

/// Token files are replaced by rename and never written in place, so a link is as good as a copy. Either is the user's
/// alone; a link whose mode is another user's to say becomes a copy.
fn link_or_copy(from: &Path, to: &Path) -> Result<(), Failure> {
    let private = || fs::set_permissions(to, Permissions::from_mode(0o600));
    if fs::hard_link(from, to).is_ok() {
        if private().is_ok() {
            return Ok(());
        }
        fs::remove_file(to).map_err(|error| Failure::io("replace", to, &error))?;
    }
    fs::copy(from, to).and_then(|_| private()).map_err(|error| Failure::io("copy data to", to, &error))
}

/// What a run was made from and by.
#[derive(Debug, Serialize, Deserialize)]
pub struct Provenance {
    sparktune: String,
    /// BLAKE3 of the program: only the same build continues bit-identically.
    pub build_blake3: String,
    command_line: Vec<String>,
    model: String,
    model_commit: Option<String>,
    train_tokens_blake3: String,
    eval_tokens_blake3: String,
    machine: MachineFacts,
}

impl Provenance {
    fn of(plan: &Plan, commit: Option<String>, prepared: &sparktune_data::Prepared) -> Result<Self, Failure> {
        let hash =
            |path: &Path| Ok::<_, Failure>(sparktune_data::token_file::TokenFile::open(path)?.file_hash());
        Ok(Self {
            sparktune: env!("CARGO_PKG_VERSION").into(),
            build_blake3: build_hash()?,
            command_line: std::env::args_os().map(|arg| arg.to_string_lossy().into_owned()).collect(),
            model: plan.model.id.clone(),
            model_commit: commit,
            train_tokens_blake3: hash(&prepared.train)?,
            eval_tokens_blake3: hash(&prepared.eval)?,
            machine: machine_without_neighbours(),
        })
    }
}

/// Who else used the GPU when the run began is nobody's business later: a run folder is handed on.
fn machine_without_neighbours() -> MachineFacts {
    let mut machine = MachineFacts::gather();
    for gpu in &mut machine.gpus {
        gpu.users = None;
    }
    machine
}

/// BLAKE3 of this program.
///
/// # Errors
/// The program cannot read itself.
pub fn build_hash() -> Result<String, Failure> {
    let program = program()?;
    let mut hasher = blake3::Hasher::new();
    fs::File::open(&program)
        .and_then(|file| hasher.update_reader(file).map(drop))
        .map_err(|error| Failure::io("read", &program, &error))?;
    Ok(hasher.finalize().to_hex().to_string())
}

/// The path of this program.
///
/// # Errors
/// The system does not tell.
pub fn program() -> Result<PathBuf, Failure> {
    std::env::current_exe()
        .map_err(|error| Failure::usage(format!("cannot find the program itself: {error}")))
}

/// What a script reads on the last line.
#[derive(Debug, Serialize)]
pub struct Summary {
    run_dir: Option<PathBuf>,
    outcome: String,
    steps: u64,
    final_loss: Option<f64>,
    eval_loss: Option<f64>,
    outputs: Vec<PathBuf>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

impl Summary {
    /// Of a command that ended before there was a run.
    pub fn of_failure(failure: &Failure) -> Self {
        Self {
            run_dir: None,
            outcome: "failed".into(),
            steps: 0,
            final_loss: None,
            eval_loss: None,
            outputs: Vec::new(),
            error: Some(failure.text.clone()),
        }
    }

    /// Of a run as it stands.
    pub fn of_run(run: &RunDir, liveness: Liveness, view: &RunView) -> Self {
        let finished = view.finished();
        let finite = |loss: Option<f64>| loss.filter(|loss| loss.is_finite());
        let outcome = match liveness {
            Liveness::Finished { outcome: Outcome::Completed } => "completed",
            Liveness::Finished { outcome: Outcome::Stopped } => "stopped",
            Liveness::Finished { .. } => "failed",
            Liveness::Running | Liveness::Stalled { .. } => "running",
            Liveness::Crashed | Liveness::NotStarted => "crashed",
            Liveness::Gone => "gone",
        };
        let eval = view.last_eval.as_ref().map(|eval| eval.loss_nats);
        let folder = run.path().canonicalize().unwrap_or_else(|_| run.path().to_owned());
        Self {
            outcome: outcome.into(),
            steps: finished.map_or_else(|| view.steps_done(), |finished| finished.step),
            final_loss: finite(
                finished
                    .and_then(|f| f.final_loss_nats)
                    .or(view.last_step.as_ref().map(|step| step.loss_nats)),
            ),
            eval_loss: finite(finished.and_then(|f| f.eval_loss_nats).or(eval)),
            outputs: finished
                .map(|f| f.outputs.iter().map(|name| folder.join(name)).collect())
                .unwrap_or_default(),
            error: finished.and_then(|f| f.reason.clone()),
            run_dir: Some(folder),
        }
    }
}

/// How an attempt is followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Following {
    /// One line per event.
    Lines,
    /// One JSON object per event.
    Json,
    /// The dashboard.
    Screen,
}

impl Following {
    /// What suits the terminal, unless lines were asked for.
    pub fn suited(plain: bool, json: bool) -> Self {
        match (json, plain) {
            (true, _) => Self::Json,
            (false, false) if can_fill_the_screen() => Self::Screen,
            (false, _) => Self::Lines,
        }
    }
}

/// Starts the next attempt of a run and follows it: to its end as lines, until it is left as a screen.
///
/// # Errors
/// A trainer that cannot be started or followed. How the attempt ended is no error but the exit code.
pub fn run_attempt(run: &RunDir, how: Following, interrupts: &Interrupts) -> Result<Exit, Failure> {
    let attempt = run.next_attempt()?;
    let mut trainer = Trainer { run, child: spawn(run, attempt)?, ended: None, asked: 0 };
    if how == Following::Screen {
        Screens::open()?.dashboard(run)?;
        return after_the_screen(&mut trainer, attempt);
    }
    let json = how == Following::Json;
    let output = if json { Output::Json } else { Output::Plain };
    let (mut out, mut notes) = (io::stdout().lock(), io::stderr());
    let followed =
        follow(run, output, attempt, &mut out, &mut notes, |_| trainer.goes_on(interrupts.count()))?;
    drop(out);
    let Ended::Enough { liveness, view } = followed else {
        note(&format!("the trainer goes on; `sparktune watch {}` looks at it", run_argument(run)));
        return Ok(Exit::Done);
    };
    let exit = match trainer.ended {
        Some(status) => told(run, attempt, status, &view),
        None => {
            note(&format!(
                "left the trainer to itself: it saves a checkpoint and ends. `sparktune watch {}` looks at it",
                run_argument(run)
            ));
            Exit::Stopped
        }
    };
    if json {
        print_json(&Summary::of_run(run, liveness, &view))?;
    } else if exit == Exit::Done {
        say_what_came_out(run, &view);
    }
    Ok(exit)
}

/// Starts the next attempt of a run and leaves it to itself.
///
/// # Errors
/// A trainer that cannot be started.
pub fn start(run: &RunDir) -> Result<(), Failure> {
    let mut child = spawn(run, run.next_attempt()?)?;
    // Nobody else collects it should it end before this process does.
    std::thread::spawn(move || child.wait());
    Ok(())
}

/// Whether a run may be continued.
///
/// # Errors
/// It is at work, or there is nothing left to do.
pub fn may_resume(run: &RunDir) -> Result<(), Failure> {
    let view = RunView::glance(run)?;
    match view.liveness(run)? {
        Liveness::Running | Liveness::Stalled { .. } => {
            let holder = sparktune_runlog::Lease::holder_of(run);
            Err(sparktune_runlog::Error::AlreadyRunning { run: run.path().to_owned(), holder }.into())
        }
        Liveness::Finished { outcome: Outcome::Completed } => Err(Failure::usage(format!(
            "{} is completed: there is nothing to resume. Its outputs are in {}; `sparktune export {}` writes them again",
            run.name(),
            run.outputs().display(),
            run_argument(run)
        ))),
        _ => Ok(()),
    }
}

/// What a person finds on the terminal behind the screen of a run that somebody else's process trains.
///
/// # Errors
/// A run that cannot be read.
pub fn say_how_it_stands(run: &RunDir) -> Result<Exit, Failure> {
    let view = RunView::replay(run)?;
    let liveness = view.liveness(run)?;
    note(&how_it_stands(run, liveness, &view));
    match liveness {
        Liveness::Finished { outcome: Outcome::Completed } => say_what_came_out(run, &view),
        liveness if liveness.is_live() => {
            note(&format!("the trainer goes on; `sparktune watch {}` looks at it", run_argument(run)));
        }
        _ => {}
    }
    Ok(Exit::Done)
}

/// The dashboard was left: what a person finds on the terminal behind it.
fn after_the_screen(trainer: &mut Trainer<'_>, attempt: u32) -> Result<Exit, Failure> {
    let run = trainer.run;
    let status = trainer.child.try_wait().ok().flatten();
    let view = RunView::replay(run)?;
    note(&how_it_stands(run, view.liveness(run)?, &view));
    let Some(status) = status else {
        note(&format!("the trainer goes on; `sparktune watch {}` looks at it", run_argument(run)));
        return Ok(Exit::Done);
    };
    let exit = told(run, attempt, status, &view);
    if exit == Exit::Done {
        say_what_came_out(run, &view);
    }
    Ok(exit)
}

fn say_what_came_out(run: &RunDir, view: &RunView) {
    let Some(finished) = view.finished() else { return };
    let folder = run.path();
    for name in &finished.outputs {
        note(&format!("  {}", escape(&folder.join(name).display().to_string())));
    }
    if run.outputs().join("SERVE.md").is_file() {
        note(&format!("How to serve it: {}", run.outputs().join("SERVE.md").display()));
    }
}

/// What the end of a trainer process means, said to the user where the events did not say it.
fn told(run: &RunDir, attempt: u32, status: ExitStatus, view: &RunView) -> Exit {
    let log = run.trainer_log(attempt);
    let from_outside = [Signal::KILL, Signal::TERM, Signal::INT, Signal::HUP];
    let outside = status.signal().is_some_and(|signal| from_outside.iter().any(|s| s.as_raw() == signal));
    let crashed = !outside && status.code().is_none_or(|code| Exit::of(code) == Exit::Bug);
    // Where the GPU's runtime panics while it is being put away, the trainer ends without a word of its own.
    if let Some(what) = crashed.then(|| of_the_device(run, attempt)).flatten() {
        let report = run.crash_report(attempt);
        note(&format!("error: {}. The crash report is {}", escape(&what), report.display()));
        return Exit::Device;
    }
    if let Some(signal) = status.signal() {
        let cause =
            if signal == Signal::KILL.as_raw() { " (often the system, when memory runs out)" } else { "" };
        note(&format!(
            "error: the trainer was ended by signal {signal}{cause}. `sparktune resume {}` continues; its log is {}",
            run_argument(run),
            log.display()
        ));
        return if outside { Exit::Stopped } else { Exit::Bug };
    }
    let exit = Exit::of(status.code().unwrap_or(Exit::Bug as i32));
    let crash = run.crash_report(attempt);
    match exit {
        Exit::Done | Exit::Stopped => {}
        Exit::Bug if crash.is_file() => {
            note(&format!(
                "error: a bug in sparktune ended the trainer. The crash report is {}",
                crash.display()
            ));
        }
        // The reason is in the events, and was printed with them.
        _ if view.finished().is_some_and(|finished| finished.reason.is_some()) => {}
        _ => {
            let said = fs::read_to_string(&log).unwrap_or_default();
            let last: Vec<&str> = said.lines().rev().take(20).collect();
            for line in last.into_iter().rev() {
                note(&escape(line));
            }
            note(&format!("the trainer's log is {}", log.display()));
        }
    }
    exit
}

/// What the crash report of an attempt says of the GPU, where it speaks of it.
fn of_the_device(run: &RunDir, attempt: u32) -> Option<String> {
    device_failure(&fs::read_to_string(run.crash_report(attempt)).ok()?)
}

/// The trainer process as its launcher sees it.
struct Trainer<'a> {
    run: &'a RunDir,
    child: Child,
    ended: Option<ExitStatus>,
    /// Signals that were acted upon.
    asked: usize,
}

impl Trainer<'_> {
    /// Whether to go on following. The first signal asks the trainer to stop, the second leaves it to itself.
    fn goes_on(&mut self, signals: usize) -> bool {
        if self.ended.is_none() {
            self.ended = self.child.try_wait().ok().flatten();
        }
        if self.ended.is_some() {
            return false;
        }
        if signals > self.asked {
            self.asked = signals;
            if signals > 1 {
                return false;
            }
            note("stopping: the trainer saves a checkpoint and ends (once more leaves it to itself)");
            self.ask_to_stop();
        }
        true
    }

    fn ask_to_stop(&self) {
        if sparktune_runlog::request(self.run, Action::Stop).is_ok() {
            return;
        }
        // Not far enough to read requests, or no room to write one: a signal says the same.
        if let Some(pid) = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw) {
            let _ = kill_process(pid, Signal::TERM);
        }
    }
}

fn spawn(run: &RunDir, attempt: u32) -> Result<Child, Failure> {
    let path = run.trainer_log(attempt);
    let log = OpenOptions::new().append(true).create(true).mode(0o600).open(&path);
    let mut log = log.map_err(|error| Failure::io("write", &path, &error))?;
    let _ = writeln!(log, "sparktune {}, attempt {attempt}", env!("CARGO_PKG_VERSION"));
    let both = log.try_clone().map_err(|error| Failure::io("write", &path, &error))?;
    let folder = run.path().canonicalize().map_err(|error| Failure::io("open", run.path(), &error))?;
    let program = program()?;
    Command::new(&program)
        .arg("trainer")
        .arg(folder)
        .stdin(Stdio::null())
        .stdout(both)
        .stderr(log)
        .spawn()
        .map_err(|error| Failure::io("start", &program, &error))
}
