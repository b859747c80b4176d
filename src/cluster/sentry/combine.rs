//! How the accepted contributions of a step become its gradient.

use super::verdict::{Decision, Verdict};

/// The way in which the ranks' gradients of a number are combined.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Combine {
    /// Their sum in the order of ranks: the gradient of the mean loss over all tokens.
    #[default]
    Sum,
    /// The mean of the ranks' mean gradients without the largest and the smallest fifth, but at least one
    /// each. It is not the gradient of the loss: tokens of small shares weigh more, and rare examples that
    /// only one rank has weigh less.
    TrimmedMean,
    /// The median of the ranks' mean gradients. What holds for the trimmed mean holds for it more so: a
    /// number that differs from zero on a minority of ranks only does not change.
    Median,
}

/// Combines the contributions of a chunk: `parts` in the order of ranks, each with the trained tokens of its
/// share and its verdict. The sum is made as without a judge if all are accepted.
///
/// What was left out is made up for: the result is that of all trained tokens, so the contributions that
/// count are multiplied by all tokens per token that counts.
pub fn combine(parts: &[&[f32]], terms: &[u64], verdicts: &[Verdict], how: Combine) -> Vec<f32> {
    let counted: Vec<usize> = (0..parts.len()).filter(|rank| counts(verdicts[*rank])).collect();
    let factor = |rank: usize| match verdicts[rank].decision {
        Decision::Clip(factor) => factor,
        _ => 1.0,
    };
    match how {
        Combine::Sum => {
            let Some((first, others)) = counted.split_first() else {
                return vec![0.0; parts.first().map_or(0, |part| part.len())];
            };
            let mut sums = scaled(parts[*first], factor(*first));
            for rank in others {
                let factor = factor(*rank);
                if factor == 1.0 {
                    sums.iter_mut().zip(parts[*rank]).for_each(|(sum, value)| *sum += value);
                } else {
                    sums.iter_mut().zip(parts[*rank]).for_each(|(sum, value)| *sum += factor * value);
                }
            }
            scaled(&sums, made_up(terms, verdicts))
        }
        Combine::TrimmedMean | Combine::Median => {
            let all: u64 = terms.iter().sum();
            let with_terms: Vec<usize> = counted.into_iter().filter(|rank| terms[*rank] > 0).collect();
            // The contributions are divided by the tokens of the step; here each counts as a mean of its own.
            let weights: Vec<f32> = with_terms
                .iter()
                .map(|rank| factor(*rank) * (all as f64 / terms[*rank] as f64) as f32)
                .collect();
            let trimmed = match how {
                Combine::Median => with_terms.len().saturating_sub(1) / 2,
                _ if with_terms.len() < 3 => 0,
                _ => (with_terms.len() / 5).max(1),
            };
            let mut values = vec![0.0_f32; with_terms.len()];
            let length = parts.first().map_or(0, |part| part.len());
            let middle = (0..length).map(|place| {
                for ((value, rank), weight) in values.iter_mut().zip(&with_terms).zip(&weights) {
                    *value = parts[*rank][place] * weight;
                }
                values.sort_unstable_by(f32::total_cmp);
                let kept = &values[trimmed..values.len() - trimmed];
                kept.iter().sum::<f32>() / kept.len().max(1) as f32
            });
            middle.collect()
        }
    }
}

fn counts(verdict: Verdict) -> bool {
    verdict.decision != Decision::Drop
}

/// Returns what the sum of the contributions that count is multiplied by, so that it is the gradient of the
/// mean loss over the tokens that count. Exactly 1 if all do.
pub(crate) fn made_up(terms: &[u64], verdicts: &[Verdict]) -> f32 {
    let all: u64 = terms.iter().sum();
    let counted: u64 =
        terms.iter().zip(verdicts).filter(|(_, verdict)| counts(**verdict)).map(|(terms, _)| terms).sum();
    if counted == 0 { 1.0 } else { (all as f64 / counted as f64) as f32 }
}

fn scaled(values: &[f32], factor: f32) -> Vec<f32> {
    if factor == 1.0 { values.to_vec() } else { values.iter().map(|value| value * factor).collect() }
}

#[cfg(test)]
mod tests {
    use super::super::verdict::Reason;
    use super::*;

    const DROPPED: Verdict = Verdict::dropped(Reason::NotFinite);

    #[test]
    fn a_sum_without_rejections_has_the_bits_of_adding_in_the_order_of_ranks() {
        let parts: [&[f32]; 3] = [&[0.1, 1e8, -0.0], &[0.2, 1.0, -0.0], &[0.3, -1e8, -0.0]];
        let sums = combine(&parts, &[3, 4, 5], &[Verdict::ACCEPTED; 3], Combine::Sum);
        let expected = [(0.1_f32 + 0.2) + 0.3, (1e8 + 1.0) - 1e8, -0.0];
        let bits = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
        assert_eq!(bits(&sums), bits(&expected));
    }

    #[test]
    fn what_is_dropped_is_left_out_of_the_tokens_too_and_what_is_clipped_counts_less() {
        let parts: [&[f32]; 3] = [&[f32::NAN], &[2.0], &[4.0]];
        let sums =
            combine(&parts, &[10, 10, 20], &[DROPPED, Verdict::ACCEPTED, Verdict::ACCEPTED], Combine::Sum);
        assert_eq!(sums, [6.0 * 40.0 / 30.0]);
        let clipped = Verdict { decision: Decision::Clip(0.5), reason: None };
        let sums = combine(&parts, &[10, 10, 20], &[DROPPED, Verdict::ACCEPTED, clipped], Combine::Sum);
        assert_eq!(sums, [4.0 * (40.0_f32 / 30.0)]);
        let none = combine(&parts, &[10, 10, 20], &[DROPPED; 3], Combine::Sum);
        assert_eq!(none, [0.0]);
    }

    #[test]
    fn medians_and_trimmed_means_do_not_follow_one_rank() {
        let accepted = [Verdict::ACCEPTED; 5];
        let parts: [&[f32]; 5] = [&[1.0], &[1e9], &[2.0], &[3.0], &[-1e9]];
        let of = |how| combine(&parts, &[4; 5], &accepted, how)[0];
        assert_eq!(of(Combine::Median), 2.0 * 5.0);
        assert_eq!(of(Combine::TrimmedMean), 2.0 * 5.0);
        // Two of them have a mean, four the mean of the middle two.
        assert_eq!(combine(&parts[2..4], &[4; 2], &accepted[..2], Combine::Median), [5.0]);
        assert_eq!(combine(&parts[..4], &[4; 4], &accepted[..4], Combine::Median), [10.0]);
        // The share with fewer tokens has the same mean gradient.
        let parts: [&[f32]; 3] = [&[1.0], &[0.5], &[1.0]];
        assert_eq!(combine(&parts, &[4, 2, 4], &accepted[..3], Combine::Median), [2.5]);
    }
}
