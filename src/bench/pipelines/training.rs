//! A training whose steps are timed with and without the wait for their rows.

use std::path::Path;
use std::time::Instant;

use sparktune_base::choices::PackStrategy;
use sparktune_data::packing::{Pack, Packing};
use sparktune_data::token_file::TokenFile;
use sparktune_model::{Loss, PackedSequence};
use sparktune_paper::{Arrangement, Evaluation, Training};
use sparktune_plan::{ModelConfig, Plan};
use sparktune_train::stepper::Stepper;

use super::job::Job;
use super::kept::load_average;
use super::loader::{Loader, milliseconds};
use super::order;
use super::rows::Layout;
use crate::cpu::process_cpu_seconds;
use crate::error::BenchError;

/// The shape of the model that QubGPU trained, Qwen2.5-Coder-1.5B.
const QUBGPU_SIZE: &str = include_str!("qwen2.5-coder-1.5b.json");
/// Evaluations during a training, next to the one before it.
const EVALUATIONS: u64 = 6;

/// Trains the plan's model. `progress` is told the number of steps after each.
///
/// # Errors
/// The model, the data or the device cannot be used.
pub(crate) fn measure(
    job: &Job,
    plan: Plan,
    adapter: Option<&Path>,
    progress: &mut dyn FnMut(u64) -> Result<(), BenchError>,
) -> Result<Training, BenchError> {
    let plan = Plan { seed: job.seed, ..plan };
    let mut stepper = match job.arrangement {
        Arrangement::QubgpuSize => Stepper::of_shape(&plan, ModelConfig::from_json(QUBGPU_SIZE)?)?,
        Arrangement::Published | Arrangement::Fair => Stepper::from_plan(&plan)?,
    };
    let held_out = held_out(job, &plan)?;
    let (loader, _) = Loader::open(job, &plan)?;
    let total = job.steps as usize;
    let steps = order::steps(loader.len(), job.seed, job.dropped_share(), job.batch as usize, total);
    let layout = Layout::of(job);
    let mut training = Training {
        arrangement: job.arrangement,
        pipeline: job.pipeline,
        seed: job.seed,
        order: order::hash(&steps),
        loss: Vec::new(),
        wait_ms: Vec::new(),
        step_ms: Vec::new(),
        cpu_ms: Vec::new(),
        positions: Vec::new(),
        tokens: Vec::new(),
        targets: Vec::new(),
        evaluations: Vec::new(),
        peak_bytes: None,
        load_average: None,
    };
    let every = job.steps.div_ceil(EVALUATIONS).max(1);
    training.evaluations.extend(evaluate(&stepper, &held_out, 0));
    for (examples, done) in steps.iter().zip(1..) {
        let cpu_before = process_cpu_seconds();
        let began = Instant::now();
        let rows = layout.rows(&loader, examples)?;
        let wait_ms = milliseconds(began);
        let learning_rate = stepper.next_learning_rate(job.steps);
        let losses = stepper.step(&rows.sequences, learning_rate)?;
        // The update may still be under way when the loss is known.
        stepper.model().device().sync().expect("the device does what was queued");
        training.step_ms.push(tenth_of_microsecond(milliseconds(began)));
        training.wait_ms.push(tenth_of_microsecond(wait_ms));
        let cpu_s = process_cpu_seconds().zip(cpu_before).map_or(0.0, |(now, before)| now - before);
        training.cpu_ms.push((cpu_s * 1e3).round());
        let loss: f64 = losses.iter().map(Loss::nats).sum();
        training.loss.push(Some(loss).filter(|loss| loss.is_finite()));
        training.positions.push(rows.counts.positions);
        training.tokens.push(rows.counts.tokens);
        training.targets.push(rows.counts.targets);
        if done % every == 0 || done == job.steps {
            training.evaluations.extend(evaluate(&stepper, &held_out, done));
        }
        progress(done)?;
    }
    if let Some(folder) = adapter {
        std::fs::create_dir_all(folder).map_err(BenchError::io("create", folder))?;
        stepper.save_adapter(&plan, folder)?;
    }
    training.peak_bytes = sparktune_telemetry::peak_rss_bytes();
    training.load_average = load_average();
    Ok(training)
}

/// Returns the eval set in packs, each example as it is in the file. A model with random weights has none.
fn held_out(job: &Job, plan: &Plan) -> Result<Vec<PackedSequence>, BenchError> {
    if job.arrangement == Arrangement::QubgpuSize {
        return Ok(Vec::new());
    }
    let file = TokenFile::open(&job.eval)?;
    let longest = file.lengths().iter().copied().max().unwrap_or(0);
    let length = plan.pack.length.max(longest).max(1);
    let packing = Packing::new(PackStrategy::Bfd, length, 0).expect("a pack has room for a token");
    let pack = |pieces| -> Result<PackedSequence, BenchError> {
        let pack = Pack::build(&file, pieces)?;
        Ok(PackedSequence::new(&pack.input_ids, &pack.cu_seqlens, &pack.loss_mask))
    };
    packing.epoch(file.lengths(), 0).iter().map(pack).collect()
}

/// Returns the loss on the eval set, if there is one.
fn evaluate(stepper: &Stepper, held_out: &[PackedSequence], step: u64) -> Option<Evaluation> {
    let targets: usize = held_out.iter().map(PackedSequence::target_tokens).sum();
    let nats: f64 = held_out.iter().map(|sequence| stepper.model().loss_sum(sequence).nats()).sum();
    let loss = Some(nats / targets as f64).filter(|loss| loss.is_finite());
    (targets > 0).then_some(Evaluation { step, loss })
}

/// Rounds a time to what a clock can tell, so that the results are short.
fn tenth_of_microsecond(ms: f64) -> f64 {
    (ms * 1e4).round() / 1e4
}
