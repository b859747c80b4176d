//! sparktune-base contains what every part of the program has to do in the same way.
//!
//! Figures as people read them ([`units`]), text from outside made safe to show ([`mod@escape`]) or to paste
//! into a shell ([`shell`]), files that only their owner can read ([`files`]), files of strangers
//! ([`regular_file`]), locks on files ([`locked`]), whether files are still the same ([`stamp`]), random
//! numbers that never change ([`random`]), packing by lengths ([`best_fit`]), the size of the eval set
//! ([`held_out`]), the choices that several parts share ([`choices`]), what columns of data stand for
//! ([`field_map`]), what a chat template does about thinking ([`thinking`]), how certain a mean is
//! ([`statistics`]), memory that a device or the kernel also writes ([`pages`]), how long a trainer's
//! allocator keeps memory ([`kept_pages`]), and the name that the user calls the program by
//! ([`program_name()`]). It must not know other crates of sparktune, models, data or runs.

mod allocator;
pub mod best_fit;
pub mod choices;
pub mod escape;
pub mod field_map;
pub mod files;
pub mod held_out;
pub mod locked;
pub mod pages;
mod program_name;
pub mod random;
pub mod regular_file;
pub mod shell;
pub mod stamp;
pub mod statistics;
pub mod thinking;
pub mod units;

pub use allocator::kept_pages;
pub use program_name::{program_name, set_program_name};
