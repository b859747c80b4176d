//! What is known about the saved draft of this wizard.
//!
//! Enters: the drafts that are sent to be saved, and the reports of those that could not be. Leaves: whether
//! the answers are saved. The backend saves one draft after the other and reports failures alone, so a draft
//! counts as saved until its failure arrives. A save that fails leaves the file of an earlier one as it is.

use sparktune_app::draft::Draft;

use super::request::Ticket;

/// What is known about the saved draft.
#[derive(Debug)]
pub(super) struct Kept {
    /// The draft as it was saved last, or the initial one.
    pub draft: Draft,
    /// The request that saved it.
    last: Option<Ticket>,
    /// The number of drafts that were saved, as far as is known.
    saved: u32,
    /// Why the last one could not be saved.
    problem: Option<String>,
}

impl Kept {
    /// Nothing is saved yet. `draft` is the initial state, which need not be saved.
    pub(super) fn nothing(draft: Draft) -> Self {
        Self { draft, last: None, saved: 0, problem: None }
    }

    /// A draft was saved by an earlier wizard.
    pub(super) fn earlier(draft: Draft) -> Self {
        Self { saved: 1, ..Self::nothing(draft) }
    }

    /// A draft is being saved with this request. An earlier failure is forgotten: it is reported again if its
    /// cause is still there.
    pub(super) fn sent(&mut self, draft: Draft, ticket: Ticket) {
        (self.draft, self.last, self.problem) = (draft, Some(ticket), None);
        self.saved += 1;
    }

    /// The draft of this request could not be saved. A later one may have been.
    pub(super) fn failed(&mut self, ticket: Ticket, why: String) {
        self.saved = self.saved.saturating_sub(1);
        if self.last == Some(ticket) {
            self.problem = Some(why);
        }
    }

    /// The saved draft was deleted.
    pub(super) fn deleted(&mut self) {
        (self.last, self.saved, self.problem) = (None, 0, None);
    }

    /// Returns whether the last draft is saved.
    pub(super) fn is_saved(&self) -> bool {
        self.saved > 0 && self.problem.is_none()
    }

    /// Returns whether there is a saved draft, which may be older than the last one.
    pub(super) fn has_any(&self) -> bool {
        self.saved > 0
    }

    /// Returns why the last draft could not be saved.
    pub(super) fn problem(&self) -> Option<&str> {
        self.problem.as_deref()
    }
}

#[cfg(test)]
mod tests {
    use sparktune_plan::Answers;

    use super::*;
    use crate::wizard::Page;

    fn draft() -> Draft {
        Draft::new(Page::Machine, &Answers::default())
    }

    #[test]
    fn a_failure_counts_for_its_own_draft_and_leaves_an_earlier_one() {
        let mut kept = Kept::nothing(draft());
        assert!(!kept.is_saved() && !kept.has_any());
        kept.sent(draft(), 1);
        kept.sent(draft(), 2);
        kept.failed(1, "the disk is full".into());
        assert!(kept.is_saved(), "the later one was saved");
        kept.sent(draft(), 3);
        kept.failed(3, "the disk is full".into());
        assert!(!kept.is_saved() && kept.has_any());
        assert_eq!(kept.problem(), Some("the disk is full"));

        let mut kept = Kept::nothing(draft());
        kept.sent(draft(), 1);
        kept.sent(draft(), 2);
        kept.failed(1, "the disk is full".into());
        kept.failed(2, "the disk is full".into());
        assert!(!kept.is_saved() && !kept.has_any(), "neither was saved");

        let mut kept = Kept::earlier(draft());
        assert!(kept.is_saved());
        kept.deleted();
        assert!(!kept.is_saved() && !kept.has_any());
    }
}
