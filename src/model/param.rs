//! A named tensor of the model, which may be trainable.

use burn::tensor::{DType, Device, Tensor, TensorData};
use half::bf16;
use sparktune_kernels::adamw::Weights;
use sparktune_kernels::{GradientSum, Weight, packed};

/// A named parameter. It is a matrix `[rows, columns]`: a vector is one row, a depthwise convolution is
/// `[channels, taps]`.
///
/// On the CPU all numbers are f32, but for the weights of a model that only decodes, which stay bf16 if they
/// are stored so ([`Checkpoint::for_decoding`](crate::Checkpoint::for_decoding)). On other devices matrices
/// are bf16 in the forward pass; those that are trained, or were stored with higher precision, keep f32
/// numbers too. Vectors (norms, biases, gates) stay f32.
#[derive(Debug, Clone)]
pub struct Param {
    name: String,
    /// The shape in the checkpoint.
    shape: Vec<usize>,
    /// The tensor of the forward pass: outside autodiff when frozen, a tracked leaf when trained.
    value: Tensor<2>,
    /// The f32 numbers of a bf16 value, if it has higher precision or is trained.
    master: Option<Tensor<2>>,
    /// The place where ops add up its gradient.
    sum: GradientSum,
}

impl Param {
    /// Creates a frozen parameter from numbers on the host, row-major in `shape`.
    ///
    /// # Panics
    /// When the number of values does not match the shape.
    pub fn new(name: impl Into<String>, shape: &[usize], data: Vec<f32>, device: &Device) -> Self {
        let (rows, columns) = match shape {
            [] => (1, 1),
            [n] => (1, *n),
            [rows, rest @ ..] => (*rows, rest.iter().product()),
        };
        let (name, shape, device) = (name.into(), shape.to_vec(), device.clone().inner());
        if device == Device::flex() || shape.len() < 2 {
            let value = packed(Tensor::from_data(TensorData::new(data, [rows, columns]), &device));
            return Self { name, shape, value, master: None, sum: GradientSum::default() };
        }
        // Rounding happens on the host, so that the device never holds f32 numbers that fit into bf16.
        let is_narrow = data.iter().all(|x| bf16::from_f32(*x).to_f32().to_bits() == x.to_bits());
        let wide = TensorData::new(data, [rows, columns]);
        let master = (!is_narrow).then(|| packed(Tensor::from_data(wide.clone(), &device)));
        let value = Tensor::from_data(wide.convert_dtype(DType::BF16), (&device, DType::BF16));
        Self { name, shape, value: packed(value), master, sum: GradientSum::default() }
    }

    /// Creates a frozen matrix `[rows, columns]` that stays bf16 on the CPU too, for decoding.
    ///
    /// # Panics
    /// When the number of values does not match the shape.
    pub(crate) fn narrow(name: impl Into<String>, shape: [usize; 2], data: Vec<bf16>) -> Self {
        let value = Tensor::from_data(TensorData::new(data, shape), (&Device::flex(), DType::BF16));
        let (name, shape) = (name.into(), shape.to_vec());
        Self { name, shape, value, master: None, sum: GradientSum::default() }
    }

    /// Returns the canonical name (see the crate's header).
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the shape in a checkpoint.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Returns whether weight decay applies: to tensors of two or more dimensions, not to norms, biases and
    /// gates.
    pub fn decays(&self) -> bool {
        self.shape.len() >= 2
    }

    /// Returns the value that the forward pass uses. This is cheap, because the numbers are shared.
    pub fn tensor(&self) -> Tensor<2> {
        self.value.clone()
    }

    /// Returns the value for ops that add up its gradient themselves.
    pub fn weight(&self) -> Weight {
        Weight { tensor: self.tensor(), sum: self.is_trainable().then(|| self.sum.clone()) }
    }

    /// Returns the place where ops add up the gradient of [`weight`](Self::weight).
    pub(crate) fn gradient_sum(&self) -> &GradientSum {
        &self.sum
    }

    /// Returns the f32 numbers, outside autodiff.
    pub fn wide(&self) -> Tensor<2> {
        match &self.master {
            Some(master) => master.clone(),
            None => widened(self.value.clone().inner()),
        }
    }

    /// Returns the f32 numbers on the host.
    pub fn to_vec(&self) -> Vec<f32> {
        // The numbers are widened on the host, so that the device holds no f32 copy of a bf16 matrix.
        let numbers = self.master.clone().unwrap_or_else(|| self.value.clone().inner());
        numbers.into_data().try_into_vec_as::<f32>().expect("parameters are floats")
    }

    /// Returns whether gradients are computed for it.
    pub fn is_trainable(&self) -> bool {
        self.value.is_tracked()
    }

    /// Starts or stops its training. A parameter that has been trained keeps its f32 numbers.
    ///
    /// # Panics
    /// When training starts and the model was loaded for decoding.
    pub fn set_trainable(&mut self, trainable: bool) {
        let value = self.value.clone().inner();
        let only_decodes = value.dtype() != DType::F32 && value.device() == Device::flex();
        assert!(!(trainable && only_decodes), "{} was loaded for decoding", self.name);
        if trainable && self.master.is_none() && value.dtype() != DType::F32 {
            self.master = Some(widened(value.clone()));
        }
        self.value = if trainable { value.autodiff().require_grad() } else { value };
        // A copy of the model has a sum of its own.
        self.sum = GradientSum::default();
    }

    /// Replaces the numbers of a trained parameter by the result of `f` for them.
    pub fn update(&mut self, f: impl FnOnce(Weights) -> Weights) {
        let empty = Tensor::zeros([1, 1], &Device::flex());
        let value = std::mem::replace(&mut self.value, empty).inner();
        let Weights { master, narrow } = f(match self.master.take() {
            Some(master) => Weights { master, narrow: Some(value) },
            None => Weights { master: value, narrow: None },
        });
        let (value, master) = match narrow {
            Some(narrow) => (narrow, Some(master)),
            None => (master, None),
        };
        self.master = master;
        self.value = value.autodiff().require_grad();
    }

    /// Sets new f32 numbers of the same shape, and makes the parameter trainable or frozen.
    pub fn put(&mut self, numbers: Tensor<2>, trainable: bool) {
        let dtype = self.value.dtype();
        if dtype == DType::F32 {
            self.value = packed(numbers);
        } else {
            self.value = packed(numbers.clone().cast(dtype));
            self.master = Some(packed(numbers));
        }
        self.set_trainable(trainable);
    }
}

fn widened(tensor: Tensor<2>) -> Tensor<2> {
    if tensor.dtype() == DType::F32 { tensor } else { packed(tensor.cast(DType::F32)) }
}
