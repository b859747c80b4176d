//! The decoder: embedding, layers, final norm and head, and the two ways to compute its gradients.

use std::collections::BTreeSet;

use burn::tensor::{DType, Device, Tensor};
use half::bf16;
use sparktune_base::random::mix;
use sparktune_kernels::dropout::Dropout;
use sparktune_kernels::embedding::embedding;
use sparktune_kernels::linear::linear;
use sparktune_kernels::linear_cross_entropy::linear_cross_entropy;
use sparktune_kernels::seed_gradient::seed_gradient;
use sparktune_kernels::{Table, Weight};
use sparktune_plan::ModelConfig;
use sparktune_plan::architecture::TensorSpec;

use crate::cache::{Cache, Continued, Rows};
use crate::checkpoint::Checkpoint;
use crate::error::ModelError;
use crate::final_gradients::Watch;
use crate::gradients::Gradients;
use crate::layer::{DecoderLayer, Residual};
use crate::layer_loader::LayerLoader;
use crate::linear::{Linear, Lora};
use crate::loss::Loss;
use crate::module::{Module, module};
use crate::norm::Norm;
use crate::numbers::hash_of;
use crate::packed_sequence::PackedSequence;
use crate::param::Param;
use crate::rope_tables::{RopeTables, Ropes};

/// Returns the logits `[n, R]` of hidden states `[n, H]` for rows `[R, H]` of an output head, row-major, on
/// the host.
pub(crate) fn scores(hidden: Tensor<2>, rows: Tensor<2>) -> Vec<f32> {
    let logits = linear(hidden, rows).inner().into_data().convert::<f32>();
    logits.try_to_vec().expect("was converted to f32")
}

/// Loads the embedding of a checkpoint, `[V, H]`.
///
/// # Errors
/// When it is missing, or has another shape or type than the config calls for.
pub(crate) fn load_embedding(checkpoint: &Checkpoint, device: &Device) -> Result<Param, ModelError> {
    load_table("embed_tokens.weight", checkpoint, device)
}

/// Loads the output head of a checkpoint, `[V, H]`; `None` if it is the embedding.
///
/// # Errors
/// The same as for [`load_embedding`].
pub(crate) fn load_lm_head(checkpoint: &Checkpoint, device: &Device) -> Result<Option<Param>, ModelError> {
    const NAME: &str = "lm_head.weight";
    if !checkpoint.is_tied() {
        return load_table(NAME, checkpoint, device).map(Some);
    }
    if !checkpoint.config().tie_word_embeddings {
        // Silently using the embedding as the head would produce garbage.
        return Err(ModelError::Missing { path: checkpoint.dir().to_owned(), name: NAME.to_owned() });
    }
    Ok(None)
}

/// Returns whether a layer has a trained parameter.
fn is_trained(layer: &DecoderLayer) -> bool {
    let mut is_trained = false;
    layer.visit(&mut |param| is_trained |= param.is_trainable());
    is_trained
}

fn parameters_of(layer: &DecoderLayer) -> Vec<&Param> {
    let mut all = Vec::new();
    layer.visit(&mut |param| all.push(param));
    all
}

fn load_table(name: &str, checkpoint: &Checkpoint, device: &Device) -> Result<Param, ModelError> {
    let config = checkpoint.config();
    checkpoint.weight(&TensorSpec::new(name, &[config.vocab_size, config.hidden_size]), device)
}

/// Returns the embeddings of tokens, `[T, H]`, multiplied by the family's scale if it has one.
pub(crate) fn embed(config: &ModelConfig, embed_tokens: &Param, input_ids: &Table) -> Tensor<2> {
    let rows = embedding(embed_tokens.weight(), input_ids);
    match config.embedding_scale {
        // The scale is rounded like in transformers, because the model was trained with it in the type of the
        // table.
        Some(scale) if rows.dtype() == DType::BF16 => rows.mul_scalar(bf16::from_f64(scale).to_f32()),
        Some(scale) => rows.mul_scalar(scale as f32),
        None => rows,
    }
}

/// A decoder with all its parameters on one device; frozen after loading.
#[derive(Debug, Clone)]
pub struct Model {
    config: ModelConfig,
    device: Device,
    embed_tokens: Param,
    pub(crate) layers: Vec<DecoderLayer>,
    norm: Norm,
    /// The output head; `None` if it is the embedding.
    lm_head: Option<Param>,
    ropes: Ropes,
}

module!(Model { embed_tokens, layers, norm, lm_head });

impl Model {
    /// Loads the text model of a checkpoint in the number format of its device ([`Param`]), and calls
    /// `progress(done, total)` after each layer.
    ///
    /// # Errors
    /// When a tensor is missing, has another shape or type than the config calls for, or belongs to no part
    /// of the model.
    pub fn load(
        checkpoint: &Checkpoint,
        device: &Device,
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<Self, ModelError> {
        let config = checkpoint.config().clone();
        let embed_tokens = load_embedding(checkpoint, device)?;
        let lm_head = load_lm_head(checkpoint, device)?;
        let total = config.layers.len();
        let mut layers = Vec::with_capacity(total);
        for (i, spec) in config.layers.iter().enumerate() {
            let path = format!("layers.{i}");
            layers.push(DecoderLayer::load(LayerLoader { checkpoint, spec, path: &path, device })?);
            progress(i + 1, total);
        }
        let norm = Norm::load(checkpoint, &config.norm, None, device)?;
        let ropes = Ropes::new(&config);
        let model = Self { config, device: device.clone(), embed_tokens, layers, norm, lm_head, ropes };
        model.refuse_unknown_tensors(checkpoint)?;
        Ok(model)
    }

    /// Refuses a checkpoint with a tensor that no parameter uses, because it belongs to a computation that is
    /// not implemented.
    fn refuse_unknown_tensors(&self, checkpoint: &Checkpoint) -> Result<(), ModelError> {
        let mut used = BTreeSet::new();
        self.visit(&mut |param| {
            used.insert(checkpoint.stored_name(param.name()));
        });
        let family = self.config.architecture;
        let unknown = checkpoint.tensors().keys().find(|name| !used.contains(*name) && !family.carries(name));
        match unknown {
            None => Ok(()),
            Some(name) => Err(ModelError::UnknownTensor {
                path: checkpoint.dir().to_owned(),
                name: name.clone(),
                family,
            }),
        }
    }

    /// Returns the sizes and layers of the model.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// Returns the device of its parameters.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Returns the embeddings of tokens, `[T, H]`.
    pub(crate) fn embed(&self, input_ids: &Table) -> Tensor<2> {
        embed(&self.config, &self.embed_tokens, input_ids)
    }

    /// Returns the weight of the head, `[V, H]`.
    pub fn head(&self) -> Weight {
        self.lm_head.as_ref().unwrap_or(&self.embed_tokens).weight()
    }

    /// Returns the RoPE tables of all attention layers for tokens at these positions.
    pub(crate) fn rope_tables(&self, position_ids: &[u32]) -> RopeTables {
        self.ropes.tables(position_ids)
    }

    #[cfg(test)]
    pub(crate) fn layers(&self) -> &[DecoderLayer] {
        &self.layers
    }

    /// Returns the hidden states after each layer, before the final norm: one tensor `[T, H]` per layer.
    #[cfg(test)]
    pub(crate) fn layer_outputs(&self, sequence: &PackedSequence) -> Vec<Tensor<2>> {
        let ropes = self.rope_tables(&sequence.position_ids);
        let mut x = self.embed(&sequence.input_ids);
        let mut outputs = Vec::with_capacity(self.layers.len());
        for layer in &self.layers {
            x = layer.forward(x, sequence, &ropes).sum();
            outputs.push(x.clone());
        }
        outputs
    }

    /// Returns the hidden states after the final norm, `[T, H]`.
    pub fn hidden(&self, sequence: &PackedSequence) -> Tensor<2> {
        let ropes = self.rope_tables(&sequence.position_ids);
        let mut residual = Residual::from(self.embed(&sequence.input_ids));
        for layer in &self.layers {
            residual = layer.forward(residual, sequence, &ropes);
        }
        self.final_norm(residual)
    }

    pub(crate) fn final_norm(&self, residual: impl Into<Residual>) -> Tensor<2> {
        let [normed, _] = residual.into().normed(&self.norm);
        normed
    }

    /// Returns the logits `[n, V]` of hidden states `[n, H]`, row-major, on the host. Use it for a few
    /// tokens, never for a whole training sequence.
    pub fn logits(&self, hidden: Tensor<2>) -> Vec<f32> {
        scores(hidden, self.head().tensor)
    }

    /// Returns the sum of the losses of a sequence's trained tokens in nats, without gradients.
    pub fn loss_sum(&self, sequence: &PackedSequence) -> Loss {
        if sequence.target_tokens() == 0 {
            return Loss::NONE;
        }
        self.loss_of(sequence, |hidden, head| linear_cross_entropy(hidden, head, &sequence.targets, 1.0))
    }

    /// Returns `scale · Σ losses` of a sequence, and adds the gradients of all trained parameters to
    /// `gradients`.
    ///
    /// For `recompute` see [`gradients_of`](Self::gradients_of).
    pub fn loss_and_gradients(
        &self,
        sequence: &PackedSequence,
        scale: f64,
        recompute: bool,
        gradients: &mut Gradients,
    ) -> Loss {
        if sequence.target_tokens() == 0 {
            return Loss::NONE;
        }
        self.gradients_of(sequence, recompute, gradients, |hidden, head| {
            linear_cross_entropy(hidden, head, &sequence.targets, scale)
        })
    }

    /// Computes a loss `[1, 1]` with the function `loss` from a sequence's hidden states after the final
    /// norm, `[T, H]`, and the weight of the output head, `[V, H]`. Records no graph.
    pub fn loss_of(
        &self,
        sequence: &PackedSequence,
        loss: impl FnOnce(Tensor<2>, Weight) -> Tensor<2>,
    ) -> Loss {
        let frozen = self.frozen();
        Loss::new(loss(frozen.hidden(sequence), frozen.head()))
    }

    /// Computes a loss like [`loss_of`](Self::loss_of) and adds the gradients of all trained parameters to
    /// `gradients`.
    ///
    /// With `recompute` only each layer's input is kept, and the layers are run again in one walk backwards.
    /// The loss is the same; in the gradients one more sum per layer is rounded, which makes no difference in
    /// f32.
    pub fn gradients_of(
        &self,
        sequence: &PackedSequence,
        recompute: bool,
        gradients: &mut Gradients,
        loss: impl FnOnce(Tensor<2>, Weight) -> Tensor<2>,
    ) -> Loss {
        self.visit(&mut |param| gradients.attach_sum(param));
        if recompute {
            return self.recomputed_gradients(sequence, gradients, loss);
        }
        let loss = loss(self.hidden(sequence), self.head());
        let watch = gradients.on_final().map(|on_final| {
            let layers = self.layers.iter().rev().map(parameters_of);
            Watch::start(std::iter::once(self.lm_head.iter().collect()).chain(layers), on_final)
        });
        let mut backward = loss.backward();
        drop(watch);
        self.visit(&mut |param| gradients.take_sum(param, &mut backward));
        Loss::new(loss)
    }

    /// Returns the trained parameters in the order in which the backward pass finishes their gradients: the
    /// head, the weights of the layers from the last to the first, and what is only known at its end.
    pub fn trained_in_backward_order(&self) -> Vec<&Param> {
        let of_linears = self.layers.iter().rev().flat_map(|layer| {
            layer.linears().into_iter().flat_map(|Linear { weight, lora, .. }| {
                std::iter::once(weight).chain(lora.iter().flat_map(|Lora { a, b, .. }| [a, b]))
            })
        });
        let mut ordered: Vec<&Param> = self.lm_head.iter().chain(of_linears).collect();
        let known: BTreeSet<&str> = ordered.iter().map(|param| param.name()).collect();
        let mut others = Vec::new();
        self.visit(&mut |param| {
            if !known.contains(param.name()) {
                others.push(param);
            }
        });
        // The embedding is visited first, so it is the last one.
        ordered.extend(others.into_iter().rev());
        ordered.retain(|param| param.is_trainable());
        ordered
    }

    fn recomputed_gradients(
        &self,
        sequence: &PackedSequence,
        gradients: &mut Gradients,
        loss: impl FnOnce(Tensor<2>, Weight) -> Tensor<2>,
    ) -> Loss {
        let ropes = self.rope_tables(&sequence.position_ids);
        // Without a trained embedding the first layer needs no gradient of its input, as without recompute.
        let embedding_trained = self.embed_tokens.is_trainable();
        // The first pass records no graph at all.
        let frozen = self.frozen();
        let mut inputs = vec![frozen.embed(&sequence.input_ids)];
        for layer in &frozen.layers {
            let x = inputs.last().expect("starts with the embedding").clone();
            inputs.push(layer.forward(x, sequence, &ropes).sum());
        }
        drop(frozen);

        let x = inputs.pop().expect("one more than there are layers").autodiff().require_grad();
        let loss = loss(self.final_norm(x.clone()), self.head());
        let mut backward = loss.backward();
        let mut dy = x.grad_remove(&mut backward).expect("the loss depends on the last layer");
        self.norm.visit(&mut |param| gradients.take_sum(param, &mut backward));
        // The gradient of a tied table does not contain the embedding's part yet.
        self.lm_head.iter().for_each(|head| gradients.take_sum(head, &mut backward));
        drop(backward);

        // Below the first layer with a trained parameter nothing needs a gradient.
        let first_trained = self.layers.iter().position(is_trained).unwrap_or(self.layers.len());
        for (i, layer) in self.layers.iter().enumerate().rev() {
            if i < first_trained && !embedding_trained {
                break;
            }
            let x = inputs.pop().expect("an input for each layer").autodiff();
            let wants_input_gradient = i > first_trained || embedding_trained;
            let x = if wants_input_gradient { x.require_grad() } else { x };
            let y = layer.forward(x.clone(), sequence, &ropes).sum();
            let mut backward = seed_gradient(y, dy.clone()).backward();
            layer.visit(&mut |param| gradients.take_sum(param, &mut backward));
            if wants_input_gradient {
                dy = x.grad_remove(&mut backward).expect("a layer depends on its input");
            }
        }
        if embedding_trained {
            let mut backward = seed_gradient(self.embed(&sequence.input_ids), dy).backward();
            gradients.take_sum(&self.embed_tokens, &mut backward);
        }
        Loss::new(loss)
    }

    /// Continues one example by `n` tokens: returns their hidden states `[n, H]` after the final norm and
    /// updates `cache`.
    pub fn continue_from(&self, input_ids: &[u32], cache: &mut Cache) -> Tensor<2> {
        self.continue_batch(&mut [Continued { input_ids, cache }], Rows::InBlocks)
    }

    /// Continues examples; returns the hidden states `[rows, H]` of all their new tokens after the final
    /// norm, in order, and updates their caches.
    pub(crate) fn continue_batch(&self, batch: &mut [Continued<'_>], computed: Rows) -> Tensor<2> {
        let (mut ids, mut positions) = (Vec::new(), Vec::new());
        for Continued { input_ids, cache } in &*batch {
            ids.extend_from_slice(input_ids);
            positions.extend((0..input_ids.len()).map(|i| (cache.len() + i) as u32));
        }
        let ropes = self.rope_tables(&positions);
        let mut residual = Residual::from(self.embed(&ids[..].into()));
        for (i, layer) in self.layers.iter().enumerate() {
            let caches =
                batch.iter_mut().map(|c| (c.input_ids.len(), &mut c.cache.layers_mut()[i])).collect();
            residual = layer.continue_batch(residual, &ropes, caches, computed);
        }
        for Continued { input_ids, cache } in batch {
            cache.advance(input_ids.len());
        }
        self.final_norm(residual)
    }

    /// Returns an empty cache for [`Self::continue_from`].
    pub fn empty_cache(&self) -> Cache {
        Cache::new(self.layers.iter().map(|layer| layer.empty_cache(&self.device)).collect())
    }

    /// Calls `f` for every parameter, including adapters, in the order of the forward pass.
    pub fn visit<'a>(&'a self, f: &mut dyn FnMut(&'a Param)) {
        Module::visit(self, f);
    }

    /// Like [`visit`](Self::visit), with mutable references.
    pub fn visit_mut(&mut self, f: &mut dyn FnMut(&mut Param)) {
        Module::visit_mut(self, f);
    }

    /// Returns the linear layers in the order of the forward pass. All of them can have an adapter.
    pub fn linears(&self) -> Vec<&Linear> {
        Module::linears(self)
    }

    /// Like [`linears`](Self::linears), with mutable references.
    pub fn linears_mut(&mut self) -> Vec<&mut Linear> {
        Module::linears_mut(self)
    }

    /// Makes every parameter of the text model trainable, or none.
    pub fn set_trainable(&mut self, trainable: bool) {
        Module::set_trainable(self, trainable);
    }

    /// Returns a copy that shares the numbers and whose linear layers round the operands of their products to
    /// e4m3 on CUDA devices, which is faster and not lossless. Embedding, head, norms, mixers and the
    /// gradients of parameters are not affected.
    pub fn with_fp8(&self) -> Self {
        let mut copy = self.clone();
        copy.linears_mut().into_iter().for_each(|linear| linear.fp8 = true);
        copy
    }

    /// Returns a copy that shares the numbers and sets this share of the adapters' inputs to 0, at random.
    /// The mask of an adapter depends on `key` and on its layer; within it, on the row of the packed sequence
    /// and on the column. The forward pass and its recomputation have the same.
    pub fn with_dropout(&self, share: f64, key: u64) -> Self {
        let mut copy = self.clone();
        for linear in copy.linears_mut() {
            let key = mix(key ^ hash_of(linear.path()));
            if let Some(lora) = &mut linear.lora {
                lora.mask = Some(Dropout::new(share, key));
            }
        }
        copy
    }

    /// Returns a copy that shares the numbers and computes no gradients.
    pub fn frozen(&self) -> Self {
        let mut copy = self.clone();
        copy.set_trainable(false);
        copy
    }
}
