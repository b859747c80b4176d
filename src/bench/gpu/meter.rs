//! The clock: seconds of one call on a CUDA device, and the two rates that bound all calls.
//!
//! Enters: a CUDA device. Leaves: [`Measured`]. A device that fails does so by a panic, as everywhere in the
//! kernels.

use std::time::Instant;

use burn::tensor::{DType, Device, Tensor};
use sparktune_kernels::linear::tuning::{listen, missed};
use sparktune_kernels::measuring::{
    CudaTensor, Line, as_bf16, as_f32, copy, dims, into_tensor, primitive, random,
};
use sparktune_kernels::work::Launch;

use crate::median::median;

/// One op, one way, at one shape.
#[derive(Debug, Clone)]
pub(super) struct Measured {
    /// The op, followed by `backward` where it is the backward pass.
    pub(super) name: String,
    /// The sizes.
    pub(super) shape: String,
    /// Relative L2 distance from the CPU's path, the worst of its results.
    pub(super) error: f64,
    /// The worst row and the worst column of all results; `None` if numbers were compared one by one.
    pub(super) worst: Option<[Line; 2]>,
    /// The accepted values of `error`.
    pub(super) tolerance: f64,
    /// Seconds of one call; `None` where it cannot be timed alone.
    pub(super) seconds: Option<f64>,
    /// Bytes of its inputs and results.
    pub(super) bytes: f64,
    /// Multiplications and additions of its matrices.
    pub(super) flops: f64,
    /// Bytes moved and FLOPs computed by the kernels, launch by launch.
    pub(super) work: Vec<Launch>,
    /// A remark for the reader.
    pub(super) note: String,
}

/// The duration of a measurement.
#[derive(Clone, Copy)]
pub(super) struct Pace {
    /// About as many seconds of calls are queued before the device is waited for.
    pub(super) queue_s: f64,
    /// The number of repetitions, whose median counts.
    pub(super) times: usize,
}

/// Measures on one device.
pub(super) struct Meter {
    pub(super) device: Device,
    pub(super) is_tiny: bool,
}

/// Inputs lie in as many places as fill this many bytes, so that none is still in the L2 when its turn comes
/// again.
const PLACES_BYTES: usize = 256 << 20;

impl Meter {
    /// Creates a meter. With `is_tiny` the sizes are only for trying this out: one call is timed, and the
    /// times mean nothing.
    pub(super) fn new(device: Device, is_tiny: bool) -> Self {
        Self { device, is_tiny }
    }

    /// Waits until the device has done what was queued.
    fn wait(&self) {
        self.device.sync().expect("the device does what was queued");
    }

    /// Frees the memory of finished measurements.
    pub(super) fn clean(&self) {
        self.wait();
        self.device.memory_cleanup();
    }

    /// The seconds of one call: the time between two waits for the device, with many calls queued in between.
    /// A call is given its number.
    pub(super) fn seconds(&self, pace: Pace, mut call: impl FnMut(usize)) -> f64 {
        // The first call compiles, and shows which matrix products it has, since training computes them in
        // measured tiles. The second call shows how many calls there is time for.
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
        median((0..pace.times).map(|_| once(calls)))
    }

    /// Returns the number of copies of inputs of this size that are used in turn.
    pub(super) fn places(&self, bytes: f64) -> usize {
        if self.is_tiny { 1 } else { (PLACES_BYTES as f64 / bytes.max(1.0)).ceil().clamp(1.0, 8.0) as usize }
    }

    /// A copy on the device of a tensor on the CPU.
    pub(super) fn upload(&self, tensor: Tensor<2>, dtype: DType) -> CudaTensor {
        let tensor = primitive(tensor.to_device(&self.device));
        if dtype == DType::F32 { as_f32(tensor) } else { as_bf16(tensor) }
    }

    /// Copies about a gigabyte. The rate is the ceiling of all ops that move bytes.
    pub(super) fn copy(&self) -> Measured {
        let (rows, times) = if self.is_tiny { (64, 1) } else { (1 << 10, 1 << 6) };
        let block = into_tensor(self.upload(random(1, rows, 1 << 13), DType::BF16));
        let (from, rows) = (primitive(block.repeat_dim(0, times)), rows * times);
        let bytes = 2.0 * bytes(&from);
        // A part of the copy is compared as bf16 numbers on the host.
        let part = |x: CudaTensor| into_tensor(x).narrow(0, rows - 32, 32).into_data();
        let equal = part(copy(&from)) == part(from.clone());
        Measured {
            name: "copy".into(),
            shape: format!("{:.2} GB", bytes / 2e9),
            error: if equal { 0.0 } else { f64::NAN },
            worst: None,
            tolerance: 0.0,
            seconds: Some(self.seconds(Pace { queue_s: 0.05, times: 7 }, |_| drop(copy(&from)))),
            bytes,
            flops: 0.0,
            work: vec![Launch { bytes, flops: 0.0 }],
            note: "bytes read and written".into(),
        }
    }
}

/// Bytes of the numbers of a tensor.
pub(super) fn bytes(tensor: &CudaTensor) -> f64 {
    let (rows, columns) = dims(tensor);
    (rows * columns * tensor.dtype.size()) as f64
}
