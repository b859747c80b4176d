//! The norm after the delta rule: RMSNorm over each value head with weight `w` (not `1 + w`), then `⊙
//! silu(z)` (SPEC.md 2.4 step 8).

#[cfg(feature = "cuda")]
mod cuda;

use burn::tensor::{Tensor, activation};
use burn_flex::FlexTensor;

use crate::cpu::{dims, fill_rows, for_rows2, slice, sum_rows, tensor};
use crate::rms_norm::inverse_rms;
use crate::simd::{dot, sigmoid};
use crate::{Op, apply};

#[derive(Debug, Clone)]
#[doc(hidden)] // for the crate that measures
pub struct GatedRmsNorm {
    pub eps: f32,
}

/// `rms(x; w) ⊙ silu(z)` per head: `x, z [T, Nv·dv]`, `weight [1, dv]` shared by all heads.
pub fn gated_rms_norm(x: Tensor<2>, z: Tensor<2>, weight: Tensor<2>, eps: f64) -> Tensor<2> {
    apply(GatedRmsNorm { eps: eps as f32 }, [x, z, weight])
}

impl Op<3> for GatedRmsNorm {
    fn reference(&self, [x, z, weight]: [Tensor<2>; 3]) -> [Tensor<2>; 1] {
        let ([t, width], d) = (x.dims(), weight.dims()[1]);
        let x = x.reshape([t, width / d, d]);
        let rms = (x.clone() * x.clone()).mean_dim(2).add_scalar(self.eps).sqrt();
        [(x / rms * weight.reshape([1, 1, d])).reshape([t, width]) * activation::silu(z)]
    }

    fn forward(
        &self,
        [x, z, weight]: [FlexTensor; 3],
        wanted: [bool; 3],
    ) -> ([FlexTensor; 1], Vec<FlexTensor>) {
        let (rows, width) = dims(&x);
        let (xs, zs, w) = (slice(&x), slice(&z), slice(&weight));
        let d = w.len();
        let out = fill_rows(
            rows * width / d,
            d,
            #[inline(always)]
            |head, chunk| {
                for (i, out) in chunk.chunks_exact_mut(d).enumerate() {
                    let at = (head + i) * d;
                    let (x, z) = (&xs[at..at + d], &zs[at..at + d]);
                    let scale = inverse_rms(x, self.eps);
                    for (((out, x), z), w) in out.iter_mut().zip(x).zip(z).zip(w) {
                        *out = x * scale * w * (z * sigmoid(*z));
                    }
                }
            },
        );
        let saved = if wanted.contains(&true) { vec![x, z, weight] } else { Vec::new() };
        ([tensor(out, rows)], saved)
    }

    /// As in RMSNorm with `p = dy ⊙ silu(z) ⊙ w`; `dz = dy ⊙ n ⊙ w ⊙ silu'(z)`, `dw = Σ dy ⊙ silu(z) ⊙ n`.
    fn backward(
        &self,
        saved: Vec<FlexTensor>,
        [d_output]: [FlexTensor; 1],
        wanted: [bool; 3],
    ) -> [Option<FlexTensor>; 3] {
        let (rows, width) = dims(&d_output);
        let (xs, zs, w, dy) = (slice(&saved[0]), slice(&saved[1]), slice(&saved[2]), slice(&d_output));
        let d = w.len();
        let (mut d_x, mut d_z) = (vec![0.0; rows * width], vec![0.0; rows * width]);
        for_rows2(
            &mut d_x,
            d,
            &mut d_z,
            d,
            #[inline(always)]
            |head, d_x, d_z| {
                for (i, (d_x, d_z)) in d_x.chunks_exact_mut(d).zip(d_z.chunks_exact_mut(d)).enumerate() {
                    let range = (head + i) * d..(head + i + 1) * d;
                    let (x, z, dy) = (&xs[range.clone()], &zs[range.clone()], &dy[range]);
                    let scale = inverse_rms(x, self.eps);
                    for (((((d_x, d_z), x), z), dy), w) in
                        d_x.iter_mut().zip(d_z).zip(x).zip(z).zip(dy).zip(w)
                    {
                        let s = sigmoid(*z);
                        *d_x = dy * (z * s) * w;
                        *d_z = dy * x * scale * w * s * (1.0 + z * (1.0 - s));
                    }
                    let mean = dot(d_x, x) * scale * scale / d as f32;
                    for (d_x, x) in d_x.iter_mut().zip(x) {
                        *d_x = scale * (*d_x - x * mean);
                    }
                }
            },
        );
        let d_weight = wanted[2].then(|| {
            let sum = sum_rows(
                rows * width / d,
                d,
                #[inline(always)]
                |head, total| {
                    let range = head * d..(head + 1) * d;
                    let (x, z, dy) = (&xs[range.clone()], &zs[range.clone()], &dy[range]);
                    let scale = inverse_rms(x, self.eps);
                    for (((sum, x), z), dy) in total.iter_mut().zip(x).zip(z).zip(dy) {
                        *sum += dy * x * scale * (z * sigmoid(*z));
                    }
                },
            );
            tensor(sum, 1)
        });
        [Some(tensor(d_x, rows)), Some(tensor(d_z, rows)), d_weight]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::{agrees_with_reference, random};

    #[test]
    fn value_and_gradients_agree_with_the_reference_on_devices() {
        for (rows, heads, d) in [(1, 1, 4), (17, 4, 16), (130, 3, 70)] {
            let inputs = [random(1, rows, heads * d), random(2, rows, heads * d), random(3, 1, d)];
            agrees_with_reference(GatedRmsNorm { eps: 1e-6 }, inputs, 1e-5);
        }
    }
}
