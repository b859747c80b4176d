//! The curves of a run and the marks on them.

use serde::Serialize;

use crate::event::{DeviceSample, Step};
use crate::series::Series;

/// The curves of a run, by step. Readings of the machine stand at the step that was done last when they were
/// taken; of several GPUs the first is shown, which is the one that trains.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Charts {
    /// Training loss, nats per trained token.
    pub loss: Series,
    /// Eval loss.
    pub eval_loss: Series,
    /// Learning rate.
    pub lr: Series,
    /// Gradient norm before clipping.
    pub grad_norm: Series,
    /// Tokens per second.
    pub tokens_per_s: Series,
    /// Memory used, bytes.
    pub mem_used_bytes: Series,
    /// SM clock of the GPU.
    pub sm_clock_mhz: Series,
    /// Temperature of the GPU.
    pub temperature_celsius: Series,
    /// Power draw of the GPU.
    pub power_watts: Series,
    /// Share of time with a kernel running on the GPU, percent.
    pub gpu_busy_percent: Series,
    /// Share of time in which some task waited for memory (PSI), percent.
    pub mem_pressure_percent: Series,
    /// Load of all CPU cores together, percent.
    pub cpu_percent: Series,
}

impl Charts {
    pub(crate) fn step(&mut self, step: &Step) {
        let at = step.step;
        self.loss.push(at, step.loss_nats);
        add(&mut self.lr, at, step.lr);
        add(&mut self.grad_norm, at, step.grad_norm);
        add(&mut self.tokens_per_s, at, step.tokens_per_s);
        add(&mut self.mem_used_bytes, at, step.mem_used_bytes.map(|bytes| bytes as f64));
    }

    pub(crate) fn reading(&mut self, at: u64, sample: &DeviceSample) {
        add(&mut self.mem_pressure_percent, at, sample.mem_pressure_some_percent);
        add(&mut self.cpu_percent, at, sample.cpu_percent);
        let Some(gpu) = sample.gpus.first() else { return };
        add(&mut self.sm_clock_mhz, at, gpu.sm_clock_mhz.map(f64::from));
        add(&mut self.temperature_celsius, at, gpu.temperature_celsius.map(f64::from));
        add(&mut self.power_watts, at, gpu.power_watts);
        add(&mut self.gpu_busy_percent, at, gpu.busy_percent.map(f64::from));
    }

    /// Moves what comes after `step` to `discarded`.
    pub(crate) fn discard_after(&mut self, step: u64, discarded: &mut Charts) {
        for (kept, discarded) in self.each().into_iter().zip(discarded.each()) {
            discarded.absorb(kept.cut_after(step));
        }
    }

    fn each(&mut self) -> [&mut Series; 12] {
        let Charts {
            loss,
            eval_loss,
            lr,
            grad_norm,
            tokens_per_s,
            mem_used_bytes,
            sm_clock_mhz,
            temperature_celsius,
            power_watts,
            gpu_busy_percent,
            mem_pressure_percent,
            cpu_percent,
        } = self;
        [
            loss,
            eval_loss,
            lr,
            grad_norm,
            tokens_per_s,
            mem_used_bytes,
            sm_clock_mhz,
            temperature_celsius,
            power_watts,
            gpu_busy_percent,
            mem_pressure_percent,
            cpu_percent,
        ]
    }
}

fn add(series: &mut Series, at: u64, value: Option<f64>) {
    if let Some(value) = value {
        series.push(at, value);
    }
}

/// A point on the time axis worth marking.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(tag = "mark", rename_all = "snake_case")]
pub enum Mark {
    /// An evaluation that was the best so far.
    Best {
        /// Steps trained then.
        step: u64,
        /// Its loss.
        loss_nats: f64,
    },
    /// A committed checkpoint.
    Checkpoint {
        /// Steps trained then.
        step: u64,
        /// It had the lowest eval loss so far.
        best: bool,
    },
    /// An attempt continued from here.
    Resumed {
        /// Step of the checkpoint it continued from.
        step: u64,
        /// Its number.
        attempt: u32,
    },
}

impl Mark {
    /// Where it stands.
    pub fn step(&self) -> u64 {
        match *self {
            Mark::Best { step, .. } | Mark::Checkpoint { step, .. } | Mark::Resumed { step, .. } => step,
        }
    }
}
