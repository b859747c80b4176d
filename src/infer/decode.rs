//! A step of the engine: pieces of prompts, and the next tokens of all answers.

use std::collections::BTreeSet;

use burn::tensor::Tensor;
use sparktune_data::ChatTokenizer;
use sparktune_model::{BatchDecoder, Continued, FEWEST_ROWS, MOST_LARGEST, NextLogits};
use sparktune_sampling::{Logits, SamplingParams, draw};

use crate::engine::Engine;
use crate::error::InferError;
use crate::event::SequenceId;
use crate::sequence::{PREFILL, Sequence};

impl Engine {
    /// Computes a piece of the oldest prompt that is not complete, and with it those of others that use the
    /// same adapter, up to [`PREFILL`] tokens in all; and the token after each prompt that it completes.
    pub(crate) fn prefill(&mut self, failed: &mut Vec<(SequenceId, InferError)>) {
        let mut incomplete = self.running.iter_mut().filter(|next| !next.is_decoding() && !next.has_ended());
        let Some(oldest) = incomplete.next() else { return };
        let decoder = match self.models.get(oldest.adapter.as_deref()) {
            Ok(decoder) => decoder,
            Err(error) => return failed.push((oldest.id, error)),
        };
        let mut rows = oldest.piece().len();
        let mut group = vec![oldest];
        // A short piece is computed alone, since its bits would depend on the others.
        if rows >= FEWEST_ROWS {
            for next in incomplete {
                let more = next.piece().len();
                if more >= FEWEST_ROWS && rows + more <= PREFILL && next.adapter == group[0].adapter {
                    rows += more;
                    group.push(next);
                }
            }
        }
        let pieces = group.iter_mut().map(|sequence| {
            let piece = sequence.piece();
            Continued { input_ids: &sequence.prompt[piece], cache: &mut sequence.cache }
        });
        let hidden = decoder.prefill(&mut pieces.collect::<Vec<_>>());
        let (mut first, mut complete, mut last) = (0, Vec::new(), Vec::new());
        for sequence in group {
            let piece = sequence.piece();
            let rows = hidden.clone().narrow(0, first, piece.len());
            first += piece.len();
            sequence.prefilled = piece.end;
            if sequence.is_decoding() {
                last.push(rows.clone().narrow(0, piece.len() - 1, 1));
            }
            if let (Some(head), Some(drafts)) = (&self.models.head, &mut sequence.drafts) {
                drafts.add(rows, &sequence.prompt[piece]);
                drafts.read(decoder.model(), head);
            }
            if sequence.is_decoding() {
                complete.push(sequence);
            }
        }
        if complete.is_empty() {
            return;
        }
        let params = complete.iter().map(|sequence| &sequence.params);
        let logits = decoder.next_logits(Tensor::cat(last, 0), largest_are_enough(params));
        for (row, sequence) in complete.into_iter().enumerate() {
            let kept = accept(sequence, &[], (&logits, row), &self.tokenizer, &self.hidden);
            failed.extend(kept.err().map(|error| (sequence.id, error)));
        }
    }

    /// Computes the next tokens of all answers whose prompt is complete, those of one adapter together.
    pub(crate) fn decode(&mut self, failed: &mut Vec<(SequenceId, InferError)>) {
        let is_ready = |sequence: &&mut Sequence| sequence.is_decoding() && !sequence.has_ended();
        let mut all: Vec<&mut Sequence> = self.running.iter_mut().filter(is_ready).collect();
        let mut adapters: Vec<Option<String>> = all.iter().map(|sequence| sequence.adapter.clone()).collect();
        adapters.sort();
        adapters.dedup();
        for adapter in adapters {
            let mut group: Vec<&mut Sequence> = Vec::new();
            let mut rest = Vec::new();
            for sequence in all {
                if sequence.adapter == adapter { group.push(sequence) } else { rest.push(sequence) }
            }
            all = rest;
            let decoder = match self.models.get(adapter.as_deref()) {
                Ok(decoder) => decoder,
                Err(_) => {
                    let known = self.models.names();
                    let name = adapter.unwrap_or_default();
                    failed.extend(group.iter().map(|sequence| {
                        let (name, known) = (name.clone(), known.clone());
                        (sequence.id, InferError::UnknownAdapter { name, known })
                    }));
                    continue;
                }
            };
            let rows: Vec<Vec<u32>> = group
                .iter_mut()
                .map(|sequence| {
                    let mut rows = vec![sequence.newest];
                    // The last token of an answer is drawn and needs no draft.
                    let count = self.options.draft_tokens.min(sequence.left() - 1);
                    if let (Some(head), Some(drafts)) = (&self.models.head, &mut sequence.drafts) {
                        rows.extend(drafts.draft(decoder.model(), head, sequence.newest, count));
                    }
                    rows
                })
                .collect();
            let hidden = step(decoder, &mut group, &rows);
            let params = group.iter().map(|sequence| &sequence.params);
            let logits = decoder.next_logits(hidden.clone(), largest_are_enough(params));
            let mut first = 0;
            for (sequence, rows) in group.into_iter().zip(rows) {
                match accept(sequence, &rows[1..], (&logits, first), &self.tokenizer, &self.hidden) {
                    Ok(accepted) => {
                        sequence.cache.take_back(rows.len() - 1 - accepted);
                        if let Some(drafts) = &mut sequence.drafts {
                            let kept = accepted + 1;
                            drafts.add(hidden.clone().narrow(0, first, kept), &rows[..kept]);
                        }
                    }
                    Err(error) => failed.push((sequence.id, error)),
                }
                first += rows.len();
            }
        }
    }
}

fn step(decoder: &BatchDecoder, group: &mut [&mut Sequence], rows: &[Vec<u32>]) -> Tensor<2> {
    let continued = group.iter_mut().zip(rows);
    let mut batch: Vec<Continued<'_>> =
        continued.map(|(sequence, input_ids)| Continued { input_ids, cache: &mut sequence.cache }).collect();
    decoder.step(&mut batch)
}

/// Returns whether all of these answers can be drawn from as many logits as a device chooses.
fn largest_are_enough<'a>(mut params: impl Iterator<Item = &'a SamplingParams>) -> bool {
    params.all(|params| params.largest_needed().is_some_and(|needed| needed <= MOST_LARGEST))
}

fn row_of(logits: &NextLogits, row: usize) -> Logits<'_> {
    match logits {
        NextLogits::All { logits, vocab_size } => Logits::All(&logits[row * vocab_size..][..*vocab_size]),
        NextLogits::Largest(rows) => Logits::Largest(&rows[row]),
    }
}

/// Draws the tokens of an answer as far as they are the drafted ones, and returns how many of those were
/// accepted. The logits after its newest token are in this row, those after the drafted ones in the next.
fn accept(
    sequence: &mut Sequence,
    drafted: &[u32],
    (logits, first): (&NextLogits, usize),
    tokenizer: &ChatTokenizer,
    hidden: &BTreeSet<u32>,
) -> Result<usize, InferError> {
    sequence.usage.drafted_tokens += drafted.len();
    for i in 0..=drafted.len() {
        let place = sequence.usage.completion_tokens;
        let drawn =
            draw(row_of(logits, first + i), &sequence.history, &sequence.params, sequence.seed, place as u64);
        let drawn = drawn.ok_or(InferError::NotFinite(place))?;
        let token = drawn.token;
        sequence.push(drawn, tokenizer, hidden);
        if drafted.get(i) != Some(&token) {
            return Ok(i);
        }
        sequence.usage.accepted_tokens += 1;
        if sequence.has_ended() {
            return Ok(i);
        }
    }
    Ok(drafted.len())
}
