//! Penalties on tokens that were there before.

use std::collections::{BTreeMap, BTreeSet};

use crate::params::SamplingParams;

/// The tokens of a prompt, and those of the answer so far with their numbers.
#[derive(Debug, Clone, Default)]
pub struct History {
    prompt: BTreeSet<u32>,
    answer: BTreeMap<u32, u32>,
}

impl History {
    /// Begins an answer to a prompt.
    pub fn new(prompt: &[u32]) -> Self {
        Self { prompt: prompt.iter().copied().collect(), answer: BTreeMap::new() }
    }

    /// Adds a token of the answer.
    pub fn push(&mut self, token: u32) {
        *self.answer.entry(token).or_default() += 1;
    }
}

/// Changes the logits of a vocabulary by the penalties for the tokens of a history.
///
/// `repetition_penalty` is that of CTRL (arXiv:1909.05858) for prompt and answer, the other two are OpenAI's
/// for the answer, in the order of vLLM.
pub fn penalise(logits: &mut [f32], history: &History, params: &SamplingParams) {
    let repetition = params.repetition_penalty as f32;
    if repetition != 1.0 {
        let new_in_answer = history.answer.keys().filter(|token| !history.prompt.contains(token));
        for token in history.prompt.iter().chain(new_in_answer) {
            if let Some(logit) = logits.get_mut(*token as usize) {
                *logit = if *logit > 0.0 { *logit / repetition } else { *logit * repetition };
            }
        }
    }
    let (frequency, presence) = (params.frequency_penalty as f32, params.presence_penalty as f32);
    if frequency != 0.0 || presence != 0.0 {
        for (token, count) in &history.answer {
            if let Some(logit) = logits.get_mut(*token as usize) {
                *logit -= frequency * *count as f32 + presence;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn penalties_follow_their_definitions() {
        let mut history = History::new(&[0, 1, 1]);
        [1, 2, 2].into_iter().for_each(|token| history.push(token));
        let penalised = |params: SamplingParams| {
            let mut logits = [2.0, -1.0, 3.0, 4.0];
            penalise(&mut logits, &history, &params);
            logits
        };
        let params = SamplingParams::default;
        assert_eq!(penalised(params()), [2.0, -1.0, 3.0, 4.0]);
        // Each token of prompt or answer once, however often it is there.
        assert_eq!(penalised(SamplingParams { repetition_penalty: 2.0, ..params() }), [1.0, -2.0, 1.5, 4.0]);
        // The prompt does not count.
        assert_eq!(penalised(SamplingParams { frequency_penalty: 0.5, ..params() }), [2.0, -1.5, 2.0, 4.0]);
        assert_eq!(penalised(SamplingParams { presence_penalty: 0.5, ..params() }), [2.0, -1.5, 2.5, 4.0]);
        let all = SamplingParams {
            repetition_penalty: 2.0,
            frequency_penalty: 0.5,
            presence_penalty: 0.25,
            ..params()
        };
        assert_eq!(penalised(all), [1.0, -2.75, 0.25, 4.0]);
    }
}
