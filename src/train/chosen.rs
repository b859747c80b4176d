//! Which weights of a run its outputs contain: those with the lowest loss on the eval set, or the last.
//!
//! They are chosen once, when the text model is finished, so that the outputs and the MTP head, which is
//! trained after that, belong to the same checkpoint.

use std::path::PathBuf;

use sparktune_model::Model;
use sparktune_plan::{Method, Plan};
use sparktune_runlog::{Checkpoints, RunDir};

use crate::error::TrainError;
use crate::load;
use crate::state::{State, chosen_step};

/// Loads the weights to export into a model that has those of `state`, and returns their step.
///
/// Only a finished text model has a choice. If the best checkpoint is damaged, which `warn` is told, the last
/// weights are exported.
///
/// # Errors
/// When the best checkpoint belongs to another run.
pub(crate) fn load_chosen(
    run: &RunDir,
    plan: &Plan,
    state: &State,
    model: &mut Model,
    warn: &mut dyn FnMut(String),
) -> Result<u64, TrainError> {
    let (present, best) = (state.weights_step(), chosen_step(plan, state));
    if best == present {
        return Ok(present);
    }
    match Checkpoints::new(run).verify(best) {
        Ok(checkpoint) => {
            load::restore(&checkpoint.path, state, model, None)?;
            Ok(best)
        }
        Err(error) => {
            warn(format!(
                "the best weights, those of step {best}, cannot be exported, so the outputs contain those of step {present}: {error}"
            ));
            Ok(present)
        }
    }
}

/// Returns the folder of the checkpoint with the best MTP head, if it is not the one of `state`, whose stage
/// must be that of the head.
///
/// A damaged checkpoint, which `warn` is told, counts as none.
pub(crate) fn best_head(run: &RunDir, state: &State, warn: &mut dyn FnMut(String)) -> Option<PathBuf> {
    let best = state.best_head.filter(|best| best.step != state.checkpoint_step())?;
    match Checkpoints::new(run).verify(best.step) {
        Ok(checkpoint) => Some(checkpoint.path),
        Err(error) => {
            warn(format!(
                "the MTP head with the lowest loss on the eval set cannot be exported, so the outputs contain the last one: {error}"
            ));
            None
        }
    }
}

/// Says in a sentence or two which weights the outputs contain.
pub(crate) fn in_words(plan: &Plan, state: &State, exported: u64) -> String {
    if plan.method == Method::Head {
        return "The text model is the base as it is: only the MTP head was trained.".to_owned();
    }
    let loss = state.best_eval().map(|loss| format!(" ({loss:.4})")).unwrap_or_default();
    let last = state.main_steps;
    match state.best_step {
        Some(best) if best == exported => {
            let base =
                state.health.base_eval().filter(|base| state.best_eval().is_some_and(|best| best >= *base));
            let worse = base
                .map(|base| format!(", but not lower than {} ({base:.4})", state.health.of_zero_line()))
                .unwrap_or_default();
            format!(
                "The weights are those of step {best} of {last}, which had the lowest held-out loss{loss}{worse}."
            )
        }
        Some(best) => format!(
            "The weights are those of step {exported} of {last}. Those of step {best} had the lowest held-out loss{loss}; `export --best` exports them."
        ),
        None => format!("The weights are those of step {exported} of {last}."),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::plan;

    #[test]
    fn the_words_say_which_step_and_whether_another_was_better() {
        let mut plan = plan("Qwen/Qwen3.5-0.8B");
        let mut state = State::start();
        state.main_steps = 12;
        assert_eq!(in_words(&plan, &state, 12), "The weights are those of step 12 of 12.");
        state.record_eval(0.5);
        state.best_step = Some(6);
        let best = in_words(&plan, &state, 6);
        assert!(best.contains("step 6 of 12") && best.contains("lowest held-out loss (0.5000)"), "{best}");
        state.health.base(0.25, false);
        let worse = in_words(&plan, &state, 6);
        assert!(worse.contains("(0.5000), but not lower than the base model's (0.2500)"), "{worse}");
        let last = in_words(&plan, &state, 12);
        assert!(last.contains("step 12 of 12") && last.contains("`export --best`"), "{last}");
        plan.method = Method::Head;
        assert!(in_words(&plan, &state, 0).contains("the base as it is"));
    }
}
