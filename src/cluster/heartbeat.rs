//! Heartbeats: a connection of its own between every two ranks, so that neither gradients on their way nor a
//! full buffer can make a rank that lives look silent.
//!
//! The rank with the higher number asks and the other answers, twice a second. Latencies are the time from a
//! question to its answer by the monotonic clock of the rank that asks, smoothed; it tells them with the next
//! question, so that both know them. No clock is compared with another machine's.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::Builder;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use sparktune_ndp::stream::Channel;

use crate::link::LastHeard;

/// The pause between an answer and the next question.
const PAUSE: Duration = Duration::from_millis(500);
/// The share of the newest latency in the average, as in TCP's estimate of round trips: one eighth.
const WEIGHT: u32 = 8;

/// What is said on the connection.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) enum Beat {
    /// A question, with the latency of those before.
    Ping { number: u64, latency_us: Option<u64> },
    /// The answer to the question with this number.
    Pong { number: u64 },
}

/// The smoothed latency of each other rank.
#[derive(Clone, Default)]
pub(crate) struct Latencies {
    of: Arc<Mutex<BTreeMap<usize, Duration>>>,
}

impl Latencies {
    fn set(&self, rank: usize, latency: Duration) {
        self.of.lock().unwrap_or_else(PoisonError::into_inner).insert(rank, latency);
    }

    /// Returns the latency of a rank, if it was measured.
    pub(crate) fn of(&self, rank: usize) -> Option<Duration> {
        self.of.lock().unwrap_or_else(PoisonError::into_inner).get(&rank).copied()
    }
}

/// Returns the average with a newer latency.
fn smoothed(before: Option<Duration>, newest: Duration) -> Duration {
    before.map_or(newest, |before| before - before / WEIGHT + newest / WEIGHT)
}

/// Asks a rank, until the connection ends.
pub(crate) fn ask(
    rank: usize,
    mut channel: Channel<'static>,
    heard: LastHeard,
    latencies: Latencies,
) -> io::Result<()> {
    let asks = move || {
        let mut latency = None;
        for number in 0.. {
            let asked = Instant::now();
            let latency_us = latency.and_then(|of: Duration| u64::try_from(of.as_micros()).ok());
            let answer =
                channel.tell(&Beat::Ping { number, latency_us }).and_then(|()| channel.hear::<Beat>());
            if !matches!(answer, Ok(Beat::Pong { number: of }) if of == number) {
                return;
            }
            heard.note(rank);
            let newest = smoothed(latency, asked.elapsed());
            latencies.set(rank, newest);
            latency = Some(newest);
            std::thread::sleep(PAUSE);
        }
    };
    Builder::new().name(format!("beats of {rank}")).spawn(asks).map(drop)
}

/// Answers a rank, until the connection ends.
pub(crate) fn answer(
    rank: usize,
    mut channel: Channel<'static>,
    heard: LastHeard,
    latencies: Latencies,
) -> io::Result<()> {
    let answers = move || {
        while let Ok(Beat::Ping { number, latency_us }) = channel.hear() {
            heard.note(rank);
            if let Some(latency) = latency_us {
                latencies.set(rank, Duration::from_micros(latency));
            }
            if channel.tell(&Beat::Pong { number }).is_err() {
                return;
            }
        }
    };
    Builder::new().name(format!("beats of {rank}")).spawn(answers).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_latency_follows_new_ones_slowly_and_one_late_answer_hardly_shows() {
        let [ms, late] = [Duration::from_millis(1), Duration::from_millis(801)];
        assert_eq!(smoothed(None, ms), ms);
        assert_eq!(smoothed(Some(ms), ms), ms);
        assert_eq!(smoothed(Some(ms), late), Duration::from_millis(101));
        let long = (0..40).fold(ms, |average, _| smoothed(Some(average), late));
        assert!(long > Duration::from_millis(790) && long <= late, "{long:?}");
    }
}
