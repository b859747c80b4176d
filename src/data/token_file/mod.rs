//! Token files: tokenised examples on disk, written once and read by every epoch.
//!
//! Owns the two `.qubgpu` formats, and their conversion, verification and repair:
//! - [`v2`]: our cache. Memory-mapped, aligned, checksummed byte by byte. Read by [`TokenFile`], written by
//!   [`TokenFileWriter`].
//! - [`v1`]: the packet format of the original Neural Datagram Protocol, for exchange only.
//! - [`pack_file`], [`unpack`]: between v1, v2 and JSON Lines. [`verify`] lists every defect of a file.
//!   [`rebuild`] recovers the intact rest.
//!
//! Enters: token ids, loss masks and the source of each example. It must not know text, templates or tensors.

mod convert;
mod damage;
mod detect;
mod error;
mod partial;
mod reader;
mod rebuild;
mod scan;
mod spool;
pub mod v1;
pub mod v2;
mod verify;
mod writer;

pub(crate) use convert::all_but_first;
pub use convert::{Conversion, Exchange, OnDamage, PackFileOptions, pack_file, unpack};
pub use damage::{Defect, Part};
pub use detect::{Contents, contents, is_token_file};
pub use error::TokenFileError;
pub(crate) use partial::PartialFile;
pub(crate) use reader::map as map_file;
pub use reader::{Example, Mask, TokenFile};
pub use rebuild::{Rebuilt, rebuild};
pub(crate) use scan::intact_packets;
pub use spool::{Announced, Spool};
pub use v2::{Header, Origin, Source};
pub use verify::{VerifyReport, verify};
pub use writer::{TokenFileWriter, Written};

#[cfg(test)]
mod tests;
