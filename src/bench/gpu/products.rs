//! Matrix products by the kernel of `linear`, in the three layouts of a linear layer's passes, and beside it
//! by the vendor's library where there is one.

use burn::tensor::{DType, Shape, Tensor};
use sparktune_kernels::cublaslt::{seek, version_in_words};
use sparktune_kernels::linear::tuning::{Decision, decide, decide_as, remember, use_library};
use sparktune_kernels::measuring::{CudaTensor, Product, into_tensor, primitive, product, random, tiling};
use sparktune_kernels::work;

use super::meter::{Measured, Meter, Pace, bytes};

/// The largest allowed error of a sampled product: bf16 operands, sums in f32, the result rounded to bf16.
pub(super) const TOLERANCE: f64 = 1e-2;

/// The row-major layout of `A [m, k]` and `B [k, n]` of `C = A·B` in memory: N as they are, T transposed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Layout {
    /// The forward pass, with weights as `[out, in]`.
    Nt,
    /// The gradient of the input.
    Nn,
    /// The gradient of the weight, in f32.
    Tn,
}

/// The time of a product.
#[derive(Debug, Clone)]
pub(super) struct Timed {
    /// Seconds of one in the fastest tile.
    pub(super) seconds: f64,
    /// Products and sums.
    pub(super) flops: f64,
    /// Relative L2 distance of sampled results from sums in f64, that of the worst tile.
    pub(super) error: f64,
    /// Sampled results that are not the same bits in all tiles.
    pub(super) differing: usize,
    /// Into how many parts `k` was split.
    splits: usize,
    /// Every tile that may be the fastest with its seconds, the one that is estimated to be first.
    pub(super) tiles: Vec<(String, f64)>,
    /// The same by the library in its best algorithm; `None` where there is no library, or it has none.
    pub(super) library: Option<ByLibrary>,
}

/// A product by the vendor's library.
#[derive(Debug, Clone)]
pub(super) struct ByLibrary {
    /// Its version in words.
    pub(super) version: String,
    pub(super) seconds: f64,
    /// As [`Timed::error`].
    pub(super) error: f64,
}

impl Timed {
    /// The fastest tile, and by how much the estimate errs.
    pub(super) fn tiling(&self) -> String {
        let (estimated, estimated_s) = &self.tiles[0];
        let fastest = self.tiles.iter().find(|(_, seconds)| *seconds == self.seconds);
        let fastest = fastest.map_or(estimated, |(tile, _)| tile);
        let parts = if self.splits > 1 { format!(", k in {} parts", self.splits) } else { String::new() };
        let others = self.tiles.len();
        if fastest == estimated {
            return format!("tile {fastest}{parts}: fastest of {others}, as estimated");
        }
        format!(
            "tile {fastest}{parts}: fastest of {others}; the estimated {estimated} takes {:.2} of its time",
            estimated_s / self.seconds
        )
    }
}

/// Numbers after which operands repeat; a prime.
const PERIOD: usize = (1 << 20) - 3;

/// Memory that operands are cut out of: one stretch for the left ones and one for the right ones, each longer
/// than the L2.
pub(super) struct Operands {
    left: Operand,
    right: Operand,
}

struct Operand {
    /// `[1, PERIOD]` on the host, as bf16 has them.
    numbers: Vec<f32>,
    /// The same numbers, repeated.
    stretch: CudaTensor,
}

impl Operand {
    /// At least `count` numbers.
    fn new(meter: &Meter, seed: u64, count: usize) -> Self {
        let least = if meter.is_tiny { 0 } else { 1 << 27 };
        let block = random(seed, 1, PERIOD).cast(DType::BF16).cast(DType::F32);
        let on_device = into_tensor(meter.upload(block.clone(), DType::BF16));
        // Without the padding that burn adds to rows of such a length.
        let stretch = primitive(on_device.repeat_dim(0, count.max(least).div_ceil(PERIOD)));
        let numbers = block.into_data().try_to_vec().expect("was cast to f32");
        Self { numbers, stretch }
    }

    /// A matrix that begins `turn` steps further than the first; no two of a few turns share numbers where
    /// there is room.
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

impl Meter {
    /// Multiplies the largest matrices that our own kernel is timed with. The rate is the ceiling of all ops
    /// that compute, as far as it is known here.
    pub(super) fn largest_product(&self) -> Measured {
        let side = if self.is_tiny { 128 } else { 8192 };
        let operands = Operands::new(self, side * side, side * side);
        let product = operands.measure(self, Layout::Nt, [side; 3]);
        let work = work::product(side, side, side, 2.0);
        Measured {
            name: "matrix product".into(),
            shape: format!("{side}×{side}×{side}"),
            error: product.error,
            worst: None,
            tolerance: TOLERANCE,
            seconds: Some(product.seconds),
            bytes: 6.0 * (side * side) as f64,
            flops: work.flops,
            work: vec![work],
            note: format!("the floors' FLOP/s; {}", product.tiling()),
        }
    }
}

impl Operands {
    /// Creates operands for products with at most this many numbers on each side.
    pub(super) fn new(meter: &Meter, left: usize, right: usize) -> Self {
        Self { left: Operand::new(meter, 1, left), right: Operand::new(meter, 2, right) }
    }

    /// Times `C [m, n] = A [m, k] · B [k, n]` in every tile that may be the fastest, and compares some of its
    /// numbers with sums in f64 and with those of the other tiles.
    pub(super) fn measure(&self, meter: &Meter, layout: Layout, [m, n, k]: [usize; 3]) -> Timed {
        let (which, left, right) = match layout {
            Layout::Nt => (Product::Forward, [m, k], [n, k]),
            Layout::Nn => (Product::Input, [m, k], [k, n]),
            Layout::Tn => (Product::Weight, [k, m], [k, n]),
        };
        let run =
            |turn: usize| product(which, &self.left.matrix(left, turn), &self.right.matrix(right, turn), 1.0);
        let (_, splits, _) = tiling(which, &self.left.stretch, [m, n, k]);
        let problem = which.problem([m, n, k], splits);
        let (mut error, mut differing, mut seconds) = (0.0f64, 0, f64::INFINITY);
        let (mut tiles, mut in_first) = (Vec::new(), None);
        for tile in problem.candidates(&self.left.stretch) {
            remember(&problem, tile);
            let found = sampled(run(0), [m, n]);
            let of_tile = self.error(layout, [m, n, k], &found);
            // NaN counts as the largest error.
            error = if error.is_nan() || of_tile <= error { error } else { of_tile };
            let first = in_first.get_or_insert_with(|| found.clone());
            differing += first.iter().zip(&found).filter(|(a, b)| a.2.to_bits() != b.2.to_bits()).count();
            let took = meter.seconds(Pace { queue_s: 0.005, times: 5 }, |turn| drop(run(turn)));
            seconds = took.min(seconds);
            tiles.push((tile.to_string(), took));
        }
        let library = seek(&meter.device, &[]).and_then(|version| {
            use_library(Some(version));
            let library = problem.algorithms(&meter.device).map(|algorithms| {
                decide(&problem, Decision::Library(algorithms));
                let error = self.error(layout, [m, n, k], &sampled(run(0), [m, n]));
                let seconds = meter.seconds(Pace { queue_s: 0.005, times: 5 }, |turn| drop(run(turn)));
                ByLibrary { version: version_in_words(version), seconds, error }
            });
            use_library(None);
            decide_as("").expect("no line is wrong");
            library
        });
        Timed { seconds, flops: 2.0 * (m * n * k) as f64, error, differing, splits, tiles, library }
    }

    /// Relative L2 distance of sampled results.
    fn error(&self, layout: Layout, [m, n, k]: [usize; 3], sampled: &[Sampled]) -> f64 {
        let (mut difference, mut norm) = (0.0, 0.0);
        for (row, column, found) in sampled {
            let left = |l: usize| if layout == Layout::Tn { l * m + row } else { row * k + l };
            let right = |l: usize| if layout == Layout::Nt { column * k + l } else { l * n + column };
            let expected: f64 = (0..k).map(|l| self.left.at(left(l)) * self.right.at(right(l))).sum();
            difference += (f64::from(*found) - expected).powi(2);
            norm += expected.powi(2);
        }
        (difference / norm).sqrt()
    }
}

/// Row, column and number of a result.
type Sampled = (usize, usize, f32);

/// Some numbers of `C [m, n]`.
fn sampled(c: CudaTensor, [m, n]: [usize; 2]) -> Vec<Sampled> {
    let c: Tensor<2> = into_tensor(c);
    let mut sampled = Vec::new();
    for row in [0, m / 3, m / 2 + 1, m - 1].map(|row| row.min(m - 1)) {
        let found = c.clone().narrow(0, row, 1).into_data().convert::<f32>();
        let found = found.try_to_vec::<f32>().expect("was converted to f32");
        let columns = (0..32).map(|i| (i * (n - 1) / 31 + i % 3).min(n - 1));
        sampled.extend(columns.map(|column| (row, column, found[column])));
    }
    sampled
}
