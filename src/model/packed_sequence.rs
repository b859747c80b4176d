//! A packed sequence of tokens, as the model takes it.

use std::sync::Arc;

use sparktune_kernels::Table;
use sparktune_kernels::linear_cross_entropy::Targets;

/// The tokens of one or more examples in a row, with the borders between them and what each token is to
/// predict.
///
/// No token sees another example, and positions restart at each border (SPEC.md 2.6).
#[derive(Debug, Clone)]
pub struct PackedSequence {
    /// `[T]`
    pub input_ids: Table,
    /// `[T]`, from 0 in each example.
    pub position_ids: Table,
    /// `[0, …, T]`
    pub cu_seqlens: Table,
    /// `[T]`: whether token `t` is to be predicted (from `t - 1`); false at the start of each example.
    pub loss_mask: Arc<[bool]>,
    /// Which positions predict which tokens.
    pub targets: Targets,
}

impl PackedSequence {
    /// Builds a sequence from its tokens, the borders `[0, …, T]` of its examples, and which tokens are
    /// trained. A mark on the first token of an example is ignored, because nothing may predict it.
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

    /// A sequence of one example, in which every token but the first is trained.
    pub fn single(input_ids: &[u32]) -> Self {
        Self::new(input_ids, &[0, input_ids.len() as u32], &vec![true; input_ids.len()])
    }

    /// The number of tokens.
    pub fn len(&self) -> usize {
        self.input_ids.len()
    }

    /// Whether it has no token.
    pub fn is_empty(&self) -> bool {
        self.input_ids.is_empty()
    }

    /// The number of trained tokens.
    pub fn target_tokens(&self) -> usize {
        self.targets.rows.len()
    }
}
