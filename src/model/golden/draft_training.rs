//! The loss of several drafted tokens, held against a computation of its own: one example at a time, without
//! rows that have no token, with the positions of drafting, and with the loss in plain tensor operations.

use burn::tensor::activation::log_softmax;
use burn::tensor::{Device, Int, Tensor, TensorData};
use sparktune_kernels::adamw::Weights;

use super::{GRADIENT, Golden, LOSS, host, json, labelled_row, model, qwen35, relative};
use crate::mtp::weights;
use crate::{Checkpoint, Gradients, Model, Mtp, PackedSequence};

fn integers(value: &serde_json::Value) -> Vec<usize> {
    value.as_array().unwrap().iter().map(|x| x.as_u64().unwrap() as usize).collect()
}

/// Returns a row of four examples, model and head.
fn packed() -> (PackedSequence, Model, Mtp) {
    let golden = Golden::open("golden_packed.safetensors");
    let lengths = integers(&json("golden_packed.json")["example_lengths"]);
    let row = labelled_row(&golden.integers("input_ids"), &golden.integers("labels"), &lengths);
    let checkpoint = Checkpoint::open(&qwen35().join("checkpoint")).unwrap();
    let mut mtp = Mtp::load(&checkpoint, &Device::flex()).unwrap();
    mtp.set_trainable(true);
    (row, model("checkpoint"), mtp)
}

/// Returns the number of targets and the sum of the losses of each drafted token for one example.
fn of_one_example(
    model: &Model,
    mtp: &Mtp,
    ids: &[u32],
    mask: &[bool],
    draft_tokens: usize,
) -> Vec<(usize, Tensor<2>)> {
    let mut hidden = model.hidden(&PackedSequence::single(ids)).inner();
    let mut losses = Vec::new();
    for k in 0..draft_tokens {
        let Some(rows) = ids.len().checked_sub(1 + k).filter(|rows| *rows > 0) else { break };
        hidden = hidden.narrow(0, 0, rows);
        let positions: Vec<u32> = (k as u32..(k + rows) as u32).collect();
        let own = mtp.step_of_one_example(model, hidden, &ids[1 + k..], &positions);
        let targets: Vec<usize> = (0..rows).filter(|i| mask.get(i + 2 + k) == Some(&true)).collect();
        if !targets.is_empty() {
            let numbers = |values: Vec<i64>| {
                let length = values.len();
                Tensor::<1, Int>::from_data(TensorData::new(values, [length]), &own.device())
            };
            let of = numbers(targets.iter().map(|i| *i as i64).collect());
            let tokens = numbers(targets.iter().map(|i| i64::from(ids[i + 2 + k])).collect());
            let logits = own.clone().select(0, of).matmul(model.head().tensor.transpose());
            let chosen = log_softmax(logits, 1).gather(1, tokens.reshape([targets.len(), 1]));
            losses.push((targets.len(), chosen.sum().neg().reshape([1, 1])));
        }
        hidden = own;
    }
    losses
}

/// Returns the numbers of targets, the sums of the losses and the gradients of drafts of `draft_tokens`.
fn by_example(
    model: &Model,
    mtp: &Mtp,
    row: &PackedSequence,
    draft_tokens: usize,
    scale: f64,
) -> (Vec<usize>, Vec<f64>, Gradients) {
    let (mut counts, mut sums) = (vec![0; draft_tokens], vec![0.0; draft_tokens]);
    let mut gradients = Gradients::default();
    for border in row.cu_seqlens.windows(2) {
        let part = border[0] as usize..border[1] as usize;
        let losses =
            of_one_example(model, mtp, &row.input_ids[part.clone()], &row.loss_mask[part], draft_tokens);
        let mut total: Option<Tensor<2>> = None;
        for (k, (count, loss)) in losses.into_iter().enumerate() {
            counts[k] += count;
            sums[k] += f64::from(loss.clone().inner().into_scalar::<f32>());
            let weighted = loss.mul_scalar((scale * weights(draft_tokens)[k]) as f32);
            total = Some(total.map_or(weighted.clone(), |sum| sum + weighted));
        }
        let Some(total) = total else { continue };
        mtp.visit(&mut |param| gradients.attach_sum(param));
        let mut backward = total.backward();
        mtp.visit(&mut |param| gradients.take_sum(param, &mut backward));
    }
    (counts, sums, gradients)
}

#[test]
fn losses_and_gradients_of_several_drafted_tokens_are_those_of_each_example_alone() {
    let (row, model, mtp) = packed();
    let mut norms = Vec::new();
    for draft_tokens in [1, 2, 3] {
        let targets = Mtp::targets_of_drafts(&row, draft_tokens);
        let scale = 1.0 / targets[0] as f64;
        let (counts, sums, expected) = by_example(&model, &mtp, &row, draft_tokens, scale);
        assert_eq!(targets, counts);
        let hidden = model.hidden(&row);
        let found = mtp.loss_sums(&model, hidden.clone(), &row, draft_tokens);
        for (k, (found, expected)) in found.iter().zip(&sums).enumerate() {
            let error = (found.nats() - expected).abs() / counts[k] as f64;
            assert!(error <= LOSS, "drafted token {k} of {draft_tokens}: {} for {expected}", found.nats());
        }
        let mut gradients = Gradients::default();
        let loss = mtp.loss_and_gradients(&model, hidden, &row, draft_tokens, scale, &mut gradients).nats();
        let weighted: f64 = weights(draft_tokens).iter().zip(&sums).map(|(w, sum)| w * sum * scale).sum();
        assert!((loss - weighted).abs() <= LOSS, "{loss} for {weighted}");
        mtp.visit(&mut |param| {
            let [found, expected] =
                [&gradients, &expected].map(|all| host(all.get(param.name()).unwrap().clone()));
            let error = relative(&found, &expected);
            assert!(error <= GRADIENT, "{draft_tokens}: gradient of {} differs by {error:e}", param.name());
        });
        norms.push(loss);
    }
    assert!((norms[0] - norms[2]).abs() > 100.0 * LOSS, "more drafted tokens give another loss: {norms:?}");
}

#[test]
fn the_gradient_of_three_drafted_tokens_is_the_measured_slope() {
    let (row, model, mut mtp) = packed();
    let hidden = model.hidden(&row);
    let scale = 1.0 / Mtp::target_tokens(&row) as f64;
    let mut gradients = Gradients::default();
    mtp.loss_and_gradients(&model, hidden.clone(), &row, 3, scale, &mut gradients);
    // The direction of the gradient itself has the largest slope, so rounding counts least.
    let norm: f64 =
        gradients.all().iter().flat_map(|g| host((*g).clone())).map(|x| f64::from(x).powi(2)).sum();
    let mut moved = |by: f64| {
        mtp.visit_mut(&mut |param| {
            let step = gradients.get(param.name()).unwrap().clone().mul_scalar((by / norm.sqrt()) as f32);
            param.update(|weights| Weights { master: weights.master + step, ..weights });
        });
        let sums = mtp.loss_sums(&model, hidden.clone(), &row, 3);
        sums.iter().zip(weights(3)).map(|(sum, weight)| sum.nats() * weight * scale).sum::<f64>()
    };
    const STEP: f64 = 2e-3;
    let (above, below) = (moved(STEP), moved(-2.0 * STEP));
    let slope = (above - below) / (2.0 * STEP);
    assert!((slope / norm.sqrt() - 1.0).abs() < 1e-2, "slope {slope}, gradient {}", norm.sqrt());
}

#[test]
fn the_weights_of_drafted_tokens_fall_and_add_up_to_one() {
    assert_eq!(weights(1), [1.0]);
    let three = weights(3);
    assert!((three.iter().sum::<f64>() - 1.0).abs() < 1e-12 && (three[1] / three[0] - 0.6).abs() < 1e-12);
    assert!((three[0] - 1.0 / 1.96).abs() < 1e-12, "{three:?}");
}

#[test]
fn examples_too_short_for_a_drafted_token_have_no_target_for_it() {
    let (_, model, mtp) = packed();
    let ids = [5, 9, 2, 7, 1, 3];
    let row = PackedSequence::new(&ids, &[0, 1, 3, 6], &[true; 6]);
    assert_eq!(Mtp::targets_of_drafts(&row, 3), [1, 0, 0]);
    let sums = mtp.loss_sums(&model, model.hidden(&row), &row, 3);
    assert!(sums[0].nats() > 0.0 && sums[1].nats() == 0.0 && sums[2].nats() == 0.0);
    let short = PackedSequence::new(&ids[..2], &[0, 2], &[true; 2]);
    assert_eq!(Mtp::targets_of_drafts(&short, 2), [0, 0]);
    assert!(mtp.loss(&model, model.hidden(&short), &short, 2, 1.0).is_none());
}
