//! Compares files with what llama.cpp's converter made of the same models (`tests/fixtures/gguf.jsonl`, from
//! `tests/peers/gguf_convert.py`), and tests what it has no word on.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use burn::tensor::Device;
use serde_json::{Value as Json, json};

use super::reader::{GgufFile, read};
use super::{Gguf, GgufContents, GgufType, name_in_hub, size_label};
use crate::golden::{qwen35, root};
use crate::{Checkpoint, LoraConfig, Model, ModelError, Mtp};

/// Keys that the converter does not write for each of these models.
const ADDED: &[&str] = &[
    "attention.key_length",
    "attention.value_length",
    "rope.dimension_count",
    "rope.freq_base",
    "attention.sliding_window_pattern",
];

/// Returns a tokenizer for the fixtures that have none.
fn small_tokenizer() -> Json {
    let text = fs::read_to_string(qwen35().join("checkpoint/tokenizer.json")).unwrap();
    let mut tokenizer: Json = serde_json::from_str(&text).unwrap();
    tokenizer["added_tokens"] = json!([]);
    tokenizer["model"]["vocab"] = json!({"a": 0, "b": 1, "ab": 2});
    tokenizer["model"]["merges"] = json!([["a", "b"]]);
    tokenizer
}

struct Fixture {
    folder: tempfile::TempDir,
    base: Checkpoint,
    model: Model,
}

impl Fixture {
    /// Opens a copy of a fixture, with a tokenizer. `edit` changes its `config.json`.
    fn open(dir: &Path, edit: impl Fn(&mut Json)) -> Result<Self, ModelError> {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("tokenizer.json"), small_tokenizer().to_string()).unwrap();
        for entry in fs::read_dir(dir).unwrap() {
            let name = entry.unwrap().file_name();
            fs::copy(dir.join(&name), folder.path().join(&name)).unwrap();
        }
        let path = folder.path().join("config.json");
        let mut config: Json = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        edit(&mut config);
        fs::write(&path, config.to_string()).unwrap();
        let base = Checkpoint::open(folder.path())?;
        let model = Model::load(&base, &Device::flex(), &mut |_, _| ())?;
        Ok(Self { folder, base, model })
    }

    fn gguf(&self) -> Gguf<'_> {
        Gguf {
            base: &self.base,
            model: &self.model,
            mtp: None,
            keep_mtp: true,
            name: "name",
            base_name: "org/base",
            chat_template: Some("{{ messages }}"),
        }
    }

    fn write(&self, numbers: GgufType) -> Result<(GgufFile, GgufContents), ModelError> {
        let path = self.folder.path().join("out.gguf");
        let contents = self.gguf().write_model(numbers, &path, &mut |_, _| true)?;
        assert_eq!(fs::metadata(&path).unwrap().len(), contents.bytes);
        Ok((read(&path), contents))
    }
}

fn folder_of(model: &str) -> PathBuf {
    match model {
        "qwen35" => qwen35().join("checkpoint"),
        "qwen35_trained" => qwen35().join("checkpoint_trained_bf16"),
        other => root().join("others").join(other),
    }
}

/// Opens a fixture; the one of Gemma 3 with the attention scale of a published model, which llama.cpp knows.
fn fixture(model: &str) -> Fixture {
    let edit = |config: &mut Json| {
        if model == "gemma3" {
            config["query_pre_attn_scalar"] = config["head_dim"].clone();
        }
    };
    Fixture::open(&folder_of(model), edit).unwrap()
}

/// The checksum of zlib.
fn crc32(bytes: &[u8]) -> u32 {
    let step = |crc: u32, _| if crc & 1 == 1 { crc >> 1 ^ 0xEDB8_8320 } else { crc >> 1 };
    !bytes.iter().fold(!0u32, |crc, byte| (0..8).fold(crc ^ u32::from(*byte), step))
}

fn golden() -> Vec<Json> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/gguf.jsonl");
    let text = fs::read_to_string(path).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn every_tensor_and_key_of_each_family_is_that_of_llama_cpps_converter() {
    let golden = golden();
    let models: BTreeSet<&str> = golden.iter().map(|line| line["model"].as_str().unwrap()).collect();
    assert_eq!(models.len(), 8);
    for model in models {
        let fixture = fixture(model);
        let of_model = || golden.iter().filter(|line| line["model"] == model);
        for numbers in GgufType::ALL {
            let (file, contents) = fixture.write(*numbers).unwrap();
            let mut names = BTreeSet::new();
            for expected in of_model().filter(|line| line["tensor"].is_string()) {
                let name = expected["tensor"].as_str().unwrap();
                names.insert(name.to_owned());
                let tensor = file.tensors.get(name).unwrap_or_else(|| panic!("{model}: {name} is missing"));
                let shape = serde_json::to_value(&tensor.shape).unwrap();
                let [kind, values] = &expected[numbers.word()].as_array().unwrap()[..] else { panic!() };
                assert_eq!((&shape, tensor.kind), (&expected["shape"], kind.as_str().unwrap()), "{name}");
                match values.as_array() {
                    None => {
                        assert_eq!(crc32(&tensor.data), values.as_u64().unwrap() as u32, "{model} {name}")
                    }
                    // The last bit of a power or an exponential depends on the library.
                    Some(values) => {
                        for (ours, theirs) in tensor.floats().iter().zip(values) {
                            let theirs = theirs.as_f64().unwrap();
                            assert!(
                                (f64::from(*ours) - theirs).abs() <= 3e-7 * theirs.abs(),
                                "{model} {name}"
                            );
                        }
                    }
                }
            }
            assert_eq!(file.tensors.keys().cloned().collect::<BTreeSet<_>>(), names, "{model}");
            assert_eq!(contents.tensors, names.len());
            let expected = of_model().find_map(|line| line["keys"].as_object()).unwrap();
            for (key, value) in expected {
                let same = match (value.as_f64(), file.keys.get(key).and_then(Json::as_f64)) {
                    (Some(theirs), Some(ours)) => theirs as f32 == ours as f32,
                    _ => file.keys.get(key) == Some(value),
                };
                // The label counts values, so it would show a tensor too many.
                assert!(same, "{model}: {key} is {:?}, not {value}", file.keys.get(key));
            }
            let architecture = expected["general.architecture"].as_str().unwrap();
            let prefix = format!("{architecture}.");
            let ours = file.keys.keys().filter_map(|key| key.strip_prefix(&prefix));
            for key in ours.filter(|key| !expected.contains_key(&format!("{prefix}{key}"))) {
                assert!(ADDED.contains(&key), "{model}: only ours: {key}");
            }
        }
    }
}

#[test]
fn every_tensor_of_a_base_is_in_the_file_or_named_as_left_out() {
    for model in ["qwen2", "qwen3", "llama", "llama_rope3", "mistral", "gemma3", "qwen35"] {
        let fixture = fixture(model);
        let stored = fixture.base.tensors().len();
        let vision = fixture.base.tensors().keys().filter(|name| name.contains("visual.")).count();
        let (file, contents) = fixture.write(GgufType::Bf16).unwrap();
        let made = usize::from(file.tensors.contains_key("rope_freqs.weight"));
        assert_eq!(file.tensors.len() - made, stored - vision, "{model}");
        let said = contents
            .remarks
            .iter()
            .any(|remark| remark.starts_with(&format!("{vision} tensors of the vision tower")));
        assert_eq!(said, vision > 0, "{model}: {:?}", contents.remarks);
    }
    let fixture = fixture("qwen35");
    let path = fixture.folder.path().join("without.gguf");
    let without = Gguf { keep_mtp: false, ..fixture.gguf() };
    let contents = without.write_model(GgufType::Bf16, &path, &mut |_, _| true).unwrap();
    let mtp = fixture.base.tensors().keys().filter(|name| name.starts_with("mtp.")).count();
    let sentence = format!("{mtp} tensors of the MTP head are not in the file: as set in the plan.");
    assert!(contents.remarks.contains(&sentence), "{:?}", contents.remarks);
    let file = read(&path);
    assert_eq!(file.keys["qwen35.block_count"], 4);
    assert!(!file.keys.contains_key("qwen35.nextn_predict_layers"));
    assert!(!file.tensors.keys().any(|name| name.contains("nextn")));
}

#[test]
fn the_tokenizer_and_the_template_are_in_the_file() {
    let (file, _) = fixture("qwen35").write(GgufType::F16).unwrap();
    let key = |name: &str| &file.keys[&format!("tokenizer.{name}")];
    assert_eq!((key("ggml.model"), key("ggml.pre")), (&json!("gpt2"), &json!("qwen35")));
    assert_eq!(key("ggml.tokens").as_array().unwrap().len(), 512);
    assert_eq!(key("ggml.tokens")[491], "<|im_end|>");
    assert_eq!((&key("ggml.token_type")[491], &key("ggml.token_type")[511]), (&json!(3), &json!(5)));
    assert_eq!(key("ggml.merges")[0], "Ġ Ġ");
    assert_eq!((key("ggml.eos_token_id"), key("ggml.add_bos_token")), (&json!(491), &json!(false)));
    assert_eq!(key("chat_template"), "{{ messages }}");
    assert_eq!(file.keys["general.base_model.0.organization"], "org");

    let (file, _) = fixture("gemma3").write(GgufType::F16).unwrap();
    assert_eq!(file.keys["tokenizer.ggml.model"], "llama");
    assert_eq!(file.keys["tokenizer.ggml.add_bos_token"], true);
    assert_eq!(file.keys["tokenizer.ggml.add_space_prefix"], false);
    assert_eq!(file.keys["gemma3.attention.sliding_window_pattern"], json!([true, false, true]));
}

#[test]
fn a_model_that_llama_cpp_would_compute_otherwise_is_refused_or_remarked_on() {
    let refusal = |model: &str, field: &str, value: Json| {
        let edit = |config: &mut Json| {
            let inner = if config.get("text_config").is_some() { "/text_config" } else { "" };
            config.pointer_mut(inner).unwrap()[field] = value.clone();
        };
        let fixture = Fixture::open(&folder_of(model), edit).unwrap();
        let error = fixture.write(GgufType::F16).map(drop).unwrap_err();
        assert!(matches!(error, ModelError::Gguf { .. }), "{error}");
        error.to_string()
    };
    let unchanged = refusal("gemma3", "model_type", json!("gemma3_text"));
    assert!(unchanged.contains("query_pre_attn_scalar"), "{unchanged}");
    let llama3 = json!({"rope_type": "llama3", "factor": 8.0});
    let scaled = refusal("qwen2", "rope_scaling", llama3);
    assert!(scaled.contains("llama3") && scaled.contains("qwen2"), "{scaled}");
    let part = refusal("llama", "partial_rotary_factor", json!(0.5));
    assert!(part.contains("part of each head"), "{part}");

    let windowed =
        Fixture::open(&folder_of("mistral"), |config| config["sliding_window"] = json!(8)).unwrap();
    let (_, contents) = windowed.write(GgufType::F16).unwrap();
    assert!(contents.remarks[0].contains("the last 8 tokens"), "{:?}", contents.remarks);
}

#[test]
fn trained_values_and_the_trained_head_are_written_instead_of_the_bases() {
    let mut fixture = fixture("qwen35");
    fixture.model.set_trainable(true);
    let mut mtp = Mtp::load(&fixture.base, &Device::flex()).unwrap();
    let change = |name: &str, param: &mut crate::Param| {
        if param.name() == name {
            let changed = param.wide() + 1.0;
            param.put(changed, true);
        }
    };
    fixture.model.visit_mut(&mut |param| change("layers.0.linear_attn.dt_bias", param));
    mtp.visit_mut(&mut |param| change("mtp.norm.weight", param));
    let before = fixture_file("qwen35");
    let path = fixture.folder.path().join("trained.gguf");
    let trained = Gguf { mtp: Some(&mtp), ..fixture.gguf() };
    trained.write_model(GgufType::Q8_0, &path, &mut |_, _| true).unwrap();
    let after = read(&path);
    let differ: Vec<&String> =
        after.tensors.keys().filter(|name| after.tensors[*name].data != before.tensors[*name].data).collect();
    assert_eq!(differ, ["blk.0.ssm_dt.bias", "blk.4.nextn.shared_head_norm.weight"]);
    let moved = |name: &str| {
        let pairs = after.tensors[name].floats().into_iter().zip(before.tensors[name].floats());
        pairs.map(|(after, before)| after - before).collect::<Vec<f32>>()
    };
    assert!(moved("blk.0.ssm_dt.bias").iter().all(|by| (by - 1.0).abs() < 1e-6));
}

fn fixture_file(model: &str) -> GgufFile {
    fixture(model).write(GgufType::Q8_0).unwrap().0
}

/// Multiplies `B [out, r]` by `A [r, in]`, as stored in a file: innermost dimension first.
fn product(file: &GgufFile, name: &str, scale: f32) -> Vec<f32> {
    let [a, b] = ["lora_a", "lora_b"].map(|half| &file.tensors[&format!("{name}.{half}")]);
    let ([inputs, rank], [b_rank, outputs]) = (&a.shape[..], &b.shape[..]) else { panic!("two dimensions") };
    assert_eq!(rank, b_rank);
    let (a, b) = (a.floats(), b.floats());
    let cell = |out: usize, input: usize| -> f32 {
        scale * (0..*rank).map(|r| b[out * rank + r] * a[r * inputs + input]).sum::<f32>()
    };
    (0..*outputs)
        .flat_map(|out| (0..*inputs).map(move |input| (out, input)))
        .map(|(o, i)| cell(o, i))
        .collect()
}

#[test]
fn an_adapter_added_as_llama_cpp_adds_it_gives_the_merged_model() {
    for (model, lora) in [
        ("qwen35", LoraConfig { rslora: true, clipped: true, ..LoraConfig::new(24, 16.0) }),
        ("llama", LoraConfig::new(4, 8.0)),
    ] {
        let mut fixture = fixture(model);
        let before = fixture.base.tensors().len();
        fixture.model.attach_lora(lora, 7);
        for linear in fixture.model.linears_mut() {
            let b = &mut linear.lora.as_mut().unwrap().b;
            let count = b.tensor().shape().num_elements();
            let numbers: Vec<f32> = (0..count).map(|i| ((i * 37 % 101) as f32 - 50.0) / 5000.0).collect();
            let data = burn::tensor::TensorData::new(numbers, b.tensor().shape());
            b.put(burn::tensor::Tensor::from_data(data, &Device::flex()), true);
        }
        let path = fixture.folder.path().join("adapter.gguf");
        fixture.gguf().write_adapter(lora, &path, &mut |_, _| true).unwrap();
        let adapter = read(&path);
        assert_eq!(adapter.keys["general.type"], "adapter");
        assert_eq!(adapter.keys["adapter.type"], "lora");
        let alpha = adapter.keys["adapter.lora.alpha"].as_f64().unwrap() as f32;

        let merged = fixture.folder.path().join("merged.gguf");
        // The type has to hold the small differences.
        let written = fixture.gguf().write_model(GgufType::F16, &merged, &mut |_, _| true).unwrap();
        assert!(written.trained < before && written.trained * 2 == adapter.tensors.len());
        let (merged, base) = (read(&merged), Fixture::open(&folder_of(model), |_| ()).unwrap());
        let (base, _) = base.write(GgufType::F16).unwrap();
        let mut ranks = BTreeSet::new();
        for name in adapter.tensors.keys().filter_map(|name| name.strip_suffix(".lora_a")) {
            let rank = adapter.tensors[&format!("{name}.lora_b")].shape[0];
            ranks.insert(rank);
            let added = product(&adapter, name, alpha / rank as f32);
            let numbers = |file: &GgufFile| -> Vec<f32> {
                let data = file.tensors[name].data.chunks_exact(2);
                data.map(|bytes| half::f16::from_le_bytes(bytes.try_into().unwrap()).to_f32()).collect()
            };
            for ((sum, base), added) in numbers(&merged).iter().zip(numbers(&base)).zip(added) {
                assert!((sum - base - added).abs() < 1e-3, "{model} {name}: {sum} {base} {added}");
            }
        }
        assert_eq!(ranks.len() > 1, lora.clipped, "{model}: {ranks:?}");
    }
    let full = fixture("qwen2");
    let lora = LoraConfig::new(4, 8.0);
    let error = full.gguf().write_adapter(lora, &full.folder.path().join("no.gguf"), &mut |_, _| true);
    assert!(error.unwrap_err().to_string().contains("no adapter"));
}

#[test]
fn a_stop_leaves_the_older_file_and_nothing_else_and_files_are_private() {
    let fixture = fixture("qwen3");
    let out = tempfile::tempdir().unwrap();
    let path = out.path().join("model.gguf");
    let write = |limit: usize| {
        fixture.gguf().write_model(GgufType::Q8_0, &path, &mut |done, total| done < limit.min(total))
    };
    assert!(matches!(write(3), Err(ModelError::Stopped)));
    assert_eq!(fs::read_dir(out.path()).unwrap().count(), 0);
    write(usize::MAX).unwrap();
    let whole = fs::read(&path).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    // A link in the place of the unfinished file is not followed.
    let elsewhere = out.path().join("elsewhere");
    fs::write(&elsewhere, "mine").unwrap();
    std::os::unix::fs::symlink(&elsewhere, out.path().join(".model.gguf.new")).unwrap();
    assert!(matches!(write(3), Err(ModelError::Stopped)));
    assert_eq!(fs::read(&path).unwrap(), whole);
    assert_eq!(fs::read_to_string(&elsewhere).unwrap(), "mine");
    assert_eq!(fs::read_dir(out.path()).unwrap().count(), 2);
}

#[test]
fn a_hostile_tokenizer_is_refused_before_anything_is_written() {
    let fixture = fixture("qwen2");
    let out = tempfile::tempdir().unwrap();
    let path = out.path().join("model.gguf");
    for tokenizer in ["", "{", "[]", r#"{"model":{"type":"BPE","vocab":{"a":99999999},"merges":[]}}"#] {
        fs::write(fixture.folder.path().join("tokenizer.json"), tokenizer).unwrap();
        let error = fixture.gguf().write_model(GgufType::F16, &path, &mut |_, _| true).unwrap_err();
        assert!(matches!(error, ModelError::Gguf { .. }), "{error}");
        assert_eq!(fs::read_dir(out.path()).unwrap().count(), 0);
    }
}

#[test]
fn a_number_of_parameters_is_labelled_as_by_the_converter() {
    let labels = [
        (283_000, "283K"),
        (27_400, "27K"),
        (1_882_000_000, "1.9B"),
        (9_400_000, "9.4M"),
        (9_600_000, "10M"),
        (120, "0.12K"),
    ];
    for (parameters, label) in labels {
        assert_eq!(size_label(parameters), label);
    }
}

#[test]
fn the_place_of_a_base_on_this_machine_is_not_in_the_file() {
    assert_eq!(name_in_hub("Qwen/Qwen3.5-0.8B"), (Some("Qwen"), "Qwen3.5-0.8B"));
    for folder in ["/home/me/models/mine", "../mine", "~/mine", "mine", "a/b/mine/", "./mine"] {
        assert_eq!(name_in_hub(folder), (None, "mine"), "{folder}");
    }
}
