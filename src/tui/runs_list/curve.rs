//! Draws the end of a loss curve as columns of blocks.

use crate::chart::{Column, blocks};

/// Draws the newest values in `width` columns and `height` rows, top row first. Several values share a
/// column; a value that is not finite (`None`) is a cross. A constant curve is a low line.
pub(super) fn rows(values: &[Option<f64>], width: usize, height: usize, unicode: bool) -> Vec<String> {
    let means = columns(values, width);
    let finite = || means.iter().flatten().copied();
    let low = finite().fold(f64::INFINITY, f64::min);
    let high = finite().fold(f64::NEG_INFINITY, f64::max);
    let share = |mean: f64| if high > low { (mean - low) / (high - low) } else { 0.0 };
    let columns: Vec<Column> =
        means.iter().map(|mean| mean.map_or(Column::NotFinite, |mean| Column::Share(share(mean)))).collect();
    blocks(&columns, height, unicode)
}

/// Returns at most `width` means over ranges of equal length. A range that contains a value that is not
/// finite has none.
fn columns(values: &[Option<f64>], width: usize) -> Vec<Option<f64>> {
    let per = values.len().div_ceil(width.max(1)).max(1);
    // Ranges are counted from the newest value backwards, so that a column keeps its height while the curve
    // grows into the next one.
    values
        .rchunks(per)
        .rev()
        .map(|run| {
            let sum: Option<f64> = run.iter().copied().sum();
            sum.map(|sum| sum / run.len() as f64)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_falling_curve_falls_and_a_gap_is_marked() {
        let values: Vec<_> = (0..8).map(|i| Some(f64::from(8 - i))).collect();
        assert_eq!(rows(&values, 8, 1, true), ["█▇▆▅▄▃▂▁"]);
        assert_eq!(rows(&values, 8, 1, false), ["#*+=-,._"]);
        assert_eq!(rows(&[Some(1.0), None, Some(1.0)], 8, 1, true), ["▁×▁"]);
        assert_eq!(rows(&[None], 8, 2, false), [" ", "×"]);
        assert_eq!(rows(&[], 8, 1, true), [""]);
    }

    #[test]
    fn many_values_share_columns_and_a_high_curve_uses_every_row() {
        let values: Vec<_> = (0..100).map(|i| Some(f64::from(i))).collect();
        let drawn = rows(&values, 10, 3, true);
        assert_eq!(drawn.len(), 3);
        assert!(drawn.iter().all(|row| row.chars().count() == 10));
        assert!(
            drawn[0].starts_with(' ') && drawn[0].ends_with('█') && drawn[2].starts_with('▁'),
            "{drawn:?}"
        );
    }

    proptest! {
        #[test]
        fn no_curve_is_wider_than_its_place(
            values in proptest::collection::vec(proptest::option::of(any::<f64>().prop_filter("finite", |v| v.is_finite())), 0..300),
            width in 1_usize..40,
        ) {
            for row in rows(&values, width, 2, true) {
                prop_assert!(row.chars().count() <= width);
            }
        }
    }
}
