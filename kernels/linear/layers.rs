//! The passes of linear layers on CUDA devices: which product of which operands, and into what.

use super::Linears;
use super::cuda::{Columns, Gradient, Product, aligned, product, product_into, writable};
use crate::cuda::{CudaTensor, GroupOnCuda, as_bf16};
use crate::fp8;
use crate::lora_linear::cuda::{gated_input_gradient, gated_output, input_gradient};
use crate::silu_mul::cuda::{gradients as silu_gradients, product as silu_product};
use crate::weight::add_on_cuda;

impl GroupOnCuda for Linears {
    fn fits(&self, inputs: &[[usize; 2]]) -> bool {
        let (x, weights) = inputs.split_first().expect("an input");
        aligned(x[1]) && weights.iter().all(|weight| writable(weight[0]))
    }

    fn forward(&self, inputs: Vec<CudaTensor>, wanted: &[bool]) -> (Vec<CudaTensor>, Vec<CudaTensor>) {
        self.results(inputs, wanted, false)
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
    /// Returns the results, and what the backward pass needs. If the layers are `gated`, gate and up,
    /// `silu(gate) ⊙ up` is one result more.
    pub(crate) fn results(
        &self,
        inputs: Vec<CudaTensor>,
        wanted: &[bool],
        gated: bool,
    ) -> (Vec<CudaTensor>, Vec<CudaTensor>) {
        let mut inputs: Vec<_> = inputs.into_iter().map(as_bf16).collect();
        let x = inputs.remove(0);
        let rounded = self.fp8.then(|| fp8::input(&x, &inputs)).flatten();
        let mut outputs = Vec::with_capacity(inputs.len() + usize::from(gated));
        for weight in &inputs {
            match &rounded {
                Some(x) if fp8::takes(weight) => outputs.push(fp8::output(x, weight, None)),
                _ if gated && outputs.len() == 1 => {
                    let [up, product] = gated_output(&x, weight, None, &outputs[0]);
                    outputs.extend([up, product]);
                }
                _ => outputs.push(product(Product::Forward, &x, weight, 1.0)),
            }
        }
        if gated && outputs.len() == 2 {
            outputs.push(silu_product(&outputs[0], &outputs[1]));
        }
        inputs.extend(wanted[1..].contains(&true).then_some(x));
        (outputs, if wanted.contains(&true) { inputs } else { Vec::new() })
    }

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

    /// Returns the gradients of gate and up, where the layer's input is `silu(gate) ⊙ up`, and those of the
    /// weights.
    pub(crate) fn gated_backward(
        &self,
        saved: Vec<CudaTensor>,
        d_output: CudaTensor,
        gate_and_up: [&CudaTensor; 2],
        wanted: &[bool],
    ) -> (Vec<CudaTensor>, Vec<Option<CudaTensor>>) {
        if self.fp8 {
            let mut all = self.backward(saved, vec![d_output], wanted).into_iter();
            let d_x = all.next().flatten().expect("it is wanted");
            return (silu_gradients(gate_and_up, d_x).into(), all.collect());
        }
        let (d_x, others) = self.gradients(saved, vec![d_output], wanted, |d_y, weights| {
            gated_input_gradient(&d_y[0], &weights[0], None, gate_and_up)
        });
        (d_x.expect("it is wanted").into(), others)
    }
}
