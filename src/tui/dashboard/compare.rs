//! Choosing another run to lay over.

use crossterm::event::{KeyCode, KeyEvent};
use ratatui::Frame;
use ratatui::layout::{Constraint, Rect};
use ratatui::text::Line;
use ratatui::widgets::{Block, Clear, Paragraph};
use sparktune_runlog::{RunDir, RunsRoot};

use crate::escape::escape;
use crate::screen::{Role, Theme};
use crate::wrap::cut;

/// The list of other runs, newest first.
#[derive(Debug)]
pub(super) struct Picker {
    runs: Vec<RunDir>,
    cursor: usize,
    /// Why there is nothing to choose from.
    none: Option<String>,
}

/// What a key brought.
pub(super) enum Picked {
    Nothing,
    Closed,
    Run(RunDir),
}

impl Picker {
    /// The runs under `root` but for `this` one.
    pub fn open(root: Option<&RunsRoot>, this: &str) -> Self {
        let listed = root.map_or_else(|| Ok(Vec::new()), RunsRoot::list);
        let (mut runs, trouble) = match listed {
            Ok(runs) => (runs, None),
            Err(error) => (Vec::new(), Some(escape(&error.to_string()).into_owned())),
        };
        runs.retain(|run| run.name() != this);
        runs.reverse();
        let none = trouble.or_else(|| runs.is_empty().then(|| "there is no other run".to_owned()));
        Self { runs, cursor: 0, none }
    }

    /// Takes a key.
    pub fn press(&mut self, event: &KeyEvent) -> Picked {
        let last = self.runs.len().saturating_sub(1);
        match event.code {
            KeyCode::Up | KeyCode::Char('k') => self.cursor = self.cursor.saturating_sub(1),
            KeyCode::Down | KeyCode::Char('j') => self.cursor = (self.cursor + 1).min(last),
            KeyCode::PageUp => self.cursor = self.cursor.saturating_sub(10),
            KeyCode::PageDown => self.cursor = (self.cursor + 10).min(last),
            KeyCode::Home => self.cursor = 0,
            KeyCode::End => self.cursor = last,
            KeyCode::Enter => {
                return self.runs.get(self.cursor).map_or(Picked::Closed, |run| Picked::Run(run.clone()));
            }
            KeyCode::Esc | KeyCode::Char('q' | 'o') => return Picked::Closed,
            _ => {}
        }
        Picked::Nothing
    }

    /// Draws the list over `area`.
    pub fn draw(&self, frame: &mut Frame<'_>, area: Rect, theme: &Theme) {
        let place =
            area.centered(Constraint::Max(66), Constraint::Max(self.runs.len().clamp(1, 14) as u16 + 2));
        let rows = usize::from(place.height.saturating_sub(2)).max(1);
        let first = (self.cursor + 1).saturating_sub(rows);
        let mut lines: Vec<Line<'_>> = Vec::new();
        if let Some(none) = &self.none {
            lines.push(Line::styled(format!(" {none}"), theme.style(Role::Dim)));
        }
        for (i, run) in self.runs.iter().enumerate().skip(first).take(rows) {
            let here = i == self.cursor;
            let mark = if here { theme.glyph("▸", ">") } else { " " };
            let name = cut(&escape(&run.name()), usize::from(place.width.saturating_sub(6)));
            let role = if here { Role::Selected } else { Role::Text };
            lines.push(Line::styled(format!(" {mark} {name} "), theme.style(role)));
        }
        let block = Block::bordered()
            .border_set(theme.border())
            .border_style(theme.style(Role::Accent))
            .title(" lay over which run? ")
            .title_bottom(
                Line::from(if theme.unicode {
                    " ↑ ↓ ⏎  esc closes "
                } else {
                    " Up Down Enter  esc closes "
                })
                .right_aligned(),
            );
        frame.render_widget(Clear, place);
        frame.render_widget(Paragraph::new(lines).block(block), place);
    }
}
