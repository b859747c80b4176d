//! The MLP whose hidden state is `silu(gate) ⊙ up`: `y = (silu(x W_gᵀ) ⊙ (x W_uᵀ)) W_dᵀ`, where each layer
//! may have an adapter.
//!
//! It has the bits of its parts: two layers on one input, `silu_mul`, and one layer more. It is one op, so
//! that on CUDA devices the launch that computes up writes `silu(gate) ⊙ up` as well, and the gradient of
//! that need not exist: the launch that sums it writes the gradients of gate and up. On the CPU,
//! `silu(gate) ⊙ up` is not kept: the backward pass computes it again.

use burn::tensor::{Tensor, activation};
use burn_flex::FlexTensor;

#[cfg(feature = "cuda")]
use crate::cuda::{CudaTensor, GroupOnCuda};
use crate::gated_mul::{backward, forward};
use crate::group::{Group, sized};
use crate::linear::Linears;
use crate::lora_linear::{Adapted, LoraLinears};
use crate::silu_mul::SiluMul;
use crate::weight::Weight;

/// One layer, or two that read the same input.
#[derive(Debug)]
pub struct Layers {
    kind: Kind,
    parameters: Vec<Tensor<2>>,
}

impl Layers {
    /// Creates layers without adapters; `fp8` is as for [`linears`](crate::linear::linears).
    pub fn plain(weights: Vec<Weight>, fp8: bool) -> Self {
        let (parameters, sums) = weights.into_iter().map(|weight| (weight.tensor, weight.sum)).unzip();
        Self { kind: Kind::Plain(Linears { sums, fp8 }), parameters }
    }

    /// Creates frozen layers, at least one of which has an adapter; `scale` and `fp8` are as for
    /// [`lora_linears`](crate::lora_linear::lora_linears).
    pub fn adapted(layers: Vec<Adapted>, scale: f64, fp8: bool) -> Self {
        let (op, parameters) = LoraLinears::new(layers, scale, fp8);
        Self { kind: Kind::Adapted(op), parameters }
    }
}

/// Maps `x [T, in]` to `[T, out]`: `gate_and_up` map it to `[T, hidden]` each, and `down` maps their product.
pub fn gated_mlp(x: Tensor<2>, gate_and_up: Layers, down: Layers) -> Tensor<2> {
    let op = GatedMlp { gate_and_up: gate_and_up.kind, down: down.kind };
    let parameters = gate_and_up.parameters.into_iter().chain(down.parameters);
    let inputs: Vec<_> = std::iter::once(x).chain(parameters).collect();
    let mut results = match inputs.len() {
        4 => sized::<_, 4, 1>(op, inputs),
        6 => sized::<_, 6, 1>(op, inputs),
        8 => sized::<_, 8, 1>(op, inputs),
        10 => sized::<_, 10, 1>(op, inputs),
        inputs => unreachable!("{inputs} inputs of three layers with up to three adapters"),
    };
    results.remove(0)
}

/// The op on some layers.
#[derive(Debug, Clone)]
enum Kind {
    Plain(Linears),
    Adapted(LoraLinears),
}

/// Calls the same function of either kind of op.
macro_rules! of_kind {
    ($kind:expr, $op:ident => $call:expr) => {
        match $kind {
            Kind::Plain($op) => $call,
            Kind::Adapted($op) => $call,
        }
    };
}

impl Kind {
    /// Returns how many inputs the op has.
    fn inputs(&self) -> usize {
        1 + match self {
            Self::Plain(op) => op.sums.len(),
            Self::Adapted(op) => op.adapted.len() + 2 * op.a_sums.len(),
        }
    }

    /// Returns how many tensors the op keeps for the backward pass, if it is on one layer: without an adapter
    /// the weight, and `x` for the gradient of it; with one `x`, `u` and the three parameters.
    fn kept_of_one(&self, wanted: &[bool]) -> usize {
        match self {
            _ if !wanted.contains(&true) => 0,
            Self::Plain(_) => 1 + usize::from(wanted[1]),
            Self::Adapted(_) => 5,
        }
    }

    /// Returns where `x` is among what the op keeps, if it is kept and the op is on one layer.
    fn place_of_input(&self, wanted: &[bool]) -> Option<usize> {
        match self {
            Self::Plain(_) => wanted[1].then_some(1),
            Self::Adapted(_) => Some(0),
        }
    }
}

/// The op. Its inputs are `x`, the parameters of gate and up, and those of down.
#[derive(Debug, Clone)]
struct GatedMlp {
    gate_and_up: Kind,
    down: Kind,
}

impl GatedMlp {
    /// Returns which gradients of the inputs of `gate_and_up` are wanted, and which of those of `down`: that
    /// of its input if any of the first are.
    fn of_layers<'a>(&self, wanted: &'a [bool]) -> (&'a [bool], Vec<bool>) {
        let (first, last) = wanted.split_at(self.gate_and_up.inputs());
        (first, std::iter::once(first.contains(&true)).chain(last.iter().copied()).collect())
    }

    /// Returns what was kept: of `silu_mul`, of `gate_and_up`, and of `down`, of which there are `of_last`
    /// tensors.
    fn kept<T>(mut saved: Vec<T>, of_down: &[bool], of_last: usize) -> [Vec<T>; 3] {
        let mut last = saved.split_off(if of_down[0] { 2 } else { 0 });
        let first = last.split_off(of_last);
        [saved, first, last]
    }

    /// Returns where the input of `down` belongs among what it keeps, if the CPU computes it again: wherever
    /// gate and up are kept, from which it follows.
    fn computed_again(&self, of_down: &[bool]) -> Option<usize> {
        if of_down[0] { self.down.place_of_input(of_down) } else { None }
    }
}

const BOTH: &str = "gate and up";

impl Group for GatedMlp {
    fn reference(&self, inputs: &[Tensor<2>]) -> Vec<Tensor<2>> {
        let (first, last) = inputs.split_at(self.gate_and_up.inputs());
        let both = of_kind!(&self.gate_and_up, op => op.reference(first));
        let [gate, up] = both.try_into().expect(BOTH);
        let inputs: Vec<_> =
            std::iter::once(activation::silu(gate) * up).chain(last.iter().cloned()).collect();
        of_kind!(&self.down, op => op.reference(&inputs))
    }

    fn forward(&self, mut inputs: Vec<FlexTensor>, wanted: &[bool]) -> (Vec<FlexTensor>, Vec<FlexTensor>) {
        let last = inputs.split_off(self.gate_and_up.inputs());
        let (of_first, of_down) = self.of_layers(wanted);
        let (both, kept_first) = of_kind!(&self.gate_and_up, op => Group::forward(op, inputs, of_first));
        let [gate, up] = both.try_into().expect(BOTH);
        let ([x], mut kept) = forward::<SiluMul>([gate, up], [of_down[0]; 2]);
        let inputs = std::iter::once(x).chain(last).collect();
        let (outputs, mut kept_last) = of_kind!(&self.down, op => Group::forward(op, inputs, &of_down));
        if let Some(place) = self.computed_again(&of_down) {
            kept_last.remove(place);
        }
        kept.extend(kept_last);
        kept.extend(kept_first);
        (outputs, kept)
    }

    fn backward(
        &self,
        saved: Vec<FlexTensor>,
        d_outputs: &[FlexTensor],
        wanted: &[bool],
    ) -> Vec<Option<FlexTensor>> {
        let (of_first, of_down) = self.of_layers(wanted);
        let again = self.computed_again(&of_down);
        let of_last = self.down.kept_of_one(&of_down) - usize::from(again.is_some());
        let [both, first, mut last] = Self::kept(saved, &of_down, of_last);
        if let Some(place) = again {
            let gate_and_up = [both[0].clone(), both[1].clone()];
            let ([x], _) = forward::<SiluMul>(gate_and_up, [false; 2]);
            last.insert(place, x);
        }
        let mut gradients = of_kind!(&self.down, op => Group::backward(op, last, d_outputs, &of_down));
        let Some(d_x) = gradients.remove(0) else {
            return of_first.iter().map(|_| None).chain(gradients).collect();
        };
        let both = backward::<SiluMul>(both, d_x).map(|gradient| gradient.expect(BOTH));
        let of_first = of_kind!(&self.gate_and_up, op => Group::backward(op, first, &both, of_first));
        of_first.into_iter().chain(gradients).collect()
    }
}

#[cfg(feature = "cuda")]
impl GroupOnCuda for GatedMlp {
    fn fits(&self, inputs: &[[usize; 2]]) -> bool {
        let (first, last) = inputs.split_at(self.gate_and_up.inputs());
        let hidden = [first[0][0], first[1][0]];
        let last: Vec<_> = std::iter::once(hidden).chain(last.iter().copied()).collect();
        of_kind!(&self.gate_and_up, op => GroupOnCuda::fits(op, first))
            && of_kind!(&self.down, op => GroupOnCuda::fits(op, &last))
    }

    fn forward(&self, mut inputs: Vec<CudaTensor>, wanted: &[bool]) -> (Vec<CudaTensor>, Vec<CudaTensor>) {
        let last = inputs.split_off(self.gate_and_up.inputs());
        let (of_first, of_down) = self.of_layers(wanted);
        let (mut kept, kept_first) = of_kind!(&self.gate_and_up, op => op.results(inputs, of_first, true));
        let inputs = kept.drain(2..).chain(last).collect();
        let (outputs, kept_last) = of_kind!(&self.down, op => op.results(inputs, &of_down, false));
        kept.truncate(if of_down[0] { 2 } else { 0 });
        kept.extend(kept_last);
        kept.extend(kept_first);
        (outputs, kept)
    }

    fn backward(
        &self,
        saved: Vec<CudaTensor>,
        mut d_outputs: Vec<CudaTensor>,
        wanted: &[bool],
    ) -> Vec<Option<CudaTensor>> {
        let (of_first, of_down) = self.of_layers(wanted);
        let [both, first, last] = Self::kept(saved, &of_down, self.down.kept_of_one(&of_down));
        let [gate, up] = &both[..] else {
            let gradients = of_kind!(&self.down, op => GroupOnCuda::backward(op, last, d_outputs, &of_down));
            return of_first.iter().map(|_| None).chain(gradients.into_iter().skip(1)).collect();
        };
        let d_y = d_outputs.remove(0);
        let (d_both, gradients) =
            of_kind!(&self.down, op => op.gated_backward(last, d_y, [gate, up], &of_down));
        drop(both);
        let of_first = of_kind!(&self.gate_and_up, op => GroupOnCuda::backward(op, first, d_both, of_first));
        of_first.into_iter().chain(gradients).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::{agrees_with_reference, random};
    use crate::dropout::Dropout;

    fn adapted(adapted: &[bool], rate: Option<f64>) -> Kind {
        let adapters = adapted.iter().filter(|is_adapted| **is_adapted).count();
        let mask = |i| rate.map(|rate| Dropout::new(rate, 31 + i as u64));
        Kind::Adapted(LoraLinears {
            scale: 0.5,
            adapted: adapted.to_vec(),
            a_sums: vec![None; adapters],
            b_sums: vec![None; adapters],
            masks: (0..adapters).filter_map(mask).collect(),
            fp8: false,
        })
    }

    fn plain(layers: usize) -> Kind {
        Kind::Plain(Linears { sums: vec![None; layers], fp8: false })
    }

    #[test]
    fn value_and_gradients_agree_with_the_reference_on_devices() {
        for (rows, input, hidden, output, rank) in
            [(1, 8, 16, 12, 8), (67, 72, 136, 72, 24), (130, 40, 200, 40, 8), (3, 6, 70, 5, 4)]
        {
            let x = random(1, rows, input);
            let [gate, up] = [2, 3].map(|seed| random(seed, hidden, input));
            let down = random(4, output, hidden);
            let [a_gate, a_up] = [5, 6].map(|seed| random(seed, rank, input));
            let [b_gate, b_up] = [7, 8].map(|seed| random(seed, hidden, rank));
            let (a, b) = (random(9, rank, hidden), random(10, output, rank));
            let of = |gate_and_up, down| GatedMlp { gate_and_up, down };
            let all = || [&x, &gate, &up, &a_gate, &a_up, &b_gate, &b_up, &down, &a, &b].map(Tensor::clone);
            let [x, gate, up, a_gate, a_up, b_gate, b_up, down, a, b] = all();
            let without = [&x, &gate, &up, &down].map(Tensor::clone);
            agrees_with_reference::<_, 4, 1>(of(plain(2), plain(1)), without, 1e-5);
            for rate in [None, Some(0.3)] {
                let op = of(adapted(&[true; 2], rate), adapted(&[true], rate));
                agrees_with_reference::<_, 10, 1>(op, all(), 1e-5);
                let last = [&x, &gate, &up, &down, &a, &b].map(Tensor::clone);
                agrees_with_reference::<_, 6, 1>(of(plain(2), adapted(&[true], rate)), last, 1e-5);
                let first = [&x, &gate, &up, &a_gate, &a_up, &b_gate, &b_up, &down].map(Tensor::clone);
                agrees_with_reference::<_, 8, 1>(of(adapted(&[true; 2], rate), plain(1)), first, 1e-5);
                let one = [&x, &gate, &up, &a_up, &b_up, &down, &a, &b].map(Tensor::clone);
                let op = of(adapted(&[false, true], rate), adapted(&[true], rate));
                agrees_with_reference::<_, 8, 1>(op, one, 1e-5);
            }
        }
    }

    /// As in the first layer with adapters of a model whose other linears have none.
    #[test]
    fn gradients_of_down_alone_are_those_that_all_have() {
        let wanted = |which: &[usize]| -> Vec<bool> { (0..6).map(|i| which.contains(&i)).collect() };
        let op = GatedMlp { gate_and_up: plain(2), down: adapted(&[true], None) };
        let inputs = [(9, 8), (16, 8), (16, 8), (12, 16), (8, 16), (12, 8)];
        let inputs = inputs.iter().zip(1..).map(|((rows, columns), seed)| random(seed, *rows, *columns));
        let inputs: Vec<_> = inputs.map(crate::op::primitive).collect();
        let gradients = |which: &[usize]| -> Vec<Option<Vec<f32>>> {
            let (outputs, kept) = Group::forward(&op, inputs.clone(), &wanted(which));
            let all = Group::backward(&op, kept, &outputs, &wanted(which)).into_iter();
            all.map(|one| one.map(|one| crate::cpu::slice(&one).to_vec())).collect()
        };
        let (all, some) = (gradients(&[0, 1, 2, 4, 5]), gradients(&[4, 5]));
        assert!(all[0].is_some() && all[1].is_some() && some[..3].iter().all(Option::is_none));
        assert!(all[4].is_some() && all[5].is_some() && all[4..] == some[4..]);
    }

    /// In full fine-tuning and with adapters.
    #[test]
    fn on_the_cpu_gate_and_up_are_kept_but_not_their_product() {
        let (rows, hidden) = (5, 16);
        let plain_shapes = [(rows, 8), (hidden, 8), (hidden, 8), (12, hidden)];
        let with_adapter = [&plain_shapes[..], &[(4, hidden), (12, 4)]].concat();
        for (down, shapes) in [(plain(1), plain_shapes.to_vec()), (adapted(&[true], None), with_adapter)] {
            let op = GatedMlp { gate_and_up: plain(2), down };
            let inputs = shapes.iter().zip(1..).map(|((rows, columns), seed)| random(seed, *rows, *columns));
            let inputs: Vec<_> = inputs.map(crate::op::primitive).collect();
            let (_, kept) = Group::forward(&op, inputs, &vec![true; shapes.len()]);
            let of_hidden = kept.iter().filter(|kept| crate::cpu::dims(kept) == (rows, hidden)).count();
            assert_eq!(of_hidden, 2, "{:?}", op.down);
        }
    }

    /// Whatever a device finds faster, a run has the same bits.
    #[cfg(feature = "cuda")]
    #[test]
    fn one_launch_and_two_give_the_same_bits_on_device() {
        use burn::tensor::DType;

        use crate::cuda::{into_tensor, primitive};
        use crate::linear::cuda::{Columns, Gradient};
        use crate::linear::tile::{GATED, Tile};
        use crate::linear::tuning::tests::problem;
        use crate::linear::tuning::{GATED_INPUT, GATED_OUTPUT, Problem, learn, remember};
        use crate::lora_linear::cuda::{gated_input_gradient, gated_output};

        let Some(device) = crate::testing::cuda_device() else { return };
        learn("").unwrap();
        let there =
            |seed, rows, columns| primitive(random(seed, rows, columns).to_device(&device).cast(DType::BF16));
        let same = |of: &Problem, run: &dyn Fn() -> [CudaTensor; 2]| {
            let in_way = |way: &Tile| {
                remember(of, *way);
                run().map(|x| into_tensor(x).into_data())
            };
            let first = in_way(&GATED[0]);
            for way in &GATED[1..] {
                assert!(in_way(way) == first, "{of}, {way}");
            }
        };
        let (gate, up) = (there(3, 67, 136), there(4, 67, 136));
        for rank in [0, 24] {
            let (d_y, weight) = (there(1, 67, 72), there(2, 72, 136));
            let (d_u, a) = (there(5, 67, 24), there(6, 24, 136));
            same(&problem(GATED_INPUT, &[136, 72, rank], 1, 67), &|| {
                let d_y = Gradient::new(d_y.clone());
                let adapter = (rank > 0).then_some((&d_u, &a));
                gated_input_gradient(&d_y, &weight, adapter, [&gate, &up])
            });
            let (x, weight) = (there(7, 67, 72), there(8, 136, 72));
            // The columns of the second of two adapters.
            let (u, b) = (there(9, 67, 32), there(10, 136, 24));
            same(&problem(GATED_OUTPUT, &[136, 72, rank], 1, 67), &|| {
                let adapter = (rank > 0).then(|| (Columns::new(&u, 8, 24), &b));
                gated_output(&x, &weight, adapter, &gate)
            });
        }
        learn("").unwrap();
    }
}
