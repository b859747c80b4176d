//! Gradients by parameter name, summed over the micro-batches of a step.

use crate::Param;
use burn::tensor::Tensor;
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
            None => gradient,
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

    /// L2 norm over all gradients; summed in double precision in the order of names.
    pub fn norm(&self) -> f64 {
        self.sums.values().map(|g| sparktune_kernels::adamw::sum_of_squares(g.clone())).sum::<f64>().sqrt()
    }
}
