//! A whole model for a comparison with another program: random weights written once, and our loss and some
//! gradients of it on the same tokens. `tests/gpu/whole.py` loads them with transformers.

use std::collections::BTreeMap;
use std::path::Path;

use burn::tensor::Device;
use half::bf16;
use safetensors::Dtype;
use safetensors::tensor::TensorView;
use serde_json::{Value, json};
use sparktune_model::{Checkpoint, Gradients, Model, PackedSequence};
use sparktune_plan::architecture::MixerSpec;
use sparktune_plan::{Catalog, ModelConfig};

use super::steps::TINY;
use super::{Bench, row, with};
use crate::model::random_ids;

/// The length of the only example. It fills neither a chunk nor a tile.
const TOKENS: usize = 600;

/// The file with tokens and gradients.
const OURS: &str = "ours.safetensors";

/// Measures one row: the loss, and the places of the files.
pub(super) fn whole(bench: &mut Bench, folder: &Path) {
    let (size, text, tokens) = if bench.is_tiny {
        ("tiny", TINY.clone(), 72)
    } else {
        ("2B", Catalog::shipped().text_model_config("2B").expect("the catalog has this size"), TOKENS)
    };
    let device = bench.device.clone();
    let head = row(json!({"name": format!("{size} whole"), "size": size, "pack": tokens}));
    bench.measure(head.clone(), || {
        vec![match compute(&text, &device, tokens, folder) {
            Ok((loss, names)) => with(with(head, "loss", loss), "gradients", Value::from(names)),
            Err(why) => with(head, "failed", why),
        }]
    });
}

/// Writes the model, and tokens and gradients. Returns the loss in nats and the names of the gradients.
fn compute(text: &str, device: &Device, tokens: usize, folder: &Path) -> Result<(f64, Vec<String>), String> {
    let in_words = |error: &dyn std::error::Error| error.to_string();
    let config = ModelConfig::from_json(text).map_err(|error| in_words(&error))?;
    std::fs::create_dir_all(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let path = folder.join("config.json");
    std::fs::write(&path, text).map_err(|error| format!("{}: {error}", path.display()))?;
    let checkpoint = Checkpoint::random(config.clone(), 7);
    write_weights(&checkpoint, folder)?;
    let mut model = Model::load(&checkpoint, device, &mut |_, _| ()).map_err(|error| in_words(&error))?;
    let chosen = chosen(&config);
    model.visit_mut(&mut |param| param.set_trainable(chosen.iter().any(|name| name == param.name())));
    let ids = random_ids(1, tokens, config.vocab_size);
    let input = PackedSequence::single(&ids);
    let mut gradients = Gradients::default();
    let scale = 1.0 / input.target_tokens() as f64;
    let loss = model.loss_and_gradients(&input, scale, false, &mut gradients).nats();
    let ids = ids.iter().flat_map(|id| i64::from(*id).to_le_bytes()).collect();
    let mut stored = BTreeMap::from([("ids".to_owned(), (Dtype::I64, vec![1, tokens], ids))]);
    for name in &chosen {
        let gradient = gradients.take(name).ok_or_else(|| format!("{name} has no gradient"))?;
        let shape = gradient.dims().to_vec();
        let bytes = gradient.into_data().iter::<f32>().flat_map(f32::to_le_bytes).collect();
        stored.insert(checkpoint.stored_name(name), (Dtype::F32, shape, bytes));
    }
    write(stored, &folder.join(OURS))?;
    Ok((loss, chosen.iter().map(|name| checkpoint.stored_name(name)).collect()))
}

/// Returns the names of parameters of both kinds of layers: near the input, in the middle, near the output.
fn chosen(config: &ModelConfig) -> Vec<String> {
    let is_attention = |i: &usize| matches!(config.layers[*i].mixer, MixerSpec::Attention(_));
    let all = 0..config.layers.len();
    let delta_net = all.clone().find(|i| !is_attention(i));
    let attention = all.clone().rev().find(is_attention);
    let mixers = [
        delta_net.map(|i| format!("layers.{i}.linear_attn.in_proj_qkv.weight")),
        attention.map(|i| format!("layers.{i}.self_attn.q_proj.weight")),
    ];
    let rest = [format!("layers.{}.mlp.down_proj.weight", all.len() / 2), "norm.weight".to_owned()];
    mixers.into_iter().flatten().chain(rest).collect()
}

/// Writes the weights in bf16, which holds them exactly.
fn write_weights(checkpoint: &Checkpoint, folder: &Path) -> Result<(), String> {
    let mut stored = BTreeMap::new();
    for tensor in checkpoint.config().tensors() {
        let name = checkpoint.stored_name(&tensor.name);
        let numbers = checkpoint.numbers(&name, &tensor.shape).map_err(|error| error.to_string())?;
        let bytes = numbers.iter().flat_map(|x| bf16::from_f32(*x).to_le_bytes()).collect();
        stored.insert(name, (Dtype::BF16, tensor.shape.clone(), bytes));
    }
    write(stored, &folder.join("model.safetensors"))
}

fn write(tensors: BTreeMap<String, (Dtype, Vec<usize>, Vec<u8>)>, path: &Path) -> Result<(), String> {
    let views = tensors.iter().map(|(name, (dtype, shape, bytes))| {
        let view = TensorView::new(*dtype, shape.clone(), bytes);
        (name, view.expect("bytes and shape come from one tensor"))
    });
    let metadata = Some([("format".to_owned(), "pt".to_owned())].into());
    safetensors::serialize_to_file(views, metadata, path)
        .map_err(|error| format!("{}: {error}", path.display()))
}
