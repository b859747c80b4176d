//! Merges the bytes of a word into tokens as byte-level BPE does.
//!
//! A word is a list of at most some dozens of bytes, so the pair with the lowest rank is found by looking at
//! all pairs: that needs no queue and no memory of its own.

use std::borrow::Cow;
use std::collections::HashMap;

use serde::Deserialize;
use tokenizers::models::bpe::BPE;

/// The merges of a vocabulary.
pub(crate) struct WordMerges {
    /// The rank of a pair of ids, and the id that they merge into.
    pairs: HashMap<(u32, u32), (u32, u32), foldhash::fast::RandomState>,
    byte_ids: [u32; 256],
    /// The ids of whole words that are taken before anything is merged. Empty if there are none.
    whole_words: HashMap<Box<[u8]>, u32, foldhash::fast::RandomState>,
    /// The number of bytes of each id.
    bytes: Vec<u32>,
}

/// The largest number of ids without a token in a vocabulary whose merges are read.
const LARGEST_GAP: usize = 1 << 20;

/// What the crate `tokenizers` writes about a model.
#[derive(Deserialize)]
struct Written<'a> {
    #[serde(borrow)]
    merges: Vec<(Cow<'a, str>, Cow<'a, str>)>,
}

impl WordMerges {
    /// Reads the merges of a model in which `chars` stand for bytes. Returns `None` if a token is not
    /// made of them.
    pub(crate) fn new(model: &BPE, chars: &[char; 256]) -> Option<Self> {
        let vocabulary = model.get_vocab();
        // The crate visits every id up to the largest one when it writes a model.
        if vocabulary.values().max().is_none_or(|id| *id as usize > vocabulary.len() + LARGEST_GAP) {
            return None;
        }
        let json = serde_json::to_string(model).ok()?;
        let Written { merges } = serde_json::from_str(&json).ok()?;
        let mut pairs =
            HashMap::with_capacity_and_hasher(merges.len(), foldhash::fast::RandomState::default());
        let mut merged = String::new();
        for (rank, (left, right)) in merges.iter().enumerate() {
            merged.clear();
            merged.push_str(left);
            merged.push_str(right);
            let id = |token: &str| vocabulary.get(token).copied();
            pairs.insert((id(left)?, id(right)?), (rank as u32, id(&merged)?));
        }
        let mut byte_ids = [0; 256];
        for (id, c) in byte_ids.iter_mut().zip(chars) {
            *id = *vocabulary.get(c.encode_utf8(&mut [0; 4]) as &str)?;
        }
        let mut bytes = vec![0; vocabulary.values().max().map_or(0, |id| *id as usize + 1)];
        let mut whole_words = HashMap::default();
        for (token, id) in &vocabulary {
            bytes[*id as usize] = token.chars().count() as u32;
            // Tokens of other characters are not made of bytes, and no word is one of them.
            let byte = |c: char| chars.iter().position(|byte| *byte == c).map(|byte| byte as u8);
            if model.ignore_merges
                && let Some(word) = token.chars().map(byte).collect::<Option<Box<[u8]>>>()
            {
                whole_words.insert(word, *id);
            }
        }
        Some(Self { pairs, byte_ids, whole_words, bytes })
    }

    /// Returns the number of bytes of a token.
    pub(crate) fn bytes_of(&self, id: u32) -> u32 {
        self.bytes[id as usize]
    }

    /// Replaces the content of `ids` by the tokens of a word.
    pub(crate) fn merge(&self, word: &[u8], ids: &mut Vec<u32>) {
        ids.clear();
        if let Some(id) = self.whole_words.get(word) {
            ids.push(*id);
            return;
        }
        ids.extend(word.iter().map(|byte| self.byte_ids[usize::from(*byte)]));
        // The leftmost pair of the lowest rank comes first.
        while let Some((_, at, merged)) = ids
            .windows(2)
            .enumerate()
            .filter_map(|(at, pair)| self.pairs.get(&(pair[0], pair[1])).map(|(rank, id)| (*rank, at, *id)))
            .min()
        {
            ids[at] = merged;
            ids.remove(at + 1);
        }
    }
}
