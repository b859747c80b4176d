//! Samples the first GPU while steps run: its SM clock, and the share of time with a kernel running.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use sparktune_telemetry::Sampler;

use crate::median::median;

/// The time between two samples. The driver measures the busy share over a sixth of a second or more.
const EVERY: Duration = Duration::from_millis(100);

/// The medians of the samples; `None` where the driver reports nothing.
#[derive(Debug, Default)]
pub(super) struct Watched {
    pub(super) sm_clock_mhz: Option<f64>,
    pub(super) busy_percent: Option<f64>,
}

/// Calls `f` and samples the GPU meanwhile, on a thread of its own.
pub(super) fn watched<T>(f: impl FnOnce() -> T) -> (T, Watched) {
    let done = Arc::new(AtomicBool::new(false));
    let seen = done.clone();
    let thread = std::thread::spawn(move || {
        let mut sampler = Sampler::new();
        let (mut clocks, mut shares) = (Vec::new(), Vec::new());
        while !seen.load(Ordering::Relaxed) {
            if let Some(gpu) = sampler.sample().gpus.into_iter().next() {
                clocks.extend(gpu.sm_clock_mhz.map(f64::from));
                shares.extend(gpu.busy_percent.map(f64::from));
            }
            std::thread::sleep(EVERY);
        }
        let middle = |samples: Vec<f64>| (!samples.is_empty()).then(|| median(samples));
        Watched { sm_clock_mhz: middle(clocks), busy_percent: middle(shares) }
    });
    let result = f();
    done.store(true, Ordering::Relaxed);
    (result, thread.join().unwrap_or_default())
}
