//! Remembers the tokens of words that occurred.
//!
//! Most words of a text are short, few and made of up to three tokens. They are kept in a table of fixed
//! size whose entries fill half a cache line, and a word is compared as one number. The other words are
//! in a map.

use std::collections::HashMap;

/// The length in bytes above which a word is not in the table.
const SHORT: usize = 15;
/// The length in bytes above which words are not cached.
pub(crate) const LONGEST_WORD: usize = 64;
/// The number of entries of the table, a power of two: two megabytes.
const SLOTS: usize = 1 << 16;
/// The number of words at which the map is cleared.
const MOST_WORDS: usize = 1 << 17;

/// The tokens of a word in the table.
#[derive(Clone, Copy, Default)]
#[repr(C, align(32))]
struct Slot {
    /// The bytes of the word and, in the highest byte, their number; 0 for a free slot.
    key: u128,
    ids: [u32; 3],
    count: u32,
}

/// The words that one thread has seen.
pub(crate) struct WordCache {
    table: Box<[Slot]>,
    words: HashMap<Box<[u8]>, (u32, u32), foldhash::fast::RandomState>,
    /// The tokens of the words in the map.
    ids: Vec<u32>,
}

/// A word as a number, if it is short.
#[derive(Clone, Copy)]
struct Key(u128);

impl Key {
    /// Reads the word `text[at..end]`, which is not empty.
    #[inline]
    fn of(text: &[u8], at: usize, end: usize) -> Option<Self> {
        let len = end - at;
        if len > SHORT {
            return None;
        }
        let bytes = match text.get(at..at + 16) {
            // What follows the word in the text is masked out.
            Some(bytes) => {
                u128::from_le_bytes(bytes.try_into().expect("16 bytes")) & (u128::MAX >> (8 * (16 - len)))
            }
            None => {
                let mut bytes = [0; 16];
                bytes[..len].copy_from_slice(&text[at..end]);
                u128::from_le_bytes(bytes)
            }
        };
        Some(Self(bytes | (len as u128) << 120))
    }

    /// Returns the first of the two slots in which the word may be.
    #[inline]
    fn slot(self) -> usize {
        let (low, high) = (self.0 as u64, (self.0 >> 64) as u64);
        let product = u128::from(low ^ 0x9E37_79B9_7F4A_7C15) * u128::from(high ^ 0xD6E8_FEB8_6659_FD93);
        let hash = (product >> 64) as u64 ^ product as u64;
        (hash as usize % SLOTS) & !1
    }
}

impl WordCache {
    pub(crate) fn new() -> Self {
        Self { table: vec![Slot::default(); SLOTS].into(), words: HashMap::default(), ids: Vec::new() }
    }

    /// Returns the tokens of the word `text[at..end]`, if they are known.
    #[inline]
    pub(crate) fn get(&self, text: &[u8], at: usize, end: usize) -> Option<&[u32]> {
        if let Some(key) = Key::of(text, at, end) {
            let slot = key.slot();
            let found = self.table[slot..slot + 2].iter().find(|slot| slot.key == key.0);
            if let Some(slot) = found {
                return slot.ids.get(..slot.count as usize);
            }
        }
        let (from, count) = *self.words.get(&text[at..end])?;
        self.ids.get(from as usize..(from + count) as usize)
    }

    /// Remembers the tokens of the word `text[at..end]`, unless it is too long.
    pub(crate) fn insert(&mut self, text: &[u8], at: usize, end: usize, ids: &[u32]) {
        if let Some(key) = Key::of(text, at, end).filter(|_| ids.len() <= 3) {
            let slot = key.slot();
            let mut of_word = Slot { key: key.0, count: ids.len() as u32, ..Slot::default() };
            of_word.ids[..ids.len()].copy_from_slice(ids);
            // The newest word is looked up first, and the oldest of the two is forgotten.
            self.table[slot + 1] = self.table[slot];
            self.table[slot] = of_word;
        } else if end - at <= LONGEST_WORD {
            if self.words.len() == MOST_WORDS {
                self.words.clear();
                self.ids.clear();
            }
            self.words.insert(text[at..end].into(), (self.ids.len() as u32, ids.len() as u32));
            self.ids.extend_from_slice(ids);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn what_is_found_is_what_was_remembered_last(
            words in prop::collection::vec(("[ab\u{0}]{1,3}|[a-z]{1,70}", prop::collection::vec(any::<u32>(), 1..6)), 1..60),
            around in "[a-z]{0,20}",
        ) {
            let mut cache = WordCache::new();
            let mut known: HashMap<&str, &[u32]> = HashMap::new();
            for (word, ids) in &words {
                let before = format!("{around}{word}{around}");
                let (at, end) = (around.len(), around.len() + word.len());
                if cache.get(before.as_bytes(), at, end).is_none() {
                    cache.insert(before.as_bytes(), at, end, ids);
                    known.insert(word, ids);
                }
            }
            for (word, ids) in known {
                let found = cache.get(word.as_bytes(), 0, word.len());
                prop_assert!(found.is_none_or(|found| found == ids), "{word}");
                prop_assert!(word.len() > LONGEST_WORD || words.len() > 2 || found.is_some());
            }
        }
    }
}
