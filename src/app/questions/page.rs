//! The questions before a run, in their order.

/// A question. Every interface asks them in this order; full screens show each one on a page of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Page {
    /// The facts about this machine. The user only continues.
    Machine,
    /// The model to train.
    Model,
    /// The data to train on.
    Data,
    /// The settings of the training.
    Plan,
    /// The treatment of the MTP head, for models that have one.
    Mtp,
    /// Whether to start.
    Review,
}

impl Page {
    /// All questions in order.
    pub const ALL: [Self; 6] = [Self::Machine, Self::Model, Self::Data, Self::Plan, Self::Mtp, Self::Review];

    /// Returns its name on screens and in drafts.
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

    /// Returns the page of this name.
    pub fn from_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|page| page.word() == word)
    }

    /// Returns the text of the question.
    pub const fn question(self) -> &'static str {
        match self {
            Self::Machine => "Your machine",
            Self::Model => "Which model do you want to fine-tune?",
            Self::Data => "Which data do you want to train on?",
            Self::Plan => "Training plan",
            Self::Mtp => "Train the MTP head?",
            Self::Review => "Review and start",
        }
    }

    /// Returns the page `by` steps ahead; `None` before the first and after the last.
    pub fn step(self, by: isize) -> Option<Self> {
        let at = Self::ALL.iter().position(|page| *page == self)?;
        Self::ALL.get(at.checked_add_signed(by)?).copied()
    }
}
