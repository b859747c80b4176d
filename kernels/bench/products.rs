//! Matrix products by the kernel of `linear`, in the three layouts of a linear layer's passes.

use super::{Meter, Pace, bytes};
use crate::compare::random;
use crate::cuda::{CudaTensor, into_tensor, primitive};
use crate::linear::cuda::{Product, product, tiling};
use burn::tensor::{DType, Shape, Tensor};

/// What the sampled error of a product may be: bf16 operands, sums in f32, the result rounded to bf16.
pub const TOLERANCE: f64 = 1e-2;

/// How `A [m, k]` and `B [k, n]` of `C = A·B` lie in memory, row by row: N as they are, T transposed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// The forward pass, with weights as `[out, in]`.
    Nt,
    /// The gradient of the input.
    Nn,
    /// The gradient of the weight, in f32.
    Tn,
}

/// What a product took.
#[derive(Clone, Debug)]
pub struct Timed {
    /// Seconds of one.
    pub seconds: f64,
    /// Products and sums.
    pub flops: f64,
    /// Relative L2 distance of sampled results from sums in f64.
    pub error: f64,
    /// The tile that was chosen, and into how many parts `k` was split.
    pub tiling: String,
}

/// Numbers after which operands repeat; a prime.
const PERIOD: usize = (1 << 20) - 3;

/// Memory that operands are cut out of: one stretch for the left ones and one for the right ones, each longer than the L2.
pub struct Operands {
    left: Operand,
    right: Operand,
}

struct Operand {
    /// `[1, PERIOD]` on the host, as bf16 has them.
    numbers: Vec<f32>,
    /// The same again and again.
    stretch: CudaTensor,
}

impl Operand {
    /// At least `count` numbers.
    fn new(meter: &Meter, seed: u64, count: usize) -> Self {
        let least = if meter.is_tiny { 0 } else { 1 << 27 };
        let block = random(seed, 1, PERIOD).cast(DType::BF16).cast(DType::F32);
        let on_device = into_tensor(meter.upload(block.clone(), DType::BF16));
        // Without the gaps that burn leaves behind rows of such a length.
        let stretch = primitive(on_device.repeat_dim(0, count.max(least).div_ceil(PERIOD)));
        let numbers = block.into_data().try_to_vec().expect("was cast to f32");
        Self { numbers, stretch }
    }

    /// A matrix that begins `turn` steps further than the first; no two of a few turns share numbers where there is room.
    fn matrix(&self, [rows, columns]: [usize; 2], turn: usize) -> CudaTensor {
        let (count, all) = (rows * columns, bytes(&self.stretch) as usize / 2);
        let room = (all - count) / 128 * 128;
        let first = if room == 0 { 0 } else { turn * count.next_multiple_of(128) % (room + 128) };
        let first = first.min(room);
        let CudaTensor { client, device, handle, dtype, .. } = self.stretch.clone();
        let handle = handle.offset_start(2 * first as u64).offset_end(2 * (all - first - count) as u64);
        CudaTensor::new_contiguous(client, device, Shape::new([rows, columns]), handle, dtype)
    }

    fn at(&self, place: usize) -> f64 {
        f64::from(self.numbers[place % PERIOD])
    }
}

impl Operands {
    /// For products whose operands have at most so many numbers.
    pub fn new(meter: &Meter, left: usize, right: usize) -> Self {
        Self { left: Operand::new(meter, 1, left), right: Operand::new(meter, 2, right) }
    }

    /// Times `C [m, n] = A [m, k] · B [k, n]` and holds some of its numbers against sums in f64.
    pub fn measure(&self, meter: &Meter, layout: Layout, [m, n, k]: [usize; 3]) -> Timed {
        let (which, left, right) = match layout {
            Layout::Nt => (Product::Forward, [m, k], [n, k]),
            Layout::Nn => (Product::Input, [m, k], [k, n]),
            Layout::Tn => (Product::Weight, [k, m], [k, n]),
        };
        let run =
            |turn: usize| product(which, &self.left.matrix(left, turn), &self.right.matrix(right, turn), 1.0);
        let error = self.sampled_error(layout, [m, n, k], run(0));
        let seconds = meter.seconds(Pace { queue_s: 0.005, times: 5 }, |turn| drop(run(turn)));
        let (tile, splits, _) = tiling(which, &self.left.stretch, [m, n, k]);
        let parts = if splits > 1 { format!(", k in {splits} parts") } else { String::new() };
        Timed { seconds, flops: 2.0 * (m * n * k) as f64, error, tiling: format!("tile {tile}{parts}") }
    }

    fn sampled_error(&self, layout: Layout, [m, n, k]: [usize; 3], c: CudaTensor) -> f64 {
        let c: Tensor<2> = into_tensor(c);
        let (mut difference, mut norm) = (0.0, 0.0);
        for row in [0, m / 3, m / 2 + 1, m - 1].map(|row| row.min(m - 1)) {
            let found = c.clone().narrow(0, row, 1).into_data().convert::<f32>();
            let found = found.try_to_vec::<f32>().expect("was converted to f32");
            for column in (0..32).map(|i| (i * (n - 1) / 31 + i % 3).min(n - 1)) {
                let left = |l: usize| if layout == Layout::Tn { l * m + row } else { row * k + l };
                let right = |l: usize| if layout == Layout::Nt { column * k + l } else { l * n + column };
                let expected: f64 = (0..k).map(|l| self.left.at(left(l)) * self.right.at(right(l))).sum();
                difference += (f64::from(found[column]) - expected).powi(2);
                norm += expected.powi(2);
            }
        }
        (difference / norm).sqrt()
    }
}
