//! Connects ops to burn: one function wires any [`Op`] into the autodiff graph, so that an op's file contains
//! only its mathematics.

use std::fmt::Debug;
use std::marker::PhantomData;
#[cfg(feature = "cuda")]
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

#[cfg(feature = "cuda")]
use burn::backend::Cube;
use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::NoCheckpointing;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, Backend, DispatchKindConversion, DispatchTensor, Flex, TensorMetadata};
use burn::tensor::{DType, FloatDType, Shape, Tensor};
use burn_flex::FlexTensor;

#[cfg(feature = "cuda")]
use crate::cuda::{self, OnCuda};

/// The CUDA part of an op, which is empty in builds without CUDA.
#[cfg(not(feature = "cuda"))]
pub trait OnCuda<const N: usize, const M: usize = 1> {}

#[cfg(not(feature = "cuda"))]
impl<O, const N: usize, const M: usize> OnCuda<N, M> for O {}

/// An operation on `N` float tensors with `M` results and a hand-written backward.
///
/// The host-side parameters (boundaries, positions, scales) are fields of the implementing type.
pub trait Op<const N: usize, const M: usize = 1>: OnCuda<N, M> + Clone + Debug + Send + 'static {
    /// Whether the results are f32 even if activations are narrower, as for losses and gates.
    const F32_RESULT: bool = false;

    /// Returns the results in plain differentiable tensor operations. This is the specification.
    fn reference(&self, inputs: [Tensor<2>; N]) -> [Tensor<2>; M];

    /// Returns the results on the CPU, and the tensors that `backward` will need.
    ///
    /// `wanted[i]` says whether a gradient for input `i` is needed; if none is, nothing should be saved.
    /// Inputs are contiguous f32; a frozen weight of a model that only decodes may be bf16.
    fn forward(&self, inputs: [FlexTensor; N], wanted: [bool; N]) -> ([FlexTensor; M], Vec<FlexTensor>);

    /// Returns the gradients of the inputs, given the gradients of the results: at least those in `wanted`,
    /// except the ones that were added to a [`GradientSum`](crate::GradientSum).
    fn backward(
        &self,
        saved: Vec<FlexTensor>,
        d_outputs: [FlexTensor; M],
        wanted: [bool; N],
    ) -> [Option<FlexTensor>; N];
}

/// Runs an op with one result, recording it in the autodiff graph when an input is tracked.
///
/// On the CPU and on CUDA devices this uses the op's own forward and backward passes. Its reference is used
/// for shapes that the kernels do not support, and on all other devices.
pub fn apply<O: Op<N>, const N: usize>(op: O, inputs: [Tensor<2>; N]) -> Tensor<2> {
    let [result] = apply_all(op, inputs);
    result
}

/// Like [`apply`], for an op with any number of results. The differentiated value must depend on the first
/// one.
pub fn apply_all<O: Op<N, M>, const N: usize, const M: usize>(
    op: O,
    inputs: [Tensor<2>; N],
) -> [Tensor<2>; M] {
    if on_cpu(&inputs[0]) {
        return run::<O, Flex, N, M>(op, inputs);
    }
    #[cfg(feature = "cuda")]
    if !ONLY_REFERENCES.load(Ordering::Relaxed) && op.fits(inputs.each_ref().map(Tensor::dims)) {
        return run::<O, Cube, N, M>(op, inputs);
    }
    by_reference(&op, inputs)
}

/// Whether CUDA devices compute the references.
#[cfg(feature = "cuda")]
static ONLY_REFERENCES: AtomicBool = AtomicBool::new(false);

/// Calls `f`, during which CUDA devices compute the references of ops instead of their kernels, on all
/// threads. It shows what the kernels are worth, and whether a whole model agrees with the specification.
///
/// # Panics
/// When `f` does; kernels are then used again.
#[cfg(feature = "cuda")]
pub fn by_references<T>(f: impl FnOnce() -> T) -> T {
    struct Until;
    impl Drop for Until {
        fn drop(&mut self) {
            ONLY_REFERENCES.store(false, Ordering::Relaxed);
        }
    }
    ONLY_REFERENCES.store(true, Ordering::Relaxed);
    let _until = Until;
    f()
}

/// Computes the reference on any device in f32.
pub(crate) fn by_reference<O: Op<N, M>, const N: usize, const M: usize>(
    op: &O,
    inputs: [Tensor<2>; N],
) -> [Tensor<2>; M] {
    let dtype = inputs[0].dtype();
    let results = op.reference(inputs.map(|input| cast(input, DType::F32)));
    if O::F32_RESULT { results } else { results.map(|result| cast(result, dtype)) }
}

fn cast(tensor: Tensor<2>, dtype: DType) -> Tensor<2> {
    if tensor.dtype() == dtype { tensor } else { tensor.cast(dtype) }
}

fn run<O: Runs<B, N, M>, B: Backend, const N: usize, const M: usize>(
    op: O,
    inputs: [Tensor<2>; N],
) -> [Tensor<2>; M]
where
    DispatchTensor: DispatchKindConversion<B> + DispatchKindConversion<Autodiff<B>>,
{
    if !inputs.iter().any(Tensor::is_autodiff) {
        let inputs = inputs.map(|tensor| tensor.try_into_primitive::<B>().expect(ONE_DEVICE));
        return op.forward(inputs, [false; N]).0.map(Tensor::from_primitive::<B>);
    }
    let wanted = inputs.each_ref().map(Tensor::is_tracked);
    let inputs = inputs.map(|tensor| {
        let tensor = tensor.autodiff().try_into_primitive::<Autodiff<B>>();
        tensor.expect(ONE_DEVICE)
    });
    let nodes = inputs.each_ref().map(|tensor| tensor.node());
    let inputs = inputs.map(|tensor| tensor.into_primitive());
    let (outputs, saved) = op.forward(inputs, wanted);
    let others = Others::<B>::of(&outputs[1..]);
    let mut outputs = outputs.into_iter();
    let first = outputs.next().expect("an op has a result");
    let step = Step::<O, N, M> { op: PhantomData };
    let first = match step.prepare::<NoCheckpointing>(nodes).compute_bound().stateful() {
        OpsKind::Tracked(prep) => prep.finish((op, saved, wanted, others.clone()), first),
        OpsKind::UnTracked(prep) => prep.finish(first),
    };
    let rest = outputs.enumerate().map(|(place, output)| {
        match Other.prepare::<NoCheckpointing>([first.node()]).compute_bound().stateful() {
            OpsKind::Tracked(prep) => prep.finish((place, others.clone()), output),
            OpsKind::UnTracked(prep) => prep.finish(output),
        }
    });
    let mut results: Vec<_> = rest.collect();
    results.insert(0, first);
    let results: [_; M] = results.try_into().expect("as many as there were");
    results.map(Tensor::from_primitive::<Autodiff<B>>)
}

const ONE_DEVICE: &str = "all inputs of an op live on the same device";

/// An op on the tensors of one backend.
trait Runs<B: Backend, const N: usize, const M: usize>: Clone + Debug + Send + 'static {
    fn forward(
        &self,
        inputs: [FloatTensor<B>; N],
        wanted: [bool; N],
    ) -> ([FloatTensor<B>; M], Vec<FloatTensor<B>>);

    fn backward(
        &self,
        saved: Vec<FloatTensor<B>>,
        d_outputs: [FloatTensor<B>; M],
        wanted: [bool; N],
    ) -> [Option<FloatTensor<B>>; N];
}

impl<O: Op<N, M>, const N: usize, const M: usize> Runs<Flex, N, M> for O {
    fn forward(&self, inputs: [FlexTensor; N], wanted: [bool; N]) -> ([FlexTensor; M], Vec<FlexTensor>) {
        Op::forward(self, inputs.map(|input| input.to_contiguous()), wanted)
    }

    fn backward(
        &self,
        saved: Vec<FlexTensor>,
        d_outputs: [FlexTensor; M],
        wanted: [bool; N],
    ) -> [Option<FlexTensor>; N] {
        Op::backward(self, saved, d_outputs.map(|gradient| gradient.to_contiguous()), wanted)
    }
}

#[cfg(feature = "cuda")]
impl<O: Op<N, M>, const N: usize, const M: usize> Runs<Cube, N, M> for O {
    fn forward(
        &self,
        inputs: [cuda::CudaTensor; N],
        wanted: [bool; N],
    ) -> ([cuda::CudaTensor; M], Vec<cuda::CudaTensor>) {
        OnCuda::forward(self, inputs.map(cuda::contiguous), wanted)
    }

    fn backward(
        &self,
        saved: Vec<cuda::CudaTensor>,
        d_outputs: [cuda::CudaTensor; M],
        wanted: [bool; N],
    ) -> [Option<cuda::CudaTensor>; N] {
        OnCuda::backward(self, saved, d_outputs.map(cuda::contiguous), wanted)
    }
}

/// Returns whether this tensor's data is in host memory, where the fused CPU paths apply.
pub(crate) fn on_cpu(tensor: &Tensor<2>) -> bool {
    tensor.device().inner() == burn::tensor::Device::flex()
}

/// Returns parts of a result below each other.
pub(crate) fn joined(mut parts: Vec<Tensor<2>>) -> Tensor<2> {
    if parts.len() == 1 { parts.remove(0) } else { Tensor::cat(parts, 0) }
}

#[cfg(feature = "cuda")]
pub(crate) fn all_into_tensors(all: Vec<Vec<cuda::CudaTensor>>) -> Vec<Vec<Tensor<2>>> {
    all.into_iter().map(|some| some.into_iter().map(cuda::into_tensor).collect()).collect()
}

/// Returns a tensor outside autodiff with contiguous rows, as kernels read them. burn pads short rows on CUDA
/// devices, and without this each use of such a tensor would copy it.
pub fn packed(tensor: Tensor<2>) -> Tensor<2> {
    #[cfg(feature = "cuda")]
    if !on_cpu(&tensor) {
        return cuda::into_tensor(cuda::primitive(tensor));
    }
    tensor
}

/// Returns the contiguous data of a tensor outside autodiff.
#[cfg_attr(
    not(feature = "cuda"),
    expect(unreachable_pub, reason = "builds with CUDA hand it to the benchmarks")
)]
pub fn primitive(tensor: Tensor<2>) -> FlexTensor {
    tensor.try_into_primitive::<Flex>().expect("a CPU tensor outside autodiff").to_contiguous()
}

/// The autodiff node of an op's first result. It waits for the gradients of all results and computes those of
/// the inputs.
#[derive(Debug)]
struct Step<O, const N: usize, const M: usize> {
    op: PhantomData<O>,
}

impl<O: Runs<B, N, M>, B: Backend, const N: usize, const M: usize> Backward<B, N> for Step<O, N, M> {
    type State = (O, Vec<FloatTensor<B>>, [bool; N], Others<B>);

    fn backward(self, ops: Ops<Self::State, N>, grads: &mut Gradients, _: &mut Checkpointer) {
        let (op, saved, wanted, others) = ops.state;
        let d_outputs = others.with(grads.consume::<B>(&ops.node));
        let gradients = op.backward(saved, d_outputs, wanted);
        for (parent, gradient) in ops.parents.into_iter().zip(gradients) {
            // It is `None` if the op has added it to a sum.
            if let (Some(parent), Some(gradient)) = (parent, gradient) {
                grads.register::<B>(parent.id, gradient);
            }
        }
    }
}

/// The autodiff node of one of an op's other results. It is a child of the first result's node, so that the
/// backward pass visits it before that one, and it only stores its gradient for it.
#[derive(Debug)]
struct Other;

impl<B: Backend> Backward<B, 1> for Other {
    type State = (usize, Others<B>);

    fn backward(self, ops: Ops<Self::State, 1>, grads: &mut Gradients, _: &mut Checkpointer) {
        let (place, others) = ops.state;
        others.gradients.lock().expect(NO_PANIC)[place] = Some(grads.consume::<B>(&ops.node));
    }
}

/// The gradients of an op's results after the first, as they arrive.
#[derive(Debug, Clone)]
struct Others<B: Backend> {
    gradients: Arc<Mutex<Vec<Option<FloatTensor<B>>>>>,
    kinds: Vec<(Shape, FloatDType)>,
}

const NO_PANIC: &str = "nobody panics while holding gradients";

impl<B: Backend> Others<B> {
    fn of(outputs: &[FloatTensor<B>]) -> Self {
        let kinds: Vec<_> = outputs.iter().map(|output| (output.shape(), output.dtype().into())).collect();
        Self { gradients: Arc::new(Mutex::new(vec![None; kinds.len()])), kinds }
    }

    /// Returns all gradients, given that of the first result, with zeros for results that were not used.
    fn with<const M: usize>(self, first: FloatTensor<B>) -> [FloatTensor<B>; M] {
        let device = first.device();
        let found = std::mem::take(&mut *self.gradients.lock().expect(NO_PANIC));
        let zeros = |(shape, dtype)| B::float_zeros(shape, &device, dtype);
        let others =
            found.into_iter().zip(self.kinds).map(|(found, kind)| found.unwrap_or_else(|| zeros(kind)));
        let mut all: Vec<_> = std::iter::once(first).chain(others).collect();
        std::array::from_fn(|_| all.remove(0))
    }
}
