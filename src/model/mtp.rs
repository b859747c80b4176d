//! The multi-token-prediction head: one more decoder layer that predicts the token after next (SPEC.md 2.7).

use burn::tensor::{Device, Tensor};
use sparktune_kernels::Table;
use sparktune_kernels::embedding::embedding;
use sparktune_kernels::linear_cross_entropy::{Targets, linear_cross_entropy};

use crate::cache::LayerCache;
use crate::checkpoint::Checkpoint;
use crate::decoder::Model;
use crate::error::ModelError;
use crate::gradients::Gradients;
use crate::layer::DecoderLayer;
use crate::layer_loader::LayerLoader;
use crate::linear::Linear;
use crate::loss::Loss;
use crate::module::{Module, module};
use crate::norm::Norm;
use crate::packed_sequence::PackedSequence;
use crate::param::Param;
use crate::rope_tables::RopeTables;

/// The head. The embedding and the output head are those of its [`Model`].
#[derive(Debug, Clone)]
pub struct Mtp {
    fc: Linear,
    pre_fc_norm_embedding: Norm,
    pre_fc_norm_hidden: Norm,
    /// On the heap, because a layer has tens of kilobytes of tensor handles, and heads are moved often.
    layer: Box<DecoderLayer>,
    norm: Norm,
}

module!(Mtp { fc, pre_fc_norm_embedding, pre_fc_norm_hidden, layer, norm });

/// The inputs `(h_i, token i+1)` and targets `token i+2` of a packed sequence. No pair and no target crosses
/// a boundary between examples.
pub(crate) struct Pairs {
    /// The index `i` of each pair.
    hidden_rows: Table,
    /// The tokens `i+1`.
    pub(crate) next_tokens: PackedSequence,
    targets: Targets,
}

impl Pairs {
    pub(crate) fn new(sequence: &PackedSequence) -> Self {
        let (mut hidden_rows, mut next_ids, mut borders) = (Vec::new(), Vec::new(), vec![0]);
        let (mut target_rows, mut target_tokens) = (Vec::new(), Vec::new());
        for border in sequence.cu_seqlens.windows(2) {
            let end = border[1] as usize;
            for i in border[0] as usize..end.saturating_sub(1) {
                if i + 2 < end && sequence.loss_mask[i + 2] {
                    target_rows.push(hidden_rows.len() as u32);
                    target_tokens.push(sequence.input_ids[i + 2]);
                }
                hidden_rows.push(i as u32);
                next_ids.push(sequence.input_ids[i + 1]);
            }
            borders.push(hidden_rows.len() as u32);
        }
        borders.dedup();
        let untrained = vec![false; next_ids.len()];
        Self {
            hidden_rows: hidden_rows.into(),
            next_tokens: PackedSequence::new(&next_ids, &borders, &untrained),
            targets: Targets { rows: target_rows.into(), tokens: target_tokens.into() },
        }
    }
}

impl Mtp {
    /// Returns the number of targets that a sequence has for this head.
    pub fn target_tokens(sequence: &PackedSequence) -> usize {
        Pairs::new(sequence).targets.rows.len()
    }

    /// Loads `mtp.*` of a checkpoint.
    ///
    /// # Errors
    /// When the family has no such head, or a tensor is missing or has another shape or type than the config
    /// calls for.
    pub fn load(checkpoint: &Checkpoint, device: &Device) -> Result<Self, ModelError> {
        let Some(spec) = &checkpoint.config().mtp else {
            let name = "mtp.fc.weight".to_owned();
            return Err(ModelError::Missing { path: checkpoint.dir().to_owned(), name });
        };
        let norm = |spec| Norm::load(checkpoint, spec, Some("mtp"), device);
        let layer = LayerLoader { checkpoint, spec: &spec.layer, path: "mtp.layers.0", device };
        Ok(Self {
            fc: Linear::new(checkpoint.param(&spec.projection.clone().below("mtp"), device)?),
            pre_fc_norm_embedding: norm(&spec.embedding_norm)?,
            pre_fc_norm_hidden: norm(&spec.hidden_norm)?,
            layer: Box::new(DecoderLayer::load(layer)?),
            norm: norm(&spec.norm)?,
        })
    }

    /// Returns the input of the layer, `[n, H]`, from the embeddings of the next tokens and the hidden
    /// states, `[n, H]` each.
    fn join(&self, next_embedding: Tensor<2>, hidden: Tensor<2>) -> Tensor<2> {
        let embedding = self.pre_fc_norm_embedding.forward(next_embedding);
        let hidden = self.pre_fc_norm_hidden.forward(hidden);
        self.fc.forward(Tensor::cat(vec![embedding, hidden], 1))
    }

    /// Returns the head's own hidden states, `[pairs, H]`, from the embeddings of the pairs' next tokens,
    /// `[pairs, H]`, and a sequence's final hidden states, `[T, H]`.
    pub(crate) fn forward(
        &self,
        next_embedding: Tensor<2>,
        hidden: Tensor<2>,
        pairs: &Pairs,
        ropes: &RopeTables,
    ) -> Tensor<2> {
        // The embedding op also selects rows.
        let hidden = embedding(hidden, &pairs.hidden_rows);
        let x = self.join(next_embedding, hidden);
        let [normed, _] = self.layer.forward(x, &pairs.next_tokens, ropes).normed(&self.norm);
        normed
    }

    fn forward_on(&self, model: &Model, hidden: Tensor<2>, pairs: &Pairs) -> Tensor<2> {
        let next = &pairs.next_tokens;
        self.forward(model.embed(&next.input_ids), hidden, pairs, &model.rope_tables(&next.position_ids))
    }

    /// Returns the head's own hidden states `[pairs, H]` for a sequence's final hidden states `[T, H]`.
    pub fn hidden(&self, model: &Model, hidden: Tensor<2>, sequence: &PackedSequence) -> Tensor<2> {
        self.forward_on(model, hidden, &Pairs::new(sequence))
    }

    /// Returns `scale · Σ losses` as a differentiable `[1, 1]`, or `None` when the sequence has no target for
    /// this head.
    pub fn loss(
        &self,
        model: &Model,
        hidden: Tensor<2>,
        sequence: &PackedSequence,
        scale: f64,
    ) -> Option<Tensor<2>> {
        let pairs = Pairs::new(sequence);
        if pairs.targets.rows.is_empty() {
            return None;
        }
        let own = self.forward_on(model, hidden, &pairs);
        Some(linear_cross_entropy(own, model.head(), &pairs.targets, scale))
    }

    /// Returns the sum of the losses in nats, without gradients.
    pub fn loss_sum(&self, model: &Model, hidden: Tensor<2>, sequence: &PackedSequence) -> Loss {
        let mut frozen = self.clone();
        frozen.set_trainable(false);
        frozen.loss(&model.frozen(), hidden.inner(), sequence, 1.0).map_or(Loss::NONE, Loss::new)
    }

    /// Returns `scale · Σ losses` with the text model frozen, and adds the gradients of this head to
    /// `gradients`.
    pub fn loss_and_gradients(
        &self,
        model: &Model,
        hidden: Tensor<2>,
        sequence: &PackedSequence,
        scale: f64,
        gradients: &mut Gradients,
    ) -> Loss {
        let Some(loss) = self.loss(model, hidden.inner(), sequence, scale) else { return Loss::NONE };
        self.visit(&mut |param| gradients.attach_sum(param));
        let mut backward = loss.backward();
        self.visit(&mut |param| gradients.take_sum(param, &mut backward));
        Loss::new(loss)
    }

    pub(crate) fn empty_cache(&self, device: &Device) -> MtpCache {
        MtpCache { layer: self.layer.empty_cache(device), length: 0 }
    }

    /// Continues one example by `n` pairs of a hidden state, `[n, H]`, and the token after it.
    pub(crate) fn continue_from(
        &self,
        model: &Model,
        hidden: Tensor<2>,
        next_ids: &[u32],
        cache: &mut MtpCache,
    ) -> Tensor<2> {
        let x = self.join(model.embed(&next_ids.into()), hidden);
        let positions: Vec<u32> = (0..next_ids.len()).map(|i| (cache.length + i) as u32).collect();
        let ropes = model.rope_tables(&positions);
        cache.length += next_ids.len();
        let [normed, _] = self.layer.continue_from(x, &ropes, &mut cache.layer).normed(&self.norm);
        normed
    }

    /// Calls `f` for every parameter of the head, in the order of the forward pass.
    pub fn visit<'a>(&'a self, f: &mut dyn FnMut(&'a Param)) {
        Module::visit(self, f);
    }

    /// Like [`visit`](Self::visit), with mutable references.
    pub fn visit_mut(&mut self, f: &mut dyn FnMut(&mut Param)) {
        Module::visit_mut(self, f);
    }

    /// Makes the head trainable or freezes it.
    pub fn set_trainable(&mut self, trainable: bool) {
        Module::set_trainable(self, trainable);
    }
}

/// The head's state after the pairs so far.
#[derive(Debug, Clone)]
pub(crate) struct MtpCache {
    layer: LayerCache,
    length: usize,
}
