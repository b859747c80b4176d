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
        let mut pack = Self::default();
        pack.refill(file, pieces)?;
        Ok(pack)
    }

    /// Like [`build`](Self::build), in the memory of another row. After an error the row is of no use.
    pub fn refill(&mut self, file: &TokenFile, pieces: &[Piece]) -> Result<(), TokenFileError> {
        // The pieces lie all over the file. One after the other, each would wait for its first bytes alone.
        file.fetch_ahead(pieces.iter().map(|piece| {
            let tokens = piece.start as usize..(piece.start + piece.len) as usize;
            (piece.example as usize, tokens)
        }));
        let tokens = pieces.iter().map(|piece| piece.len as usize).sum();
        let Self { input_ids, position_ids, cu_seqlens, loss_mask } = self;
        input_ids.clear();
        input_ids.reserve_exact(tokens);
        position_ids.clear();
        position_ids.reserve_exact(tokens);
        cu_seqlens.clear();
        cu_seqlens.reserve_exact(pieces.len() + 1);
        // All of it is overwritten; only what the row before did not have is zeroed.
        loss_mask.resize(tokens, false);
        cu_seqlens.push(0);
        for piece in pieces {
            let example = file.example(piece.example as usize)?;
            let (start, len) = (piece.start as usize, piece.len as usize);
            let border = input_ids.len();
            input_ids.extend_from_slice(&example.tokens[start..start + len]);
            position_ids.extend(0..piece.len);
            spread(example.mask, start, &mut loss_mask[border..border + len]);
            loss_mask[border] = false;
            cu_seqlens.push(input_ids.len() as u32);
        }
        Ok(())
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

/// Writes the mask of the tokens from `start` on, eight at a time where a byte of it begins.
fn spread(mask: Mask<'_>, start: usize, out: &mut [bool]) {
    let before_byte = (start.next_multiple_of(8) - start).min(out.len());
    let (first, rest) = out.split_at_mut(before_byte);
    for (t, target) in (start..).zip(first) {
        *target = mask.get(t);
    }
    let bytes = &mask.bytes()[(start + before_byte) / 8..];
    let (whole, last) = rest.as_chunks_mut::<8>();
    for (targets, byte) in whole.iter_mut().zip(bytes) {
        *targets = BITS[usize::from(*byte)];
    }
    if let Some(byte) = bytes.get(whole.len()) {
        last.copy_from_slice(&BITS[usize::from(*byte)][..last.len()]);
    }
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
