//! The trainer process: a session and a crash report of its own, stopped by signals. The training itself is
//! done by [`sparktune_train`].

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::Path;
use std::sync::Arc;

use rustix::fs::Mode;
use sparktune_app::data_worker::guard_this_process;
use sparktune_app::failure::{Exit, Failure};
use sparktune_app::folders::{HOME_VARIABLE, demo_folder};
use sparktune_app::machine::remember_rate;
use sparktune_app::program::Program;
use sparktune_app::run_folder::refuse_unready_gpu;
use sparktune_cluster::{Collective, RankCounts};
use sparktune_plan::{Device, Plan};
use sparktune_runlog::{Error, Lease, Outcome, RunDir, RunView};
use sparktune_telemetry::{Library, Machine};
use sparktune_train::{AfterMeeting, BeforeFirstRun, TrainError, TrainOptions};
use sparktune_tui::output::{note, report};

use crate::crash;
use crate::engine::{arena, asked_for, say_again};
use crate::failure::from_training;
use crate::interrupt::StopSignals;
use crate::on_end::OnEnd;
use crate::rank::{join, placement, refuse_second_gpu, share_run, share_run_again};

/// The file with the devices that passed the self-tests, next to the runs.
const PASSED: &str = ".self-tests";

/// The file with the measured tiles, next to the runs.
#[cfg(feature = "cuda")]
const TILES: &str = ".tiles";

/// The smallest number of steps of a run whose speed is stored, because the first ones warm up caches.
const FEWEST_STEPS: u64 = 4;

/// Trains the run of this folder, and then runs the command that the user wants to be run at the end.
///
/// # Errors
/// Any failure that ended the training early.
pub fn trainer(
    program: &Program,
    folder: &Path,
    accept_changes: bool,
    sum_as: Option<RankCounts>,
) -> Result<Exit, Failure> {
    let signals = StopSignals::default();
    let is_refused = Cell::new(None);
    let Some(hook) = OnEnd::from_environment() else {
        return train_run(program, folder, accept_changes, sum_as, &signals, &is_refused);
    };
    let run = RunDir::open(folder)?;
    let attempt = run.next_attempt()?;
    let train = || train_run(program, folder, accept_changes, sum_as, &signals, &is_refused);
    let done = catch_unwind(AssertUnwindSafe(train));
    // Where another process trains this run, this failure is not the end of the run. A trainer that failed
    // before it tried to take the lease was not refused, so the lease is looked at.
    let is_of_another = || Lease::is_held(&run).unwrap_or(false);
    if !is_refused.get().unwrap_or_else(is_of_another) {
        // A signal to the training itself is not meant for the command, which the next one ends.
        signals.forget();
        hook.run(&run, attempt, word_of(done.as_ref().ok()), signals.stop());
    }
    done.unwrap_or_else(|panic| resume_unwind(panic))
}

/// Returns how a training ended in one word; `None` is a bug.
fn word_of(done: Option<&Result<Exit, Failure>>) -> &'static str {
    match done {
        Some(Ok(Exit::Done)) => "completed",
        Some(Ok(Exit::Diverged)) => "diverged",
        Some(Ok(Exit::Stopped)) => "stopped",
        _ => "failed",
    }
}

/// Trains the run of this folder. With `accept_changes` it goes on with other inputs than the run started
/// with; with `sum_as` it adds gradients like so many ranks. In a process that a launcher made rank 0 of
/// several, it waits for the others and trains with them. From the start of the training on, `is_refused`
/// says whether it was refused because another process trains the run.
///
/// # Errors
/// Any failure that ended the training early.
fn train_run(
    program: &Program,
    folder: &Path,
    accept_changes: bool,
    sum_as: Option<RankCounts>,
    signals: &StopSignals,
    is_refused: &Cell<Option<bool>>,
) -> Result<Exit, Failure> {
    // A session of its own, so that a closed terminal or SSH connection does not end the trainer. The system
    // refuses only if this process already leads a group, for example when started by hand.
    let _ = rustix::process::setsid();
    sparktune_telemetry::offer_to_end_first();
    let previous_mask = make_files_private();
    let run = RunDir::open(folder)?;
    crash::report_to(run.crash_report(run.next_attempt()?));
    guard_tokenizer()?;
    signals.listen()?;
    let stop = signals.stop();
    // The driver may have been updated since the run was created.
    let plan = Plan::from_toml(&run.read_plan()?, "plan.toml")?;
    refuse_unready_gpu(&plan)?;
    let options = TrainOptions { accept_changes, sum_as, ..options(program, &run)? };
    let placement = placement()?;
    // The steps of several ranks have the tokens of all, which says nothing about this machine alone.
    let has_speed_of_its_own = placement.is_none();
    let finished = match placement {
        None => {
            is_refused.set(Some(false));
            sparktune_train::train_with(&run, stop, &options)
        }
        Some(_) if options.sum_as.is_some() => {
            return Err(Failure::usage("--sum-as is for one process, and this one is a rank of several"));
        }
        Some(placement) => {
            refuse_second_gpu(&plan, &placement)?;
            let asked = asked_for(&plan)?;
            let mut ranks = join(program, &placement, stop, &asked)?;
            share_run(&mut *ranks, &run, &run.name())?;
            let shared = run.clone();
            let again = move |ranks: &mut dyn Collective| {
                say_again(ranks)?;
                share_run_again(ranks, &shared, &shared.name())
            };
            let options = TrainOptions { after_meeting: Some(AfterMeeting(Arc::new(again))), ..options };
            is_refused.set(Some(false));
            sparktune_train::train_as_rank(&run, stop, &options, &mut *ranks)
        }
    };
    if let Err(TrainError::Run(Error::AlreadyRunning { .. })) = &finished {
        is_refused.set(Some(true));
    }
    let finished = finished.map_err(from_training)?;
    // The measured rates are readable by all users who train here.
    rustix::process::umask(previous_mask);
    match finished.outcome {
        outcome if outcome.is_complete() => {
            if has_speed_of_its_own && let Err(failure) = remember_speed(&run) {
                note(&format!("the measured speed could not be saved: {failure}"));
            }
            Ok(if outcome == Outcome::Diverged { Exit::Diverged } else { Exit::Done })
        }
        Outcome::Stopped => Ok(Exit::Stopped),
        _ => Ok(Exit::Bug),
    }
}

/// Lets the model's tokenizer and chat template, where this process runs them itself, end it with a sentence
/// if one of them fails, hangs or takes all memory. The sentence goes to standard error, which is the log of
/// a trainer.
pub(crate) fn guard_tokenizer() -> Result<(), Failure> {
    guard_this_process(|failure| std::process::exit(report(&failure) as i32))
}

/// Makes all files created from now on readable by the user alone, because weights and outputs reveal the
/// data. Returns the previous mask.
pub(crate) fn make_files_private() -> Mode {
    rustix::process::umask(Mode::RWXG | Mode::RWXO)
}

/// Returns the options of a run on a GPU: the self-tests with the demo's model, if this build has not trained
/// on the GPU yet, and the measured tiles.
pub(crate) fn options(program: &Program, run: &RunDir) -> Result<TrainOptions, Failure> {
    let plan = Plan::from_toml(&run.read_plan()?, "plan.toml")?;
    let mut options = TrainOptions::default();
    let Some(runs) = run.path().parent().filter(|_| plan.device == Device::Cuda) else {
        return Ok(options);
    };
    options.arena = arena()?;
    let on = this_gpu(program)?;
    #[cfg(feature = "cuda")]
    {
        options.tiles = Some(sparktune_train::TileFile { on: on.clone(), path: runs.join(TILES) });
    }
    match demo_folder() {
        Some(demo) => {
            let tests = BeforeFirstRun { model: demo.join("model"), on, passed: runs.join(PASSED) };
            options.before_first_run = Some(tests);
        }
        None => note(&format!(
            "this GPU was not tested: presets/demo was not found; set {HOME_VARIABLE} to the folder that contains presets/"
        )),
    }
    Ok(options)
}

/// Describes the GPU, its driver, the compiler and this build in one line.
fn this_gpu(program: &Program) -> Result<String, Failure> {
    let facts = Machine::gather();
    let gpu = facts.gpus.first().cloned().unwrap_or_default();
    let version = |library: &Option<Library>| library.as_ref().and_then(|library| library.version.clone());
    let known = |words: Option<String>| words.unwrap_or_else(|| "of unknown version".into());
    Ok(format!(
        "{}, driver {}, NVRTC {}, sparktune {} ({})",
        gpu.name.as_deref().unwrap_or("this GPU"),
        known(facts.gpu_driver),
        known(version(&facts.cuda_libraries.nvrtc)),
        env!("CARGO_PKG_VERSION"),
        &program.build_hash()?[..12],
    ))
}

/// Adds the speed of this run to the stored rates, for the next plan.
fn remember_speed(run: &RunDir) -> Result<(), Failure> {
    let plan = Plan::from_toml(&run.read_plan()?, "plan.toml")?;
    let view = RunView::replay(run)?;
    let speeds = view.charts.tokens_per_s.buckets();
    let later = &speeds[speeds.len() / 2..];
    let (sum, steps) = later.iter().fold((0.0, 0), |(sum, steps), b| (sum + b.sum, steps + b.count));
    let Some(folder) = run.path().parent() else { return Ok(()) };
    if view.steps_done() < FEWEST_STEPS || steps == 0 {
        return Ok(());
    }
    plan.measured(sum / steps as f64).map_or(Ok(()), |rate| remember_rate(folder, rate))
}
