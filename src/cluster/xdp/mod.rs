//! Sums in the network: the ranks send integers of 16 bits to rank 0's machine, which adds them where they
//! arrive and sends the sums to all.
//!
//! Owns the packets ([`wire`]), what is done with them ([`slots`], and in frames [`frame`]), the integers
//! ([`quantise`]), and an engine for the ranks ([`join`]). Enters: gradients. Leaves: their sums, which are
//! the same bits on all ranks, whatever was lost or came twice, but not those of the exact engine: numbers
//! are rounded to steps of at most W / 32,767 of the largest in their block.
//!
//! There are two switches with the same bits: a program in the kernel of rank 0's machine (XDP, on Linux with
//! the right to load it), which adds each packet as the network card delivers it, and a thread of rank 0's
//! process. `sum.bpf.c` is the program; the object that clang made of it is part of this source tree, so
//! building needs no clang, and `.ci/xdp-object` checks that it belongs to its source.
//!
//! With `af_xdp`, a rank's results come from its interface into an arena. A GPU can round gradients where
//! they are ([`Quantiser`](crate::Quantiser)): then only integers leave it, and their sums come back. With
//! both, the GPU reads the sums in that arena, where they arrived.
//!
//! What needs an exact sum or is short goes over TCP, which also carries what the ranks agree on: their
//! magnitudes, that one of them ends, and the random number from which the key of a job's tags follows.

#[cfg(all(target_os = "linux", feature = "xdp"))]
mod af_xdp;
#[cfg(not(all(target_os = "linux", feature = "xdp")))]
#[path = "no_af_xdp.rs"]
mod af_xdp;
#[cfg(test)]
mod attacked;
mod engine;
pub mod frame;
#[cfg(all(target_os = "linux", feature = "xdp"))]
pub mod kernel;
#[cfg(not(all(target_os = "linux", feature = "xdp")))]
#[path = "no_kernel.rs"]
pub mod kernel;
mod measuring;
mod opened;
#[cfg(test)]
#[cfg(all(target_os = "linux", feature = "xdp"))]
mod oracle;
mod packets;
pub mod quantise;
mod reach;
pub mod slots;
mod soft;
mod transport;
pub mod wire;
mod worker;

pub use engine::{BUCKET, Choice, Path, Xdp, join, over};
pub(crate) use opened::{Opened, Place, Tried};
pub use transport::Loss;
pub use worker::Report;
