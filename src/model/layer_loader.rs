//! Loads the parts of a decoder layer with the names and shapes of its family's table.

use burn::tensor::Device;
use sparktune_plan::architecture::{LayerSpec, LinearSpec, Part, Place, Reads, TensorSpec};

use crate::checkpoint::Checkpoint;
use crate::error::ModelError;
use crate::linear::Linear;
use crate::norm::Norm;
use crate::param::Param;

/// A layer that is being loaded.
#[derive(Clone, Copy)]
pub(crate) struct LayerLoader<'a> {
    pub(crate) checkpoint: &'a Checkpoint,
    /// The layer's table.
    pub(crate) spec: &'a LayerSpec,
    /// The path of the layer: `layers.3`, or `mtp.layers.0`.
    pub(crate) path: &'a str,
    pub(crate) device: &'a Device,
}

impl LayerLoader<'_> {
    fn param(&self, tensor: TensorSpec) -> Result<Param, ModelError> {
        self.checkpoint.param(&tensor.below(self.path), self.device)
    }

    fn linear_of(&self, spec: &LinearSpec) -> Result<Linear, ModelError> {
        let bias = spec.bias().map(|bias| self.param(bias)).transpose()?;
        Ok(Linear {
            bias,
            ..Linear::new(self.checkpoint.weight(&spec.weight().below(self.path), self.device)?)
        })
    }

    /// Loads the linear layers that read this input, in the order of the table.
    ///
    /// # Panics
    /// When the table does not have `L` of them, which is a bug in the table or in the caller.
    pub(crate) fn linears<const L: usize>(&self, reads: Reads) -> Result<[Linear; L], ModelError> {
        let specs = self.spec.linears().filter(|linear| linear.reads == reads);
        let linears = specs.map(|spec| self.linear_of(spec)).collect::<Result<Vec<_>, _>>()?;
        Ok(linears.try_into().expect("the table has as many linear layers as the mixer or MLP takes apart"))
    }

    /// Loads the only linear layer that reads this input.
    ///
    /// # Panics
    /// The same as for [`linears`](Self::linears).
    pub(crate) fn linear(&self, reads: Reads) -> Result<Linear, ModelError> {
        let [linear] = self.linears(reads)?;
        Ok(linear)
    }

    /// Loads the norm at this place, if the table has one.
    pub(crate) fn optional_norm(&self, place: Place) -> Result<Option<Norm>, ModelError> {
        let spec = self.spec.norm(place);
        spec.map(|spec| Norm::load(self.checkpoint, spec, Some(self.path), self.device)).transpose()
    }

    /// Loads the norm at this place.
    ///
    /// # Panics
    /// When the table has none there, which is a bug in the table or in the caller.
    pub(crate) fn norm(&self, place: Place) -> Result<Norm, ModelError> {
        Ok(self.optional_norm(place)?.expect("the table has a norm wherever a layer needs one"))
    }

    /// Loads the tensor of this name, which belongs neither to a norm nor to a linear layer.
    ///
    /// # Panics
    /// When the table has none, which is a bug in the table or in the caller.
    pub(crate) fn tensor(&self, name: &str) -> Result<Param, ModelError> {
        let found = self.spec.parts.iter().find_map(|part| match part {
            Part::Tensor(tensor) if tensor.name == name => Some(tensor.clone()),
            Part::Norm(_) | Part::Linear(_) | Part::Tensor(_) => None,
        });
        self.param(found.expect("the table has every tensor that a mixer needs"))
    }
}
