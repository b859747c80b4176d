//! The memory that the columns of a file share.
//!
//! Pages and dictionaries of all columns are in memory at the same time, and what they need is only known
//! when their headers are read. Each takes its bytes from one budget before it is read, and gives them back
//! when it is dropped.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The bytes of pages and dictionaries that may be in memory at once. Writers make pages of about a megabyte,
/// some of a hundred.
const BYTES: usize = 1 << 30;

/// The bytes that are left.
#[derive(Debug, Clone)]
pub(super) struct Budget(Arc<AtomicUsize>);

/// Bytes that were taken from a budget.
#[derive(Debug)]
pub(super) struct Held {
    budget: Budget,
    bytes: usize,
}

impl Budget {
    pub(super) fn new() -> Self {
        Self(Arc::new(AtomicUsize::new(BYTES)))
    }

    /// Takes so many bytes. Returns `None` if fewer are left.
    pub(super) fn take(&self, bytes: usize) -> Option<Held> {
        let less = |left: usize| left.checked_sub(bytes);
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).ok()?;
        Some(Held { budget: self.clone(), bytes })
    }
}

impl Held {
    /// Returns the budget that the bytes were taken from.
    pub(super) fn budget(&self) -> &Budget {
        &self.budget
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.budget.0.fetch_add(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_one_column_holds_another_lacks_until_it_is_dropped() {
        let budget = Budget::new();
        let first = budget.take(BYTES - 10).unwrap();
        assert!(budget.take(11).is_none());
        let second = budget.take(10).unwrap();
        drop(first);
        assert!(budget.take(BYTES - 10).is_some());
        drop(second);
        assert!(budget.take(BYTES + 1).is_none());
    }
}
