//! Decoding one example token by token: what is remembered between tokens, and greedy generation.

use crate::Model;
use crate::layer::{DecoderLayer, Mixer};
use burn::tensor::{Device, Tensor};

/// Keys and values seen so far, `[length, G·D]` each.
#[derive(Clone, Debug, Default)]
pub(crate) struct AttentionCache {
    seen: Option<(Tensor<2>, Tensor<2>)>,
}

impl AttentionCache {
    /// Adds keys and values and returns all of them.
    pub(crate) fn append(&mut self, k: Tensor<2>, v: Tensor<2>) -> (Tensor<2>, Tensor<2>) {
        let all = match self.seen.take() {
            Some((past_k, past_v)) => (Tensor::cat(vec![past_k, k], 0), Tensor::cat(vec![past_v, v], 0)),
            None => (k, v),
        };
        self.seen = Some(all.clone());
        all
    }
}

/// The last inputs of the convolution `[K-1, C]` and the state `[Nv·dk, dv]`.
#[derive(Clone, Debug)]
pub(crate) struct DeltaCache {
    pub(crate) window: Tensor<2>,
    pub(crate) state: Tensor<2>,
}

#[derive(Clone, Debug)]
pub(crate) enum LayerCache {
    Full(AttentionCache),
    Linear(DeltaCache),
}

impl LayerCache {
    pub(crate) fn new(layer: &DecoderLayer, device: &Device) -> Self {
        match &layer.mixer {
            Mixer::Full(_) => Self::Full(AttentionCache::default()),
            Mixer::Linear(delta_net) => {
                let shape = &delta_net.shape;
                let state = [shape.num_value_heads * shape.key_head_dim, shape.value_head_dim];
                Self::Linear(DeltaCache {
                    window: Tensor::zeros([shape.conv_kernel_dim - 1, shape.conv_dim()], device),
                    state: Tensor::zeros(state, device),
                })
            }
        }
    }
}

/// What a decoder remembers of the tokens it has seen. A clone is a snapshot to come back to.
#[derive(Clone, Debug)]
pub struct Cache {
    layers: Vec<LayerCache>,
    length: usize,
}

impl Cache {
    pub(crate) fn new(layers: &[DecoderLayer], device: &Device) -> Self {
        let device = device.clone().inner();
        Self { layers: layers.iter().map(|layer| LayerCache::new(layer, &device)).collect(), length: 0 }
    }

    /// How many tokens it remembers.
    pub fn len(&self) -> usize {
        self.length
    }

    /// Whether it remembers nothing.
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

/// Greedy decoding of one prompt.
pub struct Generator<'a> {
    model: &'a Model,
    cache: Cache,
    next: u32,
}

impl<'a> Generator<'a> {
    /// Reads the prompt, which must not be empty; the model must be frozen.
    pub fn new(model: &'a Model, prompt: &[u32]) -> Self {
        let mut cache = model.empty_cache();
        let hidden = model.continue_from(prompt, &mut cache);
        let next = last_argmax(model, hidden);
        Self { model, cache, next }
    }
}

impl Iterator for Generator<'_> {
    type Item = u32;

    /// The next token; never ends by itself.
    fn next(&mut self) -> Option<u32> {
        let token = self.next;
        let hidden = self.model.continue_from(&[token], &mut self.cache);
        self.next = last_argmax(self.model, hidden);
        Some(token)
    }
}

/// The likeliest next token after the last of the hidden states.
pub(crate) fn last_argmax(model: &Model, hidden: Tensor<2>) -> u32 {
    let n = hidden.dims()[0];
    argmax(model, hidden.narrow(0, n - 1, 1))[0]
}

/// The likeliest next token after each hidden state `[n, H]`; the first of equals.
pub(crate) fn argmax(model: &Model, hidden: Tensor<2>) -> Vec<u32> {
    let logits = model.logits(hidden);
    let [_, vocabulary] = logits.dims();
    let logits: Vec<f32> = logits.into_data().try_to_vec().expect("logits are f32");
    logits
        .chunks_exact(vocabulary)
        .map(|row| {
            let best = row
                .iter()
                .enumerate()
                .fold((0, f32::NEG_INFINITY), |best, (i, x)| if *x > best.1 { (i, *x) } else { best });
            best.0 as u32
        })
        .collect()
}
