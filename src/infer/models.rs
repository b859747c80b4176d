//! The weights in memory: one base, adapters on it by name, and the MTP head.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use burn::tensor::Device;
use serde_json::Value;
use sparktune_base::stamp;
use sparktune_model::{BatchDecoder, Checkpoint, Model, ModelError, Mtp};

use crate::codebook_file::{CODEBOOK_FILE, StoredCodebook, hash_of, read_codebooks};
use crate::error::InferError;
use crate::source::{Source, list_of_patches};

/// A base and its adapters. An adapter shares the numbers of the base, so that switching copies nothing.
pub(crate) struct Models {
    /// Without any adapter, to put adapters on.
    base: Model,
    /// What answers use that name no adapter: the base, with the adapter of its source if that has one.
    plain: BatchDecoder,
    adapters: BTreeMap<String, Loaded>,
    /// The number of times that an adapter was asked for.
    asked: u64,
    pub(crate) head: Option<Mtp>,
}

/// An adapter in memory.
struct Loaded {
    decoder: BatchDecoder,
    stamp: Stamp,
    bytes: u64,
    /// How often one had been asked for when this one was asked for last.
    asked: u64,
}

/// A folder, and the stamps of its files when it was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Stamp {
    folder: PathBuf,
    files: Vec<(PathBuf, stamp::Stamp)>,
}

impl Stamp {
    pub(crate) fn of(folder: &Path) -> Self {
        Self { folder: folder.to_owned(), files: stamp::Stamp::of_files_in(folder) }
    }
}

impl Models {
    /// Loads the weights of a source, and the head if it is wanted and there is one.
    ///
    /// # Errors
    /// The weights are damaged or do not fit the config, or the adapter does not fit the base.
    pub(crate) fn load(
        source: &Source,
        checkpoint: &Checkpoint,
        wants_head: bool,
        device: &Device,
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<Self, InferError> {
        let mut base = Model::load(checkpoint, device, progress)?;
        let codebook_file = source.weights.join(CODEBOOK_FILE);
        let patches = list_of_patches(&source.weights);
        if codebook_file.exists() {
            let codebooks = read_codebooks(&codebook_file)?;
            if let Some(patches) = &patches {
                check_codebook(patches, &codebook_file)?;
            }
            attach(&mut base, codebooks, &codebook_file)?;
        } else if patches.is_some_and(|patches| patches["codebook"] == true) {
            let what = "the file is missing, and patches of this folder keep their corrections in it (`edit enable FOLDER PATCH` writes it again)";
            return Err(InferError::Codebook { path: codebook_file, what: what.to_owned() });
        }
        let plain = match &source.adapter {
            Some(adapter) => adapted(&base, adapter)?,
            None => BatchDecoder::new(&base),
        };
        let head = if wants_head { load_head(source, checkpoint, device)? } else { None };
        Ok(Self { base, plain, adapters: BTreeMap::new(), asked: 0, head })
    }

    /// Loads an adapter that takes so many bytes.
    ///
    /// # Errors
    /// The adapter is damaged or does not fit the base.
    pub(crate) fn add(&mut self, name: &str, stamp: Stamp, bytes: u64) -> Result<(), InferError> {
        let decoder = adapted(&self.base, &stamp.folder)?;
        let asked = self.asked;
        self.adapters.insert(name.to_owned(), Loaded { decoder, stamp, bytes, asked });
        Ok(())
    }

    /// Returns whether an adapter is loaded as its folder is now.
    pub(crate) fn has(&self, name: &str, stamp: &Stamp) -> bool {
        self.adapters.get(name).is_some_and(|loaded| loaded.stamp == *stamp)
    }

    /// Notes that an adapter is asked for, so that it is none of those that make room.
    pub(crate) fn ask(&mut self, name: &str) {
        self.asked += 1;
        if let Some(loaded) = self.adapters.get_mut(name) {
            loaded.asked = self.asked;
        }
    }

    /// Returns the bytes of all adapters.
    pub(crate) fn bytes(&self) -> u64 {
        self.adapters.values().map(|loaded| loaded.bytes).sum()
    }

    /// Returns the bytes of all adapters but those for which `may_go` is true.
    pub(crate) fn bytes_without(&self, may_go: impl Fn(&str) -> bool) -> u64 {
        let others = self.adapters.iter().filter(|(name, _)| !may_go(name));
        others.map(|(_, loaded)| loaded.bytes).sum()
    }

    /// Returns, of the adapters for which `may_go` is true, the one that was not asked for the longest time.
    pub(crate) fn least_asked(&self, may_go: impl Fn(&str) -> bool) -> Option<String> {
        let idle = self.adapters.iter().filter(|(name, _)| may_go(name));
        idle.min_by_key(|(_, loaded)| loaded.asked).map(|(name, _)| name.clone())
    }

    pub(crate) fn remove(&mut self, name: &str) -> bool {
        self.adapters.remove(name).is_some()
    }

    pub(crate) fn names(&self) -> Vec<String> {
        self.adapters.keys().cloned().collect()
    }

    /// Returns the model with this adapter.
    pub(crate) fn get(&self, adapter: Option<&str>) -> Result<&BatchDecoder, InferError> {
        match adapter {
            None => Ok(&self.plain),
            Some(name) => self
                .adapters
                .get(name)
                .map(|loaded| &loaded.decoder)
                .ok_or_else(|| InferError::UnknownAdapter { name: name.to_owned(), known: self.names() }),
        }
    }
}

/// Checks that the file of corrections is the one that was written with the patches beside it.
fn check_codebook(patches: &Value, path: &Path) -> Result<(), InferError> {
    let wrong = |what: &str| Err(InferError::Codebook { path: path.to_owned(), what: what.to_owned() });
    if patches["codebook"] != true {
        return wrong(
            "the patches of this folder have no corrections, so the file is none of theirs (move it elsewhere)",
        );
    }
    let Some(expected) = patches["codebook_hash"].as_str() else { return Ok(()) };
    let found = hash_of(path)
        .map_err(|error| InferError::Codebook { path: path.to_owned(), what: error.to_string() })?;
    if found == expected {
        return Ok(());
    }
    wrong(
        "these are other corrections than those of the folder's patches (`edit enable FOLDER PATCH` writes the right ones)",
    )
}

/// Puts the codebooks of a file beside the MLPs of a model.
fn attach(model: &mut Model, stored: Vec<StoredCodebook>, path: &Path) -> Result<(), InferError> {
    let (layers, width) = (model.config().layers.len(), model.config().hidden_size);
    for codebook in stored {
        if codebook.layer >= layers || codebook.mean.len() != width {
            let (layer, other) = (codebook.layer, codebook.mean.len());
            let what = format!(
                "it has corrections of width {other} for layer {layer}, but the model has {layers} layers of width {width}"
            );
            return Err(InferError::Codebook { path: path.to_owned(), what });
        }
        model.set_codebook(codebook.layer, Some(codebook.codebook()));
    }
    Ok(())
}

fn adapted(base: &Model, folder: &Path) -> Result<BatchDecoder, InferError> {
    let mut model = base.clone();
    model.load_lora(folder)?;
    Ok(BatchDecoder::new(&model))
}

/// Loads the head of the source's own folder for it, or of its weights.
fn load_head(source: &Source, checkpoint: &Checkpoint, device: &Device) -> Result<Option<Mtp>, ModelError> {
    let foreign = match &source.head {
        Some(folder) if folder.join("config.json").is_file() => {
            Some(Checkpoint::open_with(folder, &source.options)?.for_decoding())
        }
        Some(_) | None => None,
    };
    let with_head = foreign.as_ref().filter(|other| other.has_mtp()).unwrap_or(checkpoint);
    let mut head = if with_head.has_mtp() { Some(Mtp::load(with_head, device)?) } else { None };
    head.iter_mut().for_each(|head| head.set_trainable(false));
    Ok(head)
}
