//! Misses of the data translation lookaside buffer (dTLB), counted by the processor, for measurements.
//!
//! Only reads in user space count, not those of the kernel. Where a virtual machine, a container or the
//! system does not let a program count them, the error says why in words.

use std::fs;
use std::io::{Error, ErrorKind};

use perf_event::events::{Cache, CacheOp, CacheResult, WhichCache};
use perf_event::{Builder, Counter};

const READ_MISSES: Cache =
    Cache { which: WhichCache::DTLB, operation: CacheOp::READ, result: CacheResult::MISS };
/// What the kernel lets programs count. At 2 or below, a program may count its own misses.
const PARANOID: &str = "/proc/sys/kernel/perf_event_paranoid";

/// A counter of the misses of a thread and of those that it starts.
pub struct Misses {
    counter: Counter,
    last: Reading,
}

/// What the kernel says of a counter: the misses, and the nanoseconds in which they were to be counted and in
/// which they were. These differ if several programs count and the processor has too few counters.
#[derive(Clone, Copy, Default)]
struct Reading {
    count: u64,
    enabled: u64,
    running: u64,
}

impl Misses {
    /// Begins to count the misses of this thread and of all that it starts from now on.
    ///
    /// # Errors
    /// Why they cannot be counted, in words.
    pub fn count() -> Result<Self, String> {
        let mut builder = Builder::new().kind(READ_MISSES);
        builder.inherit(true).enabled(true);
        let counter = builder.build().map_err(|error| {
            let paranoid = fs::read_to_string(PARANOID).ok();
            in_words(&error, paranoid.as_deref())
        })?;
        Ok(Self { counter, last: Reading::default() })
    }

    /// Returns how many there were since this was called last, or since counting began.
    ///
    /// # Errors
    /// Why they were not counted, in words.
    pub fn since_last(&mut self) -> Result<u64, String> {
        let read = self.counter.read_count_and_time();
        let read = read.map_err(|error| format!("the counter of the processor cannot be read: {error}"))?;
        let now = Reading { count: read.count, enabled: read.time_enabled, running: read.time_running };
        let before = std::mem::replace(&mut self.last, now);
        now.since(before)
    }
}

impl Reading {
    /// Returns the misses since an earlier reading, extrapolated to the time in which they were to be
    /// counted.
    fn since(self, before: Self) -> Result<u64, String> {
        let [count, enabled, running] = [
            self.count.saturating_sub(before.count),
            self.enabled.saturating_sub(before.enabled),
            self.running.saturating_sub(before.running),
        ];
        match (enabled, running) {
            (0, _) => Ok(0),
            (_, 0) => Err("others used the counters of the processor all the time".into()),
            (enabled, running) if enabled == running => Ok(count),
            (enabled, running) => Ok((count as f64 * enabled as f64 / running as f64) as u64),
        }
    }
}

/// Says why the kernel gives no counter. `paranoid` is what it lets programs count.
fn in_words(error: &Error, paranoid: Option<&str>) -> String {
    match error.kind() {
        ErrorKind::NotFound | ErrorKind::InvalidInput => {
            "the processor has no counter of them, or the virtual machine passes none on".into()
        }
        ErrorKind::Unsupported => "the kernel has no performance counters for programs".into(),
        ErrorKind::PermissionDenied => {
            let level = paranoid.and_then(|level| level.trim().parse::<i32>().ok());
            let setting = level.filter(|level| *level > 2).map_or_else(String::new, |level| {
                format!(" (kernel.perf_event_paranoid is {level}; at 2 or below it would)")
            });
            format!("the kernel or the container does not let this process count them{setting}")
        }
        _ => format!("the kernel gives no counter of them: {error}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn misses_are_those_since_the_last_reading_extrapolated_to_the_whole_time() {
        let before = Reading { count: 100, enabled: 1_000, running: 1_000 };
        let after = |count, enabled, running| Reading { count, enabled, running }.since(before);
        assert_eq!(after(150, 2_000, 2_000), Ok(50));
        // Counted in a quarter of the time.
        assert_eq!(after(150, 5_000, 2_000), Ok(200));
        assert_eq!(after(100, 1_000, 1_000), Ok(0));
        assert!(after(100, 2_000, 1_000).unwrap_err().contains("others"));
    }

    #[test]
    fn a_refusal_says_whether_rights_or_counters_are_missing() {
        let said = |kind: ErrorKind| in_words(&kind.into(), Some("3\n"));
        assert!(
            said(ErrorKind::PermissionDenied).contains("(kernel.perf_event_paranoid is 3; at 2 or below")
        );
        // A container may refuse whatever the kernel would let programs do.
        for level in [None, Some("2\n"), Some("-1\n")] {
            assert!(!in_words(&ErrorKind::PermissionDenied.into(), level).contains('('), "{level:?}");
        }
        assert!(said(ErrorKind::NotFound).contains("virtual machine"));
        assert_eq!(said(ErrorKind::InvalidInput), said(ErrorKind::NotFound));
        assert!(said(ErrorKind::Other).contains("gives no counter"));
    }

    #[test]
    fn a_counter_counts_or_says_why_it_does_not() {
        match Misses::count() {
            Ok(mut misses) => match misses.since_last() {
                Ok(count) => assert!(count < 1 << 40, "{count}"),
                Err(why) => assert!(why.starts_with("others used"), "{why}"),
            },
            Err(why) => println!("skipped: {why}"),
        }
    }
}
