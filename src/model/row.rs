//! A packed row of tokens as the model wants it.

use sparktune_kernels::Table;
use sparktune_kernels::linear_cross_entropy::Targets;
use sparktune_plan::model_config::Rope;
use std::sync::Arc;

/// Tokens of one or more examples side by side, their borders and what each is to predict.
///
/// No token sees another example; positions restart at each border (QWEN35_SPEC 2.6).
#[derive(Clone, Debug)]
pub struct Row {
    /// `[T]`
    pub input_ids: Table,
    /// `[T]`, from 0 in each example.
    pub position_ids: Table,
    /// `[0, …, T]`
    pub cu_seqlens: Table,
    /// `[T]`: whether token `t` is to be predicted (from `t - 1`); false at the start of each example.
    pub loss_mask: Arc<[bool]>,
    /// Which rows predict which tokens.
    pub targets: Targets,
}

impl Row {
    /// Builds a row from tokens, borders `[0, …, T]` and which tokens carry loss. A mark on the first token of an
    /// example is ignored, because nothing may predict it.
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

    /// One example, every token but the first a target.
    pub fn single(input_ids: &[u32]) -> Self {
        Self::new(input_ids, &[0, input_ids.len() as u32], &vec![true; input_ids.len()])
    }

    /// How many tokens.
    pub fn len(&self) -> usize {
        self.input_ids.len()
    }

    /// Whether there is no token.
    pub fn is_empty(&self) -> bool {
        self.input_ids.is_empty()
    }

    /// How many tokens carry loss.
    pub fn target_tokens(&self) -> usize {
        self.targets.rows.len()
    }
}

/// `theta^(-2j / rotary_dim)`, rescaled as Llama 3.1 does where the config asks for it.
///
/// Source: transformers `modeling_rope_utils.py`, `_compute_llama3_parameters`.
pub(crate) fn inverse_frequencies(rope: &Rope) -> Vec<f32> {
    (0..rope.rotary_dim / 2)
        .map(|j| {
            let frequency = rope.theta.powf(-2.0 * j as f64 / rope.rotary_dim as f64);
            let Some(scaling) = &rope.llama3 else { return frequency as f32 };
            let wavelength = std::f64::consts::TAU / frequency;
            let original = scaling.original_max_position_embeddings;
            let (low, high) = (scaling.low_freq_factor, scaling.high_freq_factor);
            let scaled = if wavelength > original / low {
                frequency / scaling.factor
            } else if wavelength < original / high {
                frequency
            } else {
                let smooth = (original / wavelength - low) / (high - low);
                (1.0 - smooth) * frequency / scaling.factor + smooth * frequency
            };
            scaled as f32
        })
        .collect()
}
