//! A curve in one line of text, for gauges and lists.

use sparktune_runlog::Bucket;

use super::axis::Axis;
use super::columns::{Window, columns};

const BLOCKS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
const ASCII: [char; 8] = ['_', '.', ',', '-', '=', '+', '*', '#'];

/// The curve in `width` characters, oldest left: the mean of each column from the lowest to the highest, a gap where
/// nothing was measured, and `×` (`!` without Unicode) where values were not finite.
pub fn sparkline(buckets: &[Bucket], width: usize, unicode: bool) -> String {
    let (Some(first), Some(last)) = (buckets.first(), buckets.last()) else { return String::new() };
    let window = Window { from: first.first_step, to: last.last_step.max(first.first_step) };
    // Few steps do not need the whole width.
    let width = width.min(buckets.len());
    let columns = columns(buckets, window, width);
    let means = columns.iter().map(|column| column.as_ref().and_then(|c| c.mean()));
    let axis = Axis::of(means.clone().flatten(), false, 0.0);
    let glyphs = if unicode { BLOCKS } else { ASCII };
    columns
        .iter()
        .zip(means)
        .map(|(column, mean)| match (column, mean.zip(axis)) {
            (Some(column), _) if column.nonfinite > 0 => {
                if unicode {
                    '×'
                } else {
                    '!'
                }
            }
            (_, Some((mean, axis))) => glyphs[(axis.fraction(mean) * 7.0).round() as usize],
            _ => ' ',
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chart::columns::tests::series;

    #[test]
    fn a_line_of_blocks_shows_the_course_its_gaps_and_what_was_no_number() {
        let values: Vec<(u64, f64)> = (0..8).map(|i| (i, i as f64)).collect();
        assert_eq!(sparkline(series(&values).buckets(), 20, true), "▁▂▃▄▅▆▇█");
        assert_eq!(sparkline(series(&values).buckets(), 4, true), "▁▃▆█");
        let odd = series(&[(0, 1.0), (1, f64::NAN), (2, 2.0), (9, 2.0)]);
        assert_eq!(sparkline(odd.buckets(), 4, true), "×  █");
        assert_eq!(sparkline(odd.buckets(), 4, false), "!  #");
        assert_eq!(sparkline(&[], 10, true), "");
        assert_eq!(sparkline(series(&[(5, 3.0)]).buckets(), 10, true).chars().count(), 1);
    }
}
