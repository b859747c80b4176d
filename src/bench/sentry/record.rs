//! Trains as a run does, and keeps what the gradients of each step's micro-batches have in common.

use std::path::Path;

use burn::tensor::{Tensor, TensorData};
use sparktune_cluster::sentry::{Summary, WIDTH};
use sparktune_kernels::packed;
use sparktune_model::{Gradients, PackedSequence, Param};
use sparktune_plan::Plan;
use sparktune_train::stepper::{Stepper, step_inputs};

use super::recording::{Recording, Step};
use crate::error::BenchError;

/// The steps of a recording, unless the plan ends earlier.
const STEPS: u64 = 300;
/// The seed of all projections.
const SEED: u64 = 19;
/// The steps between two writes of the file, so that not everything is lost if the program is ended.
const WRITTEN: usize = 20;

/// Trains the model of a plan for `duration.max_steps` steps, and writes the recording.
///
/// # Errors
/// The model or the tokens cannot be used, or the file cannot be written.
pub fn record(plan: &Plan, tokens: &Path, file: &Path, note: &dyn Fn(&str)) -> Result<(), BenchError> {
    let honest = plan.batch.grad_accum_steps.max(3) as usize;
    let wrong = honest.div_ceil(3);
    let inputs = step_inputs(plan, tokens, plan.duration.max_steps.unwrap_or(STEPS))?;
    let mut stepper = Stepper::from_plan(plan)?;
    let names = trained(&stepper);
    let total = inputs.len() as u64;
    let mut recording =
        Recording { parameters: stepper.trained_parameters(), honest, wrong, steps: Vec::new() };
    for (number, rows) in inputs.iter().enumerate() {
        let learning_rate = stepper.next_learning_rate(total);
        // The last step of an epoch may have fewer micro-batches; it is trained and not recorded.
        if rows.len() < honest {
            stepper.step(rows, learning_rate)?;
            continue;
        }
        let rows = &rows[..honest];
        let mut gradients: Vec<Vec<f32>> = Vec::with_capacity(honest + wrong);
        let mut loss = 0.0;
        for row in rows {
            let (nats, gradient) = gradient(&stepper, &names, row);
            loss += nats;
            gradients.push(gradient);
        }
        for row in &rows[..wrong] {
            gradients.push(gradient(&stepper, &names, &mislabelled(row)).1);
        }
        let of = |row: &PackedSequence| row.target_tokens() as u64;
        let terms: Vec<u64> = rows.iter().chain(&rows[..wrong]).map(of).collect();
        let all: u64 = terms[..honest].iter().sum();
        note(&format!("step {} of {total}: loss {:.4}", number + 1, loss / all as f64));
        update(&mut stepper, &names, &gradients[..honest], all, learning_rate)?;
        recording.steps.push(step(loss / all as f64, terms, &gradients));
        if recording.steps.len().is_multiple_of(WRITTEN) {
            recording.write(file)?;
        }
    }
    recording.write(file)
}

/// Names and shapes of the trained parameters, in the order of names.
fn trained(stepper: &Stepper) -> Vec<(String, [usize; 2])> {
    let mut names = Vec::new();
    stepper.model().visit(&mut |param: &Param| {
        if param.is_trainable() {
            names.push((param.name().to_owned(), param.tensor().dims()));
        }
    });
    names.sort();
    names
}

/// Returns the loss of a micro-batch in nats, and its gradient.
fn gradient(stepper: &Stepper, names: &[(String, [usize; 2])], row: &PackedSequence) -> (f64, Vec<f32>) {
    let mut gradients = Gradients::default();
    let loss = stepper.loss_and_gradients(row, 1.0, &mut gradients).nats();
    let of = |(name, shape): &(String, [usize; 2])| match gradients.get(name) {
        Some(gradient) => gradient.to_data().try_to_vec::<f32>().expect("gradients are f32"),
        None => vec![0.0; shape.iter().product()],
    };
    (loss, names.iter().flat_map(of).collect())
}

/// Returns the micro-batch with each target replaced by that of the next row: plausible tokens in wrong
/// places.
fn mislabelled(row: &PackedSequence) -> PackedSequence {
    let mut row = row.clone();
    let mut tokens = row.targets.tokens.to_vec();
    if !tokens.is_empty() {
        tokens.rotate_left(1);
    }
    row.targets.tokens = tokens.into();
    row
}

fn update(
    stepper: &mut Stepper,
    names: &[(String, [usize; 2])],
    gradients: &[Vec<f32>],
    terms: u64,
    learning_rate: f64,
) -> Result<(), BenchError> {
    let mut sum = vec![0.0_f32; gradients[0].len()];
    for gradient in gradients {
        sum.iter_mut().zip(gradient).for_each(|(sum, value)| *sum += value);
    }
    sum.iter_mut().for_each(|sum| *sum /= terms as f32);
    let device = stepper.model().device().clone().inner();
    let mut summed = Gradients::default();
    let mut rest = sum.as_slice();
    for (name, shape) in names {
        let (numbers, others) = rest.split_at(shape.iter().product());
        rest = others;
        let data = TensorData::new(numbers.to_vec(), *shape);
        summed.put(name.clone(), packed(Tensor::from_data(data, &device)));
    }
    stepper.update(summed, learning_rate)?;
    Ok(())
}

fn step(loss: f64, terms: Vec<u64>, gradients: &[Vec<f32>]) -> Step {
    let count = gradients.len();
    let mut products = vec![0.0; count * count];
    for one in 0..count {
        for other in 0..=one {
            let product: f64 = gradients[one]
                .chunks(4096)
                .zip(gradients[other].chunks(4096))
                .map(|(a, b)| f64::from(a.iter().zip(b).map(|(a, b)| a * b).sum::<f32>()))
                .sum();
            products[one * count + other] = product;
            products[other * count + one] = product;
        }
    }
    let sketch = |gradient: &[f32]| {
        let mut summary = Summary::default();
        summary.add(SEED, 0, gradient);
        summary.sums().to_vec()
    };
    let mut sketches: Vec<Vec<f64>> = gradients.iter().map(|gradient| sketch(gradient)).collect();
    sketches.push(sketch(&vec![1.0; gradients[0].len()]));
    debug_assert!(sketches.iter().all(|sketch| sketch.len() == WIDTH));
    Step { loss, terms, products, sketches }
}
