//! The clocks of the run folder: the time of day, which people and programs set, and the time since the
//! machine was started, which nobody does.

use std::fs;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

/// What the kernel names this start of the machine by.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";
/// The seconds since then, also those in which the machine slept, before a space.
const UPTIME: &str = "/proc/uptime";
/// Less than this between two clocks is no sleep: the seconds above have two digits behind the point.
const SLEEP: Duration = Duration::from_millis(100);

/// Returns the microseconds since the Unix epoch, the time of every event and request.
pub fn now_us() -> u64 {
    std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(0, |since| u64::try_from(since.as_micros()).unwrap_or(u64::MAX))
}

/// An instant by the clock of one start of a machine.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SinceBoot {
    /// The name of this start of the machine; empty if it is unknown.
    pub boot_id: String,
    /// The microseconds since then.
    pub us: u64,
}

impl SinceBoot {
    pub(crate) fn now() -> Self {
        let Some(up) = uptime() else { return Self::default() };
        let boot_id = fs::read_to_string(BOOT_ID).map(|id| id.trim().to_owned()).unwrap_or_default();
        Self { boot_id, us: us(up) }
    }

    /// Returns the microseconds from this instant to `later`, unless that is on another machine or after
    /// another start.
    pub(crate) fn us_until(&self, later: &Self) -> Option<u64> {
        let is_same = !self.boot_id.is_empty() && self.boot_id == later.boot_id;
        is_same.then(|| later.us.saturating_sub(self.us))
    }
}

/// Returns the time since the machine was started, also that in which it slept.
fn uptime() -> Option<Duration> {
    let uptime = fs::read_to_string(UPTIME).ok()?;
    let seconds = uptime.split(' ').next()?.parse().ok()?;
    Duration::try_from_secs_f64(seconds).ok()
}

fn us(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

/// The clock of an attempt's events. It shows the time of day, follows it when it is set forward, and goes on
/// as if nothing had happened when it is set back: the times never decrease, and the steps between keep their
/// length.
#[derive(Debug)]
pub(crate) struct EventClock {
    began: Instant,
    /// The time since the machine was started, at that instant.
    uptime: Option<Duration>,
    /// How long the machine has slept since, which an [`Instant`] does not count.
    asleep: Duration,
    /// The time of day at that instant, in microseconds since the Unix epoch.
    began_us: u64,
}

impl EventClock {
    pub(crate) fn new() -> Self {
        Self { began: Instant::now(), uptime: uptime(), asleep: Duration::ZERO, began_us: now_us() }
    }

    pub(crate) fn now_us(&mut self) -> u64 {
        let day_us = now_us();
        let since = self.since(self.began.elapsed(), uptime());
        self.time_at(day_us, us(since))
    }

    /// Returns the time since the beginning: that in which the machine was `awake`, and that in which it
    /// slept, `uptime` after its start.
    fn since(&mut self, awake: Duration, uptime: Option<Duration>) -> Duration {
        if let (Some(began), Some(now)) = (self.uptime, uptime) {
            let asleep = now.saturating_sub(began).saturating_sub(awake);
            if asleep > self.asleep + SLEEP {
                self.asleep = asleep;
            }
        }
        awake + self.asleep
    }

    /// Returns the time of an event: `day_us` since the epoch by the machine's clock, `since_us` after the
    /// beginning.
    fn time_at(&mut self, day_us: u64, since_us: u64) -> u64 {
        self.began_us = self.began_us.max(day_us.saturating_sub(since_us));
        self.began_us.saturating_add(since_us)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_keep_their_distance_when_the_clock_is_set_back_and_follow_it_forward() {
        let mut clock = EventClock { began_us: 0, ..EventClock::new() };
        assert_eq!(clock.time_at(9_000, 100), 9_000);
        assert_eq!(clock.time_at(9_050, 150), 9_050);
        assert_eq!(clock.time_at(2_000, 200), 9_100, "set back");
        assert_eq!(clock.time_at(2_100, 300), 9_200, "and still");
        assert_eq!(clock.time_at(20_000, 350), 20_000, "set forward");
        assert_eq!(clock.time_at(2_200, 400), 20_050);
    }

    #[test]
    fn the_sleep_of_the_machine_counts_and_the_coarseness_of_its_clock_does_not() {
        let ms = Duration::from_millis;
        let mut clock = EventClock { uptime: Some(ms(5_000)), ..EventClock::new() };
        assert_eq!(clock.since(ms(1_000), Some(ms(6_010))), ms(1_000));
        assert_eq!(clock.since(ms(2_000), Some(ms(67_000))), ms(62_000), "60 s of sleep");
        assert_eq!(clock.since(ms(2_005), Some(ms(67_010))), ms(62_005));
        assert_eq!(clock.since(ms(3_000), None), ms(63_000));
        assert_eq!(clock.since(ms(4_000), Some(ms(79_000))), ms(74_000), "10 s more");
    }

    #[test]
    fn only_instants_of_the_same_start_of_a_machine_are_compared() {
        let at = |boot_id: &str, us| SinceBoot { boot_id: boot_id.into(), us };
        assert_eq!(at("a", 5).us_until(&at("a", 12)), Some(7));
        assert_eq!(at("a", 5).us_until(&at("b", 12)), None);
        assert_eq!(at("", 5).us_until(&at("", 12)), None, "neither is known");
        let (one, next) = (SinceBoot::now(), SinceBoot::now());
        assert!(one.us > 0 && one.us_until(&next).is_some(), "{one:?} {next:?}");
    }
}
