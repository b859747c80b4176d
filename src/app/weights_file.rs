//! Whether a file of weights is whole, from its header alone.
//!
//! A folder that was copied by hand may have a file that ends too early. The trainer would notice when it
//! reads the weights, which is after everything was planned and asked.

use std::collections::HashMap;
use std::fs::File;
use std::io::Read;
use std::path::Path;

use serde::Deserialize;
use sparktune_base::escape::escape;
use sparktune_base::units::bytes;

use crate::failure::{Exit, Failure};

/// The longest header that is read, as the format limits it.
const LONGEST_HEADER: u64 = 100_000_000;
/// The bytes before the header, which are its length.
const LENGTH: u64 = 8;

/// A tensor in the header; what else is in it does not count here.
#[derive(Deserialize)]
struct Listed {
    data_offsets: Option<[u64; 2]>,
}

/// Checks that a safetensors file is as long as its header says. A file without a readable header is left to
/// the trainer, which explains what is wrong with it.
///
/// # Errors
/// It is shorter or longer.
pub(crate) fn require_whole(path: &Path) -> Result<(), Failure> {
    let Some((is, should_be)) = lengths(path).filter(|(is, should_be)| is != should_be) else {
        return Ok(());
    };
    let text = format!(
        "{} has {}, and its header describes {}: it was not copied or downloaded whole",
        escape(&path.display().to_string()),
        bytes(is),
        bytes(should_be)
    );
    Err(Failure::new(Exit::Usage, text).hint("Copy the file again, or name the model by its id on the hub"))
}

/// Returns the length of a file in bytes, and the one that follows from its header.
fn lengths(path: &Path) -> Option<(u64, u64)> {
    let mut file = File::open(path).ok()?;
    let is = file.metadata().ok().filter(std::fs::Metadata::is_file)?.len();
    let mut length = [0; LENGTH as usize];
    file.read_exact(&mut length).ok()?;
    let length = u64::from_le_bytes(length);
    if length > LONGEST_HEADER {
        return None;
    }
    let mut header = Vec::new();
    file.take(length).read_to_end(&mut header).ok()?;
    if (header.len() as u64) < length {
        return Some((is, LENGTH + length));
    }
    let tensors: HashMap<String, Listed> = serde_json::from_slice(&header).ok()?;
    let end = tensors.values().filter_map(|tensor| tensor.data_offsets).map(|[_, end]| end).max()?;
    Some((is, end.saturating_add(LENGTH + length)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_ends_too_early_or_too_late_is_refused_by_its_header() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.safetensors");
        let header =
            br#"{"__metadata__":{"format":"pt"},"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}"#;
        let mut whole = (header.len() as u64).to_le_bytes().to_vec();
        whole.extend_from_slice(header);
        whole.extend_from_slice(&[0; 8]);
        let judged = |content: &[u8]| {
            std::fs::write(&path, content).unwrap();
            require_whole(&path)
        };
        assert!(judged(&whole).is_ok());
        for length in [20, whole.len() - 9, whole.len() - 1] {
            let refused = judged(&whole[..length]).unwrap_err();
            assert!(refused.text.contains("not copied or downloaded whole"), "{}", refused.text);
        }
        assert!(judged(&[&whole[..], b"x"].concat()).is_err());
        // What is no such file at all is not judged here.
        for other in [&b""[..], b"text", b"\xff\xff\xff\xff\xff\xff\xff\xff", b"\x02\0\0\0\0\0\0\0[]"] {
            assert!(judged(other).is_ok(), "{other:?}");
        }
        assert!(require_whole(&folder.path().join("none")).is_ok());
        // Whatever the trainer's reader takes is whole.
        let changes = ["", "0", "9", "-", "\"", "{", "]", "\\", "\u{1b}", "99999999999999999999"];
        let mut taken = 0;
        for (at, change) in (8..whole.len() - 8).flat_map(|at| changes.map(|change| (at, change))) {
            let mut changed = [&whole[..at], change.as_bytes(), &whole[at + 1..]].concat();
            let length = whole.len() - 17 + change.len();
            changed[..8].copy_from_slice(&(length as u64).to_le_bytes());
            let judged = judged(&changed);
            if safetensors::SafeTensors::deserialize(&changed).is_ok() {
                taken += 1;
                assert!(judged.is_ok(), "{at} {change}: {}", judged.unwrap_err());
            }
        }
        assert!(taken > 0);
    }
}
