//! Writes a safetensors file tensor by tensor, so that its tensors are never in memory together.
//!
//! Enters: what the header says of each tensor, and then the numbers, in the order of the header. Leaves: the
//! bytes that the safetensors crate writes when it is given all tensors at once. It must not know which
//! tensors a model has.

use std::io::{self, Write};

use safetensors::Dtype;
use safetensors::tensor::{Metadata, TensorInfo};

use crate::numbers::narrow;

/// The number of values that are converted at a time.
const PIECE: usize = 1 << 20;

/// What the header of a file says of a tensor.
#[derive(Debug, Clone)]
pub(crate) struct Described<'a> {
    pub(crate) name: &'a str,
    pub(crate) dtype: Dtype,
    pub(crate) shape: &'a [usize],
    /// Its size in the file, in bytes.
    pub(crate) length: usize,
}

/// Sorts tensors into their order in a file: the widest types first, and by name among equal types.
pub(crate) fn sort(tensors: &mut [Described]) {
    tensors.sort_by(|a, b| b.dtype.cmp(&a.dtype).then(a.name.cmp(b.name)));
}

/// Writes everything before the first tensor of a file, whose tensors are those in this order.
///
/// # Errors
/// When it cannot be written.
pub(crate) fn write_header(tensors: &[Described], out: &mut dyn Write) -> io::Result<()> {
    let mut end = 0;
    let infos = tensors.iter().map(|tensor| {
        let start = end;
        end += tensor.length;
        let info =
            TensorInfo { dtype: tensor.dtype, shape: tensor.shape.to_vec(), data_offsets: (start, end) };
        (tensor.name.to_owned(), info)
    });
    let format = Some([("format".to_owned(), "pt".to_owned())].into());
    let header = Metadata::new(format, infos.collect()).map_err(io::Error::other)?;
    let mut header = serde_json::to_vec(&header)?;
    header.resize(header.len().next_multiple_of(8), b' ');
    out.write_all(&(header.len() as u64).to_le_bytes())?;
    out.write_all(&header)
}

/// Writes numbers as a tensor of this float type, rounded to nearest even.
///
/// # Panics
/// When the type is not a plain float.
///
/// # Errors
/// When they cannot be written.
pub(crate) fn write_numbers(numbers: &[f32], dtype: Dtype, out: &mut dyn Write) -> io::Result<()> {
    for piece in numbers.chunks(PIECE) {
        out.write_all(&narrow(piece, dtype).expect("only float tensors are loaded as parameters"))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use safetensors::tensor::TensorView;

    use super::*;

    #[test]
    fn the_file_is_the_one_that_the_crate_writes_of_all_tensors_at_once() {
        let numbers: Vec<f32> = (0..PIECE + 3).map(|i| i as f32 / 7.0).collect();
        let bytes = |dtype| narrow(&numbers, dtype).unwrap();
        let tensors =
            [("b", Dtype::BF16), ("c.x", Dtype::F32), ("a", Dtype::BF16), ("long name", Dtype::F16)];
        let stored = tensors.map(|(name, dtype)| (name, dtype, bytes(dtype)));
        let shape = [numbers.len()];
        let views = stored
            .iter()
            .map(|(name, dtype, bytes)| (*name, TensorView::new(*dtype, shape.to_vec(), bytes).unwrap()));
        let format = Some([("format".to_owned(), "pt".to_owned())].into());
        let theirs = safetensors::serialize(views, format).unwrap();

        let mut described: Vec<Described> = stored
            .iter()
            .map(|(name, dtype, bytes)| Described { name, dtype: *dtype, shape: &shape, length: bytes.len() })
            .collect();
        sort(&mut described);
        let mut ours = Vec::new();
        write_header(&described, &mut ours).unwrap();
        for tensor in described {
            write_numbers(&numbers, tensor.dtype, &mut ours).unwrap();
        }
        assert!(ours == theirs);
    }
}
