//! Splits examples into training set and eval set.
//!
//! The set of an example depends on a seeded hash of its content. It therefore does not change when other
//! lines are added, removed or moved, and copies of one example are always in the same set. This alone would
//! leave a small file with an almost empty eval set, so among the first distinct examples every fourth goes
//! to the eval set until the minimum is reached. Only earlier lines affect this, so that lines appended to a
//! file do not move old examples.

use std::collections::HashSet;

use serde::{Deserialize, Serialize};
use sparktune_base::held_out;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// The parameters of the eval split.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct EvalSplit {
    /// The share of the examples in the eval set. With 0 it is empty.
    pub fraction: f64,
    /// The minimum size of the eval set, if the input has four times as many distinct examples.
    pub min_examples: u32,
    /// The seed; another seed gives another split.
    pub seed: u64,
}

impl Default for EvalSplit {
    fn default() -> Self {
        Self { fraction: held_out::SHARE, min_examples: held_out::LEAST, seed: 0 }
    }
}

/// Decides the set of each example, in input order.
pub(crate) struct Splitter {
    seed: u64,
    threshold: u64,
    min_examples: u32,
    held_out: u32,
    /// Distinct examples that were seen before the minimum was reached.
    seen: HashSet<u64>,
    /// Examples added to the eval set to reach the minimum, and not by their hash.
    extra: HashSet<u64>,
}

impl Splitter {
    pub(crate) fn new(split: EvalSplit) -> Self {
        let fraction = split.fraction.clamp(0.0, 1.0);
        Self {
            seed: split.seed,
            // The share scaled to 2^64; the conversion saturates at 1.
            threshold: (fraction * 18_446_744_073_709_551_616.0) as u64,
            min_examples: if fraction > 0.0 { split.min_examples } else { 0 },
            held_out: 0,
            seen: HashSet::new(),
            extra: HashSet::new(),
        }
    }

    pub(crate) fn is_eval(&mut self, content_hash: u64) -> bool {
        let by_hash = xxh3_64_with_seed(&content_hash.to_le_bytes(), self.seed) < self.threshold;
        if self.held_out < self.min_examples && self.seen.insert(content_hash) {
            let due = self.seen.len() as u32 / held_out::ONE_IN;
            if by_hash || self.held_out < due {
                self.held_out += 1;
                if !by_hash {
                    self.extra.insert(content_hash);
                }
            }
        }
        by_hash || self.extra.contains(&content_hash)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sides(split: EvalSplit, hashes: &[u64]) -> Vec<bool> {
        let mut splitter = Splitter::new(split);
        hashes.iter().map(|&h| splitter.is_eval(h)).collect()
    }

    #[test]
    fn a_small_file_still_holds_out_eight_examples() {
        let hashes: Vec<u64> = (0..32).collect();
        let held_out = sides(EvalSplit::default(), &hashes).iter().filter(|&&e| e).count();
        assert!((8..=10).contains(&held_out), "{held_out}");
    }

    #[test]
    fn a_large_file_holds_out_its_share() {
        let hashes: Vec<u64> = (0..100_000).collect();
        let held_out = sides(EvalSplit::default(), &hashes).iter().filter(|&&e| e).count();
        assert!((1_800..2_200).contains(&held_out), "{held_out}");
    }

    #[test]
    fn as_many_are_held_out_as_the_plan_counts_on() {
        for examples in [4, 20, 60, 320, 5000] {
            let hashes: Vec<u64> = (0..examples).collect();
            let of_seed = |seed| {
                let split = EvalSplit { seed, ..EvalSplit::default() };
                sides(split, &hashes).iter().filter(|&&e| e).count()
            };
            let mean = (0..200).map(of_seed).sum::<usize>() as f64 / 200.0;
            let expected = held_out::expected_share(examples) * examples as f64;
            assert!((mean / expected - 1.0).abs() < 0.1, "{mean} of {examples}, expected {expected}");
        }
    }

    #[test]
    fn a_share_of_zero_holds_out_none() {
        let split = EvalSplit { fraction: 0.0, ..EvalSplit::default() };
        assert!(sides(split, &(0..100).collect::<Vec<_>>()).iter().all(|e| !e));
    }

    #[test]
    fn another_seed_draws_another_split() {
        let hashes: Vec<u64> = (0..10_000).collect();
        let other = EvalSplit { seed: 1, ..EvalSplit::default() };
        assert_ne!(sides(EvalSplit::default(), &hashes), sides(other, &hashes));
    }

    proptest! {
        #[test]
        fn growing_never_moves_an_old_example(
            hashes in prop::collection::vec(0u64..500, 0..300), cut in 0usize..300, seed in any::<u64>(),
        ) {
            let split = EvalSplit { seed, ..EvalSplit::default() };
            let cut = cut.min(hashes.len());
            prop_assert_eq!(&sides(split, &hashes)[..cut], &sides(split, &hashes[..cut])[..]);
        }

        #[test]
        fn copies_stay_together(hashes in prop::collection::vec(0u64..60, 0..300), seed in any::<u64>()) {
            let sides = sides(EvalSplit { seed, ..EvalSplit::default() }, &hashes);
            let mut side_of = std::collections::HashMap::new();
            for (hash, side) in hashes.iter().zip(sides) {
                prop_assert_eq!(*side_of.entry(hash).or_insert(side), side);
            }
        }
    }
}
