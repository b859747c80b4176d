//! Writes a GGUF file tensor by tensor.

use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use rustix::fs::statvfs;
use sparktune_base::files::{private_file, sync};

use super::encoding::Encoding;
use super::format::{Described, Metadata, header, padding};
use crate::ModelError;
use crate::weight_file::sync_and_forget;

/// The number of values that are encoded at a time: a multiple of the blocks of `q8_0`.
const PIECE: usize = 1 << 20;

/// Is told the number of written tensors and of all before each one, and returns whether to go on.
pub type Progress<'a> = dyn FnMut(usize, usize) -> bool + 'a;

/// Writes a file, and returns its size in bytes. `numbers` returns the values of a tensor by its index. An
/// older file is replaced when the new one is complete.
///
/// # Errors
/// When the disk is too small, or a tensor cannot be read, stored in its type, or written;
/// [`ModelError::Stopped`] when `progress` says no.
pub(super) fn write_file(
    path: &Path,
    metadata: &Metadata,
    tensors: &[Described],
    progress: &mut Progress,
    numbers: &mut dyn FnMut(usize) -> Result<Vec<f32>, ModelError>,
) -> Result<u64, ModelError> {
    let header = header(metadata, tensors);
    let data: u64 = tensors.iter().map(|tensor| tensor.bytes() + padding(tensor.bytes()) as u64).sum();
    let bytes = header.len() as u64 + data;
    let folder = path.parent().unwrap_or(Path::new("."));
    require_space(path, folder, bytes)?;
    let unfinished = unfinished(path);
    // What is left of an export that was killed, or a link that somebody put there, is not written to.
    match fs::remove_file(&unfinished) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            return Err(ModelError::io(&unfinished)(error));
        }
        _ => {}
    }
    let done = private_file()
        .create_new(true)
        .open(&unfinished)
        .map_err(ModelError::io(&unfinished))
        .and_then(|file| write_all(file, &unfinished, &header, tensors, progress, numbers))
        .and_then(|()| sync_and_forget(&unfinished).map_err(ModelError::io(&unfinished)))
        .and_then(|()| fs::rename(&unfinished, path).map_err(ModelError::io(path)))
        .and_then(|()| sync(folder).map_err(ModelError::io(folder)));
    if let Err(error) = done {
        // The original error matters more than a failed clean-up.
        drop(fs::remove_file(&unfinished));
        return Err(error);
    }
    Ok(bytes)
}

/// Returns the name of a file while it is written.
fn unfinished(path: &Path) -> PathBuf {
    let name = path.file_name().expect("a file has a name").to_string_lossy();
    path.with_file_name(format!(".{name}.new"))
}

fn require_space(path: &Path, folder: &Path, needed: u64) -> Result<(), ModelError> {
    // Where the system does not say it, writing fails later.
    let Ok(stat) = statvfs(folder) else { return Ok(()) };
    let available = stat.f_bavail.saturating_mul(stat.f_frsize);
    if available < needed {
        return Err(ModelError::NoSpace { path: path.to_owned(), needed, available });
    }
    Ok(())
}

fn write_all(
    file: File,
    path: &Path,
    header: &[u8],
    tensors: &[Described],
    progress: &mut Progress,
    numbers: &mut dyn FnMut(usize) -> Result<Vec<f32>, ModelError>,
) -> Result<(), ModelError> {
    let mut file = BufWriter::new(file);
    file.write_all(header).map_err(ModelError::io(path))?;
    let mut encoded = Vec::new();
    for (index, tensor) in tensors.iter().enumerate() {
        if !progress(index, tensors.len()) {
            return Err(ModelError::Stopped);
        }
        let values = numbers(index)?;
        assert_eq!(values.len(), tensor.values(), "a tensor has the values of its shape");
        for piece in values.chunks(PIECE) {
            encoded.clear();
            tensor.encoding.encode(piece, &mut encoded).ok_or_else(|| overflow(path, tensor))?;
            file.write_all(&encoded).map_err(ModelError::io(path))?;
        }
        file.write_all(&[0; 32][..padding(tensor.bytes())]).map_err(ModelError::io(path))?;
    }
    file.flush().map_err(ModelError::io(path))
}

fn overflow(path: &Path, tensor: &Described) -> ModelError {
    let advice = match tensor.encoding {
        Encoding::F32 | Encoding::Bf16 => "The weights are not usable; export another checkpoint",
        Encoding::F16 | Encoding::Q8_0 => "Export it with --gguf bf16, which has the range of f32",
    };
    let name = &tensor.name;
    let reason = format!("a value of the tensor `{name}` does not fit into the chosen type. {advice}");
    ModelError::Gguf { path: path.to_owned(), reason }
}
