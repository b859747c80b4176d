//! Tokens to text, in whole characters.

use std::collections::BTreeSet;

use sparktune_data::ChatTokenizer;

/// The number of tokens before the text that are decoded with it, because some tokenizers write a token at
/// the beginning of a text without its space.
const CONTEXT: usize = 5;

/// The largest number of tokens that are held back. A character has at most four bytes, so more tokens are
/// no character.
const MOST_HELD: usize = 8;

/// The text of an answer while its tokens arrive.
#[derive(Debug, Clone)]
pub(crate) struct TextStream {
    /// The tokens that are decoded together: some whose text is known, and from `read` on those whose text is
    /// not.
    ids: Vec<u32>,
    read: usize,
}

impl TextStream {
    /// Begins an answer after a prompt.
    pub(crate) fn after(prompt: &[u32], hidden: &BTreeSet<u32>) -> Self {
        let mut ids: Vec<u32> =
            prompt.iter().rev().take(CONTEXT).copied().take_while(|id| !hidden.contains(id)).collect();
        ids.reverse();
        let read = ids.len();
        Self { ids, read }
    }

    /// Adds a token, which must not be a special one. Returns the characters that are complete with it.
    pub(crate) fn push(&mut self, token: u32, tokenizer: &ChatTokenizer) -> String {
        self.ids.push(token);
        self.take(tokenizer, self.ids.len() - self.read >= MOST_HELD)
    }

    /// Returns the rest, which is not a complete character.
    pub(crate) fn finish(&mut self, tokenizer: &ChatTokenizer) -> String {
        self.take(tokenizer, true)
    }

    fn take(&mut self, tokenizer: &ChatTokenizer, all: bool) -> String {
        if self.read == self.ids.len() {
            return String::new();
        }
        let known = tokenizer.decode(&self.ids[..self.read]);
        let whole = tokenizer.decode(&self.ids);
        if whole.ends_with(char::REPLACEMENT_CHARACTER) && !all {
            return String::new();
        }
        // The known text may end with what was no character, but is the beginning of one now.
        let common = known.chars().zip(whole.chars()).take_while(|(known, whole)| known == whole);
        let new = whole.chars().skip(common.count()).collect();
        self.ids.drain(..self.read.min(self.ids.len().saturating_sub(CONTEXT)));
        self.read = self.ids.len();
        new
    }
}
