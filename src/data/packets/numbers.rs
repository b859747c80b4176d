//! Tensors of f32 numbers in files of typed packets, for what the program itself makes and reads again whole.

use std::path::Path;

use sparktune_base::escape::escape;

use super::dtype::Dtype;
use super::error::PacketError;
use super::file::{About, PacketFile};
use super::state::{NamedTensor, TensorOptions, tensors_of, write_tensors};
use crate::token_file::OnDamage;

/// A tensor of f32 numbers.
#[derive(Debug, Clone, PartialEq)]
pub struct Numbers {
    /// The name.
    pub name: String,
    /// The shape.
    pub shape: Vec<u64>,
    /// The numbers, row-major.
    pub values: Vec<f32>,
}

/// Writes tensors, in the order of their names. The same tensors give the same bytes.
///
/// # Errors
/// A tensor does not fit packets, or the file cannot be written.
pub fn write_numbers(path: &Path, about: &About, tensors: &[Numbers]) -> Result<(), PacketError> {
    let mut sorted: Vec<&Numbers> = tensors.iter().collect();
    sorted.sort_by(|a, b| a.name.cmp(&b.name));
    let bytes: Vec<Vec<u8>> = sorted
        .iter()
        .map(|tensor| tensor.values.iter().flat_map(|value| value.to_le_bytes()).collect())
        .collect();
    let named: Vec<NamedTensor<'_>> = sorted
        .iter()
        .zip(&bytes)
        .map(|(tensor, bytes)| NamedTensor {
            name: &tensor.name,
            dtype: Dtype::F32,
            shape: &tensor.shape,
            bytes,
        })
        .collect();
    write_tensors(&named, about, path, &TensorOptions::default()).map(drop)
}

/// Reads all tensors of a file, by name, and what the file says about itself.
///
/// # Errors
/// The file cannot be read or is damaged, a tensor is incomplete or not of f32 numbers, or a number is not
/// finite.
pub fn read_numbers(path: &Path) -> Result<(About, Vec<Numbers>), PacketError> {
    const FIX: &str = "Get the file again from where it was made";
    let file = PacketFile::open(path, OnDamage::Stop)?;
    let (whole, _) = tensors_of(&file)?;
    let mut tensors = Vec::with_capacity(whole.len());
    for tensor in whole {
        let shown = escape(&tensor.name).into_owned();
        if tensor.dtype != Dtype::F32 {
            let what = format!("{shown} is stored as {}, not as F32", tensor.dtype.name());
            return Err(PacketError::file(path, what, FIX));
        }
        let parts: Vec<&[u8]> = tensor.parts.iter().map(|place| file.payload(*place)).collect();
        // A number may lie on the border of two parts.
        let bytes = parts.concat();
        let values: Vec<f32> =
            bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect();
        if let Some(number) = values.iter().find(|number| !number.is_finite()) {
            return Err(PacketError::file(path, format!("{shown} contains the number {number}"), FIX));
        }
        tensors.push(Numbers { name: tensor.name, shape: tensor.shape, values });
    }
    Ok((file.about().clone(), tensors))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_is_read_again_whatever_order_it_came_in() {
        let folder = tempfile::tempdir().unwrap();
        let (one, other) = (folder.path().join("a.qubgpu"), folder.path().join("b.qubgpu"));
        let large = Numbers { name: "b".into(), shape: vec![3, 200_000], values: vec![0.25; 600_000] };
        let small = Numbers { name: "a".into(), shape: vec![2], values: vec![1.0, -2.5] };
        let about = About { made_of: Some("x".into()), ..About::default() };
        write_numbers(&one, &about, &[large.clone(), small.clone()]).unwrap();
        write_numbers(&other, &about, &[small.clone(), large.clone()]).unwrap();
        assert_eq!(std::fs::read(&one).unwrap(), std::fs::read(&other).unwrap());
        assert_eq!(read_numbers(&one).unwrap(), (about, vec![small, large]));
    }

    #[test]
    fn numbers_that_are_none_are_refused_in_words() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.qubgpu");
        let tensor = Numbers { name: "a".into(), shape: vec![1], values: vec![f32::NAN] };
        write_numbers(&path, &About::default(), &[tensor]).unwrap();
        assert!(read_numbers(&path).unwrap_err().to_string().contains("a contains the number NaN"));
    }
}
