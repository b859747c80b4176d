//! The learning rate of each step: linear warm-up, then a half cosine down to a share of the peak.

use sparktune_plan::OptimizerPlan;

/// The learning rate of step `step` (from 0) of `total`.
///
/// Unlike Hugging Face's schedule the first step is not wasted at rate 0: warm-up step `i` uses `(i + 1) /
/// warmup`.
pub(crate) fn learning_rate(plan: &OptimizerPlan, step: u64, total: u64) -> f64 {
    let warmup = (plan.warmup_ratio * total as f64).round() as u64;
    if step < warmup {
        return plan.learning_rate * (step + 1) as f64 / warmup as f64;
    }
    let rest = (total - warmup).max(1);
    let progress = ((step - warmup) as f64 / rest as f64).min(1.0);
    let cosine = 0.5 * (1.0 + (std::f64::consts::PI * progress).cos());
    plan.learning_rate * (plan.min_lr_ratio + (1.0 - plan.min_lr_ratio) * cosine)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan() -> OptimizerPlan {
        OptimizerPlan {
            learning_rate: 1.0,
            min_lr_ratio: 0.1,
            warmup_ratio: 0.1,
            beta1: 0.9,
            beta2: 0.95,
            eps: 1e-8,
            weight_decay: 0.0,
            clip_norm: 1.0,
        }
    }

    #[test]
    fn it_climbs_to_the_peak_and_falls_to_the_floor() {
        let rates: Vec<f64> = (0..100).map(|step| learning_rate(&plan(), step, 100)).collect();
        assert_eq!(rates[0], 0.1);
        assert_eq!(rates[9], 1.0);
        assert_eq!(rates[10], 1.0);
        assert!(rates[10..].windows(2).all(|pair| pair[1] <= pair[0]));
        assert!(rates[99] > 0.1 && rates[99] < 0.102);
    }

    #[test]
    fn runs_of_any_length_have_a_rate_above_zero() {
        for total in 1..20 {
            for step in 0..total {
                assert!(learning_rate(&plan(), step, total) > 0.0, "{step} of {total}");
            }
        }
    }
}
