//! How the numbers of a tensor change on their way into a GGUF file: rows and columns in another order, and
//! another value for each number.

/// A matrix `[rows, columns]` as llama.cpp expects it.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Layout {
    /// The old row of each new one, if they are reordered.
    pub(super) rows: Option<Vec<usize>>,
    /// The old column of each new one, if they are reordered.
    pub(super) columns: Option<Vec<usize>>,
    pub(super) values: Values,
}

/// What becomes of each number.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Values {
    #[default]
    Same,
    /// `1 + x`: the weight of a zero-centred norm, which llama.cpp multiplies by.
    PlusOne,
    /// `-exp(x)`: the decay of a gated DeltaNet, whose logarithm is trained.
    MinusExp,
}

impl Layout {
    /// Returns the numbers in this layout, row-major as before, with `columns` numbers in a row.
    pub(super) fn apply(&self, mut numbers: Vec<f32>, columns: usize) -> Vec<f32> {
        if let Some(order) = &self.rows {
            numbers = order.iter().flat_map(|row| &numbers[row * columns..][..columns]).copied().collect();
        }
        if let Some(order) = &self.columns {
            let rows = numbers.chunks_exact(columns);
            numbers = rows.flat_map(|row| order.iter().map(|column| row[*column])).collect();
        }
        match self.values {
            Values::Same => {}
            Values::PlusOne => numbers.iter_mut().for_each(|x| *x += 1.0),
            // In double precision, so that the result does not depend on the mathematical library.
            Values::MinusExp => numbers.iter_mut().for_each(|x| *x = -f64::from(*x).exp() as f32),
        }
        numbers
    }
}

/// Returns the order in which llama.cpp's rotary embedding for Llama takes the rows of queries or keys:
/// the two halves of each head interleaved, because it rotates neighbouring pairs.
pub(super) fn interleaved_halves(rows: usize, heads: usize) -> Vec<usize> {
    let width = rows / heads;
    (0..rows)
        .map(|row| {
            let (head, within) = (row / width, row % width);
            head * width + within % 2 * (width / 2) + within / 2
        })
        .collect()
}

/// Returns the order of value heads in llama.cpp: all first heads of the groups that share a key head, then
/// all second ones. A head has `width` rows, and `before` rows stay in front.
pub(super) fn tiled_heads(before: usize, groups: usize, per_group: usize, width: usize) -> Vec<usize> {
    let heads = (0..per_group).flat_map(|place| (0..groups).map(move |group| group * per_group + place));
    let rows = heads.flat_map(|head| (0..width).map(move |row| before + head * width + row));
    (0..before).chain(rows).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_halves_of_each_head_are_interleaved() {
        assert_eq!(interleaved_halves(8, 2), [0, 2, 1, 3, 4, 6, 5, 7]);
    }

    #[test]
    fn value_heads_are_tiled_behind_the_rows_that_stay() {
        assert_eq!(tiled_heads(1, 2, 2, 2), [0, 1, 2, 5, 6, 3, 4, 7, 8]);
        assert_eq!(tiled_heads(0, 3, 1, 1), [0, 1, 2]);
    }

    #[test]
    fn rows_columns_and_values_change_as_said() {
        let numbers = vec![0.0, 1.0, 2.0, 3.0, 4.0, 5.0];
        let layout = |rows: &[usize], columns: &[usize], values| Layout {
            rows: (!rows.is_empty()).then(|| rows.to_vec()),
            columns: (!columns.is_empty()).then(|| columns.to_vec()),
            values,
        };
        let rows = layout(&[1, 0], &[], Values::PlusOne).apply(numbers.clone(), 3);
        assert_eq!(rows, [4.0, 5.0, 6.0, 1.0, 2.0, 3.0]);
        let columns = layout(&[], &[2, 0, 1], Values::Same).apply(numbers.clone(), 3);
        assert_eq!(columns, [2.0, 0.0, 1.0, 5.0, 3.0, 4.0]);
        let decay = layout(&[], &[], Values::MinusExp).apply(numbers, 3);
        assert_eq!(decay[..2], [-1.0, -std::f32::consts::E]);
    }
}
