//! Repeated measurements of machine and process.

use sparktune_runlog::{DeviceSample, MemoryReading};
use sysinfo::System;

use crate::cgroup::{self, CgroupMemory};
use crate::gpu::Gpus;
use crate::process::{self, Pressure};

/// Memory as counted by the plan's budget.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Memory {
    /// The physical memory, or the container's limit if that is lower, in bytes.
    pub total_bytes: u64,
    /// Memory that can be allocated now without swapping, under that limit.
    pub available_bytes: u64,
    /// The container's limit in bytes, if there is one.
    pub limit_bytes: Option<u64>,
    /// Whether CPU and GPU share this memory.
    pub unified: bool,
}

/// The size of the swap space and the part that is in use.
pub(crate) struct Swap {
    pub total_bytes: u64,
    pub used_bytes: u64,
}

/// Takes samples. Keep one value, because CPU load is measured between two samples.
#[derive(Debug)]
pub struct Sampler {
    system: System,
    gpus: Gpus,
    unified: bool,
    primed: bool,
}

impl Default for Sampler {
    fn default() -> Self {
        Self::new()
    }
}

impl Sampler {
    /// Searches for GPUs once. The first sample has no CPU load.
    pub fn new() -> Self {
        let gpus = Gpus::find();
        let unified = gpus.share_system_memory();
        Sampler { system: System::new(), gpus, unified, primed: false }
    }

    /// Returns the memory alone, which is cheap enough to query before every large allocation.
    pub fn memory(&mut self) -> Memory {
        self.memory_under(cgroup::memory())
    }

    /// Returns the input of the pressure watch. It reads a few small files of the kernel, which is cheap
    /// enough for several times a second.
    pub fn memory_reading(&mut self) -> MemoryReading {
        let group = cgroup::memory();
        let memory = self.memory_under(group);
        let limited = group.filter(|_| memory.limit_bytes.is_some());
        let pressures = [process::memory_pressure(), limited.and_then(|group| group.pressure)];
        let highest = |of: fn(Pressure) -> f64| pressures.into_iter().flatten().map(of).reduce(f64::max);
        MemoryReading {
            total_bytes: memory.total_bytes,
            available_bytes: memory.available_bytes,
            unified: memory.unified,
            swap_used_bytes: Some(self.system.used_swap()),
            some_percent: highest(|pressure| pressure.some_percent),
            full_percent: highest(|pressure| pressure.full_percent),
            own_bytes: process::rss_bytes(),
        }
    }

    fn memory_under(&mut self, group: Option<CgroupMemory>) -> Memory {
        self.system.refresh_memory();
        let (total, available) = (self.system.total_memory(), self.system.available_memory());
        let limit = group.filter(|group| group.limit_bytes < total);
        Memory {
            total_bytes: limit.map_or(total, |group| group.limit_bytes),
            available_bytes: limit.map_or(available, |group| group.available_bytes.min(available)),
            limit_bytes: limit.map(|group| group.limit_bytes),
            unified: self.unified,
        }
    }

    /// Returns the current swap figures.
    pub(crate) fn swap(&mut self) -> Swap {
        self.system.refresh_memory_specifics(sysinfo::MemoryRefreshKind::nothing().with_swap());
        Swap { total_bytes: self.system.total_swap(), used_bytes: self.system.used_swap() }
    }

    /// Takes one sample of everything.
    pub fn sample(&mut self) -> DeviceSample {
        let memory = self.memory();
        let pressure = process::memory_pressure();
        let (rss, peak_rss) = process::rss_and_peak_bytes();
        self.system.refresh_cpu_usage();
        let cpu_percent =
            std::mem::replace(&mut self.primed, true).then(|| f64::from(self.system.global_cpu_usage()));
        DeviceSample {
            mem_total_bytes: Some(memory.total_bytes),
            mem_available_bytes: Some(memory.available_bytes),
            mem_used_bytes: Some(memory.total_bytes.saturating_sub(memory.available_bytes)),
            mem_unified: memory.unified,
            mem_pressure_some_percent: pressure.map(|p| p.some_percent),
            mem_pressure_full_percent: pressure.map(|p| p.full_percent),
            process_rss_bytes: rss,
            process_peak_rss_bytes: peak_rss,
            cpu_percent,
            gpus: self.gpus.sample(),
        }
    }

    /// Returns the driver's name of the first GPU.
    pub fn gpu_name(&self) -> Option<String> {
        self.gpus.name()
    }

    pub(crate) fn gpus(&self) -> &Gpus {
        &self.gpus
    }

    pub(crate) fn cpu_model(&mut self) -> Option<String> {
        self.system.refresh_cpu_list(sysinfo::CpuRefreshKind::nothing());
        let brand = self.system.cpus().first()?.brand().trim();
        (!brand.is_empty()).then(|| brand.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_measures_this_machine() {
        let mut sampler = Sampler::new();
        let first = sampler.sample();
        assert_eq!(first.cpu_percent, None, "nothing to count from yet");
        let second = sampler.sample();
        assert!((0.0..=100.0).contains(&second.cpu_percent.unwrap()));
        assert!(second.mem_available_bytes <= second.mem_total_bytes);
        assert!(second.process_peak_rss_bytes >= second.process_rss_bytes);
        assert_eq!(
            second.mem_used_bytes.unwrap() + second.mem_available_bytes.unwrap(),
            second.mem_total_bytes.unwrap()
        );
    }
}
