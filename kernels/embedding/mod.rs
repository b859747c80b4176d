//! Looks up the embeddings of a row's tokens. The gradient is scattered back in token order.

#[cfg(feature = "cuda")]
mod cuda;

use burn::tensor::{Int, Tensor, TensorData};
use burn_flex::FlexTensor;

use crate::cpu::{Numbers, dims, numbers, slice, tensor};
use crate::simd::Stored;
use crate::weight::{GradientSum, Weight, add_on_cpu};
use crate::{Op, Table, apply};

#[derive(Debug, Clone)]
#[doc(hidden)] // for the crate that measures
pub struct Embedding {
    pub input_ids: Table,
    pub sum: Option<GradientSum>,
}

/// `weight [V, H]`, `input_ids [T]`, each below `V` → `[T, H]`.
///
/// # Panics
/// When an id is not below `V`; the trainer checks ids against the model when it opens a token file.
pub fn embedding(weight: impl Into<Weight>, input_ids: &Table) -> Tensor<2> {
    let Weight { tensor, sum } = weight.into();
    apply(Embedding { input_ids: input_ids.clone(), sum }, [tensor])
}

impl Op<1> for Embedding {
    fn reference(&self, [weight]: [Tensor<2>; 1]) -> [Tensor<2>; 1] {
        let ids: Vec<i64> = self.input_ids.iter().map(|id| i64::from(*id)).collect();
        let length = ids.len();
        let ids = Tensor::<1, Int>::from_data(TensorData::new(ids, [length]), &weight.device());
        [weight.select(0, ids)]
    }

    fn forward(&self, [weight]: [FlexTensor; 1], wanted: [bool; 1]) -> ([FlexTensor; 1], Vec<FlexTensor>) {
        let (_, width) = dims(&weight);
        let mut out = Vec::with_capacity(self.input_ids.len() * width);
        for id in self.input_ids.iter() {
            let row = *id as usize * width..(*id as usize + 1) * width;
            match numbers(&weight) {
                Numbers::F32(table) => out.extend_from_slice(&table[row]),
                Numbers::Bf16(table) => out.extend(table[row].iter().map(|number| number.wide())),
            }
        }
        let saved = if wanted[0] { vec![weight] } else { Vec::new() };
        ([tensor(out, self.input_ids.len())], saved)
    }

    fn backward(
        &self,
        saved: Vec<FlexTensor>,
        [d_output]: [FlexTensor; 1],
        _: [bool; 1],
    ) -> [Option<FlexTensor>; 1] {
        let (rows, width) = dims(&saved[0]);
        let dy = slice(&d_output);
        [add_on_cpu(self.sum.as_ref(), [rows, width], |total| {
            for (id, dy) in self.input_ids.iter().zip(dy.chunks_exact(width)) {
                for (sum, dy) in total[*id as usize * width..][..width].iter_mut().zip(dy) {
                    *sum += dy;
                }
            }
        })]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::{agrees_with_reference, distance, random};
    use crate::linear::linear;
    use crate::linear_cross_entropy::{Targets, linear_cross_entropy};

    #[test]
    fn value_and_gradients_agree_with_the_reference_on_devices_when_tokens_repeat() {
        let input_ids: Table = [3, 0, 3, 3, 9, 1].into();
        for (rows, width) in [(10, 7), (16, 24), (10, 24)] {
            let embedding = Embedding { input_ids: input_ids.clone(), sum: None };
            agrees_with_reference(embedding, [random(1, rows, width)], 1e-6);
        }
    }

    /// The head that drafts takes rows of a pack, whose length is any number.
    #[cfg(feature = "cuda")]
    #[test]
    fn the_kernels_take_a_table_of_any_number_of_rows() {
        use crate::cuda::OnCuda;
        let embedding = Embedding { input_ids: [0].into(), sum: None };
        assert!(embedding.fits([[10, 24]]) && !embedding.fits([[16, 7]]));
    }

    #[test]
    fn a_sum_has_the_gradients_of_all_uses() {
        let (table, sum) = (random(1, 10, 8).autodiff().require_grad(), GradientSum::default());
        let weight = || Weight { tensor: table.clone(), sum: Some(sum.clone()) };
        let (ids, targets) = ([3, 0, 3].into(), Targets { rows: [0, 2].into(), tokens: [9, 3].into() });
        let both = |embed: Weight, head: Weight| {
            let x = embedding(embed, &ids);
            linear_cross_entropy(linear(x, random(2, 8, 8)), head, &targets, 0.5).backward()
        };
        let mut plain = both(table.clone().into(), table.clone().into());
        let mut summed = both(weight(), weight());
        assert!(table.grad_remove(&mut summed).is_none());
        let expected = table.grad_remove(&mut plain).unwrap();
        let found = sum.take().unwrap();
        assert!(distance(&found, &expected) < 1e-6);
        sum.add(found.clone());
        both(weight(), weight());
        assert!(distance(&sum.take().unwrap(), &expected.mul_scalar(2.0)) < 1e-6);
        assert!(sum.take().is_none());
    }
}
