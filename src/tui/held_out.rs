//! Describes what a run gained on the eval set, and which weights its outputs contain.

use sparktune_base::units::{count, loss};
use sparktune_runlog::RunView;

/// Returns whose loss the baseline of a run is, in one word.
pub(crate) fn zero_line(view: &RunView) -> &'static str {
    if view.has_parent() { "parent" } else { "base" }
}

/// Returns whose loss the baseline of a run is, in a sentence.
pub(crate) fn of_zero_line(view: &RunView) -> &'static str {
    if view.has_parent() { "the parent" } else { "the base model" }
}

/// Compares the best evaluation with the base model: `base 2.3100 → best 1.4200 at step 600`, or with the
/// weights that the run started from: `parent …`.
pub(crate) fn base_to_best(view: &RunView) -> Option<String> {
    let (step, best) = view.best()?;
    let word = zero_line(view);
    let base = view.base_eval.as_ref().map(|eval| format!("{word} {} → ", loss(eval.loss_nats)));
    Some(format!("{}best {} at step {}", base.unwrap_or_default(), loss(best), count(step)))
}

/// Names the step of the exported weights: `outputs of step 600`.
pub(crate) fn exported(view: &RunView) -> Option<String> {
    Some(format!("outputs of step {}", count(view.exported_step()?)))
}

#[cfg(test)]
mod tests {
    use sparktune_runlog::{Eval, Event, Kind, RunFinished, RunStarted};

    use super::*;

    #[test]
    fn a_gain_is_told_with_what_is_known_of_it() {
        let mut view = RunView::default();
        let mut seq = 0;
        let mut said = |kind: Kind| {
            seq += 1;
            view.apply(&Event { attempt: 1, seq, time_us: seq, kind });
            (base_to_best(&view), exported(&view))
        };
        let eval = |step, loss_nats| Kind::Eval(Eval { step, loss_nats, ..Eval::default() });
        assert_eq!(said(Kind::RunStarted(RunStarted::default())), (None, None));
        assert_eq!(said(eval(0, 2.31)), (None, None), "the base alone is no gain");
        let gain = Some("base 2.3100 → best 1.4200 at step 600".to_owned());
        assert_eq!(said(eval(600, 1.42)), (gain.clone(), None));
        assert_eq!(said(eval(1200, 1.5)), (gain, None));
        let finished = RunFinished {
            best_step: Some(600),
            best_eval_nats: Some(1.42),
            exported_step: Some(1200),
            ..RunFinished::default()
        };
        assert_eq!(said(Kind::RunFinished(finished)).1, Some("outputs of step 1,200".to_owned()));
    }
}
