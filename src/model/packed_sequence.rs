//! A packed sequence of tokens, the input of the model.

use std::sync::Arc;

use sparktune_kernels::Table;
use sparktune_kernels::linear_cross_entropy::Targets;

/// The tokens of one or more examples, with the boundaries between them and the targets.
///
/// No token attends to another example, and positions restart at each boundary (SPEC.md 2.6).
#[derive(Debug, Clone)]
pub struct PackedSequence {
    /// Token ids, `[T]`.
    pub input_ids: Table,
    /// Positions, `[T]`, counted from 0 in each example.
    pub position_ids: Table,
    /// Boundaries of the examples, `[0, …, T]`.
    pub cu_seqlens: Table,
    /// `[T]`: whether token `t` is predicted (from `t - 1`); false at the start of each example.
    pub loss_mask: Arc<[bool]>,
    /// The positions that predict, and the tokens that they predict.
    pub targets: Targets,
}

impl PackedSequence {
    /// Creates a sequence from its tokens, the boundaries `[0, …, T]` of its examples, and the loss mask. The
    /// mask of an example's first token is ignored, because no position may predict it.
    pub fn new(input_ids: &[u32], cu_seqlens: &[u32], loss_mask: &[bool]) -> Self {
        debug_assert_eq!(input_ids.len(), loss_mask.len());
        let mut position_ids = Vec::with_capacity(input_ids.len());
        for border in cu_seqlens.windows(2) {
            position_ids.extend(0..border[1] - border[0]);
        }
        let loss_mask: Arc<[bool]> =
            loss_mask.iter().zip(&position_ids).map(|(mask, position)| *mask && *position > 0).collect();
        let predicted = || (0..input_ids.len()).filter(|t| loss_mask[*t]);
        let targets = Targets {
            rows: predicted().map(|t| t as u32 - 1).collect(),
            tokens: predicted().map(|t| input_ids[t]).collect(),
        };
        Self {
            input_ids: input_ids.into(),
            position_ids: position_ids.into(),
            cu_seqlens: cu_seqlens.into(),
            loss_mask,
            targets,
        }
    }

    /// Creates a sequence of one example, in which every token but the first is trained.
    pub fn single(input_ids: &[u32]) -> Self {
        Self::new(input_ids, &[0, input_ids.len() as u32], &vec![true; input_ids.len()])
    }

    /// Returns the number of tokens.
    pub fn len(&self) -> usize {
        self.input_ids.len()
    }

    /// Returns whether it has no tokens.
    pub fn is_empty(&self) -> bool {
        self.input_ids.is_empty()
    }

    /// Returns the number of trained tokens.
    pub fn target_tokens(&self) -> usize {
        self.targets.rows.len()
    }
}
