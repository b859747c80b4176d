//! From page to page: which one is next, and what has to be answered first.
//!
//! Enters: the answers and facts of the state. Leaves: the open page, or a notice that says what is missing.
//! This file must not know keys, nor what a page shows.

use super::mtp::MtpPage;
use super::{Page, Wizard};
use crate::screen::Role;

impl Wizard {
    pub(super) fn go_to(&mut self, page: Page) {
        if self.page >= Page::Data {
            self.state.count_again();
        }
        self.page = page;
        self.state.refresh_facts(page);
        let state = &mut self.state;
        match page {
            Page::Machine => {}
            Page::Model => self.model.enter(state),
            Page::Data => self.data.enter(state),
            Page::Plan => self.plan.enter(state),
            Page::Mtp => self.mtp.refresh(state),
            Page::Review => self.review.enter(),
        }
    }

    pub(super) fn next(&mut self) {
        if let Some(why) = self.not_answered() {
            return self.state.say(Role::Warn, why);
        }
        let Some(mut page) = self.page.step(1) else { return };
        if page == Page::Mtp && !MtpPage::is_asked(&self.state) {
            page = Page::Review;
            self.state.say(Role::Dim, "this model has no MTP head: that question is skipped");
        }
        self.go_to(page);
    }

    pub(super) fn back(&mut self) {
        let Some(mut page) = self.page.step(-1) else {
            self.ask_to_leave();
            return;
        };
        if page == Page::Mtp && !MtpPage::is_asked(&self.state) {
            page = Page::Plan;
        }
        self.go_to(page);
    }

    /// Returns the question on this page that has to be answered before the next page makes sense.
    fn not_answered(&self) -> Option<String> {
        let state = &self.state;
        match self.page {
            Page::Machine | Page::Review => None,
            Page::Model => match (state.model_ready(), state.model.wait(), state.model.ready()) {
                (Some(_), ..) => None,
                (None, Some(_), _) => Some("the model is still being checked".into()),
                (None, None, Some(_)) => Some("its architecture is unknown; y trains it anyway".into()),
                (None, None, None) => Some("enter chooses the model under the cursor".into()),
            },
            Page::Data => match (state.data.ready(), state.data.wait()) {
                (Some(_), _) => state.data_refused(),
                (None, Some(_)) => Some("the data is still being read; x cancels".into()),
                (None, None) => Some("choose data first: o opens the files".into()),
            },
            Page::Plan | Page::Mtp => match (&state.planner.problem, &state.planner.plan) {
                (Some(problem), _) => Some(problem.text.clone()),
                (None, None) => Some("there is no plan yet: it needs a model and data".into()),
                (None, Some(_)) => None,
            },
        }
    }
}
