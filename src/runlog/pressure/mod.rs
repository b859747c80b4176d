//! Detects that memory is about to run out during a run. If CPU and GPU share memory, the kernel does not
//! simply kill one process: the machine swaps, all programs wait, and logging in becomes impossible.
//! Therefore the run ends itself while there is still memory to write a checkpoint.
//!
//! Enters: readings of memory, about twice a second, and the plan's reserve. Leaves: a warning when memory
//! has become tight and a note when it is sufficient again, and at most once the verdict that the run must
//! stop, with the figures. Pure; the times are those of the readings.
//!
//! A single bad reading counts only at the very end, because an optimizer step or a checkpoint takes memory
//! for a moment. Values that were not measured do not count.

use sparktune_base::units;

/// The shares of the reserve that are left when memory is tight, when the run stops after [`CRITICAL_US`],
/// and when it stops at once. The reserve includes the program itself and its driver, so a run that fits
/// exactly uses most of it.
const TIGHT: f64 = 0.75;
const CRITICAL: f64 = 0.375;
const LAST: f64 = 0.125;
/// The share of the reserve above which memory is sufficient again, with hardly any waiting, for a minute.
const ROOMY: f64 = 1.0;
const ROOMY_US: u64 = 60_000_000;
const TIGHT_US: u64 = 5_000_000;
const CRITICAL_US: u64 = 2_000_000;
/// The share of the last 10 s in which all programs waited for memory, in percent, that counts while memory
/// is tight.
const STALLED_PERCENT: f64 = 10.0;
const STALLED_US: u64 = 5_000_000;
/// The share of the last 10 s in which some program waited, in percent, that causes a warning independent of
/// free memory.
const WAITING_PERCENT: f64 = 25.0;
const WAITING_US: u64 = 10_000_000;
const CALM_PERCENT: f64 = 5.0;
/// The growth of swap in use, as a share of the reserve, that counts while memory is tight.
const SWAPPED: f64 = 0.5;

/// One reading of memory. Values that could not be measured are absent.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct MemoryReading {
    /// The physical memory, or the container's limit if that is lower, in bytes.
    pub total_bytes: u64,
    /// Memory that can still be allocated without swapping, under that limit.
    pub available_bytes: u64,
    /// Whether CPU and GPU share this memory.
    pub unified: bool,
    /// Swap in use.
    pub swap_used_bytes: Option<u64>,
    /// Percent of the last 10 s in which some task waited for memory (PSI).
    pub some_percent: Option<f64>,
    /// Percent of the last 10 s in which all tasks waited for memory (PSI).
    pub full_percent: Option<f64>,
    /// Resident memory of this process.
    pub own_bytes: Option<u64>,
}

/// Another program that uses memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemoryUser {
    /// The name, which is untrusted and has to be escaped for a terminal.
    pub name: String,
    /// The process id.
    pub pid: u32,
    /// The resident memory in bytes.
    pub bytes: u64,
}

/// The action that a reading requires.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Relief {
    /// Log this warning and continue.
    Warn(String),
    /// Commit a checkpoint and end the run for this reason.
    Stop(String),
}

/// Watches the memory of one attempt.
#[derive(Debug, Clone, Default)]
pub struct PressureWatch {
    reserve: f64,
    lighter: Vec<String>,
    tight: Since,
    critical: Since,
    stalled: Since,
    swapped: Since,
    waiting: Since,
    roomy: Since,
    /// The lowest swap in use so far.
    swap_bytes: Option<u64>,
    warned: bool,
    stopped: bool,
}

impl PressureWatch {
    /// Creates a watch at the beginning of an attempt. `reserve_bytes` is the plan's reserve; `lighter` lists
    /// settings with which a new run would need less memory.
    pub fn new(reserve_bytes: u64, lighter: Vec<String>) -> Self {
        let reserve = reserve_bytes as f64;
        PressureWatch { reserve, lighter, ..PressureWatch::default() }
    }

    /// Takes a reading of this time. `largest` finds the largest other program and is only called when the
    /// result contains it.
    pub fn reading(
        &mut self,
        reading: &MemoryReading,
        time_us: u64,
        largest: impl FnOnce() -> Option<MemoryUser>,
    ) -> Option<Relief> {
        if self.stopped {
            return None;
        }
        let left = reading.available_bytes as f64 / self.reserve.max(1.0);
        let lowest = self.swap_bytes.into_iter().chain(reading.swap_used_bytes).min();
        self.swap_bytes = lowest;
        let grown = reading.swap_used_bytes.zip(lowest).map_or(0, |(now, lowest)| now - lowest);
        let swapped = grown as f64 > self.reserve * SWAPPED;
        let over = |percent: Option<f64>, limit| percent.is_some_and(|percent| percent >= limit);

        let tight_us = self.tight.held(left < TIGHT, time_us);
        let critical_us = self.critical.held(left < CRITICAL, time_us);
        let stalled_us =
            self.stalled.held(left < TIGHT && over(reading.full_percent, STALLED_PERCENT), time_us);
        let swapped_us = self.swapped.held(left < TIGHT && swapped, time_us);
        let waiting_us = self.waiting.held(over(reading.some_percent, WAITING_PERCENT), time_us);
        let roomy_us = self.roomy.held(left > ROOMY && !over(reading.some_percent, CALM_PERCENT), time_us);

        let must_stop = left < LAST
            || critical_us.is_some_and(|us| us >= CRITICAL_US)
            || stalled_us.is_some_and(|us| us >= STALLED_US)
            || swapped_us.is_some_and(|us| us >= STALLED_US);
        if must_stop {
            self.stopped = true;
            let state = self.state(reading, grown, largest());
            return Some(Relief::Stop(format!(
                "memory ran out: {state}. The run was stopped before the machine stalls. {}",
                self.what_to_do()
            )));
        }
        let is_tight = tight_us.is_some_and(|us| us >= TIGHT_US);
        let is_waiting = waiting_us.is_some_and(|us| us >= WAITING_US);
        if !self.warned && (is_tight || is_waiting) {
            self.warned = true;
            let what = if is_tight { "memory is running low" } else { "programs are waiting for memory" };
            let state = self.state(reading, grown, largest());
            return Some(Relief::Warn(format!(
                "{what}: {state}. If it gets worse, the run saves a checkpoint and stops. {}",
                self.what_to_do()
            )));
        }
        if self.warned && roomy_us.is_some_and(|us| us >= ROOMY_US) {
            self.warned = false;
            let (available, total) =
                (units::bytes(reading.available_bytes), units::bytes(reading.total_bytes));
            return Some(Relief::Warn(format!(
                "there is enough memory again: {available} of {total} available"
            )));
        }
        None
    }

    /// Describes the figures.
    fn state(&self, reading: &MemoryReading, grown: u64, largest: Option<MemoryUser>) -> String {
        let reserve = units::bytes(self.reserve as u64);
        let mut words = format!(
            "{} of {} available, but {reserve} should stay free",
            units::bytes(reading.available_bytes),
            units::bytes(reading.total_bytes)
        );
        if grown > 0 {
            words.push_str(&format!("; swap use grew by {}", units::bytes(grown)));
        }
        if let Some(percent) = reading.full_percent.filter(|percent| *percent >= 1.0) {
            words.push_str(&format!("; all programs waited for memory for {percent:.0} % of the last 10 s"));
        } else if let Some(percent) = reading.some_percent.filter(|percent| *percent >= 1.0) {
            words.push_str(&format!("; programs waited for memory for {percent:.0} % of the last 10 s"));
        }
        if let Some(own) = reading.own_bytes {
            let gpu = if reading.unified { ", not counting its memory on the GPU" } else { "" };
            words.push_str(&format!("; the trainer uses {}{gpu}", units::bytes(own)));
        }
        if let Some(MemoryUser { name, pid, bytes }) = largest {
            words.push_str(&format!(
                "; the largest other program is {name} ({pid}) with {}",
                units::bytes(bytes)
            ));
        }
        words
    }

    fn what_to_do(&self) -> String {
        const OTHERS: &str = "If other programs are using it, end them and resume";
        match self.lighter.as_slice() {
            [] => format!("{OTHERS}; otherwise this run needs a machine with more memory"),
            lighter => format!("{OTHERS}; otherwise start a new run with {}", lighter.join(" or ")),
        }
    }
}

/// The time since which a condition holds.
#[derive(Debug, Clone, Copy, Default)]
struct Since(Option<u64>);

impl Since {
    /// Returns for how long the condition has held in microseconds, or `None` if it does not hold.
    fn held(&mut self, holds: bool, time_us: u64) -> Option<u64> {
        self.0 = holds.then(|| self.0.unwrap_or(time_us));
        self.0.map(|since| time_us.saturating_sub(since))
    }
}

#[cfg(test)]
mod tests;
