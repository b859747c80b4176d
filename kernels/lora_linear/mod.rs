//! Frozen linear layers with low-rank adapters that read the same input: `y_i = x W_iᵀ + s · (x A_iᵀ) B_iᵀ`.
//!
//! This is one op, so that an adapter is accumulated into the base product, no weight-shaped gradient is ever
//! computed, and the gradient of the input is one sum over all layers: with `u_i = x A_iᵀ` and `e_i = s ·
//! dy_i B_i`, `dx = Σ dy_i W_i + e_i A_i`, `dA_i = e_iᵀ x`, `dB_i = s · dy_iᵀ u_i`.

#[cfg(feature = "cuda")]
pub(crate) mod cuda;

use burn::tensor::Tensor;
use burn_flex::FlexTensor;

use crate::cpu::{add_product, dims, matrix, product, tensor};
use crate::group::{Group, apply_group};
use crate::weight::{GradientSum, Weight, add_on_cpu};

#[derive(Debug, Clone)]
#[doc(hidden)] // for the crate that measures
pub struct LoraLinears {
    pub scale: f32,
    /// The destination of the gradient of each layer's `A`.
    pub a_sums: Vec<Option<GradientSum>>,
    /// The destination of the gradient of each layer's `B`.
    pub b_sums: Vec<Option<GradientSum>>,
    /// Whether `x`, `W` and the gradient of `y` are rounded to e4m3 for the products with `W` on CUDA
    /// devices where possible.
    pub fp8: bool,
}

/// One layer of a group.
pub struct Adapted {
    /// The frozen weight, `[out, in]`.
    pub weight: Tensor<2>,
    /// The matrix `A`, `[r, in]`.
    pub a: Weight,
    /// The matrix `B`, `[out, r]`.
    pub b: Weight,
}

/// Computes the results `[T, out]` of one to four layers on `x [T, in]`; `scale` is `alpha / r`, or `alpha /
/// sqrt(r)` for rsLoRA. With `fp8`, operands of the products with `W` are rounded to e4m3 on CUDA devices,
/// which is not lossless.
pub fn lora_linears(x: Tensor<2>, layers: Vec<Adapted>, scale: f64, fp8: bool) -> Vec<Tensor<2>> {
    let count = layers.len();
    let mut inputs = vec![x];
    inputs.extend(layers.iter().map(|layer| layer.weight.clone()));
    inputs.extend(layers.iter().map(|layer| layer.a.tensor.clone()));
    inputs.extend(layers.iter().map(|layer| layer.b.tensor.clone()));
    let (a_sums, b_sums) = layers.into_iter().map(|layer| (layer.a.sum, layer.b.sum)).unzip();
    apply_group(LoraLinears { scale: scale as f32, a_sums, b_sums, fp8 }, inputs, count)
}

/// Returns the parameters of the layers, which follow their input: all weights, all `A`, all `B`.
fn parameters<T>(inputs: &[T]) -> [&[T]; 3] {
    let layers = inputs.len() / 3;
    [&inputs[1..][..layers], &inputs[1 + layers..][..layers], &inputs[1 + 2 * layers..][..layers]]
}

impl Group for LoraLinears {
    fn reference(&self, inputs: &[Tensor<2>]) -> Vec<Tensor<2>> {
        let [weights, a, b] = parameters(inputs);
        let times = |x: &Tensor<2>, matrix: &Tensor<2>| x.clone().matmul(matrix.clone().transpose());
        let y = |layer: usize| {
            let adapted = times(&times(&inputs[0], &a[layer]), &b[layer]);
            times(&inputs[0], &weights[layer]) + adapted.mul_scalar(self.scale)
        };
        (0..weights.len()).map(y).collect()
    }

    fn forward(&self, inputs: Vec<FlexTensor>, wanted: &[bool]) -> (Vec<FlexTensor>, Vec<FlexTensor>) {
        let (x, [weights, a, b]) = (&inputs[0], parameters(&inputs));
        let rows = dims(x).0;
        let us: Vec<_> = a.iter().map(|a| tensor(product(1.0, matrix(x), matrix(a).t()), rows)).collect();
        let y = |layer: usize| {
            let mut y = product(1.0, matrix(x), matrix(&weights[layer]).t());
            add_product(&mut y, self.scale, matrix(&us[layer]), matrix(&b[layer]).t());
            tensor(y, rows)
        };
        let outputs = (0..us.len()).map(y).collect();
        let saved = if wanted.contains(&true) { inputs.into_iter().chain(us).collect() } else { Vec::new() };
        (outputs, saved)
    }

    fn backward(
        &self,
        saved: Vec<FlexTensor>,
        d_outputs: &[FlexTensor],
        wanted: &[bool],
    ) -> Vec<Option<FlexTensor>> {
        let (layers, rows) = (d_outputs.len(), dims(&d_outputs[0]).0);
        let (inputs, us) = saved.split_at(1 + 3 * layers);
        let (x, [weights, a, b]) = (matrix(&inputs[0]), parameters(inputs));
        let d_y: Vec<_> = d_outputs.iter().map(matrix).collect();
        let e = |layer: usize| tensor(product(self.scale, d_y[layer], matrix(&b[layer])), rows);
        let e: Vec<_> = (0..layers).map(e).collect();
        let d_x = wanted[0].then(|| {
            let mut d_x = vec![0.0; rows * x.columns()];
            for layer in 0..layers {
                add_product(&mut d_x, 1.0, d_y[layer], matrix(&weights[layer]));
                add_product(&mut d_x, 1.0, matrix(&e[layer]), matrix(&a[layer]));
            }
            tensor(d_x, rows)
        });
        let gradient = |place: usize| {
            let (kind, layer) = (place / layers, place % layers);
            let (like, sum) = match kind {
                0 => (&weights[layer], None),
                1 => (&a[layer], self.a_sums[layer].as_ref()),
                _ => (&b[layer], self.b_sums[layer].as_ref()),
            };
            let (rows, columns) = dims(like);
            add_on_cpu(sum, [rows, columns], |total| match kind {
                0 => add_product(total, 1.0, d_y[layer].t(), x),
                1 => add_product(total, 1.0, matrix(&e[layer]).t(), x),
                _ => add_product(total, self.scale, d_y[layer].t(), matrix(&us[layer])),
            })
        };
        let others = (0..3 * layers).map(|place| wanted[1 + place].then(|| gradient(place)).flatten());
        std::iter::once(d_x).chain(others).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::{agrees_with_reference, random};

    fn of(layers: usize) -> LoraLinears {
        LoraLinears { scale: 0.5, a_sums: vec![None; layers], b_sums: vec![None; layers], fp8: false }
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
