//! The change of `down_proj` that gives keys new values and leaves other keys alone, in closed form.
//!
//! ROME, MEMIT, EMMET and AlphaEdit are one formula (EMMET, arXiv 2403.14236, shows it of the first two):
//!
//! `ΔW = R (Kᵀ M K + ε 1)⁻¹ Kᵀ M`, with keys `K [I, N]`, changes of values `R [H, N]`, and
//!
//! | method | M | ε | |
//! |---|---|---|---|
//! | ROME (`N` = 1), EMMET | `C⁻¹` | 0 | the new values hold exactly |
//! | MEMIT | `(λ C)⁻¹` | 1 | least squares: `R Kᵀ (λ C + K Kᵀ)⁻¹`, rewritten by the push-through identity |
//! | UltraEdit | `1` | small | without knowledge of other keys |
//! | AlphaEdit | `P` | small | `P` projects on the directions that ordinary keys do not use |
//!
//! `memit` takes AlphaEdit's `P` where text leaves enough directions unused, and `C⁻¹` elsewhere.
//!
//! The result is low-rank: `ΔW = B A` with `B = R`, `[H, N]`, and `A = (Kᵀ M K + ε 1)⁻¹ Kᵀ M`, `[N, I]`.

use rayon::prelude::*;

use crate::error::EditError;
use crate::key_statistics::KeyStatistics;
use crate::linear_algebra::{Cholesky, Matrix, Undone, dot, symmetric_eigen};

/// What is added to the diagonal of `C`, in means of its diagonal. Few tokens leave directions without any
/// key, in which it has no inverse. Values from 1e-4 to 1 moved the keys of neighbours by 26 to 57 % of a
/// value, this one least (tests/fixtures/facts/RESULTS.md).
const RIDGE: f64 = 1e-3;
/// Directions with less variance than this, in means of the diagonal of `C`, are those that ordinary keys do
/// not use. AlphaEdit has 0.01 in the units of its models.
pub(crate) const UNUSED: f64 = 1e-2;
/// The least part of the squared length of keys that lies in such directions, or the projection is of no
/// use: a small part would have to be made large to carry the new values. The value is a guess: in the only
/// model that was measured it is 0.008, far below.
const LEAST_UNUSED: f64 = 0.2;
/// `ε` of MEMIT and AlphaEdit, in means of the diagonal of `Kᵀ M K`. A larger one makes all new values
/// smaller alike (tests/fixtures/facts/RESULTS.md).
const SOFT: f64 = 1e-2;

/// The metric `M` of keys.
pub(crate) enum Metric {
    /// `C⁻¹`.
    Inverse(Cholesky),
    /// `1`.
    Identity,
    /// The orthonormal rows that span the directions of use, whose projection is `1 − P`.
    NullSpace(Matrix),
}

impl Metric {
    /// Returns the inverse of the covariance.
    ///
    /// # Errors
    /// A key is not finite.
    pub(crate) fn inverse(statistics: &KeyStatistics) -> Result<Self, EditError> {
        let n = statistics.covariance.rows();
        // Another ridge would be another factor.
        let name = format!("cholesky-{RIDGE:e}");
        if let Some(known) = statistics.kept(&name, |_, numbers| Cholesky::of_numbers(n, numbers)) {
            return Ok(Self::Inverse(known));
        }
        let mut covariance = statistics.covariance.clone();
        covariance.add_to_diagonal(RIDGE * covariance.mean_of_diagonal().max(f64::MIN_POSITIVE));
        let numbers = Cholesky::of(&covariance).ok_or_else(not_finite)?.to_numbers();
        // Rounded as in the file, so that what is read again gives the same edit.
        let factor = Cholesky::of_numbers(n, &numbers).ok_or_else(not_finite)?;
        statistics.keep(&name, vec![numbers.len() as u64], numbers);
        Ok(Self::Inverse(factor))
    }

    /// Returns the projection on the directions that ordinary keys do not use: those with less variance than
    /// `unused`, in means.
    ///
    /// # Errors
    /// A key is not finite, or `go_on` says no.
    pub(crate) fn null_space(
        statistics: &KeyStatistics,
        unused: f64,
        go_on: &mut dyn FnMut() -> bool,
    ) -> Result<Self, EditError> {
        let name = format!("used-{unused:e}");
        let inner = statistics.covariance.columns();
        let of_rows = |shape: &[u64], numbers: &[f32]| {
            let [rows, columns] = *<&[u64; 2]>::try_from(shape).ok()?;
            let wide = || numbers.iter().map(|number| f64::from(*number)).collect();
            let fits = columns == inner as u64 && rows.checked_mul(columns) == Some(numbers.len() as u64);
            fits.then(|| Matrix::new(rows as usize, inner, wide()))
        };
        if let Some(known) = statistics.kept(&name, of_rows) {
            return Ok(Self::NullSpace(known));
        }
        let least = unused * statistics.covariance.mean_of_diagonal();
        let found = symmetric_eigen(&statistics.covariance, go_on).map_err(|undone| match undone {
            Undone::NotFinite => not_finite(),
            Undone::Stopped => EditError::Stopped,
        });
        let (values, vectors) = found?;
        let used = values.iter().enumerate().filter(|(_, value)| **value >= least);
        let numbers: Vec<f32> = used.flat_map(|(i, _)| vectors.row(i)).map(|number| *number as f32).collect();
        let shape = [(numbers.len() / inner) as u64, inner as u64];
        // Rounded as in the file, so that what is read again gives the same edit.
        let rows = of_rows(&shape, &numbers).ok_or_else(not_finite)?;
        statistics.keep(&name, shape.to_vec(), numbers);
        Ok(Self::NullSpace(rows))
    }

    /// Returns `M k` for each row `k` of `[N, I]`.
    fn apply(&self, keys_NI: &Matrix) -> Matrix {
        match self {
            Self::Inverse(cholesky) => cholesky.solve_rows(keys_NI),
            Self::Identity => keys_NI.clone(),
            Self::NullSpace(used) if used.rows() == 0 => keys_NI.clone(),
            Self::NullSpace(used) => {
                let inside = keys_NI.times_transposed(used).times(used);
                let numbers = keys_NI.numbers().iter().zip(inside.numbers()).map(|(k, u)| k - u).collect();
                Matrix::new(keys_NI.rows(), keys_NI.columns(), numbers)
            }
        }
    }
}

/// A metric, and what it makes of the keys that keep their values. Each of them is weighted once, however
/// many patches are computed on top of it.
pub(crate) struct Weighting {
    metric: Metric,
    /// `M k` for each kept key that is known, `[N, I]`.
    kept: Matrix,
    /// The products `kᵀ M k'` of each of them with those before it and with itself, row by row.
    products: Vec<f64>,
}

impl Weighting {
    /// Starts with a metric of keys with `inner` numbers.
    pub(crate) fn new(metric: Metric, inner: usize) -> Self {
        Self { metric, kept: Matrix::zeros(0, inner), products: Vec::new() }
    }

    /// Weights the keys behind those that are known.
    fn keep(&mut self, kept: &Matrix) {
        let known = self.kept.rows();
        self.kept = self.kept.above(&self.metric.apply(&kept.rows_from(known)));
        let weighted = &self.kept;
        let products = |i: usize| (0..=i).map(move |j| dot(kept.row(i), weighted.row(j)));
        self.products.par_extend((known..kept.rows()).into_par_iter().flat_map_iter(products));
    }
}

/// The metrics of a layer, each computed once, when it is first needed.
#[derive(Default)]
pub(crate) struct Metrics {
    projection: Option<Weighting>,
    inverse: Option<Weighting>,
}

impl Metrics {
    /// Returns the inverse of the covariance.
    ///
    /// # Errors
    /// A key is not finite.
    pub(crate) fn inverse(&mut self, statistics: &KeyStatistics) -> Result<&mut Weighting, EditError> {
        let inverse = match self.inverse.take() {
            Some(known) => known,
            None => Weighting::new(Metric::inverse(statistics)?, statistics.covariance.columns()),
        };
        Ok(self.inverse.insert(inverse))
    }

    /// Returns the projection if enough of the keys `[N, I]` lies in unused directions, and otherwise the
    /// inverse of the covariance. In wide models text leaves many directions unused, in small ones hardly
    /// any.
    ///
    /// # Errors
    /// A key is not finite, or `go_on` says no.
    pub(crate) fn for_keys(
        &mut self,
        statistics: &KeyStatistics,
        keys_NI: &Matrix,
        go_on: &mut dyn FnMut() -> bool,
    ) -> Result<&mut Weighting, EditError> {
        let square = |matrix: &Matrix| matrix.numbers().iter().map(|x| x * x).sum::<f64>();
        // Eigenvectors take far longer than an inverse, which says whether they can be of use: with the
        // ridge r on C, a direction of a variance below u has at least r / (u + r) of its part of a key in
        // r kᵀ C⁻¹ k.
        let ridge = RIDGE * statistics.covariance.mean_of_diagonal();
        let solved = self.inverse(statistics)?.metric.apply(keys_NI);
        let part = keys_NI.numbers().iter().zip(solved.numbers()).map(|(k, s)| ridge * k * s).sum::<f64>();
        if part * (UNUSED + RIDGE) / RIDGE < LEAST_UNUSED * square(keys_NI) {
            return self.inverse(statistics);
        }
        let projection = match self.projection.take() {
            Some(known) => known,
            None => Weighting::new(
                Metric::null_space(statistics, UNUSED, go_on)?,
                statistics.covariance.columns(),
            ),
        };
        let is_enough = square(&projection.metric.apply(keys_NI)) >= LEAST_UNUSED * square(keys_NI);
        if is_enough {
            return Ok(self.projection.insert(projection));
        }
        self.projection = Some(projection);
        self.inverse(statistics)
    }
}

fn not_finite() -> EditError {
    EditError::request(
        "the keys of the text are not finite, so the weights are damaged",
        "Choose another model",
    )
}

/// How much the new values may give way.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Softness {
    /// Not at all.
    Exact,
    /// As MEMIT and AlphaEdit: by a small part of the keys' size.
    Small,
}

/// Returns the factor `A`, `[N, I]`, for keys `[N, I]`; `B` is the changes of their values. Keys in `kept`
/// shall keep their values; the first of them are those that `weighting` knows already.
///
/// # Errors
/// Two keys are the same and the new values shall hold exactly, or no key has a part in the directions that
/// may be changed.
pub(crate) fn key_factor(
    keys_NI: &Matrix,
    kept: &Matrix,
    weighting: &mut Weighting,
    softness: Softness,
) -> Result<Matrix, EditError> {
    weighting.keep(kept);
    let n = keys_NI.rows();
    let weighted = weighting.metric.apply(keys_NI);
    let (own, between) = (keys_NI.times_transposed(&weighted), kept.times_transposed(&weighted));
    // Of the products of the new keys and the kept ones below them, Cholesky reads the lower triangle.
    let mut products = Matrix::zeros(n + kept.rows(), n + kept.rows());
    for i in 0..n {
        products.row_mut(i)[..n].copy_from_slice(own.row(i));
    }
    let mut of_kept = &weighting.products[..];
    for i in 0..kept.rows() {
        let (with_those_before, rest) = of_kept.split_at(i + 1);
        let (with_new, with_kept) = products.row_mut(n + i).split_at_mut(n);
        with_new.copy_from_slice(between.row(i));
        with_kept[..=i].copy_from_slice(with_those_before);
        of_kept = rest;
    }
    if softness == Softness::Small {
        products.add_to_diagonal(SOFT * products.mean_of_diagonal());
    }
    let same = || {
        EditError::request(
            "two facts have the same key in this layer, or a key lies where ordinary text has its own, so that one of them cannot be changed alone",
            "Name the subjects of the facts, choose another layer with --layer, or use the method memory",
        )
    };
    let cholesky = Cholesky::of(&products).ok_or_else(same)?;
    // Kept keys have no change of value, so their rows of A are multiplied by zero. The inverse is symmetric.
    let all = products.rows();
    let mut inverse = Matrix::zeros(n, all);
    for i in 0..n {
        let mut unit = vec![0.0; all];
        unit[i] = 1.0;
        inverse.row_mut(i).copy_from_slice(&cholesky.solve(&unit));
    }
    Ok(inverse.times(&weighted.above(&weighting.kept)))
}

#[cfg(test)]
mod tests {
    use sparktune_base::random::SplitMix64;

    use super::*;

    fn random(rows: usize, columns: usize, seed: u64) -> Matrix {
        let mut random = SplitMix64::new(seed);
        Matrix::new(rows, columns, (0..rows * columns).map(|_| random.next_f64() - 0.5).collect())
    }

    /// Keys of text that use five of twelve directions.
    fn statistics() -> KeyStatistics {
        let keys = random(200, 5, 1).times(&random(5, 12, 2));
        let transposed = keys.transposed();
        let mut covariance = transposed.times_transposed(&transposed);
        for i in 0..12 {
            covariance.row_mut(i).iter_mut().for_each(|number| *number /= 200.0);
        }
        KeyStatistics { tokens: 200, covariance, file: None }
    }

    fn is_identity(matrix: &Matrix, within: f64) {
        for i in 0..matrix.rows() {
            for (j, number) in matrix.row(i).iter().enumerate() {
                let expected = if i == j { 1.0 } else { 0.0 };
                assert!((number - expected).abs() < within, "{i}, {j}: {number}");
            }
        }
    }

    #[test]
    fn an_exact_update_gives_each_key_its_new_value_and_kept_keys_their_old_one() {
        let (keys, kept) = (random(3, 12, 3), random(2, 12, 4));
        let projection = Metric::null_space(&statistics(), UNUSED, &mut || true).unwrap();
        for metric in [Metric::inverse(&statistics()).unwrap(), projection] {
            let a = key_factor(&keys, &kept, &mut Weighting::new(metric, 12), Softness::Exact).unwrap();
            // ΔW k = B (A k), so A k is the share of each change of value.
            is_identity(&a.times_transposed(&keys), 1e-8);
            assert!(a.times_transposed(&kept).numbers().iter().all(|number| number.abs() < 1e-8));
        }
    }

    #[test]
    fn keys_that_are_kept_one_after_another_give_the_bits_of_those_that_are_kept_at_once() {
        let all = random(5, 12, 4);
        let metrics = || {
            let projection = Metric::null_space(&statistics(), UNUSED, &mut || true).unwrap();
            [Metric::inverse(&statistics()).unwrap(), projection].map(|metric| Weighting::new(metric, 12))
        };
        let keys = random(3, 12, 3);
        for (mut grown, mut whole) in metrics().into_iter().zip(metrics()) {
            for rows in [0, 1, 4, 5] {
                let kept = Matrix::new(rows, 12, all.numbers()[..rows * 12].to_vec());
                key_factor(&keys, &kept, &mut grown, Softness::Small).unwrap();
            }
            let found = key_factor(&keys, &all, &mut grown, Softness::Small).unwrap();
            assert_eq!(found, key_factor(&keys, &all, &mut whole, Softness::Small).unwrap());
            // By the formula as it is written.
            let both = keys.above(&all);
            let weighted = whole.metric.apply(&both);
            let mut products = both.times_transposed(&weighted);
            products.add_to_diagonal(SOFT * products.mean_of_diagonal());
            let solved = Cholesky::of(&products).unwrap().solve_rows(&weighted.transposed()).transposed();
            for i in 0..keys.rows() {
                let pairs = found.row(i).iter().zip(solved.row(i));
                assert!(pairs.clone().all(|(one, other)| (one - other).abs() < 1e-8), "{i}");
            }
        }
    }

    #[test]
    fn an_update_in_the_null_space_leaves_keys_of_text_alone() {
        let (keys, nothing) = (random(3, 12, 3), Matrix::zeros(0, 12));
        let text = random(4, 5, 9).times(&random(5, 12, 2));
        let metric = Metric::null_space(&statistics(), UNUSED, &mut || true).unwrap();
        let a = key_factor(&keys, &nothing, &mut Weighting::new(metric, 12), Softness::Small).unwrap();
        assert!(a.times_transposed(&text).numbers().iter().all(|number| number.abs() < 1e-6));
        is_identity(&a.times_transposed(&keys), 0.1);
    }

    #[test]
    fn the_same_key_twice_is_refused_in_words() {
        let keys = Matrix::of_rows(&[vec![1.0, 0.0], vec![1.0, 0.0]]);
        let covariance = Matrix::new(2, 2, vec![1.0, 0.0, 0.0, 1.0]);
        let statistics = KeyStatistics { tokens: 2, covariance, file: None };
        let metric = Metric::inverse(&statistics).unwrap();
        let mut weighting = Weighting::new(metric, 2);
        let refused = key_factor(&keys, &Matrix::zeros(0, 2), &mut weighting, Softness::Exact).unwrap_err();
        assert!(refused.to_string().contains("two facts have the same key"));
    }

    #[test]
    fn the_projection_is_taken_if_enough_of_the_keys_lies_where_text_has_none() {
        let inside = random(3, 5, 9).times(&random(5, 12, 2));
        let anywhere = random(3, 12, 3);
        let size = |matrix: &Matrix| matrix.numbers().iter().map(|x| x * x).sum::<f64>();
        let projection = Metric::null_space(&statistics(), UNUSED, &mut || true).unwrap();
        let mut taken = Vec::new();
        for tenths in 0..=10 {
            let share = f64::from(tenths) / 10.0;
            let pairs = inside.numbers().iter().zip(anywhere.numbers());
            let mixed = pairs.map(|(one, other)| one * (1.0 - share) + other * share).collect();
            let keys = Matrix::new(3, 12, mixed);
            let enough = size(&projection.apply(&keys)) >= LEAST_UNUSED * size(&keys);
            let mut metrics = Metrics::default();
            let found = metrics.for_keys(&statistics(), &keys, &mut || true).unwrap();
            // The short cut, which saves the eigenvectors, never leaves out what would be of use.
            assert_eq!(matches!(found.metric, Metric::NullSpace(_)), enough, "{share}");
            taken.push(enough);
        }
        assert!(!taken[0] && taken[10], "both are looked at: {taken:?}");
    }
}
