//! A linear layer on `silu(gate) ⊙ up`, the end of an MLP: `y = (silu(gate) ⊙ up) Wᵀ`, with or without an
//! adapter.
//!
//! It is `silu_mul` and then the layer, and has their bits. It is one op, so that on CUDA devices the
//! gradient of the layer's input need not exist: the launch that sums it writes the gradients of gate and up.

use burn::tensor::{Tensor, activation};
use burn_flex::FlexTensor;

#[cfg(feature = "cuda")]
use crate::cuda::{CudaTensor, GroupOnCuda, OnCuda};
use crate::gated_mul::{backward, forward};
use crate::group::{Group, apply_group};
use crate::linear::Linears;
use crate::lora_linear::{Adapted, LoraLinears};
use crate::silu_mul::SiluMul;
use crate::weight::Weight;

/// Maps `gate` and `up`, `[T, in]` each, and `weight [out, in]` to `[T, out]`. `fp8` is as for
/// [`linears`](crate::linear::linears).
pub fn gated_linear(gate: Tensor<2>, up: Tensor<2>, weight: Weight, fp8: bool) -> Tensor<2> {
    let layer = Linears { sums: vec![weight.sum], fp8 };
    apply_group(Gated { layer }, vec![gate, up, weight.tensor], 1).remove(0)
}

/// Like [`gated_linear`], for a frozen weight with an adapter; `scale` and `fp8` are as for
/// [`lora_linears`](crate::lora_linear::lora_linears).
pub fn gated_lora_linear(gate: Tensor<2>, up: Tensor<2>, layer: Adapted, scale: f64, fp8: bool) -> Tensor<2> {
    let (layer, parameters) = LoraLinears::new(vec![layer], scale, fp8);
    apply_group(Gated { layer }, [gate, up].into_iter().chain(parameters).collect(), 1).remove(0)
}

/// A group of one layer whose input may be `silu(gate) ⊙ up`.
pub(crate) trait OfGated: Group {
    /// Like [`GroupOnCuda::backward`], with the gradients of gate and up, if they are wanted, in place of
    /// that of the input, and those of the parameters.
    #[cfg(feature = "cuda")]
    fn gated_backward(
        &self,
        saved: Vec<CudaTensor>,
        d_output: CudaTensor,
        gate_and_up: [&CudaTensor; 2],
        wanted: &[bool],
    ) -> ([Option<CudaTensor>; 2], Vec<Option<CudaTensor>>);
}

#[cfg(not(feature = "cuda"))]
impl OfGated for Linears {}

#[cfg(not(feature = "cuda"))]
impl OfGated for LoraLinears {}

/// The op. Its inputs are gate, up and the parameters of the layer.
#[derive(Debug, Clone)]
struct Gated<G> {
    layer: G,
}

/// Which gradients of the layer are wanted: that of its input if those of gate or up are.
fn of_layer(wanted: &[bool]) -> Vec<bool> {
    std::iter::once(wanted[0] || wanted[1]).chain(wanted[2..].iter().copied()).collect()
}

impl<G: OfGated> Group for Gated<G> {
    fn reference(&self, inputs: &[Tensor<2>]) -> Vec<Tensor<2>> {
        let [gate, up, parameters @ ..] = inputs else { unreachable!("gate and up come first") };
        let x = activation::silu(gate.clone()) * up.clone();
        self.layer.reference(&std::iter::once(x).chain(parameters.iter().cloned()).collect::<Vec<_>>())
    }

    fn forward(&self, mut inputs: Vec<FlexTensor>, wanted: &[bool]) -> (Vec<FlexTensor>, Vec<FlexTensor>) {
        let parameters = inputs.split_off(2);
        let up = inputs.remove(1);
        let ([x], mut kept) = forward::<SiluMul>([inputs.remove(0), up], [wanted[0], wanted[1]]);
        let inputs = std::iter::once(x).chain(parameters).collect();
        let (outputs, of_layer) = Group::forward(&self.layer, inputs, &of_layer(wanted));
        kept.extend(of_layer);
        (outputs, kept)
    }

    fn backward(
        &self,
        mut saved: Vec<FlexTensor>,
        d_outputs: &[FlexTensor],
        wanted: &[bool],
    ) -> Vec<Option<FlexTensor>> {
        let wanted = of_layer(wanted);
        let of_layer = saved.split_off(if wanted[0] { 2 } else { 0 });
        let mut gradients = Group::backward(&self.layer, of_layer, d_outputs, &wanted);
        let both = gradients.remove(0).map_or([None, None], |d_x| backward::<SiluMul>(saved, d_x));
        both.into_iter().chain(gradients).collect()
    }
}

#[cfg(feature = "cuda")]
impl<G: OfGated> GroupOnCuda for Gated<G> {
    fn fits(&self, inputs: &[[usize; 2]]) -> bool {
        GroupOnCuda::fits(&self.layer, &inputs[1..])
    }

    fn forward(&self, mut inputs: Vec<CudaTensor>, wanted: &[bool]) -> (Vec<CudaTensor>, Vec<CudaTensor>) {
        let parameters = inputs.split_off(2);
        let up = inputs.remove(1);
        let ([x], mut kept) = OnCuda::forward(&SiluMul, [inputs.remove(0), up], [wanted[0], wanted[1]]);
        let inputs = std::iter::once(x).chain(parameters).collect();
        let (outputs, of_layer) = GroupOnCuda::forward(&self.layer, inputs, &of_layer(wanted));
        kept.extend(of_layer);
        (outputs, kept)
    }

    fn backward(
        &self,
        mut saved: Vec<CudaTensor>,
        mut d_outputs: Vec<CudaTensor>,
        wanted: &[bool],
    ) -> Vec<Option<CudaTensor>> {
        let wanted = of_layer(wanted);
        if !wanted[0] {
            let mut gradients = GroupOnCuda::backward(&self.layer, saved, d_outputs, &wanted);
            gradients.insert(0, None);
            return gradients;
        }
        let of_layer = saved.split_off(2);
        let d_output = d_outputs.remove(0);
        let (both, others) = self.layer.gated_backward(of_layer, d_output, [&saved[0], &saved[1]], &wanted);
        both.into_iter().chain(others).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::{agrees_with_reference, random};
    use crate::dropout::Dropout;

    fn adapted(rate: Option<f64>) -> Gated<LoraLinears> {
        let masks = rate.map(|rate| Dropout::new(rate, 31)).into_iter().collect();
        let layer = LoraLinears {
            scale: 0.5,
            adapted: vec![true],
            a_sums: vec![None],
            b_sums: vec![None],
            masks,
            fp8: false,
        };
        Gated { layer }
    }

    #[test]
    fn value_and_gradients_agree_with_the_reference_on_devices() {
        for (rows, input, output, rank) in
            [(1, 8, 12, 8), (67, 136, 72, 24), (130, 200, 40, 8), (3, 70, 5, 4)]
        {
            let [gate, up] = [1, 2].map(|seed| random(seed, rows, input));
            let (weight, a, b) = (random(3, output, input), random(4, rank, input), random(5, output, rank));
            let plain = Gated { layer: Linears { sums: vec![None], fp8: false } };
            agrees_with_reference::<_, 3, 1>(plain, [gate.clone(), up.clone(), weight.clone()], 1e-5);
            for rate in [None, Some(0.3)] {
                let inputs = [gate.clone(), up.clone(), weight.clone(), a.clone(), b.clone()];
                agrees_with_reference::<_, 5, 1>(adapted(rate), inputs, 1e-5);
            }
        }
    }

    /// Whatever a device finds faster, a run has the same bits.
    #[cfg(feature = "cuda")]
    #[test]
    fn one_launch_and_two_give_the_same_bits_on_device() {
        use burn::tensor::DType;

        use crate::cuda::{into_tensor, primitive};
        use crate::linear::cuda::Gradient;
        use crate::linear::tile::GATED;
        use crate::linear::tuning::tests::problem;
        use crate::linear::tuning::{GATED_INPUT, learn, remember};
        use crate::lora_linear::cuda::gated_input_gradient;

        let Some(device) = crate::testing::cuda_device() else { return };
        learn("").unwrap();
        let there =
            |seed, rows, columns| primitive(random(seed, rows, columns).to_device(&device).cast(DType::BF16));
        for rank in [0, 24] {
            let (d_y, weight) = (there(1, 67, 72), there(2, 72, 136));
            let (gate, up) = (there(3, 67, 136), there(4, 67, 136));
            let (d_u, a) = (there(5, 67, 24), there(6, 24, 136));
            let of = problem(GATED_INPUT, &[136, 72, rank], 1, 67);
            let in_way = |way: &_| {
                remember(&of, *way);
                let d_y = Gradient::new(d_y.clone());
                let adapter = (rank > 0).then_some((&d_u, &a));
                gated_input_gradient(&d_y, &weight, adapter, [&gate, &up]).map(|x| into_tensor(x).into_data())
            };
            let first = in_way(&GATED[0]);
            for way in &GATED[1..] {
                assert!(in_way(way) == first, "rank {rank}, {way}");
            }
        }
        learn("").unwrap();
    }
}
