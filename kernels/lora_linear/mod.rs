//! Frozen linear layers that read the same input, some of which have low-rank adapters: `y_i = x W_iᵀ + s ·
//! (x A_iᵀ) B_iᵀ`. With dropout, an adapter reads `x ⊙ F_i` instead, with the factors of its own mask
//! ([`Dropout`]).
//!
//! This is one op, so that an adapter is accumulated into the base product, no weight-shaped gradient is ever
//! computed, and the gradient of the input is one sum over all layers: with `x_i` the input of an adapter,
//! `u_i = x_i A_iᵀ` and `e_i = s · dy_i B_i`, `dx = Σ dy_i W_i + (e_i A_i) ⊙ F_i`, `dA_i = e_iᵀ x_i`, `dB_i =
//! s · dy_iᵀ u_i`.

#[cfg(feature = "cuda")]
pub(crate) mod cuda;

use burn::tensor::Tensor;
use burn_flex::FlexTensor;

use crate::cpu::{add_product, dims, matrix, product, slice, tensor};
use crate::dropout::Dropout;
use crate::group::{Group, apply_group};
use crate::linear;
use crate::op::on_cpu;
use crate::weight::{GradientSum, Weight, add_on_cpu};

/// The op. Its lists about adapters have an element for each layer that has one, in the order of the layers.
#[derive(Debug, Clone)]
#[doc(hidden)] // for the crate that measures
pub struct LoraLinears {
    pub scale: f32,
    /// For each layer, whether it has an adapter.
    pub adapted: Vec<bool>,
    /// The destination of the gradient of each `A`.
    pub a_sums: Vec<Option<GradientSum>>,
    /// The destination of the gradient of each `B`.
    pub b_sums: Vec<Option<GradientSum>>,
    /// The mask of each adapter's input, all of the same rate; empty without dropout.
    pub masks: Vec<Dropout>,
    /// Whether `x`, `W` and the gradient of `y` are rounded to e4m3 for the products with `W` on CUDA
    /// devices where possible.
    pub fp8: bool,
}

/// One layer of a group.
pub struct Adapted {
    /// The frozen weight, `[out, in]`.
    pub weight: Tensor<2>,
    /// The adapter, if the layer has one.
    pub adapter: Option<Adapter>,
}

/// The adapter of a layer.
pub struct Adapter {
    /// The matrix `A`, `[r, in]`.
    pub a: Weight,
    /// The matrix `B`, `[out, r]`.
    pub b: Weight,
    /// The mask of its input. All adapters of a group have one of the same rate, or none.
    pub mask: Option<Dropout>,
}

/// The kernels of CUDA devices need a rank that is a multiple of this.
const RANKS: usize = 8;

impl Adapter {
    /// Returns the adapter with a rank that the kernels of its device take. Rows of zeros in `A` and columns
    /// of zeros in `B` change no result: what they compute is 0, and so are their gradients. burn pads the
    /// matrices and cuts the zeros off their gradients, which the kernels then do not add to their sum.
    fn padded(self) -> Self {
        let [rank, columns] = self.a.tensor.dims();
        let missing = rank.next_multiple_of(RANKS) - rank;
        if missing == 0 || on_cpu(&self.a.tensor) {
            return self;
        }
        let rows = self.b.tensor.dims()[0];
        let with_zeros = |matrix: Tensor<2>, shape: [usize; 2], dim: usize| {
            let zeros = Tensor::zeros(shape, (&matrix.device().inner(), matrix.dtype()));
            let zeros = if matrix.is_autodiff() { zeros.autodiff() } else { zeros };
            Weight::from(Tensor::cat(vec![matrix, zeros], dim))
        };
        Self {
            a: with_zeros(self.a.tensor, [missing, columns], 0),
            b: with_zeros(self.b.tensor, [rows, missing], 1),
            mask: self.mask,
        }
    }
}

/// Computes the results `[T, out]` of one to four layers on `x [T, in]`, at least one of which has an
/// adapter; `scale` is `alpha / r`, or `alpha / sqrt(r)` for rsLoRA. With `fp8`, operands of the products
/// with `W` are rounded to e4m3 on CUDA devices, which is not lossless.
pub fn lora_linears(x: Tensor<2>, layers: Vec<Adapted>, scale: f64, fp8: bool) -> Vec<Tensor<2>> {
    let count = layers.len();
    let (op, parameters) = LoraLinears::new(layers, scale, fp8);
    apply_group(op, std::iter::once(x).chain(parameters).collect(), count)
}

/// The parameters of the layers: all weights, all `A`, all `B`.
struct Parameters<'a, T> {
    weights: &'a [T],
    a: &'a [T],
    b: &'a [T],
}

impl LoraLinears {
    /// Returns the op on these layers, and its inputs behind the first: all weights, all `A`, all `B`.
    pub(crate) fn new(layers: Vec<Adapted>, scale: f64, fp8: bool) -> (Self, Vec<Tensor<2>>) {
        let adapted: Vec<bool> = layers.iter().map(|layer| layer.adapter.is_some()).collect();
        let mut parameters: Vec<_> = layers.iter().map(|layer| layer.weight.clone()).collect();
        let adapters: Vec<Adapter> =
            layers.into_iter().filter_map(|layer| layer.adapter).map(Adapter::padded).collect();
        parameters.extend(adapters.iter().map(|adapter| adapter.a.tensor.clone()));
        parameters.extend(adapters.iter().map(|adapter| adapter.b.tensor.clone()));
        let masks = adapters.iter().filter_map(|adapter| adapter.mask).collect();
        let (a_sums, b_sums) = adapters.into_iter().map(|adapter| (adapter.a.sum, adapter.b.sum)).unzip();
        (Self { scale: scale as f32, adapted, a_sums, b_sums, masks, fp8 }, parameters)
    }

    /// Returns the parameters, which follow the input.
    fn parameters<'a, T>(&self, inputs: &'a [T]) -> Parameters<'a, T> {
        let (weights, adapters) = inputs[1..].split_at(self.adapted.len());
        let (a, b) = adapters.split_at(adapters.len() / 2);
        Parameters { weights, a, b }
    }

    /// Returns for each layer the place of its adapter in the lists of adapters, if it has one.
    fn places(&self) -> Vec<Option<usize>> {
        let mut next = 0..;
        self.adapted.iter().map(|is_adapted| is_adapted.then(|| next.next()).flatten()).collect()
    }

    /// Returns the layer of each adapter.
    fn layers(&self) -> Vec<usize> {
        (0..self.adapted.len()).filter(|layer| self.adapted[*layer]).collect()
    }

    /// Returns the input of an adapter.
    fn input_of(&self, adapter: usize, x: &FlexTensor) -> FlexTensor {
        let (rows, columns) = dims(x);
        match self.masks.get(adapter) {
            Some(mask) => tensor(mask.on_cpu(slice(x), columns), rows),
            None => x.clone(),
        }
    }
}

impl Group for LoraLinears {
    fn reference(&self, inputs: &[Tensor<2>]) -> Vec<Tensor<2>> {
        let (x, Parameters { weights, a, b }) = (&inputs[0], self.parameters(inputs));
        let times = |x: &Tensor<2>, matrix: &Tensor<2>| x.clone().matmul(matrix.clone().transpose());
        let adapted = |adapter: usize| {
            let x = match self.masks.get(adapter) {
                Some(mask) => {
                    let factors = mask.factors(x.dims(), &x.device().inner());
                    x.clone() * if x.is_autodiff() { factors.autodiff() } else { factors }
                }
                None => x.clone(),
            };
            times(&times(&x, &a[adapter]), &b[adapter]).mul_scalar(self.scale)
        };
        let y = |(weight, place): (&Tensor<2>, Option<usize>)| {
            let y = times(x, weight);
            match place {
                Some(adapter) => y + adapted(adapter),
                None => y,
            }
        };
        weights.iter().zip(self.places()).map(y).collect()
    }

    fn forward(&self, inputs: Vec<FlexTensor>, wanted: &[bool]) -> (Vec<FlexTensor>, Vec<FlexTensor>) {
        let (x, Parameters { weights, a, b }) = (&inputs[0], self.parameters(&inputs));
        let rows = dims(x).0;
        let u = |adapter: usize| tensor(linear::result_on_cpu(&self.input_of(adapter, x), &a[adapter]), rows);
        let us: Vec<_> = (0..a.len()).map(u).collect();
        let y = |(weight, place): (&FlexTensor, Option<usize>)| {
            let mut y = linear::result_on_cpu(x, weight);
            if let Some(adapter) = place {
                linear::add_adapter(&mut y, self.scale, &us[adapter], &b[adapter]);
            }
            tensor(y, rows)
        };
        let outputs = weights.iter().zip(self.places()).map(y).collect();
        let saved = if wanted.contains(&true) { inputs.into_iter().chain(us).collect() } else { Vec::new() };
        (outputs, saved)
    }

    fn backward(
        &self,
        saved: Vec<FlexTensor>,
        d_outputs: &[FlexTensor],
        wanted: &[bool],
    ) -> Vec<Option<FlexTensor>> {
        let (layers_of, rows) = (self.layers(), dims(&d_outputs[0]).0);
        let (inputs, us) = saved.split_at(saved.len() - layers_of.len());
        let (x, Parameters { weights, a, b }) = (&inputs[0], self.parameters(inputs));
        let wants = self.parameters(wanted);
        let d_y: Vec<_> = d_outputs.iter().map(matrix).collect();
        let e = |(b, layer): (&FlexTensor, &usize)| tensor(product(self.scale, d_y[*layer], matrix(b)), rows);
        let e: Vec<_> = b.iter().zip(&layers_of).map(e).collect();
        let d_x = wanted[0].then(|| {
            let columns = dims(x).1;
            let mut d_x = product(1.0, d_y[0], matrix(&weights[0]));
            for (layer, place) in self.places().into_iter().enumerate() {
                if layer > 0 {
                    add_product(&mut d_x, 1.0, d_y[layer], matrix(&weights[layer]));
                }
                let Some(adapter) = place else { continue };
                match self.masks.get(adapter) {
                    Some(mask) => {
                        let of_masked = product(1.0, matrix(&e[adapter]), matrix(&a[adapter]));
                        mask.add_on_cpu(&mut d_x, &of_masked, columns);
                    }
                    None => add_product(&mut d_x, 1.0, matrix(&e[adapter]), matrix(&a[adapter])),
                }
            }
            tensor(d_x, rows)
        });
        let d_weight = |(layer, wanted): (usize, &bool)| {
            let shape = dims(&weights[layer]);
            let add = |total: &mut [f32]| add_product(total, 1.0, d_y[layer].t(), matrix(x));
            wanted.then(|| add_on_cpu(None, [shape.0, shape.1], add)).flatten()
        };
        let d_a = |(adapter, wanted): (usize, &bool)| {
            let (rows, columns) = dims(&a[adapter]);
            let add = |total: &mut [f32]| {
                let x = self.input_of(adapter, x);
                add_product(total, 1.0, matrix(&e[adapter]).t(), matrix(&x));
            };
            wanted.then(|| add_on_cpu(self.a_sums[adapter].as_ref(), [rows, columns], add)).flatten()
        };
        let d_b = |(adapter, wanted): (usize, &bool)| {
            let (rows, columns) = dims(&b[adapter]);
            let d_y = d_y[layers_of[adapter]].t();
            let add = |total: &mut [f32]| add_product(total, self.scale, d_y, matrix(&us[adapter]));
            wanted.then(|| add_on_cpu(self.b_sums[adapter].as_ref(), [rows, columns], add)).flatten()
        };
        let d_weights = wants.weights.iter().enumerate().map(d_weight);
        let d_as = wants.a.iter().enumerate().map(d_a);
        let d_bs = wants.b.iter().enumerate().map(d_b);
        std::iter::once(d_x).chain(d_weights).chain(d_as).chain(d_bs).collect()
    }
}

#[cfg(test)]
mod tests {
    #[cfg(feature = "cuda")]
    use burn::tensor::{DType, Device};

    use super::*;
    #[cfg(feature = "cuda")]
    use crate::check::distance;
    use crate::check::{agrees_with_reference, random};

    /// The op on layers that all have adapters, without dropout.
    fn of(layers: usize) -> LoraLinears {
        some(&vec![true; layers], None)
    }

    fn some(adapted: &[bool], rate: Option<f64>) -> LoraLinears {
        let adapters = adapted.iter().filter(|is_adapted| **is_adapted).count();
        let mask = |i| rate.map(|rate| Dropout::new(rate, 31 + i as u64));
        LoraLinears {
            scale: 0.5,
            adapted: adapted.to_vec(),
            a_sums: vec![None; adapters],
            b_sums: vec![None; adapters],
            masks: (0..adapters).filter_map(mask).collect(),
            fp8: false,
        }
    }

    const OUTPUTS: [usize; 4] = [64, 200, 12, 4];

    /// Returns an input of 72 columns and the parameters of layers of these widths, with ranks of 8, 16, 24
    /// and 32.
    fn inputs<const N: usize>(adapted: &[bool]) -> [Tensor<2>; N] {
        let layers: Vec<usize> = (0..adapted.len()).filter(|layer| adapted[*layer]).collect();
        let mut all = vec![random(1, 33, 72)];
        all.extend((0..adapted.len()).map(|layer| random(2 + layer as u64, OUTPUTS[layer], 72)));
        all.extend(layers.iter().map(|layer| random(6 + *layer as u64, 8 * (layer + 1), 72)));
        all.extend(layers.iter().map(|layer| random(10 + *layer as u64, OUTPUTS[*layer], 8 * (layer + 1))));
        all.try_into().expect("as many as the test says")
    }

    fn agrees<const N: usize, const M: usize>(adapted: [bool; M]) {
        for rate in [None, Some(0.3)] {
            agrees_with_reference::<_, N, M>(some(&adapted, rate), inputs(&adapted), 1e-5);
        }
    }

    #[test]
    fn layers_without_an_adapter_beside_others_and_masked_inputs_agree_with_the_reference_on_devices() {
        agrees::<4, 1>([true]);
        agrees::<5, 2>([false, true]);
        agrees::<7, 2>([true, true]);
        agrees::<6, 3>([false, true, false]);
        agrees::<8, 3>([true, false, true]);
        agrees::<7, 4>([false, false, false, true]);
        agrees::<9, 4>([true, false, false, true]);
        agrees::<11, 4>([true, true, false, true]);
        agrees::<13, 4>([true, true, true, true]);
    }

    #[test]
    fn value_and_gradients_agree_with_the_reference_on_devices() {
        for (rows, input, output, rank) in
            [(1, 3, 5, 2), (17, 64, 70, 8), (130, 33, 2, 16), (1, 64, 16, 8), (130, 72, 200, 16)]
        {
            let inputs = [
                random(1, rows, input),
                random(2, output, input),
                random(3, rank, input),
                random(4, output, rank),
            ];
            agrees_with_reference::<_, 4, 1>(of(1), inputs, 1e-5);
        }
    }

    #[cfg(feature = "cuda")]
    #[test]
    fn adapters_of_every_rank_have_kernels_on_device_and_the_numbers_of_the_cpu() {
        let Some(device) = crate::testing::cuda_device() else { return };
        let rounded = |seed, rows, columns| random(seed, rows, columns).cast(DType::BF16).cast(DType::F32);
        for (ranks, rate) in [([4, 8], None), ([12, 1], None), ([20, 3], Some(0.3))] {
            // The results, and the gradients of x, of both A and of both B.
            let on = |device: &Device, dtype: DType| {
                let there = |x: Tensor<2>| x.to_device(device).cast(dtype).autodiff();
                let leaf = |x: Tensor<2>| there(x).require_grad();
                let x = leaf(rounded(1, 33, 72));
                let weight = |tensor| Weight { tensor, sum: Some(GradientSum::default()) };
                let a = [0, 1].map(|i| weight(leaf(rounded(4 + i, ranks[i as usize], 72))));
                let b = [0, 1].map(|i| weight(leaf(rounded(6 + i, OUTPUTS[i as usize], ranks[i as usize]))));
                let layers = || {
                    let layer = |i: usize| Adapted {
                        weight: there(rounded(2 + i as u64, OUTPUTS[i], 72)).detach(),
                        adapter: Some(Adapter {
                            a: a[i].clone(),
                            b: b[i].clone(),
                            mask: rate.map(|rate| Dropout::new(rate, 31 + i as u64)),
                        }),
                    };
                    vec![layer(0), layer(1)]
                };
                if dtype == DType::BF16 {
                    let (op, parameters) = LoraLinears::new(layers(), 0.5, false);
                    let dims: Vec<_> = std::iter::once(&x).chain(&parameters).map(Tensor::dims).collect();
                    assert!(crate::cuda::GroupOnCuda::fits(&op, &dims), "ranks {ranks:?} have no kernel");
                }
                let y = lora_linears(x.clone(), layers(), 0.5, false);
                let seeds = [0, 1].map(|i| there(rounded(8 + i, 33, OUTPUTS[i as usize])));
                let seeded = y.iter().zip(seeds).map(|(y, seed)| (y.clone() * seed).sum());
                let mut gradients = seeded.reduce(|all, part| all + part).unwrap().backward();
                let d_x = x.grad_remove(&mut gradients).unwrap();
                let of_parameters = a.iter().chain(&b).map(|Weight { tensor, sum }| {
                    let taken = sum.as_ref().and_then(GradientSum::take);
                    taken.or_else(|| tensor.grad_remove(&mut gradients)).unwrap()
                });
                let of_parameters: Vec<_> = of_parameters.collect();
                let all = y.into_iter().map(Tensor::inner).chain([d_x]).chain(of_parameters);
                all.map(|x| Tensor::from_data(x.into_data().convert::<f32>(), &Device::flex()))
                    .collect::<Vec<Tensor<2>>>()
            };
            let (found, expected) = (on(&device, DType::BF16), on(&Device::flex(), DType::F32));
            for (place, (found, expected)) in found.iter().zip(&expected).enumerate() {
                assert_eq!(found.dims(), expected.dims(), "ranks {ranks:?}, {place}");
                let error = distance(found, expected);
                assert!(error < 2e-2, "ranks {ranks:?}, {place}: {error:e}");
            }
        }
    }

    #[test]
    fn layers_that_share_an_input_agree_with_the_reference_on_devices() {
        let matrix = |seed, rows, columns| random(seed, rows, columns);
        let two = [
            matrix(1, 33, 72),
            matrix(2, 48, 72),
            matrix(3, 200, 72),
            matrix(4, 8, 72),
            matrix(5, 24, 72),
            matrix(6, 48, 8),
            matrix(7, 200, 24),
        ];
        agrees_with_reference::<_, 7, 2>(of(2), two, 1e-5);
        let outputs = [64, 200, 12, 4];
        let four = std::array::from_fn(|place| match place {
            0 => matrix(1, 33, 72),
            1..5 => matrix(place as u64, outputs[place - 1], 72),
            5..9 => matrix(place as u64, 16, 72),
            _ => matrix(place as u64, outputs[place - 9], 16),
        });
        agrees_with_reference::<_, 13, 4>(of(4), four, 1e-5);
    }
}
