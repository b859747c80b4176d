//! Examples as the rows of a step: padded, each to a row of the same length, or packed, several in a row.

use sparktune_data::Tokens;
use sparktune_model::PackedSequence;

use super::job::Job;
use super::loader::Loader;
use crate::error::BenchError;

/// How rows are made.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Layout {
    /// Whether an example has a row of its own, which is padded.
    pub(crate) pads: bool,
    /// The tokens of a row. Longer examples are cut.
    pub(crate) row_tokens: usize,
    /// Whether every token of an example is trained, but the first.
    pub(crate) trains_every_token: bool,
}

/// What rows consist of.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) positions: u64,
    pub(crate) tokens: u64,
    pub(crate) targets: u64,
}

/// Rows and what they consist of.
pub(crate) struct Rows {
    pub(crate) sequences: Vec<PackedSequence>,
    pub(crate) counts: Counts,
}

/// Padding, which is never a target and which no token of an example sees.
const PAD: u32 = 0;

/// A row that is being made.
#[derive(Default)]
struct Row {
    ids: Vec<u32>,
    mask: Vec<bool>,
    borders: Vec<u32>,
}

impl Row {
    fn push(&mut self, ids: &[u32], mask: &[bool]) {
        if self.borders.is_empty() {
            self.borders.push(0);
        }
        self.ids.extend_from_slice(ids);
        self.mask.extend_from_slice(mask);
        self.borders.push(self.ids.len() as u32);
    }

    fn into_sequence(self) -> PackedSequence {
        PackedSequence::new(&self.ids, &self.borders, &self.mask)
    }
}

impl Layout {
    /// Returns how the pipeline of a job makes its rows.
    pub(crate) fn of(job: &Job) -> Self {
        Self {
            pads: job.pipeline.pads(job.arrangement),
            row_tokens: job.row_tokens as usize,
            trains_every_token: job.arrangement.trains_every_token(),
        }
    }

    /// Makes the rows of these examples. Padded rows are one batch; packed ones take the examples in their
    /// order, and a new row begins where the next example does not fit.
    ///
    /// # Errors
    /// An example cannot be read.
    pub(crate) fn rows(&self, loader: &Loader, examples: &[u32]) -> Result<Rows, BenchError> {
        let (mut sequences, mut counts) = (Vec::new(), Counts::default());
        let mut row = Row::default();
        for example in examples {
            let Tokens { input_ids: mut ids, loss_mask: mut mask } = loader.read(*example as usize)?;
            ids.truncate(self.row_tokens);
            mask.truncate(self.row_tokens);
            if self.trains_every_token {
                mask.fill(true);
            }
            counts.tokens += ids.len() as u64;
            if self.pads {
                ids.resize(self.row_tokens, PAD);
                mask.resize(self.row_tokens, false);
            } else if !row.ids.is_empty() && row.ids.len() + ids.len() > self.row_tokens {
                sequences.push(std::mem::take(&mut row).into_sequence());
            }
            row.push(&ids, &mask);
        }
        sequences.push(row.into_sequence());
        for sequence in &sequences {
            counts.positions += sequence.len() as u64;
            counts.targets += sequence.target_tokens() as u64;
        }
        Ok(Rows { sequences, counts })
    }
}
