//! The questions, each defined once: its text, its choices with a note on each, the default, and the accepted
//! answers.
//!
//! Interfaces differ in how they show a question, never in what it asks.

pub mod data;
pub mod model;
pub mod mtp;
pub mod page;
pub mod plan;
