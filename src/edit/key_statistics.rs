//! What ordinary text does in the MLP of a layer: the covariance of its keys.
//!
//! The covariance `C = E[k kᵀ]` says which keys must keep their values (ROME, section 3.1). It depends on
//! model, layer and text alone, so it is kept in a file under their hashes. A small part of the tokens that
//! ROME used is enough (arXiv 2506.04226).

use std::path::Path;

use burn::tensor::{Tensor, TensorData};
use sparktune_data::packets::file::About;
use sparktune_data::packets::numbers::{Numbers, read_numbers, write_numbers};
use sparktune_model::{Model, PackedSequence};

use crate::error::EditError;
use crate::linear_algebra::Matrix;

/// The tokens that are computed at once.
const PIECE: usize = 512;

/// The statistics of one layer.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct KeyStatistics {
    /// The number of tokens.
    pub tokens: usize,
    /// `E[k kᵀ]`, `[I, I]`.
    pub covariance: Matrix,
}

impl KeyStatistics {
    /// Computes the statistics of a text, whose documents are `sequences`. `go_on` is asked between pieces.
    pub(crate) fn of(
        model: &Model,
        layer: usize,
        sequences: &[Vec<u32>],
        go_on: &mut dyn FnMut() -> bool,
    ) -> Result<Self, EditError> {
        let inner = model.down_proj(layer).weight.shape()[1];
        let mut sums = vec![0.0f64; inner * inner];
        let mut tokens = 0;
        for piece in sequences.iter().flat_map(|ids| ids.chunks(PIECE)) {
            if !go_on() {
                return Err(EditError::Stopped);
            }
            let key_TI = model.mlp_at(layer, &PackedSequence::single(piece)).key_TI;
            add(&mut sums, key_TI.clone().transpose().matmul(key_TI));
            tokens += piece.len();
        }
        let count = tokens.max(1) as f64;
        // Rounded as in the file, so that what is read again gives the same edit.
        let covariance = sums.into_iter().map(|sum| f64::from((sum / count) as f32)).collect();
        Ok(Self { tokens, covariance: Matrix::new(inner, inner, covariance) })
    }

    /// Reads the statistics from `folder`, or computes and keeps them there. `key` stands for everything that
    /// they depend on.
    pub(crate) fn cached(
        folder: Option<&Path>,
        key: &str,
        compute: impl FnOnce() -> Result<Self, EditError>,
    ) -> Result<Self, EditError> {
        let Some(path) = folder.map(|folder| folder.join(format!("{key}.qubgpu"))) else { return compute() };
        // A file that cannot be read is made again.
        if let Some(kept) =
            read_numbers(&path).ok().and_then(|(about, tensors)| Self::of_file(&about, &tensors))
        {
            return Ok(kept);
        }
        let statistics = compute()?;
        let about = About {
            metadata: [("tokens".to_owned(), statistics.tokens.to_string())].into(),
            ..About::default()
        };
        let inner = statistics.covariance.rows() as u64;
        let covariance = statistics.covariance.numbers().iter().map(|number| *number as f32).collect();
        let tensor = Numbers { name: "covariance".into(), shape: vec![inner, inner], values: covariance };
        write_numbers(&path, &about, &[tensor])?;
        Ok(statistics)
    }

    fn of_file(about: &About, tensors: &[Numbers]) -> Option<Self> {
        let tokens = about.metadata.get("tokens")?.parse().ok()?;
        let covariance = tensors.iter().find(|tensor| tensor.name == "covariance")?;
        let [rows, columns] = covariance.shape[..] else { return None };
        let numbers: Vec<f64> = covariance.values.iter().map(|number| f64::from(*number)).collect();
        (rows == columns && numbers.len() as u64 == rows * columns)
            .then(|| Self { tokens, covariance: Matrix::new(rows as usize, columns as usize, numbers) })
    }
}

fn add(sums: &mut [f64], tensor: Tensor<2>) {
    sums.iter_mut().zip(host(tensor)).for_each(|(sum, number)| *sum += f64::from(number));
}

/// Returns the numbers of a tensor on the host.
pub(crate) fn host<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
    let data: TensorData = tensor.inner().into_data().convert::<f32>();
    data.try_to_vec().expect("was converted to f32")
}
