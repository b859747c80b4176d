//! What the machine is ([`MachineFacts`], for the plan) and how it is doing ([`Sampler`], for events and the memory guard).
//!
//! Nothing here fails: what cannot be read is `None`, and a machine without NVML simply has no GPUs. The shape of a
//! sample is [`DeviceSample`], which the run log owns because watchers read it without any of this.
//!
//! On GB10 CPU and GPU share one memory, NVML answers its memory queries with "not supported", and CUDA's own figure
//! follows MemFree. So memory always comes from the system's MemAvailable, lowered to the container's limit, and is
//! labelled unified where a GPU has none of its own.

mod cgroup;
mod cuda_headers;
mod facts;
mod gpu;
mod process;
mod sampler;

pub use cuda_headers::CudaHeaders;
pub use facts::{GpuFacts, GpuUser, MachineFacts, disk_free_bytes};
pub use process::{Pressure, memory_pressure, peak_rss_bytes, rss_bytes};
pub use sampler::{Memory, Sampler};
pub use sparktune_runlog::{DeviceSample, GpuSample};
