//! Training speed and peak memory on a model of a given config with random weights.

use crate::TrainError;
use crate::optimizer::Optimizer;
use burn::tensor::Device;
use sparktune_model::{Checkpoint, Gradients, LoraConfig, Model, Row};
use sparktune_plan::{ModelConfig, OptimizerPlan};
use std::path::Path;
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

/// Trains `steps` optimizer steps (forward, backward, clipping, AdamW) on one row of `tokens` random tokens, after two
/// unmeasured ones. `rank` chooses LoRA on all linears with `alpha = 2 · rank`; without it every parameter is trained.
///
/// # Errors
/// When `folder` cannot hold the random checkpoint, which is written there and removed by the caller.
pub fn training(
    folder: &Path,
    config_json: &str,
    tokens: usize,
    steps: usize,
    rank: Option<usize>,
) -> Result<TrainingRate, TrainError> {
    write_random_checkpoint(folder, config_json)?;
    let checkpoint = Checkpoint::open(folder)?;
    let mut model = Model::load(&checkpoint, &Device::flex(), &mut |_, _| ())?;
    drop(checkpoint);
    match rank {
        Some(rank) => model.attach_lora(LoraConfig { rank, alpha: 2.0 * rank as f64, rslora: false }, 0),
        None => model.set_trainable(true),
    }
    let mut random = Random(1);
    let vocabulary = model.config().vocab_size as u64;
    let ids: Vec<u32> = (0..tokens).map(|_| (random.next() % vocabulary) as u32).collect();
    let row = Row::single(&ids);
    let settings = OptimizerPlan {
        learning_rate: 1e-4,
        min_lr_ratio: 0.1,
        warmup_ratio: 0.0,
        beta1: 0.9,
        beta2: 0.95,
        eps: 1e-8,
        weight_decay: 0.01,
        clip_norm: 1.0,
    };
    let mut optimizer = Optimizer::default();
    let (mut times, mut losses) = (Vec::new(), Vec::new());
    for step in 1..=steps as u64 + 2 {
        let started = Instant::now();
        let mut gradients = Gradients::default();
        let scale = 1.0 / row.target_tokens() as f64;
        losses.push(model.loss_and_gradients(&row, scale, false, &mut gradients));
        optimizer.step(&settings, settings.learning_rate, step, gradients, &mut |f| model.visit_mut(f))?;
        if step > 2 {
            times.push(started.elapsed().as_secs_f64());
        }
    }
    times.sort_by(f64::total_cmp);
    let step_s = times[times.len() / 2];
    Ok(TrainingRate {
        tokens_per_s: tokens as f64 / step_s,
        step_s,
        loss_nats: (losses[0].nats(), losses[losses.len() - 1].nats()),
        peak_rss_bytes: sparktune_telemetry::peak_rss_bytes(),
    })
}

/// A checkpoint with the config's shapes and small random weights, in the text-only layout.
fn write_random_checkpoint(folder: &Path, config_json: &str) -> Result<(), TrainError> {
    let path = folder.join("config.json");
    std::fs::write(&path, config_json).map_err(TrainError::io(&path))?;
    let config = ModelConfig::from_json(config_json)
        .map_err(|source| sparktune_model::ModelError::Config { path: path.clone(), source })?;
    let mut shapes: Vec<(String, Vec<usize>)> = vec![
        ("model.embed_tokens.weight".into(), vec![config.vocab_size, config.hidden_size]),
        ("model.norm.weight".into(), vec![config.hidden_size]),
    ];
    if !config.tie_word_embeddings {
        shapes.push(("lm_head.weight".into(), vec![config.vocab_size, config.hidden_size]));
    }
    for (i, layer) in config.layer_types.iter().enumerate() {
        let mut add =
            |name: &str, shape: Vec<usize>| shapes.push((format!("model.layers.{i}.{name}"), shape));
        add("input_layernorm.weight", vec![config.hidden_size]);
        add("post_attention_layernorm.weight", vec![config.hidden_size]);
        let linears = config.linears(*layer);
        for (name, out, input) in &linears {
            add(&format!("{name}.weight"), vec![*out, *input]);
        }
        match &config.linear_attention {
            Some(linear) if linears[0].0.starts_with("linear_attn") => {
                add("linear_attn.conv1d.weight", vec![linear.conv_dim(), 1, linear.conv_kernel_dim]);
                add("linear_attn.A_log", vec![linear.num_value_heads]);
                add("linear_attn.dt_bias", vec![linear.num_value_heads]);
                add("linear_attn.norm.weight", vec![linear.value_head_dim]);
            }
            _ if config.has_qk_norm() => {
                add("self_attn.q_norm.weight", vec![config.head_dim]);
                add("self_attn.k_norm.weight", vec![config.head_dim]);
            }
            _ => {}
        }
    }
    let mut random = Random(0);
    let tensors: Vec<(String, Vec<usize>, Vec<u8>)> = shapes
        .into_iter()
        .map(|(name, shape)| {
            let count = shape.iter().product();
            let bytes = (0..count).flat_map(|_| (random.centred() * 0.07).to_le_bytes()).collect();
            (name, shape, bytes)
        })
        .collect();
    let views = tensors.iter().map(|(name, shape, bytes)| {
        let view = safetensors::tensor::TensorView::new(safetensors::Dtype::F32, shape.clone(), bytes);
        (name.clone(), view.expect("bytes were made for the shape"))
    });
    let path = folder.join("model.safetensors");
    safetensors::serialize_to_file(views, None, &path)
        .map_err(|e| TrainError::Io { path: path.clone(), source: std::io::Error::other(e) })
}

/// splitmix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// Uniform in (-0.5, 0.5).
    fn centred(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1u64 << 24) as f32 - 0.5
    }
}
