//! How much an answer overlaps with a reference: chrF and BLEU, with the values of sacrebleu 2.6 in its
//! defaults (`tests/fixtures/overlap.json`).

mod bleu;
mod chrf;
mod shared;
mod tokens_13a;

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
