//! The two packing algorithms.

use sparktune_base::best_fit::best_fit;

/// A part of an example, or all of it: tokens `start..start + len`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Piece {
    /// The index of the example.
    pub example: u32,
    /// The first token of the example that is in this row.
    pub start: u32,
    /// Number of tokens, at least 1.
    pub len: u32,
}

/// The rows of an epoch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Packs {
    pieces: Vec<Piece>,
    /// Row `r` is `pieces[ends[r - 1]..ends[r]]`.
    ends: Vec<usize>,
    pack_length: u32,
}

impl Packs {
    /// Returns the number of rows.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Returns whether there is nothing to train on.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Returns the pieces of one row. Panics when `row` is out of range.
    pub fn row(&self, row: usize) -> &[Piece] {
        let start = if row == 0 { 0 } else { self.ends[row - 1] };
        &self.pieces[start..self.ends[row]]
    }

    /// Returns the rows in training order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &[Piece]> {
        (0..self.len()).map(|row| self.row(row))
    }

    /// Returns the number of tokens of a full row.
    pub fn pack_length(&self) -> u32 {
        self.pack_length
    }

    pub(super) fn reorder(&mut self, order: &[u32]) {
        let mut pieces = Vec::with_capacity(self.pieces.len());
        let ends = order
            .iter()
            .map(|&row| {
                pieces.extend_from_slice(self.row(row as usize));
                pieces.len()
            })
            .collect();
        (self.pieces, self.ends) = (pieces, ends);
    }
}

/// The number of length classes per row. Lengths in the same class count as equal when sorting, so that
/// examples of similar length are combined differently in every epoch. Exact lengths would combine the same
/// examples again and again.
const LENGTH_CLASSES: u32 = 64;

/// Packs whole examples, longest class first, each into the row with the least sufficient room. `order`
/// decides among equals.
pub(super) fn best_fit_decreasing(lengths: &[u32], order: &[u32], pack_length: u32) -> Packs {
    let class = (pack_length / LENGTH_CLASSES).max(1);
    let mut examples = order.to_vec();
    examples.sort_by_key(|&example| std::cmp::Reverse(lengths[example as usize] / class));

    let row_of = best_fit(examples.iter().map(|&example| lengths[example as usize]), pack_length);
    let rows = row_of.iter().max().map_or(0, |last| *last as usize + 1);
    let mut pieces_of_row = vec![0_u32; rows];
    for &row in &row_of {
        pieces_of_row[row as usize] += 1;
    }

    let mut ends: Vec<usize> = pieces_of_row
        .iter()
        .scan(0, |start, &count| Some(std::mem::replace(start, *start + count as usize)))
        .collect();
    let mut pieces = vec![Piece { example: 0, start: 0, len: 0 }; examples.len()];
    for (&example, &row) in examples.iter().zip(&row_of) {
        let place = &mut ends[row as usize];
        pieces[*place] = Piece { example, start: 0, len: lengths[example as usize] };
        *place += 1;
    }
    Packs { pieces, ends, pack_length }
}

/// Packs examples in `order` and splits them where a row is full. Only the last row may have room left.
pub(super) fn stream(lengths: &[u32], order: &[u32], pack_length: u32) -> Packs {
    let (mut pieces, mut ends) = (Vec::with_capacity(order.len()), Vec::new());
    let mut room = pack_length;
    for &example in order {
        let (mut start, len) = (0, lengths[example as usize]);
        while start < len {
            let piece = Piece { example, start, len: (len - start).min(room) };
            pieces.push(piece);
            start += piece.len;
            room -= piece.len;
            if room == 0 {
                ends.push(pieces.len());
                room = pack_length;
            }
        }
    }
    if room < pack_length {
        ends.push(pieces.len());
    }
    Packs { pieces, ends, pack_length }
}
