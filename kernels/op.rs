//! How an op joins burn: one function wires any [`Op`] into the autodiff graph, so that an op's file holds only
//! its mathematics.

use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::NoCheckpointing;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::{Autodiff, Flex};
use burn::tensor::Tensor;
use burn_flex::FlexTensor;
use std::fmt::Debug;
use std::marker::PhantomData;

/// An operation on `N` float tensors with one result and a hand-written backward.
///
/// The host-side parameters (borders, positions, scales) are fields of the implementing type.
pub trait Op<const N: usize>: Clone + Debug + Send + 'static {
    /// The result in plain differentiable tensor operations: the specification.
    fn reference(&self, inputs: [Tensor<2>; N]) -> Tensor<2>;

    /// The result on the CPU, and what `backward` will need.
    ///
    /// `wanted[i]` says whether a gradient for input `i` will be asked for; with none wanted nothing should be
    /// saved. Inputs are contiguous f32.
    fn forward(&self, inputs: [FlexTensor; N], wanted: [bool; N]) -> (FlexTensor, Vec<FlexTensor>);

    /// Gradients of the inputs given the gradient of the result; at least those `wanted`.
    fn backward(
        &self,
        saved: Vec<FlexTensor>,
        d_output: FlexTensor,
        wanted: [bool; N],
    ) -> [Option<FlexTensor>; N];
}

/// Runs an op, recording it in the autodiff graph when an input is tracked.
///
/// CPU tensors take the fused path, all others the reference path.
pub fn apply<O: Op<N>, const N: usize>(op: O, inputs: [Tensor<2>; N]) -> Tensor<2> {
    if !on_cpu(&inputs[0]) {
        return op.reference(inputs);
    }
    if !inputs.iter().any(Tensor::is_autodiff) {
        let (output, _) = op.forward(inputs.map(primitive), [false; N]);
        return Tensor::from_primitive::<Flex>(output);
    }
    let wanted = inputs.each_ref().map(Tensor::is_tracked);
    let inputs = inputs.map(|tensor| {
        let tensor = tensor.autodiff().try_into_primitive::<Autodiff<Flex>>();
        tensor.expect("all inputs of an op live on the same device")
    });
    let nodes = inputs.each_ref().map(|tensor| tensor.node());
    let inputs = inputs.map(|tensor| tensor.into_primitive().to_contiguous());
    let step = Step::<O, N> { op: PhantomData };
    let output = match step.prepare::<NoCheckpointing>(nodes).compute_bound().stateful() {
        OpsKind::Tracked(prep) => {
            let (output, saved) = op.forward(inputs, wanted);
            prep.finish((op, saved, wanted), output)
        }
        OpsKind::UnTracked(prep) => prep.finish(op.forward(inputs, wanted).0),
    };
    Tensor::from_primitive::<Autodiff<Flex>>(output)
}

/// Whether this tensor's data lies in host memory, where the fused CPU paths apply.
pub(crate) fn on_cpu(tensor: &Tensor<2>) -> bool {
    tensor.device().inner() == burn::tensor::Device::flex()
}

/// The contiguous data behind a tensor without autodiff association.
pub(crate) fn primitive(tensor: Tensor<2>) -> FlexTensor {
    tensor.try_into_primitive::<Flex>().expect("a CPU tensor outside autodiff").to_contiguous()
}

#[derive(Debug)]
struct Step<O, const N: usize> {
    op: PhantomData<O>,
}

impl<O: Op<N>, const N: usize> Backward<Flex, N> for Step<O, N> {
    type State = (O, Vec<FlexTensor>, [bool; N]);

    fn backward(self, ops: Ops<Self::State, N>, grads: &mut Gradients, _: &mut Checkpointer) {
        let (op, saved, wanted) = ops.state;
        let d_output = grads.consume::<Flex>(&ops.node).to_contiguous();
        let gradients = op.backward(saved, d_output, wanted);
        for (parent, gradient) in ops.parents.into_iter().zip(gradients) {
            if let Some(parent) = parent {
                let gradient = gradient.expect("an op returns every gradient that is wanted");
                grads.register::<Flex>(parent.id, gradient);
            }
        }
    }
}
