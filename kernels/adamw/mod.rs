//! AdamW on one parameter, and the sum of squares that global-norm clipping starts from.
//!
//! As in torch (QWEN35_SPEC 3): `p ← p (1 - lr·wd)`, then `m`, `v` with bias correction and
//! `p ← p - lr · m̂ / (sqrt(v̂) + eps)`. The gradient is multiplied by `gradient_scale` first, which carries the clipping.

use crate::cpu::{dims, slice, tensor};
use crate::op::{on_cpu, primitive};
use crate::simd::{dispatch, dot};
use burn::backend::Flex;
use burn::tensor::Tensor;
use burn_flex::FlexTensor;
use rayon::prelude::*;

/// What one step of the optimizer does to every parameter alike.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdamW {
    /// Learning rate of this step.
    pub learning_rate: f64,
    /// Decay of the first moment.
    pub beta1: f64,
    /// Decay of the second moment.
    pub beta2: f64,
    /// Added to the root of the second moment.
    pub eps: f64,
    /// Decoupled weight decay.
    pub weight_decay: f64,
    /// Number of this step, counted from 1, for the bias correction.
    pub step: u64,
    /// Factor on the gradient: `min(1, clip / (norm + 1e-6))`.
    pub gradient_scale: f64,
}

/// Parameter and moments, all of one shape, outside autodiff.
pub type State = (Tensor<2>, Tensor<2>, Tensor<2>);

const TASK: usize = 1 << 16;

impl AdamW {
    /// One step: `(parameter, m, v)` updated by `gradient`, in place where the tensors are not shared.
    pub fn update(&self, (parameter, m, v): State, gradient: Tensor<2>) -> State {
        if !on_cpu(&parameter) {
            return self.reference((parameter, m, v), gradient);
        }
        let [mut parameter, mut m, mut v] = [parameter, m, v].map(primitive);
        self.update_slices(
            parameter.storage_mut::<f32>(),
            m.storage_mut::<f32>(),
            v.storage_mut::<f32>(),
            slice(&primitive(gradient)),
        );
        let [parameter, m, v] = [parameter, m, v].map(Tensor::from_primitive::<Flex>);
        (parameter, m, v)
    }

    fn corrections(&self) -> (f32, f32) {
        let step = self.step as f64;
        // m̂ = m / (1 - β1ᵗ); v̂ = v / (1 - β2ᵗ), written as factors on m and on sqrt(v).
        let first = self.learning_rate / (1.0 - self.beta1.powf(step));
        let second = 1.0 / (1.0 - self.beta2.powf(step)).sqrt();
        (first as f32, second as f32)
    }

    fn reference(&self, (parameter, m, v): State, gradient: Tensor<2>) -> State {
        let (first, second) = self.corrections();
        let gradient = gradient.mul_scalar(self.gradient_scale);
        let m = m.mul_scalar(self.beta1) + gradient.clone().mul_scalar(1.0 - self.beta1);
        let v = v.mul_scalar(self.beta2) + (gradient.clone() * gradient).mul_scalar(1.0 - self.beta2);
        let update = m.clone().mul_scalar(first) / (v.clone().sqrt().mul_scalar(second)).add_scalar(self.eps);
        (parameter.mul_scalar(1.0 - self.learning_rate * self.weight_decay) - update, m, v)
    }

    fn update_slices(&self, parameter: &mut [f32], m: &mut [f32], v: &mut [f32], gradient: &[f32]) {
        let (first, second) = self.corrections();
        let (beta1, beta2, eps) = (self.beta1 as f32, self.beta2 as f32, self.eps as f32);
        let (rest1, rest2) = ((1.0 - self.beta1) as f32, (1.0 - self.beta2) as f32);
        let decay = (1.0 - self.learning_rate * self.weight_decay) as f32;
        let scale = self.gradient_scale as f32;
        parameter
            .par_chunks_mut(TASK)
            .zip(m.par_chunks_mut(TASK))
            .zip(v.par_chunks_mut(TASK))
            .zip(gradient.par_chunks(TASK))
            .for_each(|(((parameter, m), v), gradient)| {
                dispatch(
                    #[inline(always)]
                    || {
                        for (((p, m), v), g) in parameter.iter_mut().zip(m).zip(v).zip(gradient) {
                            let g = g * scale;
                            *m = beta1 * *m + rest1 * g;
                            *v = beta2 * *v + rest2 * (g * g);
                            *p = *p * decay - first * *m / ((*v).sqrt() * second + eps);
                        }
                    },
                );
            });
    }
}

/// `Σ x²` in double precision, in an order that depends on the length only.
pub fn sum_of_squares(tensor: Tensor<2>) -> f64 {
    if !on_cpu(&tensor) {
        return (tensor.clone() * tensor).sum().into_scalar::<f64>();
    }
    let data = primitive(tensor);
    let partial: Vec<f64> = slice(&data)
        .par_chunks(4096)
        .map(|chunk| {
            f64::from(dispatch(
                #[inline(always)]
                || dot(chunk, chunk),
            ))
        })
        .collect();
    partial.iter().sum()
}

/// `total + addend`, in place where `total` is not shared: how gradients of several micro-batches add up.
pub fn accumulate(total: Tensor<2>, addend: Tensor<2>) -> Tensor<2> {
    if !on_cpu(&total) {
        return total + addend;
    }
    let (mut total, addend): (FlexTensor, FlexTensor) = (primitive(total), primitive(addend));
    debug_assert_eq!(dims(&total), dims(&addend));
    total.storage_mut::<f32>().par_chunks_mut(TASK).zip(slice(&addend).par_chunks(TASK)).for_each(
        |(total, addend)| {
            for (total, addend) in total.iter_mut().zip(addend) {
                *total += addend;
            }
        },
    );
    Tensor::from_primitive::<Flex>(total)
}

/// A tensor of zeros on the CPU or wherever `like` lies, with its shape: fresh moments.
pub fn zeros_like(like: &Tensor<2>) -> Tensor<2> {
    if !on_cpu(like) {
        return like.clone().inner().zeros_like();
    }
    let [rows, columns] = like.dims();
    Tensor::from_primitive::<Flex>(tensor(vec![0.0; rows * columns], rows))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::{distance, random};

    #[test]
    fn three_steps_agree_with_the_reference() {
        let mut fused = (random(1, 33, 70), zeros_like(&random(1, 33, 70)), zeros_like(&random(1, 33, 70)));
        let mut reference = fused.clone();
        for step in 1..=3 {
            let adamw = AdamW {
                learning_rate: 1e-2,
                beta1: 0.9,
                beta2: 0.95,
                eps: 1e-8,
                weight_decay: 0.1,
                step,
                gradient_scale: 0.5,
            };
            let gradient = random(10 + step, 33, 70);
            fused = adamw.update(fused, gradient.clone());
            reference = adamw.reference(reference, gradient);
        }
        assert!(distance(&fused.0, &reference.0) < 1e-6);
        assert!(distance(&fused.1, &reference.1) < 1e-6);
        assert!(distance(&fused.2, &reference.2) < 1e-6);
    }

    #[test]
    fn the_sum_of_squares_is_that_of_the_numbers() {
        let x = random(3, 100, 100);
        let expected: f64 =
            x.to_data().try_to_vec::<f32>().unwrap().iter().map(|x| f64::from(*x) * f64::from(*x)).sum();
        assert!((sum_of_squares(x) / expected - 1.0).abs() < 1e-6);
    }
}
