//! Tests of the other families, with one set per family.

use std::path::{Path, PathBuf};

use burn::tensor::Device;
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};
use sparktune_kernels::adamw::Clip;
use sparktune_plan::Architecture;
use sparktune_plan::architecture::TensorSpec;
use sparktune_plan::model_config::ConfigOptions;

use super::{GRADIENT, LOGITS, LOSS, difference, host, is_elsewhere, qwen35, relative, root};
use crate::{Checkpoint, Gradients, Model, ModelError, Mtp, PackedSequence, Param};

/// The folders of the sets, each named after its family.
pub(super) const FOLDERS: [&str; 6] = ["qwen2", "qwen3", "llama", "llama_rope3", "mistral", "gemma3"];

fn load(dir: &Path) -> Result<Model, ModelError> {
    Model::load(&Checkpoint::open(dir)?, &Device::flex(), &mut |_, _| ())
}

/// Returns the existing folders of all families, including Qwen3.5.
fn every_family() -> Vec<PathBuf> {
    let others = FOLDERS.into_iter().map(|name| root().join("others").join(name));
    others
        .chain(["checkpoint", "checkpoint_text_bf16"].map(|name| qwen35().join(name)))
        .filter(|dir| dir.is_dir())
        .collect()
}

/// Copies a checkpoint folder with one weight file and adds one tensor.
fn with_tensor(dir: &Path, name: &str) -> tempfile::TempDir {
    let copy = tempfile::tempdir().unwrap();
    std::fs::copy(dir.join("config.json"), copy.path().join("config.json")).unwrap();
    let bytes = std::fs::read(dir.join("model.safetensors")).unwrap();
    let stored = SafeTensors::deserialize(&bytes).unwrap();
    let mut tensors = stored.tensors();
    let numbers = [0; 8];
    tensors.push((name.to_owned(), TensorView::new(Dtype::F32, vec![2], &numbers).unwrap()));
    safetensors::serialize_to_file(tensors, None, &copy.path().join("model.safetensors")).unwrap();
    copy
}

#[test]
fn logits_loss_and_gradients_of_every_other_family_are_those_of_transformers() {
    let folder = root().join("others");
    if is_elsewhere() && !folder.is_dir() {
        println!("skipped: SPARKTUNE_FIXTURES has no folder `others`");
        return;
    }
    for family in FOLDERS {
        let dir = folder.join(family);
        let text = std::fs::read_to_string(dir.join("golden.json")).unwrap();
        let expected: serde_json::Value = serde_json::from_str(&text).unwrap();
        let bytes = std::fs::read(dir.join("golden.safetensors")).unwrap();
        let golden = SafeTensors::deserialize(&bytes).unwrap();
        let floats = |name: &str| {
            let view = golden.tensor(name).unwrap();
            crate::numbers::widen(view.data(), view.dtype()).unwrap()
        };
        let integers = |name: &str| -> Vec<i64> {
            let data = golden.tensor(name).unwrap().data().to_vec();
            data.chunks_exact(8).map(|b| i64::from_le_bytes(b.try_into().unwrap())).collect()
        };
        let checkpoint = Checkpoint::open(&dir).unwrap();
        let mut model = Model::load(&checkpoint, &Device::flex(), &mut |_, _| ()).unwrap();
        for n in [1, 17, 50] {
            let ids: Vec<u32> = integers(&format!("input_ids_{n}")).into_iter().map(|id| id as u32).collect();
            let logits = model.logits(model.hidden(&PackedSequence::single(&ids)));
            let error = difference(&logits, &floats(&format!("logits_{n}")));
            assert!(error <= LOGITS, "{family}: logits of length {n} differ by {error:e}");
        }
        let row = super::labelled_row(&integers("train_input_ids"), &integers("train_labels"), &[33, 33]);
        for recompute in [false, true] {
            model.set_trainable(true);
            let mut gradients = Gradients::default();
            let scale = 1.0 / row.target_tokens() as f64;
            let loss = model.loss_and_gradients(&row, scale, recompute, &mut gradients).nats();
            assert!((loss - expected["loss"].as_f64().unwrap()).abs() <= LOSS, "{family}: loss {loss}");
            for (stored, norm) in expected["grad_norms"].as_object().unwrap() {
                let name = stored.strip_prefix("model.").unwrap_or(stored);
                let gradient =
                    gradients.get(name).unwrap_or_else(|| panic!("{family}: no gradient of {name}"));
                let (got, norm) = (Clip::new(&[gradient], 1.0).norm(), norm.as_f64().unwrap());
                // A bias on k has no gradient at all (softmax ignores it), so the remainder is compared
                // absolutely.
                assert!(
                    (got - norm).abs() <= GRADIENT * norm + 1e-6,
                    "{family}: gradient norm of {name}: {got} for {norm}"
                );
                if let Ok(view) = golden.tensor(&format!("grad.{stored}")) {
                    let expected = crate::numbers::widen(view.data(), view.dtype()).unwrap();
                    let error = relative(&host(gradient.clone()), &expected);
                    assert!(error <= GRADIENT || norm < 1e-5, "{family}: gradient of {name}: {error:e}");
                }
            }
        }
    }
}

#[test]
fn the_parameters_of_a_model_are_those_of_its_familys_table_in_the_order_of_the_table() {
    let described = |param: &Param| (param.name().to_owned(), param.shape().to_vec());
    for dir in every_family() {
        let checkpoint = Checkpoint::open(&dir).unwrap();
        let config = checkpoint.config();
        let expected = |tensors: Vec<TensorSpec>| -> Vec<_> {
            tensors.into_iter().map(|tensor| (tensor.name, tensor.shape)).collect()
        };
        let mut found = Vec::new();
        load(&dir).unwrap().visit(&mut |param| found.push(described(param)));
        assert_eq!(found, expected(config.tensors()), "{}", dir.display());
        if checkpoint.has_mtp() {
            let mut found = Vec::new();
            let mtp = Mtp::load(&checkpoint, &Device::flex()).unwrap();
            mtp.visit(&mut |param| found.push(described(param)));
            assert_eq!(found, expected(config.mtp.as_ref().unwrap().tensors()), "{}", dir.display());
        }
    }
}

#[test]
fn a_tensor_that_no_part_of_the_model_uses_is_refused_in_every_family_and_carried_ones_are_not() {
    for dir in every_family() {
        let (model, vision) = match Checkpoint::open(&dir).unwrap().stored_name("norm.weight").as_str() {
            "model.norm.weight" => ("model.", None),
            _ => ("model.language_model.", Some("model.visual.new.weight")),
        };
        let unused = [
            format!("{model}layers.0.self_attn.sinks"),
            format!("{model}layers.0.mlp.gate_proj.bias"),
            format!("{model}layers.999.input_layernorm.weight"),
            format!("{model}embed_positions.weight"),
            "lm_head.bias".to_owned(),
            "score.weight".to_owned(),
        ];
        for name in unused {
            let error = load(with_tensor(&dir, &name).path()).unwrap_err();
            let ModelError::UnknownTensor { name: found, .. } = &error else { panic!("{name}: {error}") };
            assert_eq!(*found, name);
        }
        let rotary = format!("{model}layers.0.self_attn.rotary_emb.inv_freq");
        for name in std::iter::once(rotary.as_str()).chain(vision) {
            load(with_tensor(&dir, name).path()).unwrap();
        }
    }
}

#[test]
fn a_mistral_with_a_sliding_window_decodes_as_it_trains() {
    // The golden set has no window, so the same weights with one are compared on a whole sequence and token
    // by token.
    let dir = root().join("others/mistral");
    if is_elsewhere() && !dir.is_dir() {
        println!("skipped: SPARKTUNE_FIXTURES has no folder `others/mistral`");
        return;
    }
    let copy = tempfile::tempdir().unwrap();
    std::fs::copy(dir.join("model.safetensors"), copy.path().join("model.safetensors")).unwrap();
    let text = std::fs::read_to_string(dir.join("config.json")).unwrap();
    let mut config: serde_json::Value = serde_json::from_str(&text).unwrap();
    config["sliding_window"] = 5.into();
    std::fs::write(copy.path().join("config.json"), config.to_string()).unwrap();
    let model = load(copy.path()).unwrap();
    let ids: Vec<u32> = (0..20).map(|i| (i * 37 + 11) % 256).collect();
    let whole = host(model.hidden(&PackedSequence::single(&ids)));
    let mut cache = model.empty_cache();
    let stepped: Vec<f32> = ids.iter().flat_map(|id| host(model.continue_from(&[*id], &mut cache))).collect();
    assert!(difference(&whole, &stepped) < 1e-4);
    let plain = load(&dir).unwrap();
    assert!(
        difference(&whole, &host(plain.hidden(&PackedSequence::single(&ids)))) > 1e-3,
        "the window has an effect"
    );
}

#[test]
fn an_unknown_family_is_computed_as_said_and_refused_where_a_tensor_finds_no_place() {
    let dir = root().join("others/qwen3");
    if is_elsewhere() && !dir.is_dir() {
        println!("skipped: SPARKTUNE_FIXTURES has no folder `others/qwen3`");
        return;
    }
    let copy = tempfile::tempdir().unwrap();
    std::fs::copy(dir.join("model.safetensors"), copy.path().join("model.safetensors")).unwrap();
    let text = std::fs::read_to_string(dir.join("config.json")).unwrap();
    std::fs::write(copy.path().join("config.json"), text.replace("\"qwen3\"", "\"newlm\"")).unwrap();
    assert!(Checkpoint::open(copy.path()).is_err());

    let computed_as = |family| {
        // Without this, the config alone would be refused for Llama.
        let ignored_fields = vec!["max_window_layers".to_owned()];
        let options = ConfigOptions { computed_as: Some(family), ignored_fields };
        let checkpoint = Checkpoint::open_with(copy.path(), &options).unwrap();
        Model::load(&checkpoint, &Device::flex(), &mut |_, _| ())
    };
    let hidden = |model: Model| host(model.hidden(&PackedSequence::single(&[1, 2, 3, 4])));
    assert_eq!(hidden(computed_as(Architecture::Qwen3).unwrap()), hidden(load(&dir).unwrap()));
    // Without its norms of queries and keys it would silently be another model.
    let error = computed_as(Architecture::Llama).unwrap_err().to_string();
    assert!(error.contains("q_norm.weight") || error.contains("k_norm.weight"), "{error}");
}
