//! A loss that the device may not have computed yet.

use burn::tensor::Tensor;

/// A sum of losses in nats. A GPU works asynchronously, so the number may not be computed yet.
pub struct Loss(Option<Tensor<2>>);

impl Loss {
    /// The loss of a sequence without trained tokens.
    pub(crate) const NONE: Self = Self(None);

    pub(crate) fn new(sum: Tensor<2>) -> Self {
        Self(Some(sum.inner()))
    }

    /// Waits for the number and returns it.
    pub fn nats(&self) -> f64 {
        self.0.as_ref().map_or(0.0, |sum| f64::from(sum.clone().into_scalar::<f32>()))
    }
}
