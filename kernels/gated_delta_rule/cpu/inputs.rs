//! What the passes read: sizes, inputs and the gradients from above.

use std::ops::Range;

use super::matrix::padded;

/// Head counts and sizes of a linear-attention layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Dims {
    /// `linear_num_key_heads`
    pub key_heads: usize,
    /// `linear_num_value_heads`, a multiple of `key_heads`
    pub value_heads: usize,
    /// `linear_key_head_dim`
    pub key_dim: usize,
    /// `linear_value_head_dim`
    pub value_dim: usize,
}

impl Dims {
    /// Floats per token of `qkv`: `2·Nk·dk + Nv·dv`.
    pub fn qkv_width(self) -> usize {
        2 * self.keys_width() + self.values_width()
    }

    /// Floats per token of the output: `Nv·dv`.
    pub fn values_width(self) -> usize {
        self.value_heads * self.value_dim
    }

    /// Floats of one head's state: `dk·dv`.
    pub fn state_len(self) -> usize {
        self.key_dim * self.value_dim
    }

    pub(super) fn keys_width(self) -> usize {
        self.key_heads * self.key_dim
    }

    /// The value heads of one key head, counted from 0.
    pub(super) fn group(self) -> Range<usize> {
        0..self.value_heads / self.key_heads
    }

    /// Returns the range of a member's values within the group's part of a row.
    pub(super) fn value_range(self, member: usize) -> Range<usize> {
        member * self.value_dim..(member + 1) * self.value_dim
    }

    pub(super) fn padded_key_dim(self) -> usize {
        padded(self.key_dim)
    }

    pub(super) fn query_scale(self) -> f32 {
        (self.key_dim as f32).sqrt().recip()
    }
}

/// The inputs of the rule. All tensors are dense and row-major.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Inputs<'a> {
    /// Head counts and sizes.
    pub dims: Dims,
    /// `[T, 2·Nk·dk + Nv·dv]`, rows q | k | v, after convolution and silu; q and k are normalised here.
    pub qkv: &'a [f32],
    /// `[T, Nv]` log decay, at most 0.
    pub g: &'a [f32],
    /// `[T, Nv]` writing strength.
    pub beta: &'a [f32],
    /// Borders of the packed segments, `[0, …, T]`.
    pub cu_seqlens: &'a [u32],
    /// `[segments, Nv, dk, dv]`; zeros if `None`.
    pub initial_state: Option<&'a [f32]>,
}

impl<'a> Inputs<'a> {
    pub(super) fn q(&self, t: usize, key_head: usize) -> &'a [f32] {
        self.piece(t, key_head * self.dims.key_dim, self.dims.key_dim)
    }

    pub(super) fn k(&self, t: usize, key_head: usize) -> &'a [f32] {
        self.piece(t, self.dims.keys_width() + key_head * self.dims.key_dim, self.dims.key_dim)
    }

    pub(super) fn v(&self, t: usize, head: usize) -> &'a [f32] {
        self.piece(t, 2 * self.dims.keys_width() + head * self.dims.value_dim, self.dims.value_dim)
    }

    pub(super) fn g(&self, t: usize, head: usize) -> f32 {
        self.g[t * self.dims.value_heads + head]
    }

    pub(super) fn beta(&self, t: usize, head: usize) -> f32 {
        self.beta[t * self.dims.value_heads + head]
    }

    fn piece(&self, t: usize, start: usize, len: usize) -> &'a [f32] {
        &self.qkv[t * self.dims.qkv_width() + start..][..len]
    }

    pub(super) fn state_floats(&self) -> usize {
        (self.cu_seqlens.len() - 1) * self.dims.value_heads * self.dims.state_len()
    }

    /// Checks the shapes and returns the number of tokens.
    pub(super) fn checked_tokens(&self) -> usize {
        let Self { dims, cu_seqlens, .. } = *self;
        assert!(
            dims.value_heads.is_multiple_of(dims.key_heads),
            "value heads are a multiple of key heads: {dims:?}"
        );
        let borders_hold = cu_seqlens.first() == Some(&0) && cu_seqlens.is_sorted();
        assert!(borders_hold, "cu_seqlens starts at 0 and never falls: {cu_seqlens:?}");
        let tokens = cu_seqlens[cu_seqlens.len() - 1] as usize;
        assert_eq!(self.qkv.len(), tokens * dims.qkv_width(), "qkv is [T, 2·Nk·dk + Nv·dv]");
        assert_eq!(self.g.len(), tokens * dims.value_heads, "g is [T, Nv]");
        assert_eq!(self.beta.len(), tokens * dims.value_heads, "beta is [T, Nv]");
        check_states(self, self.initial_state.map(<[f32]>::len));
        tokens
    }
}

/// Holds states against the shapes.
pub(super) fn check_states(inputs: &Inputs<'_>, len: Option<usize>) {
    assert!(len.is_none_or(|len| len == inputs.state_floats()), "states are [segments, Nv, dk, dv]");
}

/// The gradients of the outputs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OutputGradients<'a> {
    /// `[T, Nv, dv]`
    pub out: &'a [f32],
    /// `[segments, Nv, dk, dv]`; zeros if `None`.
    pub final_state: Option<&'a [f32]>,
}
