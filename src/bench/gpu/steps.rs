//! Measures whole training steps: their losses compared with the CPU's, their speed, and their memory.

use std::sync::LazyLock;
use std::time::Instant;

use burn::tensor::Device;
use serde_json::json;
use sparktune_kernels::cublaslt::{products, version_in_words};
use sparktune_kernels::linear::tuning::{
    begin_deciding, by_library, decide_as, listen, missed, settle_decisions, use_library,
};
use sparktune_kernels::measuring::launches;
use sparktune_kernels::reserved_bytes;
use sparktune_model::{Checkpoint, Gradients, LoraConfig, Loss, Model, PackedSequence as Tokens};
use sparktune_plan::cost::{Treatment, Work};
use sparktune_plan::memory::{Footprint, Memory, estimate};
use sparktune_plan::products::RANK;
use sparktune_plan::{
    Device as Kind, MachineFacts, MethodKind, ModelConfig, ModelFacts, OptimizerPlan, TargetModules,
};
use sparktune_train::TrainError;
use sparktune_train::stepper::Stepper;

use super::watch::watched;
use super::{Bench, Row, row, sized, with};
use crate::median::median;
use crate::model::random_ids;

const METHODS: [MethodKind; 2] = [MethodKind::Lora, MethodKind::Full];
/// The number of steps before the timed ones, and below it of the timed ones.
const WARM_UP: usize = 2;
const TIMED: usize = 5;

/// What a step trains on: new random tokens each time, one document a pack.
#[derive(Debug, Clone, Copy)]
pub(super) struct Load {
    /// Tokens of a pack.
    pub(super) pack: usize,
    /// Packs of a step, one after the other.
    pub(super) packs: usize,
    /// The first tokens of a pack, which are no targets.
    pub(super) prompt: usize,
}

impl Load {
    /// One pack of this length, in which every token is a target.
    pub(super) fn of(pack: usize) -> Self {
        Self { pack, packs: 1, prompt: 0 }
    }

    fn tokens(&self) -> usize {
        self.pack * self.packs
    }

    /// Returns the packs of the step with this number.
    fn rows(&self, step: u64, vocabulary: usize) -> Vec<Tokens> {
        let row = |place: usize| {
            let ids = random_ids(step * self.packs as u64 + place as u64, self.pack, vocabulary);
            let is_target: Vec<bool> = (0..self.pack).map(|i| i >= self.prompt).collect();
            Tokens::new(&ids, &[0, self.pack as u32], &is_target)
        };
        (0..self.packs).map(row).collect()
    }
}

/// The settings of the optimizer.
pub(super) const SETTINGS: OptimizerPlan = OptimizerPlan {
    learning_rate: 1e-4,
    min_lr_ratio: 0.1,
    warmup_ratio: 0.0,
    beta1: 0.9,
    beta2: 0.95,
    eps: 1e-8,
    weight_decay: 0.01,
    clip_norm: 1.0,
};

/// A small Qwen3.5 with every kind of layer, and heads as wide as those of the large ones. Its weights have
/// more digits than bf16; with bf16 numbers, rounding would undo a small step.
pub(super) const SMALL: &str = r#"{
    "model_type": "qwen3_5_text", "dtype": "float32", "vocab_size": 4096, "hidden_size": 256, "intermediate_size": 512,
    "num_hidden_layers": 4, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 256,
    "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 128, "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4, "rms_norm_eps": 1e-6, "tie_word_embeddings": true, "max_position_embeddings": 8192,
    "full_attention_interval": 4, "hidden_act": "silu",
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000000, "partial_rotary_factor": 0.25}
}"#;

fn small_config() -> ModelConfig {
    ModelConfig::from_json(SMALL).expect("a config that is read in a test")
}

/// The smallest config that the kernels support, with the same kinds of layers.
pub(super) static TINY: LazyLock<String> = LazyLock::new(|| {
    let smaller = [
        ("\"vocab_size\": 4096", "\"vocab_size\": 160"),
        (
            "\"hidden_size\": 256, \"intermediate_size\": 512",
            "\"hidden_size\": 48, \"intermediate_size\": 72",
        ),
        ("\"head_dim\": 256", "\"head_dim\": 64"),
        ("_head_dim\": 128", "_head_dim\": 16"),
    ];
    smaller.iter().fold(SMALL.to_owned(), |text, (from, to)| text.replace(from, to))
});

pub(super) fn tiny_config() -> ModelConfig {
    ModelConfig::from_json(&TINY).expect("a config that is read in a test")
}

/// Losses of training steps on the device and on the CPU, which the tests hold against transformers: LoRA and
/// full. The CPU's has to fall by so much that it can be followed, and so little that the error of a gradient
/// does not show.
pub(super) fn curves(bench: &mut Bench) {
    let (config, tokens, steps, right) =
        if bench.is_tiny { (tiny_config(), 72, 3, 0.0..1.0) } else { (small_config(), 768, 30, 0.01..0.05) };
    let device = bench.device.clone();
    for method in METHODS {
        let name = format!("{} layers of {}, {method}", config.layers.len(), config.hidden_size);
        let head = row(json!({"name": name, "method": method.to_string(), "pack": tokens}));
        bench.measure(head.clone(), || {
            let curve = |device: &Device| in_words(curve(&config, device, method, tokens, steps));
            let both = curve(&Device::flex()).and_then(|expected| {
                let learnt = 1.0 - expected[steps - 1] / expected[0];
                if right.contains(&learnt) {
                    Ok((curve(&device)?, expected))
                } else {
                    Err(format!("the CPU's loss falls by {:.2} %, so it cannot be followed", 100.0 * learnt))
                }
            });
            vec![match both {
                Ok((found, expected)) => {
                    let (first, last) = (expected[0], expected[steps - 1]);
                    let note = format!("from {first:.3} to {last:.3} nats in {steps} steps");
                    with(with(with(head, "curve", found), "reference_curve", expected), "note", note)
                }
                Err(why) => with(head, "failed", why),
            }]
        });
    }
}

fn in_words<T>(result: Result<T, TrainError>) -> Result<T, String> {
    result.map_err(|error| error.to_string())
}

/// Returns `steps` losses in nats, on one row of three examples.
fn curve(
    config: &ModelConfig,
    device: &Device,
    method: MethodKind,
    tokens: usize,
    steps: usize,
) -> Result<Vec<f64>, TrainError> {
    let model = Model::load(&Checkpoint::random(config.clone(), 7), device, &mut |_, _| ())?;
    let ids = random_ids(1, tokens, config.vocab_size);
    let borders = [0, tokens / 3, tokens / 3 + 5, tokens].map(|border| border as u32);
    let row = Tokens::new(&ids, &borders, &ids.iter().map(|id| id % 4 > 0).collect::<Vec<_>>());
    let (rank, learning_rate) = match method {
        MethodKind::Lora => (Some(16), 5e-4),
        MethodKind::Full => (None, 6e-5),
    };
    // A large epsilon, so that a step follows the gradient. With the usual one the first steps follow only
    // its sign, even where it is smaller than bf16's noise.
    let settings = OptimizerPlan { learning_rate, eps: 1e-2, ..SETTINGS };
    let mut stepper = Stepper::from_model(prepared(model, rank), settings, false);
    (0..steps).map(|_| loss(&mut stepper, &row, learning_rate)).collect()
}

/// Makes adapters of this rank trainable, with `alpha = 2 · rank`, or every parameter if there is no rank.
pub(super) fn prepared(mut model: Model, rank: Option<usize>) -> Model {
    match rank {
        Some(rank) => {
            let alpha = 2.0 * rank as f64;
            model.attach_lora(LoraConfig { clipped: true, ..LoraConfig::new(rank, alpha) }, 0);
        }
        None => model.set_trainable(true),
    }
    model
}

/// Takes one optimizer step on one pack and returns its loss in nats.
fn loss(stepper: &mut Stepper, row: &Tokens, learning_rate: f64) -> Result<f64, TrainError> {
    let losses = stepper.step(std::slice::from_ref(row), learning_rate)?;
    Ok(losses.iter().map(Loss::nats).sum())
}

/// Measures speed, memory and parts of the steps of randomly initialised models of these sizes, each with the
/// load that `load` returns for it.
pub(super) fn speeds(
    bench: &mut Bench,
    machine: &MachineFacts,
    sizes: &[&'static str],
    load: impl Fn(&str) -> Load,
) {
    let (sizes, rank) = if bench.is_tiny { (vec![("tiny", tiny_config())], 8) } else { (sized(sizes), RANK) };
    for (size, config) in sizes {
        let load = if bench.is_tiny { Load { pack: 72, ..load(size) } } else { load(size) };
        let library = bench.library();
        // Loaded once for both methods.
        let mut loaded = None;
        for method in METHODS {
            let rank = if method == MethodKind::Lora { rank } else { 0 };
            let plan = Planned::new(&config, machine, method, rank, load.pack, library.is_some());
            let head = row(json!({
                "name": format!("{size} {method}"),
                "size": size,
                "method": method.to_string(),
                "rank": rank,
                "pack": load.pack,
                "packs": load.packs,
                "recompute": plan.recompute,
                "flops_per_token": plan.flops_per_token,
                "predicted_bytes": plan.predicted_bytes,
            }));
            let (device, fits) = (bench.device.clone(), plan.fits || bench.is_tiny);
            let count = if bench.is_tiny { 1 } else { TIMED };
            let loaded = &mut loaded;
            bench.measure(head.clone(), || {
                if !fits {
                    return vec![with(
                        head,
                        "skipped",
                        "there is not enough memory, not even with recompute",
                    )];
                }
                let measured = in_words(model_of(&config, &device, loaded.take())).and_then(|model| {
                    let model = prepared(model, (rank > 0).then_some(rank));
                    let mut stepper = Stepper::from_model(model, SETTINGS, plan.recompute);
                    let measured = in_words(speed(&mut stepper, &device, library, load, count));
                    *loaded = Some(stepper.into_model());
                    measured
                });
                vec![match measured {
                    Ok(measured) => head.into_iter().chain(measured).collect(),
                    Err(why) => with(head, "failed", why),
                }]
            });
        }
        drop(loaded);
        bench.device.memory_cleanup();
    }
}

/// Returns the model of the previous method without its training state, or a new one.
pub(super) fn model_of(
    config: &ModelConfig,
    device: &Device,
    loaded: Option<Model>,
) -> Result<Model, TrainError> {
    let model = match loaded {
        Some(mut model) => {
            model.linears_mut().into_iter().for_each(|linear| linear.lora = None);
            model
        }
        None => Model::load(&Checkpoint::random(config.clone(), 7), device, &mut |_, _| ())?,
    };
    // The peak is then that of the steps.
    device.memory_cleanup();
    Ok(model)
}

/// The settings of a plan for these steps.
struct Planned {
    recompute: bool,
    fits: bool,
    predicted_bytes: u64,
    flops_per_token: f64,
}

impl Planned {
    fn new(
        config: &ModelConfig,
        machine: &MachineFacts,
        method: MethodKind,
        rank: usize,
        tokens: usize,
        library: bool,
    ) -> Self {
        let memory = |recompute| memory_of(config, machine, method, rank, tokens, library, recompute);
        let recompute = !memory(false).fits();
        let memory = memory(recompute);
        let (work, rank, targets) = (Work::from_config(config), rank as u32, TargetModules::ALL);
        // Useful work: recompute counts only once.
        let treatment =
            Treatment { method, rank, targets, recompute: false, target_share: 1.0, context: tokens as f64 };
        Self {
            recompute,
            fits: memory.fits(),
            predicted_bytes: memory.training_bytes() - memory.export,
            flops_per_token: work.training_flops(&treatment),
        }
    }
}

/// Returns the memory that a plan has for these steps.
pub(super) fn memory_of(
    config: &ModelConfig,
    machine: &MachineFacts,
    method: MethodKind,
    rank: usize,
    tokens: usize,
    library: bool,
    recompute: bool,
) -> Memory {
    let (facts, work) = (ModelFacts::from_config(config.clone()), Work::from_config(config));
    let footprint = Footprint {
        device: Kind::Cuda,
        method,
        rank: rank as u32,
        targets: TargetModules::ALL,
        recompute,
        tokens: tokens as f64,
        // A pack is one document.
        chunks_per_token: tokens.div_ceil(64) as f64 / tokens as f64,
        host_copies: 0,
        library,
    };
    estimate(&facts, &work, machine, &footprint)
}

/// Returns the seconds until the device has finished what `f` queued.
fn timed<T>(device: &Device, f: impl FnOnce() -> T) -> (T, f64) {
    let began = Instant::now();
    let result = f();
    device.sync().expect("the device does what was queued");
    (result, began.elapsed().as_secs_f64())
}

/// What the steps of a measurement took and gave.
pub(super) struct Stepped {
    /// Losses of all steps in nats, those before the timed ones included.
    pub(super) losses: Vec<f64>,
    /// Seconds of a step, and of preparing its packs; medians of the timed ones.
    pub(super) step_s: f64,
    data_s: f64,
    /// The fields of all rows that are measured by steps.
    pub(super) fields: Row,
}

/// While this lives, products may be left to the vendor's library in this version, as was decided for the
/// steps that it lives for.
pub(super) struct LeftToLibrary(Option<usize>);

impl LeftToLibrary {
    pub(super) fn new(library: Option<usize>) -> Self {
        use_library(library);
        // As in a run, nothing holds that was decided for others.
        decide_as("").expect("no line is wrong");
        Self(library)
    }

    /// Returns in words who computes products.
    pub(super) fn in_words(&self) -> String {
        let Some(version) = self.0 else { return "all products by own kernels".into() };
        let (of_library, all) = by_library();
        format!("{of_library} of {all} kinds of products by cuBLASLt {}", version_in_words(version))
    }
}

impl Drop for LeftToLibrary {
    fn drop(&mut self) {
        use_library(None);
    }
}

/// Takes `warm_up` steps and then `count` timed ones. `step` returns the loss in nats. Where products may be
/// left to the vendor's library, that is decided after the first step, before the timed ones.
pub(super) fn stepped(
    device: &Device,
    [warm_up, count]: [usize; 2],
    tokens: usize,
    mut fresh: impl FnMut() -> Vec<Tokens>,
    mut step: impl FnMut(&[Tokens]) -> Result<f64, TrainError>,
) -> Result<Stepped, TrainError> {
    let mut losses = Vec::new();
    for warm in 0..warm_up {
        let rows = fresh();
        // A run does the same with a pack before its first step, and with tiles after it. Whatever else a
        // later step has is computed by own kernels.
        if warm == 0 {
            begin_deciding();
        }
        listen();
        losses.push(step(&rows)?);
        let unknown = missed();
        for product in &unknown {
            product.measure(device);
        }
        settle_decisions();
        if !unknown.is_empty() {
            // The peak is then that of the steps.
            device.memory_cleanup();
        }
    }
    let (mut steps, mut data) = (Vec::new(), Vec::new());
    let before = [launches(), products()];
    let (done, seen) = watched(|| {
        for _ in 0..count {
            let (rows, data_s) = timed(device, &mut fresh);
            let (stepped, step_s) = timed(device, || step(&rows));
            losses.push(stepped?);
            steps.push(step_s);
            data.push(data_s);
        }
        Ok::<_, TrainError>(())
    });
    done?;
    let [launched, of_library] =
        [launches() - before[0], products() - before[1]].map(|counted| counted / count as u64);
    let (step_s, data_s) = (median(steps), median(data));
    let last_loss = losses.last().copied().unwrap_or(f64::NAN);
    let mut fields = row(json!({
        "step_ms": ms(step_s),
        "tokens_per_s": tokens as f64 / step_s,
        "peak_bytes": reserved_bytes(device),
        "loss": last_loss,
        "launches": launched,
        "library_products": of_library,
        "sm_clock_mhz": seen.sm_clock_mhz,
        "busy_percent": seen.busy_percent,
    }));
    if !losses.iter().all(|loss| loss.is_finite()) {
        fields = with(fields, "failed", "the loss is not a number");
    }
    Ok(Stepped { losses, step_s, data_s, fields })
}

fn ms(seconds: f64) -> f64 {
    seconds.max(0.0) * 1e3
}

/// Returns the mean loss of one optimizer step in nats.
pub(super) fn step_loss(stepper: &mut Stepper, rows: &[Tokens]) -> Result<f64, TrainError> {
    Ok(stepper.step(rows, SETTINGS.learning_rate)?.iter().map(Loss::nats).sum())
}

/// Returns a function that returns new packs at each call.
pub(super) fn fresh_rows(load: Load, vocabulary: usize) -> impl FnMut() -> Vec<Tokens> {
    let mut step = 0;
    move || {
        step += 1;
        load.rows(step, vocabulary)
    }
}

fn speed(
    stepper: &mut Stepper,
    device: &Device,
    library: Option<usize>,
    load: Load,
    count: usize,
) -> Result<Row, TrainError> {
    let computed = LeftToLibrary::new(library);
    let mut fresh = fresh_rows(load, stepper.model().config().vocab_size);
    let done = stepped(device, [WARM_UP, count], load.tokens(), &mut fresh, |rows| step_loss(stepper, rows))?;
    // A second time, because the launches without a graph have not run before.
    let inputs = fresh();
    let last = |f: &dyn Fn()| (0..2).map(|_| timed(device, f).1).fold(0.0, |_, seconds| seconds);
    let forward_s = last(&|| inputs.iter().for_each(|input| drop(stepper.model().loss_sum(input))));
    let scale = 1.0 / inputs.iter().map(Tokens::target_tokens).sum::<usize>() as f64;
    let both_s = last(&|| {
        let mut gradients = Gradients::default();
        inputs.iter().for_each(|input| drop(stepper.loss_and_gradients(input, scale, &mut gradients)));
    });
    let parts = row(json!({
        "data_ms": ms(done.data_s),
        "forward_ms": ms(forward_s),
        "backward_ms": ms(both_s - forward_s),
        "optimizer_ms": ms(done.step_s - both_s),
        "note": format!(
            "{}; median of {count} steps; forward without a graph, the rest by difference",
            computed.in_words()
        ),
    }));
    Ok(done.fields.into_iter().chain(parts).collect())
}
