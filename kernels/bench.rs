//! What the device ops take at given sizes: each held against the CPU's path, then timed, with the bytes and FLOPs that it cannot
//! do without.
//!
//! Enters: a CUDA device and the sizes of a model. Leaves: [`Case`]s, to be run one by one by somebody who knows how much time is
//! left; and the products of [`products`]. A device that fails does so by a panic, as everywhere in this crate.

mod cases;
pub mod products;

pub use cases::{Case, Shape, cases};

use crate::compare::random;
use crate::cuda::{CudaTensor, as_bf16, as_f32, copy, dims, into_tensor, primitive};
use crate::linear::tuning::{listen, missed};
use crate::work::Launch;
use burn::tensor::{DType, Device, Tensor};
use products::{Layout, Operands};
use std::time::Instant;

/// One op, one way, at one shape.
#[derive(Clone, Debug)]
pub struct Measured {
    /// The op, with `backward` behind it where it is that.
    pub name: String,
    /// At which sizes.
    pub shape: String,
    /// Relative L2 distance from the CPU's path, the worst of its results.
    pub error: f64,
    /// What `error` may be.
    pub tolerance: f64,
    /// Seconds of one call; none where it cannot be timed alone.
    pub seconds: Option<f64>,
    /// Bytes of its inputs and results.
    pub bytes: f64,
    /// Products and sums of its matrices, each counted.
    pub flops: f64,
    /// What the kernels move and compute for that, launch by launch.
    pub work: Vec<Launch>,
    /// A word for the reader.
    pub note: String,
}

/// How long calls are timed.
#[derive(Clone, Copy)]
struct Pace {
    /// Calls that are queued before the device is waited for fill about this many seconds.
    queue_s: f64,
    /// So many times; the median counts.
    times: usize,
}

/// Measures on one device.
pub struct Meter {
    device: Device,
    is_tiny: bool,
}

/// Inputs lie in as many places as fill this, so that none is still in the L2 when its turn comes again.
const PLACES_BYTES: usize = 256 << 20;

impl Meter {
    /// `is_tiny`: the sizes are for trying this out, one call is timed, and the times mean nothing.
    pub fn new(device: Device, is_tiny: bool) -> Self {
        Self { device, is_tiny }
    }

    fn wait(&self) {
        self.device.sync().expect("the device does what was queued");
    }

    /// Gives the memory of finished measurements back.
    pub fn clean(&self) {
        self.wait();
        self.device.memory_cleanup();
    }

    /// Seconds of one call, by the clock between two waits for the device with many calls queued in between. A call is given its
    /// number.
    fn seconds(&self, pace: Pace, mut call: impl FnMut(usize)) -> f64 {
        // The first one compiles, and tells which products it has: training computes them in measured tiles. The second one tells
        // how many there is time for.
        listen();
        call(0);
        self.wait();
        for product in missed() {
            product.measure(&self.device);
        }
        let mut once = |calls: usize| {
            let began = Instant::now();
            (0..calls).for_each(&mut call);
            self.wait();
            began.elapsed().as_secs_f64() / calls as f64
        };
        let estimate = once(1);
        if self.is_tiny {
            return estimate;
        }
        let calls = (pace.queue_s / estimate).clamp(1.0, 2000.0) as usize;
        median((0..pace.times).map(|_| once(calls)).collect())
    }

    /// How many copies of inputs that take so many bytes are used in turn.
    fn places(&self, bytes: f64) -> usize {
        if self.is_tiny { 1 } else { (PLACES_BYTES as f64 / bytes.max(1.0)).ceil().clamp(1.0, 8.0) as usize }
    }

    /// A tensor of the CPU on the device.
    fn upload(&self, tensor: Tensor<2>, dtype: DType) -> CudaTensor {
        let tensor = primitive(tensor.to_device(&self.device));
        if dtype == DType::F32 { as_f32(tensor) } else { as_bf16(tensor) }
    }

    /// A copy of about a gigabyte. Its rate is the ceiling of all that moves bytes.
    pub fn copy(&self) -> Measured {
        let (rows, times) = if self.is_tiny { (64, 1) } else { (1 << 10, 1 << 6) };
        let block = into_tensor(self.upload(random(1, rows, 1 << 13), DType::BF16));
        let (from, rows) = (primitive(block.repeat_dim(0, times)), rows * times);
        let bytes = 2.0 * bytes(&from);
        // What was copied is compared as bf16 numbers on the host, a part of it.
        let part = |x: CudaTensor| into_tensor(x).narrow(0, rows - 32, 32).into_data();
        let equal = part(copy(&from)) == part(from.clone());
        Measured {
            name: "copy".into(),
            shape: format!("{:.2} GB", bytes / 2e9),
            error: if equal { 0.0 } else { f64::NAN },
            tolerance: 0.0,
            seconds: Some(self.seconds(Pace { queue_s: 0.05, times: 7 }, |_| drop(copy(&from)))),
            bytes,
            flops: 0.0,
            work: vec![Launch { bytes, flops: 0.0 }],
            note: "bytes read and written".into(),
        }
    }

    /// The largest product that our own matrix kernel is timed with. Its rate is the ceiling of all that computes, as far as this
    /// crate can tell one.
    pub fn largest_product(&self) -> Measured {
        let side = if self.is_tiny { 128 } else { 8192 };
        let operands = Operands::new(self, side * side, side * side);
        let product = operands.measure(self, Layout::Nt, [side; 3]);
        let work = crate::work::product(side, side, side, 2.0);
        Measured {
            name: "matrix product".into(),
            shape: format!("{side}×{side}×{side}"),
            error: product.error,
            tolerance: products::TOLERANCE,
            seconds: Some(product.seconds),
            bytes: 6.0 * (side * side) as f64,
            flops: work.flops,
            work: vec![work],
            note: format!("the floors' FLOP/s; {}", product.tiling()),
        }
    }
}

/// Bytes of the numbers of a tensor.
fn bytes(tensor: &CudaTensor) -> f64 {
    let (rows, columns) = dims(tensor);
    (rows * columns * tensor.dtype.size()) as f64
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_middle_time_counts() {
        assert_eq!(median(vec![9.0, 1.0, 2.0]), 2.0);
    }
}
