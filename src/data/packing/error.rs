//! The errors of a packing request.

/// An invalid packing request.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
pub enum PackingError {
    /// The pack length is zero.
    #[error("the pack length is 0, so no token fits; use the plan's pack length")]
    NoRoom,
    /// The weight of a data set is not a positive number.
    #[error("the weight of a data set is {0}; it must be a number above 0")]
    BadWeight(f64),
    /// An epoch would have more examples than fit in 32 bits.
    #[error("with these weights an epoch has more than 4,294,967,295 examples; lower them")]
    TooManyExamples,
    /// The drop share is out of its range.
    #[error("the drop share is {0}; it must be at least 0 (drop nothing) and less than 1")]
    BadDropShare(f64),
}
