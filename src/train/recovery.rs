//! What a run does about steps whose loss or gradients are not finite.
//!
//! Such a step is skipped: its update changes nothing, and the data goes on. When too many in a row are
//! skipped, the weights are to blame, or the data that follows: the run returns to its last good checkpoint
//! and trains the rest of that epoch in another order. When this fails too, it stops.
//!
//! Only checkpoints that every run of the same plan has are considered. One that was saved by the clock or on
//! request would make the same run continue in another way on a slower machine.
//!
//! The number of skipped steps and the new order are part of the checkpoints, so a resumed run goes on in the
//! same way.

use std::path::Path;

use sparktune_base::random::{GAMMA, mix};
use sparktune_base::units::count;
use sparktune_runlog::Checkpoints;

use crate::batches::NewOrder;
use crate::error::TrainError;
use crate::session::Session;
use crate::state::{Stage, State};
use crate::steps::MOST_SKIPPED;

/// Makes the last good checkpoint the newest and `state` the start of a new order, if `error` is that too
/// many steps were not finite and the run has not returned before. Returns whether it is to be trained again.
pub(crate) fn returns(session: &mut Session, state: &mut State, error: &TrainError) -> bool {
    let TrainError::NotFinite { step, .. } = *error else { return false };
    if state.stage != Stage::Main || state.order.is_some() {
        return false;
    }
    // The deputy of a swarm writes checkpoints too. They are removed before the next attempt, and one that is
    // still being written would be in the way, or appear afterwards.
    if let Err(error) = session.wait_for_checkpoint() {
        session.warn(format!("the last checkpoint could not be written: {error}"), Some(step));
    }
    // Rank 0 has the checkpoints, so it decides for all.
    let found = if session.ranks.is_first() { return_to_checkpoint(session, step) } else { Ok(None) };
    let order = found.unwrap_or_else(|error| {
        session.warn(format!("the run could not return to an earlier checkpoint: {error}"), Some(step));
        None
    });
    let Ok(Some(order)) = session.ranks.of_first(order) else { return false };
    *state = State::start();
    state.order = Some(order);
    true
}

/// A checkpoint is good if a finite loss was computed with its weights.
fn return_to_checkpoint(session: &Session, failed: u64) -> Result<Option<NewOrder>, TrainError> {
    let mut checkpoints = Checkpoints::new(session.run);
    let is_good = |step: &u64| step + u64::from(MOST_SKIPPED) + 1 < failed;
    let save_steps = session.plan.checkpoint.save_steps;
    let is_planned = |path: &Path| State::read(path).is_ok_and(|state| state.is_planned(save_steps));
    let mut newest_first = checkpoints.steps()?.into_iter().rev().filter(is_good);
    let found =
        newest_first.find(|step| checkpoints.verify(*step).is_ok_and(|found| is_planned(&found.path)));
    let Some(step) = found else { return Ok(None) };
    let aside = checkpoints.go_back_to(step, &session.lease)?;
    let seed = mix(session.plan.seed.wrapping_add(GAMMA.wrapping_mul(step + 1))) >> 32;
    let kept = if aside.is_empty() { "" } else { "; later checkpoints are kept as later-step-…" };
    session.warn(
        format!(
            "the loss or the gradients of {} steps in a row, up to step {}, were not finite: the run returns to the checkpoint of step {} and trains the rest of that epoch in another order of the data, with seed {seed}{kept}. If this happens again, start a new run with a lower --learning-rate",
            MOST_SKIPPED + 1,
            count(failed),
            count(step)
        ),
        Some(step),
    );
    Ok(Some(NewOrder { from_step: step, seed }))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use burn::tensor::Device;
    use sparktune_cluster::{Collective, Error as ClusterError, Traffic};
    use sparktune_runlog::RunsRoot;

    use super::*;
    use crate::control::ControlRequests;
    use crate::optimizer::Optimizer;
    use crate::ranks::Ranks;
    use crate::snapshot::Snapshot;
    use crate::testing::plan;

    /// The second of three ranks, which all say the same.
    struct Deputy;

    impl Collective for Deputy {
        fn rank(&self) -> usize {
            1
        }
        fn world_size(&self) -> usize {
            3
        }
        fn all_reduce(&mut self, _: &mut [f32]) -> Result<(), ClusterError> {
            Ok(())
        }
        fn all_gather(&mut self, own: &[u8]) -> Result<Vec<Vec<u8>>, ClusterError> {
            Ok(vec![own.to_vec(); 3])
        }
        fn leave(&mut self, _: Option<&str>) {}
        fn traffic(&self) -> Traffic {
            Traffic::default()
        }
    }

    #[test]
    fn the_deputy_of_a_swarm_has_written_its_checkpoint_before_the_ranks_return_to_one() {
        let root = tempfile::tempdir().unwrap();
        let run = RunsRoot::new(root.path()).create("tiny", "test").unwrap();
        let mut plan = plan("Qwen/Qwen3.5-2B");
        plan.ranks.swarm = true;
        run.write_plan(&plan.to_toml().unwrap()).unwrap();
        let (stop, mut deputy) = (AtomicBool::new(false), Deputy);
        let mut session = Session::open(&run, &stop, None, Ranks::member(&mut deputy)).unwrap();
        let mut state = State::start();
        let snapshot = Snapshot::take(&state, &[], &Optimizer::default(), &Device::flex(), false);
        session.save(snapshot, ControlRequests::default()).unwrap();
        let error = TrainError::NotFinite { what: "loss", value: f64::NAN, step: 9 };
        assert!(!returns(&mut session, &mut state, &error), "rank 0 has found no checkpoint");
        assert_eq!(Checkpoints::new(&run).steps().unwrap(), [0]);
    }
}
