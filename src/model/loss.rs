//! A loss that may still be on its way.

use burn::tensor::Tensor;

/// The sum of some losses in nats. On a device that works by itself it is known when the device has got there.
pub struct Loss(Option<Tensor<2>>);

impl Loss {
    /// The loss of a row without targets.
    pub(crate) const NONE: Self = Self(None);

    pub(crate) fn new(sum: Tensor<2>) -> Self {
        Self(Some(sum.inner()))
    }

    /// The number; waits for it.
    pub fn nats(&self) -> f64 {
        self.0.as_ref().map_or(0.0, |sum| f64::from(sum.clone().into_scalar::<f32>()))
    }
}
