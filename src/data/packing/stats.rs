//! The cost of a packing, for the plan and the report.

use serde::{Deserialize, Serialize};

use super::{Packing, Packs};

/// The sizes of an epoch's rows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct PackStats {
    /// Tokens of a full row.
    pub pack_length: u32,
    /// Rows, each of which takes a forward and a backward pass.
    pub rows: u64,
    /// Pieces in the rows: the examples, plus one for each split.
    pub pieces: u64,
    /// Tokens in the rows.
    pub tokens: u64,
    /// Unused room in the rows, which padding to the pack length would fill.
    pub padding_tokens: u64,
    /// Tokens divided by room, from 0 to 1.
    pub fill: f64,
    /// Σ len² over the pieces, which is proportional to the work of attention.
    pub sum_len_squared: u64,
    /// Tokens of the longest row.
    pub longest_row: u32,
    /// Rows over the pack length, each with a single longer example.
    pub overlong_rows: u64,
}

impl PackStats {
    /// Returns the sizes of `packs`.
    pub fn of(packs: &Packs) -> Self {
        let mut stats =
            Self { pack_length: packs.pack_length(), rows: packs.len() as u64, ..Self::default() };
        for row in packs.iter() {
            let tokens: u32 = row.iter().map(|piece| piece.len).sum();
            stats.pieces += row.len() as u64;
            stats.tokens += u64::from(tokens);
            stats.padding_tokens += u64::from(stats.pack_length.saturating_sub(tokens));
            stats.sum_len_squared += row.iter().map(|piece| u64::from(piece.len).pow(2)).sum::<u64>();
            stats.longest_row = stats.longest_row.max(tokens);
            stats.overlong_rows += u64::from(tokens > stats.pack_length);
        }
        stats.with_fill()
    }

    /// Returns the sizes for examples with these lengths. `histogram` contains pairs of a length and a number
    /// of examples.
    ///
    /// The result is exact up to 200,000 examples. For more, a proportional sample is packed and its counts
    /// are scaled up.
    pub fn of_histogram(packing: &Packing, histogram: &[(u32, u64)]) -> Self {
        const SAMPLE: u64 = 200_000;
        let examples: u64 = histogram.iter().map(|(_, count)| count).sum();
        let scale = (examples as f64 / SAMPLE as f64).max(1.0);
        // Rounding the running total instead of each count keeps rare lengths in proportion.
        let mut before = 0;
        let mut lengths = Vec::new();
        for &(length, count) in histogram {
            let sampled = |n: u64| (n as f64 / scale) as u64;
            let copies = sampled(before + count) - sampled(before);
            lengths.extend(std::iter::repeat_n(length, copies as usize));
            before += count;
        }
        let sample = Self::of(&packing.epoch(&lengths, 0));
        let scaled = |n: u64| (n as f64 * scale).round() as u64;
        Self {
            rows: scaled(sample.rows),
            pieces: scaled(sample.pieces),
            tokens: scaled(sample.tokens),
            padding_tokens: scaled(sample.padding_tokens),
            sum_len_squared: scaled(sample.sum_len_squared),
            overlong_rows: scaled(sample.overlong_rows),
            ..sample
        }
        .with_fill()
    }

    fn with_fill(self) -> Self {
        let room = self.tokens + self.padding_tokens;
        Self { fill: if room == 0 { 0.0 } else { self.tokens as f64 / room as f64 }, ..self }
    }
}
