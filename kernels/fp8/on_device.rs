//! Compares layers in e4m3 on a CUDA device, or the emulated one, with f32 sums of rounded operands, and of
//! the original ones.

use burn::tensor::{DType, Device, Tensor, TensorData};

use crate::check::{distance, random};
use crate::linear::linears;
use crate::lora_linear::{Adapted, Adapter, lora_linears};
use crate::testing::cuda_device;

/// The allowed relative L2 error of a bf16 result compared with sums of the same rounded operands.
const SAME_OPERANDS: f32 = 1e-2;
/// The allowed error compared with sums of the original operands: rounding both of them causes an error of
/// 2.6 % each (root mean square over a binade).
const LOSS: f32 = 6e-2;
/// The error below which nothing can have been rounded.
const NO_LOSS: f32 = 1e-2;

/// Returns every magnitude of e4m3, by its code.
fn sizes() -> Vec<f64> {
    let size = |code: i32| match (code >> 3, f64::from(code & 7)) {
        (0, fraction) => fraction * 2f64.powi(-9),
        (exponent, fraction) => (8.0 + fraction) * 2f64.powi(exponent - 10),
    };
    (0..127).map(size).collect()
}

fn numbers(tensor: &Tensor<2>) -> Vec<f32> {
    tensor.clone().inner().into_data().try_to_vec().unwrap()
}

/// Returns the matrix with its rows rounded to e4m3. Rows share scales with the same rows of the matrices
/// `others`.
fn rounded(matrix: &Tensor<2>, others: &[&Tensor<2>]) -> Tensor<2> {
    let [rows, columns] = matrix.dims();
    let (sizes, mut all) = (sizes(), numbers(matrix));
    for row in 0..rows {
        let of_row = |matrix: &Tensor<2>| numbers(&matrix.clone().slice([row..row + 1, 0..matrix.dims()[1]]));
        let largest = others.iter().flat_map(|matrix| of_row(matrix)).fold(0f32, |most, x| most.max(x.abs()));
        let mut scale = 2f64.powi(-126);
        while f64::from(largest) > 448.0 * scale {
            scale *= 2.0;
        }
        for x in &mut all[row * columns..(row + 1) * columns] {
            let size = f64::from(x.abs()) / scale;
            let (low, high) = (sizes.partition_point(|at| *at <= size) - 1, size.min(448.0));
            let next = (low + 1).min(sizes.len() - 1);
            let (down, up) = (high - sizes[low], sizes[next] - high);
            // Ties are rounded to the even code.
            let code = if up < down || (up == down && next.is_multiple_of(2)) { next } else { low };
            *x = (sizes[code] * scale) as f32 * x.signum();
        }
    }
    Tensor::from_data(TensorData::new(all, [rows, columns]), &Device::flex())
}

/// Rounds the numbers to bf16 and returns them as f32.
fn narrow(tensor: Tensor<2>) -> Tensor<2> {
    tensor.cast(DType::BF16).cast(DType::F32)
}

fn to_host(tensor: Tensor<2>) -> Tensor<2> {
    Tensor::from_data(tensor.inner().into_data().convert::<f32>(), &Device::flex())
}

/// Returns the largest distance of a row, so that a large row does not hide the error of a small one.
fn worst_row(got: &Tensor<2>, expected: &Tensor<2>) -> f32 {
    let row = |matrix: &Tensor<2>, row: usize| matrix.clone().slice([row..row + 1, 0..matrix.dims()[1]]);
    let rows = (0..got.dims()[0]).map(|i| distance(&row(got, i), &row(expected, i)));
    rows.fold(0.0, |worst, x| if x <= worst { worst } else { x })
}

/// Returns rows of very different magnitudes, one of them zeros.
fn uneven(seed: u64, rows: usize, columns: usize) -> Tensor<2> {
    let by = [1.0, 3e4, 0.0, 2e-5, 0.3];
    let of_rows: Vec<f32> = (0..rows).map(|row| by[row % by.len()]).collect();
    narrow(
        random(seed, rows, columns) * Tensor::from_data(TensorData::new(of_rows, [rows, 1]), &Device::flex()),
    )
}

fn turned(matrix: &Tensor<2>) -> Tensor<2> {
    let [rows, columns] = matrix.dims();
    let all = numbers(matrix);
    let turned = (0..rows * columns).map(|at| all[at % rows * columns + at / rows]).collect::<Vec<_>>();
    Tensor::from_data(TensorData::new(turned, [columns, rows]), &Device::flex())
}

struct Layers {
    x: Tensor<2>,
    weights: Vec<Tensor<2>>,
    a: Vec<Tensor<2>>,
    b: Vec<Tensor<2>>,
    d_y: Vec<Tensor<2>>,
}

const SCALE: f64 = 0.5;

impl Layers {
    /// Creates layers on `x [rows, inputs]` with a random gradient of each result. Rank 0 means no adapters.
    fn new(rows: usize, inputs: usize, outputs: &[usize], rank: usize) -> Self {
        let each = |seed: u64, make: &dyn Fn(u64, usize) -> Tensor<2>| -> Vec<Tensor<2>> {
            outputs.iter().enumerate().map(|(i, outputs)| narrow(make(seed + i as u64, *outputs))).collect()
        };
        let small = |seed, rows, columns| random(seed, rows, columns).mul_scalar(0.05);
        Self {
            x: uneven(1, rows, inputs),
            weights: each(10, &|seed, outputs| small(seed, outputs, inputs)),
            a: each(20, &|seed, _| small(seed, rank.max(1), inputs)),
            b: each(30, &|seed, outputs| random(seed, outputs, rank.max(1))),
            d_y: each(40, &|seed, outputs| uneven(seed, rows, outputs)),
        }
    }

    fn is_rounded(&self, layer: usize) -> bool {
        let [outputs, inputs] = self.weights[layer].dims();
        outputs >= 64 && outputs % 16 == 0 && inputs % 16 == 0
    }

    /// Returns the results and the gradients of x, A, B and W, in this order, by autodiff in f32; with
    /// `rounds`, operands are rounded like on the device.
    fn expected(&self, rank: usize, rounds: bool) -> Vec<Tensor<2>> {
        let times = |a: &Tensor<2>, b: &Tensor<2>| a.clone().matmul(b.clone().transpose());
        let layers = 0..self.weights.len();
        let in_e4m3: Vec<usize> = layers.clone().filter(|layer| rounds && self.is_rounded(*layer)).collect();
        let d_ys: Vec<_> = in_e4m3.iter().map(|layer| &self.d_y[*layer]).collect();
        let turned_weights: Vec<_> = in_e4m3.iter().map(|layer| turned(&self.weights[*layer])).collect();
        let turned_weights: Vec<_> = turned_weights.iter().collect();
        let (mut y, mut d_a, mut d_b, mut d_weight) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let mut d_x = self.x.zeros_like();
        for layer in layers {
            let (x, weight, d_y) = (&self.x, &self.weights[layer], &self.d_y[layer]);
            let (mut out, d_in) = if in_e4m3.contains(&layer) {
                (
                    times(&rounded(x, &[x]), &rounded(weight, &[weight])),
                    times(&rounded(d_y, &d_ys), &rounded(&turned(weight), &turned_weights)),
                )
            } else {
                (times(x, weight), d_y.clone().matmul(weight.clone()))
            };
            d_x = d_x + d_in;
            d_weight.push(d_y.clone().transpose().matmul(x.clone()));
            if rank > 0 {
                let (a, b) = (&self.a[layer], &self.b[layer]);
                // The device stores this in bf16.
                let u = narrow(times(x, a).mul_scalar(SCALE));
                let d_u = narrow(d_y.clone().matmul(b.clone()).mul_scalar(SCALE));
                out = out + times(&u, b);
                d_x = d_x + d_u.clone().matmul(a.clone());
                d_a.push(d_u.transpose().matmul(x.clone()));
                d_b.push(d_y.clone().transpose().matmul(u));
            }
            y.push(out);
        }
        let of_parameters = if rank > 0 { [d_a, d_b].concat() } else { d_weight };
        [y, vec![d_x], of_parameters].concat()
    }

    /// Returns the same values computed by the device.
    fn found(&self, rank: usize, device: &Device, fp8: bool) -> Vec<Tensor<2>> {
        let up = |tensor: &Tensor<2>| tensor.clone().to_device(device).cast(DType::BF16).autodiff();
        let leaves = |list: &[Tensor<2>]| list.iter().map(|x| up(x).require_grad()).collect::<Vec<_>>();
        let x = up(&self.x).require_grad();
        let (weights, a, b) = (leaves(&self.weights), leaves(&self.a), leaves(&self.b));
        let y = if rank > 0 {
            let adapted = |i: usize| Adapted {
                weight: weights[i].clone().detach(),
                adapter: Some(Adapter { a: a[i].clone().into(), b: b[i].clone().into(), mask: None }),
            };
            lora_linears(x.clone(), (0..weights.len()).map(adapted).collect(), SCALE, fp8)
        } else {
            linears(x.clone(), weights.iter().cloned().map(Into::into).collect(), fp8)
        };
        let seeded = y.iter().zip(&self.d_y).map(|(y, d_y)| (y.clone() * up(d_y)).sum());
        let mut gradients = seeded.reduce(|all, part| all + part).unwrap().backward();
        let mut found: Vec<_> = y.into_iter().map(to_host).collect();
        let parameters = if rank > 0 { [a, b].concat() } else { weights };
        let gradients =
            std::iter::once(x).chain(parameters).map(|leaf| leaf.grad_remove(&mut gradients).unwrap());
        found.extend(gradients.map(to_host));
        found
    }
}

#[test]
fn layers_compute_with_rounded_operands_and_nothing_else_is_lost() {
    let Some(device) = cuda_device() else { return };
    for (rows, inputs, outputs, rank) in [
        (33, 80, vec![144, 64, 16, 8], 0),
        (33, 80, vec![144, 64, 16, 8], 16),
        (1, 64, vec![64], 0),
        (130, 144, vec![80], 8),
        // No layer of this case can be rounded.
        (17, 72, vec![64, 72], 8),
    ] {
        let layers = Layers::new(rows, inputs, &outputs, rank);
        let (found, again) = (layers.found(rank, &device, true), layers.found(rank, &device, true));
        let (expected, exact) = (layers.expected(rank, true), layers.expected(rank, false));
        assert_eq!(found.len(), expected.len());
        for (place, got) in found.iter().enumerate() {
            let what = format!("{rows} × {inputs} → {outputs:?}, rank {rank}: result {place}");
            assert_eq!(numbers(got), numbers(&again[place]), "{what} is another the second time");
            // Results and d_x are compared row by row; gradients of parameters mix rows of all magnitudes.
            let is_product = place <= outputs.len();
            let far = if is_product { worst_row } else { distance };
            let (error, loss) = (far(got, &expected[place]), far(got, &exact[place]));
            assert!(error <= SAME_OPERANDS, "{what} differs by {error:e} from sums of the same operands");
            let in_e4m3 = |layer: usize| layers.is_rounded(layer);
            let rounds = match place {
                place if place < outputs.len() => in_e4m3(place),
                place => place == outputs.len() && (0..outputs.len()).any(in_e4m3),
            };
            if rounds {
                assert!((NO_LOSS..LOSS).contains(&loss), "{what} lost {loss:e}");
            } else {
                assert!(loss <= SAME_OPERANDS, "{what} lost {loss:e} where nothing is rounded");
            }
        }
    }
}

#[test]
fn a_row_is_the_same_alone_and_among_others() {
    let Some(device) = cuda_device() else { return };
    let all = Layers::new(130, 80, &[144], 8);
    let few = |tensor: &Tensor<2>| tensor.clone().slice([40..47, 0..tensor.dims()[1]]);
    let alone =
        Layers { x: few(&all.x), d_y: all.d_y.iter().map(few).collect(), ..Layers::new(7, 80, &[144], 8) };
    let (all, alone) = (all.found(8, &device, true), alone.found(8, &device, true));
    for place in 0..2 {
        assert_eq!(numbers(&few(&all[place])), numbers(&alone[place]));
    }
}

#[test]
fn what_is_not_finite_stays_so() {
    let Some(device) = cuda_device() else { return };
    let mut layers = Layers::new(33, 80, &[64], 0);
    for (place, wrong) in [(3, f32::NAN), (11, f32::INFINITY)] {
        let spoil = |tensor: &Tensor<2>| {
            let columns = tensor.dims()[1];
            let mut all = numbers(tensor);
            all[place * columns + 5] = wrong;
            Tensor::from_data(TensorData::new(all, tensor.dims()), &Device::flex())
        };
        (layers.x, layers.d_y) = (spoil(&layers.x), layers.d_y.iter().map(spoil).collect());
    }
    let found = layers.found(0, &device, true);
    for result in &found[..2] {
        let columns = result.dims()[1];
        for (row, numbers) in numbers(result).chunks(columns).enumerate() {
            let spoiled = [3, 11].contains(&row);
            assert!(numbers.iter().all(|x| x.is_finite() != spoiled), "row {row}: {numbers:?}");
        }
    }
}
