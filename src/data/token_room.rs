//! Bounds the tokens that wait for their turn to be counted and written.
//!
//! Lines are worked on by all threads, and what is found is folded in the order of the lines. A short line
//! can have very many tokens, so a few such lines next to each other could otherwise take all memory.

use std::sync::atomic::{AtomicUsize, Ordering};

/// The room in bytes, and what is added to it for each thread.
const BYTES: usize = 64 << 20;
const FOR_EACH_THREAD: usize = 8 << 20;

/// The room for tokens that wait or are being made.
#[derive(Debug)]
pub(crate) struct TokenRoom {
    /// The bytes that are taken.
    taken: AtomicUsize,
    most: usize,
}

impl TokenRoom {
    /// Creates the room for the threads of the current rayon pool.
    pub(crate) fn new() -> Self {
        Self::of(BYTES + FOR_EACH_THREAD * rayon::current_num_threads())
    }

    /// Creates a room of so many bytes.
    pub(crate) fn of(most: usize) -> Self {
        Self { taken: AtomicUsize::new(0), most }
    }

    /// Takes so many bytes. Returns whether there were enough. If `is_next`, there always are: nothing has to
    /// be folded before them, so nothing else would ever make room.
    pub(crate) fn take(&self, bytes: usize, is_next: bool) -> bool {
        let enough = |taken: usize| {
            let then = taken.saturating_add(bytes);
            (is_next || then <= self.most).then_some(then)
        };
        self.taken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, enough).is_ok()
    }

    /// Changes what was taken for tokens to what they take.
    pub(crate) fn change(&self, from: usize, to: usize) {
        match to.checked_sub(from) {
            Some(more) => self.taken.fetch_add(more, Ordering::Relaxed),
            None => self.taken.fetch_sub(from - to, Ordering::Relaxed),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_next_gets_more_room_than_there_is() {
        let room = TokenRoom::of(100);
        assert!(room.take(100, false) && !room.take(1, false));
        assert!(room.take(500, true));
        room.change(500, 0);
        assert!(!room.take(1, false));
        room.change(100, 40);
        assert!(room.take(60, false), "what was refused left something");
        room.change(100, 120);
        room.change(120, 0);
        assert!(room.take(100, false));
    }
}
