//! A checkpoint folder, memory-mapped: which tensors it holds, where, in which type, and under which names.
//!
//! Knows the three key layouts of Qwen3.5 (QWEN35_SPEC 1.1): the prefix is decided by the keys, never by
//! `model_type`. Nothing here trusts the folder: sizes and names are checked before they are used.

use crate::lora::uniform;
use crate::weight_file::WeightFile;
use crate::{ModelError, Param};
use burn::tensor::Device;
use half::{bf16, f16};
use safetensors::{Dtype, SafeTensors};
use sparktune_plan::model_config::{Architecture, ModelConfig};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Where a tensor lies.
#[derive(Clone, Debug)]
pub struct TensorInfo {
    /// Index into [`Checkpoint::shards`].
    pub shard: usize,
    /// Stored type.
    pub dtype: Dtype,
    /// Stored shape.
    pub shape: Vec<usize>,
    /// Byte range in the shard's file.
    range: std::ops::Range<usize>,
}

/// An open checkpoint folder.
pub struct Checkpoint {
    dir: PathBuf,
    config: ModelConfig,
    computed_as: Option<Architecture>,
    config_text: String,
    shards: Vec<(PathBuf, WeightFile)>,
    tensors: BTreeMap<String, TensorInfo>,
    prefix: &'static str,
    /// No files: the numbers are made from this seed.
    seed: Option<u64>,
}

const WRAPPED: &str = "model.language_model.";
const PLAIN: &str = "model.";

impl Checkpoint {
    /// Opens a folder with `config.json` and `model.safetensors` or an index with its shards.
    ///
    /// # Errors
    /// When a file is missing, damaged, or the index names a file outside the folder.
    pub fn open(dir: &Path) -> Result<Self, ModelError> {
        Self::open_as(dir, None)
    }

    /// As [`open`](Self::open), for a model of an unknown family that is to be computed as this one.
    ///
    /// # Errors
    /// As [`open`](Self::open); later, when the model is loaded, for tensors that this family does not have.
    pub fn open_as(dir: &Path, computed_as: Option<Architecture>) -> Result<Self, ModelError> {
        let config_path = dir.join("config.json");
        let config_text = std::fs::read_to_string(&config_path).map_err(ModelError::io(&config_path))?;
        let config = ModelConfig::from_json_as(&config_text, computed_as)
            .map_err(|source| ModelError::Config { path: dir.to_owned(), source })?;
        let mut shards = Vec::new();
        let mut tensors = BTreeMap::new();
        for path in shard_paths(dir)? {
            let file = WeightFile::open(&path).map_err(ModelError::io(&path))?;
            let damaged = |reason: String| ModelError::Damaged { path: path.clone(), reason };
            let parsed = SafeTensors::deserialize(file.bytes()).map_err(|e| damaged(e.to_string()))?;
            for (name, view) in parsed.iter() {
                let start = view.data().as_ptr() as usize - file.bytes().as_ptr() as usize;
                let info = TensorInfo {
                    shard: shards.len(),
                    dtype: view.dtype(),
                    shape: view.shape().to_vec(),
                    range: start..start + view.data().len(),
                };
                if tensors.insert(name.to_owned(), info).is_some() {
                    return Err(damaged(format!("the tensor `{name}` is in two shards")));
                }
            }
            shards.push((path, file));
        }
        let wrapped = tensors.keys().any(|name| name.starts_with(WRAPPED));
        let prefix = if wrapped { WRAPPED } else { PLAIN };
        Ok(Self {
            dir: dir.to_owned(),
            config,
            computed_as,
            config_text,
            shards,
            tensors,
            prefix,
            seed: None,
        })
    }

    /// A checkpoint that lies nowhere: every tensor is made when it is asked for, from the seed and its name. Matrices are
    /// uniform with the standard deviation 0.02 that Qwen3.5 starts from; bf16 numbers where the config's type is that. For
    /// measuring and trying, where no file is at hand.
    pub fn random(config: ModelConfig, seed: u64) -> Self {
        Self {
            dir: PathBuf::from("random weights"),
            config,
            computed_as: None,
            config_text: String::new(),
            shards: Vec::new(),
            tensors: BTreeMap::new(),
            prefix: PLAIN,
            seed: Some(seed),
        }
    }

    /// The folder.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// What `config.json` says.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// The family it is computed as, where its own is not known.
    pub fn computed_as(&self) -> Option<Architecture> {
        self.computed_as
    }

    /// The text of `config.json`.
    pub fn config_text(&self) -> &str {
        &self.config_text
    }

    /// File names of the weight files, in the order of [`TensorInfo::shard`].
    pub fn shards(&self) -> impl Iterator<Item = &Path> {
        self.shards.iter().map(|(path, _)| path.as_path())
    }

    /// Every tensor by its stored name.
    pub fn tensors(&self) -> &BTreeMap<String, TensorInfo> {
        &self.tensors
    }

    /// Whether the folder holds an MTP head.
    pub fn has_mtp(&self) -> bool {
        self.tensors.contains_key("mtp.fc.weight")
    }

    /// Whether the head shares the embedding: decided by the file, as a head that is there must be used.
    pub fn is_tied(&self) -> bool {
        match self.seed {
            Some(_) => self.config.tie_word_embeddings,
            None => !self.tensors.contains_key("lm_head.weight"),
        }
    }

    /// The stored name of a canonical one: `norm.weight` → `model.language_model.norm.weight`.
    pub fn stored_name(&self, canonical: &str) -> String {
        if canonical.starts_with("mtp.") || canonical.starts_with("lm_head.") {
            canonical.to_owned()
        } else {
            format!("{}{canonical}", self.prefix)
        }
    }

    /// The bytes of a tensor as stored, little-endian.
    pub fn bytes(&self, info: &TensorInfo) -> &[u8] {
        &self.shards[info.shard].1.bytes()[info.range.clone()]
    }

    fn info(&self, stored: &str) -> Result<&TensorInfo, ModelError> {
        self.tensors
            .get(stored)
            .ok_or_else(|| ModelError::Missing { path: self.dir.clone(), name: stored.to_owned() })
    }

    /// A tensor widened to f32.
    ///
    /// # Errors
    /// When it is missing, has another shape, or is stored in a type that is not a plain float.
    pub fn numbers(&self, stored: &str, shape: &[usize]) -> Result<Vec<f32>, ModelError> {
        if let Some(seed) = self.seed {
            return Ok(self.made_up(seed, stored, shape));
        }
        let info = self.info(stored)?;
        if info.shape != shape {
            return Err(ModelError::Shape {
                path: self.dir.clone(),
                name: stored.to_owned(),
                found: info.shape.clone(),
                expected: shape.to_vec(),
            });
        }
        let numbers = widen(self.bytes(info), info.dtype).ok_or_else(|| ModelError::Dtype {
            path: self.dir.clone(),
            name: stored.to_owned(),
            dtype: format!("{:?}", info.dtype),
        })?;
        self.forget(info);
        Ok(numbers)
    }

    fn made_up(&self, seed: u64, stored: &str, shape: &[usize]) -> Vec<f32> {
        let mut numbers = uniform(stored, seed, shape.iter().product(), 0.02 * 3f64.sqrt());
        // The norm behind the delta rule is centred around one in every family.
        let is_norm = stored.ends_with("norm.weight");
        if is_norm && (!self.config.zero_centred_norms() || stored.contains("linear_attn.norm")) {
            numbers.iter_mut().for_each(|x| *x += 1.0);
        }
        if self.config.dtype.as_deref() == Some("bfloat16") {
            numbers.iter_mut().for_each(|x| *x = bf16::from_f32(*x).to_f32());
        }
        numbers
    }

    /// A frozen parameter by its canonical name.
    ///
    /// # Errors
    /// As [`Self::numbers`].
    pub fn param(&self, canonical: &str, shape: &[usize], device: &Device) -> Result<Param, ModelError> {
        let numbers = self.numbers(&self.stored_name(canonical), shape)?;
        Ok(Param::new(canonical, shape, numbers, device))
    }

    /// Lets the system drop the pages of a tensor that was read, so that the file does not count twice in memory.
    pub(crate) fn forget(&self, info: &TensorInfo) {
        self.shards[info.shard].1.forget(info.range.clone());
    }
}

/// Little-endian bytes of a float type as f32, or nothing for other types.
pub(crate) fn widen(bytes: &[u8], dtype: Dtype) -> Option<Vec<f32>> {
    Some(match dtype {
        Dtype::F32 => bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect(),
        Dtype::BF16 => bytes.chunks_exact(2).map(|b| bf16::from_le_bytes([b[0], b[1]]).to_f32()).collect(),
        Dtype::F16 => bytes.chunks_exact(2).map(|b| f16::from_le_bytes([b[0], b[1]]).to_f32()).collect(),
        _ => return None,
    })
}

/// f32 numbers in a float type, little-endian, rounded to nearest even.
pub(crate) fn narrow(numbers: &[f32], dtype: Dtype) -> Option<Vec<u8>> {
    Some(match dtype {
        Dtype::F32 => numbers.iter().flat_map(|x| x.to_le_bytes()).collect(),
        Dtype::BF16 => numbers.iter().flat_map(|x| bf16::from_f32(*x).to_le_bytes()).collect(),
        Dtype::F16 => numbers.iter().flat_map(|x| f16::from_f32(*x).to_le_bytes()).collect(),
        _ => return None,
    })
}

fn shard_paths(dir: &Path) -> Result<Vec<PathBuf>, ModelError> {
    let index = dir.join("model.safetensors.index.json");
    if !index.exists() {
        let single = dir.join("model.safetensors");
        return if single.exists() { Ok(vec![single]) } else { Err(ModelError::NoWeights(dir.to_owned())) };
    }
    #[derive(serde::Deserialize)]
    struct Index {
        weight_map: BTreeMap<String, String>,
    }
    let text = std::fs::read_to_string(&index).map_err(ModelError::io(&index))?;
    let parsed: Index = serde_json::from_str(&text)
        .map_err(|e| ModelError::Damaged { path: index.clone(), reason: e.to_string() })?;
    let mut files: Vec<String> = parsed.weight_map.into_values().collect();
    files.sort();
    files.dedup();
    files
        .into_iter()
        .map(|file| {
            let plain = !file.is_empty() && !file.contains(['/', '\\', '\0']) && !file.starts_with('.');
            if plain {
                Ok(dir.join(file))
            } else {
                Err(ModelError::UnsafeIndex { path: index.clone(), file })
            }
        })
        .collect()
}
