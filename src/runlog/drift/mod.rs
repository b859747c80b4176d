//! Has the machine become slow under a run? GB10 boxes are known to fall into a state of 700 to 900 MHz that
//! only a power cycle ends, and nothing but the clock and the speed shows it.
//!
//! Enters: steps and readings of the machine as they are logged. Leaves: at most one warning when a slow
//! stretch begins and one when it is over, with the figures. Pure; the times are those of the events.
//!
//! Two signs. The speed of the recent steps is held against this attempt's own, in bins of several seconds,
//! so that rows of different length even out and a single slow step (the first ones, one after an evaluation)
//! is no sign. The clock is held against the GPU's highest, only in readings where the GPU was busy. What
//! nobody measured is no sign either.

use std::collections::VecDeque;

use sparktune_base::program_name;

use crate::event::{DeviceSample, Warning};
use crate::step::Step;

/// The number of steps at the start of an attempt that are not measured, because kernels are chosen and
/// memory is allocated.
const WARM_UP_STEPS: u64 = 3;
/// The duration of the steps in one bin, in milliseconds. Eight bins, a minute, make a stretch.
const BIN_MS: f64 = 7_500.0;
const BINS: usize = 8;
/// The thresholds as shares of the attempt's own speed: it is slow when every bin of a stretch is below the
/// first, and normal again when every bin is above the second.
const SLOW_RATE: f64 = 0.70;
const WELL_RATE: f64 = 0.85;
/// The same thresholds for the clock, as shares of the GPU's highest clock.
const SLOW_CLOCK: f64 = 0.50;
const WELL_CLOCK: f64 = 0.60;
/// The shortest time, and below it the smallest number of samples, of a stretch.
const CLOCK_US: u64 = 60_000_000;
const CLOCK_READINGS: u32 = 4;
/// The distance in time above which samples do not belong to one stretch.
const APART_US: u64 = 300_000_000;
/// The utilisation below which a GPU lowers its clock for good reason.
const BUSY_PERCENT: u32 = 50;

/// Detects when the machine becomes slow during an attempt.
#[derive(Debug, Clone, Default)]
pub struct DriftWatch {
    rate: Rate,
    clock: Clock,
    last_step: Option<u64>,
    warned: bool,
}

impl DriftWatch {
    /// Creates a watch at the beginning of an attempt.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes a step that was just logged. Returns a warning if there is one.
    pub fn step(&mut self, step: &Step) -> Option<Warning> {
        self.last_step = Some(step.step);
        let step_ms = step.step_ms.filter(|ms| ms.is_finite() && *ms > 0.0)?;
        self.rate.step(step.tokens, step_ms);
        self.judge()
    }

    /// Takes a sample of the machine that was just logged at this time. Returns a warning if there is one.
    pub fn reading(&mut self, sample: &DeviceSample, time_us: u64) -> Option<Warning> {
        let gpu = sample.gpus.first()?;
        let (mhz, max_mhz) = gpu.sm_clock_mhz.zip(gpu.sm_clock_max_mhz)?;
        let busy_percent = gpu.busy_percent.filter(|busy| *busy >= BUSY_PERCENT)?;
        self.clock.reading(Reading { mhz, max_mhz, busy_percent, time_us, throttle: gpu.throttle.clone() });
        self.judge()
    }

    fn judge(&mut self) -> Option<Warning> {
        let slow = self.rate.slow || self.clock.slow;
        if slow == self.warned {
            return None;
        }
        self.warned = slow;
        let message = if slow { self.slow_in_words() } else { self.well_in_words() };
        Some(Warning { message, step: self.last_step })
    }

    fn slow_in_words(&self) -> String {
        let rate = self.rate.recent().zip(self.rate.own);
        let rate = rate
            .map(|(now, own)| format!("{} tokens/s, down from {} in this attempt", count(now), count(own)));
        if let (true, Some(reading)) = (self.clock.slow, &self.clock.last) {
            let Reading { mhz, max_mhz, busy_percent, throttle, .. } = reading;
            let throttle = throttle
                .as_ref()
                .map(|why| format!("; reason given by the driver: {why}"))
                .unwrap_or_default();
            return format!(
                "the GPU is running slowly: SM clock {} MHz of {} for {} s while {busy_percent} % busy{}{throttle}. Let it cool, check its power adapter (GB10 needs its own), and check `nvidia-smi -q -d PERFORMANCE`; if that shows nothing, run `{program} stop`, unplug the machine for a minute and run `{program} resume`",
                count(f64::from(*mhz)),
                count(f64::from(*max_mhz)),
                self.clock.span_us() / 1_000_000,
                rate.map(|rate| format!("; {rate}")).unwrap_or_default(),
                program = program_name(),
            );
        }
        let clock = match &self.clock.last {
            Some(Reading { mhz, max_mhz, .. }) => {
                format!("; SM clock {} MHz of {}", count(f64::from(*mhz)), count(f64::from(*max_mhz)))
            }
            None => String::new(),
        };
        format!(
            "training has become slow: {} for a minute{clock}. Look for other programs on this machine (`top`, `nvidia-smi`), memory \
             pressure and heat (`nvidia-smi -q -d PERFORMANCE`)",
            rate.unwrap_or_default(),
        )
    }

    fn well_in_words(&self) -> String {
        let clock = self.clock.last.as_ref().map(|Reading { mhz, max_mhz, .. }| {
            format!("SM clock {} MHz of {}", count(f64::from(*mhz)), count(f64::from(*max_mhz)))
        });
        let rate = self.rate.recent().map(|now| format!("{} tokens/s", count(now)));
        let figures: Vec<String> = [clock, rate].into_iter().flatten().collect();
        format!("the machine is back at its normal speed: {}", figures.join(", "))
    }
}

/// The speed of the steps in tokens per second, compared with the best of the same attempt.
#[derive(Debug, Clone, Default)]
struct Rate {
    steps: u64,
    bin_tokens: u64,
    bin_ms: f64,
    /// The speeds of the newest bins.
    bins: VecDeque<f64>,
    /// The best median of a stretch so far.
    own: Option<f64>,
    slow: bool,
}

impl Rate {
    fn step(&mut self, tokens: u64, step_ms: f64) {
        self.steps += 1;
        if self.steps <= WARM_UP_STEPS {
            return;
        }
        self.bin_tokens += tokens;
        self.bin_ms += step_ms;
        if self.bin_ms < BIN_MS {
            return;
        }
        let rate = std::mem::take(&mut self.bin_tokens) as f64 / std::mem::take(&mut self.bin_ms) * 1e3;
        if self.bins.len() == BINS {
            self.bins.pop_front();
        }
        self.bins.push_back(rate);
        if self.bins.len() < BINS {
            return;
        }
        let own = self.recent().map_or(0.0, |recent| recent.max(self.own.unwrap_or(0.0)));
        self.own = Some(own);
        self.slow = if self.slow {
            !self.bins.iter().all(|rate| *rate > own * WELL_RATE)
        } else {
            self.bins.iter().all(|rate| *rate < own * SLOW_RATE)
        };
    }

    /// Returns the median of the newest stretch, once it is complete.
    fn recent(&self) -> Option<f64> {
        let mut bins: Vec<f64> = self.bins.iter().copied().collect();
        bins.sort_by(f64::total_cmp);
        (bins.len() == BINS).then(|| (bins[BINS / 2 - 1] + bins[BINS / 2]) / 2.0)
    }
}

#[derive(Debug, Clone)]
struct Reading {
    mhz: u32,
    max_mhz: u32,
    busy_percent: u32,
    time_us: u64,
    throttle: Option<String>,
}

impl Reading {
    fn share(&self) -> f64 {
        f64::from(self.mhz) / f64::from(self.max_mhz.max(1))
    }
}

/// The clock of the busy GPU, and how long it has contradicted the current verdict.
#[derive(Debug, Clone, Default)]
struct Clock {
    last: Option<Reading>,
    /// The time of the first sample that contradicts the verdict, and the number of such samples.
    since: Option<(u64, u32)>,
    slow: bool,
    slow_since_us: u64,
}

impl Clock {
    fn reading(&mut self, reading: Reading) {
        let against = if self.slow { reading.share() > WELL_CLOCK } else { reading.share() < SLOW_CLOCK };
        let joined =
            self.last.as_ref().is_some_and(|l| reading.time_us.saturating_sub(l.time_us) <= APART_US);
        let (from_us, readings) = self.since.filter(|_| joined).unwrap_or((reading.time_us, 0));
        self.since = against.then_some((from_us, readings + 1));
        let long = reading.time_us.saturating_sub(from_us) >= CLOCK_US && readings + 1 >= CLOCK_READINGS;
        if against && long {
            self.slow = !self.slow;
            self.slow_since_us = from_us;
            self.since = None;
        }
        self.last = Some(reading);
    }

    fn span_us(&self) -> u64 {
        self.last.as_ref().map_or(0, |last| last.time_us.saturating_sub(self.slow_since_us))
    }
}

/// Formats a number as `1,234`.
fn count(value: f64) -> String {
    let digits = format!("{value:.0}");
    let mut grouped = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}

#[cfg(test)]
mod tests;
