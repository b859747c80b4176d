//! Splits examples into training set and eval set.
//!
//! The examples with the smallest seeded hashes of their content form the eval set: all below the share,
//! and more of them if these are fewer than the minimum. Neither the place of an example nor its file
//! matters, and copies of one example are always in the same set. Where the share alone gives enough,
//! lines that are added, removed or moved change the set of no other line; among few examples, a new one
//! may take the place of an old one in the eval set.
//!
//! Whether the share gives enough is known after the first few hundred examples; until then a caller keeps
//! examples waiting.

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

/// Decides the set of each example, once it has seen enough of them.
pub(crate) struct Splitter {
    seed: u64,
    /// Examples with a smaller hash are in the eval set.
    threshold: u64,
    min_examples: u32,
    /// The hashes that were seen, until the threshold is final, and how many of them are below it.
    seen: HashSet<u64>,
    below: u32,
    is_settled: bool,
}

impl Splitter {
    pub(crate) fn new(split: EvalSplit) -> Self {
        let fraction = split.fraction.clamp(0.0, 1.0);
        Self {
            seed: split.seed,
            // The share scaled to 2^64; the conversion saturates at 1.
            threshold: (fraction * 18_446_744_073_709_551_616.0) as u64,
            min_examples: split.min_examples,
            seen: HashSet::new(),
            below: 0,
            is_settled: fraction == 0.0 || split.min_examples == 0,
        }
    }

    /// Notes an example. Returns whether the sets of all examples are known now.
    pub(crate) fn see(&mut self, content_hash: u64) -> bool {
        if !self.is_settled {
            let hash = self.hash(content_hash);
            self.below += u32::from(self.seen.insert(hash) && hash < self.threshold);
            if self.below == self.min_examples {
                self.settle();
            }
        }
        self.is_settled
    }

    /// Decides with what was seen: raises the threshold until enough examples are below it.
    pub(crate) fn settle(&mut self) {
        self.is_settled = true;
        let mut seen: Vec<u64> = std::mem::take(&mut self.seen).into_iter().collect();
        let least = (seen.len() / held_out::ONE_IN as usize).min(self.min_examples as usize);
        if least > self.below as usize {
            let (_, last, _) = seen.select_nth_unstable(least - 1);
            self.threshold = last.saturating_add(1);
        }
    }

    /// Returns whether an example is in the eval set.
    pub(crate) fn is_eval(&self, content_hash: u64) -> bool {
        self.hash(content_hash) < self.threshold
    }

    fn hash(&self, content_hash: u64) -> u64 {
        xxh3_64_with_seed(&content_hash.to_le_bytes(), self.seed)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    fn sides(split: EvalSplit, hashes: &[u64]) -> Vec<bool> {
        let mut splitter = Splitter::new(split);
        for &hash in hashes {
            let _ = splitter.see(hash);
        }
        splitter.settle();
        hashes.iter().map(|&hash| splitter.is_eval(hash)).collect()
    }

    #[test]
    fn a_small_file_still_holds_out_eight_examples() {
        for (examples, least) in [(3, 0), (4, 1), (31, 7), (32, 8), (100, 8)] {
            for seed in 0..20 {
                let split = EvalSplit { seed, ..EvalSplit::default() };
                let held_out =
                    sides(split, &(0..examples).collect::<Vec<_>>()).iter().filter(|&&e| e).count();
                assert!((least..least + 9).contains(&held_out), "{held_out} of {examples}");
            }
        }
    }

    #[test]
    fn the_sets_are_known_as_soon_as_the_share_gives_enough() {
        let mut splitter = Splitter::new(EvalSplit::default());
        let waited = (0..100_000).find(|&hash| splitter.see(hash)).unwrap();
        assert!((200..1000).contains(&waited), "{waited}");
        assert!(Splitter::new(EvalSplit { min_examples: 0, ..EvalSplit::default() }).see(1));
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
        fn the_place_of_an_example_does_not_matter(
            hashes in prop::collection::hash_set(0u64..5000, 0..700), seed in any::<u64>(),
        ) {
            let split = EvalSplit { seed, ..EvalSplit::default() };
            let mut hashes: Vec<u64> = hashes.into_iter().collect();
            let one_way: HashMap<u64, bool> = hashes.iter().copied().zip(sides(split, &hashes)).collect();
            hashes.sort_unstable();
            let other_way: HashMap<u64, bool> = hashes.iter().copied().zip(sides(split, &hashes)).collect();
            prop_assert_eq!(one_way, other_way);
        }

        #[test]
        fn growing_moves_no_old_example_if_the_share_gives_enough(
            hashes in prop::collection::vec(0u64..500, 0..300), cut in 0usize..300, seed in any::<u64>(),
        ) {
            let split = EvalSplit { seed, min_examples: 0, ..EvalSplit::default() };
            let cut = cut.min(hashes.len());
            prop_assert_eq!(&sides(split, &hashes)[..cut], &sides(split, &hashes[..cut])[..]);
        }

        #[test]
        fn copies_stay_together(hashes in prop::collection::vec(0u64..60, 0..300), seed in any::<u64>()) {
            let sides = sides(EvalSplit { seed, ..EvalSplit::default() }, &hashes);
            let mut side_of = HashMap::new();
            for (hash, side) in hashes.iter().zip(sides) {
                prop_assert_eq!(*side_of.entry(hash).or_insert(side), side);
            }
        }
    }
}
