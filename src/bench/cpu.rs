//! Processor time of this process, from `/proc`.

use std::fs;

/// Ticks of `/proc/self/stat` in a second: `USER_HZ`, which is 100 on every architecture that Linux has
/// today.
const TICKS_PER_SECOND: f64 = 100.0;

/// Seconds that all threads of this process have been on a processor, user and system time together.
pub(crate) fn process_cpu_seconds() -> Option<f64> {
    ticks(&fs::read_to_string("/proc/self/stat").ok()?).map(|ticks| ticks as f64 / TICKS_PER_SECOND)
}

/// Seconds that this thread has been on a processor. The kernel counts it at its ticks and when it
/// switches threads, so it is exact to some milliseconds.
pub(crate) fn thread_cpu_seconds() -> Option<f64> {
    let text = fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    text.split_whitespace().next()?.parse::<u64>().ok().map(|nanoseconds| nanoseconds as f64 / 1e9)
}

/// `utime + stime`: fields 14 and 15, of which the second, the program's name in parentheses, may hold
/// spaces.
fn ticks(stat: &str) -> Option<u64> {
    let (_, after_name) = stat.rsplit_once(')')?;
    let mut fields = after_name.split_whitespace().skip(11);
    let mut next = || fields.next()?.parse::<u64>().ok();
    Some(next()? + next()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn user_and_system_time_are_added_whatever_the_program_is_called() {
        let stat = "77 (a (strange) name) S 1 77 77 0 -1 4194560 1 2 3 4 1500 250 8 9 20 0 4 0";
        assert_eq!(ticks(stat), Some(1750));
        assert_eq!(ticks("nonsense"), None);
    }
}
