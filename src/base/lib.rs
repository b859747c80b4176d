//! sparktune-base: what every part of the program has to do in the same way.
//!
//! Figures as people read them ([`units`]), text from outside made safe to show ([`mod@escape`]), files that
//! only their owner can read ([`files`]), and random numbers that never change ([`random`]). It knows no other crate of
//! sparktune, and nothing of models, data or runs.

pub mod escape;
pub mod files;
pub mod random;
pub mod units;
