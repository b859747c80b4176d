//! Draws tokens with random numbers that depend on a seed and on the place in the answer alone.

use sparktune_base::random::{SplitMix64, mix};

use crate::distribution::{distribution, logprobs};
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

/// Draws the token at `place` (from 0) of the answer with this history, from the logits after the token
/// before it. `None` if no logit is a finite number.
///
/// The random number depends on `seed` and `place` only. So an answer does not depend on what is computed
/// beside it, nor on whether its tokens were drafted: a draft is accepted as far as the tokens drawn are the
/// drafted ones. For a draft of single tokens this is rejection sampling (Leviathan et al. 2023,
/// arXiv:2211.17192): it accepts with the probability of the drafted token, and what is drawn instead has the
/// rest of the distribution.
pub fn draw(
    logits: &[f32],
    history: &History,
    params: &SamplingParams,
    seed: u64,
    place: u64,
) -> Option<Draw> {
    let mut penalised = logits.to_vec();
    penalise(&mut penalised, history, params);
    let candidates = distribution(&penalised, params);
    let mut left = SplitMix64::new(mix(seed) ^ mix(place.wrapping_add(1))).next_f64();
    let drawn = candidates.iter().find(|(_, p)| {
        left -= p;
        left < 0.0
    });
    // The sum of the probabilities may be rounded to a little less than 1.
    let (token, _) = drawn.or(candidates.last())?;
    let logprobs = params.logprobs.map(|top| logprobs(logits, *token, top as usize));
    Some(Draw { token: *token, logprobs })
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOGITS: [f32; 4] = [0.0, 1.0, -1.0, 0.5];

    fn token(seed: u64, place: u64) -> u32 {
        draw(&LOGITS, &History::default(), &SamplingParams::default(), seed, place).unwrap().token
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

    #[test]
    fn a_draw_is_reproducible_and_reports_the_models_own_logprobs() {
        let params = SamplingParams {
            temperature: 0.7,
            repetition_penalty: 1.3,
            logprobs: Some(2),
            ..SamplingParams::default()
        };
        let history = History::new(&[1]);
        let draws = || draw(&LOGITS, &history, &params, 42, 9).unwrap();
        assert_eq!(draws(), draws());
        let (own, top) = draws().logprobs.unwrap();
        assert_eq!((own, top.clone()), logprobs(&LOGITS, draws().token, 2));
        assert_eq!(top.len(), 2);
        assert_eq!(draw(&[f32::NAN; 3], &history, &params, 1, 1), None);
    }
}
