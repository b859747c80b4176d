//! The examples of a token file, grouped by the line of the text that they were made of.

use std::path::Path;

use sparktune_base::regular_file::open_regular;
use xxhash_rust::xxh3::xxh3_64;

use crate::error::DataError;
use crate::examine::Accepted;
use crate::examples::TooLong;
use crate::served::Effects;
use crate::token_file::{Origin, TokenFile, TokenFileError, all_but_first, v1};
use crate::tokens::Tokens;

/// The number of token bytes after which the pages of a file are released.
const RELEASE_EVERY: usize = 64 << 20;

/// The examples of one line of the text.
pub(crate) struct Line {
    pub origin: Origin,
    /// The hash of the line's content, if the file has it.
    pub content_hash: Option<u64>,
    pub examples: Vec<Tokens>,
}

impl Line {
    /// Returns the number of tokens of the longest example.
    pub(crate) fn longest(&self) -> u32 {
        self.examples.iter().map(|tokens| tokens.input_ids.len() as u32).max().unwrap_or(0)
    }

    /// Returns the largest id of a token; 0 if there is none.
    pub(crate) fn largest_id(&self) -> u32 {
        self.examples.iter().flat_map(|tokens| &tokens.input_ids).copied().max().unwrap_or(0)
    }

    /// Returns the examples with trained tokens as the examination of text does. `None` if there are none.
    pub(crate) fn accepted(mut self) -> Option<Accepted> {
        // Without the hash of its content, a line is known by the tokens of its first example.
        let content_hash = self.content_hash.or_else(|| {
            self.examples.first().map(|tokens| xxh3_64(bytemuck::cast_slice(&tokens.input_ids)))
        })?;
        self.examples.retain(|tokens| tokens.target_count() > 0);
        (!self.examples.is_empty()).then(|| Accepted {
            content_hash,
            is_text: false,
            text_bytes: 0,
            empty_turns: 0,
            unusual_order: None,
            special_tokens: 0,
            effects: Effects::default(),
            tokens: Some(self.examples),
            too_long: TooLong::default(),
            left_out: None,
            refused_turns: 0,
            first_refused: None,
        })
    }
}

/// Reads the intact examples of a v2 file. Neighbours from the same line are one [`Line`].
pub(crate) fn read_v2(
    file: &TokenFile,
    fold: &mut dyn FnMut(Line) -> Result<bool, DataError>,
) -> Result<(), DataError> {
    let mut pending: Option<Line> = None;
    let mut in_memory = 0;
    for i in 0..file.len() {
        let example = match file.example(i) {
            Ok(example) => example,
            Err(TokenFileError::Damaged { .. }) => continue,
            Err(error) => return Err(error.into()),
        };
        in_memory += size_of_val(example.tokens);
        if in_memory > RELEASE_EVERY {
            file.release_pages();
            in_memory = 0;
        }
        let tokens = Tokens { input_ids: example.tokens.to_vec(), loss_mask: example.mask.iter().collect() };
        let (origin, content_hash) = (file.origin(i), file.content_hash(i));
        match &mut pending {
            Some(line) if origin.line > 0 && (line.origin, line.content_hash) == (origin, content_hash) => {
                line.examples.push(tokens);
            }
            _ => {
                let next = Line { origin, content_hash, examples: vec![tokens] };
                if !pending.replace(next).map_or(Ok(true), &mut *fold)? {
                    return Ok(());
                }
            }
        }
    }
    pending.map_or(Ok(true), fold).map(drop)
}

/// Reads the intact examples of a v1 file, which has no masks: every token but the first is trained, as its
/// own trainer does.
pub(crate) fn read_v1(
    path: &Path,
    fold: &mut dyn FnMut(Line) -> Result<bool, DataError>,
) -> Result<(), DataError> {
    let file = open_regular(path).map_err(DataError::io("read", path))?;
    let mut reader = v1::Reader::new(file);
    while let Some(item) = reader.next_item().map_err(DataError::io("read", path))? {
        let v1::Item::Packet(packet) = item else { continue };
        if packet.kind != v1::TOKEN_IDS {
            continue;
        }
        let Ok(input_ids) = packet.token_ids() else { continue };
        let loss_mask = all_but_first(input_ids.len());
        let origin = Origin { file: 0, line: packet.number + 1 };
        let line = Line { origin, content_hash: None, examples: vec![Tokens { input_ids, loss_mask }] };
        if !fold(line)? {
            break;
        }
    }
    Ok(())
}
