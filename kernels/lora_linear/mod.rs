//! A frozen linear layer with a low-rank adapter: `y = x Wᵀ + s · (x Aᵀ) Bᵀ`.
//!
//! Done as one op so that the adapter is accumulated into the base product and no weight-shaped gradient is ever
//! formed: with `u = x Aᵀ` and `e = s · dy B`, `dx = dy W + e A`, `dA = eᵀ x`, `dB = s · dyᵀ u`.

#[cfg(feature = "cuda")]
mod cuda;

use crate::cpu::{add_product, dims, matrix, product, slice, tensor};
use crate::matmul::Matrix;
use crate::{Op, apply};
use burn::tensor::Tensor;
use burn_flex::FlexTensor;

#[derive(Clone, Debug)]
pub(crate) struct LoraLinear {
    pub(crate) scale: f32,
}

/// `x [T, in]`, `weight [out, in]`, `a [r, in]`, `b [out, r]` → `[T, out]`; `scale` is `alpha / r`, or
/// `alpha / sqrt(r)` for rsLoRA.
pub fn lora_linear(x: Tensor<2>, weight: Tensor<2>, a: Tensor<2>, b: Tensor<2>, scale: f64) -> Tensor<2> {
    apply(LoraLinear { scale: scale as f32 }, [x, weight, a, b])
}

impl Op<4> for LoraLinear {
    fn reference(&self, [x, weight, a, b]: [Tensor<2>; 4]) -> Tensor<2> {
        let adapted = x.clone().matmul(a.transpose()).matmul(b.transpose());
        x.matmul(weight.transpose()) + adapted.mul_scalar(self.scale)
    }

    fn forward(
        &self,
        [x, weight, a, b]: [FlexTensor; 4],
        wanted: [bool; 4],
    ) -> (FlexTensor, Vec<FlexTensor>) {
        let (rows, rank) = (dims(&x).0, dims(&a).0);
        let mut y = product(1.0, matrix(&x), matrix(&weight).t());
        let u = product(1.0, matrix(&x), matrix(&a).t());
        add_product(&mut y, self.scale, Matrix::new(&u, rows, rank, rank), matrix(&b).t());
        let saved = if wanted.contains(&true) { vec![x, weight, a, b, tensor(u, rows)] } else { Vec::new() };
        (tensor(y, rows), saved)
    }

    fn backward(
        &self,
        saved: Vec<FlexTensor>,
        d_output: FlexTensor,
        wanted: [bool; 4],
    ) -> [Option<FlexTensor>; 4] {
        let [x, weight, a, b, u] = &saved[..] else { unreachable!("forward saves five tensors") };
        let (dy, rows, rank) = (matrix(&d_output), dims(x).0, dims(a).0);
        let e = product(self.scale, dy, matrix(b));
        let e = Matrix::new(&e, rows, rank, rank);
        let d_x = wanted[0].then(|| {
            let mut d_x = product(1.0, dy, matrix(weight));
            add_product(&mut d_x, 1.0, e, matrix(a));
            tensor(d_x, rows)
        });
        let d_weight = wanted[1].then(|| tensor(product(1.0, dy.t(), matrix(x)), dims(weight).0));
        let d_a = wanted[2].then(|| tensor(product(1.0, e.t(), matrix(x)), rank));
        let d_b = wanted[3]
            .then(|| tensor(product(self.scale, dy.t(), Matrix::new(slice(u), rows, rank, rank)), dims(b).0));
        [d_x, d_weight, d_a, d_b]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::{agrees_with_reference, random};

    #[test]
    fn value_and_gradients_agree_with_the_reference() {
        for (rows, input, output, rank) in
            [(1, 3, 5, 2), (17, 64, 70, 8), (130, 33, 2, 16), (1, 64, 16, 8), (130, 72, 200, 16)]
        {
            let inputs = [
                random(1, rows, input),
                random(2, output, input),
                random(3, rank, input),
                random(4, output, rank),
            ];
            agrees_with_reference(LoraLinear { scale: 0.5 }, inputs, 1e-5);
        }
    }
}
