//! Transfers between two sides on this machine, through a proxy that cuts and flips, and with sides that
//! misbehave.

#![expect(clippy::unwrap_used, reason = "a test may fail anywhere, in its servers too")]

mod faults;
mod hostile_clients;
mod hostile_servers;
mod proxy;
mod support;
mod transfers;
