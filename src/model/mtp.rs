//! The multi-token-prediction head: one more decoder layer that predicts the token after next (SPEC.md 2.7).
//!
//! A server drafts several tokens with it: the head's own output takes the place of the hidden state for the
//! next token. It is trained in the same way ([`Steps`]), with the true tokens instead of the drafted ones.

use burn::tensor::{Device, Tensor};
use sparktune_kernels::Table;
use sparktune_kernels::embedding::embedding;
use sparktune_kernels::linear_cross_entropy::{Targets, linear_cross_entropy};

use crate::cache::{Branches, LayerCache, Rows};
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

/// The factor between the weights of a drafted token's loss and that of the next one (FastMTP,
/// arXiv:2509.18362, equation 2; the value is that of speculators' `compute_step_weights`).
const DECAY: f64 = 0.6;

/// Returns the weights of the losses of `draft_tokens` drafted tokens: `0.6^k`, divided by their sum.
pub(crate) fn weights(draft_tokens: usize) -> Vec<f64> {
    let raw: Vec<f64> = (0..draft_tokens as i32).map(|k| DECAY.powi(k)).collect();
    let sum: f64 = raw.iter().sum();
    raw.into_iter().map(|weight| weight / sum).collect()
}

/// The inputs of the first step of a packed sequence: a pair `(h_i, token i+1)` for each token but the last
/// of each example.
pub(crate) struct Pairs {
    /// The index `i` of each pair.
    hidden_rows: Table,
    /// The tokens `i+1`.
    pub(crate) next_tokens: PackedSequence,
}

impl Pairs {
    pub(crate) fn new(sequence: &PackedSequence) -> Self {
        let (mut hidden_rows, mut next_ids, mut borders) = (Vec::new(), Vec::new(), vec![0]);
        for border in sequence.cu_seqlens.windows(2) {
            for i in border[0]..border[1].saturating_sub(1) {
                hidden_rows.push(i);
                next_ids.push(sequence.input_ids[i as usize + 1]);
            }
            borders.push(hidden_rows.len() as u32);
        }
        borders.dedup();
        let untrained = vec![false; next_ids.len()];
        Self {
            hidden_rows: hidden_rows.into(),
            next_tokens: PackedSequence::new(&next_ids, &borders, &untrained),
        }
    }
}

/// The steps in which the head learns to draft, for one packed sequence. Step `k` has the same rows as the
/// first: row `i` gets the head's output of the step before and the token `i+1+k`, and its target is the
/// token `i+2+k`.
///
/// No input and no target crosses a boundary between examples. The last `k` rows of an example have no such
/// token: they get its last one, have no target, and no earlier row attends to them. The positions are those
/// of the first step, because only the distances between them count.
struct Steps {
    pairs: Pairs,
    /// The input tokens and the targets of each step; only steps that have a target.
    each: Vec<(Table, Targets)>,
}

impl Steps {
    fn new(sequence: &PackedSequence, draft_tokens: usize) -> Self {
        let pairs = Pairs::new(sequence);
        let each = (0..draft_tokens).map(|k| Self::step(sequence, &pairs, k));
        // A target of one step is also one of the steps before it.
        let each = each.take_while(|(_, targets)| !targets.rows.is_empty()).collect();
        Self { pairs, each }
    }

    fn step(sequence: &PackedSequence, pairs: &Pairs, k: usize) -> (Table, Targets) {
        let (mut ids, mut target_rows, mut target_tokens) = (Vec::new(), Vec::new(), Vec::new());
        for border in sequence.cu_seqlens.windows(2) {
            let end = border[1] as usize;
            for i in border[0] as usize..end.saturating_sub(1) {
                let target = i + 2 + k;
                if target < end && sequence.loss_mask[target] {
                    target_rows.push(ids.len() as u32);
                    target_tokens.push(sequence.input_ids[target]);
                }
                ids.push(sequence.input_ids[(target - 1).min(end - 1)]);
            }
        }
        debug_assert_eq!(ids.len(), pairs.hidden_rows.len());
        (ids.into(), Targets { rows: target_rows.into(), tokens: target_tokens.into() })
    }
}

impl Mtp {
    /// Returns the number of targets that a sequence has for the first token that this head drafts.
    pub fn target_tokens(sequence: &PackedSequence) -> usize {
        Self::targets_of_drafts(sequence, 1)[0]
    }

    /// Returns the number of targets that a sequence has for each of `draft_tokens` drafted tokens.
    pub fn targets_of_drafts(sequence: &PackedSequence, draft_tokens: usize) -> Vec<usize> {
        let steps = Steps::new(sequence, draft_tokens);
        let counts = steps.each.iter().map(|(_, targets)| targets.rows.len());
        counts.chain(std::iter::repeat(0)).take(draft_tokens).collect()
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
            fc: Linear::new(checkpoint.weight(&spec.projection.clone().below("mtp"), device)?),
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
        self.run_layer(self.join(next_embedding, hidden), pairs, ropes)
    }

    fn run_layer(&self, x: Tensor<2>, pairs: &Pairs, ropes: &RopeTables) -> Tensor<2> {
        let [normed, _] = self.layer.forward(x, &pairs.next_tokens, ropes).normed(&self.norm);
        normed
    }

    /// Returns the head's own hidden states `[pairs, H]` for a sequence's final hidden states `[T, H]`.
    pub fn hidden(&self, model: &Model, hidden: Tensor<2>, sequence: &PackedSequence) -> Tensor<2> {
        let pairs = Pairs::new(sequence);
        let next = &pairs.next_tokens;
        self.forward(model.embed(&next.input_ids), hidden, &pairs, &model.rope_tables(&next.position_ids))
    }

    /// Returns the output of one step of one example, `[n, H]`, for rows with these tokens and positions.
    #[cfg(test)]
    pub(crate) fn step_of_one_example(
        &self,
        model: &Model,
        hidden: Tensor<2>,
        next_ids: &[u32],
        positions: &[u32],
    ) -> Tensor<2> {
        let rows = hidden.dims()[0] as u32;
        let pairs = Pairs {
            hidden_rows: (0..rows).collect(),
            next_tokens: PackedSequence::new(next_ids, &[0, rows], &vec![false; rows as usize]),
        };
        self.forward(model.embed(&next_ids.into()), hidden, &pairs, &model.rope_tables(positions))
    }

    /// Returns the sums of the losses of the drafted tokens as differentiable `[1, 1]`, each with its targets
    /// multiplied by the factor that `scale` returns for it. A drafted token without a target has no sum.
    fn losses(
        &self,
        model: &Model,
        hidden: Tensor<2>,
        sequence: &PackedSequence,
        draft_tokens: usize,
        scale: impl Fn(usize) -> f64,
    ) -> Vec<Tensor<2>> {
        let Steps { pairs, each } = Steps::new(sequence, draft_tokens);
        let ropes = model.rope_tables(&pairs.next_tokens.position_ids);
        let (mut losses, mut own): (_, Option<Tensor<2>>) = (Vec::new(), None);
        for (k, (input_ids, targets)) in each.iter().enumerate() {
            let embedded = model.embed(input_ids);
            let output = match own {
                None => self.forward(embedded, hidden.clone(), &pairs, &ropes),
                Some(own) => self.run_layer(self.join(embedded, own), &pairs, &ropes),
            };
            losses.push(linear_cross_entropy(output.clone(), model.head(), targets, scale(k)));
            own = Some(output);
        }
        losses
    }

    /// Returns `scale · Σ losses` as a differentiable `[1, 1]`, or `None` when the sequence has no target for
    /// this head. For `draft_tokens` see [`loss_and_gradients`](Self::loss_and_gradients).
    pub fn loss(
        &self,
        model: &Model,
        hidden: Tensor<2>,
        sequence: &PackedSequence,
        draft_tokens: usize,
        scale: f64,
    ) -> Option<Tensor<2>> {
        let weights = weights(draft_tokens);
        let losses = self.losses(model, hidden, sequence, draft_tokens, |k| scale * weights[k]);
        losses.into_iter().reduce(|sum, loss| sum + loss)
    }

    /// Returns the sums of the losses of `draft_tokens` drafted tokens in nats, each without a weight and
    /// without gradients.
    pub fn loss_sums(
        &self,
        model: &Model,
        hidden: Tensor<2>,
        sequence: &PackedSequence,
        draft_tokens: usize,
    ) -> Vec<Loss> {
        let mut frozen = self.clone();
        frozen.set_trainable(false);
        let losses = frozen.losses(&model.frozen(), hidden.inner(), sequence, draft_tokens, |_| 1.0);
        let none = std::iter::repeat_with(|| Loss::NONE);
        losses.into_iter().map(Loss::new).chain(none).take(draft_tokens).collect()
    }

    /// Returns the mean of the losses of drafted tokens: their means `sum / targets`, weighted as in
    /// training.
    pub fn weighted_mean(means: &[f64]) -> f64 {
        weights(means.len()).into_iter().zip(means).map(|(weight, mean)| weight * mean).sum()
    }

    /// Returns `scale · Σ losses` with the text model frozen, and adds the gradients of this head to
    /// `gradients`.
    ///
    /// The head drafts `draft_tokens` tokens from each position, with the true tokens as inputs and its own
    /// output in place of the hidden state from the second on. The loss of the `k`-th weighs `0.6^k`, divided
    /// by the sum of these weights; the gradient goes through all steps.
    pub fn loss_and_gradients(
        &self,
        model: &Model,
        hidden: Tensor<2>,
        sequence: &PackedSequence,
        draft_tokens: usize,
        scale: f64,
        gradients: &mut Gradients,
    ) -> Loss {
        let loss = self.loss(model, hidden.inner(), sequence, draft_tokens, scale);
        let Some(loss) = loss else { return Loss::NONE };
        self.visit(&mut |param| gradients.attach_sum(param));
        let mut backward = loss.backward();
        self.visit(&mut |param| gradients.take_sum(param, &mut backward));
        Loss::new(loss)
    }

    /// Returns the state of the head before the first pair of an example.
    pub fn empty_cache(&self, device: &Device) -> MtpCache {
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
        let [normed, _] = self
            .layer
            .continue_batch(x, &ropes, vec![(next_ids.len(), &mut cache.layer)], Rows::InBlocks)
            .normed(&self.norm);
        normed
    }

    /// Continues one example from several of its pairs at once, each on a branch of its own.
    ///
    /// Row `r` of `hidden`, `[R, H]`, and the token `next_ids[r]` follow the pair `roots[r]` of `cache` and
    /// the rows `r` of earlier calls with the same `branches`, as if they alone were added to the pairs up to
    /// the root.
    pub(crate) fn continue_branches(
        &self,
        model: &Model,
        hidden: Tensor<2>,
        next_ids: &[u32],
        cache: &MtpCache,
        roots: &[usize],
        branches: &mut Branches,
    ) -> Tensor<2> {
        let x = self.join(model.embed(&next_ids.into()), hidden);
        let depth = branches.depth();
        let positions: Vec<u32> = roots.iter().map(|root| (root + 1 + depth) as u32).collect();
        let ropes = model.rope_tables(&positions);
        let continued = self.layer.continue_branches(x, &ropes, &cache.layer, roots, branches);
        let [normed, _] = continued.normed(&self.norm);
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
pub struct MtpCache {
    layer: LayerCache,
    length: usize,
}
