//! Decoding of several examples at once.
//!
//! A step continues each example by the rows that it asks for: one token, or a token and a draft after it.
//! The weights are read once for all of them. On the CPU an example gets the same bits whatever is decoded
//! beside it, and whether its tokens come in one step or in several: products and attention are computed row
//! by row (`linears_by_row`, `KeyValueCache::attend_by_row`). On other devices the bits of a product may
//! depend on its number of rows.

use burn::tensor::Tensor;
use sparktune_kernels::linear::by_row::linears_by_row;
use sparktune_kernels::lora_linear::Adapted;

use crate::cache::Cache;
use crate::decoder::Model;
use crate::layer::Residual;

/// The tokens of one example in a step, and its state, which the step updates.
pub struct Continued<'a> {
    /// The new tokens, at least one.
    pub input_ids: &'a [u32],
    /// The state after the tokens before them.
    pub cache: &'a mut Cache,
}

/// A frozen model, prepared for decoding. It shares the numbers of the model that it was made of.
#[derive(Debug, Clone)]
pub struct BatchDecoder {
    /// Computes many rows of one example together.
    blocked: Model,
    by_row: Model,
}

impl BatchDecoder {
    /// Prepares a model.
    pub fn new(model: &Model) -> Self {
        let blocked = model.frozen();
        let mut by_row = blocked.clone();
        by_row.linears_mut().into_iter().for_each(|linear| linear.by_row = true);
        Self { blocked, by_row }
    }

    /// Returns the model.
    pub fn model(&self) -> &Model {
        &self.blocked
    }

    /// Continues one example by many tokens, such as those of a prompt; returns their hidden states `[n, H]`
    /// after the final norm.
    pub fn prefill(&self, input_ids: &[u32], cache: &mut Cache) -> Tensor<2> {
        self.blocked.continue_from(input_ids, cache)
    }

    /// Continues several examples; returns the hidden states `[rows, H]` of all their new tokens after the
    /// final norm, in order.
    pub fn step(&self, batch: &mut [Continued<'_>]) -> Tensor<2> {
        let model = &self.by_row;
        let (mut ids, mut positions) = (Vec::new(), Vec::new());
        for Continued { input_ids, cache } in &*batch {
            ids.extend_from_slice(input_ids);
            positions.extend((0..input_ids.len()).map(|i| (cache.len() + i) as u32));
        }
        let ropes = model.rope_tables(&positions);
        let mut residual = Residual::from(model.embed(&ids[..].into()));
        for (i, layer) in model.layers.iter().enumerate() {
            let caches =
                batch.iter_mut().map(|c| (c.input_ids.len(), &mut c.cache.layers_mut()[i])).collect();
            residual = layer.continue_batch(residual, &ropes, caches);
        }
        for Continued { input_ids, cache } in batch {
            cache.advance(input_ids.len());
        }
        model.final_norm(residual)
    }

    /// Returns the logits `[n, V]` of hidden states `[n, H]`, row-major, on the host; each row as if it were
    /// alone.
    pub fn logits(&self, hidden: Tensor<2>) -> Vec<f32> {
        let head = Adapted { weight: self.by_row.head().tensor, adapter: None };
        let logits = linears_by_row(hidden, vec![head], 0.0).remove(0);
        logits.inner().into_data().convert::<f32>().try_to_vec().expect("was converted to f32")
    }
}
