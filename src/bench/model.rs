//! The model that training is measured with: a decoder of the shape of Qwen3.5 with 42.5 million parameters,
//! large enough that its matrices take the time. Its weights are random.

use std::collections::BTreeMap;
use std::path::Path;

use burn::tensor::Device;
use safetensors::Dtype;
use safetensors::tensor::TensorView;
use sparktune_base::random::SplitMix64;
use sparktune_model::{Checkpoint, Model, PackedSequence};
use sparktune_plan::{MethodKind, ModelConfig, Plan};

use crate::error::BenchError;

/// The config of the model.
pub(crate) const CONFIG: &str = include_str!("model.json");
/// The rank of the adapters.
pub(crate) const RANK: usize = 16;

/// Writes the checkpoint into an existing folder, so that a peer can load the same weights.
pub(crate) fn write(folder: &Path) -> Result<(), BenchError> {
    let random = Checkpoint::random(ModelConfig::from_json(CONFIG)?, 0);
    let model = Model::load(&random, &Device::flex(), &mut |_, _| ())?;
    let mut tensors: BTreeMap<String, (Vec<usize>, Vec<u8>)> = BTreeMap::new();
    model.visit(&mut |param| {
        let bytes = param.to_vec().iter().flat_map(|number| number.to_le_bytes()).collect();
        tensors.insert(random.stored_name(param.name()), (param.shape().to_vec(), bytes));
    });
    let views: BTreeMap<&String, TensorView> = tensors
        .iter()
        .map(|(name, (shape, bytes))| {
            let view = TensorView::new(Dtype::F32, shape.clone(), bytes);
            (name, view.expect("bytes and shape come from one tensor"))
        })
        .collect();
    let path = folder.join("model.safetensors");
    let metadata = Some([("format".to_owned(), "pt".to_owned())].into());
    safetensors::serialize_to_file(views, metadata, &path)
        .map_err(|error| BenchError::io("write", &path)(std::io::Error::other(error)))?;
    let path = folder.join("config.json");
    std::fs::write(&path, CONFIG).map_err(BenchError::io("write", &path))
}

/// A plan that trains it on the CPU, in packs of `tokens` and always with the same learning rate.
pub(crate) fn plan(folder: &Path, method: MethodKind, tokens: usize) -> Result<Plan, BenchError> {
    let method = match method {
        MethodKind::Lora => {
            format!(r#"{{ kind = "lora", rank = {RANK}, alpha = {}, rslora = false }}"#, 2 * RANK)
        }
        MethodKind::Full => r#"{ kind = "full" }"#.to_owned(),
    };
    let folder = serde_json::Value::from(folder.display().to_string());
    let toml = format!(
        r#"
seed = 0
device = "cpu"
recompute = false
mtp = "none"
runs_dir = "runs"
model = {{ id = "bench", path = {folder} }}
data = {{ train = [], eval_fraction = 0.0, format = "auto", think = "skip", max_example_tokens = {tokens}, max_rejected = 0.01, crc_drop = 0.0 }}
method = {method}
pack = {{ length = {tokens}, strategy = "bfd" }}
batch = {{ micro_batch_packs = 1, grad_accum_steps = 1 }}
optimizer = {{ learning_rate = 1e-4, min_lr_ratio = 1.0, warmup_ratio = 0.0, beta1 = 0.9, beta2 = 0.95, eps = 1e-8, weight_decay = 0.01, clip_norm = 1.0 }}
duration = {{ epochs = 1 }}
checkpoint = {{ save_steps = 1000, save_minutes = 60, keep = 1 }}
eval = {{ every_steps = 1000, sample_count = 0, sample_max_tokens = 1 }}
"#
    );
    Ok(Plan::from_toml(&toml, "the plan of the bench")?)
}

/// The pack of every step: one example of random tokens, each but the first to be predicted.
pub(crate) fn pack(tokens: usize) -> Result<PackedSequence, BenchError> {
    let vocabulary = ModelConfig::from_json(CONFIG)?.vocab_size;
    Ok(PackedSequence::single(&random_ids(1, tokens, vocabulary)))
}

/// Random token ids.
pub(crate) fn random_ids(seed: u64, count: usize, vocabulary: usize) -> Vec<u32> {
    let mut numbers = SplitMix64::new(seed);
    (0..count).map(|_| (numbers.next_u64() % vocabulary as u64) as u32).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_written_checkpoint_is_the_random_one() {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path()).unwrap();
        let written = Checkpoint::open(folder.path()).unwrap();
        let random = Checkpoint::random(ModelConfig::from_json(CONFIG).unwrap(), 0);
        for (name, info) in written.tensors() {
            let read = |checkpoint: &Checkpoint| checkpoint.numbers(name, &info.shape).unwrap();
            assert_eq!(read(&written), read(&random), "{name}");
        }
        let parameters: usize =
            written.tensors().values().map(|info| info.shape.iter().product::<usize>()).sum();
        assert_eq!(parameters, 42_550_752);
        for method in [MethodKind::Lora, MethodKind::Full] {
            assert_eq!(plan(folder.path(), method, 1024).unwrap().method.kind(), method);
        }
    }
}
