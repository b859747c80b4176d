//! Cholesky's decomposition `A = L Lᵀ` of a symmetric positive definite matrix, and what it solves.

use rayon::prelude::*;

use super::matrix::{Matrix, dot};

/// A pivot that is smaller than this part of its diagonal number is zero but for rounding.
const LEAST_PIVOT: f64 = 1e-13;

/// The factor `L`, lower triangular.
pub(crate) struct Cholesky {
    lower: Matrix,
}

impl Cholesky {
    /// Decomposes a matrix, of which only the lower triangle is read. `None` if it is not positive definite
    /// in f64.
    pub(crate) fn of(matrix: &Matrix) -> Option<Self> {
        let n = matrix.rows();
        let mut lower = Matrix::zeros(n, n);
        for j in 0..n {
            let own = lower.row(j)[..j].to_vec();
            let pivot = matrix.row(j)[j] - dot(&own, &own);
            if !(pivot.is_finite() && pivot > LEAST_PIVOT * matrix.row(j)[j]) {
                return None;
            }
            let pivot = pivot.sqrt();
            lower.row_mut(j)[j] = pivot;
            // Column j below the pivot; each row needs its own numbers before j and those of row j.
            let column: Vec<f64> = (j + 1..n)
                .into_par_iter()
                .with_min_len(64)
                .map(|i| (matrix.row(i)[j] - dot(&lower.row(i)[..j], &own)) / pivot)
                .collect();
            for (i, number) in (j + 1..n).zip(column) {
                lower.row_mut(i)[j] = number;
            }
        }
        Some(Self { lower })
    }

    /// Returns `A⁻¹ b`.
    pub(crate) fn solve(&self, b: &[f64]) -> Vec<f64> {
        let n = self.lower.rows();
        let mut x = b.to_vec();
        for i in 0..n {
            let row = self.lower.row(i);
            x[i] = (x[i] - dot(&row[..i], &x[..i])) / row[i];
        }
        for i in (0..n).rev() {
            let row = self.lower.row(i);
            x[i] /= row[i];
            let known = x[i];
            // The column of Lᵀ that belongs to x[i] is the row of L.
            x[..i].iter_mut().zip(row).for_each(|(x, factor)| *x -= factor * known);
        }
        x
    }

    /// Returns `A⁻¹ b` for each row `b`.
    pub(crate) fn solve_rows(&self, rows: &Matrix) -> Matrix {
        let solved: Vec<f64> =
            (0..rows.rows()).into_par_iter().flat_map_iter(|i| self.solve(rows.row(i))).collect();
        Matrix::new(rows.rows(), rows.columns(), solved)
    }
}

#[cfg(test)]
mod tests {
    use sparktune_base::random::SplitMix64;

    use super::*;

    #[test]
    fn a_solution_multiplied_by_its_matrix_is_the_right_hand_side() {
        let mut random = SplitMix64::new(3);
        for n in [1, 2, 7, 90] {
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
    fn a_matrix_that_is_not_positive_definite_is_refused() {
        assert!(Cholesky::of(&Matrix::new(2, 2, vec![1.0, 2.0, 2.0, 1.0])).is_none());
        assert!(Cholesky::of(&Matrix::new(1, 1, vec![f64::NAN])).is_none());
    }
}
