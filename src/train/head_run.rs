//! Begins a run that trains the MTP head of a finished text model: the command `head`.
//!
//! Enters: a new run, and the run whose text model is finished, with the same model and method; or none, if
//! the text model is the base as it is. Leaves: a checkpoint in the new run that says that its text model is
//! finished, with the other's weights. Whoever trains the new run then trains its head and exports it, like
//! any run that was stopped there.

use std::path::Path;

use safetensors::SafeTensors;
use safetensors::tensor::TensorView;
use sparktune_model::WeightFile;
use sparktune_runlog::{Checkpoints, Lease, RunDir, Skipped};

use crate::error::TrainError;
use crate::session::read_plan;
use crate::state::{OPTIMIZER, STATE, State, WEIGHTS, chosen_step};

/// The beginning of the names of a head's parameters.
const HEAD: &str = "mtp.";

/// Gives `into`, which has no checkpoint yet, the finished text model of `from`.
///
/// # Errors
/// When `from` is being trained, its text model is not finished, its newest checkpoint is damaged, or a file
/// cannot be read or written.
pub fn begin_head_run(from: &RunDir, into: &RunDir) -> Result<(), TrainError> {
    let _lease = Lease::acquire(from)?;
    let plan = read_plan(from)?;
    let mut checkpoints = Checkpoints::new(from);
    let found = checkpoints.newest_valid()?;
    // An older checkpoint may have another text model, if the run was trained further after it.
    if let Some(Skipped { path, damage, .. }) = found.skipped.first() {
        let (run, path) = (from.name().to_owned(), path.clone());
        return Err(TrainError::DamagedNewest { run, path, damage: damage.to_string() });
    }
    let newest = found.checkpoint;
    let newest = newest.ok_or_else(|| TrainError::UnfinishedTextModel { run: from.name().to_owned() })?;
    let state = State::read(&newest.path)?;
    if !state.main_done {
        return Err(TrainError::UnfinishedTextModel { run: from.name().to_owned() });
    }
    let step = chosen_step(&plan, &state);
    let folder = if step == state.weights_step() { newest.path } else { checkpoints.verify(step)?.path };
    begin(into, &state.with_untrained_head(step), |path| copy_text_model(&folder.join(WEIGHTS), path))
}

/// Says in `into`, which has no checkpoint yet, that its text model is finished: it is the base.
///
/// # Errors
/// When a file cannot be written.
pub fn begin_head_of_model(into: &RunDir) -> Result<(), TrainError> {
    let mut state = State::start();
    state.main_done = true;
    begin(into, &state, write_nothing)
}

/// Commits the first checkpoint of a run, without an optimizer.
fn begin(
    into: &RunDir,
    state: &State,
    write_weights: impl FnOnce(&Path) -> Result<(), TrainError>,
) -> Result<(), TrainError> {
    let lease = Lease::acquire(into)?;
    let mut checkpoints = Checkpoints::new(into);
    let writer = checkpoints.begin(state.step, &lease)?;
    write_weights(&writer.path().join(WEIGHTS))?;
    write_nothing(&writer.path().join(OPTIMIZER))?;
    let text = serde_json::to_string_pretty(state).expect("plain fields serialise");
    let path = writer.path().join(STATE);
    std::fs::write(&path, text).map_err(TrainError::io(&path))?;
    writer.commit()?;
    Ok(())
}

/// Writes a file without tensors.
fn write_nothing(path: &Path) -> Result<(), TrainError> {
    let nothing: [(&str, TensorView<'_>); 0] = [];
    safetensors::serialize_to_file(nothing, None, path).map_err(|e| unreadable(path, &e))
}

/// Copies the weights of a checkpoint without those of the head.
fn copy_text_model(from: &Path, to: &Path) -> Result<(), TrainError> {
    let file = WeightFile::open(from).map_err(TrainError::io(from))?;
    let stored = SafeTensors::deserialize(file.bytes()).map_err(|e| unreadable(from, &e))?;
    let kept = stored.iter().filter(|(name, _)| !name.starts_with(HEAD));
    safetensors::serialize_to_file(kept, None, to).map_err(|e| unreadable(to, &e))
}

fn unreadable(path: &Path, error: &safetensors::SafeTensorError) -> TrainError {
    TrainError::io(path)(std::io::Error::other(error.to_string()))
}
