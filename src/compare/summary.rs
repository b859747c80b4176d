//! What the answers of one model come to.

use serde::{Deserialize, Serialize};
use sparktune_base::statistics::{Mean, wilson};
use sparktune_sampling::protocol::FinishReason;

use crate::answer::{Answer, PromptShown};
use crate::overlap::{BleuCounts, ChrfCounts};
use crate::reference_loss::ReferenceLoss;

/// A figure with its 95 % interval.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Estimate {
    /// The figure.
    pub value: f64,
    /// The lower end of the interval.
    pub low: f64,
    /// The upper end.
    pub high: f64,
}

/// What the answers of one model come to. What no prompt asks for is `None`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// The number of answers.
    pub answers: usize,
    /// The number of prompts without an answer, because of an error.
    pub errors: usize,
    /// The number of answers that a check decided about.
    pub decided: usize,
    /// The number of those that passed all their checks.
    pub passed: usize,
    /// The share that passed, with Wilson's interval.
    pub pass_rate: Option<Estimate>,
    /// The mean score, with Student's interval; no interval with fewer than three scores.
    pub score: Option<Estimate>,
    /// chrF of all answers against their references, 0 to 100, as sacrebleu computes it for a corpus.
    pub chrf: Option<f64>,
    /// BLEU of all answers against their references, 0 to 100, as sacrebleu computes it for a corpus.
    pub bleu: Option<f64>,
    /// The perplexity of all references together, with the number of their tokens.
    pub reference_perplexity: Option<f64>,
    /// The tokens of all references.
    pub reference_tokens: usize,
    /// Tokens of all answers in a second, while several were computed at a time.
    pub tokens_per_s: Option<f64>,
    /// The median time to the first token, in milliseconds.
    pub first_token_ms: Option<f64>,
    /// The mean number of tokens of an answer.
    pub answer_tokens: Option<f64>,
    /// The number of answers that ended because they were as long as they may be.
    pub cut: usize,
}

impl Summary {
    /// Sums up answers, which are in the order of the prompts. `generating_ms` is the time that they took.
    pub(crate) fn of(answers: &[Answer], prompts: &[PromptShown], generating_ms: f64) -> Self {
        let given: Vec<&Answer> = answers.iter().filter(|answer| answer.error.is_none()).collect();
        let decided: Vec<bool> = answers.iter().filter_map(|answer| answer.passed).collect();
        let passed = decided.iter().filter(|passed| **passed).count();
        let share = passed as f64 / decided.len().max(1) as f64;
        let scores: Vec<f64> = answers.iter().filter_map(|answer| answer.score).collect();
        let (mut chrf, mut bleu, mut has_references) = (ChrfCounts::default(), BleuCounts::default(), false);
        for (answer, prompt) in answers.iter().zip(prompts).filter(|(answer, _)| answer.error.is_none()) {
            let is_wanted = answer.outcomes.iter().any(|outcome| matches!(&*outcome.kind, "chrf" | "bleu"));
            if let Some(reference) = prompt.reference.as_ref().filter(|_| is_wanted) {
                has_references = true;
                chrf.add(&answer.text, reference);
                bleu.add(&answer.text, reference);
            }
        }
        let losses = answers.iter().filter_map(|answer| answer.reference);
        let loss = losses.fold(ReferenceLoss { nats: 0.0, tokens: 0 }, |sum, loss| ReferenceLoss {
            nats: sum.nats + loss.nats,
            tokens: sum.tokens + loss.tokens,
        });
        let tokens: usize = given.iter().map(|answer| answer.completion_tokens).sum();
        let mut first: Vec<f64> = given.iter().filter_map(|answer| answer.first_token_ms).collect();
        first.sort_by(f64::total_cmp);
        Self {
            answers: given.len(),
            errors: answers.len() - given.len(),
            decided: decided.len(),
            passed,
            pass_rate: wilson(passed, decided.len()).map(|(low, high)| Estimate { value: share, low, high }),
            score: mean_of(&scores),
            chrf: has_references.then(|| chrf.score()),
            bleu: has_references.then(|| bleu.corpus_score()),
            reference_perplexity: (loss.tokens > 0).then(|| loss.perplexity()),
            reference_tokens: loss.tokens,
            tokens_per_s: (tokens > 0 && generating_ms > 0.0).then(|| tokens as f64 / generating_ms * 1000.0),
            first_token_ms: first.get(first.len() / 2).copied(),
            answer_tokens: (!given.is_empty()).then(|| tokens as f64 / given.len() as f64),
            cut: given.iter().filter(|a| a.finish_reason == Some(FinishReason::Length)).count(),
        }
    }
}

fn mean_of(scores: &[f64]) -> Option<Estimate> {
    if scores.is_empty() {
        return None;
    }
    let Mean { mean, half_width } = Mean::of(scores);
    let bound = |value: f64| value.clamp(0.0, 1.0);
    let half_width = half_width.unwrap_or(1.0);
    Some(Estimate { value: mean, low: bound(mean - half_width), high: bound(mean + half_width) })
}
