//! The third page, for the data: its contents, its problems, and the part of it that is trained.
//!
//! Owns which of its views is open: the files, what was found in them (`findings`), examples, or rejected
//! lines. Enters: keys, and the responses for the browser and the rejected lines. Leaves: the chosen data and
//! how it is read; the state requests the rest.

use crossterm::event::{KeyCode, KeyEvent};
use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::text::Line;
use sparktune_app::data::DataFound;
use sparktune_app::questions::data::{DataAction, format_position, suggested_map};
use sparktune_base::escape::escape;
use sparktune_plan::{Answer, DataFormat};

use super::browser::{Browsed, Browser};
use super::findings::{chosen, figure_lines, most_scrolled, parts};
use super::keys::{KeyResult, Keys, down, enter, up};
use super::lines::{block, draw, from_row, inked, wrapped};
use super::preview::{Preview, excerpt, switch_think, think};
use super::rejected::RejectedList;
use super::request::{Response, Ticketed};
use super::starting::progress_lines;
use super::state::State;
use crate::screen::{Binding, Role, Theme, action, key};

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum View {
    #[default]
    Browse,
    Found,
    Preview,
    Rejected,
}

#[derive(Default)]
pub(super) struct DataPage {
    view: View,
    browser: Browser,
    preview: Preview,
    rejected: RejectedList,
    scroll: usize,
}

#[derive(Debug, Clone, Copy)]
enum Action {
    GoOn,
    Other,
    Preview,
    Rejected,
    Think,
    Map,
    Format,
    Again,
    TakeAll,
    Up,
    Down,
}

const FOUND_KEYS: &[Binding<Action>] = &[
    enter(DataAction::Accept.label(), "next", Action::GoOn),
    Binding {
        keys: &[key(KeyCode::Char('p'))],
        shown: "p",
        help: DataAction::ShowExamples.label(),
        hint: Some("preview"),
        action: Action::Preview,
    },
    Binding {
        keys: &[key(KeyCode::Char('w'))],
        shown: "w",
        help: DataAction::ShowRejected.label(),
        hint: Some("rejected lines"),
        action: Action::Rejected,
    },
    Binding {
        keys: &[key(KeyCode::Char('o'))],
        shown: "o",
        help: DataAction::Other.label(),
        hint: Some("other data"),
        action: Action::Other,
    },
    Binding {
        keys: &[key(KeyCode::Char('t'))],
        shown: "t",
        help: DataAction::SwitchThink.label(),
        hint: Some("think"),
        action: Action::Think,
    },
    Binding {
        keys: &[key(KeyCode::Char('c'))],
        shown: "c",
        help: DataAction::MapColumns.label(),
        hint: None,
        action: Action::Map,
    },
    Binding {
        keys: &[key(KeyCode::Char('f'))],
        shown: "f",
        help: DataAction::ReadAs.label(),
        hint: None,
        action: Action::Format,
    },
    Binding {
        keys: &[key(KeyCode::Char('u'))],
        shown: "u",
        help: "read it again",
        hint: None,
        action: Action::Again,
    },
    Binding {
        keys: &[key(KeyCode::Char('m'))],
        shown: "m",
        help: DataAction::AcceptTheRest.label(),
        hint: None,
        action: Action::TakeAll,
    },
    up("scroll up", Action::Up),
    down("scroll down", None, Action::Down),
];

#[derive(Debug, Clone, Copy)]
enum Waiting {
    GoOn,
    Cancel,
}

const WAITING_KEYS: &[Binding<Waiting>] = &[
    Binding {
        keys: &[key(KeyCode::Enter)],
        shown: "⏎",
        help: "continue, once it is read",
        hint: None,
        action: Waiting::GoOn,
    },
    Binding {
        keys: &[key(KeyCode::Char('x')), key(KeyCode::Char('o'))],
        shown: "x",
        help: "cancel and choose other data",
        hint: Some("cancel"),
        action: Waiting::Cancel,
    },
];

impl DataPage {
    pub(super) fn keys(&self, state: &State) -> Keys {
        match self.view {
            View::Browse => self.browser.keys(),
            View::Found if state.data.wait().is_some() => Keys::of(WAITING_KEYS),
            View::Found => {
                let mut keys = Keys::of(FOUND_KEYS);
                if state.data.ready().is_none() {
                    keys.hints = vec![("o", "other data"), ("u", "read it again")];
                } else if state.data.ready().is_some_and(|data| data.report.listed_lines() == 0) {
                    keys.hints.retain(|(key, _)| *key != "w");
                }
                if state.data_refused().is_some() {
                    // The possible actions come first, because a narrow screen shows only the first hints.
                    keys.hints.retain(|(key, _)| *key != "⏎" && *key != "o");
                    keys.hints.insert(0, ("o", "other data"));
                }
                keys
            }
            View::Preview => self.preview.keys(),
            View::Rejected => self.rejected.keys(),
        }
    }

    /// Called when the page is opened.
    pub(super) fn enter(&mut self, state: &mut State) {
        self.scroll = 0;
        self.view = if state.planner.answers.data.is_some() { View::Found } else { View::Browse };
        if self.view == View::Browse {
            self.browser.open(state);
        }
    }

    pub(super) fn key(&mut self, event: &KeyEvent, state: &mut State) -> KeyResult {
        match self.view {
            View::Browse => self.browse_key(event, state),
            View::Found => self.found_key(event, state),
            View::Preview => match self.preview.key(event, state) {
                Some(closed) => self.closed(closed, state),
                None => KeyResult::Ignored,
            },
            View::Rejected => match self.rejected.key(event, state) {
                Some(closed) => self.closed(closed, state),
                None => KeyResult::Ignored,
            },
        }
    }

    fn closed(&mut self, closed: bool, state: &mut State) -> KeyResult {
        if closed {
            self.view = View::Found;
            // The preview may have changed the think policy.
            state.count_again();
        }
        KeyResult::Handled
    }

    fn browse_key(&mut self, event: &KeyEvent, state: &mut State) -> KeyResult {
        match self.browser.key(event, state) {
            Browsed::Chosen(paths) => {
                state.choose_data(paths);
                self.view = View::Found;
                self.scroll = 0;
            }
            Browsed::Done => {}
            Browsed::Passed => {
                // Returns to the data that was chosen before, if any.
                if event.code == KeyCode::Esc && state.planner.answers.data.is_some() {
                    self.view = View::Found;
                } else {
                    return KeyResult::Ignored;
                }
            }
        }
        KeyResult::Handled
    }

    fn found_key(&mut self, event: &KeyEvent, state: &mut State) -> KeyResult {
        if state.data.wait().is_some() {
            return match action(WAITING_KEYS, event) {
                Some(Waiting::GoOn) => KeyResult::Next,
                Some(Waiting::Cancel) => {
                    state.cancel_data();
                    self.browse(state);
                    KeyResult::Handled
                }
                None => KeyResult::Ignored,
            };
        }
        let Some(act) = action(FOUND_KEYS, event) else { return KeyResult::Ignored };
        let found = state.data.ready().is_some();
        match act {
            Action::GoOn => return KeyResult::Next,
            Action::Other => self.browse(state),
            Action::Preview if found => {
                self.preview = Preview::default();
                self.view = View::Preview;
            }
            Action::Rejected if found => {
                self.view = View::Rejected;
                self.rejected.open(state);
            }
            Action::Think if found => {
                switch_think(state);
                state.count_again();
            }
            Action::Map => map_columns(state),
            Action::Format => next_format(state),
            Action::Again => state.read_data_again(),
            Action::TakeAll => state.accept_the_rest(),
            Action::Up => self.scroll = self.scroll.saturating_sub(1),
            Action::Down => self.scroll = (self.scroll + 1).min(most_scrolled(state)),
            Action::Preview | Action::Rejected | Action::Think => {}
        }
        KeyResult::Handled
    }

    fn browse(&mut self, state: &mut State) {
        self.view = View::Browse;
        self.browser.open(state);
    }

    pub(super) fn paste(&mut self, text: &str, state: &mut State) {
        if self.view == View::Preview {
            return self.preview.paste(text);
        }
        if self.view == View::Found {
            self.browse(state);
        }
        if self.view == View::Browse {
            self.browser.paste(text, state);
        }
    }

    pub(super) fn receive(&mut self, response: &Ticketed<Response>, state: &State) {
        self.browser.receive(response, state);
        self.rejected.receive(response);
        self.preview.receive(response);
    }

    pub(super) fn view(&self, state: &State, frame: &mut Frame<'_>, area: Rect, theme: &Theme) {
        match self.view {
            View::Browse => self.browser.view(state, frame, area, theme),
            View::Found => self.view_found(state, frame, area, theme),
            View::Preview => self.preview.view(state, frame, area, theme),
            View::Rejected => self.rejected.view(frame, area, theme),
        }
    }

    fn view_found(&self, state: &State, frame: &mut Frame<'_>, area: Rect, theme: &Theme) {
        let width = usize::from(area.width);
        if let Some(data) = state.data.ready() {
            return self.view_data(data, state, frame, area, theme);
        }
        let mut lines = chosen(state, width, theme);
        lines.push(Line::default());
        if let Some(wait) = state.data.wait() {
            lines.extend(progress_lines(wait, "reading the data", state.now, width, theme));
        } else if let Some(words) = state.data.failed() {
            lines.extend(wrapped(theme, Role::Bad, words, width));
            lines.push(Line::default());
            lines.push(inked(
                theme,
                Role::Dim,
                "o chooses other data, u reads it again, f reads it in another format",
            ));
        } else {
            let words = match (state.model.wait(), state.model.failed()) {
                (Some(_), _) => "The model is being checked; the data is read after that.".to_owned(),
                (None, Some(problem)) => {
                    format!(
                        "The data is counted in tokens of the model, but the model cannot be used (esc goes back to it): {problem}"
                    )
                }
                _ => "The data is counted in tokens of the model: choose a model first (esc goes back)."
                    .to_owned(),
            };
            lines.extend(wrapped(theme, Role::Warn, &words, width));
        }
        draw(frame, area, lines);
    }

    fn view_data(&self, data: &DataFound, state: &State, frame: &mut Frame<'_>, area: Rect, theme: &Theme) {
        let (figures, example_area) = parts(data, area);
        let lines = figure_lines(data, state, figures, theme);
        let shown = from_row(self.scroll, lines.len(), usize::from(figures.height));
        draw(frame, figures, lines[shown].to_vec());
        if let Some(example_area) = example_area {
            let width = usize::from(example_area.width);
            let mut lines =
                vec![block(theme, "the first example, as the model sees it", width), Line::default()];
            let height = usize::from(example_area.height).saturating_sub(2);
            lines.extend(excerpt(data, think(state), width, height, theme));
            draw(frame, example_area, lines);
        }
    }
}

/// Gives the columns of foreign data the meaning that they probably have; the data is then read again.
fn map_columns(state: &mut State) {
    let report = state.data.ready().map(|data| &data.report);
    let Some(map) = report.and_then(|report| suggested_map(&state.planner.answers, report)) else { return };
    let map = map.clone();
    state.say(Role::Accent, format!("columns: {}", escape(&map.to_string())));
    state.planner.answers.map = Some(Answer::flag(map));
    state.read_data_again();
}

/// Switches to the next data format; the data is then read again.
fn next_format(state: &mut State) {
    let at = format_position(&state.planner.answers);
    let next = DataFormat::ALL[(at + 1) % DataFormat::ALL.len()];
    state.planner.read_as(next);
    state.say(Role::Accent, format!("format: {next}"));
    state.read_data_again();
}
