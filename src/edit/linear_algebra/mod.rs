//! The linear algebra of edits in f64: matrices, Cholesky's decomposition and symmetric eigenvectors.
//!
//! An edit needs each of them once per layer, so they are written to be read, with inner loops over rows that
//! lie together in memory.

mod cholesky;
mod eigen;
mod matrix;

pub(crate) use cholesky::Cholesky;
pub(crate) use eigen::{Undone, symmetric_eigen};
pub(crate) use matrix::{Matrix, dot};
