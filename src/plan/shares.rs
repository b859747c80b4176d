//! Decides what an epoch has of each set of training data.

use std::path::PathBuf;

use sparktune_base::units::{count, counted, counted_on_average};

use crate::error::PlanError;
use crate::facts::SetFacts;
use crate::plan::{DataPlan, SetShare};
use crate::resolve::Resolver;
use crate::weights::{KEY, Weights, weights_of};

impl Resolver<'_> {
    /// Decides the weights of the sets. `given` are their names as the user gave them, and `recorded` those
    /// of the plan.
    pub(crate) fn weights(&mut self, given: &[PathBuf], recorded: &[PathBuf]) -> Result<Weights, PlanError> {
        let names =
            |sets: &[PathBuf]| -> Vec<String> { sets.iter().map(|set| set.display().to_string()).collect() };
        let (given, recorded) = (names(given), names(recorded));
        let weights = weights_of(self.answers.weights.as_ref(), given.iter().map(String::as_str))?;
        if weights.iter().all(|weight| *weight == 1.0) {
            let without = "an epoch trains every example once";
            self.pick_optional(KEY, &self.answers.weights, without);
            return Ok(Weights::default());
        }
        self.pick_optional(KEY, &self.answers.weights, "");
        Ok(Weights(recorded.into_iter().zip(weights).filter(|(_, weight)| *weight != 1.0).collect()))
    }

    /// Returns the sets of training data with what an epoch has of each.
    ///
    /// # Errors
    /// An epoch would have no example, or more than are counted.
    pub(crate) fn shares(&self, data: &DataPlan) -> Result<Vec<SetShare>, PlanError> {
        let whole = |number: f64| number.round() as u64;
        let share = |(set, weight): (&SetFacts, f64)| SetShare {
            name: set.name.clone(),
            weight,
            examples: set.lengths.examples,
            tokens: set.lengths.total_tokens,
            epoch_examples: whole(weight * set.lengths.examples as f64),
            epoch_tokens: whole(weight * set.lengths.total_tokens as f64),
        };
        let shares: Vec<SetShare> =
            self.facts.data.sets.iter().zip(data.weights_in_order()).map(share).collect();
        let examples: u64 = shares.iter().map(|set| set.epoch_examples).fold(0, u64::saturating_add);
        let most = u64::from(u32::MAX);
        if data.weights.is_empty() || shares.is_empty() || (1..=most).contains(&examples) {
            return Ok(shares);
        }
        Err(PlanError::Conflict {
            key: KEY,
            what: format!(
                "with these weights an epoch has {}; it needs at least one and at most {}",
                counted(examples, "example"),
                count(most)
            ),
            fix: "Choose weights closer to 1".into(),
        })
    }
}

impl SetShare {
    /// Describes the set in one line, without its name: `weight 2, 80 examples and 12,345 tokens an epoch`.
    pub fn in_words(&self) -> String {
        format!(
            "{}, {}; weight {}: {} and {} an epoch",
            counted(self.examples, "example"),
            counted(self.tokens, "token"),
            self.weight,
            counted_on_average(self.weight * self.examples as f64, "example"),
            counted_on_average(self.weight * self.tokens as f64, "token"),
        )
    }
}
