//! Times products in the tiles that may be the fastest for them, and by the vendor's library where that may
//! be used, on a CUDA device and with numbers of its own.

use std::time::Instant;

use burn::tensor::{DType, Device};
use cubecl::future::block_on;

use super::cuda::{Columns, Gradient, Product, device, product};
use super::tile::Tile;
use super::tuning::{Decision, KERNELS, Problem, by_own_kernels, decide, library, remember};
use crate::compare::random;
use crate::cublaslt::{Algorithm, Form, is_repeatable, multiply, search};
use crate::cuda::{CudaTensor, as_bf16, dims, empty, into_tensor, part, primitive, view};
use crate::lora_linear::cuda::{input_gradient, output};

/// The duration in seconds of the launches that are queued before waiting for the device.
const QUEUE_S: f64 = 0.004;
/// The number of measurements, of which the shortest counts.
const TIMES: usize = 3;
/// The number of the library's algorithms that are timed for a product, those that it thinks fastest.
const ALGORITHMS: usize = 4;
/// The share of our kernel's time that the library has to stay below. What is nearly as fast would be chosen
/// by chance, and runs would differ in their bits for nothing.
const FASTER: f64 = 0.97;

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
        device(like).worth_trying(tiles, self.shapes().0, self.splits)
    }

    /// Times the product in all tiles that may be the fastest, with generated operands, and stores the
    /// fastest one. Tiles that the device refuses are skipped. Where the library may be used, decides between
    /// it and that tile. Returns whether the product is computed in another way than was estimated.
    pub fn measure(&self, device: &Device) -> bool {
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
        let is_faster = self.best_algorithms(&operands).is_some_and(|algorithms| {
            decide(self, Decision::Library(algorithms));
            seconds(|| self.launch(&operands)).is_some_and(|found| found < FASTER * own)
        });
        if !is_faster {
            decide(self, Decision::Own(version));
        }
        is_faster || tile != candidates[0]
    }

    /// Returns the library's fastest algorithm for each product of two matrices of which this one is the sum,
    /// timed with generated operands; `None` if it has none for one of them.
    pub fn algorithms(&self, device: &Device) -> Option<Vec<Algorithm>> {
        self.best_algorithms(&operands(&self.shapes().1, device))
    }

    fn best_algorithms(&self, operands: &[CudaTensor]) -> Option<Vec<Algorithm>> {
        let parts = self.parts();
        if !parts.iter().all(|(form, _)| form.is_aligned()) {
            return None;
        }
        let parts = parts.into_iter().enumerate();
        let best = parts.map(|(i, (form, [a, b]))| {
            let added = i > 0 || self.begins_with_adapter();
            best_algorithm(form, [&operands[a], &operands[b]], added, self.result(&operands[a]))
        });
        best.collect()
    }

    /// Returns memory for the product.
    fn result(&self, like: &CudaTensor) -> CudaTensor {
        let ([m, n, _], _) = self.shapes();
        empty(like, [m, n], if self.kernel == "linear_backward_weight" { DType::F32 } else { DType::BF16 })
    }
}

/// Returns the fastest algorithm that always gives the same bits.
fn best_algorithm(form: Form, [a, b]: [&CudaTensor; 2], added: bool, c: CudaTensor) -> Option<Algorithm> {
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
    timed.into_iter().map(|(_, algorithm)| algorithm).find(|one| is_repeatable(form, *one, [a, b, &c]))
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
    use crate::cublaslt::on_device::device_and_library;
    use crate::cublaslt::products;
    use crate::cuda::{Kernel, empty_like, sizes};
    use crate::linear::tile::ALL;
    use crate::linear::tuning::tests::{problem, problems};
    use crate::linear::tuning::{learn, learned, listen, missed, tile, use_library};
    use crate::testing::cuda_device;

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
        for problem in problems() {
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
        assert_eq!(learned().lines().count(), problems().len());
    }
}
