//! Whether the base model is still the one that a run started with: adapters, moments and every step so far
//! belong to these weights, this configuration and this tokenizer, and to no others.
//!
//! Enters: the open base. Leaves: a record of its files for `state.json`, or a refusal that names the file.
//! Not every byte of the weights is read, because that would take minutes for a large model at each start:
//! every tensor's name, type and shape, and pieces of its numbers from the beginning to the end.

use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};
use sparktune_model::Checkpoint;

use crate::error::TrainError;

/// Bytes of a piece.
const PIECE: usize = 4096;
/// Pieces of a tensor; a tensor that is no longer than all of them is read whole.
const PIECES: usize = 4;

/// The files that decide what the weights compute; a model may lack the second.
const SMALL_FILES: [&str; 2] = ["config.json", "tokenizer.json"];

/// A file of the base, with what distinguishes it from another.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct BaseFile {
    /// Its name in the folder.
    file: String,
    bytes: u64,
    /// BLAKE3 of the names, types, shapes and pieces of all its tensors, or of all its bytes.
    blake3: String,
}

/// Describes the files of a base.
///
/// # Errors
/// When a file cannot be read.
pub(crate) fn record(base: &Checkpoint) -> Result<Vec<BaseFile>, TrainError> {
    let paths: Vec<&Path> = base.shards().collect();
    let mut hashers = vec![blake3::Hasher::new(); paths.len()];
    for (name, info) in base.tensors() {
        let (hasher, bytes) = (&mut hashers[info.shard], base.bytes(info));
        hasher.update(format!("{name} {:?} {:?} {}\n", info.dtype, info.shape, bytes.len()).as_bytes());
        for piece in pieces(bytes) {
            hasher.update(piece);
        }
    }
    let files = paths.into_iter().zip(hashers).map(|(path, hasher)| {
        let bytes = fs::metadata(path).map_err(TrainError::io(path))?.len();
        let file = path.file_name().expect("a shard is a file").to_string_lossy().into_owned();
        Ok::<_, TrainError>(BaseFile { file, bytes, blake3: hasher.finalize().to_hex().to_string() })
    });
    let small = SMALL_FILES.into_iter().filter_map(|name| {
        let path = base.dir().join(name);
        match fs::read(&path) {
            Ok(bytes) => Some(Ok(BaseFile {
                file: name.to_owned(),
                bytes: bytes.len() as u64,
                blake3: blake3::hash(&bytes).to_hex().to_string(),
            })),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
            Err(error) => Some(Err(TrainError::io(&path)(error))),
        }
    });
    files.chain(small).collect()
}

/// Refuses a base whose files are not those of the record.
///
/// # Errors
/// [`TrainError::OtherBase`] with the first file that differs.
pub(crate) fn require_same(base: &Checkpoint, began_with: &[BaseFile]) -> Result<(), TrainError> {
    match difference(began_with, &record(base)?) {
        None => Ok(()),
        Some(reason) => Err(TrainError::OtherBase { path: base.dir().to_owned(), reason }),
    }
}

/// Describes the first file that is not the same in both records.
pub(crate) fn difference(began_with: &[BaseFile], found: &[BaseFile]) -> Option<String> {
    let changed = began_with.iter().find_map(|was| {
        let BaseFile { file, bytes, blake3 } = was;
        match found.iter().find(|is| is.file == *file) {
            None => Some(format!("{file} is missing")),
            Some(is) if is.bytes != *bytes => {
                Some(format!("{file} has {} bytes instead of {bytes}", is.bytes))
            }
            Some(is) if is.blake3 != *blake3 => Some(format!("{file} has changed")),
            Some(_) => None,
        }
    });
    let is_new = |is: &&BaseFile| began_with.iter().all(|was| was.file != is.file);
    changed.or_else(|| found.iter().find(is_new).map(|is| format!("{} is new", is.file)))
}

/// All of few bytes; of many, pieces at even distances, the first and the last among them.
fn pieces(bytes: &[u8]) -> Vec<&[u8]> {
    if bytes.len() <= PIECE * PIECES {
        return vec![bytes];
    }
    let last = bytes.len() - PIECE;
    let starts = (0..PIECES).map(|i| last * i / (PIECES - 1));
    starts.map(|start| &bytes[start..start + PIECE]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(name: &str, bytes: u64, blake3: &str) -> BaseFile {
        BaseFile { file: name.into(), bytes, blake3: blake3.into() }
    }

    #[test]
    fn pieces_reach_from_the_first_byte_to_the_last() {
        let bytes: Vec<u8> = (0..100_000_u32).map(|i| i as u8).collect();
        for length in [0, 1, PIECE * PIECES] {
            assert_eq!(pieces(&bytes[..length]), [&bytes[..length]], "few bytes are read whole");
        }
        for length in [PIECE * PIECES + 1, 99_999, 100_000] {
            let pieces = pieces(&bytes[..length]);
            assert!(pieces.iter().all(|piece| piece.len() == PIECE));
            assert_eq!(pieces[0].as_ptr(), bytes.as_ptr());
            assert_eq!(pieces.last().unwrap().as_ptr_range().end, bytes[..length].as_ptr_range().end);
        }
    }

    #[test]
    fn the_file_that_differs_is_named() {
        let was = [file("a", 10, "x"), file("b", 20, "y")];
        assert_eq!(difference(&was, &was), None);
        let said = |found: &[BaseFile]| difference(&was, found).unwrap();
        assert_eq!(said(&was[..1]), "b is missing");
        assert_eq!(said(&[file("a", 10, "x"), file("b", 21, "y")]), "b has 21 bytes instead of 20");
        assert_eq!(said(&[file("a", 10, "z"), file("b", 20, "y")]), "a has changed");
        assert_eq!(said(&[was[0].clone(), was[1].clone(), file("c", 1, "z")]), "c is new");
    }
}
