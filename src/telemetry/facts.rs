//! What the machine is: the part of the plan's facts that does not change while a run goes on, and the memory and disk
//! that are free now.

use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::sampler::Sampler;

/// The machine in numbers, for the plan, for provenance and for `doctor`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct MachineFacts {
    /// Operating system in words.
    pub os: Option<String>,
    /// Kernel version.
    pub kernel: Option<String>,
    /// `x86_64`, `aarch64`, …
    pub arch: String,
    /// The CPU's own name.
    pub cpu_model: Option<String>,
    /// Physical cores of the machine.
    pub cores_physical: Option<usize>,
    /// Threads this process may use at once (affinity and container quota included).
    pub cores_usable: usize,
    /// Physical memory, or the container's limit where that is lower.
    pub mem_total_bytes: u64,
    /// What can be allocated now without swapping.
    pub mem_available_bytes: u64,
    /// The container's memory limit, where there is one.
    pub mem_limit_bytes: Option<u64>,
    /// CPU and GPU share this memory.
    pub mem_unified: bool,
    /// Version of the GPU driver.
    pub gpu_driver: Option<String>,
    /// Newest CUDA the driver can run.
    pub cuda: Option<String>,
    /// GPUs the driver shows.
    pub gpus: Vec<GpuFacts>,
}

/// One GPU.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct GpuFacts {
    /// Index as the driver counts.
    pub index: u32,
    /// Its name.
    pub name: Option<String>,
    /// As `12.1`.
    pub compute_capability: Option<String>,
    /// Dedicated memory; `None` on GB10, which shares the system's.
    pub mem_total_bytes: Option<u64>,
    /// What of it is free now.
    pub mem_free_bytes: Option<u64>,
}

impl MachineFacts {
    /// Looks at this machine.
    pub fn gather() -> Self {
        let mut sampler = Sampler::new();
        let (memory, cpu_model) = (sampler.memory(), sampler.cpu_model());
        let gpus = sampler.gpus();
        MachineFacts {
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
            gpu_driver: gpus.driver_version(),
            cuda: gpus.cuda_version(),
            gpus: gpus.facts(),
        }
    }
}

/// Bytes an ordinary user may still write at `path`, or where its nearest existing parent lies.
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
        let facts = MachineFacts::gather();
        assert!(facts.cores_usable >= 1);
        assert!(facts.mem_available_bytes > 0 && facts.mem_available_bytes <= facts.mem_total_bytes);
        let json = serde_json::to_string(&facts).unwrap();
        assert_eq!(serde_json::from_str::<MachineFacts>(&json).unwrap(), facts);
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
