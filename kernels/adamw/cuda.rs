//! Launches of `adamw.cuh`.

use burn::tensor::{DType, Tensor};

use super::{AdamW, Moments, Weights};
use crate::cuda::{CudaTensor, Kernel, as_f32, dims, empty, into_tensor, own, primitive, sizes};

const SOURCE: &str = "adamw/adamw.cuh";
/// The number of values that one block of `adamw_squares` adds.
const SQUARES_PER_BLOCK: usize = 16384;

fn count(tensor: &CudaTensor) -> usize {
    let (rows, columns) = dims(tensor);
    rows * columns
}

/// Returns norm and factor, `[1, 2]` f32.
pub(super) fn clip(gradients: &[&Tensor<2>], clip_norm: f64) -> CudaTensor {
    let gradients: Vec<CudaTensor> = gradients.iter().map(|g| as_f32(primitive((*g).clone()))).collect();
    let partials: usize = gradients.iter().map(|gradient| count(gradient).div_ceil(SQUARES_PER_BLOCK)).sum();
    let partial = empty(&gradients[0], [1, partials], DType::F32);
    let mut first = 0;
    for gradient in &gradients {
        let blocks = count(gradient).div_ceil(SQUARES_PER_BLOCK);
        Kernel::new(SOURCE, "adamw_squares")
            .blocks(blocks)
            .threads(256)
            .read(gradient)
            .update(&partial)
            .launch(sizes![count(gradient) as u64, first as u64]);
        first += blocks;
    }
    let result = empty(&partial, [1, 2], DType::F32);
    Kernel::new(SOURCE, "adamw_clip").blocks(1).threads(256).read(&partial).write(&result).launch(sizes![
        partials as u32,
        1.0f32,
        clip_norm as f32,
        0u32
    ]);
    result
}

/// Returns the norm from the result of [`clip`]; waits for it.
pub(super) fn norm(result: &CudaTensor) -> f64 {
    let numbers = into_tensor(result.clone()).into_data().try_to_vec::<f32>();
    f64::from(numbers.expect("norm and factor are f32")[0])
}

/// Returns `total + addend`: f32, and f32 or bf16.
pub(super) fn accumulate(total: Tensor<2>, addend: Tensor<2>) -> Tensor<2> {
    let (total, addend) = (own(primitive(total)), primitive(addend));
    let name = if addend.dtype == DType::F32 { "accumulate" } else { "accumulate_bf16" };
    Kernel::new(SOURCE, name)
        .blocks(count(&total).div_ceil(2048))
        .threads(256)
        .read(&addend)
        .update(&total)
        .launch(sizes![count(&total) as u64]);
    into_tensor(total)
}

impl AdamW {
    pub(super) fn on_cuda(
        &self,
        weights: Weights,
        moments: Moments,
        gradient: Tensor<2>,
        clip: &CudaTensor,
    ) -> (Weights, Moments) {
        let (step_size, root_scale) = self.corrections();
        let decay = (1.0 - self.learning_rate * self.weight_decay) as f32;
        let gradient = as_f32(primitive(gradient));
        // A copy of the model that was taken before keeps its numbers.
        let [master, m, v] = [weights.master, moments.0, moments.1].map(|tensor| own(primitive(tensor)));
        let narrow = weights.narrow.map(|tensor| own(primitive(tensor)));
        let name = if narrow.is_some() { "adamw_update" } else { "adamw_update_wide" };
        let kernel = Kernel::new(SOURCE, name).blocks(count(&master).div_ceil(2048)).threads(256);
        let kernel = kernel.read(&gradient).read(clip).update(&master).update(&m).update(&v);
        let kernel = match &narrow {
            // The kernel writes all of it, unless the step is skipped.
            Some(narrow) => kernel.update(narrow),
            None => kernel,
        };
        let [beta1, beta2, eps] = [self.beta1, self.beta2, self.eps].map(|x| x as f32);
        let (rest1, rest2) = ((1.0 - self.beta1) as f32, (1.0 - self.beta2) as f32);
        kernel.launch(sizes![
            count(&master) as u64,
            beta1,
            beta2,
            rest1,
            rest2,
            eps,
            step_size,
            root_scale,
            decay
        ]);
        let weights = Weights { master: into_tensor(master), narrow: narrow.map(into_tensor) };
        (weights, (into_tensor(m), into_tensor(v)))
    }
}
