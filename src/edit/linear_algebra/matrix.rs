//! A matrix of f64 numbers.

use rayon::prelude::*;

/// A matrix `[rows, columns]`, row-major.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Matrix {
    rows: usize,
    columns: usize,
    numbers: Vec<f64>,
}

impl Matrix {
    pub(crate) fn new(rows: usize, columns: usize, numbers: Vec<f64>) -> Self {
        assert_eq!(numbers.len(), rows * columns, "a matrix has a number in each place");
        Self { rows, columns, numbers }
    }

    pub(crate) fn zeros(rows: usize, columns: usize) -> Self {
        Self::new(rows, columns, vec![0.0; rows * columns])
    }

    /// Creates a matrix of rows of the same length.
    pub(crate) fn of_rows(rows: &[Vec<f64>]) -> Self {
        let columns = rows.first().map_or(0, Vec::len);
        Self::new(rows.len(), columns, rows.concat())
    }

    pub(crate) fn rows(&self) -> usize {
        self.rows
    }

    pub(crate) fn columns(&self) -> usize {
        self.columns
    }

    pub(crate) fn row(&self, row: usize) -> &[f64] {
        &self.numbers[row * self.columns..][..self.columns]
    }

    pub(crate) fn row_mut(&mut self, row: usize) -> &mut [f64] {
        &mut self.numbers[row * self.columns..][..self.columns]
    }

    /// Returns the rows from one on, to change them at once.
    pub(crate) fn rows_mut_from(&mut self, row: usize) -> impl IndexedParallelIterator<Item = &mut [f64]> {
        self.numbers[row * self.columns..].par_chunks_mut(self.columns.max(1))
    }

    /// Returns the rows at `start` and after it, to rotate them.
    pub(crate) fn row_pair(&mut self, start: usize, columns: usize) -> (&mut [f64], &mut [f64]) {
        self.numbers[start..start + 2 * columns].split_at_mut(columns)
    }

    pub(crate) fn numbers(&self) -> &[f64] {
        &self.numbers
    }

    pub(crate) fn add_to_diagonal(&mut self, number: f64) {
        for i in 0..self.rows.min(self.columns) {
            self.row_mut(i)[i] += number;
        }
    }

    pub(crate) fn mean_of_diagonal(&self) -> f64 {
        (0..self.rows).map(|i| self.row(i)[i]).sum::<f64>() / self.rows.max(1) as f64
    }

    /// Returns `self · otherᵀ`: the dot products of the rows of both.
    pub(crate) fn times_transposed(&self, other: &Self) -> Self {
        assert_eq!(self.columns, other.columns, "rows of both have the same length");
        let numbers: Vec<f64> = (0..self.rows)
            .into_par_iter()
            .flat_map_iter(|i| (0..other.rows).map(move |j| dot(self.row(i), other.row(j))))
            .collect();
        Self::new(self.rows, other.rows, numbers)
    }

    /// Returns `self · other`.
    pub(crate) fn times(&self, other: &Self) -> Self {
        assert_eq!(self.columns, other.rows, "the inner sizes are the same");
        let mut product = Self::zeros(self.rows, other.columns);
        product.numbers.par_chunks_mut(other.columns.max(1)).enumerate().for_each(|(i, out)| {
            for (row, factor) in self.row(i).iter().enumerate() {
                add_scaled(out, *factor, other.row(row));
            }
        });
        product
    }

    /// Returns the rows of `self` and below them those of `other`.
    pub(crate) fn above(&self, other: &Self) -> Self {
        assert_eq!(self.columns, other.columns, "rows of both have the same length");
        Self::new(self.rows + other.rows, self.columns, [&self.numbers[..], &other.numbers].concat())
    }

    /// Returns the rows from one on.
    pub(crate) fn rows_from(&self, row: usize) -> Self {
        Self::new(self.rows - row, self.columns, self.numbers[row * self.columns..].to_vec())
    }

    /// Returns `selfᵀ`.
    #[cfg(test)]
    pub(crate) fn transposed(&self) -> Self {
        let numbers = (0..self.columns).flat_map(|j| (0..self.rows).map(move |i| self.row(i)[j]));
        Self::new(self.columns, self.rows, numbers.collect())
    }
}

// The loops below count, because iterators over pairs are not inlined across units of a build, which took
// half of the time of an edit.

/// Returns the dot product. Eight sums are independent, so that the processor adds them at once.
pub(crate) fn dot(one: &[f64], other: &[f64]) -> f64 {
    const LANES: usize = 8;
    let (ones, rest) = one.as_chunks::<LANES>();
    let (others, other_rest) = other[..one.len()].as_chunks::<LANES>();
    let mut sums = [0.0; LANES];
    let mut i = 0;
    while i < ones.len() {
        let (a, b) = (&ones[i], &others[i]);
        let mut lane = 0;
        while lane < LANES {
            sums[lane] += a[lane] * b[lane];
            lane += 1;
        }
        i += 1;
    }
    let mut sum = sums.iter().sum();
    let mut i = 0;
    while i < rest.len() {
        sum += rest[i] * other_rest[i];
        i += 1;
    }
    sum
}

/// Adds `factor · row` to `out`.
pub(crate) fn add_scaled(out: &mut [f64], factor: f64, row: &[f64]) {
    let row = &row[..out.len()];
    let mut i = 0;
    while i < out.len() {
        out[i] += factor * row[i];
        i += 1;
    }
}

/// Rotates the pairs of numbers of two rows.
pub(crate) fn rotate(first: &mut [f64], second: &mut [f64], sine: f64, cosine: f64) {
    let second = &mut second[..first.len()];
    let mut i = 0;
    while i < first.len() {
        let (a, b) = (first[i], second[i]);
        second[i] = sine * a + cosine * b;
        first[i] = cosine * a - sine * b;
        i += 1;
    }
}
