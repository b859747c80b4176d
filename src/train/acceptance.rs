//! Measures how many drafted tokens of an MTP head the model accepts, and whether one head is better than
//! another.
//!
//! The model writes its own greedy answers to prompts of the eval set once, or of the training data if there
//! is no eval set. A head is then measured after
//! every token of them (`Drafter::accepted_everywhere`), not only where a server would happen to draft, and
//! the passes of a server are read off the result. Two heads are compared token by token.

use std::collections::BTreeMap;

use sparktune_base::statistics::Mean;
use sparktune_model::{Acceptance, Drafter, Generator, Model, ModelError};

use crate::evaluate::{EvalSet, Prompt};

/// The longest draft that is measured.
pub(crate) const LONGEST_DRAFT: usize = 4;
/// The number of tokens after which drafts are measured, if the eval set's answers have as many.
const TOKENS: usize = 2048;
/// The largest number of tokens of an answer, so that there are enough answers to compare.
const ANSWER: usize = 128;

/// Answers on which heads are measured.
pub(crate) struct Answers {
    pub(crate) texts: Vec<Text>,
    /// The ids that end an answer.
    pub(crate) stops: Vec<u32>,
    /// Whether the prompts are those of the training data, because there is no eval set.
    pub(crate) are_of_training: bool,
}

/// A prompt and the model's greedy answer.
pub(crate) struct Text {
    /// Its group. The answers after the turns of one conversation are one, because their drafts are alike.
    /// Windows of raw text are far apart, so each is a group of its own.
    group: (usize, usize),
    ids: Vec<u32>,
    /// The number of tokens of the prompt.
    prompt: usize,
    /// The number of tokens after which drafts are measured.
    measured: usize,
}

impl Text {
    pub(crate) fn prompt(&self) -> &[u32] {
        &self.ids[..self.prompt]
    }

    pub(crate) fn answer(&self) -> &[u32] {
        &self.ids[self.prompt..]
    }
}

/// Writes greedy answers to all prompts of the eval set, each at most as long as the example's own, until
/// there are enough tokens to measure drafts after. `may_go_on` is called with the tokens so far, before each
/// answer.
///
/// # Errors
/// Those of `may_go_on`.
pub(crate) fn write_answers(
    model: &Model,
    eval_set: &EvalSet,
    may_go_on: &dyn Fn(usize, usize) -> Result<(), ModelError>,
) -> Result<Vec<Text>, ModelError> {
    let stops = eval_set.stop_ids();
    let (mut texts, mut tokens) = (Vec::new(), 0);
    for Prompt { example, place, ids: prompt } in eval_set.all_prompts() {
        if tokens >= TOKENS {
            break;
        }
        may_go_on(tokens, TOKENS)?;
        let length = place.rest.min(ANSWER);
        let mut ids = prompt.clone();
        // Behind the last measured token there are as many as a draft may have.
        for id in Generator::new(model, &prompt).take(length + LONGEST_DRAFT) {
            ids.push(id);
            if stops.contains(&id) {
                break;
            }
        }
        // A draft starts behind a token of the answer, so there is nothing to measure behind a lone one.
        let measured = (ids.len() - prompt.len() - 1).min(length);
        if measured > 0 {
            tokens += measured;
            let group = (example, if place.is_window { place.prompt.start } else { 0 });
            texts.push(Text { group, ids, prompt: prompt.len(), measured });
        }
    }
    Ok(texts)
}

/// The numbers of accepted tokens of one head.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Measured {
    /// For each answer and each of its tokens, how many tokens of the draft after it are accepted.
    answers: Vec<Vec<usize>>,
    /// The group of each answer.
    groups: Vec<(usize, usize)>,
}

impl Measured {
    /// Measures a head. `may_go_on` is called with the answers so far, before each one.
    ///
    /// # Errors
    /// Those of `may_go_on`.
    pub(crate) fn of(
        drafter: &Drafter<'_>,
        texts: &[Text],
        may_go_on: &dyn Fn(usize, usize) -> Result<(), ModelError>,
    ) -> Result<Self, ModelError> {
        let mut answers = Vec::with_capacity(texts.len());
        for text in texts {
            may_go_on(answers.len(), texts.len())?;
            let mut accepted = drafter.accepted_everywhere(&text.ids, text.prompt, LONGEST_DRAFT);
            accepted.truncate(text.measured);
            answers.push(accepted);
        }
        Ok(Self { answers, groups: texts.iter().map(|text| text.group).collect() })
    }

    #[cfg(test)]
    pub(crate) fn new(answers: Vec<Vec<usize>>) -> Self {
        let groups = (0..answers.len()).map(|answer| (answer, 0)).collect();
        Self { answers, groups }
    }

    pub(crate) fn answers(&self) -> usize {
        self.answers.len()
    }

    pub(crate) fn tokens(&self) -> usize {
        self.answers.iter().map(Vec::len).sum()
    }

    /// Returns the mean number of accepted tokens per pass of a server that drafts `length` tokens.
    pub(crate) fn per_pass(&self, length: usize) -> f64 {
        let passes = self.answers.iter().flat_map(|answer| Acceptance::of_passes(answer, length).accepted);
        Acceptance { accepted: passes.collect() }.mean()
    }

    /// Returns the share of the measured tokens after which the drafted token at `position`, from 1, is
    /// accepted, with all drafted tokens before it.
    pub(crate) fn share(&self, position: usize) -> f64 {
        let all = self.answers.iter().flatten();
        all.filter(|accepted| **accepted >= position).count() as f64 / self.tokens().max(1) as f64
    }

    /// Returns the mean number of accepted tokens of a draft of [`LONGEST_DRAFT`] after a measured token.
    pub(crate) fn mean(&self) -> f64 {
        (1..=LONGEST_DRAFT).map(|position| self.share(position)).sum()
    }

    /// Compares [`share`](Self::share) with that of another head, measured on the same texts.
    pub(crate) fn share_above(&self, other: &Self, position: usize) -> Mean {
        self.above(other, |accepted| f64::from(u8::from(accepted >= position)))
    }

    /// Compares [`mean`](Self::mean) with that of another head, measured on the same texts.
    pub(crate) fn mean_above(&self, other: &Self) -> Mean {
        self.above(other, |accepted| accepted as f64)
    }

    /// Compares token by token. Drafts after tokens of one group are alike, so each group is one cluster.
    fn above(&self, other: &Self, value: impl Fn(usize) -> f64) -> Mean {
        let mut differences: BTreeMap<(usize, usize), Vec<f64>> = BTreeMap::new();
        for ((own, other), group) in self.answers.iter().zip(&other.answers).zip(&self.groups) {
            let pairs = own.iter().zip(other).map(|(own, other)| value(*own) - value(*other));
            differences.entry(*group).or_default().extend(pairs);
        }
        Mean::of_groups(&differences.into_values().collect::<Vec<_>>())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_means_and_passes_are_counted_from_the_same_drafts() {
        let head = Measured::new(vec![vec![4, 0, 2, 1, 0], vec![1, 0]]);
        assert_eq!((head.answers(), head.tokens()), (2, 7));
        assert_eq!([1, 2, 3, 4].map(|k| head.share(k) * 7.0), [4.0, 2.0, 1.0, 1.0]);
        assert!((head.mean() - 8.0 / 7.0).abs() < 1e-12);
        // With four drafted tokens the first pass covers the whole first answer; with one it keeps one, and
        // two more passes follow.
        assert_eq!(head.per_pass(4), f64::midpoint(4.0, 1.0));
        assert_eq!(head.per_pass(1), (1.0 + 1.0 + 0.0 + 1.0) / 4.0);
    }

    #[test]
    fn a_head_is_better_only_if_the_interval_over_answers_is_above_zero() {
        let base = Measured::new(vec![vec![1; 50]; 4]);
        let always = Measured::new(vec![vec![2; 50]; 4]);
        let difference = always.mean_above(&base);
        assert_eq!((difference.mean, difference.half_width), (1.0, Some(0.0)));
        assert!(difference.is_above_zero() && !base.mean_above(&always).is_above_zero());
        assert!(!base.mean_above(&base).is_above_zero());
        assert_eq!(always.share_above(&base, 2).mean, 1.0);
        assert_eq!(always.share_above(&base, 1).mean, 0.0);
        // All that is gained is gained in one answer: as 200 tokens it would be far beyond chance.
        let mut one = base.clone();
        one.answers[0] = vec![2; 50];
        let difference = one.mean_above(&base);
        assert_eq!(difference.mean, 0.25);
        assert!(!difference.is_above_zero(), "{difference:?}");
        // Two answers are too few to tell.
        let two = |head: &Measured| Measured::new(head.answers[..2].to_vec());
        assert_eq!(two(&always).mean_above(&two(&base)).half_width, None);
        // So are four answers in two conversations.
        let of_two =
            |head: &Measured| Measured { groups: vec![(0, 0), (1, 0), (0, 0), (1, 0)], ..head.clone() };
        assert_eq!(of_two(&always).mean_above(&of_two(&base)).half_width, None);
        assert!(!two(&always).mean_above(&two(&base)).is_above_zero());
    }
}
