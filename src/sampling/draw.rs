//! Draws tokens with random numbers that depend on a seed and on the place in the answer alone.

use std::borrow::Cow;

use sparktune_base::random::{SplitMix64, mix};

use crate::distribution::{distribution, logprobs, of_largest};
use crate::params::SamplingParams;
use crate::penalties::{History, penalise};

/// A token that was drawn.
#[derive(Debug, Clone, PartialEq)]
pub struct Draw {
    /// The token.
    pub token: u32,
    /// Its log-probability and those of the most likely tokens, if they were asked for.
    pub logprobs: Option<(f64, Vec<(u32, f64)>)>,
}

/// What is known of the logits of a vocabulary.
#[derive(Debug, Clone, Copy)]
pub enum Logits<'a> {
    /// All of them, by token.
    All(&'a [f32]),
    /// The largest ones with their tokens: sorted, the first of equals in front, and as many as
    /// [`SamplingParams::largest_needed`]. The same token is drawn as from all of them.
    Largest(&'a [(u32, f32)]),
}

/// Draws the token at `place` (from 0) of the answer with this history, from the logits after the token
/// before it. `None` if no logit is a finite number.
///
/// The random number depends on `seed` and `place` only. So an answer does not depend on what is computed
/// beside it, nor on whether its tokens were drafted: a draft is accepted as far as the tokens drawn are the
/// drafted ones. For a draft of single tokens this is rejection sampling (Leviathan et al. 2023,
/// arXiv:2211.17192): it accepts with the probability of the drafted token, and what is drawn instead has the
/// rest of the distribution.
pub fn draw(
    logits: Logits<'_>,
    history: &History,
    params: &SamplingParams,
    seed: u64,
    place: u64,
) -> Option<Draw> {
    let candidates = match logits {
        Logits::All(logits) => {
            let mut logits = Cow::Borrowed(logits);
            if params.has_penalties() {
                penalise(logits.to_mut(), history, params);
            }
            distribution(&logits, params)
        }
        Logits::Largest(largest) => of_largest(largest, params),
    };
    let mut left = SplitMix64::new(mix(seed) ^ mix(place.wrapping_add(1))).next_f64();
    let drawn = candidates.iter().find(|(_, p)| {
        left -= p;
        left < 0.0
    });
    // The sum of the probabilities may be rounded to a little less than 1.
    let (token, _) = drawn.or(candidates.last())?;
    let logprobs = match logits {
        Logits::All(logits) => params.logprobs.map(|top| logprobs(logits, *token, top as usize)),
        Logits::Largest(_) => None,
    };
    Some(Draw { token: *token, logprobs })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LOGITS: [f32; 4] = [0.0, 1.0, -1.0, 0.5];

    fn token(seed: u64, place: u64) -> u32 {
        draw(Logits::All(&LOGITS), &History::default(), &SamplingParams::default(), seed, place)
            .unwrap()
            .token
    }

    #[test]
    fn frequencies_are_the_probabilities_over_seeds_and_over_places() {
        const DRAWS: u64 = 20_000;
        let exact = distribution(&LOGITS, &SamplingParams::default());
        for by_seed in [false, true] {
            let mut counts = [0u32; 4];
            for i in 0..DRAWS {
                counts[if by_seed { token(i, 3) } else { token(7, i) } as usize] += 1;
            }
            for (id, p) in &exact {
                let share = f64::from(counts[*id as usize]) / DRAWS as f64;
                // Five standard errors.
                let bound = 5.0 * (p * (1.0 - p) / DRAWS as f64).sqrt();
                assert!((share - p).abs() < bound, "{by_seed}, token {id}: {share} instead of {p}");
            }
        }
    }

    #[test]
    fn the_tokens_of_neighbouring_places_and_seeds_are_independent() {
        const DRAWS: u64 = 20_000;
        for (seed, place) in [(0, 1), (1, 0), (1, 1)] {
            let same = (0..DRAWS).filter(|i| token(*i, 5) == token(i + seed, 5 + place)).count();
            let expected: f64 =
                distribution(&LOGITS, &SamplingParams::default()).iter().map(|(_, p)| p * p).sum();
            let share = same as f64 / DRAWS as f64;
            assert!((share - expected).abs() < 0.02, "{seed}, {place}: {share} instead of {expected}");
        }
    }

    proptest! {
        #[test]
        fn the_largest_logits_give_the_token_that_all_of_them_give(
            // Few different numbers, so that many are equal.
            logits in proptest::collection::vec(prop_oneof![8 => -3i8..4, 1 => Just(i8::MIN), 1 => Just(i8::MAX), 1 => Just(-100i8)], 1..90),
            top_k in 1u32..20,
            top_p in prop_oneof![Just(1.0), 0.01..1.0],
            min_p in prop_oneof![Just(0.0), 0.0..1.0],
            temperature in prop_oneof![Just(0.0), 0.1..3.0],
            seed: u64,
        ) {
            let number = |x: i8| match x {
                i8::MIN => f32::NAN,
                i8::MAX => f32::INFINITY,
                -100 => f32::NEG_INFINITY,
                _ => f32::from(x) / 2.0,
            };
            let logits: Vec<f32> = logits.into_iter().map(number).collect();
            let params = SamplingParams { temperature, top_k, top_p, min_p, ..SamplingParams::default() };
            let numbers = logits.iter().enumerate().filter(|(_, logit)| !logit.is_nan());
            let mut largest: Vec<(u32, f32)> = numbers.map(|(id, logit)| (id as u32, *logit)).collect();
            largest.sort_by(|a, b| b.1.total_cmp(&a.1));
            let needed = params.largest_needed().unwrap();
            largest.truncate(needed + seed as usize % 3);
            let drawn = |logits| draw(logits, &History::default(), &params, seed, 4);
            prop_assert_eq!(drawn(Logits::Largest(&largest)), drawn(Logits::All(&logits)));
        }
    }

    #[test]
    fn a_draw_is_reproducible_and_reports_the_models_own_logprobs() {
        let params = SamplingParams {
            temperature: 0.7,
            repetition_penalty: 1.3,
            logprobs: Some(2),
            ..SamplingParams::default()
        };
        let history = History::new(&[1]);
        let draws = || draw(Logits::All(&LOGITS), &history, &params, 42, 9).unwrap();
        assert_eq!(draws(), draws());
        let (own, top) = draws().logprobs.unwrap();
        assert_eq!((own, top.clone()), logprobs(&LOGITS, draws().token, 2));
        assert_eq!(top.len(), 2);
        assert_eq!(draw(Logits::All(&[f32::NAN; 3]), &history, &params, 1, 1), None);
    }
}
