//! The runs that are compared with the one on the screen: the list for choosing them, and the settings in
//! which they differ.

use crossterm::event::{KeyCode, KeyEvent};
use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::text::{Line, Span};
use sparktune_base::escape::escape;
use sparktune_base::units::UNKNOWN;
use sparktune_plan::Plan;
use sparktune_runlog::{RunDir, RunsRoot};

use super::facts_panel::Facts;
use super::reading::Reading;
use crate::screen::{Popup, Role, Theme};
use crate::wrap::cut;

/// The largest number of runs that are visible at once.
const ROWS: u16 = 14;
/// The largest width of a name in columns.
const WIDEST: usize = 60;

/// The roles of the runs that are compared, in order.
pub(super) const OTHERS: [Role; 3] = [Role::Other, Role::Second, Role::Third];
/// What differs between any two runs and says nothing.
const OF_EACH: [&str; 7] = ["name", "runs_dir", "model.path", "model.mtp_path", "steps", "speed", "time"];
/// The largest width of a setting's name, and the smallest of a value.
const KEY: usize = 24;
const VALUE: usize = 8;

/// A run that is compared with the one on the screen.
#[derive(Debug)]
pub(super) struct Other {
    pub(super) reading: Reading,
    /// Its plan, if it can be read.
    plan: Option<Plan>,
}

impl Other {
    pub(super) fn open(run: RunDir) -> Self {
        let plan = run.read_plan().ok().and_then(|text| Plan::from_toml(&text, "plan.toml").ok());
        Self { reading: Reading::open(run), plan }
    }

    #[cfg(test)]
    pub(super) fn of(reading: Reading, plan: Option<Plan>) -> Self {
        Self { reading, plan }
    }
}

/// Returns a table of the settings in which the compared runs differ from this one; nothing if none is
/// compared.
pub(super) fn differences(facts: &Facts, others: &[Other], width: u16, theme: &Theme) -> Vec<Line<'static>> {
    if others.is_empty() {
        return Vec::new();
    }
    let plans: Vec<_> =
        [facts.plan()].into_iter().chain(others.iter().map(|other| other.plan.as_ref())).collect();
    let rows = |plan: Option<&Plan>| -> Vec<(String, String)> {
        let advice = plan.and_then(|plan| plan.advice.as_ref());
        let rows = advice.map(|advice| advice.explain.as_slice()).unwrap_or_default();
        rows.iter().map(|row| (row.key.clone(), row.value.clone())).collect()
    };
    let all: Vec<Vec<(String, String)>> = plans.into_iter().map(rows).collect();
    let mut keys: Vec<&str> = Vec::new();
    for (key, _) in all.iter().flatten() {
        if !keys.contains(&key.as_str()) && !OF_EACH.contains(&key.as_str()) {
            keys.push(key);
        }
    }
    let column = (usize::from(width).saturating_sub(KEY) / all.len()).saturating_sub(1).max(VALUE);
    let cell = |text: &str| format!(" {:<column$}", cut(&escape(text), column));
    let mut lines = vec![Line::styled("settings that differ", theme.style(Role::Title))];
    let mut head = vec![Span::raw(format!("{:KEY$}", "")), Span::raw(cell("this run"))];
    for (other, role) in others.iter().zip(OTHERS) {
        let name = other.reading.name.rsplit_once("Z-").map_or(other.reading.name.as_str(), |(_, name)| name);
        head.push(Span::styled(cell(name), theme.style(role)));
    }
    lines.push(Line::from(head));
    for key in keys {
        let of = |rows: &Vec<(String, String)>| {
            rows.iter().find(|(known, _)| known == key).map(|(_, value)| value.clone()).unwrap_or_default()
        };
        let values: Vec<String> = all.iter().map(of).collect();
        if values.iter().all(|value| *value == values[0]) {
            continue;
        }
        let shown = |value: &String| cell(if value.is_empty() { UNKNOWN } else { value });
        let mut spans = vec![Span::styled(format!("{:KEY$}", cut(key, KEY)), theme.style(Role::Dim))];
        spans.extend(values.iter().map(|value| Span::raw(shown(value))));
        lines.push(Line::from(spans));
    }
    if lines.len() == 2 {
        lines.push(Line::styled("none: what differs is chance, machine or build", theme.style(Role::Dim)));
    }
    lines.push(Line::default());
    lines
}

/// The list of other runs, newest first.
#[derive(Debug)]
pub(super) struct Picker {
    runs: Vec<RunDir>,
    cursor: usize,
    /// The names of the runs that are laid over already.
    laid: Vec<String>,
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
    /// Lists the runs under `root` except `this` one. Those in `laid` are marked.
    pub(super) fn open(root: Option<&RunsRoot>, this: &str, laid: Vec<String>) -> Self {
        let listed = root.map_or_else(|| Ok(Vec::new()), RunsRoot::list);
        let (mut runs, trouble) = match listed {
            Ok(runs) => (runs, None),
            Err(error) => (Vec::new(), Some(escape(&error.to_string()).into_owned())),
        };
        runs.retain(|run| run.name() != this);
        runs.reverse();
        let none = trouble.or_else(|| runs.is_empty().then(|| "there is no other run".to_owned()));
        Self { runs, cursor: 0, laid, none }
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
            let is_laid = self.laid.contains(&run.name());
            let over = if is_laid { theme.glyph("✓", "x") } else { " " };
            let name = cut(&escape(&run.name()), WIDEST.min(usize::from(area.width.saturating_sub(8))));
            let role = if here { Role::Selected } else { Role::Text };
            lines.push(Line::styled(format!("{mark}{over} {name}"), theme.style(role)));
        }
        let keys = "↑ ↓ ⏎  esc closes";
        Popup { title: "compare with which run?", role: Role::Accent, lines, keys }.draw(frame, area, theme);
    }
}
