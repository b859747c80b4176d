//! Rows of the embedding table for the tokens of a row; the gradient is scattered back in token order.

#[cfg(feature = "cuda")]
mod cuda;

use crate::cpu::{dims, slice, tensor};
use crate::{Op, Table, apply};
use burn::tensor::{Int, Tensor, TensorData};
use burn_flex::FlexTensor;

#[derive(Clone, Debug)]
pub(crate) struct Embedding {
    pub(crate) input_ids: Table,
}

/// `weight [V, H]`, `input_ids [T]`, each below `V` → `[T, H]`.
///
/// # Panics
/// When an id is not below `V`; the trainer checks ids against the model when it opens a token file.
pub fn embedding(weight: Tensor<2>, input_ids: &Table) -> Tensor<2> {
    apply(Embedding { input_ids: input_ids.clone() }, [weight])
}

impl Op<1> for Embedding {
    fn reference(&self, [weight]: [Tensor<2>; 1]) -> Tensor<2> {
        let ids: Vec<i64> = self.input_ids.iter().map(|id| i64::from(*id)).collect();
        let length = ids.len();
        let ids = Tensor::<1, Int>::from_data(TensorData::new(ids, [length]), &weight.device());
        weight.select(0, ids)
    }

    fn forward(&self, [weight]: [FlexTensor; 1], wanted: [bool; 1]) -> (FlexTensor, Vec<FlexTensor>) {
        let (_, width) = dims(&weight);
        let table = slice(&weight);
        let mut out = Vec::with_capacity(self.input_ids.len() * width);
        for id in self.input_ids.iter() {
            out.extend_from_slice(&table[*id as usize * width..][..width]);
        }
        let saved = if wanted[0] { vec![weight] } else { Vec::new() };
        (tensor(out, self.input_ids.len()), saved)
    }

    fn backward(
        &self,
        saved: Vec<FlexTensor>,
        d_output: FlexTensor,
        _: [bool; 1],
    ) -> [Option<FlexTensor>; 1] {
        let (rows, width) = dims(&saved[0]);
        let dy = slice(&d_output);
        let mut d_weight = vec![0.0; rows * width];
        for (id, dy) in self.input_ids.iter().zip(dy.chunks_exact(width)) {
            for (sum, dy) in d_weight[*id as usize * width..][..width].iter_mut().zip(dy) {
                *sum += dy;
            }
        }
        [Some(tensor(d_weight, rows))]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::{agrees_with_reference, random};

    #[test]
    fn value_and_gradients_agree_with_the_reference_when_tokens_repeat() {
        let input_ids: Table = [3, 0, 3, 3, 9, 1].into();
        agrees_with_reference(Embedding { input_ids }, [random(1, 10, 7)], 1e-6);
    }
}
