//! How often the judge of ranks (`sparktune_cluster::sentry`) doubts honest ranks, how often it finds lies,
//! and what those that it does not find do to a step.
//!
//! [`record`] trains a real model, with all micro-batches of each step computed one by one from the same
//! weights, and keeps of every gradient its exact inner products with the others of the step and its
//! projection; for the first third of them also the gradient of wrong labels. Sums of gradients have the
//! sums of their projections, and their norms follow from the inner products; so any dealing of the
//! micro-batches to any number of ranks can be judged without the gradients. [`tables`] does that: each
//! judged run goes through the steps of a recording in order, from the first one, and deals the
//! micro-batches of each step anew.
//!
//! | module | what it owns |
//! |---|---|
//! | `recording` | what is kept of a step, and its file |
//! | `record` | the training that is recorded |
//! | `lies` | what a rank may send instead of its gradient |
//! | `simulate` | judged runs, and what is counted of them |
//! | `tables` | the tables |

mod lies;
mod record;
mod recording;
mod simulate;
mod tables;

pub use record::record;
pub use tables::tables;
