//! AdamW on one parameter, and the norm over all gradients that clipping starts from.
//!
//! As in torch (SPEC.md 3): `p ← p (1 - lr·wd)`, then `m`, `v` with bias correction and `p ← p - lr · m̂ /
//! (sqrt(v̂) + eps)`. The gradient is multiplied by the clipping's factor first.
//!
//! A step whose norm is not finite changes nothing, so the host may read the norm at any time.

#[cfg(feature = "cuda")]
mod cuda;

use burn::backend::Flex;
use burn::tensor::Tensor;
use burn_flex::FlexTensor;
use rayon::prelude::*;

use crate::cpu::{dims, slice, tensor};
use crate::op::{on_cpu, primitive};
use crate::simd::{dispatch, dot};

/// The settings of an optimizer step, which are the same for all parameters.
#[derive(Debug, Clone, Copy, PartialEq)]
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
}

/// The numbers of a trained parameter, outside autodiff.
pub struct Weights {
    /// The f32 numbers that the optimizer changes and a checkpoint stores.
    pub master: Tensor<2>,
    /// The rounded numbers, if the model computes in a narrower type.
    pub narrow: Option<Tensor<2>>,
}

/// First and second moments of one parameter, f32, of its shape.
pub type Moments = (Tensor<2>, Tensor<2>);

/// The norm over all gradients of a step, and the factor by which clipping multiplies them.
pub struct Clip(Side);

enum Side {
    Host {
        norm: f64,
        factor: f64,
    },
    /// Norm and factor, f32.
    #[cfg(feature = "cuda")]
    Device(Box<crate::cuda::CudaTensor>),
}

impl Clip {
    /// Computes the L2 norm over `gradients`, all f32 on one device, and `min(1, clip_norm / (norm + 1e-6))`.
    /// Does not wait for the device. The order of the gradients determines the order of the sum.
    pub fn new(gradients: &[&Tensor<2>], clip_norm: f64) -> Self {
        #[cfg(feature = "cuda")]
        if gradients.first().is_some_and(|gradient| !on_cpu(gradient)) {
            return Self(Side::Device(Box::new(cuda::clip(gradients, clip_norm))));
        }
        let norm = gradients.iter().map(|gradient| sum_of_squares((*gradient).clone())).sum::<f64>().sqrt();
        Self(Side::Host { norm, factor: (clip_norm / (norm + 1e-6)).min(1.0) })
    }

    /// Returns the norm before clipping; waits until it is known.
    pub fn norm(&self) -> f64 {
        match &self.0 {
            Side::Host { norm, .. } => *norm,
            #[cfg(feature = "cuda")]
            Side::Device(result) => cuda::norm(result),
        }
    }
}

const TASK: usize = 1 << 16;

impl AdamW {
    /// Takes one step: updates weights and moments with `gradient`, in place where the tensors are not
    /// shared.
    pub fn update(
        &self,
        weights: Weights,
        moments: Moments,
        gradient: Tensor<2>,
        clip: &Clip,
    ) -> (Weights, Moments) {
        let factor = match &clip.0 {
            Side::Host { norm, factor } if norm.is_finite() => *factor,
            Side::Host { .. } => return (weights, moments),
            #[cfg(feature = "cuda")]
            Side::Device(clip) => return self.on_cuda(weights, moments, gradient, clip),
        };
        let Weights { master, narrow } = weights;
        let narrow_type = narrow.map(|narrow| narrow.dtype());
        let (master, moments) = if on_cpu(&master) {
            self.on_cpu(master, moments, gradient, factor)
        } else {
            self.reference(master, moments, gradient, factor)
        };
        let narrow = narrow_type.map(|dtype| master.clone().cast(dtype));
        (Weights { master, narrow }, moments)
    }

    fn on_cpu(
        &self,
        master: Tensor<2>,
        (m, v): Moments,
        gradient: Tensor<2>,
        factor: f64,
    ) -> (Tensor<2>, Moments) {
        let [mut master, mut m, mut v] = [master, m, v].map(primitive);
        self.update_slices(
            master.storage_mut::<f32>(),
            m.storage_mut::<f32>(),
            v.storage_mut::<f32>(),
            slice(&primitive(gradient)),
            factor as f32,
        );
        let [master, m, v] = [master, m, v].map(Tensor::from_primitive::<Flex>);
        (master, (m, v))
    }

    fn corrections(&self) -> (f32, f32) {
        let step = self.step as f64;
        // m̂ = m / (1 - β1ᵗ); v̂ = v / (1 - β2ᵗ), written as factors on m and on sqrt(v).
        let first = self.learning_rate / (1.0 - self.beta1.powf(step));
        let second = 1.0 / (1.0 - self.beta2.powf(step)).sqrt();
        (first as f32, second as f32)
    }

    fn reference(
        &self,
        master: Tensor<2>,
        (m, v): Moments,
        gradient: Tensor<2>,
        factor: f64,
    ) -> (Tensor<2>, Moments) {
        let (first, second) = self.corrections();
        let gradient = gradient.mul_scalar(factor);
        let m = m.mul_scalar(self.beta1) + gradient.clone().mul_scalar(1.0 - self.beta1);
        let v = v.mul_scalar(self.beta2) + (gradient.clone() * gradient).mul_scalar(1.0 - self.beta2);
        let update = m.clone().mul_scalar(first) / (v.clone().sqrt().mul_scalar(second)).add_scalar(self.eps);
        (master.mul_scalar(1.0 - self.learning_rate * self.weight_decay) - update, (m, v))
    }

    fn update_slices(&self, master: &mut [f32], m: &mut [f32], v: &mut [f32], gradient: &[f32], factor: f32) {
        let (first, second) = self.corrections();
        let (beta1, beta2, eps) = (self.beta1 as f32, self.beta2 as f32, self.eps as f32);
        let (rest1, rest2) = ((1.0 - self.beta1) as f32, (1.0 - self.beta2) as f32);
        let decay = (1.0 - self.learning_rate * self.weight_decay) as f32;
        master
            .par_chunks_mut(TASK)
            .zip(m.par_chunks_mut(TASK))
            .zip(v.par_chunks_mut(TASK))
            .zip(gradient.par_chunks(TASK))
            .for_each(|(((master, m), v), gradient)| {
                dispatch(
                    #[inline(always)]
                    || {
                        for (((p, m), v), g) in master.iter_mut().zip(m).zip(v).zip(gradient) {
                            let g = g * factor;
                            *m = beta1 * *m + rest1 * g;
                            *v = beta2 * *v + rest2 * (g * g);
                            *p = *p * decay - first * *m / ((*v).sqrt() * second + eps);
                        }
                    },
                );
            });
    }
}

/// Returns `Σ x²` in double precision, in an order that depends only on the length.
fn sum_of_squares(tensor: Tensor<2>) -> f64 {
    if !on_cpu(&tensor) {
        return f64::from((tensor.clone() * tensor).sum().into_scalar::<f32>());
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

/// Returns `total + addend`, in place if `total` is not shared. This adds up the gradients of several
/// micro-batches.
pub fn accumulate(total: Tensor<2>, addend: Tensor<2>) -> Tensor<2> {
    #[cfg(feature = "cuda")]
    if !on_cpu(&total) {
        return cuda::accumulate(total, addend);
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

/// Returns zeros with the shape and on the device of `like`, as new moments.
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
        let zeros = || zeros_like(&random(1, 33, 70));
        let mut fused = (Weights { master: random(1, 33, 70), narrow: None }, (zeros(), zeros()));
        let mut reference = (random(1, 33, 70), (zeros(), zeros()));
        for step in 1..=3 {
            let adamw =
                AdamW { learning_rate: 1e-2, beta1: 0.9, beta2: 0.95, eps: 1e-8, weight_decay: 0.1, step };
            let gradient = random(10 + step, 33, 70);
            let clip = Clip::new(&[&gradient], 3.0);
            let factor = 3.0 / (norm(&gradient) + 1e-6);
            assert!(factor < 0.2);
            fused = adamw.update(fused.0, fused.1, gradient.clone(), &clip);
            reference = adamw.reference(reference.0, reference.1, gradient, factor);
        }
        assert!(distance(&fused.0.master, &reference.0) < 1e-6);
        assert!(distance(&fused.1.0, &reference.1.0) < 1e-6);
        assert!(distance(&fused.1.1, &reference.1.1) < 1e-6);
    }

    fn norm(x: &Tensor<2>) -> f64 {
        let numbers = x.to_data().try_to_vec::<f32>().unwrap();
        numbers.iter().map(|x| f64::from(*x) * f64::from(*x)).sum::<f64>().sqrt()
    }

    #[test]
    fn the_norm_is_that_of_all_gradients_together() {
        let (a, b) = (random(3, 100, 100), random(4, 1, 7));
        let clip = Clip::new(&[&a, &b], 1.0);
        assert!((clip.norm() / norm(&a).hypot(norm(&b)) - 1.0).abs() < 1e-6);
    }

    #[test]
    fn a_step_without_a_finite_norm_changes_nothing() {
        let adamw =
            AdamW { learning_rate: 0.1, beta1: 0.9, beta2: 0.95, eps: 1e-8, weight_decay: 0.1, step: 1 };
        let gradient = random(1, 4, 4).mul_scalar(f32::INFINITY);
        let clip = Clip::new(&[&gradient], 1.0);
        assert!(!clip.norm().is_finite());
        let weights = Weights { master: random(2, 4, 4), narrow: None };
        let (after, moments) =
            adamw.update(weights, (zeros_like(&gradient), zeros_like(&gradient)), gradient, &clip);
        assert_eq!(after.master.into_data(), random(2, 4, 4).into_data());
        assert_eq!(moments.0.sum().into_scalar::<f32>(), 0.0);
    }
}
