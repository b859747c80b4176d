//! The tokens of raw text, as models are pretrained on it.
//!
//! A document is the tokens that the tokenizer puts before every text (a BOS token, where the model has one),
//! its text, and the end-of-text token; every token but the first is trained. That is what transformers makes
//! of a completion without a prompt, and what TRL and axolotl do with a field `text`. A document over the
//! limit becomes pieces of that length. Each piece begins with the last token of the one before it, which
//! is not trained again, so that every token is trained exactly once, behind at least one other.

use std::borrow::Cow;

use crate::chat_tokenizer::ChatTokenizer;
use crate::conversation::Document;
use crate::rejection::{Kind, Rejection};
use crate::text_border::{SECTION_BYTES, border, tail};
use crate::token_file::all_but_first;
use crate::tokens::{EXAMPLE_BYTES, TOKEN_BYTES, Tokens};

/// The largest number of tokens of a piece of raw text if the user gives no limit. The limit of a model is
/// far more than one computes on at once, and that of a conversation, which should not be cut.
pub(crate) const PIECE_TOKENS: u32 = 4096;

impl ChatTokenizer {
    /// Returns the tokens of a document or of a section of one. A section that continues a document begins
    /// with the last token before it.
    pub(crate) fn encode_document(&self, document: &Document<'_>) -> Result<Tokens, Rejection> {
        let mut input_ids = Vec::new();
        self.tokens_of_document(document, |ids| {
            input_ids.extend_from_slice(ids);
            Ok(())
        })?;
        Ok(Tokens { loss_mask: all_but_first(input_ids.len()), input_ids })
    }

    /// Calls `found` with the tokens of a document or of a section of one, some at a time.
    ///
    /// # Errors
    /// None of its tokens would be trained, the tokenizer fails, or `found` does.
    pub(crate) fn tokens_of_document(
        &self,
        document: &Document<'_>,
        mut found: impl FnMut(&[u32]) -> Result<(), Rejection>,
    ) -> Result<(), Rejection> {
        let around = self.around_text();
        let (mut count, mut last) = (0, None);
        let mut add = |ids: &[u32]| {
            count += ids.len();
            last = ids.last().copied().or(last);
            found(ids).map(|()| last)
        };
        if document.before.is_empty() {
            add(&around.before)?;
        }
        let (mut before, mut rest) = (Cow::Borrowed(&*document.before), &*document.text);
        let mut is_first = true;
        while !rest.is_empty() {
            // The tokenizers that need the most memory take a hundred bytes per token.
            let end = if rest.len() > SECTION_BYTES {
                border(&rest.as_bytes()[..SECTION_BYTES])
            } else {
                rest.len()
            };
            let (part, after) = rest.split_at(rest.floor_char_boundary(end));
            let known = self.encode(&before)?;
            let joined = if known.is_empty() { Vec::new() } else { self.encode(&format!("{before}{part}"))? };
            if std::mem::take(&mut is_first) {
                add(known.last().map_or(&[], std::slice::from_ref))?;
            }
            match joined.strip_prefix(&known[..]) {
                Some(ids) if !known.is_empty() => add(ids)?,
                // A word goes on across the border, and its tokens before the border are there already.
                _ => add(&self.encode(part)?)?,
            };
            before = Cow::Borrowed(&part[part.floor_char_boundary(tail(part.as_bytes()))..]);
            rest = after;
        }
        if !document.goes_on {
            let last = add(&around.after)?;
            add(around.end.filter(|end| last != Some(*end)).as_slice())?;
        }
        // The first token is not trained.
        if count < 2 {
            return Err(Rejection::new(
                Kind::NothingToTrain,
                "text",
                "none of its tokens would be trained, because there is only one",
                "Remove the document, or give it more text",
            ));
        }
        Ok(())
    }
}

/// Cuts the tokens of a text into pieces while they are found. Each piece begins with the last token of the
/// one before it, which is trained in the piece that it ends.
pub(crate) struct Pieces {
    /// The largest number of tokens of a piece.
    limit: usize,
    /// Whether more than one piece is kept.
    keeps_all: bool,
    pieces: Vec<Vec<u32>>,
    /// The number of tokens of the text.
    length: usize,
    bytes: usize,
}

impl Pieces {
    pub(crate) fn new(limit: Option<usize>, keeps_all: bool) -> Self {
        // A piece of one token would have nothing to train.
        let least = if keeps_all { 2 } else { 1 };
        let limit = limit.unwrap_or(usize::MAX).max(least);
        Self { limit, keeps_all, pieces: vec![Vec::new()], length: 0, bytes: EXAMPLE_BYTES }
    }

    /// Adds tokens.
    pub(crate) fn add(&mut self, mut ids: &[u32]) {
        self.length += ids.len();
        while let Some(piece) = self.pieces.last_mut()
            && !ids.is_empty()
        {
            let (of_piece, rest) = ids.split_at(ids.len().min(self.limit - piece.len()));
            piece.extend_from_slice(of_piece);
            self.bytes += of_piece.len() * TOKEN_BYTES;
            ids = rest;
            if ids.is_empty() || !self.keeps_all {
                break;
            }
            let last = piece[piece.len() - 1];
            piece.shrink_to_fit();
            self.pieces.push(vec![last]);
            self.bytes += EXAMPLE_BYTES + TOKEN_BYTES;
        }
    }

    /// Returns about the number of bytes of memory that the pieces take.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the number of tokens of the text, and the pieces.
    pub(crate) fn finish(self) -> (usize, impl Iterator<Item = Tokens>) {
        let tokens = |input_ids: Vec<u32>| Tokens { loss_mask: all_but_first(input_ids.len()), input_ids };
        (self.length, self.pieces.into_iter().map(tokens))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn pieces_train_every_token_of_a_document_exactly_once(
            (length, limit, at_a_time) in (2usize..200, 2usize..50, 1usize..60),
        ) {
            let whole: Vec<u32> = (0..length as u32).collect();
            let mut pieces = Pieces::new(Some(limit), true);
            whole.chunks(at_a_time).for_each(|ids| pieces.add(ids));
            let (found, pieces) = pieces.finish();
            prop_assert_eq!(found, length);
            let mut trained = Vec::new();
            for piece in pieces {
                prop_assert!((2..=limit).contains(&piece.input_ids.len()));
                let follows = piece.input_ids.windows(2).all(|pair| pair[1] == pair[0] + 1);
                prop_assert!(follows && !piece.loss_mask[0]);
                let of_piece = piece.input_ids.iter().zip(&piece.loss_mask).filter(|(_, trained)| **trained);
                trained.extend(of_piece.map(|(id, _)| *id));
            }
            prop_assert_eq!(trained, &whole[1..]);
        }
    }
}
