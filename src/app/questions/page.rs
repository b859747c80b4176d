//! The questions that stand between nothing and a run, in their order.

/// A question. Every interface asks them in this order; full screens show each on a page of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Page {
    /// What this machine is. Nothing is answered here but "go on".
    Machine,
    /// Which model is trained.
    Model,
    /// On which data.
    Data,
    /// How it is trained.
    Plan,
    /// What becomes of the MTP head, for models that have one.
    Mtp,
    /// Whether to start.
    Review,
}

impl Page {
    /// All of them in order.
    pub const ALL: [Self; 6] = [Self::Machine, Self::Model, Self::Data, Self::Plan, Self::Mtp, Self::Review];

    /// Its name on screens and in drafts.
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

    /// The page of this name.
    pub fn from_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|page| page.word() == word)
    }

    /// What it asks.
    pub const fn question(self) -> &'static str {
        match self {
            Self::Machine => "What it will run on",
            Self::Model => "Which model is to be tuned?",
            Self::Data => "On which data?",
            Self::Plan => "How is it trained?",
            Self::Mtp => "What becomes of the MTP head?",
            Self::Review => "Is this right?",
        }
    }

    /// The page so many steps on; `None` before the first and after the last.
    pub fn step(self, by: isize) -> Option<Self> {
        let at = Self::ALL.iter().position(|page| *page == self)?;
        Self::ALL.get(at.checked_add_signed(by)?).copied()
    }
}
