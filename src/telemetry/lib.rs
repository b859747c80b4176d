//! What the machine is ([`Machine`], for the plan), whether it is in order for CUDA ([`cuda_checks`]),
//! how it is doing ([`Sampler`], for events; [`MemoryGuard`], which ends a run before memory does), and what
//! a failure of the GPU means ([`device_failure`]).
//!
//! Nothing here fails: what cannot be read is `None`, and a machine without NVML simply has no GPUs. The
//! shape of a sample is [`DeviceSample`], which the run log owns because watchers read it without any of
//! this.
//!
//! On GB10 CPU and GPU share one memory, NVML answers its memory queries with "not supported", and CUDA's own
//! figure follows MemFree. So memory always comes from the system's MemAvailable, lowered to the container's
//! limit, and is labelled unified where a GPU has none of its own.

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
mod toolkits;

pub use cuda_checks::{Check, Verdict, cuda_checks, out_of_reach};
pub use cuda_headers::CudaHeaders;
pub use device_failure::{device_failure, note_panic, noted_failure};
pub use facts::{Machine, disk_free_bytes};
pub use gpu::{DriverFault, GpuFacts, GpuUser};
pub use guard::MemoryGuard;
pub use libraries::{CudaLibraries, Library};
pub use process::{Pressure, largest_other, memory_pressure, offer_to_end_first, peak_rss_bytes, rss_bytes};
pub use sampler::{Memory, Sampler};
pub use sparktune_runlog::{DeviceSample, GpuSample};
