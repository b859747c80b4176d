//! Facts about the machine: those in the plan's input that do not change during a run, and the free memory
//! and disk space.

use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::cuda_headers::{self, CudaHeaders};
use crate::gpu::{DriverFault, GpuFacts};
use crate::libraries::{self, CudaLibraries};
use crate::process::{self, Pressure};
use crate::sampler::Sampler;

/// The facts about the machine, for the plan, for provenance and for `doctor`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Machine {
    /// The operating system in words.
    pub os: Option<String>,
    /// Kernel version.
    pub kernel: Option<String>,
    /// `x86_64`, `aarch64`, …
    pub arch: String,
    /// The CPU's own name.
    pub cpu_model: Option<String>,
    /// Physical cores of the machine.
    pub cores_physical: Option<usize>,
    /// The number of threads this process may use at once, limited by affinity and container quota.
    pub cores_usable: usize,
    /// The physical memory, or the container's limit if that is lower, in bytes.
    pub mem_total_bytes: u64,
    /// Memory that can be allocated now without swapping.
    pub mem_available_bytes: u64,
    /// The container's memory limit in bytes, if there is one.
    pub mem_limit_bytes: Option<u64>,
    /// Whether CPU and GPU share this memory.
    pub mem_unified: bool,
    /// The memory pressure; `None` if the kernel does not report it (no PSI).
    pub mem_pressure: Option<Pressure>,
    /// The total swap space in bytes; 0 if there is none.
    pub swap_total_bytes: Option<u64>,
    /// The part of it that is in use, in bytes.
    pub swap_used_bytes: Option<u64>,
    /// Version of the GPU driver.
    pub gpu_driver: Option<String>,
    /// The reason why an installed driver does not answer.
    pub gpu_driver_fault: Option<DriverFault>,
    /// The newest CUDA that the driver supports.
    pub cuda: Option<String>,
    /// The libraries that training on a GPU loads.
    pub cuda_libraries: CudaLibraries,
    /// The headers that kernels are compiled with.
    pub cuda_headers: Option<CudaHeaders>,
    /// The GPUs that the driver reports.
    pub gpus: Vec<GpuFacts>,
}

impl Machine {
    /// Gathers the facts about this machine.
    pub fn gather() -> Self {
        let mut sampler = Sampler::new();
        let (memory, cpu_model) = (sampler.memory(), sampler.cpu_model());
        let swap = sampler.swap();
        let gpus = sampler.gpus();
        Machine {
            os: sysinfo::System::long_os_version(),
            kernel: sysinfo::System::kernel_version(),
            arch: std::env::consts::ARCH.to_owned(),
            cpu_model,
            cores_physical: sysinfo::System::physical_core_count(),
            cores_usable: std::thread::available_parallelism().map_or(1, usize::from),
            mem_total_bytes: memory.total_bytes,
            mem_available_bytes: memory.available_bytes,
            mem_limit_bytes: memory.limit_bytes,
            mem_unified: memory.unified,
            mem_pressure: process::memory_pressure(),
            swap_total_bytes: Some(swap.total_bytes),
            swap_used_bytes: Some(swap.used_bytes),
            gpu_driver: gpus.driver_version(),
            gpu_driver_fault: gpus.fault(),
            cuda: gpus.cuda_version(),
            cuda_libraries: libraries::find(),
            cuda_headers: cuda_headers::find(),
            gpus: gpus.facts(),
        }
    }
}

/// Returns the bytes that an ordinary user may still write at `path`, or at its nearest existing parent.
pub fn disk_free_bytes(path: &Path) -> Option<u64> {
    let absolute = std::path::absolute(path).ok()?;
    let existing = absolute.ancestors().find(|p| p.exists())?;
    let stat = rustix::fs::statvfs(existing).ok()?;
    stat.f_bavail.checked_mul(stat.f_frsize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_facts_of_this_machine_hold_together_and_survive_json() {
        let facts = Machine::gather();
        assert!(facts.cores_usable >= 1);
        assert!(facts.mem_available_bytes > 0 && facts.mem_available_bytes <= facts.mem_total_bytes);
        assert!(facts.swap_used_bytes <= facts.swap_total_bytes);
        let json = serde_json::to_string(&facts).unwrap();
        assert_eq!(serde_json::from_str::<Machine>(&json).unwrap(), facts);
    }

    #[test]
    fn free_disk_is_known_for_folders_that_do_not_exist_yet() {
        let root = tempfile::tempdir().unwrap();
        let there = disk_free_bytes(root.path()).unwrap();
        assert!(there > 0);
        assert!(disk_free_bytes(&root.path().join("runs/not/yet")).unwrap() > 0);
        assert!(disk_free_bytes(Path::new("relative/not/yet")).is_some());
    }
}
