//! One tensor of the model that may be trained.

use burn::tensor::{Device, Tensor, TensorData};

/// A named parameter. Held as `[rows, columns]`: vectors as one row, a depthwise convolution as `[channels, taps]`.
#[derive(Clone, Debug)]
pub struct Param {
    name: String,
    /// The shape the checkpoint stores it in.
    shape: Vec<usize>,
    /// Outside autodiff when frozen, a tracked leaf when trained.
    value: Tensor<2>,
}

impl Param {
    /// A frozen parameter from host numbers in the order of `shape`.
    ///
    /// # Panics
    /// When there are not as many numbers as the shape holds.
    pub fn new(name: impl Into<String>, shape: &[usize], data: Vec<f32>, device: &Device) -> Self {
        let (rows, columns) = match shape {
            [] => (1, 1),
            [n] => (1, *n),
            [rows, rest @ ..] => (*rows, rest.iter().product()),
        };
        let value = Tensor::from_data(TensorData::new(data, [rows, columns]), &device.clone().inner());
        Self { name: name.into(), shape: shape.to_vec(), value }
    }

    /// Canonical name (see the crate's header).
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Shape as stored in a checkpoint.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Weight decay applies to tensors of two or more dimensions, not to norms, biases and gates.
    pub fn decays(&self) -> bool {
        self.shape.len() >= 2
    }

    /// The value for use in the forward pass; cheap to take.
    pub fn tensor(&self) -> Tensor<2> {
        self.value.clone()
    }

    /// The value as host numbers.
    pub fn to_vec(&self) -> Vec<f32> {
        let data = self.value.clone().inner().into_data();
        data.try_to_vec().expect("parameters are f32")
    }

    /// Whether gradients are computed for it.
    pub fn is_trainable(&self) -> bool {
        self.value.is_tracked()
    }

    /// Starts or stops training it.
    pub fn set_trainable(&mut self, trainable: bool) {
        let value = self.value.clone().inner();
        self.value = if trainable { value.autodiff().require_grad() } else { value };
    }

    /// Hands out the value for an update in place; [`Self::put`] must follow.
    pub fn take(&mut self) -> Tensor<2> {
        let empty = Tensor::zeros([1, 1], &self.value.device().inner());
        std::mem::replace(&mut self.value, empty).inner()
    }

    /// Sets a new value of the same shape and makes it trainable or not.
    pub fn put(&mut self, value: Tensor<2>, trainable: bool) {
        self.value = if trainable { value.autodiff().require_grad() } else { value };
    }
}
