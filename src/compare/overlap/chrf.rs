//! chrF2: the F-score of character n-grams (Popović 2015), without words and without white space.

use super::shared::Overlap;

/// The longest n-grams.
const ORDERS: usize = 6;
/// Recall counts β² times as much as precision.
const BETA: f64 = 2.0;

/// The n-grams of answers and references, from which the score of one or of many follows.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ChrfCounts([Overlap; ORDERS]);

impl ChrfCounts {
    /// Adds an answer with its reference.
    pub fn add(&mut self, answer: &str, reference: &str) {
        let characters = |text: &str| text.chars().filter(|c| !is_space(*c)).collect::<Vec<char>>();
        let (answer, reference) = (characters(answer), characters(reference));
        for (i, counts) in self.0.iter_mut().enumerate() {
            let mut found = Overlap::of(&answer, &reference, i + 1);
            // Where the reference is too short for this order, the answer's n-grams do not count either.
            if found.reference == 0 {
                found.answer = 0;
            }
            counts.add(found);
        }
    }

    /// Returns the score, 0 to 100. Precision and recall are means over the orders that both texts have.
    pub fn score(&self) -> f64 {
        let orders: Vec<&Overlap> = self.0.iter().filter(|o| o.answer > 0 && o.reference > 0).collect();
        if orders.is_empty() {
            return 0.0;
        }
        let mean = |share: fn(&Overlap) -> f64| {
            orders.iter().map(|overlap| share(overlap)).sum::<f64>() / orders.len() as f64
        };
        let precision = mean(|overlap| overlap.both as f64 / overlap.answer as f64);
        let recall = mean(|overlap| overlap.both as f64 / overlap.reference as f64);
        if precision + recall == 0.0 {
            return 0.0;
        }
        let factor = BETA * BETA;
        100.0 * (1.0 + factor) * precision * recall / (factor * precision + recall)
    }
}

/// Returns whether Python's `str.split()` splits at this character.
pub(super) fn is_space(c: char) -> bool {
    c.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&c)
}
