//! Output head and cross-entropy in one op, which never holds all logits `[R, V]`.
//!
//! Only the rows that have a target go through the head, which is exact because the others carry no loss. The
//! gradient is computed while the logits of a chunk of rows exist, so that the backward pass only scales it.

mod cpu;
#[cfg(feature = "cuda")]
mod cuda;
mod slabs;

use burn::backend::Flex;
use burn::tensor::{Int, Tensor, TensorData, activation};
use burn_flex::FlexTensor;
pub(crate) use slabs::Slabs;

use crate::cpu::{dims, fill_rows, slice, tensor};
use crate::weight::{GradientSum, Weight, keep};
use crate::{Op, Table, apply};

/// The rows with a target, the targets, and the factor on the sum of their losses.
#[derive(Debug, Clone)]
pub struct Targets {
    /// Rows of the hidden states that have a target, ascending.
    pub rows: Table,
    /// The target token of each of these rows, below `V`.
    pub tokens: Table,
}

#[derive(Debug, Clone)]
#[doc(hidden)] // for the crate that measures
pub struct LinearCrossEntropy {
    pub targets: Targets,
    pub scale: f32,
    pub sum: Option<GradientSum>,
}

/// Returns `scale · Σ -ln softmax(hidden_row · weightᵀ)[token]` over the target rows, as `[1, 1]`, in nats.
///
/// `hidden [T, H]`, `weight [V, H]`.
pub fn linear_cross_entropy(
    hidden: Tensor<2>,
    weight: impl Into<Weight>,
    targets: &Targets,
    scale: f64,
) -> Tensor<2> {
    let Weight { tensor, sum } = weight.into();
    apply(LinearCrossEntropy { targets: targets.clone(), scale: scale as f32, sum }, [hidden, tensor])
}

fn gather(hidden: &[f32], rows: &[u32], width: usize) -> Vec<f32> {
    fill_rows(rows.len(), width, |first, chunk| {
        for (out, row) in chunk.chunks_exact_mut(width).zip(&rows[first..]) {
            out.copy_from_slice(&hidden[*row as usize * width..][..width]);
        }
    })
}

impl Op<2> for LinearCrossEntropy {
    const F32_RESULT: bool = true;

    fn reference(&self, [hidden, weight]: [Tensor<2>; 2]) -> [Tensor<2>; 1] {
        let (device, count) = (hidden.device(), self.targets.rows.len());
        let ids = |ids: &[u32]| {
            let ids: Vec<i64> = ids.iter().map(|id| i64::from(*id)).collect();
            Tensor::<1, Int>::from_data(TensorData::new(ids, [count]), &device)
        };
        let logits = hidden.select(0, ids(&self.targets.rows)).matmul(weight.transpose());
        let chosen =
            activation::log_softmax(logits, 1).gather(1, ids(&self.targets.tokens).reshape([count, 1]));
        [chosen.sum().mul_scalar(-self.scale).reshape([1, 1])]
    }

    fn forward(
        &self,
        [hidden, weight]: [FlexTensor; 2],
        wanted: [bool; 2],
    ) -> ([FlexTensor; 1], Vec<FlexTensor>) {
        let ((t, width), (vocabulary, _)) = (dims(&hidden), dims(&weight));
        let Targets { rows, tokens } = &self.targets;
        let gathered = gather(slice(&hidden), rows, width);
        if !wanted.contains(&true) {
            let sum = cpu::forward(&gathered, slice(&weight), tokens, width, vocabulary, None);
            return ([tensor(vec![sum as f32 * self.scale], 1)], Vec::new());
        }
        let mut d_rows = vec![0.0; gathered.len()];
        let mut d_weight = if wanted[1] { vec![0.0; vocabulary * width] } else { Vec::new() };
        let sum = cpu::forward_backward(
            &gathered,
            slice(&weight),
            tokens,
            width,
            vocabulary,
            &mut d_rows,
            wanted[1].then_some(&mut d_weight[..]),
            None,
        );
        let mut d_hidden = vec![0.0; t * width];
        for (row, gradient) in rows.iter().zip(d_rows.chunks_exact(width)) {
            d_hidden[*row as usize * width..][..width].copy_from_slice(gradient);
        }
        let mut saved = vec![tensor(d_hidden, t)];
        if wanted[1] {
            saved.push(tensor(d_weight, vocabulary));
        }
        ([tensor(vec![sum as f32 * self.scale], 1)], saved)
    }

    fn backward(
        &self,
        saved: Vec<FlexTensor>,
        [d_output]: [FlexTensor; 1],
        wanted: [bool; 2],
    ) -> [Option<FlexTensor>; 2] {
        let factor = self.scale * slice(&d_output)[0];
        let mut saved = saved.into_iter().map(|mut gradient| {
            for x in gradient.storage_mut::<f32>() {
                *x *= factor;
            }
            gradient
        });
        let d_hidden = saved.next().filter(|_| wanted[0]);
        [d_hidden, saved.next().and_then(|d_weight| keep::<Flex>(self.sum.as_ref(), d_weight))]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::{agrees_with_reference, random};

    fn targets(rows: &[u32], tokens: &[u32]) -> Targets {
        Targets { rows: rows.into(), tokens: tokens.into() }
    }

    #[test]
    fn value_and_gradients_agree_with_the_reference_on_devices() {
        let op = LinearCrossEntropy { targets: targets(&[0], &[2]), scale: 1.0, sum: None };
        agrees_with_reference(op, [random(1, 1, 3), random(2, 5, 3)], 1e-5);
        let op =
            LinearCrossEntropy { targets: targets(&[1, 2, 5, 9], &[70, 0, 0, 33]), scale: 0.25, sum: None };
        agrees_with_reference(op.clone(), [random(1, 10, 24), random(2, 71, 24)], 1e-5);
        agrees_with_reference(op, [random(1, 10, 64), random(2, 328, 64)], 1e-5);
    }

    #[test]
    fn the_loss_without_gradients_is_the_loss_of_training() {
        let (hidden, weight) = (random(1, 10, 24), random(2, 71, 24));
        let targets = targets(&[1, 2, 5, 9], &[70, 0, 0, 33]);
        let evaluated =
            linear_cross_entropy(hidden.clone(), weight.clone(), &targets, 1.0).into_scalar::<f32>();
        let hidden = hidden.autodiff().require_grad();
        let trained = linear_cross_entropy(hidden, weight, &targets, 1.0).inner().into_scalar::<f32>();
        assert!((trained - evaluated).abs() < 1e-5);
    }
}
