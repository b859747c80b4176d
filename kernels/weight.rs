//! A weight as an argument of an op, and the place where its gradient is added up.

use std::fmt;
use std::sync::{Arc, Mutex};

use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, DispatchKindConversion, DispatchTensor, Flex};
use burn::tensor::{DType, Tensor};
use burn_flex::FlexTensor;

use crate::adamw::accumulate;
#[cfg(feature = "cuda")]
use crate::cuda::{self, CudaTensor};
use crate::{cpu, op};

/// A matrix of the model.
#[derive(Debug, Clone)]
pub struct Weight {
    /// The numbers.
    pub tensor: Tensor<2>,
    /// The sum that ops add the gradient to. Without one, the gradient is returned like any other.
    pub sum: Option<GradientSum>,
}

impl From<Tensor<2>> for Weight {
    fn from(tensor: Tensor<2>) -> Self {
        Self { tensor, sum: None }
    }
}

/// The gradient of a weight, summed over all its uses in a step. Ops add to it in place, without a second
/// gradient of the weight's size. Only the head's gradient is computed in the forward pass and kept next to
/// the sum of earlier rows.
#[derive(Clone, Default)]
pub struct GradientSum(Arc<Mutex<Slot>>);

/// What is called after an addition to a sum, on the thread of the backward pass.
pub type OnAdd = Arc<dyn Fn() + Send + Sync>;

#[derive(Default)]
struct Slot {
    total: Option<Tensor<2>>,
    /// Whether something was added since it is watched.
    is_added: bool,
    on_add: Option<OnAdd>,
}

impl fmt::Debug for GradientSum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("GradientSum")
    }
}

impl GradientSum {
    /// Takes the sum so far, f32 outside autodiff. The next sum starts from zero.
    pub fn take(&self) -> Option<Tensor<2>> {
        self.0.lock().expect(NO_PANIC).total.take()
    }

    /// Calls `on_add` after every addition from now on, in the place of any other function.
    pub fn watch(&self, on_add: OnAdd) {
        let mut slot = self.0.lock().expect(NO_PANIC);
        (slot.is_added, slot.on_add) = (false, Some(on_add));
    }

    /// Takes the sum if something was added to it since it is watched.
    pub fn take_added(&self) -> Option<Tensor<2>> {
        let mut slot = self.0.lock().expect(NO_PANIC);
        if slot.is_added { slot.total.take() } else { None }
    }

    /// Adds a gradient outside autodiff.
    pub fn add(&self, gradient: Tensor<2>) {
        let total = match self.take() {
            Some(total) => accumulate(total, gradient),
            None if gradient.dtype() == DType::F32 => gradient,
            None => gradient.cast(DType::F32),
        };
        self.put(total);
    }

    /// Sets the sum: f32, outside autodiff.
    pub fn put(&self, total: Tensor<2>) {
        let mut slot = self.0.lock().expect(NO_PANIC);
        slot.total = Some(total);
        slot.is_added = true;
        let on_add = slot.on_add.clone();
        // It may look at other sums, which must not wait for this one.
        drop(slot);
        if let Some(on_add) = on_add {
            on_add();
        }
    }
}

const NO_PANIC: &str = "nobody panics while holding a gradient";

/// Adds a gradient to its sum. Returns the gradient if there is no sum.
pub(crate) fn keep<B: Backend>(sum: Option<&GradientSum>, gradient: FloatTensor<B>) -> Option<FloatTensor<B>>
where
    DispatchTensor: DispatchKindConversion<B>,
{
    let Some(sum) = sum else { return Some(gradient) };
    sum.add(Tensor::from_primitive::<B>(gradient));
    None
}

/// Calls `add` with the numbers of the sum, or with zeros `[rows, columns]` if it is empty. Returns the
/// result if there is no sum to store it in.
pub(crate) fn add_on_cpu(
    sum: Option<&GradientSum>,
    [rows, columns]: [usize; 2],
    add: impl FnOnce(&mut [f32]),
) -> Option<FlexTensor> {
    let total = sum.and_then(GradientSum::take).map(op::primitive);
    let mut total = total.unwrap_or_else(|| cpu::tensor(vec![0.0; rows * columns], rows));
    add(total.storage_mut::<f32>());
    let Some(sum) = sum else { return Some(total) };
    sum.put(Tensor::from_primitive::<Flex>(total));
    None
}

/// Stores the result of `add`, which gets the sum so far as a tensor that is not shared. Returns the result
/// if there is no sum to store it in.
#[cfg(feature = "cuda")]
pub(crate) fn add_on_cuda(
    sum: Option<&GradientSum>,
    add: impl FnOnce(Option<CudaTensor>) -> CudaTensor,
) -> Option<CudaTensor> {
    let total = add(take_on_cuda(sum));
    let Some(sum) = sum else { return Some(total) };
    sum.put(cuda::into_tensor(total));
    None
}

/// Calls `add` with the numbers of several sums of these `shapes`, f32 tensors that are not shared, and with
/// whether it has to add to them or replace them. Returns those without a sum to store them in.
#[cfg(feature = "cuda")]
pub(crate) fn add_all_on_cuda(
    sums: &[Option<GradientSum>],
    like: &CudaTensor,
    shapes: &[[usize; 2]],
    add: impl FnOnce(&[CudaTensor], bool),
) -> Vec<Option<CudaTensor>> {
    let totals: Vec<_> = sums.iter().map(|sum| take_on_cuda(sum.as_ref())).collect();
    let added = totals.iter().any(Option::is_some);
    // A mix of empty and filled sums never occurs within a model, whose layers are trained together.
    let fresh = |shape| {
        if added { cuda::zeros(like, shape, DType::F32) } else { cuda::empty(like, shape, DType::F32) }
    };
    let totals = totals.into_iter().zip(shapes).map(|(total, shape)| total.unwrap_or_else(|| fresh(*shape)));
    let totals: Vec<_> = totals.collect();
    add(&totals, added);
    let kept = totals.into_iter().zip(sums).map(|(total, sum)| {
        let Some(sum) = sum else { return Some(total) };
        sum.put(cuda::into_tensor(total));
        None
    });
    kept.collect()
}

#[cfg(feature = "cuda")]
fn take_on_cuda(sum: Option<&GradientSum>) -> Option<CudaTensor> {
    sum.and_then(GradientSum::take).map(|total| cuda::own(cuda::primitive(total)))
}
