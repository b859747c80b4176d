//! Launches of `embedding.cuh`.

use burn::tensor::DType;

use super::Embedding;
use crate::Table;
use crate::cuda::{CudaTensor, Kernel, OnCuda, as_bf16, dims, empty, sizes, zeros};
use crate::linear::cuda::aligned;
use crate::weight::add_on_cuda;

const SOURCE: &str = "embedding/embedding.cuh";

/// The positions of each distinct id, which determine the order in which its gradient is added up.
struct ById {
    /// The indices of tokens, sorted by id and, for the same id, by position.
    tokens: Table,
    /// The start of each distinct id in `tokens`, and the end of the last one.
    starts: Table,
    distinct_ids: Table,
}

impl ById {
    fn new(ids: &[u32]) -> Self {
        let mut tokens: Vec<u32> = (0..ids.len() as u32).collect();
        tokens.sort_by_key(|token| ids[*token as usize]);
        let (mut starts, mut distinct_ids) = (Vec::new(), Vec::new());
        for (at, token) in tokens.iter().enumerate() {
            let id = ids[*token as usize];
            if distinct_ids.last() != Some(&id) {
                distinct_ids.push(id);
                starts.push(at as u32);
            }
        }
        starts.push(tokens.len() as u32);
        Self { tokens: tokens.into(), starts: starts.into(), distinct_ids: distinct_ids.into() }
    }
}

impl OnCuda<1> for Embedding {
    fn fits(&self, [weight]: [[usize; 2]; 1]) -> bool {
        aligned(weight[1])
    }

    fn forward(&self, [weight]: [CudaTensor; 1], wanted: [bool; 1]) -> ([CudaTensor; 1], Vec<CudaTensor>) {
        let weight = as_bf16(weight);
        let (rows, (_, width)) = (self.input_ids.len(), dims(&weight));
        let y = empty(&weight, [rows, width], DType::BF16);
        Kernel::new(SOURCE, "gather_rows")
            .grid(rows, width.div_ceil(2048), 1)
            .threads(256)
            .read(&weight)
            .read(&self.input_ids.on_device(&weight))
            .write(&y)
            .launch(sizes![rows as u32, width as u32]);
        ([y], if wanted[0] { vec![weight] } else { Vec::new() })
    }

    fn backward(
        &self,
        saved: Vec<CudaTensor>,
        [d_output]: [CudaTensor; 1],
        _: [bool; 1],
    ) -> [Option<CudaTensor>; 1] {
        let (d_y, (rows, width)) = (as_bf16(d_output), dims(&saved[0]));
        let ById { tokens, starts, distinct_ids } = ById::new(&self.input_ids);
        [add_on_cuda(self.sum.as_ref(), |total| {
            let total = total.unwrap_or_else(|| zeros(&d_y, [rows, width], DType::F32));
            Kernel::new(SOURCE, "embedding_backward")
                .grid(distinct_ids.len(), width.div_ceil(2048), 1)
                .threads(256)
                .read(&d_y)
                .read(&tokens.on_device(&d_y))
                .read(&starts.on_device(&d_y))
                .read(&distinct_ids.on_device(&d_y))
                .update(&total)
                .launch(sizes![distinct_ids.len() as u32, width as u32]);
            total
        })]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_of_one_id_stay_in_the_order_of_the_row() {
        let ById { tokens, starts, distinct_ids } = ById::new(&[7, 3, 7, 7, 0]);
        assert_eq!(tokens[..], [4, 1, 0, 2, 3]);
        assert_eq!(starts[..], [0, 1, 2, 5]);
        assert_eq!(distinct_ids[..], [0, 3, 7]);
    }
}
