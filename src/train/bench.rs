//! Training speed and peak memory on a model of a given config with random weights.

use crate::TrainError;
use crate::optimizer::Optimizer;
use burn::tensor::Device;
use sparktune_model::{Checkpoint, Gradients, LoraConfig, Loss, Model, Row};
use sparktune_plan::{ModelConfig, OptimizerPlan};
use std::time::Instant;

/// Speed of whole optimizer steps.
#[derive(Clone, Debug, serde::Serialize)]
pub struct TrainingRate {
    /// Tokens per second: median over the measured steps.
    pub tokens_per_s: f64,
    /// Median wall time of a step, seconds.
    pub step_s: f64,
    /// Loss of the first and the last step, nats.
    pub loss_nats: (f64, f64),
    /// Highest resident memory of this process so far, bytes.
    pub peak_rss_bytes: Option<u64>,
}

/// Trains `steps` optimizer steps (forward, backward, clipping, AdamW) on one row of `tokens` random tokens on the CPU, after two
/// unmeasured ones. `rank` chooses LoRA on all linears with `alpha = 2 · rank`; without it every parameter is trained.
///
/// # Errors
/// When a parameter gets no gradient.
pub fn training(
    config: ModelConfig,
    tokens: usize,
    steps: usize,
    rank: Option<usize>,
) -> Result<TrainingRate, TrainError> {
    let model = Model::load(&Checkpoint::random(config, 0), &Device::flex(), &mut |_, _| ())?;
    let row = Row::single(&random_ids(1, tokens, model.config().vocab_size));
    let mut training = Training::new(model, rank, SETTINGS);
    let (mut times, mut losses) = (Vec::new(), Vec::new());
    for step in 0..steps + 2 {
        let started = Instant::now();
        losses.push(training.step(&row)?.nats());
        if step >= 2 {
            times.push(started.elapsed().as_secs_f64());
        }
    }
    let step_s = median(times);
    Ok(TrainingRate {
        tokens_per_s: tokens as f64 / step_s,
        step_s,
        loss_nats: (losses[0], losses[losses.len() - 1]),
        peak_rss_bytes: sparktune_telemetry::peak_rss_bytes(),
    })
}

pub(crate) const SETTINGS: OptimizerPlan = OptimizerPlan {
    learning_rate: 1e-4,
    min_lr_ratio: 0.1,
    warmup_ratio: 0.0,
    beta1: 0.9,
    beta2: 0.95,
    eps: 1e-8,
    weight_decay: 0.01,
    clip_norm: 1.0,
};

/// A model in training.
pub(crate) struct Training {
    pub(crate) model: Model,
    /// Layers are computed again in the backward pass.
    pub(crate) recompute: bool,
    settings: OptimizerPlan,
    optimizer: Optimizer,
    steps: u64,
}

impl Training {
    /// `rank` as for [`training`].
    pub(crate) fn new(mut model: Model, rank: Option<usize>, settings: OptimizerPlan) -> Self {
        match rank {
            Some(rank) => model.attach_lora(LoraConfig { rank, alpha: 2.0 * rank as f64, rslora: false }, 0),
            None => model.set_trainable(true),
        }
        Self { model, recompute: false, settings, optimizer: Optimizer::default(), steps: 0 }
    }

    /// The mean loss of a row and its gradients; neither may be known yet when this returns.
    pub(crate) fn loss_and_gradients(&self, row: &Row) -> (Loss, Gradients) {
        let mut gradients = Gradients::default();
        let scale = 1.0 / row.target_tokens() as f64;
        (self.model.loss_and_gradients(row, scale, self.recompute, &mut gradients), gradients)
    }

    /// One optimizer step on one row; its loss may not be known yet when this returns.
    pub(crate) fn step(&mut self, row: &Row) -> Result<Loss, TrainError> {
        let (loss, gradients) = self.loss_and_gradients(row);
        self.steps += 1;
        let Self { model, settings, .. } = self;
        self.optimizer
            .step(settings, settings.learning_rate, self.steps, gradients, &mut |f| model.visit_mut(f))?;
        Ok(loss)
    }
}

pub(crate) fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

/// Tokens by splitmix64.
pub(crate) fn random_ids(seed: u64, count: usize, vocabulary: usize) -> Vec<u32> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (state ^ (state >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    };
    (0..count).map(|_| (next() % vocabulary as u64) as u32).collect()
}
