//! UltraEdit (Gu et al. 2025, arXiv 2505.14679): one step from keys and gradients, without subjects and
//! without the covariance of other text.
//!
//! At each token before a target's token, `h` is the input of `down_proj` and `g` the gradient of the
//! target's loss with respect to its output. With `h̃` and `g̃` normalised over all of them, the changes
//! of values are `v = −η (‖h̃‖² / I) g̃`, and the change of the weight is their least squares, `(HᵀH + ε 1)⁻¹
//! Hᵀ V`: the formula of `update` with `M = 1`.
//!
//! The paper has a fixed `η` for each model. Here it is the smallest of a few with which the targets are
//! likely, in root mean squares of the outputs that are changed, so that any model has one. A larger one that
//! makes ordinary text less likely than an edit may is not taken: the model would be refused.

use std::cell::RefCell;

use burn::tensor::Tensor;
use sparktune_model::{Model, PackedSequence};

use crate::error::EditError;
use crate::host::host;
use crate::linear_algebra::Matrix;
use crate::low_rank::LowRank;
use crate::scores::MOST_DRIFT;
use crate::stage::Progress;
use crate::tokens::FactTokens;
use crate::update::{Metric, Softness, Weighting, key_factor};

/// The step sizes that are tried.
const RATES: [f64; 7] = [0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0];
/// The mean loss of the targets' tokens at which the search for a step size ends, in nats.
const ENOUGH: f64 = 0.1;
/// The documents of text that may not become less likely.
const DOCUMENTS: usize = 32;
/// The step sizes that are tried between the last good one and the first that damages text.
const HALVINGS: usize = 3;
/// With fewer places, means and deviations of single numbers say nothing, and only the size is normalised.
const LEAST_PLACES: usize = 32;

/// Keys, gradients and the size of outputs of one layer.
#[derive(Default)]
struct Seen {
    keys: Vec<Vec<f64>>,
    gradients: Vec<Vec<f64>>,
    /// The sum of squares of the outputs, and their number.
    squares: (f64, usize),
}

/// Writes all facts into the layers in one step.
///
/// # Errors
/// A gradient is not finite, or `progress` says no.
pub(crate) fn ultraedit(
    model: &Model,
    layers: &[usize],
    facts: &[FactTokens],
    text: &[Vec<u32>],
    progress: Progress<'_>,
) -> Result<Vec<LowRank>, EditError> {
    let text: Vec<PackedSequence> =
        text.iter().take(DOCUMENTS).map(|ids| PackedSequence::single(ids)).collect();
    let of_text = |model: &Model| text.iter().map(|ids| model.loss_sum(ids).nats()).sum::<f64>();
    let allowed = of_text(model) * (1.0 + MOST_DRIFT);
    let mut seen: Vec<Seen> = layers.iter().map(|_| Seen::default()).collect();
    let sequences: Vec<PackedSequence> = facts.iter().map(FactTokens::sequence).collect();
    for (done, sequence) in sequences.iter().enumerate() {
        if !progress(done) {
            return Err(EditError::Stopped);
        }
        look(model, layers, sequence, &mut seen);
    }
    let steps =
        seen.iter().zip(layers).map(|(seen, layer)| step(seen, *layer)).collect::<Result<Vec<_>, _>>()?;
    let mut best: Option<(f64, Vec<LowRank>)> = None;
    // The sizes that are left, smallest first, and the last one that was good.
    let (mut rates, mut good, mut halvings) = (RATES.to_vec(), 0.0f64, HALVINGS);
    while !rates.is_empty() {
        let rate = rates.remove(0);
        let changes: Vec<LowRank> = steps.iter().map(|change| change.scaled(rate)).collect();
        let mut edited = model.clone();
        changes.iter().for_each(|change| change.add_to(&mut edited));
        if best.is_some() && !text.is_empty() && of_text(&edited) > allowed {
            // Larger ones damage more; one between may still be good.
            rates = if halvings > 0 { vec![(good * rate).sqrt()] } else { Vec::new() };
            halvings = halvings.saturating_sub(1);
            continue;
        }
        good = rate;
        let mut nats = 0.0;
        for sequence in &sequences {
            if !progress(facts.len()) {
                return Err(EditError::Stopped);
            }
            nats += edited.loss_sum(sequence).nats();
        }
        let loss = nats / sequences.iter().map(PackedSequence::target_tokens).sum::<usize>() as f64;
        if best.as_ref().is_none_or(|(least, _)| loss < *least) {
            best = Some((loss, changes));
        }
        if loss < ENOUGH {
            break;
        }
    }
    let (loss, changes) = best.expect("several step sizes were tried");
    if loss.is_finite() { Ok(changes) } else { Err(not_finite()) }
}

fn not_finite() -> EditError {
    EditError::request(
        "the gradients of the targets are not finite, so the weights are damaged",
        "Choose another model",
    )
}

/// Adds keys and gradients of a fact.
fn look(model: &Model, layers: &[usize], sequence: &PackedSequence, seen: &mut [Seen]) {
    let (width, tokens) = (model.config().hidden_size, sequence.len());
    let device = model.device().clone().inner();
    let zeros: Vec<Tensor<2>> =
        layers.iter().map(|_| Tensor::zeros([tokens, width], &device).autodiff().require_grad()).collect();
    let taps = RefCell::new(vec![None; layers.len()]);
    let hidden = model.hidden_tapped(sequence, &mut |i, tap| {
        let Some(place) = layers.iter().position(|layer| *layer == i) else { return tap.output_TH };
        let dtype = tap.output_TH.dtype();
        taps.borrow_mut()[place] = Some((tap.key_TI, tap.output_TH.clone()));
        tap.output_TH.autodiff() + zeros[place].clone().cast(dtype)
    });
    let head = model.head().tensor;
    let loss =
        sparktune_kernels::linear_cross_entropy::linear_cross_entropy(hidden, head, &sequence.targets, 1.0);
    let mut backward = loss.backward();
    for ((seen, zeros), tap) in seen.iter_mut().zip(zeros).zip(taps.into_inner()) {
        let (key_TI, output_TH) = tap.expect("every layer has an MLP");
        let gradient = zeros.grad_remove(&mut backward).expect("the loss depends on every layer");
        let (keys, outputs, gradients) = (host(key_TI), host(output_TH), host(gradient));
        let inner = keys.len() / tokens;
        for row in sequence.targets.rows.iter().map(|row| *row as usize) {
            let wide = |numbers: &[f32], width: usize| -> Vec<f64> {
                numbers[row * width..][..width].iter().map(|number| f64::from(*number)).collect()
            };
            seen.keys.push(wide(&keys, inner));
            seen.gradients.push(wide(&gradients, width));
            let output = wide(&outputs, width);
            seen.squares.0 += output.iter().map(|x| x * x).sum::<f64>();
            seen.squares.1 += width;
        }
    }
}

/// Returns the change of a layer for `η` = 1.
fn step(seen: &Seen, layer: usize) -> Result<LowRank, EditError> {
    let (keys, gradients) = (normalised(&seen.keys), normalised(&seen.gradients));
    let size = (seen.squares.0 / seen.squares.1.max(1) as f64).sqrt();
    let values = keys.iter().zip(&gradients).map(|(key, gradient)| {
        let weight = key.iter().map(|x| x * x).sum::<f64>() / key.len() as f64;
        gradient.iter().map(|x| -size * weight * x).collect::<Vec<f64>>()
    });
    let (values, keys_NI) = (Matrix::of_rows(&values.collect::<Vec<_>>()), Matrix::of_rows(&seen.keys));
    if values.numbers().iter().any(|number| !number.is_finite()) {
        return Err(not_finite());
    }
    let inner = keys_NI.columns();
    let mut weighting = Weighting::new(Metric::Identity, inner);
    let a_NI = key_factor(&keys_NI, &Matrix::zeros(0, inner), &mut weighting, Softness::Small)?;
    Ok(LowRank::new(layer, &values, &a_NI, &keys_NI))
}

/// Returns vectors whose numbers have the mean 0 and the variance 1 over all of them, each number by
/// itself where there are enough vectors, and otherwise all of them together, without their mean.
fn normalised(vectors: &[Vec<f64>]) -> Vec<Vec<f64>> {
    let count = vectors.len() as f64;
    let width = vectors.first().map_or(0, Vec::len);
    if vectors.len() < LEAST_PLACES {
        let square = vectors.iter().flatten().map(|x| x * x).sum::<f64>() / (count * width as f64);
        let scale = 1.0 / square.sqrt().max(f64::MIN_POSITIVE);
        return vectors.iter().map(|vector| vector.iter().map(|x| x * scale).collect()).collect();
    }
    let mean: Vec<f64> = (0..width).map(|i| vectors.iter().map(|v| v[i]).sum::<f64>() / count).collect();
    let scale: Vec<f64> = (0..width)
        .map(|i| {
            let variance = vectors.iter().map(|v| (v[i] - mean[i]).powi(2)).sum::<f64>() / count;
            1.0 / variance.sqrt().max(1e-12)
        })
        .collect();
    let normal = |vector: &Vec<f64>| (0..width).map(|i| (vector[i] - mean[i]) * scale[i]).collect();
    vectors.iter().map(normal).collect()
}

#[cfg(test)]
mod tests {
    use sparktune_base::random::SplitMix64;

    use super::*;

    #[test]
    fn of_many_vectors_each_number_has_mean_0_and_variance_1_and_of_few_all_together() {
        let mut random = SplitMix64::new(7);
        let mut vectors = |count: usize| -> Vec<Vec<f64>> {
            (0..count)
                .map(|_| (0..3).map(|i| 5.0 * i as f64 + (i + 1) as f64 * random.next_f64()).collect())
                .collect()
        };
        let many = normalised(&vectors(40));
        for i in 0..3 {
            let mean = many.iter().map(|vector| vector[i]).sum::<f64>() / 40.0;
            let variance = many.iter().map(|vector| (vector[i] - mean).powi(2)).sum::<f64>() / 40.0;
            assert!(mean.abs() < 1e-9 && (variance - 1.0).abs() < 1e-9, "{i}: {mean}, {variance}");
        }
        let vectors = vectors(LEAST_PLACES - 1);
        let few = normalised(&vectors);
        let square = few.iter().flatten().map(|x| x * x).sum::<f64>() / (3 * few.len()) as f64;
        assert!((square - 1.0).abs() < 1e-9);
        let scale = few[0][2] / vectors[0][2];
        assert!(few.iter().zip(&vectors).all(|(one, other)| (one[0] - scale * other[0]).abs() < 1e-12));
    }
}
