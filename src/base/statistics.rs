//! How certain a mean is: intervals of means and of shares.

/// The smallest number of groups from which an interval is estimated.
const LEAST_GROUPS: usize = 3;

/// The 97.5 % point of the normal distribution.
const Z: f64 = 1.959_964;

/// A mean with its 95 % interval.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Mean {
    /// The mean of all values.
    pub mean: f64,
    /// Half the width of the interval; `None` if there are too few groups to estimate it.
    pub half_width: Option<f64>,
}

impl Mean {
    /// Computes mean and interval of values that come in groups, in each of which they may be alike.
    ///
    /// The standard error counts each group as one cluster:
    /// `√(m / (m − 1) · Σ_groups (Σ_values (v − mean))²) / n`. The interval is Student's with `m − 1` degrees
    /// of freedom.
    pub fn of_groups(groups: &[Vec<f64>]) -> Self {
        let (clusters, values) = (groups.len(), groups.iter().map(Vec::len).sum::<usize>());
        let mean = groups.iter().flatten().sum::<f64>() / values.max(1) as f64;
        if clusters < LEAST_GROUPS || values == 0 {
            return Self { mean, half_width: None };
        }
        let sums = groups.iter().map(|group| group.iter().map(|v| v - mean).sum::<f64>());
        let squares: f64 = sums.map(|sum| sum * sum).sum();
        let m = clusters as f64;
        let error = (m / (m - 1.0) * squares).sqrt() / values as f64;
        Self { mean, half_width: Some(student(m - 1.0) * error) }
    }

    /// Computes mean and interval of independent values.
    pub fn of(values: &[f64]) -> Self {
        Self::of_groups(&values.iter().map(|value| vec![*value]).collect::<Vec<_>>())
    }

    /// Returns whether the whole interval is above zero.
    pub fn is_above_zero(&self) -> bool {
        self.half_width.is_some_and(|half_width| self.mean - half_width > 0.0)
    }
}

/// Returns the 97.5 % point of Student's distribution, by the Cornish–Fisher expansion of the normal one. It
/// is within 4 % for two degrees of freedom and within 0.1 % for ten.
pub fn student(degrees: f64) -> f64 {
    let first = (Z.powi(3) + Z) / 4.0;
    let second = (5.0 * Z.powi(5) + 16.0 * Z.powi(3) + 3.0 * Z) / 96.0;
    let third = (3.0 * Z.powi(7) + 19.0 * Z.powi(5) + 17.0 * Z.powi(3) - 15.0 * Z) / 384.0;
    Z + first / degrees + second / degrees.powi(2) + third / degrees.powi(3)
}

/// Returns the 95 % interval of a share of `hits` in `all`, by Wilson's method, which is sound for few
/// observations and for shares near 0 and 1. `None` without observations.
pub fn wilson(hits: usize, all: usize) -> Option<(f64, f64)> {
    (all > 0).then(|| wilson_of_share(hits as f64 / all as f64, all as f64))
}

/// Like [`wilson`], of a share that as much is known about as from `n` independent observations, which need
/// not be a whole number.
pub fn wilson_of_share(share: f64, n: f64) -> (f64, f64) {
    let square = Z * Z / n;
    let centre = share + square / 2.0;
    let width = Z * (share * (1.0 - share) / n + square / (4.0 * n)).sqrt();
    let bound = |value: f64| (value / (1.0 + square)).clamp(0.0, 1.0);
    (bound(centre - width), bound(centre + width))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_points_of_students_distribution_are_those_of_the_tables() {
        for (degrees, point) in [(2.0, 4.303), (3.0, 3.182), (5.0, 2.571), (10.0, 2.228), (30.0, 2.042)] {
            let error = (student(degrees) - point).abs() / point;
            assert!(error < if degrees < 3.0 { 0.04 } else { 0.012 }, "{degrees}: {}", student(degrees));
        }
        assert!((student(1e9) - Z).abs() < 1e-6);
    }

    #[test]
    fn the_interval_is_the_standard_error_of_clusters() {
        let groups = [vec![1.0, 0.0], vec![1.0], vec![0.0], vec![1.0, 1.0, 0.0]];
        let found = Mean::of_groups(&groups);
        let mean = 4.0 / 7.0;
        assert!((found.mean - mean).abs() < 1e-12);
        let sums: [f64; 4] = [1.0 - 2.0 * mean, 1.0 - mean, -mean, 2.0 - 3.0 * mean];
        let error = (4.0 / 3.0 * sums.iter().map(|sum| sum * sum).sum::<f64>()).sqrt() / 7.0;
        assert!((found.half_width.unwrap() - student(3.0) * error).abs() < 1e-12);
        assert_eq!(Mean::of(&[1.0, 2.0]).half_width, None);
        assert!(Mean::of(&[1.0, 2.0, 1.5, 1.2]).is_above_zero());
        assert!(!Mean::of(&[1.0, -2.0, 1.5, 1.2]).is_above_zero());
    }

    #[test]
    fn the_interval_of_a_share_is_wilsons() {
        // Values of R's `prop.test(correct = FALSE)` and of statsmodels'
        // `proportion_confint(method="wilson")`.
        for (hits, all, low, high) in
            [(0, 10, 0.0, 0.277_533), (10, 10, 0.722_467, 1.0), (5, 10, 0.236_593, 0.763_407)]
        {
            let (l, h) = wilson(hits, all).unwrap();
            assert!((l - low).abs() < 1e-5 && (h - high).abs() < 1e-5, "{hits} of {all}: {l} to {h}");
        }
        assert_eq!(wilson(0, 0), None);
    }
}
