//! Tests of Gemma 3 beyond its golden values: packs, decoding, adapters, and the text model inside a larger
//! one.

use std::path::{Path, PathBuf};

use burn::tensor::Device;
use safetensors::SafeTensors;
use safetensors::tensor::TensorView;
use serde_json::{Value, json};

use super::{GRADIENT, difference, export, host, is_elsewhere, relative, root};
use crate::{Checkpoint, Gradients, LoraConfig, Model, ModelError, PackedSequence};

/// Returns the set's folder, or `None` with a message if other fixtures are named that have none.
fn folder() -> Option<PathBuf> {
    let folder = root().join("others/gemma3");
    if is_elsewhere() && !folder.is_dir() {
        println!("skipped: SPARKTUNE_FIXTURES has no folder `others/gemma3`");
        return None;
    }
    Some(folder)
}

fn load(dir: &Path) -> Result<Model, ModelError> {
    Model::load(&Checkpoint::open(dir)?, &Device::flex(), &mut |_, _| ())
}

fn ids(count: u32) -> Vec<u32> {
    (0..count).map(|i| (i * 37 + 11) % 256).collect()
}

/// The boundaries of examples shorter than the window of 8, as long, and longer.
const BORDERS: [u32; 5] = [0, 3, 33, 41, 60];

fn examples(ids: &[u32]) -> impl Iterator<Item = (usize, PackedSequence)> {
    BORDERS.windows(2).map(|border| {
        let [start, end] = [border[0] as usize, border[1] as usize];
        (start, PackedSequence::single(&ids[start..end]))
    })
}

#[test]
fn examples_longer_than_the_window_are_computed_and_trained_packed_as_alone() {
    let Some(folder) = folder() else { return };
    let mut model = load(&folder).unwrap();
    let ids = ids(60);
    let packed = PackedSequence::new(&ids, &BORDERS, &[true; 60]);
    let together = host(model.hidden(&packed));
    let width = model.config().hidden_size;
    for (start, alone) in examples(&ids) {
        let expected = host(model.hidden(&alone));
        let found = &together[start * width..][..expected.len()];
        assert!(difference(found, &expected) < 1e-4, "the example at {start}");
    }
    model.set_trainable(true);
    let (mut of_pack, mut of_examples) = (Gradients::default(), Gradients::default());
    model.loss_and_gradients(&packed, 1.0, false, &mut of_pack);
    for (_, alone) in examples(&ids) {
        model.loss_and_gradients(&alone, 1.0, false, &mut of_examples);
    }
    model.visit(&mut |param| {
        let [found, expected] =
            [&of_pack, &of_examples].map(|gradients| host(gradients.get(param.name()).unwrap().clone()));
        assert!(relative(&found, &expected) < GRADIENT, "{}", param.name());
    });
}

#[test]
fn decoding_behind_the_window_gives_what_the_whole_sequence_gives() {
    let Some(folder) = folder() else { return };
    let model = load(&folder).unwrap();
    let ids = ids(30);
    let whole = host(model.hidden(&PackedSequence::single(&ids)));
    let mut cache = model.empty_cache();
    // A prompt longer than the window, then token by token.
    let mut stepped = host(model.continue_from(&ids[..12], &mut cache));
    stepped.extend(ids[12..].iter().flat_map(|id| host(model.continue_from(&[*id], &mut cache))));
    assert!(difference(&whole, &stepped) < 1e-4);
}

/// Writes the set's text model inside a larger one: its tensors get the prefix `text`, and the two tensors
/// `beside` are added.
fn inside_a_larger_model(folder: &Path, text: &str, beside: [&str; 2]) -> tempfile::TempDir {
    let to = tempfile::tempdir().unwrap();
    let config: Value =
        serde_json::from_str(&std::fs::read_to_string(folder.join("config.json")).unwrap()).unwrap();
    let wrapper = json!({
        "architectures": ["Gemma3ForConditionalGeneration"], "model_type": "gemma3", "mm_tokens_per_image": 4,
        "image_token_index": 255, "text_config": config, "vision_config": {"model_type": "siglip_vision_model"},
    });
    std::fs::write(to.path().join("config.json"), wrapper.to_string()).unwrap();
    let bytes = std::fs::read(folder.join("model.safetensors")).unwrap();
    let stored = SafeTensors::deserialize(&bytes).unwrap();
    let renamed = |name: String| format!("{text}{}", name.strip_prefix("model.").unwrap());
    let mut tensors: Vec<_> =
        stored.tensors().into_iter().map(|(name, view)| (renamed(name), view)).collect();
    let numbers = [7; 8];
    let view = || TensorView::new(safetensors::Dtype::F32, vec![2], &numbers).unwrap();
    tensors.extend(beside.map(|name| (name.to_owned(), view())));
    safetensors::serialize_to_file(tensors, None, &to.path().join("model.safetensors")).unwrap();
    to
}

/// The names of transformers before and since 4.52.
const LAYOUTS: [(&str, [&str; 2]); 2] = [
    (
        "language_model.model.",
        ["vision_tower.vision_model.post_layernorm.weight", "multi_modal_projector.mm_soft_emb_norm.weight"],
    ),
    (
        "model.language_model.",
        ["model.vision_tower.post_layernorm.weight", "model.multi_modal_projector.mm_soft_emb_norm.weight"],
    ),
];

#[test]
fn the_text_model_of_a_larger_one_is_trained_and_its_vision_tower_carried() {
    let Some(folder) = folder() else { return };
    let sequence = PackedSequence::single(&ids(20));
    let expected = host(load(&folder).unwrap().hidden(&sequence));
    for (text, beside) in LAYOUTS {
        let dir = inside_a_larger_model(&folder, text, beside);
        let base = Checkpoint::open(dir.path()).unwrap();
        let mut model = Model::load(&base, &Device::flex(), &mut |_, _| ()).unwrap();
        assert_eq!(host(model.hidden(&sequence)), expected, "{text}");

        let exported = |model: &Model, name: &str| {
            let out = dir.path().join(name);
            let accounting = export(&base, model, None, true, &out, &sequence).unwrap();
            let written = Checkpoint::open(&out).unwrap();
            for name in beside {
                assert_eq!(written.bytes(&written.tensors()[name]), [7; 8], "{name}");
            }
            (accounting.base_tensors, accounting.trained, accounting.carried)
        };
        model.set_trainable(true);
        assert_eq!(exported(&model, "full"), (43, 41, 2), "all but those of the vision tower");
        model.attach_lora(LoraConfig::new(2, 4.0), 1);
        let mut gradients = Gradients::default();
        model.loss_and_gradients(&sequence, 1.0, true, &mut gradients);
        let adapters: Vec<&str> = model.linears().iter().map(|linear| linear.path()).collect();
        assert_eq!(adapters.len(), 3 * 7);
        for path in adapters {
            assert!(gradients.get(&format!("{path}.lora_B.weight")).is_some(), "{path}");
        }
        assert_eq!(exported(&model, "lora"), (43, 21, 22), "the linear layers of three layers");
    }
    let dir = inside_a_larger_model(&folder, LAYOUTS[0].0, ["audio_tower.a.weight", "vision_tower.b.weight"]);
    let error = load(dir.path()).unwrap_err().to_string();
    assert!(error.contains("audio_tower.a.weight"), "{error}");
}
