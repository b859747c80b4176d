//! AdamW over all trained parameters, with clipping by the global norm.

use std::collections::BTreeMap;

use sparktune_kernels::adamw::{AdamW, Clip, Moments, zeros_like};
use sparktune_model::{Gradients, Param};
use sparktune_plan::OptimizerPlan;

use crate::error::TrainError;

/// The first and second moment of each trained parameter by its name, f32, outside autodiff.
#[derive(Default)]
pub(crate) struct Optimizer {
    pub(crate) moments: BTreeMap<String, Moments>,
}

/// Calls its argument with every parameter of a model, trained or not.
pub(crate) type Visit<'a> = dyn FnMut(&mut dyn FnMut(&mut Param)) + 'a;

impl Optimizer {
    /// Takes one step, counted from 1, with the gradients of the mean loss. The returned norm may still be in
    /// the device's queue. A step whose norm is not finite changes nothing.
    ///
    /// # Errors
    /// When a trainable parameter has no gradient.
    pub(crate) fn step(
        &mut self,
        plan: &OptimizerPlan,
        learning_rate: f64,
        step: u64,
        mut gradients: Gradients,
        visit: &mut Visit,
    ) -> Result<Clip, TrainError> {
        let mut missing: Vec<String> = Vec::new();
        visit(&mut |param| {
            if param.is_trainable() && gradients.get(param.name()).is_none() {
                missing.push(param.name().to_owned());
            }
        });
        if let Some(first) = missing.first().cloned() {
            return Err(TrainError::NoGradient { first, count: missing.len(), step });
        }
        let clip = Clip::new(&gradients.all(), plan.clip_norm);
        visit(&mut |param| {
            let Some(gradient) = gradients.take(param.name()) else { return };
            let adamw = AdamW {
                learning_rate,
                beta1: plan.beta1,
                beta2: plan.beta2,
                eps: plan.eps,
                weight_decay: if param.decays() { plan.weight_decay } else { 0.0 },
                step,
            };
            let fresh = || (zeros_like(&gradient), zeros_like(&gradient));
            let moments = self.moments.remove(param.name()).unwrap_or_else(fresh);
            let name = param.name().to_owned();
            param.update(|weights| {
                let (weights, moments) = adamw.update(weights, moments, gradient, &clip);
                self.moments.insert(name, moments);
                weights
            });
        });
        Ok(clip)
    }
}
