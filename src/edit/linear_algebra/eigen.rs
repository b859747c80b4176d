//! Eigenvalues and eigenvectors of a symmetric matrix: Householder's reduction to a tridiagonal matrix, and
//! QL iterations with implicit shifts (Golub and Van Loan, Matrix Computations, 8.3).

use super::matrix::{Matrix, add_scaled, dot, rotate};

/// More iterations for one eigenvalue than any finite matrix needs.
const MOST_ITERATIONS: usize = 60;

/// Why there are no eigenvalues.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Undone {
    /// A number is not finite.
    NotFinite,
    /// The caller wanted no more.
    Stopped,
}

/// Returns the eigenvalues and, as the rows of a matrix, the eigenvectors of length one, in no order. The
/// time grows with the cube of the size, minutes for a few thousand rows; `go_on` is asked meanwhile.
///
/// # Errors
/// A number is not finite, or `go_on` says no.
pub(crate) fn symmetric_eigen(
    matrix: &Matrix,
    go_on: &mut dyn FnMut() -> bool,
) -> Result<(Vec<f64>, Matrix), Undone> {
    let n = matrix.rows();
    if matrix.numbers().iter().any(|number| !number.is_finite()) {
        return Err(Undone::NotFinite);
    }
    let (mut diagonal, mut beside, mut vectors) = tridiagonal(matrix, go_on)?;
    for l in 0..n {
        if !go_on() {
            return Err(Undone::Stopped);
        }
        let mut iterations = 0;
        loop {
            // The block that is still coupled ends at m.
            let is_small = |m: &usize| {
                let scale = diagonal[*m].abs() + diagonal[m + 1].abs();
                beside[*m].abs() <= f64::EPSILON * scale
            };
            let m = (l..n - 1).find(is_small).unwrap_or(n - 1);
            if m == l {
                break;
            }
            iterations += 1;
            if iterations > MOST_ITERATIONS {
                return Err(Undone::NotFinite);
            }
            ql_step(&mut diagonal, &mut beside, &mut vectors, l, m);
        }
    }
    Ok((diagonal, vectors))
}

/// One QL iteration with Wilkinson's shift on the rows `l..=m`.
fn ql_step(diagonal: &mut [f64], beside: &mut [f64], vectors: &mut Matrix, l: usize, m: usize) {
    let half = (diagonal[l + 1] - diagonal[l]) / (2.0 * beside[l]);
    let root = half.hypot(1.0).copysign(half);
    let mut g = diagonal[m] - diagonal[l] + beside[l] / (half + root);
    let (mut sine, mut cosine, mut p) = (1.0, 1.0, 0.0);
    for i in (l..m).rev() {
        let f = sine * beside[i];
        let b = cosine * beside[i];
        let r = f.hypot(g);
        beside[i + 1] = r;
        if r == 0.0 {
            // The matrix has come apart here.
            diagonal[i + 1] -= p;
            beside[m] = 0.0;
            return;
        }
        (sine, cosine) = (f / r, g / r);
        let shifted = diagonal[i + 1] - p;
        let q = (diagonal[i] - shifted) * sine + 2.0 * cosine * b;
        p = sine * q;
        diagonal[i + 1] = shifted + p;
        g = cosine * q - b;
        let columns = vectors.columns();
        let (first, second) = vectors.row_pair(i * columns, columns);
        rotate(first, second, sine, cosine);
    }
    diagonal[l] -= p;
    beside[l] = g;
    beside[m] = 0.0;
}

/// Returns diagonal, off-diagonal `e[i]` between `i` and `i + 1`, and the product of the reflections as rows.
fn tridiagonal(
    matrix: &Matrix,
    go_on: &mut dyn FnMut() -> bool,
) -> Result<(Vec<f64>, Vec<f64>, Matrix), Undone> {
    let n = matrix.rows();
    let mut a = matrix.clone();
    let mut reflections: Vec<(Vec<f64>, f64)> = Vec::with_capacity(n);
    let mut beside = vec![0.0; n];
    for k in 0..n.saturating_sub(1) {
        if !go_on() {
            return Err(Undone::Stopped);
        }
        // The reflection that makes zeros of column k below its second number; the matrix is symmetric,
        // so the column is the row.
        let mut v = a.row(k).to_vec();
        v[..=k].fill(0.0);
        let length = dot(&v, &v).sqrt();
        let alpha = if v[k + 1] > 0.0 { -length } else { length };
        beside[k] = alpha;
        v[k + 1] -= alpha;
        let square = dot(&v, &v);
        let beta = if square > 0.0 { 2.0 / square } else { 0.0 };
        if beta > 0.0 {
            // A ← H A H with H = 1 − β v vᵀ, as A − v wᵀ − w vᵀ.
            let mut w: Vec<f64> =
                (0..n).map(|i| if i < k { 0.0 } else { beta * dot(a.row(i), &v) }).collect();
            let share = beta / 2.0 * dot(&w, &v);
            add_scaled(&mut w, -share, &v);
            for i in k..n {
                let (vi, wi) = (v[i], w[i]);
                let row = a.row_mut(i);
                add_scaled(&mut row[k..], -vi, &w[k..]);
                add_scaled(&mut row[k..], -wi, &v[k..]);
            }
        }
        reflections.push((v, beta));
    }
    let diagonal: Vec<f64> = (0..n).map(|i| a.row(i)[i]).collect();
    // Q = H₀ H₁ … ; its columns are the rows of Qᵀ = … H₁ H₀.
    let mut vectors = Matrix::zeros(n, n);
    vectors.add_to_diagonal(1.0);
    for (v, beta) in &reflections {
        if !go_on() {
            return Err(Undone::Stopped);
        }
        if *beta > 0.0 {
            // Qᵀ ← H Qᵀ: each new row i is row i − β vᵢ (vᵀ Qᵀ).
            let mut sums = vec![0.0; n];
            for (i, vi) in v.iter().enumerate().filter(|(_, vi)| **vi != 0.0) {
                add_scaled(&mut sums, *vi, vectors.row(i));
            }
            for (i, vi) in v.iter().enumerate().filter(|(_, vi)| **vi != 0.0) {
                add_scaled(vectors.row_mut(i), -beta * vi, &sums);
            }
        }
    }
    Ok((diagonal, beside, vectors))
}

#[cfg(test)]
mod tests {
    use sparktune_base::random::SplitMix64;

    use super::*;

    fn check(matrix: &Matrix) {
        let (values, vectors) = symmetric_eigen(matrix, &mut || true).unwrap();
        let n = matrix.rows();
        for (i, value) in values.iter().enumerate() {
            for row in 0..n {
                let product = dot(matrix.row(row), vectors.row(i));
                assert!((product - value * vectors.row(i)[row]).abs() < 1e-9, "{n}: A v = λ v");
            }
        }
        let identity = vectors.times_transposed(&vectors);
        for i in 0..n {
            for j in 0..n {
                let expected = if i == j { 1.0 } else { 0.0 };
                assert!((identity.row(i)[j] - expected).abs() < 1e-10, "{n}: the vectors are orthonormal");
            }
        }
    }

    #[test]
    fn vectors_are_orthonormal_and_only_scaled_by_the_matrix() {
        let mut random = SplitMix64::new(5);
        for n in [1, 2, 3, 8, 60] {
            let factor = Matrix::new(n, n, (0..n * n).map(|_| random.next_f64() - 0.5).collect());
            check(&factor.times_transposed(&factor));
        }
    }

    #[test]
    fn matrices_of_low_rank_diagonal_ones_and_zero_have_eigenvectors_too() {
        let row = Matrix::new(6, 1, vec![1.0, -2.0, 0.0, 3.0, 0.5, 0.0]);
        check(&row.times_transposed(&row));
        check(&Matrix::zeros(4, 4));
        let mut diagonal = Matrix::zeros(5, 5);
        (0..5).for_each(|i| diagonal.row_mut(i)[i] = i as f64 - 2.0);
        check(&diagonal);
        let infinite = Matrix::new(1, 1, vec![f64::INFINITY]);
        assert_eq!(symmetric_eigen(&infinite, &mut || true).unwrap_err(), Undone::NotFinite);
        let mut left = 7;
        let mut go_on = || {
            left -= 1;
            left > 0
        };
        assert_eq!(symmetric_eigen(&Matrix::zeros(9, 9), &mut go_on).unwrap_err(), Undone::Stopped);
    }
}
