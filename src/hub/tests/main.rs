//! The hub against a real HTTP server on loopback that speaks the hub's routes, faults included.

#![expect(clippy::unwrap_used, reason = "a test may fail anywhere, in its server too")]

mod data_sets;
mod disk;
mod downloads;
mod fake_hub;
mod faults;
mod offline;
mod secrets;
mod together;
