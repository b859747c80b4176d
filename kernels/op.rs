//! How an op joins burn: one function wires any [`Op`] into the autodiff graph, so that an op's file holds only
//! its mathematics.

#[cfg(feature = "cuda")]
use crate::cuda::{self, OnCuda};
#[cfg(feature = "cuda")]
use burn::backend::Cube;
use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::NoCheckpointing;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::{Autodiff, Backend, DispatchKindConversion, DispatchTensor, Flex, tensor::FloatTensor};
use burn::tensor::{DType, Tensor};
use burn_flex::FlexTensor;
use std::fmt::Debug;
use std::marker::PhantomData;

/// What an op has for CUDA devices: nothing in a build without them.
#[cfg(not(feature = "cuda"))]
pub trait OnCuda<const N: usize> {}

#[cfg(not(feature = "cuda"))]
impl<O, const N: usize> OnCuda<N> for O {}

/// An operation on `N` float tensors with one result and a hand-written backward.
///
/// The host-side parameters (borders, positions, scales) are fields of the implementing type.
pub trait Op<const N: usize>: OnCuda<N> + Clone + Debug + Send + 'static {
    /// Whether the result is wanted in f32 where activations are narrower: losses and gates.
    const F32_RESULT: bool = false;

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
/// On the CPU and on CUDA devices by its own forward and backward; by its reference where its kernels do not take
/// these shapes, and on all other devices.
pub fn apply<O: Op<N>, const N: usize>(op: O, inputs: [Tensor<2>; N]) -> Tensor<2> {
    if on_cpu(&inputs[0]) {
        return run::<O, Flex, N>(op, inputs);
    }
    #[cfg(feature = "cuda")]
    if op.fits(inputs.each_ref().map(Tensor::dims)) {
        return run::<O, Cube, N>(op, inputs);
    }
    by_reference(&op, inputs)
}

/// The reference on any device, computed in f32.
pub(crate) fn by_reference<O: Op<N>, const N: usize>(op: &O, inputs: [Tensor<2>; N]) -> Tensor<2> {
    let dtype = inputs[0].dtype();
    let result = op.reference(inputs.map(|input| cast(input, DType::F32)));
    if O::F32_RESULT { result } else { cast(result, dtype) }
}

fn cast(tensor: Tensor<2>, dtype: DType) -> Tensor<2> {
    if tensor.dtype() == dtype { tensor } else { tensor.cast(dtype) }
}

fn run<O: Runs<B, N>, B: Backend, const N: usize>(op: O, inputs: [Tensor<2>; N]) -> Tensor<2>
where
    DispatchTensor: DispatchKindConversion<B> + DispatchKindConversion<Autodiff<B>>,
{
    if !inputs.iter().any(Tensor::is_autodiff) {
        let inputs = inputs.map(|tensor| tensor.try_into_primitive::<B>().expect(ONE_DEVICE));
        return Tensor::from_primitive::<B>(op.forward(inputs, [false; N]).0);
    }
    let wanted = inputs.each_ref().map(Tensor::is_tracked);
    let inputs = inputs.map(|tensor| {
        let tensor = tensor.autodiff().try_into_primitive::<Autodiff<B>>();
        tensor.expect(ONE_DEVICE)
    });
    let nodes = inputs.each_ref().map(|tensor| tensor.node());
    let inputs = inputs.map(|tensor| tensor.into_primitive());
    let step = Step::<O, N> { op: PhantomData };
    let output = match step.prepare::<NoCheckpointing>(nodes).compute_bound().stateful() {
        OpsKind::Tracked(prep) => {
            let (output, saved) = op.forward(inputs, wanted);
            prep.finish((op, saved, wanted), output)
        }
        OpsKind::UnTracked(prep) => prep.finish(op.forward(inputs, wanted).0),
    };
    Tensor::from_primitive::<Autodiff<B>>(output)
}

const ONE_DEVICE: &str = "all inputs of an op live on the same device";

/// An op on the tensors of one backend.
trait Runs<B: Backend, const N: usize>: Clone + Debug + Send + 'static {
    fn forward(
        &self,
        inputs: [FloatTensor<B>; N],
        wanted: [bool; N],
    ) -> (FloatTensor<B>, Vec<FloatTensor<B>>);

    fn backward(
        &self,
        saved: Vec<FloatTensor<B>>,
        d_output: FloatTensor<B>,
        wanted: [bool; N],
    ) -> [Option<FloatTensor<B>>; N];
}

impl<O: Op<N>, const N: usize> Runs<Flex, N> for O {
    fn forward(&self, inputs: [FlexTensor; N], wanted: [bool; N]) -> (FlexTensor, Vec<FlexTensor>) {
        Op::forward(self, inputs.map(|input| input.to_contiguous()), wanted)
    }

    fn backward(
        &self,
        saved: Vec<FlexTensor>,
        d_output: FlexTensor,
        wanted: [bool; N],
    ) -> [Option<FlexTensor>; N] {
        Op::backward(self, saved, d_output.to_contiguous(), wanted)
    }
}

#[cfg(feature = "cuda")]
impl<O: Op<N>, const N: usize> Runs<Cube, N> for O {
    fn forward(
        &self,
        inputs: [cuda::CudaTensor; N],
        wanted: [bool; N],
    ) -> (cuda::CudaTensor, Vec<cuda::CudaTensor>) {
        OnCuda::forward(self, inputs.map(cuda::contiguous), wanted)
    }

    fn backward(
        &self,
        saved: Vec<cuda::CudaTensor>,
        d_output: cuda::CudaTensor,
        wanted: [bool; N],
    ) -> [Option<cuda::CudaTensor>; N] {
        OnCuda::backward(self, saved, cuda::contiguous(d_output), wanted)
    }
}

/// Whether this tensor's data lies in host memory, where the fused CPU paths apply.
pub(crate) fn on_cpu(tensor: &Tensor<2>) -> bool {
    tensor.device().inner() == burn::tensor::Device::flex()
}

/// A tensor outside autodiff with its rows one after the other, as kernels read them; burn leaves gaps behind short rows
/// on CUDA devices, and each use of such a tensor would close them anew.
pub fn packed(tensor: Tensor<2>) -> Tensor<2> {
    #[cfg(feature = "cuda")]
    if !on_cpu(&tensor) {
        return cuda::into_tensor(cuda::primitive(tensor));
    }
    tensor
}

/// The contiguous data behind a tensor without autodiff association.
pub(crate) fn primitive(tensor: Tensor<2>) -> FlexTensor {
    tensor.try_into_primitive::<Flex>().expect("a CPU tensor outside autodiff").to_contiguous()
}

#[derive(Debug)]
struct Step<O, const N: usize> {
    op: PhantomData<O>,
}

impl<O: Runs<B, N>, B: Backend, const N: usize> Backward<B, N> for Step<O, N> {
    type State = (O, Vec<FloatTensor<B>>, [bool; N]);

    fn backward(self, ops: Ops<Self::State, N>, grads: &mut Gradients, _: &mut Checkpointer) {
        let (op, saved, wanted) = ops.state;
        let d_output = grads.consume::<B>(&ops.node);
        let gradients = op.backward(saved, d_output, wanted);
        for (parent, gradient) in ops.parents.into_iter().zip(gradients) {
            if let Some(parent) = parent {
                let gradient = gradient.expect("an op returns every gradient that is wanted");
                grads.register::<B>(parent.id, gradient);
            }
        }
    }
}
