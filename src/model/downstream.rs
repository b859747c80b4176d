//! What lies downstream of the output of an MLP: the rest of a model for one sequence, run again and again
//! with another output at a few tokens.
//!
//! No token reads those behind it, so what lies before the first change of an example is the same each time,
//! and what lies behind the last token that is read is of no use. Norms and MLPs are computed for the rows in
//! between, and in the last layer for those that are read; the mixers read the rows before from the first
//! pass. MLPs are most of a layer, so a search takes a third of the time.
//!
//! Shapes: `T` tokens, `A` rows that are computed, `R` rows that are read, `H` hidden_size. A name ends with
//! the shape of its tensor.
#![expect(non_snake_case, reason = "names end with the shapes of their tensors")]

use std::ops::Range;

use burn::tensor::Tensor;

use crate::decoder::Model;
use crate::layer::Residual;
use crate::packed_sequence::PackedSequence;
use crate::rope_tables::RopeTables;

/// The rest of a model behind the MLP of a layer, for one sequence.
pub struct Downstream<'a> {
    model: &'a Model,
    sequence: &'a PackedSequence,
    ropes: RopeTables,
    layer: usize,
    /// The rows that are computed, in pieces of one example each.
    computed: Vec<Range<usize>>,
    /// The rows that are read, ascending.
    read: Vec<usize>,
    /// The residual stream that the output of the MLP is added to.
    stream_AH: Tensor<2>,
    /// That output without a change.
    output_AH: Tensor<2>,
    /// The inputs of the mixers of the layers behind, without a change.
    inputs_TH: Vec<Tensor<2>>,
}

impl<'a> Downstream<'a> {
    /// Runs a frozen model once. The output of the MLP of `layer` will change at the rows `changed`, and the
    /// hidden states at the rows `read` are asked for.
    ///
    /// # Panics
    /// When there is no such layer, or no row is read.
    pub fn new(
        model: &'a Model,
        layer: usize,
        sequence: &'a PackedSequence,
        changed: &[usize],
        read: &[usize],
    ) -> Self {
        assert!(!read.is_empty(), "whoever runs a model reads a row");
        let mut read = read.to_vec();
        read.sort_unstable();
        read.dedup();
        let computed = computed(&sequence.cu_seqlens, changed, &read);
        let ropes = model.rope_tables(&sequence.position_ids);
        let residual = model.residual_before(layer, sequence, &ropes);
        let own = &model.layers[layer];
        let [x_TH, mixed_TH] = own.mixed(residual, sequence, &ropes);
        let [normed_TH, stream_TH] = own.before_mlp(x_TH, mixed_TH);
        let output_TH = own.mlp.forward(normed_TH);
        let stream_AH = rows_of(&stream_TH, &computed);
        let output_AH = rows_of(&output_TH, &computed);
        let mut inputs_TH = Vec::new();
        let mut residual = own.behind_mlp(stream_TH, output_TH);
        for layer in &model.layers[layer + 1..] {
            let [input_TH, x_TH] = residual.normed(&layer.mixer_norm);
            let mixed_TH = layer.mix(input_TH.clone(), sequence, &ropes);
            inputs_TH.push(input_TH);
            let [normed_TH, x_TH] = layer.before_mlp(x_TH, mixed_TH);
            residual = layer.behind_mlp(x_TH, layer.mlp.forward(normed_TH));
        }
        Self { model, sequence, ropes, layer, computed, read, stream_AH, output_AH, inputs_TH }
    }

    /// Returns the rows that are computed, in the order of [`hidden`](Self::hidden)'s argument.
    pub fn computed(&self) -> impl Iterator<Item = usize> {
        self.computed.iter().cloned().flatten()
    }

    /// Returns the place of a row of the sequence among the hidden states.
    ///
    /// # Panics
    /// When it is not read.
    pub fn place(&self, row: usize) -> usize {
        self.read.binary_search(&row).expect("the row is read")
    }

    /// Returns the hidden states after the final norm at the rows that are read, `[R, H]`, with a change of
    /// the MLP's output at the rows that are [computed](Self::computed), `[A, H]`, which records a graph.
    pub fn hidden(&self, change_AH: Tensor<2>) -> Tensor<2> {
        let layers = &self.model.layers;
        let read = ranges(&self.read);
        // The same rows, counted among those that are computed.
        let read_of_computed = ranges(&places(&self.read, &self.computed));
        let output_AH = self.output_AH.clone().autodiff() + change_AH.cast(self.output_AH.dtype());
        let mut residual = layers[self.layer].behind_mlp(self.stream_AH.clone().autodiff(), output_AH);
        for (layer, input_TH) in layers[self.layer + 1..].iter().zip(&self.inputs_TH) {
            let is_last = std::ptr::eq(layer, layers.last().expect("there is this one"));
            let [normed_AH, x_AH] = residual.normed(&layer.mixer_norm);
            let input_TH = replaced(input_TH, normed_AH, &self.computed);
            let mixed_TH = layer.mix(input_TH, self.sequence, &self.ropes);
            let [mixed_AH, x_AH] = if is_last {
                [rows_of(&mixed_TH, &read), rows_of(&x_AH, &read_of_computed)]
            } else {
                [rows_of(&mixed_TH, &self.computed), x_AH]
            };
            let [normed_AH, x_AH] = layer.before_mlp(x_AH, mixed_AH);
            residual = layer.behind_mlp(x_AH, layer.mlp.forward(normed_AH));
        }
        if self.inputs_TH.is_empty() {
            residual = Residual::from(rows_of(&residual.sum(), &read_of_computed));
        }
        self.model.final_norm(residual)
    }
}

/// Returns for each example its rows from the first that changes, or else is read, to the last that is read.
fn computed(borders: &[u32], changed: &[usize], read: &[usize]) -> Vec<Range<usize>> {
    let examples = borders.windows(2).map(|border| border[0] as usize..border[1] as usize);
    let pieces = examples.filter_map(|example| {
        let last = *read.iter().rfind(|row| example.contains(row))?;
        let within = |rows: &[usize]| rows.iter().copied().filter(|row| example.contains(row)).min();
        let first = within(changed).into_iter().chain(within(read)).min()?;
        Some(first..last + 1)
    });
    pieces.collect()
}

/// Returns the pieces of neighbours among ascending rows.
fn ranges(rows: &[usize]) -> Vec<Range<usize>> {
    let mut ranges: Vec<Range<usize>> = Vec::new();
    for row in rows.iter().copied() {
        match ranges.last_mut() {
            Some(last) if last.end == row => last.end += 1,
            _ => ranges.push(row..row + 1),
        }
    }
    ranges
}

/// Returns where each row stands among those of the pieces, which contain it.
fn places(rows: &[usize], pieces: &[Range<usize>]) -> Vec<usize> {
    let mut before = 0;
    let mut places = Vec::with_capacity(rows.len());
    for piece in pieces {
        places.extend(rows.iter().filter(|row| piece.contains(row)).map(|row| before + row - piece.start));
        before += piece.len();
    }
    places
}

/// Returns the rows of a tensor that lie in the pieces.
fn rows_of(x: &Tensor<2>, pieces: &[Range<usize>]) -> Tensor<2> {
    let narrow = |piece: &Range<usize>| x.clone().narrow(0, piece.start, piece.len());
    match pieces {
        [piece] if *piece == (0..x.dims()[0]) => x.clone(),
        [piece] => narrow(piece),
        _ => Tensor::cat(pieces.iter().map(narrow).collect(), 0),
    }
}

/// Returns a tensor with other rows in the pieces.
fn replaced(x_TH: &Tensor<2>, rows_AH: Tensor<2>, pieces: &[Range<usize>]) -> Tensor<2> {
    let count = x_TH.dims()[0];
    let (mut all, mut end, mut taken) = (Vec::new(), 0, 0);
    let kept = |from: usize, to: usize| x_TH.clone().narrow(0, from, to - from).autodiff();
    for piece in pieces {
        if end < piece.start {
            all.push(kept(end, piece.start));
        }
        all.push(rows_AH.clone().narrow(0, taken, piece.len()));
        taken += piece.len();
        end = piece.end;
    }
    if end < count {
        all.push(kept(end, count));
    }
    Tensor::cat(all, 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_from_the_first_change_to_the_last_that_is_read_are_computed() {
        let borders = [0, 5, 9, 12, 14];
        assert_eq!(computed(&borders, &[2, 4, 11], &[3, 8, 11]), [2..4, 8..9, 11..12]);
        assert_eq!(ranges(&[1, 2, 4]), [1..3, 4..5]);
        assert_eq!(places(&[3, 8, 11], &[2..4, 8..9, 11..12]), [1, 2, 3]);
    }
}
