//! The screen after the last question: downloading, tokenising, starting. It also draws progress for every
//! page.

use std::path::PathBuf;

use crossterm::event::{KeyCode, KeyEvent};
use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::text::Line;
use sparktune_app::listener::Unit;
use sparktune_base::escape::escape;
use sparktune_base::units::{bytes, count, duration};
use unicode_width::UnicodeWidthStr;

use super::keys::{KeyResult, Keys};
use super::lines::{bar, draw, fit, ink, inked, wrapped};
use super::loading::{Loading, Wait};
use super::request::{Request, Response, Ticketed};
use super::state::State;
use crate::screen::{Binding, Role, Theme, action, key};

/// The start of a run, while it is in progress.
#[derive(Debug, Default)]
pub(super) struct Starting {
    pub run: Loading<PathBuf>,
}

#[derive(Debug, Clone, Copy)]
enum Action {
    Cancel,
    Again,
}

const UNDER_WAY: &[Binding<Action>] = &[Binding {
    keys: &[key(KeyCode::Esc), key(KeyCode::Char('x'))],
    shown: "esc",
    help: "cancel; what has been downloaded is kept, and the next start continues",
    hint: Some("cancel"),
    action: Action::Cancel,
}];

const FAILED: &[Binding<Action>] = &[
    Binding {
        keys: &[key(KeyCode::Enter), key(KeyCode::Char('u'))],
        shown: "⏎",
        help: "try again; what has been downloaded is kept",
        hint: Some("try again"),
        action: Action::Again,
    },
    Binding {
        keys: &[key(KeyCode::Esc)],
        shown: "esc",
        help: "back to the review",
        hint: Some("back to the review"),
        action: Action::Cancel,
    },
];

impl Starting {
    pub(super) fn start(&mut self, state: &mut State) {
        let answers = Box::new(state.planner.answers.clone());
        self.run = state.request(Request::Start { answers, forgets_draft: !state.beside_draft });
    }

    pub(super) fn is_shown(&self) -> bool {
        !matches!(self.run, Loading::Idle)
    }

    pub(super) fn keys(&self) -> Keys {
        if self.run.failed().is_some() { Keys::of(FAILED) } else { Keys::of(UNDER_WAY) }
    }

    pub(super) fn key(&mut self, event: &KeyEvent, state: &mut State) -> KeyResult {
        match (&mut self.run, action(UNDER_WAY, event), action(FAILED, event)) {
            (Loading::Waiting(_), Some(Action::Cancel), _) => self.cancel(state),
            (Loading::Failed(_), _, Some(Action::Again)) => self.start(state),
            (Loading::Failed(_), _, Some(Action::Cancel)) => self.run = Loading::Idle,
            _ => return KeyResult::Ignored,
        }
        KeyResult::Handled
    }

    /// Requests the end of the work. It may be too late; only the response shows whether it was.
    pub(super) fn cancel(&mut self, state: &mut State) {
        if let Loading::Waiting(wait) = &mut self.run
            && !wait.cancelled
        {
            wait.cancelled = true;
            state.send(Request::Cancel { ticket: wait.ticket });
        }
    }

    /// Takes the result. Returns the run's folder when the run has started.
    pub(super) fn receive(&mut self, response: Ticketed<Response>, state: &mut State) -> Option<PathBuf> {
        let Response::Started(result) = response.body else { return None };
        let cancelled = self.run.wait().is_some_and(|wait| wait.cancelled);
        if !self.run.answer(response.ticket, result) {
            return None;
        }
        match &self.run {
            Loading::Ready(run) => return Some(run.clone()),
            Loading::Failed(_) if cancelled => {
                self.run = Loading::Idle;
                state.say(
                    Role::Warn,
                    "cancelled; what has been downloaded is kept, and the next start continues",
                );
            }
            _ => {}
        }
        None
    }

    pub(super) fn view(&self, state: &State, frame: &mut Frame<'_>, area: Rect, theme: &Theme) {
        let width = usize::from(area.width);
        let mut lines = Vec::new();
        match &self.run {
            Loading::Waiting(wait) => {
                let room = usize::from(area.height).saturating_sub(8);
                let from = wait.past.len().saturating_sub(room);
                for past in &wait.past[from..] {
                    let done = ink(theme, Role::Good, theme.glyph("✓ ", "ok "));
                    lines.push(Line::from(vec![
                        done,
                        ink(theme, Role::Text, fit(&escape(past), width - 3, theme)),
                    ]));
                }
                lines.extend(progress_lines(wait, "starting", state.now, width, theme));
                lines.push(Line::default());
                let words = if wait.cancelled {
                    "stopping"
                } else {
                    "When everything has been downloaded, the trainer starts as a process of its own, and its charts are shown. Closing this window or losing the connection does not stop it."
                };
                lines.extend(wrapped(theme, Role::Dim, words, width));
            }
            Loading::Failed(words) => {
                lines.push(inked(theme, Role::Title, "The run could not be started."));
                lines.push(Line::default());
                lines.extend(wrapped(theme, Role::Bad, words, width));
                lines.push(Line::default());
                lines.push(inked(theme, Role::Dim, "What has been downloaded so far is kept."));
            }
            Loading::Ready(_) | Loading::Idle => {}
        }
        draw(frame, area, lines);
    }
}

/// Draws the progress of slow work: the stage, a bar, rate and remaining time, and its note. `words` is shown
/// until the first progress message.
pub(super) fn progress_lines(
    wait: &Wait,
    words: &str,
    now: u64,
    width: usize,
    theme: &Theme,
) -> Vec<Line<'static>> {
    let Some(progress) = &wait.progress else {
        let turning = ["|", "/", "-", "\\"][(now % 4) as usize];
        return vec![Line::from(vec![
            ink(theme, Role::Accent, format!("{turning} ")),
            ink(theme, Role::Text, fit(words, width.saturating_sub(2), theme)),
        ])];
    };
    let mut lines = vec![inked(theme, Role::Text, fit(&escape(&progress.what), width, theme))];
    let mut figures = wait.amount().unwrap_or_default();
    if let Some(pace) = wait.per_second(now) {
        figures.push_str(&match progress.unit {
            Unit::Bytes => format!(", {}/s", bytes(pace as u64)),
            Unit::Count => format!(", {} a second", count(pace as u64)),
        });
    }
    if let Some(left) = wait.left_s(now) {
        figures.push_str(&format!(", {} left", duration(left)));
    }
    match wait.share() {
        Some(share) => {
            let room = width.saturating_sub(figures.width() + 8).clamp(4, 40);
            let full = bar(share, room, theme);
            let gap = room.saturating_sub(full.width());
            let rest = theme.glyph("░", ".").repeat(gap);
            lines.push(Line::from(vec![
                ink(theme, Role::Accent, full),
                ink(theme, Role::Line, rest),
                ink(
                    theme,
                    Role::Text,
                    fit(&format!(" {:>3.0} %  {figures}", share * 100.0), width - room, theme),
                ),
            ]));
        }
        None => lines.push(inked(theme, Role::Text, fit(&figures, width, theme))),
    }
    if let Some(note) = &progress.note {
        lines.push(inked(theme, Role::Dim, fit(&escape(note), width, theme)));
    }
    lines
}
