//! The state of decoding between tokens: keys and values of softmax attention, and window and state of the
//! delta rule.

use burn::tensor::Tensor;
use sparktune_kernels::packed_attention::cache::KeyValueCache;

/// How the rows are computed that a step adds to an example.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rows {
    /// In blocks, which is fast for many.
    InBlocks,
    /// One by one: their bits do not depend on how many there are, and they can be taken back.
    OneByOne,
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
    /// Window and state before each row of the newest step but its first, oldest first, so that the rows of a
    /// draft can be taken back.
    pub(crate) before: Vec<(Tensor<2>, Tensor<2>)>,
}

#[derive(Debug, Clone)]
pub(crate) enum LayerCache {
    Attention(KeyValueCache),
    Delta(Box<DeltaCache>),
}

/// The state of a decoder after the tokens so far. A clone is a snapshot to return to.
#[derive(Debug, Clone)]
pub struct Cache {
    layers: Vec<LayerCache>,
    length: usize,
}

/// The tokens of one example in a step, and its state, which the step updates.
pub struct Continued<'a> {
    /// The new tokens, at least one.
    pub input_ids: &'a [u32],
    /// The state after the tokens before them.
    pub cache: &'a mut Cache,
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

    /// Forgets the newest `tokens` tokens, which must all come from the newest step of
    /// [`BatchDecoder::step`](crate::BatchDecoder::step) without its first.
    ///
    /// # Panics
    /// When there are not that many.
    pub fn take_back(&mut self, tokens: usize) {
        if tokens == 0 {
            return;
        }
        self.length -= tokens;
        for layer in &mut self.layers {
            match layer {
                LayerCache::Attention(cache) => cache.truncate(self.length),
                LayerCache::Delta(cache) => {
                    let rows = cache.before.len();
                    assert!(tokens <= rows, "{tokens} tokens are taken back of a step of {}", rows + 1);
                    cache.before.truncate(rows - tokens + 1);
                    let (window, state) = cache.before.pop().expect("at least one token is taken back");
                    (cache.window, cache.state) = (window, state);
                }
            }
        }
    }
}
