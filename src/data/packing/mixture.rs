//! How often an epoch trains each example, if data sets have weights.
//!
//! Enters: the set of each example, and the weight of each set. Leaves: the examples of an epoch with their
//! repetitions. A weight of 2 means every example twice, 0.5 half of them, and 1.5 every example once and
//! half of them twice. The part of a set goes round: each epoch takes the next examples of one random order,
//! so that with 0.5 two epochs train every example once, and no two examples of a set are ever more than one
//! apart.

use sparktune_base::random::SplitMix64;

use super::error::PackingError;
use super::order::state;

/// The examples of several data sets, each with a weight that is not 1.
#[derive(Debug, Clone, PartialEq)]
pub struct Mixture {
    sets: Vec<Set>,
    examples: usize,
}

#[derive(Debug, Clone, PartialEq)]
struct Set {
    weight: f64,
    /// The examples in the order of the data.
    members: Vec<u32>,
}

impl Mixture {
    /// Creates a mixture. `set_of[i]` is the set of example `i`. Returns `None` if all weights are 1, because
    /// an epoch then has every example once.
    ///
    /// # Errors
    /// [`PackingError::BadWeight`] if a weight is not a positive number, [`PackingError::TooManyExamples`] if
    /// an epoch would have more examples than are counted.
    pub fn new(
        set_of: impl IntoIterator<Item = usize>,
        weights: &[f64],
    ) -> Result<Option<Self>, PackingError> {
        if let Some(bad) = weights.iter().find(|weight| !(weight.is_finite() && **weight > 0.0)) {
            return Err(PackingError::BadWeight(*bad));
        }
        if weights.iter().all(|weight| *weight == 1.0) {
            return Ok(None);
        }
        let mut sets: Vec<Set> =
            weights.iter().map(|weight| Set { weight: *weight, members: Vec::new() }).collect();
        let mut examples = 0;
        for (example, set) in set_of.into_iter().enumerate() {
            sets[set].members.push(example as u32);
            examples = example + 1;
        }
        let most: f64 = sets.iter().map(|set| (set.weight * set.members.len() as f64).ceil()).sum();
        if most > f64::from(u32::MAX) {
            return Err(PackingError::TooManyExamples);
        }
        Ok(Some(Self { sets, examples }))
    }

    /// Returns the examples of one epoch in the order of the data, each as often as it is trained.
    pub(super) fn occurrences(&self, seed: u64, epoch: u64) -> Vec<u32> {
        let mut times = vec![0_u32; self.examples];
        for (index, set) in self.sets.iter().enumerate() {
            let whole = set.weight.floor();
            for &member in &set.members {
                times[member as usize] = whole as u32;
            }
            let count = set.members.len();
            // Rounding the ends, and not the number in between, makes the parts of all epochs add up.
            let end_of = |epoch: u64| ((set.weight - whole) * count as f64 * epoch as f64).round() as u64;
            let (start, end) = (end_of(epoch), end_of(epoch + 1));
            if start == end {
                continue;
            }
            let order = SplitMix64::new(state(&format!("set {index}"), seed, 0)).permutation(count as u32);
            for at in start..end {
                let member = set.members[order[(at % count as u64) as usize] as usize];
                times[member as usize] += 1;
            }
        }
        let repeated = |(example, times): (usize, &u32)| std::iter::repeat_n(example as u32, *times as usize);
        times.iter().enumerate().flat_map(repeated).collect()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn times(mixture: &Mixture, seed: u64, epoch: u64) -> Vec<u32> {
        let mut times = vec![0; mixture.examples];
        mixture.occurrences(seed, epoch).iter().for_each(|example| times[*example as usize] += 1);
        times
    }

    #[test]
    fn two_is_twice_a_half_goes_round_and_one_and_a_half_is_once_and_a_half() {
        let set_of = (0..30).map(|example| example % 3);
        let mixture = Mixture::new(set_of, &[2.0, 0.5, 1.5]).unwrap().unwrap();
        let (first, second) = (times(&mixture, 7, 0), times(&mixture, 7, 1));
        for example in 0..30 {
            let both = [first[example], second[example]];
            match example % 3 {
                0 => assert_eq!(both, [2, 2]),
                1 => assert_eq!(both.iter().sum::<u32>(), 1, "{both:?}"),
                _ => assert_eq!(both.iter().sum::<u32>(), 3, "{both:?}"),
            }
        }
        assert_eq!(first.iter().sum::<u32>(), 20 + 5 + 15);
        assert_ne!(times(&mixture, 8, 0), first, "another seed takes another half");
        assert_eq!(times(&mixture, 7, 0), first);
    }

    #[test]
    fn the_parts_are_the_ones_of_the_first_release() {
        let mixture = Mixture::new(vec![0; 10], &[0.3]).unwrap().unwrap();
        let parts: Vec<Vec<u32>> = (0..4).map(|epoch| mixture.occurrences(42, epoch)).collect();
        assert_eq!(parts, [[4, 5, 8], [0, 3, 9], [1, 2, 6], [4, 7, 8]]);
    }

    #[test]
    fn weights_of_one_need_no_mixture_and_senseless_ones_are_refused() {
        assert_eq!(Mixture::new([0, 1], &[1.0, 1.0]), Ok(None));
        for bad in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            assert!(matches!(Mixture::new([0], &[bad]), Err(PackingError::BadWeight(_))));
        }
        assert_eq!(Mixture::new([0; 5], &[1e9]), Err(PackingError::TooManyExamples));
    }

    proptest! {
        #[test]
        fn over_any_number_of_epochs_every_example_comes_as_often_as_its_weight_says(
            set_of in prop::collection::vec(0usize..3, 1..60), weights in prop::array::uniform3(0.01f64..4.0),
            seed in any::<u64>(), epochs in 1u64..8,
        ) {
            let mixture = Mixture::new(set_of.iter().copied(), &weights).unwrap().unwrap();
            let mut all = vec![0_u32; set_of.len()];
            for epoch in 0..epochs {
                for (sum, times) in all.iter_mut().zip(times(&mixture, seed, epoch)) {
                    *sum += times;
                }
            }
            for (set, weight) in weights.iter().enumerate() {
                let members: Vec<u32> =
                    (0..all.len()).filter(|i| set_of[*i] == set).map(|i| all[i]).collect();
                let expected = weight * members.len() as f64 * epochs as f64;
                let sum = members.iter().map(|times| f64::from(*times)).sum::<f64>();
                prop_assert!((sum - expected).abs() <= 0.5 + 1e-6, "{} of {}", sum, expected);
                // Nobody is ahead of another by more than one.
                let (least, most) = (members.iter().min(), members.iter().max());
                prop_assert!(most.zip(least).is_none_or(|(most, least)| most - least <= 1));
            }
        }
    }
}
