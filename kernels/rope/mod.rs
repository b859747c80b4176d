//! Rotary position embedding on the leading `rotary_dim` numbers of each head, rotate-half pairing (SPEC.md
//! 2.3).

#[cfg(feature = "cuda")]
mod cuda;

use burn::tensor::{Tensor, TensorData};
use burn_flex::FlexTensor;

use crate::cpu::{dims, for_rows, slice, tensor};
use crate::{Op, Table, apply};

/// The cosines and sines for every token of a row, `[T, rotary_dim / 2]` each.
#[derive(Debug, Clone)]
pub struct RopeTable {
    cos: Table<f32>,
    sin: Table<f32>,
    rotary_dim: usize,
}

impl RopeTable {
    /// Computes the angles `position · inverse_frequency` for the given positions, in f32 like transformers.
    pub fn new(position_ids: &[u32], inverse_frequencies: &[f32]) -> Self {
        let angles = || {
            position_ids
                .iter()
                .flat_map(|position| inverse_frequencies.iter().map(move |f| *position as f32 * f))
        };
        Self {
            cos: angles().map(f32::cos).collect(),
            sin: angles().map(f32::sin).collect(),
            rotary_dim: 2 * inverse_frequencies.len(),
        }
    }

    #[cfg(feature = "cuda")]
    pub(crate) fn rotary_dim(&self) -> usize {
        self.rotary_dim
    }

    /// Returns cosines and sines on the device of `like`.
    #[cfg(feature = "cuda")]
    pub(crate) fn on_device(&self, like: &crate::cuda::CudaTensor) -> [cubecl::server::Handle; 2] {
        [self.cos.on_device(like), self.sin.on_device(like)]
    }
}

#[derive(Debug, Clone)]
#[doc(hidden)] // for the crate that measures
pub struct Rope {
    pub table: RopeTable,
    pub head_dim: usize,
}

/// Rotates `x [T, N·head_dim]` by the angles of its tokens.
pub fn rope(x: Tensor<2>, table: &RopeTable, head_dim: usize) -> Tensor<2> {
    apply(Rope { table: table.clone(), head_dim }, [x])
}

impl Rope {
    /// Rotates every head by its token's angle times `direction` (1, or -1 for the inverse).
    pub(crate) fn rotated(&self, x: &FlexTensor, direction: f32) -> FlexTensor {
        let (rows, width) = dims(x);
        let mut out = slice(x).to_vec();
        self.rotate(&mut out, width, direction);
        tensor(out, rows)
    }

    fn rotate(&self, data: &mut [f32], width: usize, direction: f32) {
        let half = self.table.rotary_dim / 2;
        for_rows(
            data,
            width,
            #[inline(always)]
            |row, chunk| {
                for (t, tokens) in chunk.chunks_exact_mut(width).enumerate() {
                    let cos = &self.table.cos[(row + t) * half..][..half];
                    let sin = &self.table.sin[(row + t) * half..][..half];
                    for head in tokens.chunks_exact_mut(self.head_dim) {
                        let (first, rest) = head.split_at_mut(half);
                        for (((x, y), cos), sin) in first.iter_mut().zip(rest).zip(cos).zip(sin) {
                            let (a, b) = (*x, *y);
                            *x = a * cos - direction * (b * sin);
                            *y = b * cos + direction * (a * sin);
                        }
                    }
                }
            },
        );
    }
}

impl Op<1> for Rope {
    fn reference(&self, [x]: [Tensor<2>; 1]) -> [Tensor<2>; 1] {
        let ([t, width], half) = (x.dims(), self.table.rotary_dim / 2);
        let heads = width / self.head_dim;
        let device = x.device();
        let angles =
            |data: &[f32]| Tensor::<3>::from_data(TensorData::new(data.to_vec(), [t, 1, half]), &device);
        let (cos, sin) = (angles(&self.table.cos), angles(&self.table.sin));
        let x = x.reshape([t, heads, self.head_dim]);
        let (a, b) = (x.clone().narrow(2, 0, half), x.clone().narrow(2, half, half));
        let first = a.clone() * cos.clone() - b.clone() * sin.clone();
        let second = b * cos + a * sin;
        let mut parts = vec![first, second];
        if self.table.rotary_dim < self.head_dim {
            parts.push(x.narrow(2, self.table.rotary_dim, self.head_dim - self.table.rotary_dim));
        }
        [Tensor::cat(parts, 2).reshape([t, width])]
    }

    fn forward(&self, [x]: [FlexTensor; 1], _: [bool; 1]) -> ([FlexTensor; 1], Vec<FlexTensor>) {
        ([self.rotated(&x, 1.0)], Vec::new())
    }

    fn backward(
        &self,
        _: Vec<FlexTensor>,
        [d_output]: [FlexTensor; 1],
        _: [bool; 1],
    ) -> [Option<FlexTensor>; 1] {
        [Some(self.rotated(&d_output, -1.0))]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::{agrees_with_reference, random};

    #[test]
    fn value_and_gradients_agree_with_the_reference_on_devices() {
        for (rows, heads, head_dim, rotary_dim) in [(1, 1, 4, 4), (17, 3, 32, 8), (130, 2, 12, 12)] {
            let positions: Vec<u32> = (0..rows as u32).map(|t| (t * 7) % 23).collect();
            let frequencies: Vec<f32> = (0..rotary_dim / 2).map(|j| 0.5f32.powi(j)).collect();
            let op = Rope { table: RopeTable::new(&positions, &frequencies), head_dim };
            agrees_with_reference(op, [random(1, rows, heads * head_dim)], 1e-5);
        }
    }
}
