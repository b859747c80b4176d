//! Compares twenty optimizer steps of the trainer's code with golden values.

use std::collections::BTreeMap;

use serde_json::Value;
use sparktune_kernels::adamw::{AdamW, Clip, Moments, zeros_like};

use super::{
    CURVE, GRADIENT, Golden, LOGITS, difference, floats, json, labelled_row, model, qwen35, relative,
    stored_name,
};
use crate::{Gradients, Model, PackedSequence};

struct Batches {
    golden: Golden,
}

impl Batches {
    /// Returns the micro-batches of a step, each one a row of several examples.
    fn step(&self, step: usize) -> Vec<PackedSequence> {
        let (ids, labels) = (self.golden.integers("input_ids"), self.golden.integers("labels"));
        let shape = self.golden.shape("input_ids");
        let [_, micros, rows, tokens] = shape[..] else { panic!("[step, micro, row, token]") };
        (0..micros)
            .map(|micro| {
                let from = (step * micros + micro) * rows * tokens;
                let part = from..from + rows * tokens;
                labelled_row(&ids[part.clone()], &labels[part], &vec![tokens; rows])
            })
            .collect()
    }
}

/// Trains with the hyperparameters of a golden file and compares every step's loss and rate.
fn follows(model: &mut Model, hyper: &Value, curve: &Value, decay_all: bool, recompute: bool) {
    let batches = Batches { golden: Golden::open("train_batches.safetensors") };
    let (losses, rates) = (floats(&curve["loss"]), floats(&curve["lr"]));
    let betas = floats(&hyper["betas"]);
    let mut moments: BTreeMap<String, Moments> = BTreeMap::new();
    for (step, (expected, rate)) in losses.iter().zip(rates).enumerate() {
        let rows = batches.step(step);
        let targets: usize = rows.iter().map(PackedSequence::target_tokens).sum();
        let mut gradients = Gradients::default();
        let scale = 1.0 / targets as f64;
        let loss = |row| model.loss_and_gradients(row, scale, recompute, &mut gradients).nats();
        let loss: f64 = rows.iter().map(loss).sum();
        assert!((loss - expected).abs() <= CURVE, "step {step}: loss {loss}, expected {expected}");
        let clip = hyper["max_grad_norm"].as_f64().unwrap();
        let clip = Clip::new(&gradients.all(), clip);
        model.visit_mut(&mut |param| {
            if !param.is_trainable() {
                return;
            }
            let gradient = gradients.take(param.name()).expect("every trained parameter has a gradient");
            let (m, v) = moments
                .remove(param.name())
                .unwrap_or_else(|| (zeros_like(&gradient), zeros_like(&gradient)));
            let adamw = AdamW {
                learning_rate: rate,
                beta1: betas[0],
                beta2: betas[1],
                eps: hyper["eps"].as_f64().unwrap(),
                weight_decay: if decay_all || param.decays() {
                    hyper["weight_decay"].as_f64().unwrap()
                } else {
                    0.0
                },
                step: step as u64 + 1,
            };
            let name = param.name().to_owned();
            param.update(|weights| {
                let (weights, after) = adamw.update(weights, (m, v), gradient, &clip);
                moments.insert(name, after);
                weights
            });
        });
    }
}

#[test]
fn full_fine_tuning_follows_the_curve_of_transformers() {
    let expected = json("golden_full_ft.json");
    let golden = Golden::open("golden_full_ft_final.safetensors");
    for recompute in [false, true] {
        let mut model = model("checkpoint");
        model.set_trainable(true);
        follows(&mut model, &expected["hyper"], &expected["token_mean"], false, recompute);
        let model = model.frozen();
        model.visit(&mut |param| {
            let stored = stored_name(param.name());
            if golden.names().contains(&stored) {
                let error = relative(&param.to_vec(), &golden.numbers(&stored));
                assert!(error <= 5.0 * GRADIENT, "final {stored} differs by {error:e}");
            }
            let norm = &expected["final_norms"][&stored];
            let squares: f64 = param.to_vec().iter().map(|x| f64::from(*x) * f64::from(*x)).sum();
            let expected = norm.as_f64().unwrap();
            assert!((squares.sqrt() - expected).abs() <= 1e-3 * expected, "norm of {stored}");
        });
        let ids = Golden::open("golden_forward.safetensors").ids("input_ids_17");
        let logits = model.logits(model.hidden(&PackedSequence::single(&ids)));
        let error = difference(&logits, &golden.numbers("logits_17"));
        assert!(error <= 20.0 * LOGITS, "final logits differ by {error:e}");
    }
}

#[test]
fn lora_follows_the_curve_of_peft_and_merges_to_its_weights() {
    let expected = json("golden_lora.json");
    let golden = Golden::open("golden_lora_merged.safetensors");
    for recompute in [false, true] {
        let mut model = model("checkpoint");
        let config = model.load_lora(&qwen35().join("lora_init")).unwrap();
        assert_eq!(config.scale(), expected["scaling"].as_f64().unwrap());
        assert_eq!(model.linears().len() as u64, expected["wrapped_linears"].as_u64().unwrap());

        // The golden norms were computed on the first micro-batch alone.
        let batches = Batches { golden: Golden::open("train_batches.safetensors") };
        let row = &batches.step(0)[0];
        let mut gradients = Gradients::default();
        model.loss_and_gradients(row, 1.0 / row.target_tokens() as f64, recompute, &mut gradients);
        for (name, norm) in expected["start_grad_norms"].as_object().unwrap() {
            let name = name.strip_prefix("base_model.model.model.language_model.").unwrap();
            let gradient = gradients.take(&name.replace(".default", "")).unwrap();
            let got = Clip::new(&[&gradient], 1.0).norm();
            let norm = norm.as_f64().unwrap();
            assert!((got - norm).abs() <= GRADIENT * norm, "gradient norm of {name}: {got} for {norm}");
        }

        follows(&mut model, &expected["hyper"], &expected["curve"], true, recompute);
        let mut reference = super::model("checkpoint");
        reference.load_lora(&qwen35().join("lora_final")).unwrap();
        for (ours, theirs) in model.linears().into_iter().zip(reference.linears()) {
            let (ours, theirs) = (ours.lora.as_ref().unwrap(), theirs.lora.as_ref().unwrap());
            for (ours, theirs) in [(&ours.a, &theirs.a), (&ours.b, &theirs.b)] {
                let error = relative(&ours.to_vec(), &theirs.to_vec());
                assert!(error <= 0.02, "{} differs by {error:e}", ours.name());
            }
        }
        for linear in reference.linears() {
            let stored = stored_name(linear.weight.name());
            if golden.names().contains(&stored) {
                let error = difference(&linear.merged_weight(), &golden.numbers(&stored));
                assert!(error <= 1e-6, "merged {stored} differs by {error:e}");
            }
        }
        let ids = Golden::open("golden_forward.safetensors").ids("input_ids_17");
        let logits = reference.logits(reference.hidden(&PackedSequence::single(&ids)));
        let error = difference(&logits, &golden.numbers("logits_17"));
        assert!(error <= LOGITS, "logits of the final adapter differ by {error:e}");
    }
}
