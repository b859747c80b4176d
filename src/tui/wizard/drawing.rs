//! Puts a picture together: the frame with its hints, the open page, and the overlay over it.
//!
//! Enters: the state, the open page and the overlay. Leaves: a drawn frame. Drawing changes nothing; what a
//! page shows is in its own file.

use ratatui::Frame;

use super::keys::COMMON;
use super::{Over, Page, Wizard, frame};
use crate::screen::{Theme, help, rows};

impl Wizard {
    /// Draws the open page with its frame, and the overlay over it.
    pub(super) fn draw(&self, frame: &mut Frame<'_>, theme: &Theme) {
        let area = frame.area();
        if self.page == Page::Review
            && self.review.command
            && self.over.is_none()
            && !self.starting.is_shown()
        {
            return self.review.view_command(&self.state, frame, theme);
        }
        let keys = self.keys();
        let (hints, always) = match &self.over {
            Some(Over::Leaving(leaving)) => (leaving.keys().hints, Vec::new()),
            Some(Over::Presets(list)) => (list.keys().hints, Vec::new()),
            Some(Over::Save(save)) => (save.keys().hints, Vec::new()),
            Some(Over::Help) => (Vec::new(), Vec::new()),
            None if keys.typing => (keys.hints, vec![("F1", "keys")]),
            None => {
                // Esc may have another meaning here, and on the first page it does not go back.
                let esc_is_taken = self.starting.is_shown()
                    || self.page == Page::Machine
                    || keys.hints.iter().any(|(keys, _)| keys.split(' ').any(|key| key == "esc"));
                let common = COMMON.iter().filter_map(|binding| Some((binding.shown, binding.hint?)));
                (keys.hints, common.filter(|(key, _)| !(esc_is_taken && *key == "esc")).collect())
            }
        };
        let hints = frame::hints(hints, &always, area.width.saturating_sub(2));
        let body = frame::around(self.page, self.starting.is_shown(), &self.state, hints, frame, theme);
        let state = &self.state;
        if self.starting.is_shown() {
            self.starting.view(state, frame, body, theme);
        } else {
            match self.page {
                Page::Machine => self.machine.view(state, frame, body, theme),
                Page::Model => self.model.view(state, frame, body, theme),
                Page::Data => self.data.view(state, frame, body, theme),
                Page::Plan => self.plan.view(state, frame, body, theme),
                Page::Mtp => self.mtp.view(state, frame, body, theme),
                Page::Review => self.review.view(state, frame, body, theme),
            }
        }
        match &self.over {
            None => {}
            Some(Over::Help) => {
                let keys = self.keys();
                let title = if keys.typing { "while typing" } else { "here" };
                let groups = [(title, keys.rows), ("on every page", rows(COMMON))];
                help(frame, area, theme, &groups);
            }
            Some(Over::Leaving(leaving)) => leaving.view(state, frame, area, theme),
            Some(Over::Presets(list)) => list.view(frame, area, theme),
            Some(Over::Save(save)) => save.view(frame, area, theme),
        }
    }
}
