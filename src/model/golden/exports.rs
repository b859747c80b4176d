//! Tests of writing a model: what a stop leaves, what is found again, and what two folders share.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use burn::tensor::Device;

use super::{model, qwen35};
use crate::checkpoint::{INDEX, WEIGHTS};
use crate::export::Merged;
use crate::{Checkpoint, LoraConfig, Model, ModelError, Mtp, PackedSequence};

/// A checkpoint in two files, of which the second has the MTP head.
const FOLDER: &str = "checkpoint_trained_bf16";
const SHARDS: [&str; 2] = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"];

fn probe() -> PackedSequence {
    PackedSequence::single(&[1, 5, 9, 200, 33, 7, 2, 2, 100])
}

/// Returns the model of the fixture with adapters that were trained by this much.
fn trained(by: f32) -> Model {
    let mut trained = model(FOLDER);
    trained.attach_lora(LoraConfig { rslora: true, ..LoraConfig::new(4, 8.0) }, 7);
    for linear in trained.linears_mut() {
        let b = &mut linear.lora.as_mut().unwrap().b;
        let value = b.wide() + by;
        b.put(value, true);
    }
    trained
}

fn merged<'a>(base: &'a Checkpoint, model: &'a Model, probe: &'a PackedSequence) -> Merged<'a> {
    Merged { base, model, mtp: None, keep_mtp: true, beside: None, chat_template: None, probe }
}

#[test]
fn a_stop_between_any_two_tensors_or_layers_leaves_nothing() {
    let base = Checkpoint::open(&qwen35().join(FOLDER)).unwrap();
    let (model, probe) = (trained(0.01), probe());
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("merged");
    let stopped_at = |limit: usize| {
        let mut asked = 0;
        let result = merged(&base, &model, &probe).write(&out, &mut || {
            asked += 1;
            asked <= limit
        });
        (result, asked)
    };
    let (whole, asked) = stopped_at(usize::MAX);
    whole.unwrap();
    // Before each tensor that is written and compared, before each layer, and before embedding and head.
    assert_eq!(asked, 2 * base.tensors().len() + model.layers().len() + 2);
    fs::remove_dir_all(&out).unwrap();
    for limit in (0..asked).step_by(5).chain([asked - 1]) {
        let (result, _) = stopped_at(limit);
        assert!(matches!(result, Err(ModelError::Stopped)), "{limit}: {result:?}");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "{limit}");
    }
}

#[test]
fn a_written_folder_is_found_whole_until_one_byte_of_it_or_of_the_model_changes() {
    let base = Checkpoint::open(&qwen35().join(FOLDER)).unwrap();
    let (mut model, probe) = (trained(0.01), probe());
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("merged");
    let is_written = |model: &Model| merged(&base, model, &probe).is_written(&out, &mut || true).unwrap();
    assert!(!is_written(&model), "there is no folder");
    merged(&base, &model, &probe).write(&out, &mut || true).unwrap();
    assert!(is_written(&model));
    let stopped = merged(&base, &model, &probe).is_written(&out, &mut || false);
    assert!(matches!(stopped, Err(ModelError::Stopped)), "{stopped:?}");
    for file in [SHARDS[0], SHARDS[1], "config.json"] {
        let path = out.join(file);
        let before = fs::read(&path).unwrap();
        let mut changed = before.clone();
        *changed.last_mut().unwrap() ^= 1;
        fs::write(&path, changed).unwrap();
        assert!(!is_written(&model), "{file} has another last byte");
        fs::write(&path, [&before[..], b" "].concat()).unwrap();
        assert!(!is_written(&model), "{file} is longer");
        fs::write(&path, before).unwrap();
        assert!(is_written(&model));
    }
    let b = &mut model.linears_mut().pop().unwrap().lora.as_mut().unwrap().b;
    let value = b.wide() + 1.0;
    b.put(value, true);
    assert!(!is_written(&model), "the model was trained further");
}

#[test]
fn a_base_with_one_shard_under_an_index_is_written_in_the_same_layout_and_opens_again() {
    const SHARD: &str = "model.safetensors-00001-of-00001.safetensors";
    let root = tempfile::tempdir().unwrap();
    let [published, out] = ["published", "merged"].map(|name| root.path().join(name));
    fs::create_dir(&published).unwrap();
    let fixture = qwen35().join("checkpoint");
    for name in ["config.json", WEIGHTS] {
        let to = if name == WEIGHTS { SHARD } else { name };
        fs::copy(fixture.join(name), published.join(to)).unwrap();
    }
    let names = Checkpoint::open(&fixture).unwrap().tensors().keys().cloned().collect::<Vec<_>>();
    let weight_map: BTreeMap<&String, &str> = names.iter().map(|name| (name, SHARD)).collect();
    let index = serde_json::json!({ "metadata": {}, "weight_map": weight_map });
    fs::write(published.join(INDEX), index.to_string()).unwrap();

    let base = Checkpoint::open(&published).unwrap();
    let (mut model, probe) = (Model::load(&base, &Device::flex(), &mut |_, _| ()).unwrap(), probe());
    model.attach_lora(LoraConfig::new(4, 8.0), 7);
    let written = merged(&base, &model, &probe).write(&out, &mut || true).unwrap();
    assert_eq!(written.base_tensors, names.len());
    assert!(merged(&base, &model, &probe).is_written(&out, &mut || true).unwrap());
    let again = Checkpoint::open(&out).unwrap();
    assert_eq!(again.tensors().keys().cloned().collect::<Vec<_>>(), names);
    assert!(out.join(SHARD).is_file() && out.join(INDEX).is_file() && !out.join(WEIGHTS).exists());
}

#[test]
fn folders_with_and_without_a_trained_head_share_the_shards_that_are_equal() {
    let folder = tempfile::tempdir().unwrap();
    let base = Checkpoint::open(&qwen35().join(FOLDER)).unwrap();
    let (model, probe) = (trained(0.01), probe());
    let mut mtp = Mtp::load(&base, &Device::flex()).unwrap();
    mtp.visit_mut(&mut |param| {
        let value = param.wide() + 0.5;
        param.put(value, false);
    });
    let [plain, beside, alone] = ["merged", "merged-mtp", "alone"].map(|name| folder.path().join(name));
    merged(&base, &model, &probe).write(&plain, &mut || true).unwrap();
    let with_head = Merged { mtp: Some(&mtp), ..merged(&base, &model, &probe) };
    let accounting = with_head.write(&alone, &mut || true).unwrap();
    let shared = Merged { beside: Some(&plain), ..with_head };
    assert_eq!(shared.write(&beside, &mut || true).unwrap(), accounting);

    let inode = |path: &Path| fs::metadata(path).unwrap().ino();
    for (name, is_shared) in SHARDS.into_iter().zip([true, false]) {
        assert_eq!(inode(&plain.join(name)) == inode(&beside.join(name)), is_shared, "{name}");
        assert!(fs::read(alone.join(name)).unwrap() == fs::read(beside.join(name)).unwrap(), "{name}");
    }

    // What is shared is compared like what was written.
    let other = folder.path().join("other");
    merged(&base, &trained(0.05), &probe).write(&other, &mut || true).unwrap();
    fs::remove_dir_all(&beside).unwrap();
    let error = Merged { beside: Some(&other), ..with_head }.write(&beside, &mut || true).unwrap_err();
    assert!(error.to_string().contains("its logits differ"), "{error}");
    assert!(!beside.exists());
}
