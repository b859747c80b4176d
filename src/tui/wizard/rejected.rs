//! The rejected lines: place, reason, remedy, and the line itself.

use crossterm::event::{KeyCode, KeyEvent};
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::text::Line;
use sparktune_app::data::RejectedPage;
use sparktune_base::escape::escape;
use sparktune_base::units::count;
use sparktune_data::{KeptLine, Place, Rejected};

use super::keys::{Keys, down, first, up};
use super::lines::{draw, fit, fit_end, ink, inked, left, selected, window, wrap, wrapped};
use super::loading::Loading;
use super::request::{Request, Response, Ticketed};
use super::state::State;
use crate::screen::{Binding, Role, Theme, action, key};

/// The number of lines in one request.
const AT_ONCE: usize = 100;

#[derive(Default)]
pub(super) struct RejectedList {
    page: Loading<RejectedPage>,
    selected: usize,
    /// Puts the cursor at the end of the page that was requested.
    from_below: bool,
}

#[derive(Debug, Clone, Copy)]
enum Action {
    Close,
    Up,
    Down,
    PageUp,
    PageDown,
    First,
}

const KEYS: &[Binding<Action>] = &[
    Binding {
        keys: &[key(KeyCode::Esc), key(KeyCode::Enter), key(KeyCode::Char('w'))],
        shown: "esc",
        help: "back to the data",
        hint: Some("back to the data"),
        action: Action::Close,
    },
    up("previous line", Action::Up),
    down("next line", Some("next"), Action::Down),
    Binding {
        keys: &[key(KeyCode::PageUp)],
        shown: "pgup",
        help: "previous 100 lines",
        hint: None,
        action: Action::PageUp,
    },
    Binding {
        keys: &[key(KeyCode::PageDown), key(KeyCode::Char(' '))],
        shown: "pgdn",
        help: "next 100 lines",
        hint: Some("next 100"),
        action: Action::PageDown,
    },
    first(Action::First),
];

impl RejectedList {
    pub(super) fn keys(&self) -> Keys {
        Keys::of(KEYS)
    }

    pub(super) fn open(&mut self, state: &mut State) {
        self.ask(0, false, state);
    }

    fn ask(&mut self, offset: u64, from_below: bool, state: &mut State) {
        self.page = state.request(Request::Rejected { offset, limit: AT_ONCE });
        self.selected = 0;
        self.from_below = from_below;
    }

    /// Handles a key. Returns `None` when it means nothing here, and true when the list should be closed.
    pub(super) fn key(&mut self, event: &KeyEvent, state: &mut State) -> Option<bool> {
        let act = action(KEYS, event)?;
        let known = self.page.ready().map(|page| (page.offset, page.rows.len(), page.total));
        match (act, known) {
            (Action::Close, _) => return Some(true),
            (_, None) => {}
            (Action::Up, Some((offset, ..))) if self.selected == 0 && offset > 0 => {
                self.ask(offset.saturating_sub(AT_ONCE as u64), true, state);
            }
            (Action::Up, _) => self.selected = self.selected.saturating_sub(1),
            (Action::Down, Some((offset, rows, total))) if self.selected + 1 >= rows => {
                if offset + (rows as u64) < total {
                    self.ask(offset + rows as u64, false, state);
                }
            }
            (Action::Down, _) => self.selected += 1,
            (Action::PageUp, Some((offset, ..))) if offset > 0 => {
                self.ask(offset.saturating_sub(AT_ONCE as u64), false, state);
            }
            (Action::PageDown, Some((offset, rows, total))) if offset + (rows as u64) < total => {
                self.ask(offset + rows as u64, false, state);
            }
            (Action::PageUp, _) => self.selected = 0,
            (Action::PageDown, Some((_, rows, _))) => self.selected = rows.saturating_sub(1),
            (Action::First, Some((0, ..))) => self.selected = 0,
            (Action::First, _) => self.ask(0, false, state),
        }
        Some(false)
    }

    pub(super) fn receive(&mut self, response: &Ticketed<Response>) {
        if let Response::Rejected(result) = &response.body
            && self.page.answer(response.ticket, result.clone())
        {
            let rows = self.page.ready().map_or(0, |page| page.rows.len());
            self.selected = if self.from_below { rows.saturating_sub(1) } else { 0 };
        }
    }

    pub(super) fn view(&self, frame: &mut Frame<'_>, area: Rect, theme: &Theme) {
        let width = usize::from(area.width);
        let page = match &self.page {
            Loading::Ready(page) => page,
            Loading::Failed(words) => return draw(frame, area, wrapped(theme, Role::Bad, words, width)),
            _ => return draw(frame, area, vec![inked(theme, Role::Dim, "reading the rejected lines")]),
        };
        let Some(chosen) = page.rows.get(self.selected) else {
            return draw(frame, area, vec![inked(theme, Role::Good, "no line was rejected")]);
        };
        let detail = (area.height / 2).clamp(5, 12);
        let [list, below] = area.layout(&Layout::vertical([Constraint::Min(2), Constraint::Length(detail)]));
        let at = page.offset + self.selected as u64 + 1;
        let head = format!("rejected line {} of {}", count(at), count(page.total));
        let mut lines = vec![inked(theme, Role::Title, fit(&head, width, theme))];
        let rows = usize::from(list.height).saturating_sub(1);
        lines.extend(window(self.selected, page.rows.len(), rows).map(|i| {
            let line = row(&page.rows[i].rejected, width, theme);
            if i == self.selected { selected(&line, width, theme) } else { line }
        }));
        draw(frame, list, lines);
        draw(frame, below, view_chosen(chosen, page, width, usize::from(below.height), theme));
    }
}

fn row(rejected: &Rejected, width: usize, theme: &Theme) -> Line<'static> {
    let place = Place { file: rejected.file.clone(), line: rejected.line }.to_string();
    let room = (width / 3).min(36);
    let reason = match rejected.rejection.field.as_str() {
        "" => rejected.rejection.reason.clone(),
        field => format!("{field}: {}", rejected.rejection.reason),
    };
    let rest = width.saturating_sub(room + 2);
    Line::from(vec![
        ink(theme, Role::Dim, left(&fit_end(&place, room, theme), room, theme)),
        ink(theme, Role::Text, format!("  {}", left(&escape(&reason), rest, theme))),
    ])
}

fn view_chosen(
    line: &KeptLine,
    page: &RejectedPage,
    width: usize,
    height: usize,
    theme: &Theme,
) -> Vec<Line<'static>> {
    let KeptLine { rejected, cut } = line;
    let reason = &rejected.rejection;
    let what = match reason.field.as_str() {
        "" => reason.reason.clone(),
        field => format!("{field}: {}", reason.reason),
    };
    let mut lines = vec![Line::default()];
    lines.extend(wrapped(theme, Role::Bad, &what, width));
    lines.extend(wrapped(theme, Role::Good, &format!("fix: {}", reason.fix), width));
    let file =
        page.file.as_ref().map(|file| format!("all of them are in {}", escape(&file.display().to_string())));
    let room = height.saturating_sub(lines.len() + file.iter().len());
    let mut text: String = rejected.text.chars().take(width * room.max(1)).collect();
    if *cut {
        text.push_str(" …");
    }
    lines.extend(
        wrap(&text.replace('\n', " "), width)
            .into_iter()
            .take(room)
            .map(|line| inked(theme, Role::Dim, line)),
    );
    lines.extend(file.map(|words| inked(theme, Role::Dim, fit(&words, width, theme))));
    lines
}
