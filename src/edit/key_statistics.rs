//! What ordinary text does in the MLP of a layer: the covariance of its keys.
//!
//! The covariance `C = E[k kᵀ]` says which keys must keep their values (ROME, section 3.1). It depends on
//! model, layer and text alone, so it is kept in a file under their hashes. A small part of the tokens that
//! ROME used is enough (arXiv 2506.04226).

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use burn::tensor::Tensor;
use sparktune_data::packets::file::About;
use sparktune_data::packets::numbers::{Numbers, read_numbers, write_numbers};
use sparktune_model::{Model, PackedSequence};

use crate::error::EditError;
use crate::host::host;
use crate::linear_algebra::Matrix;

/// The tokens that are computed at once.
const PIECE: usize = 512;
/// The bytes of all files that are kept: those that were used last.
const MOST_KEPT: u64 = 4 << 30;

/// The statistics of one layer.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct KeyStatistics {
    /// The number of tokens.
    pub tokens: usize,
    /// `E[k kᵀ]`, `[I, I]`.
    pub covariance: Matrix,
    /// The file in which they are kept.
    pub file: Option<PathBuf>,
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
        Ok(Self { tokens, covariance: Matrix::new(inner, inner, covariance), file: None })
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
            was_used(&path);
            return Ok(Self { file: Some(path), ..kept });
        }
        let statistics = Self { file: Some(path.clone()), ..compute()? };
        let about = About {
            metadata: [("tokens".to_owned(), statistics.tokens.to_string())].into(),
            ..About::default()
        };
        let inner = statistics.covariance.rows() as u64;
        let covariance = statistics.covariance.numbers().iter().map(|number| *number as f32).collect();
        let tensor = Numbers { name: "covariance".into(), shape: vec![inner, inner], values: covariance };
        write(&path, &about, tensor);
        Ok(statistics)
    }

    /// Returns what was computed of the covariance and is kept beside it under a name, if `read` takes it;
    /// it gets a shape and numbers.
    pub(crate) fn kept<T>(&self, name: &str, read: impl FnOnce(&[u64], &[f32]) -> Option<T>) -> Option<T> {
        let path = self.path_of(name)?;
        let (_, tensors) = read_numbers(&path).ok()?;
        let [numbers] = &tensors[..] else { return None };
        let found = read(&numbers.shape, &numbers.values)?;
        was_used(&path);
        Some(found)
    }

    /// Keeps what was computed of the covariance beside it under a name, if there is a place for it.
    pub(crate) fn keep(&self, name: &str, shape: Vec<u64>, values: Vec<f32>) {
        if let Some(path) = self.path_of(name).filter(|_| !values.is_empty()) {
            write(&path, &About::default(), Numbers { name: name.to_owned(), shape, values });
        }
    }

    fn path_of(&self, name: &str) -> Option<PathBuf> {
        Some(self.file.as_ref()?.with_extension(format!("{name}.qubgpu")))
    }

    fn of_file(about: &About, tensors: &[Numbers]) -> Option<Self> {
        let tokens = about.metadata.get("tokens")?.parse().ok()?;
        let covariance = tensors.iter().find(|tensor| tensor.name == "covariance")?;
        let [rows, columns] = covariance.shape[..] else { return None };
        let numbers: Vec<f64> = covariance.values.iter().map(|number| f64::from(*number)).collect();
        (rows == columns && numbers.len() as u64 == rows * columns).then(|| Self {
            tokens,
            covariance: Matrix::new(rows as usize, columns as usize, numbers),
            file: None,
        })
    }
}

/// Writes a file of the cache. Where it cannot be written, as on a full disk, its numbers are computed again
/// another time.
fn write(path: &Path, about: &About, numbers: Numbers) {
    if write_numbers(path, about, &[numbers]).is_ok() {
        forget_oldest(path, MOST_KEPT);
    }
}

/// Notes that a file was used, which is worth less than the edit.
fn was_used(path: &Path) {
    drop(File::options().append(true).open(path).and_then(|file| file.set_modified(SystemTime::now())));
}

/// Removes the files beside a new one that were used longest ago, until all together have at most so many
/// bytes. What cannot be removed stays.
fn forget_oldest(new: &Path, most: u64) {
    let Some(entries) = new.parent().and_then(|folder| fs::read_dir(folder).ok()) else { return };
    let mut files: Vec<_> = entries
        .flatten()
        .filter(|entry| entry.path().extension().is_some_and(|ending| ending == "qubgpu"))
        .filter_map(|entry| {
            let about = entry.metadata().ok().filter(fs::Metadata::is_file)?;
            Some((about.modified().ok()?, about.len(), entry.path()))
        })
        .collect();
    files.sort_by_key(|file| std::cmp::Reverse(file.0));
    let mut sum = 0;
    for (_, bytes, path) in files {
        sum += bytes;
        if sum > most && path != new {
            drop(fs::remove_file(path));
        }
    }
}

fn add(sums: &mut [f64], tensor: Tensor<2>) {
    sums.iter_mut().zip(host(tensor)).for_each(|(sum, number)| *sum += f64::from(number));
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn statistics_and_what_was_computed_of_them_are_read_again_and_damage_or_a_full_disk_does_no_harm() {
        let folder = tempfile::tempdir().unwrap();
        let covariance = Matrix::new(2, 2, vec![2.0, 0.5, 0.5, 1.0]);
        let computed = KeyStatistics { tokens: 7, covariance, file: None };
        let cached = |folder: &Path, known: bool| {
            let compute = || if known { panic!("is kept") } else { Ok(computed.clone()) };
            KeyStatistics::cached(Some(folder), "keys", compute).unwrap()
        };
        let first = cached(folder.path(), false);
        assert_eq!(cached(folder.path(), true), first);
        let read =
            |statistics: &KeyStatistics| statistics.kept("factor", |_, numbers| Some(numbers.to_vec()));
        assert_eq!(read(&first), None);
        first.keep("factor", vec![3], vec![1.0, 2.0, 3.0]);
        assert_eq!(read(&first), Some(vec![1.0, 2.0, 3.0]));
        assert_eq!(first.kept("factor", |shape, _| (shape == [4]).then_some(())), None);
        let file = folder.path().join("keys.factor.qubgpu");
        let mut bytes = fs::read(&file).unwrap();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        fs::write(&file, bytes).unwrap();
        assert_eq!(read(&first), None);
        // A place in which nothing can be written.
        let nowhere = cached(&file.join("below"), false);
        nowhere.keep("factor", vec![1], vec![1.0]);
        assert_eq!(read(&nowhere), None);
    }

    #[test]
    fn the_files_that_were_used_last_are_kept_up_to_a_size() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        for (age, name) in [(3, "old.qubgpu"), (1, "used.qubgpu"), (0, "new.qubgpu"), (9, "notes.txt")] {
            fs::write(path(name), [0; 100]).unwrap();
            let file = File::options().append(true).open(path(name)).unwrap();
            file.set_modified(SystemTime::now() - Duration::from_secs(60 * age)).unwrap();
        }
        forget_oldest(&path("new.qubgpu"), 200);
        assert!(!path("old.qubgpu").exists());
        assert!(path("used.qubgpu").exists() && path("new.qubgpu").exists() && path("notes.txt").exists());
        forget_oldest(&path("new.qubgpu"), 10);
        assert!(!path("used.qubgpu").exists() && path("new.qubgpu").exists());
    }
}
