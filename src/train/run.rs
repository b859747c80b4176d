//! The training of a run from outside: one call makes one attempt, which always ends with one event.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;

use serde::Serialize;
use sparktune_base::units::counted;
use sparktune_cluster::{Collective, Error as ClusterError};
use sparktune_runlog::{Kind, Outcome, RunDir, RunFinished};

use crate::attempt::{self, Ending};
use crate::error::TrainError;
use crate::health::Given;
use crate::objective::{NextToken, Objective, TextModel};
use crate::options::{AfterMeeting, TrainOptions};
use crate::ranks::Ranks;
use crate::recovery;
use crate::session::Session;
use crate::state::State;

/// How an attempt ended, for the caller.
#[derive(Debug, Clone, Serialize)]
pub struct Finished {
    /// Completed, diverged, or stopped by a request or because memory ran out.
    pub outcome: Outcome,
    /// The number of optimizer steps of the text model done so far, in all attempts together.
    pub steps: u64,
    /// Mean loss per trained token of the last step, nats.
    pub final_loss: Option<f64>,
    /// Mean loss per trained token of the eval set at the last evaluation, nats.
    pub eval_loss: Option<f64>,
    /// The step of the checkpoint with the lowest loss on the eval set.
    pub best_step: Option<u64>,
    /// The lowest mean loss per trained token of the eval set, nats.
    pub best_eval: Option<f64>,
    /// The step of the weights that the outputs contain, once it is decided.
    pub exported_step: Option<u64>,
    /// The folders and files that were written.
    pub outputs: Vec<PathBuf>,
}

/// Trains the run of a folder: from the start, or from its newest intact checkpoint.
///
/// Takes the run's lease and writes all events, the last of which is `run_finished`, even after a failure. A
/// request in `control/`, `stop`, or low memory ends the training after a checkpoint.
///
/// # Errors
/// [`TrainError`]. Its message is in the last event too.
pub fn train(run: &RunDir, stop: &AtomicBool) -> Result<Finished, TrainError> {
    train_with(run, stop, &TrainOptions::default())
}

/// Like [`train`], with these options.
///
/// # Errors
/// The same as for [`train`].
pub fn train_with(run: &RunDir, stop: &AtomicBool, options: &TrainOptions) -> Result<Finished, TrainError> {
    train_for(&NextToken, run, stop, options, Ranks::of(options.sum_as.clone()))
}

/// Like [`train_with`], as one of several ranks, which all call this with the same plan and tokens. Rank 0
/// has the run: it alone writes checkpoints and outputs. The others need a run folder with the plan and the
/// tokens, and get the checkpoint that is continued from; their part ends with the text model.
///
/// # Errors
/// The same as for [`train`]. A rank that is gone is no error: the run stops, and can be resumed.
pub fn train_as_rank(
    run: &RunDir,
    stop: &AtomicBool,
    options: &TrainOptions,
    collective: &mut (dyn Collective + 'static),
) -> Result<Finished, TrainError> {
    train_for(&NextToken, run, stop, options, Ranks::member(collective))
}

/// Trains the text model for any objective.
pub(crate) fn train_for(
    objective: &impl Objective<Trainee = TextModel>,
    run: &RunDir,
    stop: &AtomicBool,
    options: &TrainOptions,
    ranks: Ranks,
) -> Result<Finished, TrainError> {
    let mut session = Session::open(run, stop, options.reserve_bytes, ranks)?;
    let mut state = State::start();
    let number = session.events.attempt();
    let mut result = loop {
        let result =
            catch_device_failure(run, number, || attempt::make(objective, &mut session, &mut state, options));
        match &result {
            // All continue from rank 0's checkpoint, as if they had just been started.
            Err(TrainError::Cluster(error @ (ClusterError::Newcomers | ClusterError::Regrouped))) => {
                state = State::start();
                let meets = matches!(error, ClusterError::Newcomers);
                if let Err(error) = heal(&mut session, options, meets) {
                    break Err(error);
                }
            }
            Err(error) if recovery::returns(&mut session, &mut state, error) => {}
            _ => break result,
        }
    };
    // A checkpoint that is being written is finished and recorded before the last event, even after a
    // failure.
    if let Err(error) = catch_device_failure(run, number, || session.wait_for_checkpoint())
        && result.is_ok()
    {
        result = Err(error);
    }
    // What was not saved since the last checkpoint is trained again. A stop while ranks meet is one, too.
    if let Err(TrainError::Cluster(error)) = &result
        && (error.is_of_a_rank() || matches!(error, ClusterError::Interrupted))
    {
        result = Ok(Ending::Stopped { reason: Some(error.to_string()) });
    }
    // What it sees of the others from here on says nothing, and nothing may follow the last event.
    session.members = None;
    session.ranks.leave(result.as_ref().err().map(ToString::to_string).as_deref());
    let (outcome, reason, outputs) = match &result {
        Ok(Ending::Completed { outputs }) => {
            let why = state.diverged(Given::of(&session.plan));
            let outcome = if why.is_some() { Outcome::Diverged } else { Outcome::Completed };
            (outcome, why, outputs.clone())
        }
        Ok(Ending::Stopped { reason }) => (Outcome::Stopped, reason.clone(), Vec::new()),
        Err(error) => (Outcome::Failed, Some(error.to_string()), Vec::new()),
    };
    let finished = Finished {
        outcome,
        steps: state.main_steps,
        final_loss: state.last_loss(),
        eval_loss: state.last_eval(),
        best_step: state.best_step,
        best_eval: state.best_eval(),
        exported_step: state.exported_step.filter(|_| run.outputs().join("merged").is_dir()),
        outputs,
    };
    let relative =
        |path: &PathBuf| path.strip_prefix(run.path()).unwrap_or(path).to_string_lossy().into_owned();
    session.events.emit(Kind::RunFinished(RunFinished {
        outcome,
        reason,
        step: finished.steps,
        final_loss_nats: finished.final_loss,
        eval_loss_nats: finished.eval_loss,
        best_step: finished.best_step,
        best_eval_nats: finished.best_eval,
        exported_step: finished.exported_step,
        mem_peak_bytes: session.peak_bytes(),
        mem_predicted_bytes: session.plan.predicted_bytes(),
        outputs: finished.outputs.iter().map(relative).collect(),
    }));
    result.map(|_| finished)
}

/// Lets those in that wait, if the ranks meet, and gives all what every rank has: again, as long as one is
/// lost meanwhile.
fn heal(session: &mut Session, options: &TrainOptions, meets: bool) -> Result<(), TrainError> {
    session.has_healed = true;
    if meets {
        session.phase("exchange", "other ranks join: all ranks meet again");
        let known = session.ranks.count();
        let Some(collective) = session.ranks.collective() else { return Ok(()) };
        collective.meet_again()?;
        session.members_met(known);
    }
    let Some(collective) = session.ranks.collective() else { return Ok(()) };
    if let Some(AfterMeeting(work)) = &options.after_meeting {
        loop {
            match work(collective) {
                Err(ClusterError::Regrouped) => {}
                done => break done?,
            }
        }
    }
    let members = collective.world_size();
    session
        .phase("exchange", format!("{} continue from the last checkpoint", counted(members as u64, "rank")));
    Ok(())
}

/// Runs `f` and converts a failure of the GPU, which its runtime reports by a panic, into an error. Any other
/// panic is a bug and continues.
fn catch_device_failure<T>(
    run: &RunDir,
    attempt: u32,
    f: impl FnOnce() -> Result<T, TrainError>,
) -> Result<T, TrainError> {
    catch_unwind(AssertUnwindSafe(f)).unwrap_or_else(|payload| {
        let message = payload.downcast_ref::<String>().map(String::as_str);
        let message = message.or_else(|| payload.downcast_ref::<&str>().copied()).unwrap_or_default();
        // The first panic of the device's thread is the cause; the one that reaches this thread often only
        // says that the device's thread has ended.
        let what =
            sparktune_telemetry::recorded_failure().or_else(|| sparktune_telemetry::device_failure(message));
        match what {
            Some(what) => Err(TrainError::Device { what, details: run.crash_report(attempt) }),
            None => resume_unwind(payload),
        }
    })
}
