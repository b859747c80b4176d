//! Bounds the tokens that wait for their turn to be counted and written.
//!
//! Lines are worked on by all threads, and what is found is folded in the order of the lines. A short line
//! can have very many tokens, so a few such lines next to each other could otherwise take all memory.

use std::sync::atomic::{AtomicUsize, Ordering};

/// The number of bytes of tokens that may wait. A line with more of them waits alone.
const MOST_BYTES: usize = 64 << 20;

/// The bytes of the tokens that wait, or are being made.
#[derive(Debug, Default)]
pub(crate) struct Held(AtomicUsize);

impl Held {
    /// Takes room for so many bytes. Returns whether there was enough. If `is_next`, there always is: nothing
    /// has to be folded before them, so nothing else would ever make room.
    pub(crate) fn take(&self, bytes: usize, is_next: bool) -> bool {
        let before = self.0.fetch_add(bytes, Ordering::Relaxed);
        let has_room = is_next || before.saturating_add(bytes) <= MOST_BYTES;
        if !has_room {
            self.give_back(bytes);
        }
        has_room
    }

    /// Gives back so many bytes.
    pub(crate) fn give_back(&self, bytes: usize) {
        self.0.fetch_sub(bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_next_gets_more_room_than_there_is() {
        let held = Held::default();
        assert!(held.take(MOST_BYTES, false) && !held.take(1, false));
        assert!(held.take(5 * MOST_BYTES, true));
        held.give_back(5 * MOST_BYTES);
        assert!(!held.take(1, false), "what was refused left something");
        held.give_back(MOST_BYTES);
        assert!(held.take(1, false));
    }
}
