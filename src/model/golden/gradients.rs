use std::sync::{Arc, Mutex};

use burn::tensor::{Device, Tensor};
use sparktune_kernels::adamw::Clip;

use super::{GRADIENT, Golden, LOSS, host, json, labelled_row, model, qwen35, relative};
use crate::{Checkpoint, Gradients, Model, Mtp, PackedSequence};

/// Returns the canonical name of a stored one.
fn canonical(stored: &str) -> &str {
    stored.strip_prefix("model.language_model.").unwrap_or(stored)
}

fn integers(value: &serde_json::Value) -> Vec<usize> {
    value.as_array().unwrap().iter().map(|x| x.as_u64().unwrap() as usize).collect()
}

fn gradients_match(golden: &Golden, prefix: &str, gradients: &Gradients) {
    let mut compared = 0;
    for name in golden.names() {
        let Some(stored) = name.strip_prefix(prefix) else { continue };
        let got = gradients.get(canonical(stored)).unwrap_or_else(|| panic!("no gradient for {stored}"));
        let error = relative(&host(got.clone()), &golden.numbers(&name));
        assert!(error <= GRADIENT, "gradient of {stored} differs by {error:e}");
        compared += 1;
    }
    assert!(compared > 10, "only {compared} gradients compared");
}

fn norms_match(expected: &serde_json::Value, gradients: &Gradients) {
    for (stored, norm) in expected.as_object().unwrap() {
        let norm = norm.as_f64().unwrap();
        let got = gradients.get(canonical(stored)).unwrap_or_else(|| panic!("no gradient for {stored}"));
        let got = Clip::new(&[got], 1.0).norm();
        assert!((got - norm).abs() <= GRADIENT * norm.max(1e-6), "norm of {stored}: {got} for {norm}");
    }
}

fn trained_row(model: &mut Model, row: &PackedSequence, recompute: bool) -> (f64, Gradients) {
    model.set_trainable(true);
    let mut gradients = Gradients::default();
    let scale = 1.0 / row.target_tokens() as f64;
    let loss = model.loss_and_gradients(row, scale, recompute, &mut gradients).nats();
    (loss, gradients)
}

#[test]
fn all_gradients_are_those_of_transformers_with_and_without_recompute() {
    let golden = Golden::open("golden_grads.safetensors");
    let expected = json("golden_loss.json");
    let row = golden.batch();
    assert_eq!(row.target_tokens() as u64, expected["target_tokens"].as_u64().unwrap());
    for recompute in [false, true] {
        let mut model = model("checkpoint");
        let (loss, gradients) = trained_row(&mut model, &row, recompute);
        assert!((loss - expected["loss"].as_f64().unwrap()).abs() <= LOSS, "loss {loss}");
        gradients_match(&golden, "grad.", &gradients);
        norms_match(&expected["grad_norms"], &gradients);
        let norm = expected["global_grad_norm"].as_f64().unwrap();
        assert!((Clip::new(&gradients.all(), 1.0).norm() - norm).abs() <= GRADIENT * norm);
        model.visit(&mut |param| assert!(gradients.get(param.name()).is_some(), "{}", param.name()));
    }
}

/// Two rows, of which the second one's gradients are handed out: they are those that would have been kept,
/// each once, and those of the upper layers leave before the lowest layer has any.
#[test]
fn gradients_that_are_handed_out_during_the_pass_are_those_that_are_kept() {
    let row = Golden::open("golden_grads.safetensors").batch();
    for recompute in [false, true] {
        let mut model = model("checkpoint");
        let (_, mut kept) = trained_row(&mut model, &row, recompute);
        let (_, mut handing) = trained_row(&mut model, &row, recompute);
        let scale = 1.0 / row.target_tokens() as f64;
        model.loss_and_gradients(&row, scale, recompute, &mut kept);
        let handed = Arc::new(Mutex::new(Vec::new()));
        let to_handed = Arc::clone(&handed);
        handing.hand_out(Arc::new(move |name: &str, gradient: Tensor<2>| {
            to_handed.lock().unwrap().push((name.to_owned(), host(gradient)));
        }));
        model.loss_and_gradients(&row, scale, recompute, &mut handing);
        let handed = handed.lock().unwrap();
        let ordered = model.trained_in_backward_order();
        assert_eq!(handed.len(), ordered.len(), "each is handed out once");
        for (name, gradient) in handed.iter() {
            assert!(host(kept.get(name).unwrap().clone()) == *gradient, "{name}");
            assert!(handing.get(name).is_none(), "{name}");
        }
        let place = |name: &str| handed.iter().position(|(handed, _)| handed == name).unwrap();
        let last = model.config().layers.len() - 1;
        let of = |layer: usize| place(&format!("layers.{layer}.mlp.down_proj.weight"));
        assert!((0..last).all(|layer| of(layer + 1) < of(layer)), "from the last layer to the first");
        assert!(
            of(1) < place("embed_tokens.weight") && ordered.last().unwrap().name() == "embed_tokens.weight"
        );
    }
}

#[test]
fn padding_on_the_right_changes_nothing() {
    let golden = Golden::open("golden_grads.safetensors");
    let expected = &json("golden_loss.json")["right_padded"];
    let (ids, labels) = (golden.integers("input_ids"), golden.integers("labels"));
    let lengths: Vec<usize> = integers(&expected["row_lengths"]);
    let width = golden.shape("input_ids")[1];
    let cut = |x: &[i64]| -> Vec<i64> {
        lengths.iter().enumerate().flat_map(|(i, length)| x[i * width..][..*length].to_vec()).collect()
    };
    let row = labelled_row(&cut(&ids), &cut(&labels), &lengths);
    assert_eq!(row.target_tokens() as u64, expected["target_tokens"].as_u64().unwrap());
    let loss = model("checkpoint").loss_sum(&row).nats() / row.target_tokens() as f64;
    assert!((loss - expected["loss"].as_f64().unwrap()).abs() <= LOSS, "loss {loss}");
}

#[test]
fn a_packed_row_has_the_loss_and_gradients_of_its_examples() {
    let golden = Golden::open("golden_packed.safetensors");
    let expected = json("golden_packed.json");
    let lengths = integers(&expected["example_lengths"]);
    let (ids, labels) = (golden.integers("input_ids"), golden.integers("labels"));
    let row = labelled_row(&ids, &labels, &lengths);
    let sums = golden.numbers("example_loss_sums");
    for recompute in [false, true] {
        let mut model = model("checkpoint");
        let (loss, gradients) = trained_row(&mut model, &row, recompute);
        assert!((loss - expected["loss"].as_f64().unwrap()).abs() <= LOSS, "loss {loss}");
        gradients_match(&golden, "grad.", &gradients);
    }
    let model = model("checkpoint");
    let mut from = 0;
    for (length, sum) in lengths.iter().zip(sums) {
        let part = from..from + length;
        let alone = labelled_row(&ids[part.clone()], &labels[part], &[*length]);
        let targets = alone.target_tokens() as f64;
        assert!((model.loss_sum(&alone).nats() - f64::from(sum)).abs() <= LOSS * targets.max(10.0));
        from += length;
    }
    // The test would detect a missing reset: each known error in packing gives another loss.
    let loss = model.loss_sum(&row).nats() / row.target_tokens() as f64;
    for (name, wrong) in expected["wrong_variants"].as_object().unwrap() {
        let wrong = wrong["loss"].as_f64().unwrap();
        assert!((wrong - loss).abs() > 100.0 * LOSS, "the loss is that of the mistake `{name}`");
    }
}

fn with_mtp() -> (Model, Mtp) {
    let checkpoint = Checkpoint::open(&qwen35().join("checkpoint")).unwrap();
    let mtp = Mtp::load(&checkpoint, &Device::flex()).unwrap();
    (model("checkpoint"), mtp)
}

#[test]
fn the_mtp_head_is_that_of_the_reference() {
    let golden = Golden::open("golden_mtp.safetensors");
    let expected = json("golden_mtp.json");
    let row = golden.batch();
    let (model, mut mtp) = with_mtp();
    mtp.set_trainable(true);
    let hidden = model.hidden(&row);
    let error = super::difference(&host(hidden.clone()), &golden.numbers("main_hidden"));
    assert!(error <= super::LOGITS, "main hidden differs by {error:e}");
    let own = mtp.hidden(&model, hidden.clone(), &row);
    let error = super::difference(&host(own.clone()), &golden.numbers("mtp_hidden"));
    assert!(error <= super::LOGITS, "MTP hidden differs by {error:e}");
    let first_row = golden.shape("mtp_logits_row0")[0];
    let logits = model.logits(own.inner().narrow(0, 0, first_row));
    let error = super::difference(&logits, &golden.numbers("mtp_logits_row0"));
    assert!(error <= super::LOGITS, "MTP logits differ by {error:e}");

    let targets = Mtp::target_tokens(&row);
    assert_eq!(targets as u64, expected["mtp_targets"].as_u64().unwrap());
    let mut gradients = Gradients::default();
    let loss =
        mtp.loss_and_gradients(&model, hidden.clone(), &row, 1, 1.0 / targets as f64, &mut gradients).nats();
    assert!((loss - expected["mtp_loss"].as_f64().unwrap()).abs() <= LOSS, "MTP loss {loss}");
    assert!((mtp.loss_sums(&model, hidden, &row, 1)[0].nats() / targets as f64 - loss).abs() <= LOSS);
    gradients_match(&golden, "grad.", &gradients);
}

#[test]
fn the_mtp_loss_of_a_packed_row_crosses_no_border() {
    let golden = Golden::open("golden_packed.safetensors");
    let expected = json("golden_packed.json");
    let lengths = integers(&expected["example_lengths"]);
    let row = labelled_row(&golden.integers("input_ids"), &golden.integers("labels"), &lengths);
    let (model, mtp) = with_mtp();
    let targets = Mtp::target_tokens(&row);
    assert_eq!(targets as u64, expected["mtp_targets"].as_u64().unwrap());
    let loss = mtp.loss_sums(&model, model.hidden(&row), &row, 1)[0].nats() / targets as f64;
    assert!((loss - expected["mtp_loss"].as_f64().unwrap()).abs() <= LOSS, "MTP loss {loss}");
}

#[test]
fn the_joint_loss_sends_its_gradient_through_the_trunk() {
    let golden = Golden::open("golden_mtp.safetensors");
    let expected = &json("golden_mtp.json")["joint"];
    let row = golden.batch();
    let (mut model, mut mtp) = with_mtp();
    model.set_trainable(true);
    mtp.set_trainable(true);
    let hidden = model.hidden(&row);
    let main = sparktune_kernels::linear_cross_entropy::linear_cross_entropy(
        hidden.clone(),
        model.head().tensor,
        &row.targets,
        1.0 / row.target_tokens() as f64,
    );
    let lambda = expected["lambda_mtp"].as_f64().unwrap();
    let own = mtp.loss(&model, hidden, &row, 1, lambda / Mtp::target_tokens(&row) as f64).unwrap();
    let total = main + own;
    let mut backward = total.backward();
    let mut gradients = Gradients::default();
    model.visit(&mut |param| gradients.take_sum(param, &mut backward));
    mtp.visit(&mut |param| gradients.take_sum(param, &mut backward));
    let total = f64::from(total.into_scalar::<f32>());
    assert!((total - expected["total"].as_f64().unwrap()).abs() <= 2.0 * LOSS, "joint loss {total}");
    gradients_match(&golden, "joint_grad.", &gradients);
    norms_match(&expected["grad_norms"], &gradients);
}
