//! One row of the batch (a pack), read from the token file.

use super::rows::Piece;
use crate::token_file::{Mask, TokenFile, TokenFileError};

/// One row: several pieces end to end, each a sequence of its own. It is not padded.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Pack {
    /// Token ids, `[tokens]`.
    pub input_ids: Vec<u32>,
    /// Position of each token in its piece, from 0, `[tokens]`.
    pub position_ids: Vec<u32>,
    /// Boundaries: piece `p` is tokens `cu_seqlens[p]..cu_seqlens[p + 1]`, `[pieces + 1]`.
    pub cu_seqlens: Vec<u32>,
    /// `loss_mask[t]` is true if token `t` is a target, predicted from `t − 1`, `[tokens]`. The first token
    /// of a piece is never a target.
    pub loss_mask: Vec<bool>,
}

impl Pack {
    /// Reads the pieces of one row. A damaged packet is detected here at the latest, with an error that names
    /// the example.
    pub fn build(file: &TokenFile, pieces: &[Piece]) -> Result<Self, TokenFileError> {
        let tokens = pieces.iter().map(|piece| piece.len as usize).sum();
        let mut pack = Self {
            input_ids: Vec::with_capacity(tokens),
            position_ids: Vec::with_capacity(tokens),
            cu_seqlens: Vec::with_capacity(pieces.len() + 1),
            loss_mask: Vec::with_capacity(tokens + 7),
        };
        pack.cu_seqlens.push(0);
        for piece in pieces {
            let example = file.example(piece.example as usize)?;
            let (start, end) = (piece.start as usize, (piece.start + piece.len) as usize);
            let border = pack.input_ids.len();
            pack.input_ids.extend_from_slice(&example.tokens[start..end]);
            pack.position_ids.extend(0..piece.len);
            extend_from_bits(&mut pack.loss_mask, example.mask, start, end);
            pack.loss_mask[border] = false;
            pack.cu_seqlens.push(pack.input_ids.len() as u32);
        }
        Ok(pack)
    }

    /// Returns the number of tokens in the row.
    pub fn tokens(&self) -> usize {
        self.input_ids.len()
    }

    /// Returns the number of targets in the row.
    pub fn target_tokens(&self) -> usize {
        self.loss_mask.iter().filter(|&&target| target).count()
    }
}

/// Appends the mask of tokens `start..end`, eight at a time where possible.
fn extend_from_bits(out: &mut Vec<bool>, mask: Mask<'_>, start: usize, end: usize) {
    let whole = start.next_multiple_of(8).min(end);
    out.extend((start..whole).map(|t| mask.get(t)));
    let until = out.len() + (end - whole);
    for &byte in &mask.bytes()[whole / 8..end.div_ceil(8).max(whole / 8)] {
        out.extend_from_slice(&BITS[usize::from(byte)]);
    }
    out.truncate(until);
}

const BITS: [[bool; 8]; 256] = {
    let mut table = [[false; 8]; 256];
    let mut byte = 0;
    while byte < 256 {
        let mut bit = 0;
        while bit < 8 {
            table[byte][bit] = byte >> bit & 1 == 1;
            bit += 1;
        }
        byte += 1;
    }
    table
};
