//! Writes a trained model in the layout of its base: the same files, names and types, with every tensor
//! accounted for.
//!
//! Trained tensors are written in the type that the base stores them in. All others (vision tower, untouched
//! MTP head, fp32 tensors of a bf16 checkpoint) are copied byte for byte. The folder is written under a
//! temporary name, opened again, compared with the base, and then renamed.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use burn::tensor::Device;
use safetensors::{Dtype, View};
use sparktune_base::files::{sync, write_and_sync};

use crate::linear::Linear;
use crate::numbers::narrow;
use crate::weight_file::sync_and_forget;
use crate::{Checkpoint, Model, ModelError, Mtp, PackedSequence, Param};

/// What an export did with the tensors of the base, and how close the written folder is to the trained model.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct Accounting {
    /// The number of tensors in the base checkpoint. The export has the same names, except `mtp.*` if the
    /// head is left out.
    pub base_tensors: usize,
    /// The number of tensors that were written with trained values.
    pub trained: usize,
    /// The number of tensors that were copied byte for byte.
    pub carried: usize,
    /// The relative L2 distance between the logits of the written folder and of the trained model in memory.
    pub logits_distance: f64,
}

/// One tensor of the output: bytes of the base, or trained values that are fetched when they are written.
struct Source<'a> {
    dtype: Dtype,
    shape: &'a [usize],
    length: usize,
    content: Content<'a>,
}

enum Content<'a> {
    Carried(&'a [u8]),
    Trained(&'a dyn Fn(&str) -> Vec<f32>, String),
}

impl View for Source<'_> {
    fn dtype(&self) -> Dtype {
        self.dtype
    }

    fn shape(&self) -> &[usize] {
        self.shape
    }

    fn data(&self) -> Cow<'_, [u8]> {
        match &self.content {
            Content::Carried(bytes) => Cow::Borrowed(bytes),
            Content::Trained(numbers, canonical) => {
                let bytes = narrow(&numbers(canonical), self.dtype);
                Cow::Owned(bytes.expect("only float tensors are loaded as parameters"))
            }
        }
    }

    fn data_len(&self) -> usize {
        self.length
    }
}

/// Writes the tensors of `base` into the new folder `out`, with the values of `model` (adapters merged) and
/// of `mtp`, if given, instead of the base's.
///
/// `probe` is a sequence whose logits are compared between memory and the written folder. Without `mtp`, the
/// base's `mtp.*` are copied if `keep_mtp` is set and left out otherwise.
///
/// # Errors
/// When `out` exists, a file cannot be written, or the written folder fails the comparison. Then `out` does
/// not exist.
pub fn export(
    base: &Checkpoint,
    model: &Model,
    mtp: Option<&Mtp>,
    keep_mtp: bool,
    out: &Path,
    probe: &PackedSequence,
) -> Result<Accounting, ModelError> {
    let failed = |reason: String| ModelError::Export { path: out.to_owned(), reason };
    if out.exists() {
        return Err(failed("the folder already exists".into()));
    }
    let partial = out.with_extension("partial");
    if partial.exists() {
        fs::remove_dir_all(&partial).map_err(ModelError::io(&partial))?;
    }
    fs::create_dir_all(&partial).map_err(ModelError::io(&partial))?;
    let result = write_and_compare(base, model, mtp, keep_mtp, &partial, probe, &failed);
    match result {
        Ok(accounting) => {
            fs::rename(&partial, out).map_err(ModelError::io(out))?;
            if let Some(parent) = out.parent() {
                sync(parent).map_err(ModelError::io(parent))?;
            }
            Ok(accounting)
        }
        Err(error) => {
            // The original error matters more than a failed clean-up.
            drop(fs::remove_dir_all(&partial));
            Err(error)
        }
    }
}

fn write_and_compare(
    base: &Checkpoint,
    model: &Model,
    mtp: Option<&Mtp>,
    keep_mtp: bool,
    dir: &Path,
    probe: &PackedSequence,
    failed: &dyn Fn(String) -> ModelError,
) -> Result<Accounting, ModelError> {
    let parameters = parameters(model, mtp);
    let numbers = |canonical: &str| parameters[canonical].numbers();
    let by_stored_name: BTreeMap<String, String> =
        parameters.keys().map(|canonical| (base.stored_name(canonical), canonical.clone())).collect();
    if let Some(unknown) = by_stored_name.keys().find(|name| !base.tensors().contains_key(*name)) {
        return Err(failed(format!("the parameter `{unknown}` has no tensor in the base model")));
    }

    let kept = |name: &str| keep_mtp || mtp.is_some() || !name.starts_with("mtp.");
    let shards: Vec<PathBuf> = base.shards().map(Path::to_owned).collect();
    let mut accounting =
        Accounting { base_tensors: base.tensors().len(), trained: 0, carried: 0, logits_distance: 0.0 };
    let mut weight_map = BTreeMap::new();
    let mut total_size = 0;
    for (index, shard) in shards.iter().enumerate() {
        let file_name = shard.file_name().expect("a shard is a file").to_string_lossy().into_owned();
        let mut sources = Vec::new();
        for (name, info) in base.tensors().iter().filter(|(name, info)| info.shard == index && kept(name)) {
            let bytes = base.bytes(info);
            let content = match by_stored_name.get(name) {
                Some(canonical) => {
                    accounting.trained += 1;
                    Content::Trained(&numbers, canonical.clone())
                }
                None => {
                    accounting.carried += 1;
                    Content::Carried(bytes)
                }
            };
            total_size += bytes.len();
            weight_map.insert(name.clone(), file_name.clone());
            sources.push((
                name.as_str(),
                Source { dtype: info.dtype, shape: &info.shape, length: bytes.len(), content },
            ));
        }
        let path = dir.join(&file_name);
        let metadata = Some([("format".to_owned(), "pt".to_owned())].into());
        safetensors::serialize_to_file(sources, metadata, &path)
            .map_err(|e| ModelError::Io { path: path.clone(), source: std::io::Error::other(e) })?;
        sync_and_forget(&path).map_err(ModelError::io(&path))?;
        base.tensors().values().filter(|info| info.shard == index).for_each(|info| base.forget(info));
    }
    if shards.len() > 1 {
        let index = serde_json::json!({"metadata": {"total_size": total_size}, "weight_map": weight_map});
        let path = dir.join("model.safetensors.index.json");
        write_and_sync(&path, format!("{index:#}\n")).map_err(ModelError::io(&path))?;
    }
    let adjusted = AdjustedConfig {
        without_mtp: !(base.has_mtp() && (keep_mtp || mtp.is_some())),
        untied: by_stored_name.contains_key("lm_head.weight"),
    };
    carry_small_files(base, dir, adjusted)?;
    sync(dir).map_err(ModelError::io(dir))?;

    let written = Checkpoint::open_with(dir, base.options())?;
    for (name, info) in base.tensors().iter().filter(|(name, _)| kept(name)) {
        let Some(copy) = written.tensors().get(name) else {
            return Err(failed(format!("the base model's tensor `{name}` is missing")));
        };
        if copy.dtype != info.dtype || copy.shape != info.shape {
            return Err(failed(format!("the tensor `{name}` changed its type or shape")));
        }
        if !by_stored_name.contains_key(name) && written.bytes(copy) != base.bytes(info) {
            return Err(failed(format!("the copied tensor `{name}` differs from the base model's")));
        }
        written.forget(copy);
        base.forget(info);
    }
    if let Some(unknown) = written.tensors().keys().find(|name| !base.tensors().contains_key(*name)) {
        return Err(failed(format!("the tensor `{unknown}` is not in the base model")));
    }
    if written.config().mtp_num_hidden_layers > 0 && base.has_mtp() && !written.has_mtp() {
        return Err(failed("config.json declares an MTP head that is not in the weights".into()));
    }
    accounting.logits_distance = logits_distance(&written, model, mtp, probe)?;
    // bf16, in the file or in the computation, has 8 significant bits; in f32 only the order of additions in
    // a merge differs.
    let narrow_base = base.tensors().values().any(|info| info.dtype != Dtype::F32);
    let lossy = narrow_base || *model.device() != Device::flex();
    let allowed = if lossy { 0.05 } else { 1e-4 };
    if accounting.logits_distance > allowed || accounting.logits_distance.is_nan() {
        let distance = accounting.logits_distance;
        return Err(failed(format!(
            "its logits differ from the trained model's by {distance:.2e} (relative)"
        )));
    }
    Ok(accounting)
}

/// The values of a parameter in the output.
enum Written<'a> {
    Param(&'a Param),
    Merged(&'a Linear),
}

impl Written<'_> {
    fn numbers(&self) -> Vec<f32> {
        match self {
            Self::Param(param) => param.to_vec(),
            Self::Merged(linear) => linear.merged_weight(),
        }
    }
}

/// Returns the trained parameters by canonical name: trainable ones, the merged weights of linear layers with
/// an adapter, and all parameters of `mtp`.
fn parameters<'a>(model: &'a Model, mtp: Option<&'a Mtp>) -> BTreeMap<String, Written<'a>> {
    let mut all = BTreeMap::new();
    model.visit(&mut |param: &'a Param| {
        if param.is_trainable() && !param.name().contains(".lora_") {
            all.insert(param.name().to_owned(), Written::Param(param));
        }
    });
    for linear in model.linears().into_iter().filter(|linear| linear.lora.is_some()) {
        all.insert(linear.weight.name().to_owned(), Written::Merged(linear));
    }
    if let Some(mtp) = mtp {
        mtp.visit(&mut |param: &'a Param| {
            all.insert(param.name().to_owned(), Written::Param(param));
        });
    }
    all
}

/// Copies config, tokenizer, template and all other small files of the weights' folder.
///
/// If the output has no MTP head, `config.json` must not declare one.
fn carry_small_files(base: &Checkpoint, dir: &Path, adjusted: AdjustedConfig) -> Result<(), ModelError> {
    let entries = fs::read_dir(base.dir()).map_err(ModelError::io(base.dir()))?;
    for entry in entries {
        let entry = entry.map_err(ModelError::io(base.dir()))?;
        let (path, name) = (entry.path(), entry.file_name().to_string_lossy().into_owned());
        let small = fs::metadata(&path).is_ok_and(|meta| meta.is_file() && meta.len() < 256 << 20);
        let weights = [".safetensors", ".bin", ".pt", ".gguf", ".index.json", ".incomplete"];
        if !small || name.starts_with('.') || weights.iter().any(|end| name.ends_with(end)) {
            continue;
        }
        let to = dir.join(&name);
        if name == "config.json" {
            write_and_sync(&to, adjusted.apply(base)).map_err(ModelError::io(&to))?;
        } else {
            // Only the bytes are copied: the mode of the copy follows the umask of this process, not the
            // original.
            let bytes = fs::read(&path).map_err(ModelError::io(&path))?;
            write_and_sync(&to, bytes).map_err(ModelError::io(&to))?;
        }
    }
    Ok(())
}

/// The changes of `config.json` that make it fit the written tensors.
struct AdjustedConfig {
    /// Whether no MTP head is written.
    without_mtp: bool,
    /// Whether the output head is a separate tensor.
    untied: bool,
}

impl AdjustedConfig {
    /// Returns the adjusted config. It is the base's text, byte for byte, if nothing has to change.
    fn apply(&self, base: &Checkpoint) -> String {
        let drop_mtp = self.without_mtp && base.config().mtp_num_hidden_layers > 0;
        let untie = self.untied && base.config().tie_word_embeddings;
        if !drop_mtp && !untie {
            return base.config_text().to_owned();
        }
        let mut config: serde_json::Value =
            serde_json::from_str(base.config_text()).expect("was parsed when the base was opened");
        let mut set = |key: &str, to: serde_json::Value| {
            let inner = config.get("text_config").is_some().then_some("/text_config").into_iter();
            let mut was_there = false;
            for pointer in std::iter::once("").chain(inner) {
                if let Some(field) = config.pointer_mut(pointer).and_then(|map| map.get_mut(key)) {
                    *field = to.clone();
                    was_there = true;
                }
            }
            // If the config relied on the family's default, a differing value has to be written explicitly.
            if !was_there {
                config[key] = to;
            }
        };
        if drop_mtp {
            set("mtp_num_hidden_layers", 0.into());
        }
        if untie {
            set("tie_word_embeddings", false.into());
        }
        format!("{config:#}\n")
    }
}

/// Returns the relative L2 distance between the logits of the written folder and those of the model in
/// memory. With `mtp`, it is the maximum of this and the distance for the MTP head.
fn logits_distance(
    written: &Checkpoint,
    model: &Model,
    mtp: Option<&Mtp>,
    probe: &PackedSequence,
) -> Result<f64, ModelError> {
    let reloaded = Model::load(written, model.device(), &mut |_, _| ())?;
    let reloaded_mtp = mtp.map(|_| Mtp::load(written, model.device())).transpose()?;
    let logits = |model: &Model, mtp: Option<&Mtp>| -> Vec<f32> {
        let hidden = model.hidden(probe);
        let hidden = match mtp {
            Some(mtp) => mtp.hidden(model, hidden, probe),
            None => hidden,
        };
        model.logits(hidden)
    };
    let distance = |expected: Vec<f32>, found: Vec<f32>| {
        let square = |x: f32| f64::from(x) * f64::from(x);
        let difference: f64 = expected.iter().zip(&found).map(|(a, b)| square(a - b)).sum();
        let norm: f64 = expected.iter().map(|a| square(*a)).sum();
        (difference / norm).sqrt()
    };
    let model = model.frozen();
    let plain = distance(logits(&model, None), logits(&reloaded, None));
    Ok(match (mtp, &reloaded_mtp) {
        (Some(mtp), Some(reloaded_mtp)) => {
            // `max` would hide a NaN.
            let head = distance(logits(&model, Some(mtp)), logits(&reloaded, Some(reloaded_mtp)));
            if head > plain || head.is_nan() { head } else { plain }
        }
        _ => plain,
    })
}
