//! RMSNorm: `x / sqrt(mean(x²) + eps) · w`, with `1 + w` instead of `w` for zero-centred weights (SPEC.md
//! 2.1). Over whole rows, or (in `norm_rope`) over the leading part of each head of a wider row.

#[cfg(feature = "cuda")]
mod cuda;

use burn::tensor::Tensor;
use burn_flex::FlexTensor;

use crate::cpu::{dims, fill_rows, for_rows, slice, sum_rows, tensor};
use crate::simd::dot;
use crate::{Op, apply, apply_all};

#[derive(Debug, Clone)]
#[doc(hidden)] // for the crate that measures
pub struct RmsNorm {
    /// The distance in numbers between two normalised vectors in the input. A vector is as long as the
    /// weight.
    pub stride: usize,
    pub eps: f32,
    /// The number added to the weight: 1 for zero-centred weights, otherwise 0.
    pub offset: f32,
}

/// Normalises each row of `x [T, H]` with `weight [1, H]`.
pub fn rms_norm(x: Tensor<2>, weight: Tensor<2>, eps: f64, zero_centred: bool) -> Tensor<2> {
    apply(RmsNorm::new(weight.dims()[1], eps, zero_centred), [x, weight])
}

/// Adds `residual` to `x`, both `[T, H]`, and normalises the sum: `norm(x + residual)` and `x + residual`.
pub fn add_rms_norm(
    x: Tensor<2>,
    residual: Tensor<2>,
    weight: Tensor<2>,
    eps: f64,
    zero_centred: bool,
) -> [Tensor<2>; 2] {
    let norm = RmsNorm::new(weight.dims()[1], eps, zero_centred);
    apply_all(AddRmsNorm { norm }, [x, residual, weight])
}

impl RmsNorm {
    pub fn new(stride: usize, eps: f64, zero_centred: bool) -> Self {
        Self { stride, eps: eps as f32, offset: if zero_centred { 1.0 } else { 0.0 } }
    }
}

/// `1 / sqrt(mean(x²) + eps)`.
#[inline(always)]
pub(crate) fn inverse_rms(x: &[f32], eps: f32) -> f32 {
    1.0 / (dot(x, x) / x.len() as f32 + eps).sqrt()
}

impl Op<2> for RmsNorm {
    fn reference(&self, [x, weight]: [Tensor<2>; 2]) -> [Tensor<2>; 1] {
        let ([t, width], d) = (x.dims(), weight.dims()[1]);
        let heads = width / self.stride;
        let x = x.reshape([t, heads, self.stride]).narrow(2, 0, d);
        let rms = (x.clone() * x.clone()).mean_dim(2).add_scalar(self.eps).sqrt();
        let scale = weight.add_scalar(self.offset).reshape([1, 1, d]);
        [(x / rms * scale).reshape([t, heads * d])]
    }

    fn forward(&self, [x, weight]: [FlexTensor; 2], wanted: [bool; 2]) -> ([FlexTensor; 1], Vec<FlexTensor>) {
        let (rows, width) = dims(&x);
        let (xs, w) = (slice(&x), slice(&weight));
        let (d, heads) = (w.len(), width / self.stride);
        let out = fill_rows(
            rows * heads,
            d,
            #[inline(always)]
            |head, chunk| {
                for (i, out) in chunk.chunks_exact_mut(d).enumerate() {
                    let x = &xs[(head + i) * self.stride..][..d];
                    let scale = inverse_rms(x, self.eps);
                    for ((out, x), w) in out.iter_mut().zip(x).zip(w) {
                        *out = x * scale * (w + self.offset);
                    }
                }
            },
        );
        let saved = if wanted.contains(&true) { vec![x, weight] } else { Vec::new() };
        ([tensor(out, rows)], saved)
    }

    /// With `n = x·s`, `s` the inverse RMS and `p = dy ⊙ (w + offset)`: `dx = s (p - n · mean(p ⊙ n))`, `dw =
    /// Σ dy ⊙ n`.
    fn backward(
        &self,
        saved: Vec<FlexTensor>,
        [d_output]: [FlexTensor; 1],
        wanted: [bool; 2],
    ) -> [Option<FlexTensor>; 2] {
        let (rows, width) = dims(&saved[0]);
        let (xs, w, dy) = (slice(&saved[0]), slice(&saved[1]), slice(&d_output));
        let (d, stride, heads) = (w.len(), self.stride, width / self.stride);
        let d_x = wanted[0].then(|| {
            let mut d_x = vec![0.0; rows * width];
            for_rows(
                &mut d_x,
                stride,
                #[inline(always)]
                |head, chunk| {
                    for (i, d_x) in chunk.chunks_exact_mut(stride).enumerate() {
                        let x = &xs[(head + i) * stride..][..d];
                        let dy = &dy[(head + i) * d..][..d];
                        let scale = inverse_rms(x, self.eps);
                        let d_x = &mut d_x[..d];
                        for ((d_x, dy), w) in d_x.iter_mut().zip(dy).zip(w) {
                            *d_x = dy * (w + self.offset);
                        }
                        let mean = dot(d_x, x) * scale * scale / d as f32;
                        for (d_x, x) in d_x.iter_mut().zip(x) {
                            *d_x = scale * (*d_x - x * mean);
                        }
                    }
                },
            );
            tensor(d_x, rows)
        });
        let d_weight = wanted[1].then(|| {
            let sum = sum_rows(
                rows * heads,
                d,
                #[inline(always)]
                |head, total| {
                    let x = &xs[head * stride..][..d];
                    let scale = inverse_rms(x, self.eps);
                    for ((sum, x), dy) in total.iter_mut().zip(x).zip(&dy[head * d..][..d]) {
                        *sum += dy * x * scale;
                    }
                },
            );
            tensor(sum, 1)
        });
        [d_x, d_weight]
    }
}

#[derive(Debug, Clone)]
struct AddRmsNorm {
    norm: RmsNorm,
}

impl Op<3, 2> for AddRmsNorm {
    fn reference(&self, [x, residual, weight]: [Tensor<2>; 3]) -> [Tensor<2>; 2] {
        let h = x + residual;
        let [y] = self.norm.reference([h.clone(), weight]);
        [y, h]
    }

    fn forward(
        &self,
        [x, residual, weight]: [FlexTensor; 3],
        wanted: [bool; 3],
    ) -> ([FlexTensor; 2], Vec<FlexTensor>) {
        let (rows, width) = dims(&x);
        let (xs, residuals) = (slice(&x), slice(&residual));
        let h = fill_rows(
            rows,
            width,
            #[inline(always)]
            |row, chunk| {
                let range = row * width..row * width + chunk.len();
                for ((h, x), residual) in chunk.iter_mut().zip(&xs[range.clone()]).zip(&residuals[range]) {
                    *h = x + residual;
                }
            },
        );
        let h = tensor(h, rows);
        let ([y], saved) = Op::forward(&self.norm, [h.clone(), weight], [wanted[0] || wanted[1], wanted[2]]);
        ([y, h], saved)
    }

    /// The gradient of the sum comes both through the norm and directly.
    fn backward(
        &self,
        saved: Vec<FlexTensor>,
        [d_y, d_h]: [FlexTensor; 2],
        wanted: [bool; 3],
    ) -> [Option<FlexTensor>; 3] {
        let [through, d_weight] = Op::backward(&self.norm, saved, [d_y], [wanted[0] || wanted[1], wanted[2]]);
        let d_x = through.map(|mut through| {
            for (d_x, d_h) in through.storage_mut::<f32>().iter_mut().zip(slice(&d_h)) {
                *d_x += d_h;
            }
            through
        });
        [d_x.clone().filter(|_| wanted[0]), d_x.filter(|_| wanted[1]), d_weight]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::{agrees_with_reference, random};

    #[test]
    fn value_and_gradients_agree_with_the_reference_on_devices() {
        for (rows, width) in [(1, 8), (17, 64), (300, 70)] {
            for offset in [0.0, 1.0] {
                let op = RmsNorm { stride: width, eps: 1e-6, offset };
                let (x, residual, weight) =
                    (random(1, rows, width), random(3, rows, width), random(2, 1, width));
                agrees_with_reference(op.clone(), [x.clone(), weight.clone()], 1e-5);
                agrees_with_reference::<_, 3, 2>(AddRmsNorm { norm: op }, [x, residual, weight], 1e-5);
            }
        }
    }
}
