//! The state of decoding between tokens: keys and values of softmax attention, and window and state of the
//! delta rule.

use burn::tensor::Tensor;

/// The keys and values of all tokens so far, `[length, G·D]` each.
#[derive(Debug, Clone, Default)]
pub(crate) struct AttentionCache {
    seen: Option<(Tensor<2>, Tensor<2>)>,
}

impl AttentionCache {
    /// Appends keys and values and returns all of them.
    pub(crate) fn append(&mut self, k: Tensor<2>, v: Tensor<2>) -> (Tensor<2>, Tensor<2>) {
        let all = match self.seen.take() {
            Some((past_k, past_v)) => (Tensor::cat(vec![past_k, k], 0), Tensor::cat(vec![past_v, v], 0)),
            None => (k, v),
        };
        self.seen = Some(all.clone());
        all
    }

    /// Returns keys and values of all tokens so far.
    pub(crate) fn seen(&self) -> Option<&(Tensor<2>, Tensor<2>)> {
        self.seen.as_ref()
    }
}

/// The keys and values of branches from one example: for each token of a branch, those of all branches,
/// `[branches, G·D]` each.
#[derive(Debug, Clone, Default)]
pub(crate) struct Branches {
    seen: Vec<(Tensor<2>, Tensor<2>)>,
}

impl Branches {
    /// Returns the number of tokens in each branch.
    pub(crate) fn depth(&self) -> usize {
        self.seen.len()
    }

    /// Appends keys and values of one token for each branch, and returns all of them.
    pub(crate) fn append(&mut self, k: Tensor<2>, v: Tensor<2>) -> &[(Tensor<2>, Tensor<2>)] {
        self.seen.push((k, v));
        &self.seen
    }
}

/// The last inputs of the convolution, `[taps - 1, channels]`, and the state, `[value heads · key width,
/// value width]`.
#[derive(Debug, Clone)]
pub(crate) struct DeltaCache {
    pub(crate) window: Tensor<2>,
    pub(crate) state: Tensor<2>,
}

#[derive(Debug, Clone)]
pub(crate) enum LayerCache {
    Attention(AttentionCache),
    Delta(DeltaCache),
}

/// The state of a decoder after the tokens so far. A clone is a snapshot to return to.
#[derive(Debug, Clone)]
pub struct Cache {
    layers: Vec<LayerCache>,
    length: usize,
}

impl Cache {
    pub(crate) fn new(layers: Vec<LayerCache>) -> Self {
        Self { layers, length: 0 }
    }

    /// Returns the number of tokens in the cache.
    pub fn len(&self) -> usize {
        self.length
    }

    /// Returns whether the cache has no tokens.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    pub(crate) fn layers_mut(&mut self) -> &mut [LayerCache] {
        &mut self.layers
    }

    pub(crate) fn advance(&mut self, tokens: usize) {
        self.length += tokens;
    }
}
