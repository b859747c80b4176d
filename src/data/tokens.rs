//! The tokens of one example.

/// The tokens of one example and their loss mask.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tokens {
    /// Token ids in order.
    pub input_ids: Vec<u32>,
    /// `loss_mask[t]` is true if token `t` is a target, predicted from `t - 1`. It has the same length as
    /// `input_ids`; the first element is always `false`.
    pub loss_mask: Vec<bool>,
}

impl Tokens {
    /// Returns the number of targets.
    pub fn target_count(&self) -> usize {
        self.loss_mask.iter().filter(|&&m| m).count()
    }
}
