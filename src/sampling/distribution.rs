//! From logits to the tokens that may be drawn with their probabilities, and to log-probabilities.

use std::cmp::Ordering;

use crate::params::SamplingParams;

/// The number of candidates that are sorted at once while their probabilities are added up to `top_p`. A
/// whole vocabulary takes as long to sort as a small model to compute it.
const SORTED_AT_ONCE: usize = 256;

/// Returns the tokens that may be drawn and their probabilities, which add up to 1; the most likely ones
/// come first if `top_k` or `top_p` is set. The order of the filters is that of vLLM: temperature, `min_p`,
/// `top_k`, `top_p`, each on what the one before has left. Temperature 0 leaves the most likely token, the
/// first of equals.
///
/// Logits that are no numbers are never drawn. The result is empty if no logit is finite.
pub fn distribution(logits: &[f32], params: &SamplingParams) -> Vec<(u32, f64)> {
    let Some(best) = greatest(logits) else { return Vec::new() };
    let count = params.largest_kept();
    if count == Some(1) {
        return probabilities(&[best], best.1, params);
    }
    let numbers = logits.iter().enumerate().filter(|(_, logit)| !logit.is_nan());
    let mut kept: Vec<(u32, f32)> = numbers.map(|(id, logit)| (id as u32, *logit)).collect();
    if let Some(count) = count {
        if count < kept.len() {
            kept.select_nth_unstable_by(count - 1, larger);
            kept.truncate(count);
        }
        kept.sort_unstable_by(larger);
    }
    probabilities(&kept, best.1, params)
}

/// Returns the [`distribution`] of logits of which only the largest are known, with their tokens: sorted, the
/// first of equals in front, and at least [`SamplingParams::largest_kept`] of them.
pub(crate) fn of_largest(largest: &[(u32, f32)], params: &SamplingParams) -> Vec<(u32, f64)> {
    let Some((_, max)) = largest.first() else { return Vec::new() };
    let count = params.largest_kept().expect("these parameters keep only the largest logits");
    probabilities(&largest[..count.min(largest.len())], *max, params)
}

/// Returns the tokens that `min_p` and `top_p` leave, and their probabilities.
fn probabilities(kept: &[(u32, f32)], max: f32, params: &SamplingParams) -> Vec<(u32, f64)> {
    if !max.is_finite() {
        return Vec::new();
    }
    if params.is_greedy() {
        return vec![(kept[0].0, 1.0)];
    }
    // A candidate is a token with its probability relative to that of the most likely one.
    let relative = |logit: f32| (f64::from(logit - max) / params.temperature).exp();
    let all = kept.iter().map(|(id, logit)| (*id, relative(*logit)));
    let mut candidates: Vec<(u32, f64)> = all.filter(|(_, p)| *p > 0.0 && *p >= params.min_p).collect();
    if params.top_p < 1.0 {
        keep_top_p(&mut candidates, params.top_p);
    }
    let sum: f64 = candidates.iter().map(|(_, p)| p).sum();
    candidates.iter_mut().for_each(|(_, p)| *p /= sum);
    candidates
}

/// Keeps the most likely candidates that add up to at least `top_p` of the whole, at least one, sorted.
fn keep_top_p(candidates: &mut Vec<(u32, f64)>, top_p: f64) {
    let wanted = top_p * candidates.iter().map(|(_, p)| p).sum::<f64>();
    let (mut sum, mut sorted) = (0.0, 0);
    while sorted < candidates.len() {
        let rest = &mut candidates[sorted..];
        let next = SORTED_AT_ONCE.min(rest.len());
        if next < rest.len() {
            rest.select_nth_unstable_by(next - 1, more_likely);
        }
        rest[..next].sort_unstable_by(more_likely);
        for (i, (_, p)) in rest[..next].iter().enumerate() {
            sum += p;
            if sum >= wanted {
                candidates.truncate(sorted + i + 1);
                return;
            }
        }
        sorted += next;
    }
}

/// The order of numbers by size, the largest first; of tokens where they are equal.
fn larger(a: &(u32, f32), b: &(u32, f32)) -> Ordering {
    b.1.partial_cmp(&a.1).expect("these are numbers").then(a.0.cmp(&b.0))
}

fn more_likely(a: &(u32, f64), b: &(u32, f64)) -> Ordering {
    b.1.total_cmp(&a.1).then(a.0.cmp(&b.0))
}

/// Returns the token of the largest logit, the first of equals, and the logit. `None` if none is a number.
fn greatest(logits: &[f32]) -> Option<(u32, f32)> {
    let numbers = logits.iter().enumerate().filter(|(_, logit)| !logit.is_nan());
    let best = numbers.reduce(|best, next| if next.1 > best.1 { next } else { best });
    best.map(|(id, logit)| (id as u32, *logit))
}

/// Returns the log-probability of a token, and those of the `top` most likely tokens, before penalties,
/// temperature and filters.
pub fn logprobs(logits: &[f32], token: u32, top: usize) -> (f64, Vec<(u32, f64)>) {
    let max = greatest(logits).map_or(0.0, |(_, max)| f64::from(max));
    let sum: f64 = logits.iter().map(|logit| (f64::from(*logit) - max).exp()).sum();
    let log_sum = max + sum.ln();
    let own = logits.get(token as usize).map_or(f64::NEG_INFINITY, |logit| f64::from(*logit) - log_sum);
    if top == 0 {
        return (own, Vec::new());
    }
    let all = logits.iter().enumerate().map(|(id, logit)| (id as u32, f64::from(*logit) - log_sum));
    let mut all: Vec<(u32, f64)> = all.collect();
    if top < all.len() {
        all.select_nth_unstable_by(top - 1, more_likely);
        all.truncate(top);
    }
    all.sort_unstable_by(more_likely);
    (own, all)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The logits of the probabilities 0.1, 0.4, 0.2, 0.3.
    fn logits() -> [f32; 4] {
        [0.1f32, 0.4, 0.2, 0.3].map(|p| p.ln() + 5.0)
    }

    fn kept(params: SamplingParams) -> Vec<(u32, f64)> {
        let rounded = |p: f64| (p * 1000.0).round() / 1000.0;
        distribution(&logits(), &params).into_iter().map(|(id, p)| (id, rounded(p))).collect()
    }

    #[test]
    fn filters_follow_their_definitions() {
        let params = SamplingParams::default;
        assert_eq!(kept(params()), [(0, 0.1), (1, 0.4), (2, 0.2), (3, 0.3)]);
        assert_eq!(kept(SamplingParams { temperature: 0.0, ..params() }), [(1, 1.0)]);
        // The squares are 0.01, 0.16, 0.04 and 0.09.
        let halved = SamplingParams { temperature: 0.5, ..params() };
        assert_eq!(kept(halved), [(0, 0.033), (1, 0.533), (2, 0.133), (3, 0.3)]);
        assert_eq!(kept(SamplingParams { top_k: 2, ..params() }), [(1, 0.571), (3, 0.429)]);
        assert_eq!(kept(SamplingParams { top_k: 9, ..params() }).len(), 4);
        // The token with which the sum reaches top_p is kept.
        assert_eq!(kept(SamplingParams { top_p: 0.5, ..params() }), [(1, 0.571), (3, 0.429)]);
        assert_eq!(kept(SamplingParams { top_p: 0.001, ..params() }), [(1, 1.0)]);
        assert_eq!(kept(SamplingParams { min_p: 0.6, ..params() }), [(1, 0.571), (3, 0.429)]);
        // 0.4 of the 0.7 that top_k leaves is more than half of it.
        assert_eq!(kept(SamplingParams { top_k: 2, top_p: 0.5, ..params() }), [(1, 1.0)]);
    }

    #[test]
    fn ties_go_to_the_first_token_and_what_is_no_number_is_never_drawn() {
        let greedy = SamplingParams { temperature: 0.0, ..SamplingParams::default() };
        assert_eq!(distribution(&[1.0, 3.0, 3.0], &greedy), [(1, 1.0)]);
        assert_eq!(distribution(&[f32::NAN, 3.0], &greedy), [(1, 1.0)]);
        let sampled = SamplingParams::default();
        assert_eq!(distribution(&[f32::NAN, 3.0, f32::NEG_INFINITY], &sampled), [(1, 1.0)]);
        let first_two = SamplingParams { top_k: 2, ..sampled.clone() };
        assert_eq!(distribution(&[2.0; 5], &first_two), [(0, 0.5), (1, 0.5)]);
        for logits in [&[][..], &[f32::NAN], &[f32::NEG_INFINITY; 2], &[f32::INFINITY]] {
            assert_eq!(distribution(logits, &sampled), []);
        }
    }

    #[test]
    fn logprobs_are_those_of_the_model_itself() {
        let (own, top) = logprobs(&logits(), 2, 2);
        assert!((own - 0.2f64.ln()).abs() < 1e-6);
        assert_eq!(top.iter().map(|(id, _)| *id).collect::<Vec<_>>(), [1, 3]);
        assert!((top[0].1 - 0.4f64.ln()).abs() < 1e-6);
        assert_eq!(logprobs(&logits(), 2, 0).1, []);
        assert_eq!(logprobs(&logits(), 2, 20).1.len(), 4);
    }

    proptest! {
        #[test]
        fn what_is_kept_is_a_distribution_of_the_most_likely_tokens(
            logits in prop::collection::vec(-20f32..20.0, 1..2000),
            temperature in 0.01f64..5.0,
            top_p in 0.01f64..=1.0,
            top_k in 0u32..600,
            min_p in 0f64..=1.0,
        ) {
            let params = SamplingParams { temperature, top_p, top_k, min_p, ..SamplingParams::default() };
            let kept = distribution(&logits, &params);
            prop_assert!(!kept.is_empty());
            prop_assert!((kept.iter().map(|(_, p)| p).sum::<f64>() - 1.0).abs() < 1e-9);
            if top_k > 0 {
                prop_assert!(kept.len() <= top_k as usize);
            }
            let is_kept = |id: usize| kept.iter().any(|(kept, _)| *kept as usize == id);
            let least = kept.iter().map(|(id, _)| logits[*id as usize]).fold(f32::INFINITY, f32::min);
            let more_likely = logits.iter().enumerate().filter(|(_, logit)| **logit > least);
            prop_assert!(more_likely.into_iter().all(|(id, _)| is_kept(id)));
        }
    }
}
