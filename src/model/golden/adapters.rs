//! Tests of adapters on some of the linear layers, of dropout, and of damaged adapter folders.

use std::fs;
use std::path::Path;

use burn::tensor::{Device, Tensor, TensorData};
use serde_json::Value;
use sparktune_plan::TargetModules;
use tempfile::TempDir;

use super::{Golden, host, model, qwen35, relative};
use crate::numbers::uniform;
use crate::{BaseClass, Checkpoint, Gradients, LoraConfig, Model, ModelError, PackedSequence};

fn row() -> PackedSequence {
    Golden::open("golden_grads.safetensors").batch()
}

/// Returns the fixture with adapters on layers of these names, of which those in `trained` have been trained.
fn adapted(names: &[&str], trained: &[&str]) -> Model {
    let mut model = model("checkpoint");
    let targets = TargetModules::of_names(names.iter().copied()).unwrap();
    model.attach_lora(LoraConfig { targets, ..LoraConfig::new(8, 16.0) }, 3);
    for linear in model.linears_mut() {
        let is_trained = trained.contains(&linear.name());
        let Some(lora) = linear.lora.as_mut().filter(|_| is_trained) else { continue };
        let (value, shape) = (lora.b.wide(), [lora.b.shape()[0], lora.b.shape()[1]]);
        let noise = uniform(lora.b.name(), 5, shape[0] * shape[1], 0.05);
        let noise = TensorData::new(noise, shape);
        lora.b.put(value + Tensor::from_data(noise, &Device::flex()), true);
    }
    model
}

fn loss_and_gradients(model: &Model, recompute: bool) -> (f64, Gradients) {
    let (row, mut gradients) = (row(), Gradients::default());
    let scale = 1.0 / row.target_tokens() as f64;
    let loss = model.loss_and_gradients(&row, scale, recompute, &mut gradients).nats();
    (loss, gradients)
}

const ALL: [&str; 12] = [
    "q_proj",
    "k_proj",
    "v_proj",
    "o_proj",
    "in_proj_qkv",
    "in_proj_z",
    "in_proj_b",
    "in_proj_a",
    "out_proj",
    "gate_proj",
    "up_proj",
    "down_proj",
];

#[test]
fn adapters_on_some_layers_compute_what_adapters_on_all_compute_while_the_others_are_zero() {
    for some in [&["q_proj", "v_proj"][..], &["in_proj_z", "up_proj", "o_proj"], &["in_proj_a"]] {
        for recompute in [false, true] {
            let (few, all) = (adapted(some, some), adapted(&ALL, some));
            let (loss, gradients) = loss_and_gradients(&few, recompute);
            let (expected_loss, expected) = loss_and_gradients(&all, recompute);
            assert_eq!(loss.to_bits(), expected_loss.to_bits(), "{some:?}");
            let mut compared = 0;
            few.visit(&mut |param| {
                if !param.is_trainable() {
                    return;
                }
                let [found, wanted] =
                    [&gradients, &expected].map(|all| host(all.get(param.name()).unwrap().clone()));
                let error = relative(&found, &wanted);
                assert!(error <= 1e-5, "{}: {error:e}", param.name());
                compared += 1;
            });
            assert!(compared >= 2 * some.len(), "{compared} for {some:?}");
        }
    }
}

#[test]
fn an_adapter_on_some_layers_is_written_with_these_names_alone_and_read_again() {
    let base = Checkpoint::open(&qwen35().join("checkpoint")).unwrap();
    let names = ["down_proj", "q_proj"];
    let targets = TargetModules::of_names(names).unwrap();
    let config = LoraConfig { targets, dropout: 0.1, ..LoraConfig::new(8, 16.0) };
    let first = adapted(&names, &names);
    let folder = tempfile::tempdir().unwrap();
    first.save_lora(folder.path(), config, &base, "some/model", BaseClass::OfConfig).unwrap();
    let text = fs::read_to_string(folder.path().join("adapter_config.json")).unwrap();
    let written: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(written["target_modules"], serde_json::json!(names));
    assert_eq!(written["lora_dropout"], 0.1);
    let mut second = model("checkpoint");
    assert_eq!(second.load_lora(folder.path()).unwrap(), LoraConfig { clipped: true, ..config });
    assert_eq!(host(first.hidden(&row())), host(second.hidden(&row())));
}

#[test]
fn dropout_is_the_same_in_a_recomputed_pass_differs_by_key_and_its_gradient_is_the_slope_of_its_loss() {
    let plain = adapted(&ALL, &ALL);
    let dropped = plain.with_dropout(0.3, 11);
    let (loss, gradients) = loss_and_gradients(&dropped, false);
    let (again, recomputed) = loss_and_gradients(&dropped, true);
    assert_eq!(loss.to_bits(), again.to_bits());
    assert_ne!(loss.to_bits(), loss_and_gradients(&plain, false).0.to_bits());
    assert_ne!(loss.to_bits(), loss_and_gradients(&plain.with_dropout(0.3, 12), false).0.to_bits());
    assert_eq!(loss.to_bits(), loss_and_gradients(&plain.with_dropout(0.3, 11), false).0.to_bits());

    let mut square = 0.0;
    dropped.visit(&mut |param| {
        let Some(gradient) = gradients.get(param.name()) else { return };
        let [found, other] = [gradient, recomputed.get(param.name()).unwrap()].map(|x| host(x.clone()));
        assert!(relative(&found, &other) <= 1e-5, "{}", param.name());
        square += found.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>();
    });
    let moved = |by: f32| {
        let mut moved = dropped.clone();
        moved.visit_mut(&mut |param| {
            if let Some(gradient) = gradients.get(param.name()) {
                let value = param.wide() + gradient.clone() * by;
                param.put(value, true);
            }
        });
        loss_and_gradients(&moved, false).0
    };
    let by = 1e-3 / square.sqrt() as f32;
    let slope = (moved(by) - moved(-by)) / (2.0 * f64::from(by));
    assert!((slope / square - 1.0).abs() < 0.02, "{slope} for {square}");
}

/// Returns a copy of PEFT's adapter.
fn copy_of_adapter() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    for file in ["adapter_config.json", "adapter_model.safetensors"] {
        fs::copy(qwen35().join("lora_final").join(file), folder.path().join(file)).unwrap();
    }
    folder
}

fn refused(folder: &Path) -> String {
    let error = model("checkpoint").load_lora(folder).unwrap_err();
    assert!(matches!(error, ModelError::Adapter { .. }), "{error}");
    let said = error.to_string();
    assert!(said.contains(&folder.display().to_string()), "{said}");
    said
}

#[test]
fn damaged_and_hostile_adapters_are_refused_in_words() {
    let folder = copy_of_adapter();
    let path = folder.path().join("adapter_model.safetensors");
    let bytes = fs::read(&path).unwrap();
    let header = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    for cut in [0, 4, header - 1, bytes.len() / 2, bytes.len() - 1] {
        fs::write(&path, &bytes[..cut]).unwrap();
        // An empty file cannot be mapped on every system.
        let error = model("checkpoint").load_lora(folder.path()).unwrap_err().to_string();
        assert!(cut == 0 || error.contains("is damaged"), "{cut}: {error}");
    }
    let mut huge = bytes.clone();
    huge[..8].copy_from_slice(&u64::MAX.to_le_bytes());
    fs::write(&path, huge).unwrap();
    assert!(refused(folder.path()).contains("is damaged"));

    let mut nan = bytes.clone();
    nan[header..header + 4].copy_from_slice(&f32::NAN.to_le_bytes());
    fs::write(&path, nan).unwrap();
    let said = refused(folder.path());
    assert!(said.contains("contains the number NaN"), "{said}");

    fs::remove_file(&path).unwrap();
    fs::write(folder.path().join("adapter_model.bin"), b"\x80\x02.").unwrap();
    let said = refused(folder.path());
    assert!(said.contains("is a pickle") && said.contains("safe_serialization=True"), "{said}");
}
