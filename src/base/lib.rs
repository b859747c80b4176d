//! sparktune-base: what every part of the program has to do in the same way.
//!
//! Figures as people read them ([`units`]), text from outside made safe to show ([`mod@escape`]) or to paste into
//! a shell ([`shell`]), files that only their owner can read ([`files`]), random numbers that never change
//! ([`random`]), packing by lengths ([`best_fit`]), and the choices that several parts share ([`choices`]). It
//! knows no other crate of sparktune, and nothing of models, data or runs.

pub mod best_fit;
pub mod choices;
pub mod escape;
pub mod files;
pub mod random;
pub mod shell;
pub mod units;
