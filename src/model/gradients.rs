//! Gradients by parameter name, summed over the micro-batches of a step.

use std::collections::BTreeMap;

use burn::tensor::Tensor;

use crate::final_gradients::OnFinal;
use crate::param::Param;

/// The sums of all gradients so far, f32 outside autodiff, in the order of the parameters' names.
#[derive(Default)]
pub struct Gradients {
    sums: BTreeMap<String, Tensor<2>>,
    /// Who gets the sums of a backward pass instead, each as soon as it is final.
    on_final: Option<OnFinal>,
}

impl Gradients {
    /// Hands the sums of the following backward passes to `on_final` instead of keeping them. It is called
    /// once for each trained parameter that the loss depends on, during the backward pass if its sum is final
    /// then, and must not be set before the last sequence of a step.
    pub fn hand_out(&mut self, on_final: OnFinal) {
        self.on_final = Some(on_final);
    }

    /// Returns who gets the sums.
    pub(crate) fn on_final(&self) -> Option<&OnFinal> {
        self.on_final.as_ref()
    }

    /// Attaches a parameter's sum to the parameter, so that backward passes add to it, until
    /// [`take_sum`](Self::take_sum) is called.
    pub(crate) fn attach_sum(&mut self, param: &Param) {
        if let Some(sum) = self.sums.remove(param.name()) {
            param.gradient_sum().put(sum);
        }
    }

    /// Takes the sum back from a trained parameter after a backward pass, and adds the gradient that is in
    /// `backward`.
    pub(crate) fn take_sum(&mut self, param: &Param, backward: &mut burn::tensor::Gradients) {
        if !param.is_trainable() {
            return;
        }
        let sum = param.gradient_sum();
        if let Some(gradient) = param.tensor().grad_remove(backward) {
            sum.add(gradient);
        }
        match (sum.take(), &self.on_final) {
            (Some(total), Some(on_final)) => on_final(param.name(), total),
            (Some(total), None) => self.put(param.name().to_owned(), total),
            (None, _) => {}
        }
    }

    /// Returns the summed gradient of a parameter, with the shape `[rows, columns]`.
    pub fn get(&self, name: &str) -> Option<&Tensor<2>> {
        self.sums.get(name)
    }

    /// Removes and returns the summed gradient of a parameter.
    pub fn take(&mut self, name: &str) -> Option<Tensor<2>> {
        self.sums.remove(name)
    }

    /// Puts the summed gradient of a parameter in the place of any other.
    pub fn put(&mut self, name: String, sum: Tensor<2>) {
        self.sums.insert(name, sum);
    }

    /// Returns all summed gradients, in the order of names.
    pub fn all(&self) -> Vec<&Tensor<2>> {
        self.sums.values().collect()
    }
}
