//! Packets that say where they come from and where they go, of token ids, weights or anything else.
//!
//! Owns the codes of the published protocol and the typed packets of version 2, and everything that looks at
//! a single packet:
//! - [`codes`]: SRC, DST and TYP. [`names`]: the part of a model that a tensor's name stands for.
//! - [`typed`]: the bytes of a typed packet. [`mod@file`]: files of them. [`assembly`]: whole tensors from
//!   parts, wherever they come from. [`state`]: safetensors files as packets, and back. [`numbers`]: f32
//!   tensors that the program itself makes.
//! - [`contents`]: what any file of packets carries, and where it would go.
//! - [`anatomy`] and [`checks`]: one packet of any format, field by field. [`lab`]: single packets made and
//!   damaged. [`pick`]: one packet out of a file. [`speed`]: a short measurement.
//!
//! Token files are in [`token_file`](crate::token_file). Nothing here applies weights to a model.

pub mod anatomy;
pub mod assembly;
pub mod checks;
pub mod codes;
pub mod contents;
pub mod dtype;
mod error;
pub mod file;
pub mod format;
pub mod lab;
pub mod names;
pub mod numbers;
pub mod pick;
pub mod speed;
pub mod state;
pub mod typed;

pub use error::PacketError;

#[cfg(test)]
mod tests;
