//! In which tile each product of matrices is computed: the fastest where that was measured, the estimated one
//! elsewhere.
//!
//! The tile changes no bit of a result, which `linear.test.cpp` and `lora_linear.test.cpp` hold it to, so
//! what is known may come and go between two launches. Into how many parts `k` is split does change bits:
//! that is the estimate's, and a tile is measured for that number of parts.
//!
//! What is known belongs to a thread, as the device's queue does. Of files this knows nothing: it speaks
//! lines.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Instant;

use burn::tensor::Device;
use cubecl::future::block_on;

use super::cuda::{Columns, Gradient, Product, device, product};
use super::tile::{ALL, Tile, WIDE};
use crate::compare::random;
use crate::cuda::{CudaTensor, as_bf16, dims, into_tensor, part, primitive, view};
use crate::lora_linear::cuda::{input_gradient, output};

/// The kernels that compute products, and the tiles each is compiled with.
const KERNELS: [(&str, &[Tile]); 5] = [
    ("linear_forward", &ALL),
    ("linear_backward_input", &ALL),
    ("linear_backward_weight", &ALL),
    ("lora_linear_forward", &WIDE),
    ("lora_linears_backward_input", &WIDE),
];

/// Launches that are queued before the device is waited for fill about this many seconds.
const QUEUE_S: f64 = 0.004;
/// So many times; the shortest counts.
const TIMES: usize = 3;

/// A product that has to be computed.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Problem {
    /// One of [`KERNELS`].
    pub(crate) kernel: &'static str,
    /// All that do not count tokens, as [`shapes`](Self::shapes) reads them.
    pub(crate) sizes: Vec<usize>,
    /// Into how many parts `k` is split.
    pub(crate) splits: usize,
    pub(crate) tokens: usize,
}

/// What a thread knows of tiles.
#[derive(Default)]
struct Known {
    measured: BTreeMap<Problem, Tile>,
    /// What was computed in an estimated tile, where somebody listens.
    missed: Option<BTreeSet<Problem>>,
}

thread_local! {
    static KNOWN: RefCell<Known> = RefCell::default();
}

/// The tile that a product is computed in.
pub(crate) fn tile(problem: Problem, estimated: Tile) -> Tile {
    KNOWN.with_borrow_mut(|known| {
        let measured = known.measured_for(&problem);
        if let (None, Some(missed)) = (measured, &mut known.missed) {
            missed.insert(problem);
        }
        measured.unwrap_or(estimated)
    })
}

/// From now on a product is computed in this tile.
pub fn remember(problem: &Problem, tile: Tile) {
    KNOWN.with_borrow_mut(|known| known.measured.insert(problem.clone(), tile));
}

/// Forgets every tile and takes those of the lines that [`learned`] made.
///
/// # Errors
/// The number of a line that names no product, or a tile that its kernel is not compiled with. Nothing is
/// known then.
pub fn learn(lines: &str) -> Result<(), usize> {
    let measured = lines.lines().zip(1..).map(|(line, number)| measured(line).ok_or(number));
    let measured = measured.collect::<Result<_, _>>();
    KNOWN.with_borrow_mut(|known| known.measured = measured.clone().unwrap_or_default());
    measured.map(drop)
}

/// All tiles that were measured, a line for each.
pub fn learned() -> String {
    KNOWN.with_borrow(|known| {
        known.measured.iter().map(|(problem, tile)| format!("{problem} {tile}\n")).collect()
    })
}

/// From now on products that are computed in an estimated tile are taken note of.
pub fn listen() {
    KNOWN.with_borrow_mut(|known| known.missed = Some(BTreeSet::new()));
}

/// Those since [`listen`], which ends here; none where nobody listened. One with more tokens stands for those
/// it is near to.
pub fn missed() -> Vec<Problem> {
    let missed = KNOWN.with_borrow_mut(|known| known.missed.take()).unwrap_or_default();
    let mut different: Vec<Problem> = Vec::new();
    for problem in missed.into_iter().rev() {
        let is_near = |last: &Problem| last.near().contains(&problem);
        if !different.last().is_some_and(is_near) {
            different.push(problem);
        }
    }
    different
}

impl Known {
    fn measured_for(&self, problem: &Problem) -> Option<Tile> {
        let near = self.measured.range(problem.near());
        near.min_by_key(|(of, _)| of.tokens.abs_diff(problem.tokens)).map(|(_, tile)| *tile)
    }
}

/// Reads what [`learned`] writes.
fn measured(line: &str) -> Option<(Problem, Tile)> {
    let fields: Vec<&str> = line.split(' ').collect();
    let [kernel, sizes, splits, tokens, tile] = fields[..] else { return None };
    let (kernel, tiles) = *KERNELS.iter().find(|(name, _)| *name == kernel)?;
    let sizes = sizes.split(',').map(|size| size.parse().ok()).collect::<Option<_>>()?;
    let tile = tiles.iter().find(|compiled| compiled.to_string() == tile)?;
    Some((Problem { kernel, sizes, splits: splits.parse().ok()?, tokens: tokens.parse().ok()? }, *tile))
}

/// A line without its tile.
impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let Self { kernel, sizes, splits, tokens } = self;
        let sizes: Vec<String> = sizes.iter().map(usize::to_string).collect();
        write!(f, "{kernel} {} {splits} {tokens}", sizes.join(","))
    }
}

impl Problem {
    /// The same with half to twice as many tokens: what is the fastest tile for one is taken for the other.
    fn near(&self) -> std::ops::RangeInclusive<Self> {
        let with = |tokens| Self { tokens, ..self.clone() };
        with(self.tokens.div_ceil(2))..=with(self.tokens.saturating_mul(2))
    }

    /// `m`, `n` and `k`, and its operands in the order of [`launch`](Self::launch).
    fn shapes(&self) -> ([usize; 3], Vec<[usize; 2]>) {
        let t = self.tokens;
        match (self.kernel, &self.sizes[..]) {
            ("linear_forward", &[n, k]) => ([t, n, k], vec![[t, k], [n, k]]),
            ("linear_backward_input", &[n, k]) => ([t, n, k], vec![[t, k], [k, n]]),
            ("linear_backward_weight", &[m, n]) => ([m, n, t], vec![[t, m], [t, n]]),
            ("lora_linear_forward", &[n, k, rank]) => {
                ([t, n, k + rank], vec![[t, k], [n, k], [t, rank], [n, rank]])
            }
            ("lora_linears_backward_input", &[n, rank, ref outputs @ ..]) => {
                let adapters = (rank > 0).then_some([[t, rank], [rank, n]]);
                let d_y = outputs.iter().map(|outputs| [t, *outputs]);
                let weights = outputs.iter().map(|outputs| [*outputs, n]);
                let operands = adapters.into_iter().flatten().chain(d_y).chain(weights).collect();
                ([t, n, outputs.iter().sum::<usize>() + rank], operands)
            }
            other => unreachable!("{other:?} is no product"),
        }
    }

    fn launch(&self, operands: &[CudaTensor]) -> CudaTensor {
        let gradient = |d_y: &CudaTensor| Gradient::new(d_y.clone());
        match (self.kernel, operands) {
            ("linear_forward", [x, weight]) => product(Product::Forward, x, weight, 1.0),
            ("linear_backward_input", [d_y, weight]) => {
                product(Product::Input, gradient(d_y).columns(), weight, 1.0)
            }
            ("linear_backward_weight", [d_y, x]) => product(Product::Weight, gradient(d_y).columns(), x, 1.0),
            ("lora_linear_forward", [x, weight, u, b]) => output(x, weight, Columns::from(u), b),
            (_, operands) => {
                let (adapters, layers) = operands.split_at(operands.len() - 2 * (self.sizes.len() - 2));
                let (d_y, weights) = layers.split_at(layers.len() / 2);
                let d_y: Vec<Gradient> = d_y.iter().map(gradient).collect();
                input_gradient(&d_y, weights, adapters.first().zip(adapters.last()))
            }
        }
    }

    /// The tiles that may be the fastest, the estimated one first.
    pub fn candidates(&self, beside: &CudaTensor) -> Vec<Tile> {
        let (_, tiles) = KERNELS.iter().find(|(name, _)| *name == self.kernel).expect("one of the kernels");
        device(beside).worth_trying(tiles, self.shapes().0, self.splits)
    }

    /// Times it in all tiles that may be the fastest, with numbers of its own, and remembers which is. Says
    /// whether that is another than the estimated one. A tile that the device refuses is passed over.
    pub fn measure(&self, device: &Device) -> bool {
        let operands = operands(&self.shapes().1, device);
        let candidates = self.candidates(&operands[0]);
        let timed = candidates.iter().filter_map(|tile| {
            remember(self, *tile);
            seconds(|| self.launch(&operands)).map(|seconds| (*tile, seconds))
        });
        let fastest = timed.min_by(|(_, a), (_, b)| a.total_cmp(b)).map(|(tile, _)| tile);
        remember(self, fastest.unwrap_or(candidates[0]));
        fastest.is_some_and(|tile| tile != candidates[0])
    }
}

/// Seconds of one launch, by the clock between two waits for the device. None where the device refuses it.
fn seconds(launch: impl Fn() -> CudaTensor) -> Option<f64> {
    let timed = |launches: usize| {
        let began = Instant::now();
        let last = (1..launches).fold(launch(), |_, _| launch());
        block_on(last.client.sync()).expect("the device does what was queued");
        let seconds = began.elapsed().as_secs_f64() / launches as f64;
        block_on(last.client.sync_buffers([&last.handle])).ok().map(|()| seconds)
    };
    // The first one compiles, the second one tells how many there is time for.
    timed(1)?;
    let launches = (QUEUE_S / timed(1)?).clamp(1.0, 100.0) as usize;
    (0..TIMES).try_fold(f64::INFINITY, |least, _| Some(timed(launches)?.min(least)))
}

/// Matrices of these shapes, full of numbers, each in a place of its own.
fn operands(shapes: &[[usize; 2]], device: &Device) -> Vec<CudaTensor> {
    const WIDTH: usize = 4096;
    const HEIGHT: usize = 256;
    let room = |[rows, columns]: [usize; 2]| (rows * columns).next_multiple_of(128);
    let height = shapes.iter().copied().map(room).sum::<usize>().div_ceil(WIDTH);
    let block = random(1, height.min(HEIGHT), WIDTH).to_device(device);
    let block = into_tensor(as_bf16(primitive(block)));
    let stretch = primitive(block.repeat_dim(0, height.div_ceil(HEIGHT)));
    let numbers = dims(&stretch).0 * WIDTH;
    let stretch = view(stretch, [1, numbers]);
    let mut first = 0;
    let mut cut = |[rows, columns]: [usize; 2]| {
        let from = first;
        first += room([rows, columns]);
        view(part(&stretch, from, rows * columns), [rows, columns])
    };
    shapes.iter().map(|shape| cut(*shape)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cuda::{Kernel, like, sizes};
    use crate::testing::cuda_device;

    fn problem(kernel: &'static str, sizes: &[usize], splits: usize, tokens: usize) -> Problem {
        Problem { kernel, sizes: sizes.to_vec(), splits, tokens }
    }

    /// Every kernel, with odd numbers of tokens.
    fn problems() -> Vec<Problem> {
        vec![
            problem("linear_forward", &[72, 40], 1, 67),
            problem("linear_backward_input", &[40, 72], 1, 67),
            problem("linear_backward_input", &[40, 12], 1, 67),
            problem("linear_backward_weight", &[72, 40], 1, 67),
            problem("linear_backward_weight", &[8, 16], 2, 700),
            problem("linear_backward_weight", &[4, 16], 1, 67),
            problem("lora_linear_forward", &[72, 40, 24], 1, 67),
            problem("lora_linears_backward_input", &[40, 24, 72, 12, 16], 1, 67),
            problem("lora_linears_backward_input", &[40, 0, 72, 16], 1, 67),
        ]
    }

    #[test]
    fn what_was_learned_is_read_back_and_nothing_else() {
        learn("").unwrap();
        for (problem, tile) in problems().iter().zip(WIDE.iter().cycle()) {
            remember(problem, *tile);
        }
        let lines = learned();
        assert_eq!(lines.lines().count(), problems().len());
        assert!(
            lines.contains("lora_linears_backward_input 40,24,72,12,16 1 67 128,256,32,2,4,4\n"),
            "{lines}"
        );
        learn("").unwrap();
        assert_eq!(learned(), "");
        learn(&lines).unwrap();
        assert_eq!(learned(), lines);
        let good = "linear_forward 72,40 1 67 16,64,64,1,4,4\n";
        for bad in [
            "",
            "linear_forward",
            "linear_sideways 72,40 1 67 16,64,64,1,4,4",
            "linear_forward 72,forty 1 67 16,64,64,1,4,4",
            "linear_forward 72,40 -1 67 16,64,64,1,4,4",
            // Not compiled, or not with this kernel.
            "linear_forward 72,40 1 67 512,512,32,2,2,3",
            "lora_linear_forward 72,40,24 1 67 16,64,64,1,4,4",
        ] {
            assert_eq!(learn(&format!("{good}{bad}\n{good}")), Err(2), "{bad}");
            assert_eq!(learned(), "", "{bad}");
        }
    }

    #[test]
    fn a_tile_is_taken_for_half_to_twice_as_many_tokens_of_the_same_product() {
        learn("linear_forward 72,40 1 100 64,64,64,2,2,3\nlinear_forward 72,40 1 300 128,128,32,2,2,3\n")
            .unwrap();
        listen();
        let of = |tokens, sizes: &[usize]| tile(problem("linear_forward", sizes, 1, tokens), ALL[4]);
        for (tokens, expected) in [(49, 4), (50, 2), (100, 2), (180, 2), (240, 0), (600, 0), (601, 4)] {
            assert_eq!(of(tokens, &[72, 40]), ALL[expected], "{tokens}");
        }
        assert_eq!(of(100, &[40, 72]), ALL[4]);
        assert_eq!(tile(problem("linear_backward_weight", &[72, 40], 1, 100), ALL[4]), ALL[4]);
        // One with 601 stands for one with 400.
        learn("").unwrap();
        assert_eq!(of(400, &[72, 40]), ALL[4]);
        let missed_ones: Vec<String> = missed().iter().map(Problem::to_string).collect();
        let expected = [
            "linear_forward 72,40 1 601",
            "linear_forward 72,40 1 49",
            "linear_forward 40,72 1 100",
            "linear_backward_weight 72,40 1 100",
        ];
        assert_eq!(missed_ones, expected);
        of(1, &[8, 8]);
        assert_eq!(missed(), [], "nobody listens");
    }

    #[test]
    fn the_tile_changes_no_bit_on_device() {
        let Some(device) = cuda_device() else { return };
        learn("").unwrap();
        for problem in problems() {
            let operands = operands(&problem.shapes().1, &device);
            let (_, tiles) = KERNELS.iter().find(|(name, _)| *name == problem.kernel).unwrap();
            let in_tile = |tile: &Tile| {
                remember(&problem, *tile);
                into_tensor(problem.launch(&operands)).into_data()
            };
            let first = in_tile(&tiles[0]);
            let numbers = first.clone().convert::<f32>().try_to_vec::<f32>().unwrap();
            assert!(numbers.iter().all(|x| x.is_finite()) && numbers.iter().any(|x| *x != 0.0), "{problem}");
            for tile in &tiles[1..] {
                assert!(in_tile(tile) == first, "{problem} in {tile}");
            }
        }
    }

    #[test]
    fn a_tile_that_is_refused_on_device_is_passed_over() {
        let Some(device) = cuda_device() else { return };
        let problem = problem("linear_forward", &[72, 40], 1, 67);
        let operands = operands(&problem.shapes().1, &device);
        let refused = || {
            let result = like(&operands[0]);
            Kernel::new("linear/linear.cuh", "linear_forward")
                .define("TILE", "no numbers")
                .threads(32)
                .read(&operands[0])
                .read(&operands[1])
                .write(&result)
                .launch(sizes![0u32]);
            result
        };
        assert_eq!(seconds(refused), None);
        assert!(seconds(|| problem.launch(&operands)).is_some());
    }

    #[test]
    fn what_is_launched_on_device_is_missed_then_measured_then_known() {
        let Some(device) = cuda_device() else { return };
        learn("").unwrap();
        for problem in problems() {
            let operands = operands(&problem.shapes().1, &device);
            let launch = || {
                listen();
                let result = problem.launch(&operands);
                assert_eq!(dims(&result), (problem.shapes().0[0], problem.shapes().0[1]));
                missed()
            };
            assert_eq!(launch(), std::slice::from_ref(&problem));
            let tiles = problem.candidates(&operands[0]);
            assert!(tiles.len() > 1, "{problem}: {tiles:?}");
            let is_another = problem.measure(&device);
            let known = tile(problem.clone(), ALL[0]);
            assert!(tiles.contains(&known) && is_another == (known != tiles[0]), "{problem}: {known}");
            assert_eq!(launch(), []);
        }
        assert_eq!(learned().lines().count(), problems().len());
    }
}
