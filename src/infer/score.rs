//! How likely a given text is behind a prompt.

use sparktune_model::Continued;

use crate::engine::Engine;
use crate::error::InferError;
use crate::sequence::PREFILL;

/// The number of positions whose logits exist at a time.
const ROWS: usize = 64;

impl Engine {
    /// Returns the sum of the losses of the tokens of `continuation` behind `prompt`, in nats: what training
    /// computes for them, without the tokens of the prompt. Answers that are being decoded wait meanwhile.
    ///
    /// # Errors
    /// One of the two is empty or has a token that the model does not have, together they are longer than the
    /// model's context or than the memory that is left, or the adapter is unknown.
    pub fn score(
        &self,
        prompt: &[u32],
        continuation: &[u32],
        adapter: Option<&str>,
    ) -> Result<f64, InferError> {
        self.check_tokens(prompt)?;
        self.check_tokens(continuation)?;
        let decoder = self.models.get(adapter)?;
        let ids = [prompt, continuation].concat();
        let most = self.context_tokens();
        if ids.len() > most {
            let what = "the most that this model can read at once";
            return Err(InferError::TooLong { tokens: ids.len(), what, most, or_memory: "" });
        }
        let left = self.memory().cache_tokens.saturating_sub(self.reserved());
        if ids.len() > left {
            let what = "the memory that running answers leave";
            let or_memory = ", or wait until they are done";
            return Err(InferError::TooLong { tokens: ids.len(), what, most: left, or_memory });
        }
        let mut cache = decoder.model().empty_cache();
        let mut nats = 0.0;
        // The state after the last token predicts nothing that is asked for.
        for (piece, start) in ids[..ids.len() - 1].chunks(PREFILL).zip((0..).step_by(PREFILL)) {
            let hidden = decoder.prefill(&mut [Continued { input_ids: piece, cache: &mut cache }]);
            // Position `t` predicts token `t + 1`.
            let first = (prompt.len() - 1).saturating_sub(start).min(piece.len());
            for row in (first..piece.len()).step_by(ROWS) {
                let rows = ROWS.min(piece.len() - row);
                let logits = decoder.logits(hidden.clone().narrow(0, row, rows));
                for (logits, t) in logits.chunks_exact(self.vocab_size).zip(start + row..) {
                    nats += loss(logits, ids[t + 1]);
                }
            }
        }
        if nats.is_finite() { Ok(nats) } else { Err(InferError::NotFinite(0)) }
    }
}

impl Engine {
    /// Returns for each text the sum of the losses of its tokens but the first, in nats: what
    /// [`score`](Self::score) returns behind its first token, but for rounding. Short texts are computed
    /// together, which reads the weights once.
    ///
    /// # Errors
    /// The same as for [`score`](Self::score).
    pub fn score_all(&self, texts: &[&[u32]]) -> Result<Vec<f64>, InferError> {
        let left = self.memory().cache_tokens.saturating_sub(self.reserved());
        let most = left.min(PREFILL).min(self.context_tokens());
        let mut nats = Vec::with_capacity(texts.len());
        let mut rest = texts;
        while let Some(first) = rest.first() {
            let mut tokens = 0;
            let fits = |text: &&&[u32]| {
                tokens += text.len();
                text.len() > 1 && tokens <= most
            };
            let (together, others) = rest.split_at(rest.iter().take_while(fits).count());
            if together.is_empty() {
                let (prompt, continuation) = first.split_at(first.len().min(1));
                nats.push(self.score(prompt, continuation, None)?);
                rest = &rest[1..];
            } else {
                nats.extend(self.score_together(together)?);
                rest = others;
            }
        }
        Ok(nats)
    }

    fn score_together(&self, texts: &[&[u32]]) -> Result<Vec<f64>, InferError> {
        let decoder = self.models.get(None)?;
        let mut caches = Vec::with_capacity(texts.len());
        for text in texts {
            self.check_tokens(text)?;
            caches.push(decoder.model().empty_cache());
        }
        // The state after the last token predicts nothing that is asked for.
        let inputs = texts.iter().map(|text| &text[..text.len() - 1]);
        let mut batch: Vec<Continued<'_>> =
            inputs.zip(&mut caches).map(|(input_ids, cache)| Continued { input_ids, cache }).collect();
        let hidden = decoder.prefill(&mut batch);
        let mut all = Vec::with_capacity(texts.len());
        let mut start = 0;
        for text in texts {
            let mut nats = 0.0;
            for first in (0..text.len() - 1).step_by(ROWS) {
                let rows = ROWS.min(text.len() - 1 - first);
                let logits = decoder.model().logits(hidden.clone().narrow(0, start + first, rows));
                let wanted = &text[first + 1..];
                let losses = logits.chunks_exact(self.vocab_size).zip(wanted);
                nats += losses.map(|(logits, token)| loss(logits, *token)).sum::<f64>();
            }
            if !nats.is_finite() {
                return Err(InferError::NotFinite(0));
            }
            all.push(nats);
            start += text.len() - 1;
        }
        Ok(all)
    }
}

/// Returns the loss of a token in nats.
fn loss(logits: &[f32], token: u32) -> f64 {
    let max = f64::from(logits.iter().copied().fold(f32::NEG_INFINITY, f32::max));
    let sum: f64 = logits.iter().map(|logit| (f64::from(*logit) - max).exp()).sum();
    max + sum.ln() - f64::from(logits[token as usize])
}
