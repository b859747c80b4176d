//! A step and an evaluation, and how they are spelled in JSON: a float that is not finite becomes `null`
//! beside its name.

use serde::{Deserialize, Serialize};

/// One optimizer step.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "StepWire", into = "StepWire")]
pub struct Step {
    /// The number of the step, from 1.
    pub step: u64,
    /// Epochs done, fractional.
    pub epoch: Option<f64>,
    /// Mean loss per target token in nats; may be NaN or infinite.
    pub loss_nats: f64,
    /// Target tokens of the step.
    pub target_tokens: u64,
    /// All tokens of the step, without padding.
    pub tokens: u64,
    /// Learning rate used.
    pub lr: Option<f64>,
    /// Global gradient norm before clipping; may be NaN or infinite.
    pub grad_norm: Option<f64>,
    /// Wall time of the step in milliseconds.
    pub step_ms: Option<f64>,
    /// Tokens (not only targets) per second of this step.
    pub tokens_per_s: Option<f64>,
    /// Memory used in bytes, counted as in the plan's budget.
    pub mem_used_bytes: Option<u64>,
    /// The part of `step_ms` spent waiting for data.
    pub data_ms: Option<f64>,
    /// The part of `step_ms` spent in clipping and the optimizer.
    pub optimizer_ms: Option<f64>,
    /// The part of `step_ms` in which the step waited for the sums of several ranks after its own work,
    /// waiting for slower ranks included. Older programs exchanged after the backward pass only.
    pub exchange_ms: Option<f64>,
    /// The bytes that this rank sent and received for that.
    pub exchange_bytes: Option<u64>,
}

/// An evaluation on the eval set.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "EvalWire", into = "EvalWire")]
pub struct Eval {
    /// Steps trained so far.
    pub step: u64,
    /// Mean loss per target token in nats; may be NaN or infinite.
    pub loss_nats: f64,
    /// Target tokens evaluated.
    pub target_tokens: u64,
    /// Examples evaluated.
    pub examples: u64,
    /// Wall time.
    pub eval_ms: Option<f64>,
}

// The values of a float that JSON cannot represent, written next to the `null`.
#[derive(Clone, Copy, Serialize, Deserialize)]
enum NonFinite {
    #[serde(rename = "nan")]
    Nan,
    #[serde(rename = "inf")]
    Inf,
    #[serde(rename = "-inf")]
    NegInf,
}

impl NonFinite {
    fn of(value: f64) -> Option<Self> {
        match value {
            v if v.is_nan() => Some(Self::Nan),
            f64::INFINITY => Some(Self::Inf),
            f64::NEG_INFINITY => Some(Self::NegInf),
            _ => None,
        }
    }

    fn value(self) -> f64 {
        match self {
            Self::Nan => f64::NAN,
            Self::Inf => f64::INFINITY,
            Self::NegInf => f64::NEG_INFINITY,
        }
    }
}

/// Reads a loss, which is either finite or `null` with its companion, but never absent.
fn loss(value: Option<f64>, nonfinite: Option<NonFinite>) -> Result<f64, &'static str> {
    value.or(nonfinite.map(NonFinite::value)).ok_or("loss_nats is missing")
}

#[derive(Serialize, Deserialize)]
struct StepWire {
    step: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    epoch: Option<f64>,
    loss_nats: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    loss_nonfinite: Option<NonFinite>,
    #[serde(default)]
    target_tokens: u64,
    #[serde(default)]
    tokens: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    lr: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    grad_norm: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    grad_norm_nonfinite: Option<NonFinite>,
    #[serde(skip_serializing_if = "Option::is_none")]
    step_ms: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tokens_per_s: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    mem_used_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    data_ms: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    optimizer_ms: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    exchange_ms: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    exchange_bytes: Option<u64>,
}

impl From<Step> for StepWire {
    fn from(s: Step) -> Self {
        StepWire {
            step: s.step,
            epoch: s.epoch,
            loss_nats: Some(s.loss_nats),
            loss_nonfinite: NonFinite::of(s.loss_nats),
            target_tokens: s.target_tokens,
            tokens: s.tokens,
            lr: s.lr,
            grad_norm: s.grad_norm,
            grad_norm_nonfinite: s.grad_norm.and_then(NonFinite::of),
            step_ms: s.step_ms,
            tokens_per_s: s.tokens_per_s,
            mem_used_bytes: s.mem_used_bytes,
            data_ms: s.data_ms,
            optimizer_ms: s.optimizer_ms,
            exchange_ms: s.exchange_ms,
            exchange_bytes: s.exchange_bytes,
        }
    }
}

impl TryFrom<StepWire> for Step {
    type Error = &'static str;

    fn try_from(w: StepWire) -> Result<Self, &'static str> {
        Ok(Step {
            step: w.step,
            epoch: w.epoch,
            loss_nats: loss(w.loss_nats, w.loss_nonfinite)?,
            target_tokens: w.target_tokens,
            tokens: w.tokens,
            lr: w.lr,
            grad_norm: w.grad_norm.or(w.grad_norm_nonfinite.map(NonFinite::value)),
            step_ms: w.step_ms,
            tokens_per_s: w.tokens_per_s,
            mem_used_bytes: w.mem_used_bytes,
            data_ms: w.data_ms,
            optimizer_ms: w.optimizer_ms,
            exchange_ms: w.exchange_ms,
            exchange_bytes: w.exchange_bytes,
        })
    }
}

#[derive(Serialize, Deserialize)]
struct EvalWire {
    step: u64,
    loss_nats: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    loss_nonfinite: Option<NonFinite>,
    #[serde(default)]
    target_tokens: u64,
    #[serde(default)]
    examples: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    eval_ms: Option<f64>,
}

impl From<Eval> for EvalWire {
    fn from(e: Eval) -> Self {
        EvalWire {
            step: e.step,
            loss_nats: Some(e.loss_nats),
            loss_nonfinite: NonFinite::of(e.loss_nats),
            target_tokens: e.target_tokens,
            examples: e.examples,
            eval_ms: e.eval_ms,
        }
    }
}

impl TryFrom<EvalWire> for Eval {
    type Error = &'static str;

    fn try_from(w: EvalWire) -> Result<Self, &'static str> {
        Ok(Eval {
            step: w.step,
            loss_nats: loss(w.loss_nats, w.loss_nonfinite)?,
            target_tokens: w.target_tokens,
            examples: w.examples,
            eval_ms: w.eval_ms,
        })
    }
}
