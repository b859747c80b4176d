//! BLEU (Papineni et al. 2002) with the tokens of `mteval-v13a` and exponential smoothing.

use super::shared::Overlap;
use super::tokens_13a::tokens;

/// The longest n-grams.
const ORDERS: usize = 4;

/// The n-grams of answers and references, from which the score of one or of many follows.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BleuCounts {
    orders: [Overlap; ORDERS],
    answer_tokens: usize,
    reference_tokens: usize,
}

impl BleuCounts {
    /// Adds an answer with its reference.
    pub fn add(&mut self, answer: &str, reference: &str) {
        let (answer, reference) = (tokens(answer), tokens(reference));
        for (i, counts) in self.orders.iter_mut().enumerate() {
            counts.add(Overlap::of(&answer, &reference, i + 1));
        }
        self.answer_tokens += answer.len();
        self.reference_tokens += reference.len();
    }

    /// Returns the score of many answers, 0 to 100.
    pub fn corpus_score(&self) -> f64 {
        self.score(false)
    }

    /// Returns the score of one answer, 0 to 100: the mean of the orders that the answer has n-grams of.
    pub fn sentence_score(&self) -> f64 {
        self.score(true)
    }

    fn score(&self, only_orders_of_the_answer: bool) -> f64 {
        if self.orders.iter().all(|overlap| overlap.both == 0) {
            return 0.0;
        }
        let present = self.orders.iter().take_while(|overlap| overlap.answer > 0).count();
        if present < ORDERS && !only_orders_of_the_answer {
            return 0.0;
        }
        // The first order without a match counts as half a match, the next as a quarter, and so on.
        let mut smoothing = 1.0;
        let logarithms = self.orders[..present].iter().map(|overlap| {
            let both = if overlap.both == 0 {
                smoothing *= 2.0;
                1.0 / smoothing
            } else {
                overlap.both as f64
            };
            (both / overlap.answer as f64).ln()
        });
        let mean = logarithms.sum::<f64>() / present as f64;
        let brevity = if self.answer_tokens < self.reference_tokens {
            (1.0 - self.reference_tokens as f64 / self.answer_tokens as f64).exp()
        } else {
            1.0
        };
        100.0 * brevity * mean.exp()
    }
}
