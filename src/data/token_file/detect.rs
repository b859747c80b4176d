//! Recognises what a file is from its first bytes, so that every command that takes data takes token files
//! too.

use std::io::Read;
use std::path::Path;

use sparktune_base::regular_file::open_regular;

use super::error::TokenFileError;
use super::v1;
use super::v2::FILE_MAGIC;

/// The ending of the name of token files.
const SUFFIX: &str = ".qubgpu";
/// The number of bytes that are read to recognise a file.
const LOOKED_AT: u64 = 1 << 20;

/// What a file contains, as far as its beginning shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Contents {
    /// A v2 token file.
    V2,
    /// v1 packets.
    V1,
    /// Lines of token ids, which `pack` converts.
    IdLines,
    /// Anything else, such as text.
    Other,
}

/// Recognises a file from its first bytes.
///
/// # Errors
/// The file cannot be read.
pub fn contents(path: &Path) -> Result<Contents, TokenFileError> {
    let mut start = Vec::new();
    let read = open_regular(path).and_then(|file| file.take(LOOKED_AT).read_to_end(&mut start));
    read.map_err(TokenFileError::io(path))?;
    Ok(contents_of(&start))
}

fn contents_of(start: &[u8]) -> Contents {
    if start.starts_with(&FILE_MAGIC) {
        return Contents::V2;
    }
    let text = json_text(start);
    if text.starts_with(b"{") {
        let line = text.split(|byte| *byte == b'\n').next().unwrap_or_default();
        // The line may be longer than what was read, so it is searched rather than parsed.
        let has_ids = memchr::memmem::find(line, b"\"input_ids\"").is_some();
        let parses = serde_json::from_slice::<IdLine>(line).is_ok() || line.len() as u64 >= LOOKED_AT - 3;
        return if has_ids && parses { Contents::IdLines } else { Contents::Other };
    }
    if v1::looks_like(start) { Contents::V1 } else { Contents::Other }
}

/// The field that makes an object a line of token ids.
#[derive(serde::Deserialize)]
struct IdLine {
    #[serde(rename = "input_ids")]
    _input_ids: serde::de::IgnoredAny,
}

/// Returns whether a file is given as a token file: by its name, or because it begins like one. A file that
/// only looks like v1 packets somewhere is not enough, because any binary file may.
///
/// # Errors
/// The file cannot be read.
pub fn is_token_file(path: &Path) -> Result<bool, TokenFileError> {
    let named =
        path.file_name().is_some_and(|name| name.to_string_lossy().to_ascii_lowercase().ends_with(SUFFIX));
    if named {
        return Ok(!path.is_dir());
    }
    // Reading from a pipe would take its first bytes from whoever reads the data.
    if !path.is_file() {
        return Ok(false);
    }
    let mut first = [0; FILE_MAGIC.len()];
    let mut file = open_regular(path).map_err(TokenFileError::io(path))?;
    let read = file.read(&mut first).map_err(TokenFileError::io(path))?;
    match &first[..read] {
        start if *start == FILE_MAGIC => Ok(true),
        [v1::SYNC, ..] => Ok(contents(path)? == Contents::V1),
        _ => Ok(false),
    }
}

/// Returns the text without a byte order mark and surrounding white space.
pub(super) fn json_text(bytes: &[u8]) -> &[u8] {
    bytes.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(bytes).trim_ascii()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packets::codes::Route;

    #[test]
    fn lines_of_ids_are_told_from_text_that_only_mentions_them() {
        let of = |text: &str| contents_of(text.as_bytes());
        assert_eq!(of("{\"input_ids\": [1, 2]}\n{oops"), Contents::IdLines);
        assert_eq!(of("\u{feff} {\"loss_mask\": [0], \"input_ids\": [1]}"), Contents::IdLines);
        assert_eq!(of("{\"prompt\": \"\\\"input_ids\\\"\", \"completion\": \"x\"}"), Contents::Other);
        assert_eq!(of("{\"prompt\": {\"input_ids\": 1}, \"completion\": \"x\"}"), Contents::Other);
        assert_eq!(of("{\"prompt\": \"a\", \"completion\": \"b\"}"), Contents::Other);
        assert_eq!(of(""), Contents::Other);
        assert_eq!(of("QUBGPU2\n rest"), Contents::V2);
        let mut packets = Vec::new();
        v1::encode(&[1, 2, 3], Route::default(), &mut packets).unwrap();
        assert_eq!(contents_of(&packets), Contents::V1);
    }
}
