//! Writes a trained model in the layout of its base: the same files, names and types, with every tensor
//! accounted for.
//!
//! Trained tensors are written in the type that the base stores them in. All others (vision tower, untouched
//! MTP head, fp32 tensors of a bf16 checkpoint) are copied byte for byte. The folder is written under a
//! temporary name, opened again, compared with the base and with the model in memory, and then renamed. In
//! addition to the model, this takes the memory of one layer, or of the largest tensor.

mod comparison;
pub mod gguf;
mod small_files;
mod tensors;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::path::Path;

use burn::tensor::Device;
use safetensors::Dtype;
use sparktune_base::files::{sync, write_and_sync};

use self::comparison::logits_distance;
use self::small_files::{AdjustedConfig, small_files};
use self::tensors::Tensors;
use crate::checkpoint::{INDEX, WEIGHTS};
use crate::weight_file::sync_and_forget;
use crate::{Checkpoint, Model, ModelError, Mtp, PackedSequence};

/// The file in which transformers and servers look for a chat template first.
const CHAT_TEMPLATE: &str = "chat_template.jinja";

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

/// A model folder with the tensors of a base, and with the values of a trained model (adapters merged)
/// instead of the base's.
#[derive(Clone, Copy)]
pub struct Merged<'a> {
    /// The checkpoint that the model was trained from.
    pub base: &'a Checkpoint,
    /// The trained model.
    pub model: &'a Model,
    /// The trained MTP head.
    pub mtp: Option<&'a Mtp>,
    /// Whether the base's `mtp.*` are copied if there is no trained head; otherwise they are left out.
    pub keep_mtp: bool,
    /// A folder that holds the same model without the trained head. Shards that are equal in both are shared
    /// with it by hard links.
    pub beside: Option<&'a Path>,
    /// A chat template that is written instead of the base's.
    pub chat_template: Option<&'a str>,
    /// A sequence whose logits are compared between memory and the written folder.
    pub probe: &'a PackedSequence,
}

impl Merged<'_> {
    /// Writes the new folder `out`. `go_on` is asked before each tensor and each layer.
    ///
    /// # Errors
    /// When `out` exists, a file cannot be written, or the written folder fails the comparison;
    /// [`ModelError::Stopped`] when `go_on` says no. Then `out` does not exist.
    pub fn write(&self, out: &Path, go_on: &mut dyn FnMut() -> bool) -> Result<Accounting, ModelError> {
        if out.exists() {
            return Err(failed(out, "the folder already exists"));
        }
        let partial = out.with_extension("partial");
        if partial.exists() {
            fs::remove_dir_all(&partial).map_err(ModelError::io(&partial))?;
        }
        fs::create_dir_all(&partial).map_err(ModelError::io(&partial))?;
        match self.write_and_compare(&partial, go_on) {
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

    /// Returns whether `out` holds, byte for byte, what [`write`](Self::write) would write there. `go_on` is
    /// asked before each tensor.
    ///
    /// # Errors
    /// When the base cannot be read; [`ModelError::Stopped`] when `go_on` says no.
    pub fn is_written(&self, out: &Path, go_on: &mut dyn FnMut() -> bool) -> Result<bool, ModelError> {
        let tensors = self.tensors(out)?;
        for (name, contents) in self.other_files(&tensors)? {
            if !fs::read(out.join(name)).is_ok_and(|found| found == contents) {
                return Ok(false);
            }
        }
        for (index, name) in self.shard_names().iter().enumerate() {
            if !tensors.is_shard(index, &out.join(name), go_on)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn write_and_compare(
        &self,
        dir: &Path,
        go_on: &mut dyn FnMut() -> bool,
    ) -> Result<Accounting, ModelError> {
        let tensors = self.tensors(dir)?;
        for (index, name) in self.shard_names().iter().enumerate() {
            let path = dir.join(name);
            let equal =
                self.beside.filter(|_| !tensors.has_trained_mtp(index)).map(|beside| beside.join(name));
            match equal.filter(|equal| equal.is_file()) {
                Some(equal) => {
                    let link = || fs::hard_link(&equal, &path);
                    share(&equal, &path, link).map_err(ModelError::io(&path))?;
                }
                None => {
                    let mut file = File::create(&path).map_err(ModelError::io(&path))?;
                    tensors.write_shard(index, &path, &mut file, go_on)?;
                }
            }
            sync_and_forget(&path).map_err(ModelError::io(&path))?;
        }
        for (name, contents) in self.other_files(&tensors)? {
            let path = dir.join(name);
            write_and_sync(&path, contents).map_err(ModelError::io(&path))?;
        }
        sync(dir).map_err(ModelError::io(dir))?;
        self.compare(&tensors, dir, go_on)
    }

    /// Compares a written folder with the base and with the model in memory.
    fn compare(
        &self,
        tensors: &Tensors,
        dir: &Path,
        go_on: &mut dyn FnMut() -> bool,
    ) -> Result<Accounting, ModelError> {
        let base = self.base;
        let written = Checkpoint::open_with(dir, base.options())?;
        let (mut trained, mut carried) = (0, 0);
        for (name, info) in tensors.all() {
            if !go_on() {
                return Err(ModelError::Stopped);
            }
            let Some(copy) = written.tensors().get(name) else {
                return Err(failed(dir, format!("the base model's tensor `{name}` is missing")));
            };
            if copy.dtype != info.dtype || copy.shape != info.shape {
                return Err(failed(dir, format!("the tensor `{name}` changed its type or shape")));
            }
            if tensors.is_trained(name) {
                trained += 1;
                continue;
            }
            carried += 1;
            if written.bytes(copy) != base.bytes(info) {
                return Err(failed(dir, format!("the copied tensor `{name}` differs from the base model's")));
            }
            written.forget(copy);
            base.forget(info);
        }
        if let Some(unknown) = written.tensors().keys().find(|name| !base.tensors().contains_key(*name)) {
            return Err(failed(dir, format!("the tensor `{unknown}` is not in the base model")));
        }
        if written.config().mtp_num_hidden_layers > 0 && base.has_mtp() && !written.has_mtp() {
            return Err(failed(dir, "config.json declares an MTP head that is not in the weights"));
        }
        let logits_distance = logits_distance(&written, self.model, self.mtp, self.probe, go_on)?;
        // bf16, in the file or in the computation, has 8 significant bits; in f32 only the order of additions
        // in a merge differs.
        let narrow_base = base.tensors().values().any(|info| info.dtype != Dtype::F32);
        let lossy = narrow_base || *self.model.device() != Device::flex();
        let allowed = if lossy { 0.05 } else { 1e-4 };
        if logits_distance > allowed || logits_distance.is_nan() {
            let reason =
                format!("its logits differ from the trained model's by {logits_distance:.2e} (relative)");
            return Err(failed(dir, reason));
        }
        Ok(Accounting { base_tensors: base.tensors().len(), trained, carried, logits_distance })
    }

    fn has_mtp(&self) -> bool {
        self.keep_mtp || self.mtp.is_some()
    }

    fn tensors(&self, dir: &Path) -> Result<Tensors<'_>, ModelError> {
        Tensors::new(self.base, self.model, self.mtp, self.has_mtp())
            .map_err(|name| failed(dir, format!("the parameter `{name}` has no tensor in the base model")))
    }

    /// Returns the file names of the shards, in the order of their indices.
    fn shard_names(&self) -> Vec<String> {
        let count = self.base.shards().count();
        if self.base.has_foreign_head() {
            // Files of two models may have the same name, and one is not enough for both.
            return (1..=count).map(|i| format!("model-{i:05}-of-{count:05}.safetensors")).collect();
        }
        let name = |path: &Path| path.file_name().expect("a shard is a file").to_string_lossy().into_owned();
        self.base.shards().map(name).collect()
    }

    /// Returns the names and contents of all files that hold no weights.
    fn other_files(&self, tensors: &Tensors) -> Result<Vec<(String, Vec<u8>)>, ModelError> {
        let adjusted = AdjustedConfig {
            has_mtp: self.base.has_mtp() && self.has_mtp(),
            untied: tensors.is_trained("lm_head.weight"),
        };
        let mut files = small_files(self.base, &adjusted)?;
        if let Some(template) = self.chat_template {
            files.retain(|(name, _)| name != CHAT_TEMPLATE);
            files.push((CHAT_TEMPLATE.to_owned(), template.as_bytes().to_vec()));
        }
        let shards = self.shard_names();
        // Qwen3.5-0.8B and 2B are published as one shard that is named like the first of several, so only an
        // index leads to it.
        let needs_index = shards != [WEIGHTS];
        if needs_index {
            let total_size: usize = tensors.all().map(|(_, info)| self.base.bytes(info).len()).sum();
            let weight_map: BTreeMap<&str, &String> =
                tensors.all().map(|(name, info)| (name, &shards[info.shard])).collect();
            let index = serde_json::json!({"metadata": {"total_size": total_size}, "weight_map": weight_map});
            files.push((INDEX.to_owned(), format!("{index:#}\n").into_bytes()));
        }
        Ok(files)
    }
}

fn failed(path: &Path, reason: impl Into<String>) -> ModelError {
    ModelError::Export { path: path.to_owned(), reason: reason.into() }
}

/// Gives a file a second name in another folder of the same file system, or copies it where the file system
/// refuses the `link`.
fn share(from: &Path, to: &Path, link: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
    if link().is_err() {
        fs::copy(from, to)?;
        sync_and_forget(from)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    #[test]
    fn a_shared_file_is_the_same_one_or_a_copy_where_links_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let [from, linked, copied] = ["from", "linked", "copied"].map(|name| folder.path().join(name));
        fs::write(&from, "numbers").unwrap();
        share(&from, &linked, || fs::hard_link(&from, &linked)).unwrap();
        share(&from, &copied, || Err(io::ErrorKind::Unsupported.into())).unwrap();
        let inode = |path: &Path| fs::metadata(path).unwrap().ino();
        assert_eq!(inode(&linked), inode(&from));
        assert_ne!(inode(&copied), inode(&from));
        assert_eq!(fs::read_to_string(&copied).unwrap(), "numbers");
    }
}
