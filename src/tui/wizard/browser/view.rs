//! Draws the file browser: the folder, its entries, and the input line or the number of marked files.
//!
//! Enters: the browser with its listing and cursor. Leaves: a drawn area. Drawing changes nothing, and names
//! from the disk are escaped.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::text::Line;
use sparktune_app::files::EntryKind;
use sparktune_app::questions::data::PATH_HELP;
use sparktune_base::escape::escape;
use sparktune_base::units::bytes;

use super::{Browser, Row};
use crate::screen::{Role, Theme};
use crate::wizard::lines::{draw, fit_end, ink, inked, left, right, selected, window, wrapped};
use crate::wizard::state::State;

impl Browser {
    pub(crate) fn view(&self, state: &State, frame: &mut Frame<'_>, area: Rect, theme: &Theme) {
        let width = usize::from(area.width);
        let offers = if self.typing.is_some() { 5.min(area.height / 2) } else { 0 };
        let [head, list, foot] = area.layout(&Layout::vertical([
            Constraint::Length(1),
            Constraint::Min(1),
            Constraint::Length(1 + offers),
        ]));
        let place = escape(&state.shown(self.here())).into_owned();
        let mut first = vec![
            ink(theme, Role::Dim, "folder "),
            ink(theme, Role::Title, fit_end(&place, width.saturating_sub(7), theme)),
        ];
        if self.filtering || !self.filter.text().is_empty() {
            first = vec![ink(theme, Role::Accent, "filter: ")];
            first.extend(self.filter.line(area.width.saturating_sub(9), self.filtering, theme).spans);
        }
        draw(frame, head, vec![Line::from(first)]);
        self.view_list(state, frame, list, theme);
        let mut lines = Vec::new();
        match &self.typing {
            Some(line) => {
                let mut typed = vec![ink(theme, Role::Accent, "path: ")];
                typed.extend(line.input.line(area.width.saturating_sub(7), true, theme).spans);
                lines.push(Line::from(typed));
                lines.extend(line.offers(width, usize::from(offers), theme));
            }
            None => lines.push(self.foot(theme)),
        }
        draw(frame, foot, lines);
    }

    fn foot(&self, theme: &Theme) -> Line<'static> {
        let left_out = self.listing.ready().map_or(0, |listing| listing.left_out);
        let words = match (self.marked.len(), left_out) {
            (0, 0) => PATH_HELP.to_owned(),
            (0, n) => format!("{n} more entries are not shown; press o to type a path"),
            (1, _) => "1 marked: enter chooses it".to_owned(),
            (n, _) => format!("{n} marked: enter chooses all of them"),
        };
        let role = if self.marked.is_empty() { Role::Dim } else { Role::Accent };
        inked(theme, role, words)
    }

    fn view_list(&self, state: &State, frame: &mut Frame<'_>, area: Rect, theme: &Theme) {
        let width = usize::from(area.width);
        if let Some(words) = self.listing.failed() {
            let mut lines = wrapped(theme, Role::Bad, words, width);
            lines.push(inked(theme, Role::Dim, "left goes to the parent folder, o lets you type a path"));
            return draw(frame, area, lines);
        }
        if self.listing.wait().is_some() {
            return draw(frame, area, vec![inked(theme, Role::Dim, "reading the folder")]);
        }
        let rows = self.rows(state);
        let height = usize::from(area.height);
        let at = self.selected.min(rows.len().saturating_sub(1));
        let has_entry = rows.iter().any(|row| matches!(row, Row::Entry(_)));
        let mut lines: Vec<_> = window(at, rows.len(), height)
            .map(|i| {
                let line = self.row(&rows[i], state, width, theme);
                let here = i == at && self.typing.is_none();
                if here { selected(&line, width, theme) } else { line }
            })
            .collect();
        if !has_entry && lines.len() < height {
            let words = if self.filter.text().is_empty() { "this folder is empty" } else { "no match" };
            lines.push(inked(theme, Role::Dim, words));
        }
        draw(frame, area, lines);
    }

    fn row(&self, row: &Row, state: &State, width: usize, theme: &Theme) -> Line<'static> {
        let is_marked = self.path_of(row).is_some_and(|path| self.marked.contains(&path));
        let mark = if is_marked { theme.glyph("● ", "* ") } else { "  " };
        let size = 10;
        let room = width.saturating_sub(2 + size + 1 + 8);
        let (role, name, kind, bytes_shown) = match row {
            Row::Recent(path) => {
                (Role::Text, fit_end(&escape(&state.shown(path)), room, theme), "recent", None)
            }
            Row::Up => (Role::Dim, "..".to_owned(), "folder", None),
            Row::Entry(entry) => {
                let name = escape(&entry.name.to_string_lossy()).into_owned();
                match (entry.kind, entry.is_data, entry.is_model) {
                    (EntryKind::Folder, true, _) => (Role::Text, name + "/", "data", None),
                    (EntryKind::Folder, _, true) => (Role::Dim, name + "/", "model", None),
                    (EntryKind::Folder, ..) => (Role::Text, name + "/", "folder", None),
                    (EntryKind::File, true, _) => (Role::Title, name, "data", entry.bytes),
                    (EntryKind::File, false, _) => (Role::Dim, name, "file", entry.bytes),
                    (EntryKind::Other, ..) => (Role::Dim, name, "special", None),
                }
            }
        };
        let size_cell = bytes_shown.map(bytes).unwrap_or_default();
        Line::from(vec![
            ink(theme, Role::Accent, mark),
            ink(theme, role, left(&name, room, theme)),
            ink(theme, Role::Dim, right(&size_cell, size, theme)),
            ink(theme, Role::Dim, format!(" {}", left(kind, 8, theme))),
        ])
    }
}
