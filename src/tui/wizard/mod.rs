//! The wizard: one question per screen, from nothing to a running job.
//!
//! Owns the questions, their order and what was answered. Enters: keys, and what the program tells through [`desk`].
//! Leaves: what the wizard asks the program, and in the end an [`Outcome`]. It opens no file and asks no device; all
//! advice is the plan's.

pub mod desk;

/// The questions in their order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Page {
    /// What this machine is.
    Machine,
    /// What is trained.
    Model,
    /// On what it is trained.
    Data,
    /// How it is trained.
    Plan,
    /// What becomes of the MTP head.
    Mtp,
    /// Everything on one page.
    Review,
}

impl Page {
    /// All of them in order.
    pub const ALL: [Self; 6] = [Self::Machine, Self::Model, Self::Data, Self::Plan, Self::Mtp, Self::Review];

    /// Its name on the screen and in drafts.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Machine => "machine",
            Self::Model => "model",
            Self::Data => "data",
            Self::Plan => "plan",
            Self::Mtp => "mtp head",
            Self::Review => "review",
        }
    }
}
