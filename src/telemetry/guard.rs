//! The thread that watches memory during training. A step may take half a minute, but a machine whose memory
//! is shared by CPU and GPU stalls within seconds, so a check between two steps would be too late.
//!
//! runlog's [`PressureWatch`] interprets the readings; this module owns the thread and the verdict.

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use sparktune_runlog::{MemoryReading, PressureWatch, Relief};

use crate::process::largest_other;
use crate::sampler::Sampler;

const EVERY: Duration = Duration::from_millis(500);

/// Watches memory until it is dropped.
#[derive(Debug)]
pub struct MemoryGuard {
    verdict: Arc<Mutex<Option<String>>>,
    /// The channel whose drop ends the thread.
    end: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl MemoryGuard {
    /// Starts to watch the memory of this machine, under this container's limit. `warn` is called on the
    /// guard's thread.
    ///
    /// # Errors
    /// The system cannot start a thread.
    pub fn start(watch: PressureWatch, warn: impl FnMut(String) + Send + 'static) -> std::io::Result<Self> {
        let mut sampler = Sampler::new();
        Self::start_with(watch, EVERY, move || sampler.memory_reading(), warn)
    }

    fn start_with(
        mut watch: PressureWatch,
        every: Duration,
        mut read: impl FnMut() -> MemoryReading + Send + 'static,
        mut warn: impl FnMut(String) + Send + 'static,
    ) -> std::io::Result<Self> {
        let verdict = Arc::new(Mutex::new(None));
        let (end, ended) = channel();
        let shared_verdict = verdict.clone();
        let started = Instant::now();
        let mut look = move || {
            let time_us = u64::try_from(started.elapsed().as_micros()).unwrap_or(u64::MAX);
            match watch.reading(&read(), time_us, largest_other) {
                Some(Relief::Warn(words)) => warn(words),
                Some(Relief::Stop(words)) => {
                    *shared_verdict.lock().unwrap_or_else(PoisonError::into_inner) = Some(words)
                }
                None => {}
            }
        };
        // The first check comes before anything is loaded, because a hopeless situation will not improve.
        look();
        let thread =
            std::thread::Builder::new().name("memory".into()).spawn(move || go_on(&ended, every, look))?;
        Ok(MemoryGuard { verdict, end: Some(end), thread: Some(thread) })
    }

    /// Returns why the run must stop, once it must.
    pub fn must_stop(&self) -> Option<String> {
        self.verdict.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

fn go_on(ended: &Receiver<()>, every: Duration, mut look: impl FnMut()) {
    while ended.recv_timeout(every) == Err(RecvTimeoutError::Timeout) {
        look();
    }
}

impl Drop for MemoryGuard {
    fn drop(&mut self) {
        self.end = None;
        if let Some(thread) = self.thread.take() {
            // A guard that panicked has already reported it.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    const GB: u64 = 1_000_000_000;

    fn reading(available_bytes: u64) -> MemoryReading {
        MemoryReading { total_bytes: 128 * GB, available_bytes, ..MemoryReading::default() }
    }

    fn wait_for<T>(mut what: impl FnMut() -> Option<T>) -> T {
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            if let Some(found) = what() {
                return found;
            }
            assert!(Instant::now() < deadline, "it never came");
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    #[test]
    fn memory_that_runs_out_becomes_a_verdict_and_the_thread_ends_with_its_owner() {
        let available = Arc::new(AtomicU64::new(60 * GB));
        let seen = available.clone();
        let watch = PressureWatch::new(12 * GB, vec!["--pack-length 128".into()]);
        let read = move || reading(seen.load(Ordering::SeqCst));
        let guard = MemoryGuard::start_with(watch, Duration::from_millis(1), read, |_| {}).unwrap();
        wait_for(|| (Arc::strong_count(&available) == 2).then_some(()));
        assert_eq!(guard.must_stop(), None);
        available.store(GB, Ordering::SeqCst);
        let words = wait_for(|| guard.must_stop());
        assert!(words.contains("1.0 GB of 128 GB") && words.contains("--pack-length 128"), "{words}");
        assert_eq!(guard.must_stop(), Some(words), "it stays");
        drop(guard);
        assert_eq!(Arc::strong_count(&available), 1, "the thread is gone, and what it owned");
    }

    #[test]
    fn the_first_look_is_before_anything_is_loaded() {
        let watch = PressureWatch::new(12 * GB, Vec::new());
        let guard = MemoryGuard::start_with(watch, Duration::from_secs(600), || reading(GB), |_| {}).unwrap();
        assert!(guard.must_stop().is_some());
    }

    #[test]
    fn this_machine_is_watched_and_not_stopped() {
        // The reserve is one byte, so this machine always has more memory left.
        let guard = MemoryGuard::start(PressureWatch::new(1, Vec::new()), |_| {}).unwrap();
        assert_eq!(guard.must_stop(), None);
        let reading = Sampler::new().memory_reading();
        assert!(reading.available_bytes > 0 && reading.available_bytes <= reading.total_bytes);
        assert!(reading.own_bytes > Some(0));
    }
}
