//! The interval of a share whose observations come in clusters, in each of which they may be alike.

use sparktune_base::statistics::{wilson, wilson_of_share};

/// Fewer clusters say nothing about how alike they are.
const LEAST: usize = 3;

/// Like [`wilson`], of `[hits, all]` of each cluster. `None` without observations.
///
/// The number of observations is divided by the design effect (Kish), which is how much larger the variance
/// of the share is than if all were independent. Where every observation is the same, it cannot be
/// estimated, and each cluster counts once.
pub(crate) fn wilson_of_groups(groups: &[[usize; 2]]) -> Option<(f64, f64)> {
    let sum = |which: usize| groups.iter().map(|group| group[which]).sum::<usize>();
    let (hits, all) = (sum(0), sum(1));
    let clusters = groups.iter().filter(|group| group[1] > 0).count();
    if clusters == all {
        return wilson(hits, all);
    }
    let (n, m) = (all as f64, clusters as f64);
    let share = hits as f64 / n;
    let squares: f64 = groups.iter().map(|[hits, all]| (*hits as f64 - share * *all as f64).powi(2)).sum();
    let varies = share * (1.0 - share) > 0.0 && clusters >= LEAST;
    let effective = if varies {
        let effect = m / (m - 1.0) * squares / (n * share * (1.0 - share));
        (n / effect).clamp(1.0, n)
    } else {
        m
    };
    Some(wilson_of_share(share, effective))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(found: Option<(f64, f64)>, expected: Option<(f64, f64)>) -> bool {
        let pairs = found.zip(expected);
        pairs.is_some_and(|(one, other)| (one.0 - other.0).abs() < 1e-6 && (one.1 - other.1).abs() < 1e-6)
    }

    #[test]
    fn what_stands_or_falls_together_counts_once() {
        // Three copies of each of 20 observations say as much as the 20, but for the correction m / (m - 1).
        let tripled: Vec<[usize; 2]> = (0..20).map(|i| [if i < 15 { 3 } else { 0 }, 3]).collect();
        let (low, high) = wilson_of_groups(&tripled).unwrap();
        let (least, most) = wilson(15, 20).unwrap();
        assert!((low - least).abs() < 0.01 && (high - most).abs() < 0.01, "{low} to {high}");
        // Clusters that all have the same share are no less than single observations, and no more.
        assert!(close(wilson_of_groups(&[[1, 2]; 30]), wilson(30, 60)));
        assert!(close(wilson_of_groups(&[[1, 1], [0, 1], [1, 1]]), wilson(2, 3)));
        assert!(close(wilson_of_groups(&[[3, 3]; 10]), wilson(10, 10)), "all the same");
        assert_eq!(wilson_of_groups(&[]), None);
    }
}
