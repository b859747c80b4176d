//! Which inputs of adapters a training step sets to 0.
//!
//! The masks depend on the plan's seed, the step, the place of a packed sequence in it, and the layer, so
//! that a resumed run and one that was never stopped have the same. The same example has another mask in
//! another pack.

use std::borrow::Cow;

use sparktune_base::random::{GAMMA, mix};
use sparktune_model::Model;
use sparktune_plan::Plan;

/// The dropout of adapters, and the masks of the current sequence.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Dropout {
    /// The share of the numbers that become 0.
    share: f64,
    seed: u64,
    /// The key of the current sequence's masks.
    key: u64,
}

impl Dropout {
    /// No dropout.
    pub(crate) const OFF: Self = Self { share: 0.0, seed: 0, key: 0 };

    /// Returns the dropout of a plan.
    pub(crate) fn of(plan: &Plan) -> Self {
        Self { share: plan.method.dropout(), seed: plan.seed, key: 0 }
    }

    /// Changes to the masks of the sequence at this place of a step.
    pub(crate) fn begin(&mut self, step: u64, place: usize) {
        let of_step = mix(self.seed.wrapping_add(GAMMA.wrapping_mul(step + 1)));
        self.key = mix(of_step.wrapping_add(GAMMA.wrapping_mul(place as u64 + 1)));
    }

    /// Returns the model with the masks of the current sequence.
    pub(crate) fn applied<'a>(&self, model: Cow<'a, Model>) -> Cow<'a, Model> {
        if self.share > 0.0 { Cow::Owned(model.with_dropout(self.share, self.key)) } else { model }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_sequence_of_every_step_has_masks_of_its_own_which_depend_on_the_seed() {
        let mut keys = BTreeSet::new();
        for seed in 0..4 {
            let mut dropout = Dropout { share: 0.1, seed, key: 0 };
            for step in 0..16 {
                for place in 0..8 {
                    dropout.begin(step, place);
                    keys.insert(dropout.key);
                    dropout.begin(step + 1, place);
                    dropout.begin(step, place);
                    assert!(keys.contains(&dropout.key), "it does not depend on earlier sequences");
                }
            }
        }
        assert_eq!(keys.len(), 4 * 16 * 8);
    }
}
