//! Locking.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks a mutex. A request that panicked has not left it in a state that matters.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
