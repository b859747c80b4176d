//! AdamW over all trained parameters, with global-norm clipping.

use crate::TrainError;
use burn::tensor::Tensor;
use sparktune_kernels::adamw::{AdamW, zeros_like};
use sparktune_model::{Gradients, Param};
use sparktune_plan::OptimizerPlan;
use std::collections::BTreeMap;

/// First and second moments by parameter name, f32, outside autodiff.
#[derive(Default)]
pub(crate) struct Optimizer {
    pub(crate) moments: BTreeMap<String, (Tensor<2>, Tensor<2>)>,
}

/// Whose parameters are trained: calls back for every one of them, trained or not.
pub(crate) type Visit<'a> = dyn FnMut(&mut dyn FnMut(&mut Param)) + 'a;

impl Optimizer {
    /// One step with gradients of the mean loss; returns the global norm before clipping.
    ///
    /// `step` counts from 1.
    ///
    /// # Errors
    /// When the norm is not finite, or a trainable parameter has no gradient.
    pub(crate) fn step(
        &mut self,
        plan: &OptimizerPlan,
        learning_rate: f64,
        step: u64,
        mut gradients: Gradients,
        visit: &mut Visit,
    ) -> Result<f64, TrainError> {
        let norm = gradients.norm();
        if !norm.is_finite() {
            return Err(TrainError::NotFinite { what: "gradient norm", value: norm, step });
        }
        let mut missing: Vec<String> = Vec::new();
        visit(&mut |param| {
            if param.is_trainable() && gradients.get(param.name()).is_none() {
                missing.push(param.name().to_owned());
            }
        });
        if let Some(first) = missing.first().cloned() {
            return Err(TrainError::NoGradient { first, count: missing.len(), step });
        }
        let gradient_scale = (plan.clip_norm / (norm + 1e-6)).min(1.0);
        visit(&mut |param| {
            let Some(gradient) = gradients.take(param.name()) else { return };
            let adamw = AdamW {
                learning_rate,
                beta1: plan.beta1,
                beta2: plan.beta2,
                eps: plan.eps,
                weight_decay: if param.decays() { plan.weight_decay } else { 0.0 },
                step,
                gradient_scale,
            };
            let fresh = || (zeros_like(&gradient), zeros_like(&gradient));
            let (m, v) = self.moments.remove(param.name()).unwrap_or_else(fresh);
            let (value, m, v) = adamw.update((param.take(), m, v), gradient);
            param.put(value, true);
            self.moments.insert(param.name().to_owned(), (m, v));
        });
        Ok(norm)
    }
}
