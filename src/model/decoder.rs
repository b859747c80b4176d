//! The decoder: embedding, layers, final norm, head; and the two ways to compute its gradients.

use crate::layer::{DecoderLayer, Stream};
use crate::row::inverse_frequencies;
use crate::{Cache, Checkpoint, Gradients, Linear, Loss, ModelError, Param, Row};
use burn::tensor::{Device, Tensor};
use sparktune_kernels::embedding::embedding;
use sparktune_kernels::linear::linear;
use sparktune_kernels::linear_cross_entropy::linear_cross_entropy;
use sparktune_kernels::rope::RopeTable;
use sparktune_kernels::seed_gradient::seed_gradient;
use sparktune_kernels::{Table, Weight};
use sparktune_plan::model_config::{Architecture, ModelConfig};
use std::collections::BTreeSet;

/// Logits `[n, R]` of hidden states `[n, H]` for rows `[R, H]` of a head, row by row, on the host.
pub(crate) fn scores(hidden: Tensor<2>, rows: Tensor<2>) -> Vec<f32> {
    let logits = linear(hidden, rows).inner().into_data().convert::<f32>();
    logits.try_to_vec().expect("was converted to f32")
}

/// A decoder with all its parameters on one device; frozen after loading.
#[derive(Clone, Debug)]
pub struct Model {
    config: ModelConfig,
    device: Device,
    embed_tokens: Param,
    layers: Vec<DecoderLayer>,
    norm: Param,
    /// Absent when the embedding is the head.
    lm_head: Option<Param>,
    inverse_frequencies: Vec<f32>,
}

impl Model {
    /// Loads the text model of a checkpoint, in the numbers its device computes with ([`Param`]); `progress(done, total)` is
    /// called after each layer.
    ///
    /// # Errors
    /// When a tensor is missing or has another shape or type than the config calls for.
    pub fn load(
        checkpoint: &Checkpoint,
        device: &Device,
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<Self, ModelError> {
        let config = checkpoint.config().clone();
        let table = [config.vocab_size, config.hidden_size];
        let embed_tokens = checkpoint.param("embed_tokens.weight", &table, device)?;
        let lm_head = match checkpoint.is_tied() {
            true if !config.tie_word_embeddings => {
                // Silently reusing the embedding would give garbage.
                let name = "lm_head.weight".to_owned();
                return Err(ModelError::Missing { path: checkpoint.dir().to_owned(), name });
            }
            true => None,
            false => Some(checkpoint.param("lm_head.weight", &table, device)?),
        };
        let total = config.num_hidden_layers;
        let mut layers = Vec::with_capacity(total);
        for (i, layer_type) in config.layer_types.iter().enumerate() {
            let path = format!("layers.{i}");
            layers.push(DecoderLayer::load(checkpoint, &config, *layer_type, &path, device)?);
            progress(i + 1, total);
        }
        let norm = checkpoint.param("norm.weight", &[config.hidden_size], device)?;
        let inverse_frequencies = inverse_frequencies(&config.rope);
        let device = device.clone();
        let model = Self { config, device, embed_tokens, layers, norm, lm_head, inverse_frequencies };
        match checkpoint.computed_as() {
            Some(family) => model.find_no_strangers(checkpoint, family).map(|()| model),
            None => Ok(model),
        }
    }

    /// A model of an unknown family has a layer of another kind when one of its tensors found no place.
    fn find_no_strangers(&self, checkpoint: &Checkpoint, family: Architecture) -> Result<(), ModelError> {
        let layers = checkpoint.stored_name("layers.");
        let mut known = BTreeSet::new();
        self.visit(&mut |param| {
            known.insert(checkpoint.stored_name(param.name()));
        });
        // Old exports stored the rotary frequencies, which config.json says.
        let mut stored = checkpoint.tensors().keys().filter(|name| !name.ends_with(".rotary_emb.inv_freq"));
        match stored.find(|name| name.starts_with(&layers) && !known.contains(*name)) {
            None => Ok(()),
            Some(name) => {
                Err(ModelError::Stranger { path: checkpoint.dir().to_owned(), name: name.clone(), family })
            }
        }
    }

    /// What the model is.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// Where it lies.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Rows of the embedding for tokens, `[T, H]`.
    pub(crate) fn embed(&self, input_ids: &Table) -> Tensor<2> {
        embedding(self.embed_tokens.weight(), input_ids)
    }

    /// Weight of the head, `[V, H]`.
    pub(crate) fn head(&self) -> Weight {
        self.lm_head.as_ref().unwrap_or(&self.embed_tokens).weight()
    }

    pub(crate) fn rope_table(&self, row: &Row) -> RopeTable {
        self.rope_table_at(&row.position_ids)
    }

    pub(crate) fn rope_table_at(&self, position_ids: &[u32]) -> RopeTable {
        RopeTable::new(position_ids, &self.inverse_frequencies)
    }

    #[cfg(test)]
    pub(crate) fn layers(&self) -> &[DecoderLayer] {
        &self.layers
    }

    /// Hidden states after each layer, before the final norm: `num_hidden_layers` tensors `[T, H]`.
    #[cfg(test)]
    pub(crate) fn layer_outputs(&self, row: &Row) -> Vec<Tensor<2>> {
        let table = self.rope_table(row);
        let mut x = self.embed(&row.input_ids);
        let mut outputs = Vec::with_capacity(self.layers.len());
        for layer in &self.layers {
            x = layer.forward(x, row, &table, &self.config).sum();
            outputs.push(x.clone());
        }
        outputs
    }

    /// Hidden states after the final norm, `[T, H]`.
    pub fn hidden(&self, row: &Row) -> Tensor<2> {
        let table = self.rope_table(row);
        let mut stream = Stream::from(self.embed(&row.input_ids));
        for layer in &self.layers {
            stream = layer.forward(stream, row, &table, &self.config);
        }
        self.final_norm(stream)
    }

    fn final_norm(&self, stream: impl Into<Stream>) -> Tensor<2> {
        let [normed, _] = stream.into().norm(&self.norm, &self.config);
        normed
    }

    /// Logits `[n, V]` of hidden states `[n, H]`, row by row, on the host: for a few rows, never for a whole training row.
    pub fn logits(&self, hidden: Tensor<2>) -> Vec<f32> {
        scores(hidden, self.head().tensor)
    }

    /// The sum of the losses of a row's targets in nats, without gradients.
    pub fn loss_sum(&self, row: &Row) -> Loss {
        if row.target_tokens() == 0 {
            return Loss::NONE;
        }
        self.loss_of(row, |hidden, head| linear_cross_entropy(hidden, head, &row.targets, 1.0))
    }

    /// `scale · Σ losses` of a row, and the gradients of all trained parameters added to `gradients`.
    ///
    /// `recompute` as for [`Self::gradients_of`].
    pub fn loss_and_gradients(
        &self,
        row: &Row,
        scale: f64,
        recompute: bool,
        gradients: &mut Gradients,
    ) -> Loss {
        if row.target_tokens() == 0 {
            return Loss::NONE;
        }
        self.gradients_of(row, recompute, gradients, |hidden, head| {
            linear_cross_entropy(hidden, head, &row.targets, scale)
        })
    }

    /// Computes any loss `[1, 1]` that `loss` makes of a row's hidden states after the final norm, `[T, H]`, and the weight of
    /// the output head, `[V, H]`. Records no graph.
    pub fn loss_of(&self, row: &Row, loss: impl FnOnce(Tensor<2>, Weight) -> Tensor<2>) -> Loss {
        let frozen = self.frozen();
        Loss::new(loss(frozen.hidden(row), frozen.head()))
    }

    /// Computes a loss as [`Self::loss_of`] does and adds the gradients of all trained parameters to `gradients`.
    ///
    /// With `recompute` only each layer's input is kept, and the layers are run again in one reverse walk. The loss is the
    /// same; in the gradients one more sum per layer is rounded, which makes no difference in f32.
    pub fn gradients_of(
        &self,
        row: &Row,
        recompute: bool,
        gradients: &mut Gradients,
        loss: impl FnOnce(Tensor<2>, Weight) -> Tensor<2>,
    ) -> Loss {
        self.visit(&mut |param| gradients.lend(param));
        if recompute {
            return self.recomputed_gradients(row, gradients, loss);
        }
        let loss = loss(self.hidden(row), self.head());
        let mut backward = loss.backward();
        self.visit(&mut |param| gradients.collect(param, &mut backward));
        Loss::new(loss)
    }

    fn recomputed_gradients(
        &self,
        row: &Row,
        gradients: &mut Gradients,
        loss: impl FnOnce(Tensor<2>, Weight) -> Tensor<2>,
    ) -> Loss {
        let table = self.rope_table(row);
        // Whether anything at or below the embedding's output is trained; if not, the first layer needs no input
        // gradient, exactly as in the walk without recompute.
        let embedding_trained = self.embed_tokens.is_trainable();
        // The first pass records no graph at all.
        let frozen = self.frozen();
        let mut inputs = vec![frozen.embed(&row.input_ids)];
        for layer in &frozen.layers {
            let x = inputs.last().expect("starts with the embedding").clone();
            inputs.push(layer.forward(x, row, &table, &self.config).sum());
        }
        drop(frozen);

        let x = inputs.pop().expect("one more than there are layers").autodiff().require_grad();
        let loss = loss(self.final_norm(x.clone()), self.head());
        let mut backward = loss.backward();
        let mut dy = x.grad_remove(&mut backward).expect("the loss depends on the last layer");
        gradients.collect(&self.norm, &mut backward);
        // A tied table's gradient is still to get the embedding's share.
        self.lm_head.iter().for_each(|head| gradients.collect(head, &mut backward));
        drop(backward);

        for (i, layer) in self.layers.iter().enumerate().rev() {
            let x = inputs.pop().expect("an input for each layer").autodiff();
            let wants_input_gradient = i > 0 || embedding_trained;
            let x = if wants_input_gradient { x.require_grad() } else { x };
            let y = layer.forward(x.clone(), row, &table, &self.config).sum();
            let mut backward = seed_gradient(y, dy.clone()).backward();
            layer.visit(&mut |param| gradients.collect(param, &mut backward));
            if wants_input_gradient {
                dy = x.grad_remove(&mut backward).expect("a layer depends on its input");
            }
        }
        if embedding_trained {
            let mut backward = seed_gradient(self.embed(&row.input_ids), dy).backward();
            gradients.collect(&self.embed_tokens, &mut backward);
        }
        Loss::new(loss)
    }

    /// Continues one example: hidden states `[n, H]` after the final norm of `n` further tokens; updates `cache`.
    pub fn continue_from(&self, input_ids: &[u32], cache: &mut Cache) -> Tensor<2> {
        let positions: Vec<u32> = (0..input_ids.len()).map(|i| (cache.len() + i) as u32).collect();
        let table = self.rope_table_at(&positions);
        let mut stream = Stream::from(self.embed(&input_ids.into()));
        for (layer, cache) in self.layers.iter().zip(cache.layers_mut()) {
            stream = layer.continue_from(stream, &table, &self.config, cache);
        }
        cache.advance(input_ids.len());
        self.final_norm(stream)
    }

    /// An empty cache for [`Self::continue_from`].
    pub fn empty_cache(&self) -> Cache {
        Cache::new(self.layers.iter().map(|layer| layer.empty_cache(&self.device)).collect())
    }

    /// Every parameter once, in forward order, adapters included.
    pub fn visit<'a>(&'a self, f: &mut dyn FnMut(&'a Param)) {
        f(&self.embed_tokens);
        for layer in &self.layers {
            layer.visit(f);
        }
        f(&self.norm);
        self.lm_head.iter().for_each(f);
    }

    /// As [`Self::visit`], for changes.
    pub fn visit_mut(&mut self, f: &mut dyn FnMut(&mut Param)) {
        f(&mut self.embed_tokens);
        for layer in &mut self.layers {
            layer.visit_mut(f);
        }
        f(&mut self.norm);
        self.lm_head.iter_mut().for_each(f);
    }

    /// Every linear that can carry an adapter.
    pub fn linears_mut(&mut self) -> impl Iterator<Item = &mut Linear> {
        self.layers.iter_mut().flat_map(DecoderLayer::linears_mut)
    }

    /// As [`Self::linears_mut`], for reading.
    pub fn linears(&self) -> impl Iterator<Item = &Linear> {
        self.layers.iter().flat_map(DecoderLayer::linears)
    }

    /// Makes every parameter of the text model trainable, or none.
    pub fn set_trainable(&mut self, trainable: bool) {
        self.visit_mut(&mut |param| param.set_trainable(trainable));
    }

    /// A copy that shares the numbers and whose layers round what they multiply to e4m3 on CUDA devices: faster, and not lossless.
    /// Embedding, head, norms and mixers stay as they are, as do the gradients of parameters.
    pub fn with_fp8(&self) -> Self {
        let mut copy = self.clone();
        copy.linears_mut().for_each(|linear| linear.fp8 = true);
        copy
    }

    /// A copy that computes no gradients and shares the numbers.
    pub fn frozen(&self) -> Self {
        let mut copy = self.clone();
        copy.set_trainable(false);
        copy
    }
}
