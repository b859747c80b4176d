//! Cholesky's decomposition `A = L Lᵀ` of a symmetric positive definite matrix, and what it solves.

use rayon::prelude::*;

use super::matrix::{Matrix, add_scaled, dot};

/// A pivot that is smaller than this part of its diagonal number is zero but for rounding.
const LEAST_PIVOT: f64 = 1e-13;

/// The columns that are computed together.
const BLOCK: usize = 48;
/// The right-hand sides that are solved together, so that `L` is read once for them: it does not fit into
/// caches.
const TOGETHER: usize = 4;

/// The factor `L`, lower triangular.
pub(crate) struct Cholesky {
    lower: Matrix,
}

impl Cholesky {
    /// Decomposes a matrix, of which only the lower triangle is read. `None` if it is not positive definite
    /// in f64.
    ///
    /// Columns are computed in blocks, so that each row is read once for a block and not once for a column: a
    /// large matrix does not fit into caches.
    pub(crate) fn of(matrix: &Matrix) -> Option<Self> {
        let n = matrix.rows();
        let mut lower = Matrix::zeros(n, n);
        for start in (0..n).step_by(BLOCK) {
            let end = (start + BLOCK).min(n);
            // What the columns before the block take from the block's rows.
            let own: Vec<Vec<f64>> = (start..end).map(|j| lower.row(j)[..start].to_vec()).collect();
            let left = |i: usize, before: &[f64]| {
                let columns = own.len().min(i + 1 - start);
                (0..columns).map(|c| matrix.row(i)[start + c] - dot(before, &own[c])).collect::<Vec<f64>>()
            };
            let mut block: Vec<Vec<f64>> = Vec::with_capacity(own.len());
            for i in start..end {
                let mut row = left(i, &own[i - start]);
                solve_block(&mut row, &block);
                let last = row.len() - 1;
                let pivot = row[last] - dot(&row[..last], &row[..last]);
                if !(pivot.is_finite() && pivot > LEAST_PIVOT * matrix.row(i)[i]) {
                    return None;
                }
                row[last] = pivot.sqrt();
                lower.row_mut(i)[start..=i].copy_from_slice(&row);
                block.push(row);
            }
            lower.rows_mut_from(end).enumerate().for_each(|(below, row)| {
                let (before, after) = row.split_at_mut(start);
                let mut numbers = left(end + below, before);
                solve_block(&mut numbers, &block);
                after[..numbers.len()].copy_from_slice(&numbers);
            });
        }
        Some(Self { lower })
    }

    /// Returns `L` row by row, each up to its diagonal, rounded to f32. The `A` that it stands for then
    /// differs as if its own numbers were rounded: by `2⁻²³` of the root of the product of both diagonal
    /// numbers at most.
    pub(crate) fn to_numbers(&self) -> Vec<f32> {
        (0..self.lower.rows()).flat_map(|i| &self.lower.row(i)[..=i]).map(|number| *number as f32).collect()
    }

    /// Returns the factor of [`to_numbers`](Self::to_numbers); `None` if these are no factor of a matrix
    /// with `n` rows.
    pub(crate) fn of_numbers(n: usize, numbers: &[f32]) -> Option<Self> {
        if numbers.len() != n * (n + 1) / 2 {
            return None;
        }
        let mut lower = Matrix::zeros(n, n);
        let mut numbers = numbers.iter();
        for i in 0..n {
            let row = &mut lower.row_mut(i)[..=i];
            row.iter_mut().zip(&mut numbers).for_each(|(to, from)| *to = f64::from(*from));
            if row[i].is_nan() || row[i] <= 0.0 {
                return None;
            }
        }
        Some(Self { lower })
    }

    /// Returns `A⁻¹ b`.
    pub(crate) fn solve(&self, b: &[f64]) -> Vec<f64> {
        let mut x = b.to_vec();
        self.solve_in_place(&mut x);
        x
    }

    /// Returns `A⁻¹ b` for each row `b`, each as if it were alone.
    pub(crate) fn solve_rows(&self, rows: &Matrix) -> Matrix {
        let mut solved = rows.numbers().to_vec();
        let together = TOGETHER * rows.columns().max(1);
        solved.par_chunks_mut(together).for_each(|rows| self.solve_in_place(rows));
        Matrix::new(rows.rows(), rows.columns(), solved)
    }

    /// Solves for some right-hand sides, one behind the other.
    fn solve_in_place(&self, rows: &mut [f64]) {
        let n = self.lower.rows();
        for i in 0..n {
            let row = self.lower.row(i);
            for x in rows.chunks_exact_mut(n) {
                x[i] = (x[i] - dot(&row[..i], &x[..i])) / row[i];
            }
        }
        for i in (0..n).rev() {
            let row = self.lower.row(i);
            for x in rows.chunks_exact_mut(n) {
                x[i] /= row[i];
                let known = x[i];
                // The column of Lᵀ that belongs to x[i] is the row of L.
                add_scaled(&mut x[..i], -known, row);
            }
        }
    }
}

/// Solves for the numbers of a row in the columns of a block whose rows above it are known: as many as there
/// are of those.
fn solve_block(row: &mut [f64], block: &[Vec<f64>]) {
    for c in 0..block.len().min(row.len()) {
        let (known, rest) = row.split_at_mut(c);
        rest[0] = (rest[0] - dot(known, &block[c][..c])) / block[c][c];
    }
}

#[cfg(test)]
mod tests {
    use sparktune_base::random::SplitMix64;

    use super::*;

    #[test]
    fn a_solution_multiplied_by_its_matrix_is_the_right_hand_side() {
        let mut random = SplitMix64::new(3);
        for n in [1, 2, 7, 47, 48, 49, 150] {
            let mut numbers = || random.next_f64() - 0.5;
            let factor = Matrix::new(n, n, (0..n * n).map(|_| numbers()).collect());
            let b: Vec<f64> = (0..n).map(|_| numbers()).collect();
            let mut matrix = factor.times_transposed(&factor);
            matrix.add_to_diagonal(0.1);
            let x = Cholesky::of(&matrix).unwrap().solve(&b);
            for (i, b) in b.iter().enumerate() {
                assert!((dot(matrix.row(i), &x) - b).abs() < 1e-10, "{n}");
            }
        }
    }

    #[test]
    fn rows_that_are_solved_together_have_the_bits_that_each_has_alone() {
        let mut random = SplitMix64::new(5);
        let n = 30;
        let factor = Matrix::new(n, n, (0..n * n).map(|_| random.next_f64() - 0.5).collect());
        let mut matrix = factor.times_transposed(&factor);
        matrix.add_to_diagonal(0.1);
        let cholesky = Cholesky::of(&matrix).unwrap();
        let rows = Matrix::new(TOGETHER + 2, n, factor.numbers()[..(TOGETHER + 2) * n].to_vec());
        let solved = cholesky.solve_rows(&rows);
        for i in 0..rows.rows() {
            assert_eq!(solved.row(i), cholesky.solve(rows.row(i)), "{i}");
        }
        assert_eq!(cholesky.solve_rows(&Matrix::zeros(0, n)).rows(), 0);
    }

    #[test]
    fn a_rounded_factor_solves_nearly_the_same_and_numbers_that_are_no_factor_are_refused() {
        let mut random = SplitMix64::new(4);
        let n = 60;
        let factor = Matrix::new(n, n, (0..n * n).map(|_| random.next_f64() - 0.5).collect());
        let mut matrix = factor.times_transposed(&factor);
        matrix.add_to_diagonal(0.1);
        let exact = Cholesky::of(&matrix).unwrap();
        let numbers = exact.to_numbers();
        let rounded = Cholesky::of_numbers(n, &numbers).unwrap();
        assert_eq!(rounded.to_numbers(), numbers);
        let [one, other] = [&exact, &rounded].map(|cholesky| cholesky.solve(factor.row(0)));
        let largest = one.iter().fold(0.0f64, |most, x| most.max(x.abs()));
        assert!(one.iter().zip(&other).all(|(a, b)| (a - b).abs() < 1e-4 * largest));
        assert!(Cholesky::of_numbers(n, &numbers[1..]).is_none());
        let mut negative = numbers;
        negative[0] = -1.0;
        assert!(Cholesky::of_numbers(n, &negative).is_none());
    }

    #[test]
    fn a_matrix_that_is_not_positive_definite_is_refused() {
        assert!(Cholesky::of(&Matrix::new(2, 2, vec![1.0, 2.0, 2.0, 1.0])).is_none());
        assert!(Cholesky::of(&Matrix::new(1, 1, vec![f64::NAN])).is_none());
    }
}
