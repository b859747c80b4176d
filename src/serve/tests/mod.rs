//! The real server on the loopback interface, spoken to in raw HTTP: what a browser or a stranger may send.

mod changed;
mod client;
mod comparisons;
mod datasets;
mod document;
mod knowledge;
mod limits;
mod packets;
mod rules;
mod runs;
