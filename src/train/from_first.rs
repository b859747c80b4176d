//! What the other ranks get from rank 0 before an attempt: the checkpoint that is continued from, and which
//! files the base has.
//!
//! Only rank 0 keeps checkpoints. The others receive the newest one at each start, so that they need
//! nothing of an earlier attempt, and any process can be any rank.

use std::fs;

use serde::{Deserialize, Serialize};
use sparktune_base::files::create_private_folder;
use sparktune_cluster::share_files;
use sparktune_runlog::Checkpoints;

use crate::batches::NewOrder;
use crate::error::TrainError;
use crate::inputs::Inputs;
use crate::session::Session;
use crate::state::{OPTIMIZER, STATE, State, WEIGHTS};

/// What rank 0 says at the start of an attempt.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Beginning {
    /// The step of the checkpoint that is continued from.
    checkpoint: Option<u64>,
    /// Whether the text model is finished, so that there is nothing to do for the others.
    is_done: bool,
    /// The order of the data, if the run has returned to a checkpoint.
    order: Option<NewOrder>,
}

/// Gives every rank the checkpoint of rank 0. Returns whether there is nothing left to train together.
///
/// # Errors
/// A checkpoint cannot be read or written, or a rank is gone.
pub(crate) fn share_checkpoint(session: &mut Session, state: &mut State) -> Result<bool, TrainError> {
    let mut checkpoints = Checkpoints::new(session.run);
    let mut beginning = Beginning { checkpoint: None, is_done: false, order: state.order };
    let mut folder = session.run.checkpoints();
    if session.ranks.is_first() {
        checkpoints.clean(&session.lease)?;
        if let Some(found) = checkpoints.newest_valid()?.checkpoint {
            let newest = State::read(&found.path)?;
            beginning = Beginning {
                checkpoint: Some(found.step),
                is_done: newest.main_done,
                order: newest.order.or(state.order),
            };
            folder = found.path;
        }
    }
    let beginning = session.ranks.of_first(beginning)?;
    if beginning.is_done {
        return Ok(true);
    }
    state.order = beginning.order;
    let is_first = session.ranks.is_first();
    if !is_first {
        let all = session.run.checkpoints();
        fs::remove_dir_all(&all).map_err(TrainError::io(&all))?;
        create_private_folder(&all).map_err(TrainError::io(&all))?;
    }
    let (Some(step), Some(collective)) = (beginning.checkpoint, session.ranks.collective()) else {
        return Ok(false);
    };
    let names = [STATE, WEIGHTS, OPTIMIZER].map(str::to_owned);
    if is_first {
        share_files(collective, &folder, &names)?;
    } else {
        let writer = checkpoints.begin(step, &session.lease)?;
        share_files(collective, writer.path(), &[])?;
        writer.commit()?;
    }
    Ok(false)
}

/// Checks that this rank has the same base as rank 0.
///
/// # Errors
/// It has another one, or a rank is gone.
pub(crate) fn require_the_same_base(session: &mut Session, inputs: &Inputs) -> Result<(), TrainError> {
    if !session.ranks.has_others() {
        return Ok(());
    }
    let of_first = session.ranks.of_first(inputs.clone())?;
    match of_first.base_difference(inputs) {
        None => Ok(()),
        Some(what) => Err(TrainError::RanksDiffer {
            rank: session.ranks.own().start,
            what: format!("its base model is another one: {what}"),
        }),
    }
}
