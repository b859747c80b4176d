//! What is being done, for whoever waits.

/// What is being done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Stage {
    /// The model answers without the edit.
    Before,
    /// The layer is looked for that recalls what the model says of the subjects.
    Tracing,
    /// The statistics of a layer are computed.
    Statistics,
    /// This many facts are computed.
    Facts(usize),
    /// Something that may spoil the edit was found, as a sentence.
    Note(String),
    /// The folder is written.
    Writing,
    /// The model answers with the edit.
    Judging,
}

/// Called after each fact with the number of facts whose values are known; returns whether to go on. It is
/// also asked in between, with the same number.
pub(crate) type Progress<'a> = &'a mut dyn FnMut(usize) -> bool;
