//! Locking.

use std::sync::{Mutex, MutexGuard, PoisonError};


