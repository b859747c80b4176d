//! The multi-token-prediction head: one more decoder layer that predicts the token after next (QWEN35_SPEC 2.7).

use crate::attention::norm;
use crate::cache::LayerCache;
use crate::layer::DecoderLayer;
use crate::{Checkpoint, Gradients, Linear, Loss, Model, ModelError, Param, Row};
use burn::tensor::{Device, Tensor};
use sparktune_kernels::Table;
use sparktune_kernels::embedding::embedding;
use sparktune_kernels::linear_cross_entropy::{Targets, linear_cross_entropy};
use sparktune_plan::model_config::LayerType;

/// The head; it borrows embedding and output head of its [`Model`].
#[derive(Clone, Debug)]
pub struct Mtp {
    fc: Linear,
    pre_fc_norm_embedding: Param,
    pre_fc_norm_hidden: Param,
    layer: DecoderLayer,
    norm: Param,
}

/// The inputs `(h_i, token i+1)` and targets `token i+2` of a packed row; no pair and no target crosses a border.
struct Pairs {
    /// `i` of each pair.
    hidden_rows: Table,
    row: Row,
    targets: Targets,
}

impl Pairs {
    fn new(row: &Row) -> Self {
        let (mut hidden_rows, mut next_ids, mut borders) = (Vec::new(), Vec::new(), vec![0]);
        let (mut target_rows, mut target_tokens) = (Vec::new(), Vec::new());
        for border in row.cu_seqlens.windows(2) {
            let end = border[1] as usize;
            for i in border[0] as usize..end.saturating_sub(1) {
                if i + 2 < end && row.loss_mask[i + 2] {
                    target_rows.push(hidden_rows.len() as u32);
                    target_tokens.push(row.input_ids[i + 2]);
                }
                hidden_rows.push(i as u32);
                next_ids.push(row.input_ids[i + 1]);
            }
            borders.push(hidden_rows.len() as u32);
        }
        borders.dedup();
        let mask = vec![false; next_ids.len()];
        Self {
            hidden_rows: hidden_rows.into(),
            row: Row::new(&next_ids, &borders, &mask),
            targets: Targets { rows: target_rows.into(), tokens: target_tokens.into() },
        }
    }
}

impl Mtp {
    /// How many targets a row has for this head.
    pub fn target_tokens(row: &Row) -> usize {
        Pairs::new(row).targets.rows.len()
    }

    /// Loads `mtp.*` of a checkpoint.
    ///
    /// # Errors
    /// When a tensor is missing or has another shape or type than the config calls for.
    pub fn load(checkpoint: &Checkpoint, device: &Device) -> Result<Self, ModelError> {
        let config = checkpoint.config();
        let h = config.hidden_size;
        let param = |name: &str, shape: &[usize]| checkpoint.param(name, shape, device);
        Ok(Self {
            fc: Linear { weight: param("mtp.fc.weight", &[h, 2 * h])?, bias: None, lora: None },
            pre_fc_norm_embedding: param("mtp.pre_fc_norm_embedding.weight", &[h])?,
            pre_fc_norm_hidden: param("mtp.pre_fc_norm_hidden.weight", &[h])?,
            layer: DecoderLayer::load(checkpoint, config, LayerType::FullAttention, "mtp.layers.0", device)?,
            norm: param("mtp.norm.weight", &[h])?,
        })
    }

    fn join(&self, model: &Model, next_embedding: Tensor<2>, hidden: Tensor<2>) -> Tensor<2> {
        let e = norm(next_embedding, &self.pre_fc_norm_embedding, model.config());
        let n = norm(hidden, &self.pre_fc_norm_hidden, model.config());
        self.fc.forward(Tensor::cat(vec![e, n], 1))
    }

    fn forward(&self, model: &Model, hidden: Tensor<2>, pairs: &Pairs) -> Tensor<2> {
        // Picking rows is what an embedding does.
        let hidden = embedding(hidden, &pairs.hidden_rows);
        let x = self.join(model, model.embed(&pairs.row.input_ids), hidden);
        let table = model.rope_table(&pairs.row);
        let [normed, _] =
            self.layer.forward(x, &pairs.row, &table, model.config()).norm(&self.norm, model.config());
        normed
    }

    /// The head's own hidden states `[pairs, H]` for a row's final hidden states `[T, H]`.
    pub fn hidden(&self, model: &Model, hidden: Tensor<2>, row: &Row) -> Tensor<2> {
        self.forward(model, hidden, &Pairs::new(row))
    }

    /// `scale · Σ losses` as a differentiable `[1, 1]`, or nothing when the row has no target for this head.
    pub fn loss(&self, model: &Model, hidden: Tensor<2>, row: &Row, scale: f64) -> Option<Tensor<2>> {
        let pairs = Pairs::new(row);
        if pairs.targets.rows.is_empty() {
            return None;
        }
        let own = self.forward(model, hidden, &pairs);
        Some(linear_cross_entropy(own, model.head(), &pairs.targets, scale))
    }

    /// The sum of the losses in nats, without gradients.
    pub fn loss_sum(&self, model: &Model, hidden: Tensor<2>, row: &Row) -> Loss {
        let mut frozen = self.clone();
        frozen.set_trainable(false);
        frozen.loss(&model.frozen(), hidden.inner(), row, 1.0).map_or(Loss::NONE, Loss::new)
    }

    /// `scale · Σ losses` with the trunk frozen; adds this head's gradients.
    pub fn loss_and_gradients(
        &self,
        model: &Model,
        hidden: Tensor<2>,
        row: &Row,
        scale: f64,
        gradients: &mut Gradients,
    ) -> Loss {
        let Some(loss) = self.loss(model, hidden.inner(), row, scale) else { return Loss::NONE };
        self.visit(&mut |param| gradients.lend(param));
        let mut backward = loss.backward();
        self.visit(&mut |param| gradients.collect(param, &mut backward));
        Loss::new(loss)
    }

    pub(crate) fn empty_cache(&self, device: &Device) -> MtpCache {
        MtpCache { layer: self.layer.empty_cache(device), length: 0 }
    }

    /// Continues one example with further pairs: hidden states `[n, H]` and the tokens after them.
    pub(crate) fn continue_from(
        &self,
        model: &Model,
        hidden: Tensor<2>,
        next_ids: &[u32],
        cache: &mut MtpCache,
    ) -> Tensor<2> {
        let x = self.join(model, model.embed(&next_ids.into()), hidden);
        let positions: Vec<u32> = (0..next_ids.len()).map(|i| (cache.length + i) as u32).collect();
        let table = model.rope_table_at(&positions);
        cache.length += next_ids.len();
        let stream = self.layer.continue_from(x, &table, model.config(), &mut cache.layer);
        let [normed, _] = stream.norm(&self.norm, model.config());
        normed
    }

    /// Every parameter of the head.
    pub fn visit<'a>(&'a self, f: &mut dyn FnMut(&'a Param)) {
        self.fc.visit(f);
        f(&self.pre_fc_norm_embedding);
        f(&self.pre_fc_norm_hidden);
        self.layer.visit(f);
        f(&self.norm);
    }

    /// As [`Self::visit`], for changes.
    pub fn visit_mut(&mut self, f: &mut dyn FnMut(&mut Param)) {
        self.fc.visit_mut(f);
        f(&mut self.pre_fc_norm_embedding);
        f(&mut self.pre_fc_norm_hidden);
        self.layer.visit_mut(f);
        f(&mut self.norm);
    }

    /// Makes the head trainable, or not.
    pub fn set_trainable(&mut self, trainable: bool) {
        self.visit_mut(&mut |param| param.set_trainable(trainable));
    }
}

/// Keys and values of the pairs the head has seen.
#[derive(Clone, Debug)]
pub(crate) struct MtpCache {
    layer: LayerCache,
    length: usize,
}
