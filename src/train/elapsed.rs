//! Wall times as events carry them.

use std::time::Instant;

/// Returns the milliseconds since an instant, rounded to microseconds: more digits are noise and make a log
/// longer.
pub(crate) fn milliseconds(since: Instant) -> f64 {
    since.elapsed().as_micros() as f64 / 1e3
}
