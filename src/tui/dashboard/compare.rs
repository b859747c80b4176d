//! The list for choosing a second run to compare with.

use crossterm::event::{KeyCode, KeyEvent};
use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::text::Line;
use sparktune_base::escape::escape;
use sparktune_runlog::{RunDir, RunsRoot};

use crate::screen::{Popup, Role, Theme};
use crate::wrap::cut;

/// The largest number of runs that are visible at once.
const ROWS: u16 = 14;
/// The largest width of a name in columns.
const WIDEST: usize = 60;

/// The list of other runs, newest first.
#[derive(Debug)]
pub(super) struct Picker {
    runs: Vec<RunDir>,
    cursor: usize,
    /// The reason why there are no runs to choose from.
    none: Option<String>,
}

/// The result of a key.
pub(super) enum Picked {
    Nothing,
    Closed,
    Run(RunDir),
}

impl Picker {
    /// Lists the runs under `root` except `this` one.
    pub(super) fn open(root: Option<&RunsRoot>, this: &str) -> Self {
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

    /// Handles a key.
    pub(super) fn press(&mut self, event: &KeyEvent) -> Picked {
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
    pub(super) fn draw(&self, frame: &mut Frame<'_>, area: Rect, theme: &Theme) {
        let rows = usize::from(area.height.saturating_sub(2).clamp(1, ROWS));
        let first = (self.cursor + 1).saturating_sub(rows);
        let mut lines: Vec<Line<'_>> = Vec::new();
        if let Some(none) = &self.none {
            lines.push(Line::styled(none.clone(), theme.style(Role::Dim)));
        }
        for (i, run) in self.runs.iter().enumerate().skip(first).take(rows) {
            let here = i == self.cursor;
            let mark = if here { theme.glyph("▸", ">") } else { " " };
            let name = cut(&escape(&run.name()), WIDEST.min(usize::from(area.width.saturating_sub(6))));
            let role = if here { Role::Selected } else { Role::Text };
            lines.push(Line::styled(format!("{mark} {name}"), theme.style(role)));
        }
        let keys = "↑ ↓ ⏎  esc closes";
        Popup { title: "compare with which run?", role: Role::Accent, lines, keys }.draw(frame, area, theme);
    }
}
