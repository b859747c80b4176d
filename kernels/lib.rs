//! The operations that take the time of a training step, each with a hand-written backward pass.
//!
//! One folder per op. Every op is a value that implements [`Op`]: a fused, threaded CPU path (`forward`,
//! `backward`), with the feature `cuda` the launches of its device code (`cuda.rs` next to the `.cuh`), and a
//! `reference` in plain tensor operations, which is the readable specification, the oracle of the tests, and
//! the fallback where neither of the others runs. Activations enter and leave as `[T, channels]` tensors,
//! where `T` counts the tokens of a packed row; heads and boundaries are parameters of the op.
//!
//! This crate must not know models, checkpoints or files.

pub mod adamw;
pub mod causal_conv1d_silu;
mod cpu;
#[cfg(feature = "cuda")]
pub mod cublaslt;
#[cfg(feature = "cuda")]
mod cuda;
pub mod delta_gates;
pub mod dropout;
pub mod embedding;
#[cfg(feature = "cuda")]
mod fp8;
pub mod gated_delta_rule;
pub mod gated_mlp;
mod gated_mul;
pub mod gated_rms_norm;
pub mod gelu_mul;
mod group;
pub mod largest;
pub mod linear;
pub mod linear_cross_entropy;
pub mod lora_linear;
mod matmul;
mod memory;
#[cfg(feature = "cuda")]
pub mod nccl;
pub mod norm_rope;
mod op;
pub mod packed_attention;
#[cfg(feature = "cuda")]
pub mod probe;
#[cfg(feature = "cuda")]
pub mod quantise;
pub mod rms_norm;
pub mod rope;
pub mod seed_gradient;
pub mod sigmoid_gate;
pub mod silu_mul;
mod simd;
mod table;
#[cfg(feature = "cuda")]
#[doc(hidden)]
pub mod testing;
#[cfg(feature = "cuda")]
#[doc(hidden)]
pub mod upload;
mod weight;
pub mod work;

#[cfg(test)]
mod check;
#[cfg(any(test, feature = "cuda"))]
mod compare;

/// Gives `sparktune-bench` access to single ops on a device, to compare them with the CPU path and to time
/// them.
#[cfg(feature = "cuda")]
#[doc(hidden)]
pub mod measuring {
    pub use crate::compare::{Line, distance, random, random_through, worst_lines};
    pub use crate::cuda::{
        CudaTensor, OnCuda, as_bf16, as_f32, copy, dims, into_tensor, launches, primitive,
    };
    pub use crate::linear::cuda::{Product, product, tiling};
    pub use crate::op::{by_references, primitive as host_primitive};
}

pub use memory::reserved_bytes;
pub use op::{Op, apply, apply_all, packed};
pub use table::Table;
pub use weight::{GradientSum, OnAdd, Weight};
