//! Decoding of several examples at once.
//!
//! A step continues each example by the rows that it asks for: one token, or a token and a draft after it.
//! The weights are read once for all of them. On the CPU an example gets the same bits whatever is decoded
//! beside it, and whether its tokens come in one step or in several: products and attention are computed row
//! by row (`linears_by_row`, `KeyValueCache::continue_by_row`). On other devices this holds for a step of up
//! to 32 rows; with more, the bits of a product may depend on their number.

use burn::tensor::Tensor;
pub use sparktune_kernels::largest::MOST as MOST_LARGEST;
use sparktune_kernels::largest::largest;
pub use sparktune_kernels::linear::FEWEST_ROWS;
use sparktune_kernels::linear::by_row::logits_by_row;

use crate::cache::{Continued, Rows};
use crate::decoder::Model;

/// The logits `[n, V]` after some rows, on the host.
#[derive(Debug, Clone)]
pub enum NextLogits {
    /// All of them, row-major.
    All {
        /// `n · V` numbers.
        logits: Vec<f32>,
        /// `V`.
        vocab_size: usize,
    },
    /// The largest of each row with their tokens, sorted, the first of equals in front.
    Largest(Vec<Vec<(u32, f32)>>),
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

    /// Continues examples by many tokens each, such as those of their prompts; returns the hidden states
    /// `[rows, H]` of all their new tokens after the final norm, in order.
    ///
    /// On the CPU the bits of an example that is continued by at least [`FEWEST_ROWS`] tokens do not depend
    /// on the others, if those are too.
    pub fn prefill(&self, batch: &mut [Continued<'_>]) -> Tensor<2> {
        self.blocked.continue_batch(batch, Rows::InBlocks)
    }

    /// Continues examples by few tokens each; returns the hidden states like [`prefill`](Self::prefill).
    pub fn step(&self, batch: &mut [Continued<'_>]) -> Tensor<2> {
        self.by_row.continue_batch(batch, Rows::OneByOne)
    }

    /// Returns the logits `[n, V]` of hidden states `[n, H]`, row-major, on the host; each row as if it were
    /// alone.
    pub fn logits(&self, hidden: Tensor<2>) -> Vec<f32> {
        on_host(self.device_logits(hidden))
    }

    /// Returns the logits of hidden states `[n, H]`, each row as if it were alone. If the largest are enough
    /// and there is a device, only those leave it, [`MOST_LARGEST`] of a row.
    pub fn next_logits(&self, hidden: Tensor<2>, largest_are_enough: bool) -> NextLogits {
        let logits = self.device_logits(hidden);
        if largest_are_enough && let Some(largest) = largest(&logits) {
            return NextLogits::Largest(largest);
        }
        NextLogits::All { vocab_size: logits.dims()[1], logits: on_host(logits) }
    }

    fn device_logits(&self, hidden: Tensor<2>) -> Tensor<2> {
        logits_by_row(hidden, self.by_row.head().tensor).inner()
    }
}

fn on_host(logits: Tensor<2>) -> Vec<f32> {
    logits.into_data().convert::<f32>().try_to_vec().expect("was converted to f32")
}
