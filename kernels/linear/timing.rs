//! Times products in the tiles that may be the fastest for them, and by the vendor's library where that may
//! be used, on a CUDA device and with numbers of its own.

use std::time::Instant;

use burn::tensor::{DType, Device, TensorData};
use cubecl::future::block_on;

use super::cuda::{Columns, Gradient, Product, device, product};
use super::tile::{APART, Tile};
use super::tuning::{
    Decision, GATED_INPUT, GATED_OUTPUT, KERNELS, Part, Problem, by_own_kernels, decide, library, remember,
};
use crate::compare::random;
use crate::cublaslt::{Algorithm, multiply, repeated, search};
use crate::cuda::{CudaTensor, as_bf16, dims, empty, into_tensor, part, primitive, view};
use crate::lora_linear::cuda::{gated_input_gradient, gated_output, input_gradient, output};

/// The duration in seconds of the launches that are queued before waiting for the device.
const QUEUE_S: f64 = 0.004;
/// The number of measurements, of which the shortest counts.
const TIMES: usize = 3;
/// The number of the library's algorithms that are timed for a product, those that it thinks fastest.
const ALGORITHMS: usize = 4;
/// The share of our kernel's time that the library has to stay below. What is nearly as fast would be chosen
/// by chance, and runs would differ in their bits for nothing.
const FASTER: f64 = 0.97;
/// The largest relative error of rounding to bf16, and of rounding to f32 and of a sum in tensor cores, which
/// may cut off instead of rounding.
const OF_BF16: f64 = 1.0 / 256.0;
const OF_F32: f64 = 1.0 / (1 << 23) as f64;

impl Problem {
    fn launch(&self, operands: &[CudaTensor]) -> CudaTensor {
        let gradient = |d_y: &CudaTensor| Gradient::new(d_y.clone());
        match (self.kernel, operands) {
            ("linear_forward", [x, weight]) => product(Product::Forward, x, weight, 1.0),
            ("linear_backward_input", [d_y, weight]) => {
                product(Product::Input, gradient(d_y).columns(), weight, 1.0)
            }
            ("linear_backward_weight", [d_y, x]) => product(Product::Weight, gradient(d_y).columns(), x, 1.0),
            ("lora_linear_forward", [x, weight, u, b]) => output(x, weight, Columns::from(u), b),
            // Up comes with it.
            (GATED_OUTPUT, [x, weight, gate, adapter @ ..]) => {
                let adapter = adapter.first().map(Columns::from).zip(adapter.last());
                let [_, product] = gated_output(x, weight, adapter, gate);
                product
            }
            // The other gradient comes with it.
            (GATED_INPUT, [d_y, weight, gate, up, adapter @ ..]) => {
                let adapter = adapter.first().zip(adapter.last());
                let [d_gate, _] = gated_input_gradient(&gradient(d_y), weight, adapter, [gate, up]);
                d_gate
            }
            (_, operands) => {
                let (adapters, layers) = operands.split_at(operands.len() - 2 * (self.sizes.len() - 2));
                let (d_y, weights) = layers.split_at(layers.len() / 2);
                let d_y: Vec<Gradient> = d_y.iter().map(gradient).collect();
                input_gradient(&d_y, weights, adapters.first().zip(adapters.last()))
            }
        }
    }

    /// Returns the tiles that may be the fastest, the estimated one first.
    pub fn candidates(&self, like: &CudaTensor) -> Vec<Tile> {
        let (_, tiles) = KERNELS.iter().find(|(name, _)| *name == self.kernel).expect("one of the kernels");
        let mut candidates = device(like).worth_trying(
            tiles.strip_suffix(&[APART]).unwrap_or(tiles),
            self.shapes().0,
            self.splits,
        );
        candidates.extend(tiles.last().filter(|tile| **tile == APART));
        candidates
    }

    /// Times the product in all tiles that may be the fastest, with generated operands, and stores the
    /// fastest one. Tiles that the device refuses are skipped. While it is decided about the library, decides
    /// between it and that tile: it is taken where it is faster and its numbers are those of our kernel but
    /// for rounding. Returns whether the product is computed in another way than was estimated.
    pub fn measure(&self, device: &Device) -> bool {
        if let Some(apart) = self.apart() {
            apart.measure(device);
        }
        let operands = operands(&self.shapes().1, device);
        let candidates = self.candidates(&operands[0]);
        let timed = candidates.iter().filter_map(|tile| {
            remember(self, *tile);
            seconds(|| self.launch(&operands)).map(|seconds| (*tile, seconds))
        });
        let fastest = by_own_kernels(|| timed.min_by(|(_, a), (_, b)| a.total_cmp(b)));
        let tile = fastest.map_or(candidates[0], |(tile, _)| tile);
        remember(self, tile);
        let Some(version) = library() else { return tile != candidates[0] };
        let own = fastest.map_or(f64::INFINITY, |(_, seconds)| seconds);
        let is_taken = self.best_algorithms(&operands).is_some_and(|algorithms| {
            decide(self, Decision::Library(algorithms));
            let found = seconds(|| self.launch(&operands));
            found.is_some_and(|found| found < FASTER * own) && self.agrees(&operands)
        });
        if !is_taken {
            decide(self, Decision::Own(version));
        }
        is_taken || tile != candidates[0]
    }

    /// Returns the library's fastest algorithm for each product of two matrices of which this one is the sum,
    /// timed with generated operands; `None` if it has none for one of them.
    pub fn algorithms(&self, device: &Device) -> Option<Vec<Algorithm>> {
        self.best_algorithms(&operands(&self.shapes().1, device))
    }

    fn best_algorithms(&self, operands: &[CudaTensor]) -> Option<Vec<Algorithm>> {
        let parts = self.parts();
        if parts.is_empty() || !parts.iter().all(|part| part.which.form(part.size).is_aligned()) {
            return None;
        }
        let parts = parts.iter().enumerate();
        let best = parts.map(|(i, part)| {
            let added = i > 0 || self.begins_with_adapter();
            best_algorithm(part, operands, added, self.result(&operands[0]), self.rounding(1))
        });
        best.collect()
    }

    /// Returns whether the product, as it was decided, has our kernel's numbers but for rounding.
    fn agrees(&self, operands: &[CudaTensor]) -> bool {
        let terms = self.parts().len() + usize::from(self.begins_with_adapter());
        let run = || numbers(into_tensor(self.launch(operands)).into_data());
        agree(&by_own_kernels(run), &run(), self.rounding(terms))
    }

    /// Returns how far two results of the product may be apart by rounding, relative to their size: our
    /// kernel's, which is rounded to bf16 once, and one that is rounded after each of so many terms. Both are
    /// sums in f32, in which every addition rounds. A gradient of a weight stays in f32.
    fn rounding(&self, terms: usize) -> f64 {
        let ([_, _, k], _) = self.shapes();
        let to_bf16 = if self.is_f32() { 0.0 } else { (1 + terms) as f64 * OF_BF16 };
        to_bf16 + 2.0 * k as f64 * OF_F32
    }

    fn is_f32(&self) -> bool {
        self.kernel == "linear_backward_weight"
    }

    /// Returns memory for the product.
    fn result(&self, like: &CudaTensor) -> CudaTensor {
        let ([m, n, _], _) = self.shapes();
        empty(like, [m, n], if self.is_f32() { DType::F32 } else { DType::BF16 })
    }
}

/// Returns the fastest algorithm that always gives the same bits, and the numbers of our kernel within this
/// bound. `c` is memory for results.
fn best_algorithm(
    part: &Part,
    operands: &[CudaTensor],
    added: bool,
    c: CudaTensor,
    bound: f64,
) -> Option<Algorithm> {
    let (form, [a, b]) = (part.which.form(part.size), part.operands.map(|place| &operands[place]));
    let run = |algorithm: &Algorithm, added| {
        multiply(form, *algorithm, 1.0, a, b, &c, added);
        c.clone()
    };
    let mut timed: Vec<(f64, Algorithm)> = Vec::new();
    for algorithm in search(form, &c, ALGORITHMS) {
        // What is added to has to be written first.
        run(&algorithm, false);
        timed.extend(seconds(|| run(&algorithm, added)).map(|seconds| (seconds, algorithm)));
    }
    timed.sort_by(|(one, _), (other, _)| one.total_cmp(other));
    let ours = by_own_kernels(|| numbers(into_tensor(product(part.which, a, b, 1.0)).into_data()));
    let is_right = |one: &Algorithm| {
        repeated(form, *one, [a, b, &c]).is_some_and(|theirs| agree(&ours, &numbers(theirs), bound))
    };
    timed.into_iter().map(|(_, algorithm)| algorithm).find(is_right)
}

fn numbers(result: TensorData) -> Vec<f32> {
    result.convert::<f32>().try_to_vec().expect("was converted to f32")
}

/// Returns whether two results differ by no more than a bound: their distance relative to the length of ours,
/// and each number relative to our largest. The second finds a single wrong number, the first many that are
/// only inexact. No number that is not finite agrees with anything.
fn agree(ours: &[f32], theirs: &[f32], bound: f64) -> bool {
    let (mut squares, mut distance, mut largest, mut farthest) = (0.0f64, 0.0f64, 0.0f64, 0.0f64);
    for (our, their) in ours.iter().zip(theirs) {
        let (our, difference) = (f64::from(*our), f64::from(*our) - f64::from(*their));
        if !difference.is_finite() {
            return false;
        }
        squares += our * our;
        distance += difference * difference;
        largest = largest.max(our.abs());
        farthest = farthest.max(difference.abs());
    }
    ours.len() == theirs.len() && distance.sqrt() <= bound * squares.sqrt() && farthest <= bound * largest
}

/// Returns the duration of one launch in seconds, measured between two waits for the device, or `None` if the
/// device refuses it.
fn seconds(launch: impl Fn() -> CudaTensor) -> Option<f64> {
    let timed = |launches: usize| {
        let began = Instant::now();
        let last = (1..launches).fold(launch(), |_, _| launch());
        block_on(last.client.sync()).expect("the device does what was queued");
        let seconds = began.elapsed().as_secs_f64() / launches as f64;
        block_on(last.client.sync_buffers([&last.handle])).ok().map(|()| seconds)
    };
    // The first launch compiles; the second one shows how many there is time for.
    timed(1)?;
    let launches = (QUEUE_S / timed(1)?).clamp(1.0, 100.0) as usize;
    (0..TIMES).try_fold(f64::INFINITY, |least, _| Some(timed(launches)?.min(least)))
}

/// Returns matrices of these shapes with generated numbers, each in separate memory.
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
    use burn::tensor::Tensor;

    use super::*;
    use crate::compare::distance;
    use crate::cublaslt::on_device::{device_and_library, device_and_stand_in};
    use crate::cublaslt::{fitting, products};
    use crate::cuda::{Kernel, empty_like, sizes};
    use crate::linear::tile::ALL;
    use crate::linear::tuning::tests::{problem, problems};
    use crate::linear::tuning::{
        decide_as, decisions, learn, learned, listen, missed, refusals, tile, use_library,
    };
    use crate::testing::cuda_device;

    #[test]
    fn results_agree_that_differ_by_rounding_and_no_others() {
        let ours: Vec<f32> = random(1, 1, 1000).into_data().try_to_vec().unwrap();
        let with = |change: &dyn Fn(usize, f32) -> f32| -> Vec<f32> {
            ours.iter().enumerate().map(|(i, x)| change(i, *x)).collect()
        };
        let bound = problem("linear_forward", &[72, 40], 1, 67).rounding(1);
        assert!((2.0 * OF_BF16..2.1 * OF_BF16).contains(&bound));
        let unit = OF_BF16 as f32;
        let agrees = |theirs: &[f32]| agree(&ours, theirs, bound);
        assert!(agrees(&ours) && agrees(&with(&|i, x| if i % 2 == 0 { x * (1.0 + unit) } else { x })));
        // Each is only a little off, and all are.
        assert!(!agrees(&with(&|_, x| x * (1.0 + 2.5 * unit))));
        let one = |wrong: f32| with(&|i, x| if i == 700 { wrong } else { x });
        for wrong in [ours[700] + 0.2, -5.0, f32::NAN, f32::INFINITY] {
            assert!(!agrees(&one(wrong)), "{wrong}");
        }
        assert!(!agrees(&ours[1..]) && !agrees(&[]));
        assert!(!agree(&[f32::NAN], &[f32::NAN], bound));
        // A gradient of a weight is not rounded to bf16.
        let exact = problem("linear_backward_weight", &[72, 40], 1, 5376).rounding(1);
        assert!(!agree(&ours, &with(&|_, x| x * (1.0 + unit)), exact));
        assert!(agree(&ours, &with(&|_, x| x * (1.0 + f32::EPSILON)), exact));
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
    fn what_the_library_computes_on_device_is_within_the_rounding_of_our_kernels() {
        let Some((device, version)) = device_and_library() else { return };
        learn("").unwrap();
        for problem in problems().into_iter().filter(|problem| !problem.parts().is_empty()) {
            let operands = operands(&problem.shapes().1, &device);
            let run = |of_library| {
                use_library(of_library);
                let result = into_tensor(problem.launch(&operands)).into_data().convert::<f32>();
                use_library(None);
                Tensor::<2>::from_data(result, &Device::flex())
            };
            let ours = run(None);
            let Some(algorithms) = problem.algorithms(&device) else {
                let is_ragged = |size: &usize| !size.is_multiple_of(8);
                assert!(problem.sizes.iter().any(is_ragged), "{problem} has no algorithm");
                continue;
            };
            decide(&problem, Decision::Library(algorithms.clone()));
            let before = products();
            let error = distance(&run(Some(version)), &ours);
            assert_eq!(products() - before, algorithms.len() as u64, "{problem}");
            assert!(error <= 6e-3, "{problem}: {error:e}");
        }
    }

    /// One of the stand-in's algorithms computes only even numbers of tokens, and fails for others.
    #[test]
    fn what_the_library_refuses_is_computed_on_device_by_our_kernel_and_that_is_recorded() {
        let Some((device, version)) = device_and_stand_in() else { return };
        for of in [
            problem("linear_backward_weight", &[72, 40], 1, 66),
            problem("lora_linears_backward_input", &[40, 24, 72, 16], 1, 66),
        ] {
            let run = |tokens| {
                let problem = Problem { tokens, ..of.clone() };
                let before = products();
                let result = problem.launch(&operands(&problem.shapes().1, &device));
                (into_tensor(result).into_data(), products() - before)
            };
            learn("").unwrap();
            use_library(None);
            let counts = [66, 67, 33, 132, 35, 64, 131];
            let ours = counts.map(|tokens| run(tokens).0);

            let like = &operands(&[[8, 8]], &device)[0];
            let particular = |part: &Part| {
                let mut odd = part.size;
                odd[if part.which == Product::Weight { 2 } else { 0 }] = 67;
                let refuses = |one: &Algorithm| fitting(vec![(part.which.form(odd), *one)], like).is_none();
                search(part.which.form(part.size), like, 8).into_iter().find(refuses).unwrap()
            };
            let algorithms: Vec<_> = of.parts().iter().map(particular).collect();
            let parts = algorithms.len() as u64;
            use_library(Some(version));
            decide_as("").unwrap();
            decide(&of, Decision::Library(algorithms));
            let mixed = counts.map(&run);
            for (((data, by_library), ours), tokens) in mixed.iter().zip(&ours).zip(counts) {
                let is_odd = tokens % 2 == 1;
                assert_eq!(*by_library, if is_odd { 0 } else { parts }, "{of}, {tokens} tokens");
                assert_eq!(data == ours, is_odd, "{of}, {tokens} tokens");
            }
            let record = decisions();
            let refused: Vec<_> = record.lines().filter_map(|line| line.strip_suffix(" refused")).collect();
            assert_eq!((refused.len(), refusals()), (4, 4), "{record}");

            // As the process does that continues a run, in another order.
            use_library(Some(version));
            decide_as(&record).unwrap();
            for (tokens, expected) in counts.into_iter().zip(mixed).rev() {
                assert_eq!(run(tokens), expected, "{of}, {tokens} tokens");
            }
            assert_eq!(decisions(), record);
        }
        use_library(None);
    }

    #[test]
    fn a_tile_that_is_refused_on_device_is_passed_over() {
        let Some(device) = cuda_device() else { return };
        let problem = problem("linear_forward", &[72, 40], 1, 67);
        let operands = operands(&problem.shapes().1, &device);
        let refused = || {
            let result = empty_like(&operands[0]);
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
        // The products of the last four alone are measured too; three of them are in the list.
        assert_eq!(learned().lines().count(), problems().len() + 1);
    }
}
