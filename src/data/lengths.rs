//! The lengths of the examples: the figures that the plan uses, and a histogram for people.

use std::fmt;

use serde::{Deserialize, Serialize};
use sparktune_base::units::count;

/// Lengths of all accepted examples.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LengthReport {
    /// The unit of the lengths.
    pub unit: Unit,
    /// The number of examples.
    pub count: u64,
    /// The sum of their lengths.
    pub total: u64,
    /// Average length.
    pub mean: f64,
    /// The median: half of the examples are at most this long (nearest rank, like the other percentiles).
    pub p50: u32,
    /// The length that 90 % of the examples do not exceed.
    pub p90: u32,
    /// The length that 99 % of the examples do not exceed.
    pub p99: u32,
    /// The largest length.
    pub max: u32,
    /// The number of examples by length. Each bin is twice as wide as the one before; the first and the last
    /// are not empty.
    pub histogram: Vec<Bin>,
}

/// The unit of lengths.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Unit {
    /// Tokens of the model.
    Tokens,
    /// Bytes of text, if no model was given.
    Bytes,
}

/// Examples with `from <= length < to`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bin {
    /// The smallest length in the bin.
    pub from: u32,
    /// The first length above the bin.
    pub to: u32,
    /// The number of examples in the bin.
    pub count: u64,
    /// The sum of their lengths.
    pub total: u64,
}

impl LengthReport {
    /// Summarises lengths in any order and sorts them in place. Returns `None` without examples.
    pub fn new(unit: Unit, lengths: &mut [u32]) -> Option<Self> {
        lengths.sort_unstable();
        let (count, max) = (lengths.len(), *lengths.last()?);
        let total: u64 = lengths.iter().map(|&l| u64::from(l)).sum();
        let percentile = |percent: usize| lengths[(count * percent).div_ceil(100).max(1) - 1];
        Some(Self {
            unit,
            count: count as u64,
            total,
            mean: total as f64 / count as f64,
            p50: percentile(50),
            p90: percentile(90),
            p99: percentile(99),
            max,
            histogram: histogram(lengths),
        })
    }
}

fn histogram(sorted: &[u32]) -> Vec<Bin> {
    const FIRST: u32 = 16;
    let mut bins = Vec::new();
    let (mut from, mut to) = (0, FIRST);
    let mut rest = sorted;
    while !rest.is_empty() {
        let inside = rest.partition_point(|&l| l < to || to == u32::MAX);
        let (these, later) = rest.split_at(inside);
        let total = these.iter().map(|&l| u64::from(l)).sum();
        if inside > 0 || !bins.is_empty() {
            bins.push(Bin { from, to, count: inside as u64, total });
        }
        rest = later;
        (from, to) = (to, to.saturating_mul(2));
    }
    bins
}

/// Formats the report in several lines, with the histogram as bars.
impl fmt::Display for LengthReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const WIDTH: u64 = 40;
        let unit = match self.unit {
            Unit::Tokens => "tokens",
            Unit::Bytes => "bytes of text",
        };
        writeln!(
            f,
            "length in {unit}: mean {}  p50 {}  p90 {}  p99 {}  max {}  (total {})",
            // A decimal place says something of short examples only.
            if self.mean < 1000.0 { format!("{:.1}", self.mean) } else { count(self.mean.round() as u64) },
            count(self.p50.into()),
            count(self.p90.into()),
            count(self.p99.into()),
            count(self.max.into()),
            count(self.total)
        )?;
        let most = self.histogram.iter().map(|b| b.count).max().unwrap_or(0).max(1);
        let mut bins = self.histogram.as_slice();
        while let Some((bin, rest)) = bins.split_first() {
            bins = rest;
            let empty = [bin].into_iter().chain(rest).take_while(|bin| bin.count == 0).count();
            // A long gap, as one very long example makes it, is one row.
            if empty > 2 {
                let last = &rest[empty - 2];
                writeln!(f, "{:>9} – {:<9} {:>9}", count(bin.from.into()), count((last.to - 1).into()), 0)?;
                bins = &rest[empty - 1..];
                continue;
            }
            let halves = (2 * WIDTH * bin.count).div_ceil(most);
            let bar = "█".repeat((halves / 2) as usize) + if halves % 2 == 1 { "▌" } else { "" };
            writeln!(
                f,
                "{:>9} – {:<9} {:>9}  {bar}",
                count(bin.from.into()),
                count((bin.to - 1).into()),
                count(bin.count)
            )?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn percentiles_are_nearest_ranks() {
        let mut lengths: Vec<u32> = (1..=200).rev().collect();
        let report = LengthReport::new(Unit::Tokens, &mut lengths).unwrap();
        assert_eq!((report.p50, report.p90, report.p99, report.max), (100, 180, 198, 200));
        assert_eq!((report.mean, report.total), (100.5, 20100));
        assert_eq!(LengthReport::new(Unit::Tokens, &mut []), None);
    }

    #[test]
    fn the_histogram_reads_as_text() {
        let mut lengths = vec![3, 20, 21, 22, 100];
        let text = LengthReport::new(Unit::Tokens, &mut lengths).unwrap().to_string();
        let expected = "\
length in tokens: mean 33.2  p50 21  p90 100  p99 100  max 100  (total 166)
        0 – 15                1  █████████████▌
       16 – 31                3  ████████████████████████████████████████
       32 – 63                0  \n       64 – 127               1  █████████████▌\n";
        assert_eq!(text, expected);
        let gap = LengthReport::new(Unit::Tokens, &mut [3, 1000]).unwrap().to_string();
        assert!(gap.contains("\n       16 – 511               0\n      512 – 1,023"), "{gap}");
    }

    proptest! {
        #[test]
        fn every_example_is_in_exactly_one_bin(mut lengths in prop::collection::vec(any::<u32>(), 1..200)) {
            let report = LengthReport::new(Unit::Bytes, &mut lengths).unwrap();
            prop_assert_eq!(report.histogram.iter().map(|b| b.count).sum::<u64>(), lengths.len() as u64);
            prop_assert_eq!(report.histogram.iter().map(|b| b.total).sum::<u64>(), report.total);
            for bin in &report.histogram {
                let inside = lengths.iter().filter(|&&l| l >= bin.from && (l < bin.to || bin.to == u32::MAX)).count();
                prop_assert_eq!(inside as u64, bin.count);
            }
        }
    }
}
