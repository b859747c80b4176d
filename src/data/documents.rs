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
use crate::tokens::Tokens;

/// The largest number of tokens of a piece of raw text if the user gives no limit. The limit of a model is
/// far more than one computes on at once, and that of a conversation, which should not be cut.
pub(crate) const PIECE_TOKENS: u32 = 4096;

impl ChatTokenizer {
    /// Returns the tokens of a document or of a section of one. A section that continues a document begins
    /// with the last token before it.
    pub(crate) fn encode_document(&self, document: &Document<'_>) -> Result<Tokens, Rejection> {
        let around = self.around_text();
        let mut input_ids = Vec::new();
        if document.before.is_empty() {
            input_ids.extend_from_slice(&around.before);
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
            let ids =
                if known.is_empty() { self.encode(part)? } else { self.encode(&format!("{before}{part}"))? };
            let shared = known.iter().zip(&ids).take_while(|(a, b)| a == b).count();
            if std::mem::take(&mut is_first) {
                input_ids.extend(known.last());
            }
            input_ids.extend_from_slice(&ids[shared..]);
            before = Cow::Borrowed(&part[part.floor_char_boundary(tail(part.as_bytes()))..]);
            rest = after;
        }
        if !document.goes_on {
            input_ids.extend_from_slice(&around.after);
            input_ids.extend(around.end.filter(|end| input_ids.last() != Some(end)));
        }
        let loss_mask: Vec<bool> = (0..input_ids.len()).map(|i| i > 0).collect();
        let tokens = Tokens { input_ids, loss_mask };
        if tokens.target_count() == 0 {
            return Err(Rejection::new(
                Kind::NothingToTrain,
                "text",
                "none of its tokens would be trained, because there is only one",
                "Remove the document, or give it more text",
            ));
        }
        Ok(tokens)
    }
}

impl Tokens {
    /// Cuts the tokens into pieces of at most `limit`, each of which begins with the last token of the one
    /// before it. That token is trained in the piece that it ends.
    pub(crate) fn pieces(self, limit: usize) -> Vec<Self> {
        // A piece of one token would have nothing to train.
        let limit = limit.max(2);
        let mut pieces = Vec::new();
        let mut start = 0;
        while start + 1 < self.input_ids.len() {
            let end = self.input_ids.len().min(start + limit);
            let mut loss_mask = self.loss_mask[start..end].to_vec();
            loss_mask[0] = false;
            pieces.push(Self { input_ids: self.input_ids[start..end].to_vec(), loss_mask });
            start = end - 1;
        }
        pieces
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn pieces_train_every_token_of_a_document_exactly_once(length in 2usize..200, limit in 2usize..50) {
            let input_ids: Vec<u32> = (0..length as u32).collect();
            let whole = Tokens { loss_mask: input_ids.iter().map(|id| *id > 0).collect(), input_ids };
            let mut trained = Vec::new();
            for piece in whole.clone().pieces(limit) {
                prop_assert!((2..=limit).contains(&piece.input_ids.len()));
                let follows = piece.input_ids.windows(2).all(|pair| pair[1] == pair[0] + 1);
                prop_assert!(follows && !piece.loss_mask[0]);
                let of_piece = piece.input_ids.iter().zip(&piece.loss_mask).filter(|(_, trained)| **trained);
                trained.extend(of_piece.map(|(id, _)| *id));
            }
            prop_assert_eq!(trained, &whole.input_ids[1..]);
        }
    }
}
