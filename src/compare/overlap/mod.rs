//! How much an answer overlaps with a reference: chrF and BLEU, with the values of sacrebleu 2.6 in its
//! defaults (`tests/fixtures/overlap.json`).

mod bleu;
mod chrf;
mod tokens_13a;

use std::collections::HashMap;
use std::hash::Hash;

pub use bleu::BleuCounts;
pub use chrf::ChrfCounts;

/// Returns the chrF of one answer, 0 to 100.
pub fn chrf(answer: &str, reference: &str) -> f64 {
    let mut counts = ChrfCounts::default();
    counts.add(answer, reference);
    counts.score()
}

/// Returns the BLEU of one answer, 0 to 100: of as many orders as the answer has n-grams of.
pub fn bleu(answer: &str, reference: &str) -> f64 {
    let mut counts = BleuCounts::default();
    counts.add(answer, reference);
    counts.sentence_score()
}

/// The n-grams of one order that an answer has, that its reference has, and that both have.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Overlap {
    answer: usize,
    reference: usize,
    both: usize,
}

impl Overlap {
    fn of<T: Eq + Hash>(answer: &[T], reference: &[T], order: usize) -> Self {
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

    fn add(&mut self, other: Self) {
        self.answer += other.answer;
        self.reference += other.reference;
        self.both += other.both;
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use proptest::prelude::*;
    use serde::Deserialize;

    use super::*;

    #[derive(Deserialize)]
    struct Golden {
        pairs: Vec<Pair>,
        corpus_chrf: f64,
        corpus_bleu: f64,
    }

    #[derive(Deserialize)]
    struct Pair {
        answer: String,
        reference: String,
        chrf: f64,
        bleu: f64,
    }

    #[test]
    fn chrf_and_bleu_are_sacrebleus_of_a_sentence_and_of_a_corpus() {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/overlap.json");
        let golden: Golden = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
        let (mut all_chrf, mut all_bleu) = (ChrfCounts::default(), BleuCounts::default());
        assert!(golden.pairs.len() > 20);
        for Pair { answer, reference, chrf: wanted_chrf, bleu: wanted_bleu } in &golden.pairs {
            let (found_chrf, found_bleu) = (chrf(answer, reference), bleu(answer, reference));
            assert!(
                (found_chrf - wanted_chrf).abs() < 1e-9,
                "chrF {found_chrf}, not {wanted_chrf}: {answer:?}"
            );
            assert!(
                (found_bleu - wanted_bleu).abs() < 1e-9,
                "BLEU {found_bleu}, not {wanted_bleu}: {answer:?}"
            );
            all_chrf.add(answer, reference);
            all_bleu.add(answer, reference);
        }
        assert!((all_chrf.score() - golden.corpus_chrf).abs() < 1e-9, "{}", all_chrf.score());
        assert!((all_bleu.corpus_score() - golden.corpus_bleu).abs() < 1e-9, "{}", all_bleu.corpus_score());
    }

    proptest! {
        #[test]
        fn any_two_texts_have_an_overlap_between_0_and_100(answer in ".{0,60}", reference in ".{0,60}") {
            for score in [chrf(&answer, &reference), bleu(&answer, &reference)] {
                prop_assert!((0.0..=100.0 + 1e-9).contains(&score), "{score}");
            }
            if reference.chars().any(|c| !c.is_whitespace()) {
                prop_assert!(chrf(&reference, &reference) > 100.0 - 1e-9);
            }
        }
    }
}
