//! The drafts of one answer by the MTP head.

use burn::tensor::Tensor;
use sparktune_model::{Drafter, Model, Mtp, MtpCache};

/// What the head has read of an answer so far.
pub(crate) struct Drafts {
    cache: MtpCache,
    /// Hidden states that are not yet paired with the token after them, `[n, H]`, and the tokens that they
    /// belong to.
    fresh: Option<(Tensor<2>, Vec<u32>)>,
}

impl Drafts {
    pub(crate) fn new(model: &Model, head: &Mtp) -> Self {
        Self { cache: head.empty_cache(model.device()), fresh: None }
    }

    /// Takes note of new hidden states, `[n, H]`, and of their tokens.
    pub(crate) fn add(&mut self, hidden: Tensor<2>, input_ids: &[u32]) {
        self.fresh = Some(match self.fresh.take() {
            None => (hidden, input_ids.to_vec()),
            Some((before, mut ids)) => {
                ids.extend_from_slice(input_ids);
                (Tensor::cat(vec![before, hidden], 0), ids)
            }
        });
    }

    /// Drafts `count` tokens after `newest`.
    pub(crate) fn draft(&mut self, model: &Model, head: &Mtp, newest: u32, count: usize) -> Vec<u32> {
        let Some((hidden, ids)) = self.fresh.take() else { return Vec::new() };
        let mut next_ids = ids[1..].to_vec();
        next_ids.push(newest);
        Drafter::new(model, head).draft(hidden, &next_ids, count, &mut self.cache)
    }
}
