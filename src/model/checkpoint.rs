//! A memory-mapped checkpoint folder: its tensors with their names, types and positions.
//!
//! Supports the key layouts of Qwen3.5 (SPEC.md 1.1) and of Gemma 3. The prefix is detected from the keys,
//! never from `model_type`. The folder is untrusted: sizes and names are checked before they are used.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use burn::tensor::Device;
use half::bf16;
use safetensors::{Dtype, SafeTensors};
use sparktune_base::escape::shortened;
use sparktune_base::regular_file::read_model_json;
use sparktune_plan::ModelConfig;
use sparktune_plan::architecture::TensorSpec;
use sparktune_plan::model_config::ConfigOptions;

use crate::error::ModelError;
use crate::numbers::{uniform, widen};
use crate::param::Param;
use crate::weight_file::WeightFile;

/// The position of a stored tensor.
#[derive(Debug, Clone)]
pub struct TensorInfo {
    /// The index in [`Checkpoint::shards`].
    pub shard: usize,
    /// Stored type.
    pub dtype: Dtype,
    /// Stored shape.
    pub shape: Vec<usize>,
    /// The byte range in the shard's file.
    range: std::ops::Range<usize>,
}

/// An open checkpoint folder.
pub struct Checkpoint {
    dir: PathBuf,
    config: ModelConfig,
    options: ConfigOptions,
    config_text: String,
    shards: Vec<(PathBuf, WeightFile)>,
    tensors: BTreeMap<String, TensorInfo>,
    prefix: &'static str,
    /// Whether the MTP head is another model's.
    has_foreign_head: bool,
    /// The generated weights, if there are no files.
    made_up: Option<MadeUp>,
    /// Whether weights stay bf16 on the CPU.
    for_decoding: bool,
}

/// Random weights.
struct MadeUp {
    seed: u64,
    /// The stored names of the tensors whose values are close to one.
    around_one: BTreeSet<String>,
}

/// The prefixes of the names of a text model's tensors: inside a larger model, as transformers named them
/// since 4.52 and before; and for a text-only model.
const PREFIXES: [&str; 3] = ["model.language_model.", "language_model.model.", PLAIN];
const PLAIN: &str = "model.";

impl Checkpoint {
    /// Opens a folder with `config.json` and `model.safetensors` or an index with its shards.
    ///
    /// # Errors
    /// When a file is missing, damaged, or the index names a file outside the folder.
    pub fn open(dir: &Path) -> Result<Self, ModelError> {
        Self::open_with(dir, &ConfigOptions::default())
    }

    /// Like [`open`](Self::open), with the user's options for reading the config.
    ///
    /// # Errors
    /// The same as for [`open`](Self::open).
    pub fn open_with(dir: &Path, options: &ConfigOptions) -> Result<Self, ModelError> {
        let config_path = dir.join("config.json");
        let config_text = read_model_json(&config_path).map_err(ModelError::io(&config_path))?;
        let config = ModelConfig::from_json_with(&config_text, options)
            .map_err(|source| ModelError::Config { path: dir.to_owned(), source })?;
        let (mut shards, mut tensors) = (Vec::new(), BTreeMap::new());
        add_tensors(dir, "", &mut shards, &mut tensors)?;
        let is_used = |prefix: &&str| tensors.keys().any(|name| name.starts_with(*prefix));
        let prefix = PREFIXES.into_iter().find(is_used).unwrap_or(PLAIN);
        Ok(Self {
            dir: dir.to_owned(),
            config,
            options: options.clone(),
            config_text,
            shards,
            tensors,
            prefix,
            has_foreign_head: false,
            made_up: None,
            for_decoding: false,
        })
    }

    /// Adds the MTP head of another model, of whose weights `folder` has at least the shards with the head.
    ///
    /// # Errors
    /// When this model has a head of its own, or a tensor of the other's is missing or has another shape than
    /// this model's config calls for.
    pub fn with_head_of(mut self, folder: &Path) -> Result<Self, ModelError> {
        if self.has_mtp() {
            return Err(ModelError::OwnHead { path: self.dir });
        }
        add_tensors(folder, "mtp.", &mut self.shards, &mut self.tensors)?;
        for tensor in self.config.mtp.iter().flat_map(|mtp| mtp.tensors()) {
            let missing = || ModelError::Missing { path: folder.to_owned(), name: tensor.name.clone() };
            let found = self.tensors.get(&tensor.name).ok_or_else(missing)?.shape.clone();
            if found != tensor.shape {
                let (path, name, expected) = (folder.to_owned(), tensor.name.clone(), tensor.shape.clone());
                return Err(ModelError::Shape { path, name, found, expected });
            }
        }
        self.has_foreign_head = true;
        self.config.declare_head();
        Ok(self)
    }

    /// Returns whether the MTP head is another model's, so that names of weight files may be there twice.
    pub fn has_foreign_head(&self) -> bool {
        self.has_foreign_head
    }

    /// Creates a checkpoint without files. Each tensor is generated from the seed and its name when it is
    /// read. The numbers are uniform with the standard deviation 0.02 of Qwen3.5's initialisation, and bf16
    /// numbers if that is the config's type. It serves measurements and trials without files.
    pub fn random(config: ModelConfig, seed: u64) -> Self {
        let of_mtp = config.mtp.iter().flat_map(|mtp| mtp.tensors());
        let around_one = config
            .tensors()
            .into_iter()
            .chain(of_mtp)
            .filter(|tensor| tensor.around_one)
            .map(|tensor| stored_name(PLAIN, &tensor.name))
            .collect();
        Self {
            dir: PathBuf::from("random weights"),
            config,
            options: ConfigOptions::default(),
            config_text: String::new(),
            shards: Vec::new(),
            tensors: BTreeMap::new(),
            prefix: PLAIN,
            has_foreign_head: false,
            made_up: Some(MadeUp { seed, around_one }),
            for_decoding: false,
        }
    }

    /// From now on models are loaded for decoding alone: on the CPU, weights of linear layers and tables that
    /// are stored as bf16 stay so. That is half of the memory, and half of what a decoding step reads; the
    /// results of a step are the same. Such a model cannot be trained.
    #[must_use]
    pub fn for_decoding(self) -> Self {
        Self { for_decoding: true, ..self }
    }

    /// Returns the folder.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Returns the sizes and layers that `config.json` describes.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// Returns the user's options for reading `config.json`.
    pub fn options(&self) -> &ConfigOptions {
        &self.options
    }

    /// Returns the text of `config.json`.
    pub fn config_text(&self) -> &str {
        &self.config_text
    }

    /// Returns whether the text model is a part of a larger one, whose `config.json` has a `text_config`.
    pub fn is_wrapper(&self) -> bool {
        self.config_text.contains("\"text_config\"")
    }

    /// Returns the names of the weight files, in the order of [`TensorInfo::shard`].
    pub fn shards(&self) -> impl Iterator<Item = &Path> {
        self.shards.iter().map(|(path, _)| path.as_path())
    }

    /// Returns every tensor by its stored name.
    pub fn tensors(&self) -> &BTreeMap<String, TensorInfo> {
        &self.tensors
    }

    /// Returns whether the folder contains an MTP head.
    pub fn has_mtp(&self) -> bool {
        self.tensors.contains_key("mtp.fc.weight")
    }

    /// Returns whether the output head is the embedding. The file decides, because an existing head must be
    /// used.
    pub fn is_tied(&self) -> bool {
        match self.made_up {
            Some(_) => self.config.tie_word_embeddings,
            None => !self.tensors.contains_key("lm_head.weight"),
        }
    }

    /// Returns the stored name of a canonical one: `norm.weight` → `model.language_model.norm.weight`.
    pub fn stored_name(&self, canonical: &str) -> String {
        stored_name(self.prefix, canonical)
    }

    /// Returns the bytes of a tensor as stored, little-endian.
    pub fn bytes(&self, info: &TensorInfo) -> &[u8] {
        &self.shards[info.shard].1.bytes()[info.range.clone()]
    }

    fn info(&self, stored: &str) -> Result<&TensorInfo, ModelError> {
        self.tensors
            .get(stored)
            .ok_or_else(|| ModelError::Missing { path: self.dir.clone(), name: stored.to_owned() })
    }

    /// Like [`info`](Self::info), of a tensor with this shape.
    fn info_of(&self, stored: &str, shape: &[usize]) -> Result<&TensorInfo, ModelError> {
        let info = self.info(stored)?;
        if info.shape == shape {
            return Ok(info);
        }
        Err(ModelError::Shape {
            path: self.dir.clone(),
            name: stored.to_owned(),
            found: info.shape.clone(),
            expected: shape.to_vec(),
        })
    }

    /// Returns the values of a tensor, widened to f32.
    ///
    /// # Errors
    /// When it is missing, has another shape, or is stored in a type that is not a plain float.
    pub fn numbers(&self, stored: &str, shape: &[usize]) -> Result<Vec<f32>, ModelError> {
        if let Some(made_up) = &self.made_up {
            return Ok(self.make_up(made_up, stored, shape));
        }
        let info = self.info_of(stored, shape)?;
        let numbers = widen(self.bytes(info), info.dtype).ok_or_else(|| ModelError::Dtype {
            path: self.dir.clone(),
            name: stored.to_owned(),
            dtype: format!("{:?}", info.dtype),
        })?;
        self.forget(info);
        Ok(numbers)
    }

    fn make_up(&self, made_up: &MadeUp, stored: &str, shape: &[usize]) -> Vec<f32> {
        let mut numbers = uniform(stored, made_up.seed, shape.iter().product(), 0.02 * 3f64.sqrt());
        if made_up.around_one.contains(stored) {
            numbers.iter_mut().for_each(|x| *x += 1.0);
        }
        if self.config.dtype.as_deref() == Some("bfloat16") {
            numbers.iter_mut().for_each(|x| *x = bf16::from_f32(*x).to_f32());
        }
        numbers
    }

    /// Loads a frozen parameter, by the tensor's canonical name.
    ///
    /// # Errors
    /// The same as for [`numbers`](Self::numbers).
    pub(crate) fn param(&self, tensor: &TensorSpec, device: &Device) -> Result<Param, ModelError> {
        let numbers = self.numbers(&self.stored_name(&tensor.name), &tensor.shape)?;
        Ok(Param::new(&tensor.name, &tensor.shape, numbers, device))
    }

    /// Loads the frozen weight of a linear layer or a table, `[rows, columns]`, by the tensor's canonical
    /// name.
    ///
    /// # Errors
    /// The same as for [`numbers`](Self::numbers).
    pub(crate) fn weight(&self, tensor: &TensorSpec, device: &Device) -> Result<Param, ModelError> {
        let [rows, columns] = tensor.shape[..] else { unreachable!("{} is not a matrix", tensor.name) };
        let stored = self.stored_name(&tensor.name);
        if !(self.stays_narrow(&stored) && *device == Device::flex()) {
            return self.param(tensor, device);
        }
        if self.made_up.is_some() {
            let numbers = self.numbers(&stored, &tensor.shape)?.into_iter().map(bf16::from_f32);
            return Ok(Param::narrow(&tensor.name, [rows, columns], numbers.collect()));
        }
        let info = self.info_of(&stored, &tensor.shape)?;
        let numbers = self.bytes(info).chunks_exact(2).map(|b| bf16::from_le_bytes([b[0], b[1]]));
        let weight = Param::narrow(&tensor.name, [rows, columns], numbers.collect());
        self.forget(info);
        Ok(weight)
    }

    /// Returns whether a weight is loaded as bf16 on the CPU.
    fn stays_narrow(&self, stored: &str) -> bool {
        let is_narrow = match &self.made_up {
            Some(_) => self.config.dtype.as_deref() == Some("bfloat16"),
            None => self.tensors.get(stored).is_some_and(|info| info.dtype == Dtype::BF16),
        };
        self.for_decoding && is_narrow
    }

    /// Returns the bytes that a tensor takes on the CPU once it is loaded, by its canonical name.
    pub fn loaded_bytes(&self, tensor: &TensorSpec) -> u64 {
        let is_narrow = tensor.shape.len() == 2 && self.stays_narrow(&self.stored_name(&tensor.name));
        let bytes_per_number = if is_narrow { size_of::<bf16>() } else { size_of::<f32>() };
        (tensor.shape.iter().product::<usize>() * bytes_per_number) as u64
    }

    /// Lets the system drop the pages of a tensor that was read, so that it is not in memory twice.
    pub(crate) fn forget(&self, info: &TensorInfo) {
        self.shards[info.shard].1.forget(info.range.clone());
    }
}

/// Returns the stored name of a canonical one in a layout with this prefix.
fn stored_name(prefix: &str, canonical: &str) -> String {
    if canonical.starts_with("mtp.") || canonical.starts_with("lm_head.") {
        canonical.to_owned()
    } else {
        format!("{prefix}{canonical}")
    }
}

/// Opens the shards of a folder that have tensors whose names begin with `prefix`, and adds these tensors.
fn add_tensors(
    dir: &Path,
    prefix: &str,
    shards: &mut Vec<(PathBuf, WeightFile)>,
    tensors: &mut BTreeMap<String, TensorInfo>,
) -> Result<(), ModelError> {
    for path in shard_paths(dir, prefix)? {
        let file = WeightFile::open(&path).map_err(ModelError::io(&path))?;
        let damaged = |reason: String| ModelError::Damaged { path: path.clone(), reason };
        let parsed = SafeTensors::deserialize(file.bytes()).map_err(|e| damaged(e.to_string()))?;
        for (name, view) in parsed.iter().filter(|(name, _)| name.starts_with(prefix)) {
            let start = view.data().as_ptr() as usize - file.bytes().as_ptr() as usize;
            let info = TensorInfo {
                shard: shards.len(),
                dtype: view.dtype(),
                shape: view.shape().to_vec(),
                range: start..start + view.data().len(),
            };
            if tensors.insert(name.to_owned(), info).is_some() {
                return Err(damaged(format!("the tensor `{}` is in two shards", shortened(name))));
            }
        }
        shards.push((path, file));
    }
    Ok(())
}

/// The file with all weights of a folder that has no index.
pub(crate) const WEIGHTS: &str = "model.safetensors";
/// The list of the weight files of a folder, and of the tensors in each.
pub(crate) const INDEX: &str = "model.safetensors.index.json";

/// The most bytes of the name of a file on Linux.
const LONGEST_FILE_NAME: usize = 255;

fn shard_paths(dir: &Path, prefix: &str) -> Result<Vec<PathBuf>, ModelError> {
    let index = dir.join(INDEX);
    if !index.exists() {
        let single = dir.join(WEIGHTS);
        return if single.exists() { Ok(vec![single]) } else { Err(ModelError::NoWeights(dir.to_owned())) };
    }
    #[derive(serde::Deserialize)]
    struct Index {
        weight_map: BTreeMap<String, String>,
    }
    let text = read_model_json(&index).map_err(ModelError::io(&index))?;
    let parsed: Index = serde_json::from_str(&text)
        .map_err(|e| ModelError::Damaged { path: index.clone(), reason: e.to_string() })?;
    let with_prefix = parsed.weight_map.into_iter().filter(|(name, _)| name.starts_with(prefix));
    let mut files: Vec<String> = with_prefix.map(|(_, file)| file).collect();
    files.sort();
    files.dedup();
    files
        .into_iter()
        .map(|file| {
            let has_length_of_name = (1..=LONGEST_FILE_NAME).contains(&file.len());
            let plain = has_length_of_name && !file.contains(['/', '\\', '\0']) && !file.starts_with('.');
            if plain {
                Ok(dir.join(file))
            } else {
                Err(ModelError::UnsafeIndex { path: index.clone(), file })
            }
        })
        .collect()
}
