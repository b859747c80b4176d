//! How long the allocator of a process that trains keeps memory for itself.

/// The variable of mimalloc, in milliseconds.
const PURGE_DELAY: &str = "MIMALLOC_PURGE_DELAY";

/// Longer than a step of most runs, so that the next one finds the pages of the one before, and short enough
/// that what loading a model leaves is given back soon.
const KEPT: &str = "10000";

/// Returns the variable, with its value, with which a process that trains is to be started, unless the user
/// has set it.
///
/// Freed tensors come back in the next layer. An allocator that gives their pages back at once has the system
/// clear them again, which takes a fifth of a step on the CPU (`src/bench/README.md`).
pub fn kept_pages() -> Option<(&'static str, &'static str)> {
    std::env::var_os(PURGE_DELAY).is_none().then_some((PURGE_DELAY, KEPT))
}
