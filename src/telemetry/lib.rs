//! Facts about the machine ([`Machine`], for the plan), checks of its CUDA installation ([`cuda_checks`]),
//! measurements of its state ([`Sampler`], for events; [`MemoryGuard`], which ends a run before memory runs
//! out), and explanations of GPU failures ([`device_failure`]).
//!
//! Nothing here fails: values that cannot be read are `None`, and a machine without NVML has no GPUs. Samples
//! have the type [`DeviceSample`], which the run log owns because watchers read it without this crate.
//!
//! On GB10 CPU and GPU share one memory, NVML answers its memory queries with "not supported", and CUDA's own
//! figure follows MemFree. Therefore memory always comes from the system's MemAvailable, limited by the
//! container, and is labelled unified if a GPU has none of its own.

mod cgroup;
mod cuda_checks;
mod cuda_headers;
mod device_failure;
mod facts;
mod gpu;
mod guard;
mod libraries;
mod process;
mod sampler;
mod toolkit_variables;
mod toolkits;

pub use cuda_checks::{Check, Verdict, clock_under_load, cuda_checks, out_of_reach};
pub use cuda_headers::CudaHeaders;
pub use device_failure::{device_failure, record_panic, recorded_failure};
pub use facts::{Machine, disk_free_bytes};
pub use gpu::{DriverFault, GpuFacts, GpuUser};
pub use guard::MemoryGuard;
pub use libraries::{CudaLibraries, Library};
pub use process::{Pressure, largest_other, memory_pressure, offer_to_end_first, peak_rss_bytes, rss_bytes};
pub use sampler::{Memory, Sampler};
pub use sparktune_runlog::{DeviceSample, GpuSample};
pub use toolkit_variables::toolkit_variables;
