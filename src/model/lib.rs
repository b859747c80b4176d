//! The decoders that this program trains: Qwen3.5 and, with the same parts, Qwen3, Qwen2, Llama, Mistral and
//! Gemma 3.
//!
//! Owns the forward pass, adapters, the MTP head, decoding, and their names and storage in a checkpoint. The
//! family's table (`sparktune_plan::architecture`) defines the tensors of a layer. Enters: checkpoints and
//! packed sequences. Leaves: hidden states, losses, gradients and exported checkpoints. It must not know data
//! sets, optimizers or run folders.
//!
//! Activations are `[T, channels]` for the `T` tokens of a packed sequence. Parameters carry their canonical
//! name, which is the checkpoint's name without the layout's prefix (`layers.0.self_attn.q_proj.weight`,
//! `mtp.fc.weight`). SPEC.md in this folder describes Qwen3.5.

mod adapter;
mod attention;
mod batch;
mod cache;
pub mod checkpoint;
mod codebook;
mod decoder;
mod delta_net;
mod downstream;
mod error;
pub mod export;
mod final_gradients;
mod generate;
#[cfg(test)]
mod golden;
mod gradients;
mod layer;
mod layer_loader;
mod linear;
pub mod lora;
mod loss;
mod module;
mod mtp;
mod norm;
mod numbers;
mod packed_sequence;
mod param;
mod rope_tables;
mod speculative;
mod tap;
mod weight_file;
mod weight_writer;

pub use adapter::lora_bytes;
pub use batch::{BatchDecoder, FEWEST_ROWS, MOST_LARGEST, NextLogits};
pub use cache::{Cache, Continued};
pub use checkpoint::Checkpoint;
pub use codebook::Codebook;
pub use decoder::Model;
pub use downstream::Downstream;
pub use error::ModelError;
pub use final_gradients::OnFinal;
pub use generate::Generator;
pub use gradients::Gradients;
pub use layer::{MlpTap, Spot};
pub use linear::{Linear, Lora};
pub use lora::{BaseClass, LoraConfig};
pub use loss::Loss;
pub use mtp::{Mtp, MtpCache};
pub use packed_sequence::{PackedSequence, PackedSequence as Row};
pub use param::Param;
pub use speculative::{Acceptance, Drafter, speculative_greedy};
pub use weight_file::WeightFile;
