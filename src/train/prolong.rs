//! Gives a run another length: more epochs or steps than it was planned to have, or fewer.
//!
//! Enters: a run that nobody trains. Leaves: its plan with the new length, which says what it was before, and
//! the newest checkpoint of its text model as the newest of all. The next attempt continues from there. Its
//! learning rates are those that a run of the new length has at these steps, as when transformers resumes a
//! training with other arguments, so a resumed run needs no other state than the plan.

use std::path::PathBuf;

use sparktune_plan::Plan;
use sparktune_plan::plan::{DurationPlan, EarlierLength};
use sparktune_runlog::{Checkpoints, Lease, RunDir};

use crate::batches::Batches;
use crate::error::TrainError;
use crate::examples::{Examples, train_tokens};
use crate::load;
use crate::objective::{NextToken, Objective};
use crate::schedule::learning_rate;
use crate::session::read_plan;
use crate::state::{Stage, State};

/// The length that is asked for. What is not given follows from the other.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Length {
    /// The number of passes over the data, from the beginning of the run.
    pub epochs: Option<f64>,
    /// The largest number of optimizer steps, from the beginning of the run.
    pub max_steps: Option<u64>,
}

/// What has become of a run's length.
#[derive(Debug, Clone, PartialEq)]
pub struct Prolonged {
    /// The step that the run continues from.
    pub from_step: u64,
    /// The number of steps that it was planned to have.
    pub steps_before: u64,
    /// The number of steps that it has now.
    pub steps: u64,
    /// The checkpoints of the MTP head that were set aside, because the head is trained again.
    pub set_aside: Vec<PathBuf>,
}

/// Gives a run another length.
///
/// # Errors
/// When the run is being trained, trains no text model, or has already done as many steps; when its files
/// cannot be read or written.
pub fn prolong(run: &RunDir, length: Length) -> Result<Prolonged, TrainError> {
    let lease = Lease::acquire(run)?;
    let text = run.read_plan()?;
    let plan = read_plan(run)?;
    if plan.is_of_head_alone() {
        return Err(TrainError::HeadHasNoLength { run: run.name().to_owned() });
    }
    let mut checkpoints = Checkpoints::new(run);
    let newest = newest_of_text_model(run, &mut checkpoints)?;
    let from_step = newest.as_ref().map_or(0, |state| state.step);

    let vocabulary = load::base_of_run(run, &plan)?.config().vocab_size;
    let steps_of = |epochs: f64, max_steps: Option<u64>| {
        let examples = Examples::open(&train_tokens(run), vocabulary, NextToken.examples_per_group())?;
        Ok::<_, TrainError>(Batches::new(examples, &plan, epochs, max_steps)?.total_steps())
    };
    let before = &plan.duration;
    let epochs = match (length.epochs, length.max_steps) {
        (Some(epochs), _) => epochs,
        (None, None) => before.epochs,
        (None, Some(steps)) => enough_epochs(before.epochs, steps, |epochs| steps_of(epochs, None))?,
    };
    let steps_before = steps_of(before.epochs, before.max_steps)?;
    let steps = steps_of(epochs, length.max_steps)?;
    if steps <= from_step {
        return Err(TrainError::NotLonger { run: run.name().to_owned(), done: from_step, steps });
    }

    let earlier = EarlierLength {
        epochs: before.epochs,
        max_steps: before.max_steps,
        steps: steps_before,
        until_step: from_step,
        plan: blake3::hash(text.as_bytes()).to_hex().to_string(),
    };
    let mut all = before.before.clone();
    all.push(earlier);
    let duration = DurationPlan { epochs, max_steps: length.max_steps, before: all };
    let longer =
        plan.lasting(duration, steps).to_toml().map_err(|error| TrainError::Plan(error.to_string()))?;
    // In this order a kill in between leaves a run of the old length, which trains its head again.
    let set_aside = match &newest {
        Some(_) => checkpoints.go_back_to(from_step, &lease)?,
        None => Vec::new(),
    };
    lease.replace_plan(&longer)?;
    Ok(Prolonged { from_step, steps_before, steps, set_aside })
}

/// Returns the state of the newest intact checkpoint of the text model's training, whose optimizer is that of
/// the text model; nothing before the first checkpoint.
fn newest_of_text_model(run: &RunDir, checkpoints: &mut Checkpoints) -> Result<Option<State>, TrainError> {
    let steps = checkpoints.steps()?;
    if steps.is_empty() {
        return Ok(None);
    }
    for step in steps.into_iter().rev() {
        let Ok(checkpoint) = checkpoints.verify(step) else { continue };
        let state = State::read(&checkpoint.path)?;
        if state.stage == Stage::Main {
            return Ok(Some(state));
        }
    }
    Err(TrainError::NoTextModelCheckpoint { run: run.name().to_owned() })
}

/// Returns the smallest whole number of epochs that have so many steps, or `epochs` if these have them.
fn enough_epochs(
    epochs: f64,
    steps: u64,
    steps_of: impl Fn(f64) -> Result<u64, TrainError>,
) -> Result<f64, TrainError> {
    let have = steps_of(epochs)?;
    if have >= steps {
        return Ok(epochs);
    }
    let mut enough = (epochs * steps as f64 / have.max(1) as f64).ceil();
    // Epochs from which examples are left out at random are not equally long.
    while steps_of(enough)? < steps {
        enough += 1.0;
    }
    Ok(enough)
}

/// Says in a sentence what another length means for a run that has trained by an earlier one.
pub(crate) fn in_words(plan: &Plan, earlier: &EarlierLength, step: u64, steps: u64) -> String {
    let rate = |step: u64, total: u64| learning_rate(&plan.optimizer, step, total);
    format!(
        "the run now has {steps} steps instead of {}; from here on the learning rate is that of a run of this length at the same step: {:.3e} at step {}, after {:.3e}",
        earlier.steps,
        rate(step, steps),
        step + 1,
        rate(step.saturating_sub(1), earlier.steps),
    )
}
