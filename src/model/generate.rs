//! Greedy generation, token by token.

use burn::tensor::Tensor;

use crate::cache::Cache;
use crate::decoder::Model;

/// Greedy decoding after one prompt.
pub struct Generator<'a> {
    model: &'a Model,
    cache: Cache,
    next: u32,
}

impl<'a> Generator<'a> {
    /// Processes the prompt, which must not be empty. The model must be frozen.
    pub fn new(model: &'a Model, prompt: &[u32]) -> Self {
        let mut cache = model.empty_cache();
        let hidden = model.continue_from(prompt, &mut cache);
        let next = last_argmax(model, hidden);
        Self { model, cache, next }
    }
}

impl Iterator for Generator<'_> {
    type Item = u32;

    /// Returns the next token. It never returns `None`; the caller decides when to stop.
    fn next(&mut self) -> Option<u32> {
        let token = self.next;
        let hidden = self.model.continue_from(&[token], &mut self.cache);
        self.next = last_argmax(self.model, hidden);
        Some(token)
    }
}

/// Returns the most likely token after the last of the hidden states `[n, H]`.
pub(crate) fn last_argmax(model: &Model, hidden: Tensor<2>) -> u32 {
    let n = hidden.dims()[0];
    argmax(model, hidden.narrow(0, n - 1, 1))[0]
}

/// Returns the most likely token after each of the hidden states `[n, H]`, with ties resolved to the first.
pub(crate) fn argmax(model: &Model, hidden: Tensor<2>) -> Vec<u32> {
    let logits = model.logits(hidden);
    logits.chunks_exact(model.config().vocab_size).map(|row| greatest(row) as u32).collect()
}

/// Returns the index of the largest number, with ties resolved to the first.
pub(crate) fn greatest(numbers: &[f32]) -> usize {
    let first = (0, f32::NEG_INFINITY);
    numbers.iter().enumerate().fold(first, |best, (i, x)| if *x > best.1 { (i, *x) } else { best }).0
}
