//! Counts of the n-grams that an answer shares with a reference.

use std::collections::HashMap;
use std::hash::Hash;

/// The n-grams of one order that an answer has, that its reference has, and that both have.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Overlap {
    pub(super) answer: usize,
    pub(super) reference: usize,
    pub(super) both: usize,
}

impl Overlap {
    pub(super) fn of<T: Eq + Hash>(answer: &[T], reference: &[T], order: usize) -> Self {
        let mut wanted: HashMap<&[T], usize> = HashMap::new();
        reference.windows(order).for_each(|gram| *wanted.entry(gram).or_default() += 1);
        let mut both = 0;
        for gram in answer.windows(order) {
            // Each n-gram of the reference counts once.
            if let Some(left) = wanted.get_mut(gram).filter(|left| **left > 0) {
                *left -= 1;
                both += 1;
            }
        }
        let count = |items: &[T]| (items.len() + 1).saturating_sub(order);
        Self { answer: count(answer), reference: count(reference), both }
    }

    pub(super) fn add(&mut self, other: Self) {
        self.answer += other.answer;
        self.reference += other.reference;
        self.both += other.both;
    }
}
