//! Compares with transformers and PEFT on the fixture sets (`tests/fixtures`, or the folder in
//! `SPARKTUNE_FIXTURES`). Tolerances are those of `tests/README.md`.

mod adapters;
mod batches;
mod curves;
mod decoding;
mod draft_training;
mod exports;
mod files;
mod forward;
mod gemma3;
mod gradients;
#[cfg(feature = "cuda")]
mod on_device;
mod others;

use std::path::{Path, PathBuf};

use burn::tensor::{Device, Tensor};
use safetensors::SafeTensors;
use serde_json::Value;

use crate::export::{Accounting, Merged};
use crate::{Checkpoint, Model, ModelError, Mtp, PackedSequence};

pub(crate) const LOGITS: f32 = 2e-4;
pub(crate) const LOSS: f64 = 1e-5;
pub(crate) const GRADIENT: f64 = 1e-3;
pub(crate) const CURVE: f64 = 1e-3;

/// Returns the fixture root, which either contains `qwen35/` and `others/`, or is the qwen35 set itself.
pub(crate) fn root() -> PathBuf {
    match std::env::var_os("SPARKTUNE_FIXTURES") {
        Some(dir) => PathBuf::from(dir),
        None => PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures"),
    }
}

/// Returns whether other fixtures are named than those of the repository, of which every set is there.
pub(crate) fn is_elsewhere() -> bool {
    std::env::var_os("SPARKTUNE_FIXTURES").is_some()
}

pub(crate) fn qwen35() -> PathBuf {
    let root = root();
    if root.join("checkpoint").is_dir() { root } else { root.join("qwen35") }
}

pub(crate) fn json(file: &str) -> Value {
    serde_json::from_str(&std::fs::read_to_string(qwen35().join(file)).unwrap()).unwrap()
}

pub(crate) fn floats(value: &Value) -> Vec<f64> {
    value.as_array().unwrap().iter().map(|x| x.as_f64().unwrap()).collect()
}

pub(crate) fn model(folder: &str) -> Model {
    let checkpoint = Checkpoint::open(&qwen35().join(folder)).unwrap();
    Model::load(&checkpoint, &Device::flex(), &mut |_, _| ()).unwrap()
}

/// Writes a trained model and its head into the new folder `out`.
pub(crate) fn export(
    base: &Checkpoint,
    model: &Model,
    mtp: Option<&Mtp>,
    keep_mtp: bool,
    out: &Path,
    probe: &PackedSequence,
) -> Result<Accounting, ModelError> {
    Merged { base, model, mtp, keep_mtp, beside: None, chat_template: None, probe }.write(out, &mut || true)
}

/// A safetensors file of golden values.
pub(crate) struct Golden {
    bytes: Vec<u8>,
}

impl Golden {
    pub(crate) fn open(file: &str) -> Self {
        Self { bytes: std::fs::read(qwen35().join(file)).unwrap() }
    }

    fn tensors(&self) -> SafeTensors<'_> {
        SafeTensors::deserialize(&self.bytes).unwrap()
    }

    pub(crate) fn names(&self) -> Vec<String> {
        self.tensors().names().into_iter().map(str::to_owned).collect()
    }

    pub(crate) fn numbers(&self, name: &str) -> Vec<f32> {
        let tensors = self.tensors();
        let view = tensors.tensor(name).unwrap_or_else(|_| panic!("no golden tensor {name}"));
        crate::numbers::widen(view.data(), view.dtype()).unwrap()
    }

    pub(crate) fn integers(&self, name: &str) -> Vec<i64> {
        let tensors = self.tensors();
        let view = tensors.tensor(name).unwrap();
        match view.dtype() {
            safetensors::Dtype::I64 => {
                view.data().chunks_exact(8).map(|b| i64::from_le_bytes(b.try_into().unwrap())).collect()
            }
            safetensors::Dtype::I32 => view
                .data()
                .chunks_exact(4)
                .map(|b| i64::from(i32::from_le_bytes(b.try_into().unwrap())))
                .collect(),
            other => panic!("{name} is {other:?}"),
        }
    }

    pub(crate) fn shape(&self, name: &str) -> Vec<usize> {
        self.tensors().tensor(name).unwrap().shape().to_vec()
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.tensors().tensor(name).is_ok()
    }

    /// Returns the `[rows, length]` batch `input_ids` and `labels` as one row of that many examples.
    pub(crate) fn batch(&self) -> PackedSequence {
        let shape = self.shape("input_ids");
        labelled_row(&self.integers("input_ids"), &self.integers("labels"), &vec![shape[1]; shape[0]])
    }

    pub(crate) fn ids(&self, name: &str) -> Vec<u32> {
        self.integers(name).into_iter().map(|id| id as u32).collect()
    }
}

/// Returns a row of examples with these `lengths` from unshifted labels (`-100` = no target), the format of
/// transformers.
pub(crate) fn labelled_row(input_ids: &[i64], labels: &[i64], lengths: &[usize]) -> PackedSequence {
    let mut borders = vec![0u32];
    for length in lengths {
        borders.push(borders.last().unwrap() + *length as u32);
    }
    let ids: Vec<u32> = input_ids.iter().map(|id| *id as u32).collect();
    let mask: Vec<bool> = labels.iter().map(|label| *label != -100).collect();
    for (label, id) in labels.iter().zip(input_ids) {
        assert!(*label == -100 || label == id, "labels repeat the input");
    }
    PackedSequence::new(&ids, &borders, &mask)
}

/// Returns the name of a parameter in the wrapper checkpoint of the set.
pub(crate) fn stored_name(canonical: &str) -> String {
    Checkpoint::open(&qwen35().join("checkpoint")).unwrap().stored_name(canonical)
}

pub(crate) fn host(tensor: Tensor<2>) -> Vec<f32> {
    tensor.inner().into_data().try_to_vec().unwrap()
}

/// Returns the largest absolute difference.
pub(crate) fn difference(got: &[f32], expected: &[f32]) -> f32 {
    assert_eq!(got.len(), expected.len());
    got.iter().zip(expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

/// Returns the relative L2 distance.
pub(crate) fn relative(got: &[f32], expected: &[f32]) -> f64 {
    assert_eq!(got.len(), expected.len());
    let square = |x: f32| f64::from(x) * f64::from(x);
    let difference: f64 = got.iter().zip(expected).map(|(a, b)| square(a - b)).sum();
    let norm: f64 = expected.iter().map(|x| square(*x)).sum();
    (difference / norm.max(1e-30)).sqrt()
}
