//! A linear layer, which may have a bias and an adapter.

use burn::tensor::{Device, Tensor, TensorData};
use sparktune_kernels::dropout::Dropout;
use sparktune_kernels::gated_mlp::{Layers, gated_mlp};
use sparktune_kernels::linear::by_row::linears_by_row;
use sparktune_kernels::linear::linears;
use sparktune_kernels::lora_linear::{Adapted, Adapter, lora_linears};
use sparktune_kernels::silu_mul::silu_mul;

use crate::param::Param;

/// The low-rank adapter of one linear layer.
#[derive(Debug, Clone)]
pub struct Lora {
    /// The matrix `A [r, in]`, where `r` may be less than the rank of the setting.
    pub a: Param,
    /// The matrix `B [out, r]`.
    pub b: Param,
    /// The scale: `alpha / rank`, or `alpha / sqrt(rank)` for rsLoRA, with the rank of the setting.
    pub scale: f64,
    /// The mask of its input in a training step with dropout.
    pub mask: Option<Dropout>,
}

/// The linear layer `y = x Wᵀ (+ bias) (+ scale · (x Aᵀ) Bᵀ)`.
#[derive(Debug, Clone)]
pub struct Linear {
    /// The weight, `[out, in]`.
    pub weight: Param,
    /// The bias, `[out]`.
    pub bias: Option<Param>,
    /// The trained adapter, if there is one.
    pub lora: Option<Lora>,
    /// Whether the products of `x`, of the gradient of `y`, and of `W` use e4m3 numbers on CUDA devices. The
    /// gradient of `W` does not.
    pub fp8: bool,
    /// Whether each row of `x` is computed as if it were alone, without gradients, for decoding.
    pub(crate) by_row: bool,
}

impl Linear {
    /// Creates a layer without bias and adapter.
    pub(crate) const fn new(weight: Param) -> Self {
        Self { weight, bias: None, lora: None, fp8: false, by_row: false }
    }

    /// Maps `x` `[T, in]` to `[T, out]`.
    pub(crate) fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        let [y] = Self::forward_fused(std::array::from_ref(self), x);
        y
    }

    /// Maps `x` by the layers `[gate, up]`, and then `silu(gate) ⊙ up` by `down`.
    pub(crate) fn forward_gated(gate_up: &[Self; 2], down: &Self, x: Tensor<2>) -> Tensor<2> {
        if down.by_row || gate_up.iter().chain([down]).any(|layer| layer.bias.is_some()) {
            let [gate, up] = Self::forward_fused(gate_up, x);
            return down.forward(silu_mul(gate, up));
        }
        gated_mlp(x, Self::layers(gate_up), Self::layers(std::slice::from_ref(down)))
    }

    fn layers(layers: &[Self]) -> Layers {
        let fp8 = layers[0].fp8;
        match layers.iter().find_map(|layer| layer.lora.as_ref()) {
            Some(Lora { scale, .. }) => {
                Layers::adapted(layers.iter().map(Self::adapted).collect(), *scale, fp8)
            }
            None => Layers::plain(layers.iter().map(|layer| layer.weight.weight()).collect(), fp8),
        }
    }

    /// Computes the results of one to four layers with the same input `x` together. Their adapters must have
    /// the same scale, and all layers the same `fp8` and `by_row`.
    pub(crate) fn forward_fused<const L: usize>(layers: &[Self; L], x: Tensor<2>) -> [Tensor<2>; L] {
        let fp8 = layers[0].fp8;
        let results = match layers.iter().find_map(|layer| layer.lora.as_ref()) {
            lora if layers[0].by_row => {
                let scale = lora.map_or(0.0, |lora| lora.scale);
                linears_by_row(x, layers.each_ref().map(Self::adapted).into(), scale)
            }
            Some(Lora { scale, .. }) => {
                lora_linears(x, layers.each_ref().map(Self::adapted).into(), *scale, fp8)
            }
            None => linears(x, layers.each_ref().map(|layer| layer.weight.weight()).into(), fp8),
        };
        let results: [Tensor<2>; L] = results.try_into().expect("a result for each layer");
        let mut biases = layers.iter().map(|layer| layer.bias.as_ref());
        results.map(|y| match biases.next().flatten() {
            Some(bias) => {
                let bias = bias.tensor().cast(y.dtype());
                y + bias
            }
            None => y,
        })
    }

    fn adapted(&self) -> Adapted {
        let adapter = |Lora { a, b, mask, .. }: &Lora| Adapter { a: a.weight(), b: b.weight(), mask: *mask };
        Adapted { weight: self.weight.tensor(), adapter: self.lora.as_ref().map(adapter) }
    }

    /// Returns the module path: the weight's name without `.weight`.
    pub fn path(&self) -> &str {
        self.weight.name().trim_end_matches(".weight")
    }

    /// Returns the last part of the path: `q_proj`.
    pub(crate) fn name(&self) -> &str {
        self.path().rsplit('.').next().unwrap_or_default()
    }

    /// Returns the weight with the adapter added in f32: `W + scale · B A`, row-major `[out, in]`.
    pub fn merged_weight(&self) -> Vec<f32> {
        let Some(Lora { a, b, scale, .. }) = &self.lora else { return self.weight.to_vec() };
        // This is computed on the host for all devices, so that the result does not depend on the device and
        // no f32 copy is needed there.
        let [weight, a, b] = [&self.weight, a, b].map(|param| {
            let data = TensorData::new(param.to_vec(), param.tensor().shape());
            Tensor::<2>::from_data(data, &Device::flex())
        });
        let merged = weight + b.matmul(a).mul_scalar(*scale);
        merged.into_data().try_to_vec().expect("host tensors are f32")
    }
}
