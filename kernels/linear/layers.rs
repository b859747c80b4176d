//! The passes of linear layers on CUDA devices: which product of which operands, and into what.

use super::Linears;
use super::cuda::{Columns, Gradient, Product, aligned, product, product_into, writable};
use crate::cuda::{CudaTensor, GroupOnCuda, as_bf16};
use crate::fp8;
use crate::gated_linear::OfGated;
use crate::lora_linear::cuda::{gated_input_gradient, input_gradient};
use crate::silu_mul::cuda::gradients as silu_gradients;
use crate::weight::add_on_cuda;

impl GroupOnCuda for Linears {
    fn fits(&self, inputs: &[[usize; 2]]) -> bool {
        let (x, weights) = inputs.split_first().expect("an input");
        aligned(x[1]) && weights.iter().all(|weight| writable(weight[0]))
    }

    fn forward(&self, inputs: Vec<CudaTensor>, wanted: &[bool]) -> (Vec<CudaTensor>, Vec<CudaTensor>) {
        let mut inputs: Vec<_> = inputs.into_iter().map(as_bf16).collect();
        let x = inputs.remove(0);
        let rounded = self.fp8.then(|| fp8::input(&x, &inputs)).flatten();
        let output = |weight| match &rounded {
            Some(x) if fp8::takes(weight) => fp8::output(x, weight, None),
            _ => product(Product::Forward, &x, weight, 1.0),
        };
        let outputs = inputs.iter().map(output).collect();
        inputs.extend(wanted[1..].contains(&true).then_some(x));
        (outputs, if wanted.contains(&true) { inputs } else { Vec::new() })
    }

    fn backward(
        &self,
        saved: Vec<CudaTensor>,
        d_outputs: Vec<CudaTensor>,
        wanted: &[bool],
    ) -> Vec<Option<CudaTensor>> {
        let (d_x, d_weights) =
            self.gradients(saved, d_outputs, wanted, |d_y, weights| match (d_y, weights) {
                _ if self.fp8 && weights.iter().any(fp8::takes) => fp8::input_gradient(d_y, weights, None),
                ([d_y], [weight]) => product(Product::Input, d_y.columns(), weight, 1.0),
                _ => input_gradient(d_y, weights, None),
            });
        std::iter::once(d_x).chain(d_weights).collect()
    }
}

impl Linears {
    /// Returns what `d_x` makes of the gradients of the outputs and the weights, if it is wanted, and the
    /// gradients of the weights.
    fn gradients<T>(
        &self,
        saved: Vec<CudaTensor>,
        d_outputs: Vec<CudaTensor>,
        wanted: &[bool],
        d_x: impl FnOnce(&[Gradient], &[CudaTensor]) -> T,
    ) -> (Option<T>, Vec<Option<CudaTensor>>) {
        let d_y: Vec<_> = d_outputs.into_iter().map(Gradient::new).collect();
        let (weights, x) = saved.split_at(d_y.len());
        let d_x = wanted[0].then(|| d_x(&d_y, weights));
        let d_weight = |layer: usize| {
            add_on_cuda(self.sums[layer].as_ref(), |total| {
                let (d_y, x) = (d_y[layer].columns(), &x[0]);
                let Some(total) = total else { return product(Product::Weight, d_y, x, 1.0) };
                product_into(Product::Weight, d_y, x, 1.0, Columns::from(&total), true);
                total
            })
        };
        let d_weights = (0..weights.len()).map(|layer| wanted[1 + layer].then(|| d_weight(layer)).flatten());
        (d_x, d_weights.collect())
    }
}

impl OfGated for Linears {
    fn gated_backward(
        &self,
        saved: Vec<CudaTensor>,
        d_output: CudaTensor,
        gate_and_up: [&CudaTensor; 2],
        wanted: &[bool],
    ) -> ([Option<CudaTensor>; 2], Vec<Option<CudaTensor>>) {
        if self.fp8 {
            let mut all = self.backward(saved, vec![d_output], wanted).into_iter();
            return (silu_gradients(gate_and_up, all.next().flatten()), all.collect());
        }
        let (d_x, others) = self.gradients(saved, vec![d_output], wanted, |d_y, weights| {
            gated_input_gradient(&d_y[0], &weights[0], None, gate_and_up)
        });
        (d_x.map_or([None, None], |both| both.map(Some)), others)
    }
}
