//! How far apart the wall clocks of two machines are. Monotonic clocks begin at a different instant on each
//! machine, and are never compared.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use sparktune_base::units::milliseconds;

use super::line::{Line, Verdict};

/// The difference, in microseconds, above which a clock is noted.
const APART_US: u64 = 1_000_000;

/// How far another machine's wall clock is ahead of this machine's, as one exchange shows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClockOffset {
    /// The estimate in microseconds: the other machine is taken to have answered in the middle.
    pub ahead_us: i64,
    /// By how much it may be wrong, because the answer may have been written at any time during the exchange.
    pub error_us: u64,
}

impl ClockOffset {
    /// Estimates it: this machine asked at `asked_us` by its clock, and had the answer after `exchange`; the
    /// other one answered at `answered_us` by its own clock.
    pub fn estimate(asked_us: u64, answered_us: u64, exchange: Duration) -> Self {
        let signed = |us: u64| i64::try_from(us).unwrap_or(i64::MAX);
        let error_us = u64::try_from(exchange.as_micros() / 2).unwrap_or(u64::MAX);
        let ahead_us = signed(answered_us) - signed(asked_us.saturating_add(error_us));
        Self { ahead_us, error_us }
    }

    /// Returns the line about the clock of the member of this name.
    pub fn line(self, name: &str) -> Line {
        let in_words = |us: u64| milliseconds(us as f64 / 1e3);
        let apart_us = self.ahead_us.unsigned_abs();
        let side = if self.ahead_us < 0 { "behind" } else { "ahead of" };
        let found = format!(
            "{} {side} this machine, ± {}, estimated from one exchange",
            in_words(apart_us),
            in_words(self.error_us)
        );
        let what = format!("wall clock of {name}");
        if apart_us > self.error_us.saturating_add(APART_US) {
            return Line::new(&what, Verdict::Note, found).advice(
                "Training compares no wall clocks, but the times in the logs of these machines do not match. Run `timedatectl set-ntp true` on both, so that the network sets their clocks",
            );
        }
        let verdict = if self.error_us > APART_US { Verdict::Unknown } else { Verdict::Ok };
        Line::new(&what, verdict, found)
    }
}

/// Returns the microseconds since the Unix epoch by the wall clock of this machine.
pub(crate) fn now_us() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clocks_are_compared_up_to_half_of_the_exchange() {
        let of = |asked_us, answered_us, ms| {
            ClockOffset::estimate(asked_us, answered_us, Duration::from_millis(ms))
        };
        assert_eq!(of(5_000_000, 5_010_000, 20), ClockOffset { ahead_us: 0, error_us: 10_000 });
        let line = of(5_000_000, 5_011_000, 20).line("spark2");
        assert_eq!((line.what.as_str(), line.verdict), ("wall clock of spark2", Verdict::Ok));
        assert_eq!(line.found, "1.0 ms ahead of this machine, ± 10 ms, estimated from one exchange");
        let line = of(9_000_000, 5_010_000, 20).line("spark2");
        assert_eq!(line.verdict, Verdict::Note);
        assert!(line.found.starts_with("4.00 s behind") && line.advice.is_some(), "{line:?}");
        let line = of(5_000_000, 5_000_000, 6_000).line("spark2");
        assert_eq!(line.verdict, Verdict::Unknown, "the answer may have been written three seconds ago");
        for (asked_us, answered_us) in [(0, u64::MAX), (u64::MAX, 0)] {
            assert_eq!(of(asked_us, answered_us, 0).line("spark2").verdict, Verdict::Note);
        }
    }
}
