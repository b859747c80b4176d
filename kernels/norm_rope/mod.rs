//! RMSNorm of each head, followed by rotary embedding, for the queries and keys of Qwen3.5 and Qwen3 (SPEC.md
//! 2.3 steps 1, 3 and 4).

#[cfg(feature = "cuda")]
mod cuda;

use burn::tensor::Tensor;
use burn_flex::FlexTensor;

use crate::rms_norm::RmsNorm;
use crate::rope::{Rope, RopeTable};
use crate::{Op, apply};

#[derive(Debug, Clone)]
#[doc(hidden)] // for the crate that measures
pub struct NormRope {
    pub norm: RmsNorm,
    pub rope: Rope,
}

/// Normalises the leading `D` numbers of every `stride` numbers with `weight [1, D]` (`1 + weight` where it
/// is zero-centred) and rotates them by the angles of their tokens: `x [T, N·stride]` → `[T, N·D]`.
///
/// With `stride = 2·D` this reads the queries out of Qwen3.5's joint query and gate projection.
pub fn norm_rope(
    x: Tensor<2>,
    weight: Tensor<2>,
    table: &RopeTable,
    stride: usize,
    eps: f64,
    zero_centred: bool,
) -> Tensor<2> {
    let head_dim = weight.dims()[1];
    let norm = RmsNorm::new(stride, eps, zero_centred);
    apply(NormRope { norm, rope: Rope { table: table.clone(), head_dim } }, [x, weight])
}

impl Op<2> for NormRope {
    fn reference(&self, inputs: [Tensor<2>; 2]) -> [Tensor<2>; 1] {
        self.rope.reference(self.norm.reference(inputs))
    }

    fn forward(&self, inputs: [FlexTensor; 2], wanted: [bool; 2]) -> ([FlexTensor; 1], Vec<FlexTensor>) {
        let ([normed], saved) = Op::forward(&self.norm, inputs, wanted);
        ([self.rope.rotated(&normed, 1.0)], saved)
    }

    fn backward(
        &self,
        saved: Vec<FlexTensor>,
        [d_output]: [FlexTensor; 1],
        wanted: [bool; 2],
    ) -> [Option<FlexTensor>; 2] {
        Op::backward(&self.norm, saved, [self.rope.rotated(&d_output, -1.0)], wanted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::{agrees_with_reference, random};

    #[test]
    fn value_and_gradients_agree_with_the_reference_on_devices_inside_wider_rows() {
        for (rows, heads, head_dim, stride, rotary_dim) in
            [(1, 1, 4, 4, 4), (33, 4, 16, 32, 8), (130, 2, 12, 12, 12)]
        {
            let positions: Vec<u32> = (0..rows as u32).map(|t| (t * 7) % 23).collect();
            let frequencies: Vec<f32> = (0..rotary_dim / 2).map(|j| 0.5f32.powi(j)).collect();
            let rope = Rope { table: RopeTable::new(&positions, &frequencies), head_dim };
            let op = NormRope { norm: RmsNorm::new(stride, 1e-6, true), rope };
            agrees_with_reference(op, [random(1, rows, heads * stride), random(2, 1, head_dim)], 1e-5);
        }
    }
}
