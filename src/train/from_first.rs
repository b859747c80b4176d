//! What the other ranks get from rank 0 before an attempt: the checkpoint that is continued from, which files
//! the base has, and whether sums may be made in another way than before.
//!
//! The checkpoints of a run are rank 0's. The others receive the newest one at each start, so that they need
//! nothing of an earlier attempt, and any process can be any rank. In a swarm of three ranks or more, the
//! next rank, which may take rank 0's place, keeps those of this attempt too, and all others have the best
//! one of before: those that lack it are sent it.

use std::fs::{self, File};
use std::path::Path;

use serde::{Deserialize, Serialize};
use sparktune_base::units::counted;
use sparktune_cluster::{SummedBy, share_files};
use sparktune_runlog::Checkpoints;

use crate::batches::NewOrder;
use crate::error::TrainError;
use crate::inputs::Inputs;
use crate::judged::JudgedRanks;
use crate::session::Session;
use crate::state::{OPTIMIZER, STATE, State, WEIGHTS};

/// What rank 0 says at the start of an attempt.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Beginning {
    /// The step of the checkpoint that is continued from.
    checkpoint: Option<u64>,
    /// An older one with the lowest eval loss, which the outputs may need.
    best: Option<Best>,
    /// Whether the text model is finished, so that there is nothing to do for the others.
    is_done: bool,
    /// The order of the data, if the run has returned to a checkpoint.
    order: Option<NewOrder>,
}

/// The checkpoint with the lowest eval loss.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Best {
    step: u64,
    /// The BLAKE3 hash of its weights.
    weights: String,
}

impl Best {
    /// Describes the checkpoint of this step, if it is intact.
    fn read(checkpoints: &mut Checkpoints, step: u64) -> Option<Self> {
        let path = checkpoints.verify(step).ok()?.path.join(WEIGHTS);
        let mut hasher = blake3::Hasher::new();
        hasher.update_reader(File::open(path).ok()?).ok()?;
        Some(Self { step, weights: hasher.finalize().to_hex().to_string() })
    }
}

/// Gives every rank the checkpoint of rank 0. Returns whether there is nothing left to train together.
///
/// # Errors
/// A checkpoint cannot be read or written, or a rank is gone.
pub(crate) fn share_checkpoint(session: &mut Session, state: &mut State) -> Result<bool, TrainError> {
    let mut checkpoints = Checkpoints::new(session.run);
    let mut beginning = Beginning { checkpoint: None, best: None, is_done: false, order: state.order };
    let needs_best = session.plan.ranks.swarm && session.ranks.count() > 2;
    let mut folder = session.run.checkpoints();
    if session.ranks.is_first() {
        checkpoints.clean(&session.lease)?;
        if let Some(found) = checkpoints.newest_valid()?.checkpoint {
            let newest = State::read(&found.path)?;
            let best = newest.best_step.filter(|best| needs_best && *best != found.step);
            beginning = Beginning {
                checkpoint: Some(found.step),
                best: best.and_then(|best| Best::read(&mut checkpoints, best)),
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
    let best = beginning.best;
    let has_best = is_first || best.as_ref().is_none_or(|best| has(&mut checkpoints, best));
    if !is_first {
        let kept = best.as_ref().filter(|_| has_best).map(|best| best.step);
        remove_all_but(session, &mut checkpoints, kept)?;
    }
    let is_sent = session.ranks.gather(has_best)?.contains(&false);
    if let Some(best) = best.filter(|_| is_sent) {
        let from = is_first.then(|| checkpoints.verify(best.step)).transpose()?;
        let from = from.map(|checkpoint| checkpoint.path);
        share_one(session, &mut checkpoints, best.step, from.as_deref(), !has_best)?;
    }
    if let Some(step) = beginning.checkpoint {
        share_one(session, &mut checkpoints, step, is_first.then_some(&*folder), true)?;
    }
    Ok(false)
}

fn has(checkpoints: &mut Checkpoints, best: &Best) -> bool {
    Best::read(checkpoints, best.step).as_ref() == Some(best)
}

/// Removes what a rank other than 0 has of earlier attempts.
fn remove_all_but(
    session: &Session,
    checkpoints: &mut Checkpoints,
    kept: Option<u64>,
) -> Result<(), TrainError> {
    let all = session.run.checkpoints();
    let kept = kept.and_then(|step| checkpoints.verify(step).ok()).map(|checkpoint| checkpoint.path);
    let entries = fs::read_dir(&all).map_err(TrainError::io(&all))?;
    for entry in entries {
        let path = entry.map_err(TrainError::io(&all))?.path();
        if kept.as_ref() != Some(&path) {
            let removed = if path.is_dir() { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
            removed.map_err(TrainError::io(&path))?;
        }
    }
    Ok(())
}

/// Sends a checkpoint from its folder, or receives it. All ranks must call this; one that does not keep it
/// throws it away.
fn share_one(
    session: &mut Session,
    checkpoints: &mut Checkpoints,
    step: u64,
    from: Option<&Path>,
    is_kept: bool,
) -> Result<(), TrainError> {
    let Some(collective) = session.ranks.collective() else { return Ok(()) };
    match from {
        Some(folder) => {
            let names = [STATE, WEIGHTS, OPTIMIZER].map(str::to_owned);
            share_files(collective, folder, &names)?;
        }
        None => {
            let writer = checkpoints.begin(step, &session.lease)?;
            share_files(collective, writer.path(), &[])?;
            if is_kept {
                writer.commit()?;
            }
        }
    }
    Ok(())
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
            what: format!(
                "rank {} has another base model than the rank that has the run: {what}",
                session.ranks.number()
            ),
        }),
    }
}

/// Checks that the ranks, or a process that adds in their place, sum as they did when the checkpoint was
/// written, without those that were muted then, or get the same bits anyway. Where a swarm goes on from a
/// checkpoint because its members change, a difference is only reported.
///
/// # Errors
/// They may get other bits, which nobody has accepted; or a rank is gone.
pub(crate) fn require_the_same_sums(
    session: &mut Session,
    state: &State,
    accept: bool,
) -> Result<(), TrainError> {
    if session.ranks.is_alone() {
        return Ok(());
    }
    session.ranks.begin_step(state.step + 1);
    let ranks = session.ranks.count();
    session.sums_are_seen = session.ranks.of_first(state.summed_by == Some(SummedBy::Tcp))?;
    let judged = JudgedRanks::of(&session.plan, session.sums_are_seen);
    if let Some(judged) = &judged {
        judged.mute_again(&mut session.ranks, state)?;
    }
    let is_seen = judged.is_some_and(|judged| !judged.adds_unseen(&session.ranks));
    let now = session.ranks.summed_by(is_seen);
    let both = state.summed_by.zip(now).filter(|(before, now)| now.may_differ(*before, ranks));
    let who = counted(ranks as u64, "rank");
    let who = if session.ranks.has_others() { who } else { format!("one process in the place of {who}") };
    let reason = both.map(|(before, now)| {
        format!(
            "up to step {}, gradients of this run were summed {before}, and now {who} would sum them {now}",
            state.step
        )
    });
    // Rank 0 decides, because those that have just come do not know whether the others go on.
    let (reason, may_differ) = session.ranks.of_first((reason, accept || session.has_healed))?;
    match reason {
        Some(reason) if !may_differ => Err(TrainError::OtherSums { reason }),
        Some(reason) => {
            session.warn(
                format!(
                    "{reason}: the last bits of the results differ from those of a run that was not interrupted"
                ),
                Some(state.step),
            );
            Ok(())
        }
        None => Ok(()),
    }
}
