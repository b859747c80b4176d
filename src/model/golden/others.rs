//! The other families: one set each, named after its folder.

use super::{GRADIENT, LOGITS, LOSS, difference, host, relative, root};
use crate::{Checkpoint, Gradients, Model, Row};
use burn::tensor::Device;
use safetensors::SafeTensors;
use sparktune_kernels::adamw::Clip;
use sparktune_plan::model_config::Architecture;

#[test]
fn logits_loss_and_gradients_of_every_other_family_are_those_of_transformers() {
    let folder = root().join("others");
    if !folder.is_dir() {
        println!("skipped: SPARKTUNE_FIXTURES has no folder `others`");
        return;
    }
    for family in ["qwen2", "qwen3", "llama", "llama_rope3"] {
        let dir = folder.join(family);
        let text = std::fs::read_to_string(dir.join("golden.json")).unwrap();
        let expected: serde_json::Value = serde_json::from_str(&text).unwrap();
        let bytes = std::fs::read(dir.join("golden.safetensors")).unwrap();
        let golden = SafeTensors::deserialize(&bytes).unwrap();
        let floats = |name: &str| {
            let view = golden.tensor(name).unwrap();
            crate::checkpoint::widen(view.data(), view.dtype()).unwrap()
        };
        let integers = |name: &str| -> Vec<i64> {
            let data = golden.tensor(name).unwrap().data().to_vec();
            data.chunks_exact(8).map(|b| i64::from_le_bytes(b.try_into().unwrap())).collect()
        };
        let checkpoint = Checkpoint::open(&dir).unwrap();
        let mut model = Model::load(&checkpoint, &Device::flex(), &mut |_, _| ()).unwrap();
        for n in [1, 17, 50] {
            let ids: Vec<u32> = integers(&format!("input_ids_{n}")).into_iter().map(|id| id as u32).collect();
            let logits = model.logits(model.hidden(&Row::single(&ids)));
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
                // A bias on k has no gradient at all (softmax ignores it): compare what is left absolutely.
                assert!(
                    (got - norm).abs() <= GRADIENT * norm + 1e-6,
                    "{family}: gradient norm of {name}: {got} for {norm}"
                );
                if let Ok(view) = golden.tensor(&format!("grad.{stored}")) {
                    let expected = crate::checkpoint::widen(view.data(), view.dtype()).unwrap();
                    let error = relative(&host(gradient.clone()), &expected);
                    assert!(error <= GRADIENT || norm < 1e-5, "{family}: gradient of {name}: {error:e}");
                }
            }
        }
    }
}

#[test]
fn a_mistral_with_a_sliding_window_decodes_as_it_trains() {
    // No golden set: the config of the Llama set as a Mistral with a window, full row against token by token.
    let dir = root().join("others/llama");
    if !dir.is_dir() {
        println!("skipped: SPARKTUNE_FIXTURES has no folder `others/llama`");
        return;
    }
    let copy = tempfile::tempdir().unwrap();
    std::fs::copy(dir.join("model.safetensors"), copy.path().join("model.safetensors")).unwrap();
    let text = std::fs::read_to_string(dir.join("config.json")).unwrap();
    let mut config: serde_json::Value = serde_json::from_str(&text).unwrap();
    config["model_type"] = "mistral".into();
    config["sliding_window"] = 5.into();
    std::fs::write(copy.path().join("config.json"), config.to_string()).unwrap();
    let checkpoint = Checkpoint::open(copy.path()).unwrap();
    let model = Model::load(&checkpoint, &Device::flex(), &mut |_, _| ()).unwrap();
    let ids: Vec<u32> = (0..20).map(|i| (i * 37 + 11) % 256).collect();
    let whole = host(model.hidden(&Row::single(&ids)));
    let mut cache = model.empty_cache();
    let stepped: Vec<f32> = ids.iter().flat_map(|id| host(model.continue_from(&[*id], &mut cache))).collect();
    assert!(difference(&whole, &stepped) < 1e-4);
    let plain = Checkpoint::open(&dir).unwrap();
    let plain = Model::load(&plain, &Device::flex(), &mut |_, _| ()).unwrap();
    assert!(difference(&whole, &host(plain.hidden(&Row::single(&ids)))) > 1e-3, "the window has an effect");
}

#[test]
fn an_unknown_family_is_computed_as_said_and_refused_where_a_tensor_finds_no_place() {
    let dir = root().join("others/qwen3");
    if !dir.is_dir() {
        println!("skipped: SPARKTUNE_FIXTURES has no folder `others/qwen3`");
        return;
    }
    let copy = tempfile::tempdir().unwrap();
    std::fs::copy(dir.join("model.safetensors"), copy.path().join("model.safetensors")).unwrap();
    let text = std::fs::read_to_string(dir.join("config.json")).unwrap();
    std::fs::write(copy.path().join("config.json"), text.replace("\"qwen3\"", "\"newlm\"")).unwrap();
    assert!(Checkpoint::open(copy.path()).is_err());

    let load = |dir: &std::path::Path, family| {
        Model::load(&Checkpoint::open_as(dir, family).unwrap(), &Device::flex(), &mut |_, _| ())
    };
    let hidden = |model: Model| host(model.hidden(&Row::single(&[1, 2, 3, 4])));
    let there = hidden(load(&dir, None).unwrap());
    assert_eq!(hidden(load(copy.path(), Some(Architecture::Qwen3)).unwrap()), there);
    // Without its norms of queries and keys it would be silently another model.
    let error = load(copy.path(), Some(Architecture::Llama)).unwrap_err().to_string();
    assert!(error.contains("q_norm.weight") || error.contains("k_norm.weight"), "{error}");
}
