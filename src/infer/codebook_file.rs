//! The codebooks of a model folder: corrections that decoding looks up beside the weights (`Codebook`).
//!
//! The file is one of typed packets. For each layer it has the tensors `layers.3.mlp.codebook.mean` `[H]`,
//! `.keys` and `.values` `[N, H]`, and `.thresholds` `[N]`. Programs other than sparktune do not read it.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::path::Path;

use sparktune_data::packets::file::About;
use sparktune_data::packets::numbers::{Numbers, read_numbers, write_numbers};
use sparktune_model::Codebook;

use crate::error::InferError;

/// The name of the file in the folder of a model.
pub const CODEBOOK_FILE: &str = "codebook.qubgpu";

/// The codebook of one layer as it is stored: keys are inputs of the MLP.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct StoredCodebook {
    /// The layer.
    pub layer: usize,
    /// The mean input of the MLP, `[H]`.
    pub mean: Vec<f32>,
    /// Inputs of the MLP, `[N, H]`.
    pub keys: Vec<f32>,
    /// Corrections of its output, `[N, H]`.
    pub values: Vec<f32>,
    /// The least cosine at which an entry answers, `[N]`.
    pub thresholds: Vec<f32>,
}

impl StoredCodebook {
    /// Returns the codebook that a layer uses.
    pub fn codebook(&self) -> Codebook {
        let Self { mean, keys, values, thresholds, .. } = self.clone();
        Codebook::new(mean, keys, values, thresholds)
    }

    /// Adds the entries of a newer codebook of the same mean. Those that were there for the same input, which
    /// both would answer for, go: the newest says what is right.
    pub fn add(&mut self, newer: &Self) {
        let (width, found) = (self.mean.len(), newer.codebook());
        let keys = self.keys.chunks_exact(width);
        let stays: Vec<bool> = keys.map(|key| !found.has_key(key)).collect();
        if stays.contains(&false) {
            let rows = |numbers: &[f32]| -> Vec<f32> {
                let rows = numbers.chunks_exact(width).zip(&stays).filter(|(_, stays)| **stays);
                rows.flat_map(|(row, _)| row).copied().collect()
            };
            (self.keys, self.values) = (rows(&self.keys), rows(&self.values));
            let mut stay = stays.iter();
            self.thresholds.retain(|_| stay.next() == Some(&true));
        }
        self.keys.extend(&newer.keys);
        self.values.extend(&newer.values);
        self.thresholds.extend(&newer.thresholds);
    }

    /// Returns its tensors.
    pub fn tensors(&self) -> [Numbers; 4] {
        let (entries, width) = (self.thresholds.len() as u64, self.mean.len() as u64);
        let tensor = |part: &str, shape: &[u64], values: &[f32]| Numbers {
            name: format!("layers.{}.mlp.codebook.{part}", self.layer),
            shape: shape.to_vec(),
            values: values.to_vec(),
        };
        [
            tensor("mean", &[width], &self.mean),
            tensor("keys", &[entries, width], &self.keys),
            tensor("values", &[entries, width], &self.values),
            tensor("thresholds", &[entries], &self.thresholds),
        ]
    }

    /// Returns the codebooks among tensors, by layer. Other tensors are ignored.
    ///
    /// # Errors
    /// What does not fit together, in words.
    pub fn of_tensors(tensors: &[Numbers]) -> Result<Vec<Self>, String> {
        let mut by_layer: BTreeMap<usize, Self> = BTreeMap::new();
        for tensor in tensors {
            let Some((layer, part)) = place(&tensor.name) else { continue };
            let codebook = by_layer.entry(layer).or_insert_with(|| Self { layer, ..Self::default() });
            let values = tensor.values.clone();
            match part {
                "mean" => codebook.mean = values,
                "keys" => codebook.keys = values,
                "values" => codebook.values = values,
                "thresholds" => codebook.thresholds = values,
                _ => {}
            }
        }
        for codebook in by_layer.values() {
            let numbers = codebook.mean.len() * codebook.thresholds.len();
            let fits = numbers > 0 && codebook.keys.len() == numbers && codebook.values.len() == numbers;
            if !fits {
                return Err(format!("the corrections of layer {} do not fit together", codebook.layer));
            }
        }
        Ok(by_layer.into_values().collect())
    }
}

/// Returns layer and part of a tensor of a codebook.
fn place(name: &str) -> Option<(usize, &str)> {
    let (layer, part) = name.strip_prefix("layers.")?.split_once(".mlp.codebook.")?;
    Some((layer.parse().ok()?, part))
}

/// Reads the codebooks of a model folder.
///
/// # Errors
/// The file cannot be read, is damaged, or its tensors do not fit together.
pub fn read_codebooks(path: &Path) -> Result<Vec<StoredCodebook>, InferError> {
    let (_, tensors) = read_numbers(path)?;
    StoredCodebook::of_tensors(&tensors).map_err(|what| InferError::Codebook { path: path.to_owned(), what })
}

/// Returns a hash of the file, by which a folder's list of patches knows it.
///
/// # Errors
/// The file cannot be read.
pub fn hash_of(path: &Path) -> io::Result<String> {
    let mut hasher = blake3::Hasher::new();
    hasher.update_reader(File::open(path)?)?;
    Ok(hasher.finalize().to_hex()[..32].to_owned())
}

/// Writes the codebooks of a model folder. The same codebooks give the same bytes.
///
/// # Errors
/// The file cannot be written.
pub fn write_codebooks(path: &Path, codebooks: &[StoredCodebook]) -> Result<(), InferError> {
    let tensors: Vec<Numbers> = codebooks.iter().flat_map(StoredCodebook::tensors).collect();
    Ok(write_numbers(path, &About::default(), &tensors)?)
}
