//! Stands in for the first CUDA device with NCCL in builds without CUDA.

use sparktune_cluster::nccl::Gpu;
use sparktune_cluster::nccl::preflight::Facts;

/// Returns facts that say that there is no device.
pub fn find_gpu() -> (Facts, Option<Box<dyn Gpu>>) {
    let why = "this build of the program has no CUDA".to_owned();
    (Facts { gpu: Err(why.clone()), host: String::new(), library: Err(why), links: Vec::new() }, None)
}
