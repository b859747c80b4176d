//! Ops on several layers that read the same input. The number of layers is only known at run time, so these
//! ops use lists.

use std::fmt::Debug;

use burn::tensor::Tensor;
use burn_flex::FlexTensor;

#[cfg(feature = "cuda")]
use crate::cuda::{CudaTensor, GroupOnCuda, OnCuda};
use crate::op::{Op, apply_all};

/// The CUDA part of a group, which is empty in builds without CUDA.
#[cfg(not(feature = "cuda"))]
pub trait GroupOnCuda {}

#[cfg(not(feature = "cuda"))]
impl<G> GroupOnCuda for G {}

/// An [`Op`] on one input and the parameters of up to four layers, with one result per layer.
pub trait Group: GroupOnCuda + Clone + Debug + Send + 'static {
    /// Like [`Op::reference`].
    fn reference(&self, inputs: &[Tensor<2>]) -> Vec<Tensor<2>>;

    /// Like [`Op::forward`].
    fn forward(&self, inputs: Vec<FlexTensor>, wanted: &[bool]) -> (Vec<FlexTensor>, Vec<FlexTensor>);

    /// Like [`Op::backward`].
    fn backward(
        &self,
        saved: Vec<FlexTensor>,
        d_outputs: &[FlexTensor],
        wanted: &[bool],
    ) -> Vec<Option<FlexTensor>>;
}

/// Runs a group of `layers` layers, one to four, with one parameter each, and two more for some of them.
pub(crate) fn apply_group<G: Group>(group: G, inputs: Vec<Tensor<2>>, layers: usize) -> Vec<Tensor<2>> {
    match (inputs.len(), layers) {
        (2, 1) => sized::<G, 2, 1>(group, inputs),
        (4, 1) => sized::<G, 4, 1>(group, inputs),
        (3, 2) => sized::<G, 3, 2>(group, inputs),
        (5, 2) => sized::<G, 5, 2>(group, inputs),
        (7, 2) => sized::<G, 7, 2>(group, inputs),
        (4, 3) => sized::<G, 4, 3>(group, inputs),
        (6, 3) => sized::<G, 6, 3>(group, inputs),
        (8, 3) => sized::<G, 8, 3>(group, inputs),
        (10, 3) => sized::<G, 10, 3>(group, inputs),
        (5, 4) => sized::<G, 5, 4>(group, inputs),
        (7, 4) => sized::<G, 7, 4>(group, inputs),
        (9, 4) => sized::<G, 9, 4>(group, inputs),
        (11, 4) => sized::<G, 11, 4>(group, inputs),
        (13, 4) => sized::<G, 13, 4>(group, inputs),
        (inputs, layers) => unreachable!("{inputs} inputs of {layers} layers"),
    }
}

/// Runs a group that has these numbers of inputs and results.
pub(crate) fn sized<G: Group, const N: usize, const M: usize>(
    group: G,
    inputs: Vec<Tensor<2>>,
) -> Vec<Tensor<2>> {
    apply_all::<G, N, M>(group, array(inputs)).into()
}

fn array<T: Debug, const N: usize>(list: Vec<T>) -> [T; N] {
    list.try_into().expect("as many as the group has")
}

impl<G: Group, const N: usize, const M: usize> Op<N, M> for G {
    fn reference(&self, inputs: [Tensor<2>; N]) -> [Tensor<2>; M] {
        array(Group::reference(self, &inputs))
    }

    fn forward(&self, inputs: [FlexTensor; N], wanted: [bool; N]) -> ([FlexTensor; M], Vec<FlexTensor>) {
        let (outputs, saved) = Group::forward(self, inputs.into(), &wanted);
        (array(outputs), saved)
    }

    fn backward(
        &self,
        saved: Vec<FlexTensor>,
        d_outputs: [FlexTensor; M],
        wanted: [bool; N],
    ) -> [Option<FlexTensor>; N] {
        array(Group::backward(self, saved, &d_outputs, &wanted))
    }
}

#[cfg(feature = "cuda")]
impl<G: Group, const N: usize, const M: usize> OnCuda<N, M> for G {
    fn fits(&self, inputs: [[usize; 2]; N]) -> bool {
        GroupOnCuda::fits(self, &inputs)
    }

    fn forward(&self, inputs: [CudaTensor; N], wanted: [bool; N]) -> ([CudaTensor; M], Vec<CudaTensor>) {
        let (outputs, saved) = GroupOnCuda::forward(self, inputs.into(), &wanted);
        (array(outputs), saved)
    }

    fn backward(
        &self,
        saved: Vec<CudaTensor>,
        d_outputs: [CudaTensor; M],
        wanted: [bool; N],
    ) -> [Option<CudaTensor>; N] {
        array(GroupOnCuda::backward(self, saved, d_outputs.into(), &wanted))
    }
}
