//! Draws a curve in one line of text, for gauges and lists.

use sparktune_runlog::Bucket;

use super::axis::Axis;
use super::columns::{Window, columns};

const BLOCKS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
const ASCII: [char; 8] = ['_', '.', ',', '-', '=', '+', '*', '#'];

/// The content of one column of a curve.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Column {
    /// Nothing was measured.
    Nothing,
    /// A value that is not finite.
    NotFinite,
    /// The position of a value between the lowest (0) and the highest (1).
    Share(f64),
}

/// Draws the columns in `height` rows and returns them from top to bottom. A column without a value is a gap,
/// and a value that is not finite is a cross at the bottom.
pub(crate) fn blocks(columns: &[Column], height: usize, unicode: bool) -> Vec<String> {
    let glyphs = if unicode { BLOCKS } else { ASCII };
    let top = (8 * height).saturating_sub(1) as f64;
    let cell = |column: &Column, floor: usize| match *column {
        Column::NotFinite if floor == 0 => '×',
        Column::Nothing | Column::NotFinite => ' ',
        Column::Share(share) => match ((share * top).round() as usize + 1).saturating_sub(floor) {
            0 => ' ',
            eighths => glyphs[eighths.min(8) - 1],
        },
    };
    (0..height).rev().map(|row| columns.iter().map(|column| cell(column, 8 * row)).collect()).collect()
}

/// Draws the curve in `width` characters, oldest value first. Each column shows the mean of its values,
/// scaled from the lowest to the highest.
pub(crate) fn sparkline(buckets: &[Bucket], width: usize, unicode: bool) -> String {
    let (Some(first), Some(last)) = (buckets.first(), buckets.last()) else { return String::new() };
    let window = Window { from: first.first_step, to: last.last_step.max(first.first_step) };
    // Few steps do not need the whole width.
    let width = width.min(buckets.len());
    let columns = columns(buckets, window, width);
    let means = columns.iter().flatten().filter_map(|column| column.mean());
    let axis = Axis::of(means, false, 0.0);
    let columns: Vec<Column> = columns
        .iter()
        .map(|column| match column {
            Some(column) if column.nonfinite > 0 => Column::NotFinite,
            Some(column) => {
                column.mean().zip(axis).map_or(Column::Nothing, |(m, a)| Column::Share(a.fraction(m)))
            }
            None => Column::Nothing,
        })
        .collect();
    blocks(&columns, 1, unicode).concat()
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
        assert_eq!(sparkline(odd.buckets(), 4, false), "×  #");
        assert_eq!(sparkline(&[], 10, true), "");
        assert_eq!(sparkline(series(&[(5, 3.0)]).buckets(), 10, true).chars().count(), 1);
    }
}
