//! Why there is no answer.

use sparktune_app::failure::Failure;

/// Why there is no answer. Each is told to who asked, in other words for other interfaces.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Refusal {
    /// So many answers of the model wait already.
    Busy(usize),
    /// There is no room for the model or its adapter beside those that are answering.
    NoRoom(Failure),
    /// The model cannot be loaded.
    Broken(Failure),
    /// The worker refuses the prompt.
    Invalid(String),
    /// The worker had ended before it was sent the prompt, so another one can be asked.
    Gone(Failure),
    /// The worker has ended with the prompt, which may be the cause. It is not sent to another one.
    Died(Failure),
    /// The model has so many answers to complete.
    Answering(usize),
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Busy(waiting) => {
                write!(
                    f,
                    "this model has {waiting} unfinished answers, which is the most at a time. Ask again later"
                )
            }
            Self::Answering(answers) => {
                write!(f, "the model is generating {answers} answers. Wait for them, or end their requests")
            }
            Self::NoRoom(failure) | Self::Broken(failure) | Self::Gone(failure) | Self::Died(failure) => {
                failure.fmt(f)
            }
            Self::Invalid(text) => f.write_str(text),
        }
    }
}
