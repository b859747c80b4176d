//! Gradients by parameter name, summed over the micro-batches of a step.

use crate::Param;
use burn::tensor::{DType, Tensor};
use sparktune_kernels::adamw::accumulate;
use std::collections::BTreeMap;

/// The sum of the gradients collected so far, outside autodiff, in the order of the parameters' names.
#[derive(Default)]
pub struct Gradients {
    sums: BTreeMap<String, Tensor<2>>,
}

impl Gradients {
    /// Takes a parameter's gradient out of a finished backward pass, if it has one.
    pub(crate) fn collect(&mut self, param: &Param, backward: &mut burn::tensor::Gradients) {
        if !param.is_trainable() {
            return;
        }
        let Some(gradient) = param.tensor().grad_remove(backward) else { return };
        let total = match self.sums.remove(param.name()) {
            Some(sum) => accumulate(sum, gradient),
            // An op that was computed by its reference gives a gradient as narrow as the parameter.
            None => gradient.cast(DType::F32),
        };
        self.sums.insert(param.name().to_owned(), total);
    }

    /// The summed gradient of a parameter, in its `[rows, columns]` form.
    pub fn get(&self, name: &str) -> Option<&Tensor<2>> {
        self.sums.get(name)
    }

    /// Removes and returns the summed gradient of a parameter.
    pub fn take(&mut self, name: &str) -> Option<Tensor<2>> {
        self.sums.remove(name)
    }

    /// All summed gradients, in the order of names.
    pub fn all(&self) -> Vec<&Tensor<2>> {
        self.sums.values().collect()
    }
}
