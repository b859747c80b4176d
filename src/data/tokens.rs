//! The tokens of one example.

use std::ops::Range;

/// The tokens of one example and their loss mask.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tokens {
    /// Token ids in order.
    pub input_ids: Vec<u32>,
    /// `loss_mask[t]` is true if token `t` is a target, predicted from `t - 1`. It has the same length as
    /// `input_ids`; the first element is always `false`.
    pub loss_mask: Vec<bool>,
}

/// The number of bytes that a token takes.
pub(crate) const TOKEN_BYTES: usize = size_of::<u32>() + size_of::<bool>();
/// About the number of bytes that an example takes besides, with what the allocator and a report need.
pub(crate) const EXAMPLE_BYTES: usize = 128;

impl Tokens {
    /// Returns about the number of bytes of memory that they take.
    pub(crate) fn bytes(&self) -> usize {
        EXAMPLE_BYTES + self.input_ids.len() * TOKEN_BYTES
    }

    /// Returns the number of targets.
    pub fn target_count(&self) -> usize {
        self.loss_mask.iter().filter(|&&m| m).count()
    }

    /// Adds tokens that are not trained.
    pub(crate) fn add_untrained(&mut self, ids: &[u32]) {
        self.input_ids.extend_from_slice(ids);
        self.loss_mask.resize(self.input_ids.len(), false);
    }

    /// Keeps at most `limit` tokens, up to the last target among them, because nothing is learnt from what
    /// follows it. Returns `None` if there is no target among them.
    pub(crate) fn cut_at(mut self, limit: usize) -> Option<Self> {
        let kept = self.loss_mask.iter().take(limit).rposition(|&target| target)? + 1;
        self.input_ids.truncate(kept);
        self.loss_mask.truncate(kept);
        Some(self)
    }
}

/// The target ranges that later tokens may still touch. Tokens have to be given in order.
pub(crate) struct Ahead<'a>(pub(crate) &'a [Range<usize>]);

impl Ahead<'_> {
    /// Returns whether the token's bytes touch a range. A token without bytes, such as an added BOS, touches
    /// none.
    pub(crate) fn touches(&mut self, start: usize, end: usize) -> bool {
        while let Some(first) = self.0.first()
            && (first.is_empty() || (first.end <= start && start < end))
        {
            self.0 = &self.0[1..];
        }
        self.0.first().is_some_and(|t| start < t.end && t.start < end)
    }
}
