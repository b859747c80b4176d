//! RMSNorm with a learned weight (SPEC.md 2.1).

use burn::tensor::{Device, Tensor};
use sparktune_kernels::rms_norm::{add_rms_norm, rms_norm};
use sparktune_plan::architecture::NormSpec;

use crate::checkpoint::Checkpoint;
use crate::error::ModelError;
use crate::module::module;
use crate::param::Param;

/// The norm `x / sqrt(mean(x²) + eps)` times `weight`, or times `1 + weight` if it is zero-centred.
#[derive(Debug, Clone)]
pub(crate) struct Norm {
    /// The weight, with one value per number that is normalised together.
    pub(crate) weight: Param,
    pub(crate) eps: f64,
    pub(crate) zero_centred: bool,
}

module!(Norm { weight });

impl Norm {
    /// Loads the norm that a table describes. Its path is relative to `module`, or to the decoder.
    pub(crate) fn load(
        checkpoint: &Checkpoint,
        spec: &NormSpec,
        module: Option<&str>,
        device: &Device,
    ) -> Result<Self, ModelError> {
        let weight = spec.weight();
        let weight = match module {
            Some(module) => weight.below(module),
            None => weight,
        };
        Ok(Self {
            weight: checkpoint.param(&weight, device)?,
            eps: checkpoint.config().rms_norm_eps,
            zero_centred: spec.zero_centred,
        })
    }

    /// Returns the norm of every row of `x`.
    pub(crate) fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        rms_norm(x, self.weight.tensor(), self.eps, self.zero_centred)
    }

    /// Returns the norm of every row of `x + branch`, and `x + branch`, in one pass.
    pub(crate) fn forward_sum(&self, x: Tensor<2>, branch: Tensor<2>) -> [Tensor<2>; 2] {
        add_rms_norm(x, branch, self.weight.tensor(), self.eps, self.zero_centred)
    }
}
