//! Tests of reading, writing and refusing checkpoints and adapters on disk.

use std::path::Path;

use burn::tensor::{Device, Tensor, TensorData};

use super::{difference, export, host, json, model, qwen35};
use crate::{BaseClass, Checkpoint, LoraConfig, Model, ModelError, Mtp, PackedSequence};

fn probe() -> PackedSequence {
    PackedSequence::single(&[1, 5, 9, 200, 33, 7, 2, 2, 100])
}

fn copy_of(folder: &str) -> tempfile::TempDir {
    let to = tempfile::tempdir().unwrap();
    for entry in std::fs::read_dir(qwen35().join(folder)).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), to.path().join(entry.file_name())).unwrap();
    }
    to
}

#[test]
fn every_tensor_of_the_reference_is_found_with_its_shape() {
    let checkpoint = Checkpoint::open(&qwen35().join("checkpoint")).unwrap();
    let keys = json("checkpoint_keys.json");
    let keys = keys.as_object().unwrap();
    assert_eq!(keys.len(), checkpoint.tensors().len());
    for (name, info) in checkpoint.tensors() {
        let shape: Vec<usize> =
            serde_json::from_value(keys[name].get("shape").cloned().unwrap_or_else(|| keys[name].clone()))
                .unwrap();
        assert_eq!(info.shape, shape, "{name}");
    }
}

#[test]
fn text_weights_under_wrapper_names_load_like_the_wrapper() {
    // Layout C is what transformers writes when a wrapper checkpoint is loaded as a causal LM and saved
    // again.
    let wrapper = Checkpoint::open(&qwen35().join("checkpoint")).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let config: serde_json::Value = serde_json::from_str(wrapper.config_text()).unwrap();
    let mut text = config["text_config"].clone();
    text["architectures"] = serde_json::json!(["Qwen3_5ForCausalLM"]);
    std::fs::write(dir.path().join("config.json"), text.to_string()).unwrap();
    let bytes = std::fs::read(qwen35().join("checkpoint/model.safetensors")).unwrap();
    let all = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let kept = all.tensors().into_iter().filter(|(name, _)| name.starts_with("model.language_model."));
    safetensors::serialize_to_file(kept, None, &dir.path().join("model.safetensors")).unwrap();
    let checkpoint = Checkpoint::open(dir.path()).unwrap();
    assert!(!checkpoint.has_mtp());
    let loaded = Model::load(&checkpoint, &Device::flex(), &mut |_, _| ()).unwrap();
    assert_eq!(host(loaded.hidden(&probe())), host(model("checkpoint").hidden(&probe())));
}

#[test]
fn an_untrained_export_is_the_base_byte_for_byte() {
    for folder in ["checkpoint", "checkpoint_trained_bf16", "checkpoint_text_bf16"] {
        let base = Checkpoint::open(&qwen35().join(folder)).unwrap();
        let out = tempfile::tempdir().unwrap();
        let out = out.path().join("merged");
        let accounting = export(&base, &model(folder), None, true, &out, &probe()).unwrap();
        assert_eq!(accounting.base_tensors, accounting.trained + accounting.carried);
        assert_eq!(accounting.logits_distance, 0.0);
        let written = Checkpoint::open(&out).unwrap();
        for (name, info) in base.tensors() {
            assert_eq!(base.bytes(info), written.bytes(&written.tensors()[name]), "{folder}: {name}");
        }
        assert_eq!(base.config_text(), written.config_text());
        let names = |dir: &Path| -> Vec<String> {
            let mut names: Vec<String> = std::fs::read_dir(dir)
                .unwrap()
                .map(|entry| entry.unwrap().file_name().into_string().unwrap())
                .collect();
            names.sort();
            names
        };
        assert_eq!(names(base.dir()), names(&out));
    }
}

#[test]
fn an_adapter_is_merged_into_its_linears_and_touches_nothing_else() {
    let base = Checkpoint::open(&qwen35().join("checkpoint_trained_bf16")).unwrap();
    let mut trained = model("checkpoint_trained_bf16");
    trained.attach_lora(LoraConfig { rslora: true, ..LoraConfig::new(4, 8.0) }, 7);
    for linear in trained.linears_mut() {
        let b = &mut linear.lora.as_mut().unwrap().b;
        let value = b.wide() + 0.01;
        b.put(value, true);
    }
    let out = tempfile::tempdir().unwrap();
    let out = out.path().join("merged");
    let accounting = export(&base, &trained, None, true, &out, &probe()).unwrap();
    assert!(accounting.logits_distance > 0.0 && accounting.logits_distance < 0.05, "{accounting:?}");
    let written = Checkpoint::open(&out).unwrap();
    for (name, info) in base.tensors() {
        let same = base.bytes(info) == written.bytes(&written.tensors()[name]);
        let adapted = ["self_attn.", "linear_attn.", "mlp."].iter().any(|part| name.contains(part))
            && name.contains("proj")
            && name.starts_with("model.language_model.");
        assert_eq!(same, !adapted, "{name}");
    }
}

#[test]
fn a_head_that_is_left_out_is_left_out_of_the_config_too() {
    let base = Checkpoint::open(&qwen35().join("checkpoint")).unwrap();
    let out = tempfile::tempdir().unwrap();
    let out = out.path().join("merged");
    export(&base, &model("checkpoint"), None, false, &out, &probe()).unwrap();
    let written = Checkpoint::open(&out).unwrap();
    assert!(!written.has_mtp());
    assert_eq!(written.config().mtp_num_hidden_layers, 0);
}

#[test]
fn a_base_that_has_lost_its_head_is_exported_with_that_of_another_model() {
    let donor = qwen35().join("checkpoint");
    let whole = Checkpoint::open(&donor).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let [bare, joined] = ["bare", "joined"].map(|name| folder.path().join(name));
    export(&whole, &model("checkpoint"), None, false, &bare, &probe()).unwrap();
    // transformers drops the head and leaves the config as it is.
    std::fs::copy(donor.join("config.json"), bare.join("config.json")).unwrap();
    let open = || Checkpoint::open(&bare).unwrap();
    assert!(!open().has_mtp());

    let base = open().with_head_of(&donor).unwrap();
    Mtp::load(&base, &Device::flex()).unwrap();
    export(&base, &model("checkpoint"), None, true, &joined, &probe()).unwrap();
    let written = Checkpoint::open(&joined).unwrap();
    assert_eq!(written.tensors().len(), whole.tensors().len());
    for (name, info) in whole.tensors() {
        assert!(whole.bytes(info) == written.bytes(&written.tensors()[name]), "{name}");
    }

    let refused =
        |checkpoint: Checkpoint, from: &Path| checkpoint.with_head_of(from).err().unwrap().to_string();
    assert!(refused(whole, &donor).contains("Omit --mtp-from"));
    assert!(refused(open(), &bare).contains("`mtp.fc.weight` is missing"));
}

#[test]
fn a_trained_mtp_head_is_written() {
    let base = Checkpoint::open(&qwen35().join("checkpoint")).unwrap();
    let mut mtp = Mtp::load(&base, &Device::flex()).unwrap();
    mtp.visit_mut(&mut |param| {
        let value = param.wide() + 0.5;
        param.put(value, false);
    });
    let out = tempfile::tempdir().unwrap();
    let out = out.path().join("merged");
    export(&base, &model("checkpoint"), Some(&mtp), true, &out, &probe()).unwrap();
    let written = Checkpoint::open(&out).unwrap();
    for (name, info) in base.tensors() {
        let same = base.bytes(info) == written.bytes(&written.tensors()[name]);
        assert_eq!(same, !name.starts_with("mtp."), "{name}");
    }
}

#[test]
fn an_adapter_survives_being_saved_and_loaded() {
    let base = Checkpoint::open(&qwen35().join("checkpoint")).unwrap();
    let mut first = model("checkpoint");
    let config = first.load_lora(&qwen35().join("lora_final")).unwrap();
    let dir = tempfile::tempdir().unwrap();
    first.save_lora(dir.path(), config, &base, "some/model", BaseClass::OfConfig).unwrap();
    let mut second = model("checkpoint");
    assert_eq!(second.load_lora(dir.path()).unwrap(), config);
    assert_eq!(host(first.hidden(&probe())), host(second.hidden(&probe())));
    // The keys are the same as those written by PEFT.
    assert_eq!(adapter_keys(dir.path()), adapter_keys(&qwen35().join("lora_final")));
}

/// Returns the names of an adapter's tensors, sorted.
fn adapter_keys(folder: &Path) -> Vec<String> {
    let bytes = std::fs::read(folder.join("adapter_model.safetensors")).unwrap();
    let tensors = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let mut keys: Vec<String> = tensors.names().into_iter().map(str::to_owned).collect();
    keys.sort();
    keys
}

#[test]
fn an_adapter_for_the_class_of_causal_models_differs_in_its_names_alone_and_only_where_that_class_differs() {
    let [wrapper, text_only] = ["checkpoint", "checkpoint_text_bf16"].map(|folder| {
        let base = Checkpoint::open(&qwen35().join(folder)).unwrap();
        (BaseClass::all_of(&base), base)
    });
    assert_eq!(wrapper.0, [BaseClass::OfConfig, BaseClass::CausalLm]);
    assert_eq!(text_only.0, [BaseClass::OfConfig]);

    let mut model = model("checkpoint");
    let config = model.load_lora(&qwen35().join("lora_final")).unwrap();
    let [of_config, causal] = [BaseClass::OfConfig, BaseClass::CausalLm].map(|class| {
        let dir = tempfile::tempdir().unwrap();
        model.save_lora(dir.path(), config, &wrapper.1, "some/model", class).unwrap();
        dir
    });
    let renamed: Vec<String> = adapter_keys(of_config.path())
        .into_iter()
        .map(|key| key.replace("model.model.language_model.layers.", "model.model.layers."))
        .collect();
    assert_eq!(adapter_keys(causal.path()), renamed);
    let settings = |folder: &Path| std::fs::read_to_string(folder.join("adapter_config.json")).unwrap();
    assert_eq!(settings(of_config.path()), settings(causal.path()));
    let hidden = host(model.hidden(&probe()));
    assert_eq!(model.load_lora(causal.path()).unwrap(), config);
    assert_eq!(host(model.hidden(&probe())), hidden);
}

#[test]
fn a_rank_is_clipped_to_the_width_of_a_layer_and_its_scale_stays_that_of_the_setting() {
    let base = Checkpoint::open(&qwen35().join("checkpoint_trained_bf16")).unwrap();
    for rslora in [false, true] {
        let config = LoraConfig { rslora, clipped: true, ..LoraConfig::new(32, 64.0) };
        let mut trained = model("checkpoint_trained_bf16");
        trained.attach_lora(config, 7);
        let mut narrow = 0;
        for linear in trained.linears_mut() {
            let shape = [linear.weight.shape()[0], linear.weight.shape()[1]];
            let lora = linear.lora.as_mut().unwrap();
            // The gates of the delta rule have 4 outputs, all other layers 64 and more.
            let rank = if shape[0] < 32 { 8 } else { 32 };
            narrow += usize::from(rank == 8);
            assert_eq!((lora.a.shape(), lora.b.shape()), (&[rank, shape[1]][..], &[shape[0], rank][..]));
            assert_eq!(lora.scale, config.scale());
            let value = lora.b.wide() + 0.002;
            lora.b.put(value, true);
        }
        assert_eq!(narrow, 6, "two in each of three layers");

        let dir = tempfile::tempdir().unwrap();
        trained.save_lora(dir.path(), config, &base, "some/model", BaseClass::OfConfig).unwrap();
        let settings = std::fs::read_to_string(dir.path().join("adapter_config.json")).unwrap();
        let settings: serde_json::Value = serde_json::from_str(&settings).unwrap();
        let ranks = settings["rank_pattern"].as_object().unwrap();
        assert!(ranks.len() == 6 && ranks["layers.0.linear_attn.in_proj_a"] == 8, "{settings}");
        assert_eq!(settings["lora_alpha"].as_u64(), Some(64), "PEFT's type is a whole number");
        // What PEFT computes: alpha / r, or alpha / sqrt(r).
        for (module, rank) in ranks {
            let (rank, alpha) = (rank.as_f64().unwrap(), settings["alpha_pattern"][module].as_f64().unwrap());
            let scale = alpha / if rslora { rank.sqrt() } else { rank };
            assert!((scale - config.scale()).abs() < 1e-9, "{module}: {scale}");
        }
        let mut again = model("checkpoint_trained_bf16");
        assert_eq!(again.load_lora(dir.path()).unwrap(), config);
        assert_eq!(host(again.hidden(&probe())), host(trained.hidden(&probe())));

        let adapted = host(trained.hidden(&probe()));
        for linear in trained.linears_mut() {
            let shape = [linear.weight.shape()[0], linear.weight.shape()[1]];
            let merged = TensorData::new(linear.merged_weight(), shape);
            linear.weight.put(Tensor::from_data(merged, &Device::flex()), false);
            linear.lora = None;
        }
        let distance = difference(&host(trained.hidden(&probe())), &adapted);
        assert!(distance < 1e-3, "{distance}");
    }
}

#[test]
fn a_fresh_adapter_changes_nothing_and_depends_on_its_seed() {
    let plain = host(model("checkpoint").hidden(&probe()));
    let config = LoraConfig::new(8, 16.0);
    let with_seed = |seed| {
        let mut model = model("checkpoint");
        model.attach_lora(config, seed);
        model
    };
    let (one, two) = (with_seed(1), with_seed(2));
    assert!(difference(&host(one.hidden(&probe())), &plain) < 1e-6);
    let first_a = |model: &Model| model.linears()[0].lora.as_ref().unwrap().a.to_vec();
    assert_eq!(first_a(&one), first_a(&with_seed(1)));
    assert_ne!(first_a(&one), first_a(&two));
    let bound = 1.0 / (one.config().hidden_size as f32).sqrt();
    assert!(first_a(&one).iter().all(|x| x.abs() <= bound));
}

#[test]
fn damaged_and_hostile_checkpoints_are_refused_in_words() {
    let dir = copy_of("checkpoint");
    let weights = dir.path().join("model.safetensors");
    let bytes = std::fs::read(&weights).unwrap();
    std::fs::write(&weights, &bytes[..bytes.len() / 2]).unwrap();
    let error = Checkpoint::open(dir.path()).err().unwrap();
    assert!(matches!(error, ModelError::Damaged { .. }), "{error}");

    std::fs::remove_file(&weights).unwrap();
    assert!(matches!(Checkpoint::open(dir.path()).err().unwrap(), ModelError::NoWeights(_)));

    for file in ["../../etc/passwd", &"x".repeat(5000), &"../".repeat(5000)] {
        let index = format!(r#"{{"weight_map": {{"a": "{file}"}}}}"#);
        std::fs::write(dir.path().join("model.safetensors.index.json"), index).unwrap();
        let error = Checkpoint::open(dir.path()).err().unwrap();
        assert!(matches!(error, ModelError::UnsafeIndex { .. }), "{error}");
        assert!(error.to_string().len() < 1000, "{error}");
    }

    let dir = copy_of("checkpoint");
    let config = std::fs::read_to_string(dir.path().join("config.json")).unwrap();
    let mut config: serde_json::Value = serde_json::from_str(&config).unwrap();
    config["text_config"]["intermediate_size"] = 96.into();
    std::fs::write(dir.path().join("config.json"), config.to_string()).unwrap();
    let checkpoint = Checkpoint::open(dir.path()).unwrap();
    let error = Model::load(&checkpoint, &Device::flex(), &mut |_, _| ()).err().unwrap();
    assert!(matches!(error, ModelError::Shape { .. }), "{error}");
}

#[test]
fn an_adapter_of_another_model_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    for file in ["adapter_config.json", "adapter_model.safetensors"] {
        std::fs::copy(qwen35().join("lora_init").join(file), dir.path().join(file)).unwrap();
    }
    let path = dir.path().join("adapter_config.json");
    let text = std::fs::read_to_string(&path).unwrap();
    let mut config: serde_json::Value = serde_json::from_str(&text).unwrap();
    config["r"] = (config["r"].as_u64().unwrap() / 2).into();
    std::fs::write(&path, config.to_string()).unwrap();
    let error = model("checkpoint").load_lora(dir.path()).unwrap_err();
    assert!(matches!(error, ModelError::Adapter { .. }), "{error}");
}
