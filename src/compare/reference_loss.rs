//! How likely a reference answer is to a model.

use serde::{Deserialize, Serialize};

/// The loss of a reference answer.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct ReferenceLoss {
    /// The sum of the losses of its tokens, in nats.
    pub nats: f64,
    /// The number of its tokens.
    pub tokens: usize,
}

impl ReferenceLoss {
    /// Returns the perplexity: e to the mean loss of a token.
    pub fn perplexity(&self) -> f64 {
        (self.nats / self.tokens.max(1) as f64).exp()
    }
}
