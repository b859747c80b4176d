//! The parameters that a step trains, by name and shape, and their gradients.

use burn::tensor::{Device, Tensor, TensorData};
use sparktune_kernels::adamw::accumulate;
use sparktune_kernels::packed;
use sparktune_model::{Gradients, Param};

use crate::error::TrainError;

/// The shape of a trained parameter.
pub(crate) struct Trained {
    name: String,
    shape: [usize; 2],
}

impl Trained {
    /// Returns the trained parameters in the order of their names, which is that of sums and norms.
    pub(crate) fn of(parameters: &[&Param]) -> Vec<Self> {
        let mut all = Self::in_order(parameters);
        all.sort_by(|one, other| one.name.cmp(&other.name));
        all
    }

    /// Returns parameters in the order that is given.
    pub(crate) fn in_order(parameters: &[&Param]) -> Vec<Self> {
        let of = |param: &&Param| Self { name: param.name().to_owned(), shape: param.tensor().dims() };
        parameters.iter().map(of).collect()
    }

    #[cfg(test)]
    pub(crate) fn with_shape(name: &str, shape: [usize; 2]) -> Self {
        Self { name: name.to_owned(), shape }
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn shape(&self) -> [usize; 2] {
        self.shape
    }

    pub(crate) fn count(&self) -> usize {
        self.shape.iter().product()
    }

    /// Puts these numbers as the gradient.
    pub(crate) fn put(&self, gradients: &mut Gradients, numbers: &[f32], device: &Device) {
        let data = TensorData::new(numbers.to_vec(), self.shape);
        gradients.put(self.name.clone(), packed(Tensor::from_data(data, &device.clone().inner())));
    }

    /// Takes the gradient, which is zero for a rank without micro-batches.
    pub(crate) fn take(&self, gradients: &mut Gradients, device: &Device) -> Tensor<2> {
        let zeros = || packed(Tensor::zeros(self.shape, &device.clone().inner()));
        gradients.take(&self.name).unwrap_or_else(zeros)
    }
}

/// Checks that every trained parameter has a gradient in `step`, counted from 1.
pub(crate) fn require_gradients<'a>(
    trained: impl Iterator<Item = &'a Trained>,
    step: u64,
    is_there: impl Fn(&str) -> bool,
) -> Result<(), TrainError> {
    let missing: Vec<&str> = trained.map(Trained::name).filter(|name| !is_there(name)).collect();
    match missing.first() {
        None => Ok(()),
        Some(first) => Err(TrainError::NoGradient { first: (*first).to_owned(), count: missing.len(), step }),
    }
}

/// Adds the sum of the next rank to those of the ranks before, in one process.
pub(crate) fn add_rank(
    sums: Gradients,
    mut next: Gradients,
    trained: &[Trained],
    device: &Device,
) -> Gradients {
    let mut sums = sums;
    for param in trained {
        let sum = accumulate(param.take(&mut sums, device), param.take(&mut next, device));
        sums.put(param.name.clone(), sum);
    }
    sums
}
