//! One example as the model sees it.

/// The tokens of one example and which of them are trained.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tokens {
    /// Token ids in order.
    pub input_ids: Vec<u32>,
    /// `loss_mask[t]`: token `t` is a target, predicted from `t - 1`. Same length as `input_ids`; the first
    /// is always `false`.
    pub loss_mask: Vec<bool>,
}

impl Tokens {
    /// The number of targets.
    pub fn target_count(&self) -> usize {
        self.loss_mask.iter().filter(|&&m| m).count()
    }
}
