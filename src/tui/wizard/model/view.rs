//! Draws the page of the model: the table, and below it the model under the cursor, the state of the chosen
//! one, or the input line.
//!
//! Enters: the page with its cursor, and the facts of the state. Leaves: a drawn area. Drawing changes
//! nothing; columns and cells come from `model_table`.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::text::Line;
use sparktune_app::model::ModelFound;
use sparktune_app::questions::model::{INCLUDED, OTHER, UnknownFamily, other_about};
use sparktune_base::escape::escape;
use sparktune_base::units::{bytes, parameters};
use sparktune_plan::Catalog;

use super::{ModelPage, Row};
use crate::screen::{Role, Theme};
use crate::wizard::lines::{draw, fit, fit_end, ink, inked, left, right, selected, window, wrapped};
use crate::wizard::model_table::{
    Columns, ascii, cache_cell, method_in_words, missing_cell, row_cell, speed_cell,
};
use crate::wizard::path_line::PathLine;
use crate::wizard::starting::progress_lines;
use crate::wizard::state::State;

impl ModelPage {
    pub(crate) fn view(&self, state: &State, frame: &mut Frame<'_>, area: Rect, theme: &Theme) {
        let low = area.height < 16;
        // Notes are read in full where the table keeps about half of the page; it scrolls.
        let below = if low { 4 } else { (area.height / 2).min(10) };
        let [table, detail] = area.layout(&Layout::vertical([Constraint::Min(4), Constraint::Length(below)]));
        self.view_table(state, frame, table, theme);
        match &self.other {
            Some(line) => view_other(line, frame, detail, theme),
            None => self.view_detail(state, frame, detail, theme),
        }
    }

    fn view_table(&self, state: &State, frame: &mut Frame<'_>, area: Rect, theme: &Theme) {
        let columns = Columns::for_width(usize::from(area.width));
        let mut lines = vec![columns.head(theme)];
        let rows = self.rows(state);
        if self.searching || !self.search.text().is_empty() {
            let mut spans = vec![ink(theme, Role::Accent, "search: ")];
            spans.extend(self.search.line(area.width.saturating_sub(9), self.searching, theme).spans);
            lines[0] = Line::from(spans);
        }
        let height = usize::from(area.height).saturating_sub(1);
        let recommended = self.question.recommended();
        for at in window(self.selected, rows.len(), height) {
            let row = &rows[at];
            let mut line = self.row(row, recommended, &columns, state, theme);
            if at == self.selected && self.other.is_none() {
                line = selected(&line, usize::from(area.width), theme);
            }
            lines.push(line);
        }
        draw(frame, area, lines);
    }

    fn row(
        &self,
        row: &Row,
        recommended: Option<&str>,
        columns: &Columns,
        state: &State,
        theme: &Theme,
    ) -> Line<'static> {
        let answered =
            state.planner.answers.model.as_ref().is_some_and(|answer| Some(&*answer.value) == row.name());
        let mark = if answered { theme.glyph("● ", "* ") } else { "  " };
        let Some(name) = row.name() else {
            return inked(theme, Role::Text, format!("{mark}{OTHER}"));
        };
        let outlook = self.question.outlook(name);
        let (size, here) = match row {
            Row::Known(model) => (bytes(model.weight_bytes), cache_cell(state.cached(name), model, theme)),
            _ => match state.model.ready().filter(|found| found.name == name) {
                Some(found) => {
                    (bytes(found.facts.checkpoint_bytes), missing_cell(found.missing_bytes, theme))
                }
                None => (String::new(), String::new()),
            },
        };
        let id = columns.id;
        let mut spans = vec![ink(theme, Role::Accent, mark)];
        let recommended_here = recommended == Some(name);
        let is_demo = state.demo.as_deref() == Some(name);
        let shown = if is_demo { INCLUDED.into() } else { escape(name) };
        let name_cell = if recommended_here && id >= 30 {
            format!("{shown} {}", theme.glyph("★", "(recommended)"))
        } else {
            shown.into_owned()
        };
        let cell = match row {
            Row::Named(_) => fit_end(&name_cell, id, theme),
            _ => name_cell,
        };
        spans.push(ink(theme, if answered { Role::Title } else { Role::Text }, left(&cell, id, theme)));
        spans.push(ink(theme, Role::Dim, format!(" {}", right(&size, columns.size, theme))));
        if columns.lora > 0 {
            let (role, cell) = row_cell(outlook.map(|outlook| &outlook.lora), theme);
            spans.push(ink(theme, role, format!(" {}", right(&cell, columns.lora, theme))));
        }
        if columns.full > 0 {
            let (role, cell) = row_cell(outlook.map(|outlook| &outlook.full), theme);
            spans.push(ink(theme, role, format!(" {}", right(&cell, columns.full, theme))));
        }
        if columns.speed > 0 {
            let cell = outlook.map_or_else(|| "–".to_owned(), |outlook| speed_cell(&outlook.lora));
            spans.push(ink(theme, Role::Text, format!(" {}", right(&cell, columns.speed, theme))));
        }
        spans.push(ink(theme, Role::Dim, format!("  {}", left(&here, columns.here, theme))));
        Line::from(spans)
    }

    fn view_detail(&self, state: &State, frame: &mut Frame<'_>, area: Rect, theme: &Theme) {
        let width = usize::from(area.width);
        let rows = self.rows(state);
        let Some(row) = rows.get(self.selected) else { return };
        let mut lines = vec![Line::default()];
        let answered = state.planner.answers.model.as_ref().map(|answer| answer.value.as_str());
        if let Some(problem) = state.model.failed().filter(|_| answered == row.name()) {
            // Only there, and alone, so that there is room for all of it.
            lines.extend(wrapped(theme, Role::Bad, problem, width));
            lines.push(inked(theme, Role::Dim, "u checks it again"));
            return draw(frame, area, lines);
        }
        lines.extend(self.status(state, width, theme));
        if let Some(name) = row.name() {
            if let Row::Known(model) = row {
                let facts = Catalog::shipped().model_facts(model);
                let star = if self.question.recommended() == Some(name) { "recommended here: " } else { "" };
                let words =
                    format!("{star}{}; {} parameters", model.note, parameters(facts.text_parameters()));
                lines.extend(wrapped(theme, Role::Text, &escape(&words), width));
            }
            if let Some(outlook) = self.question.outlook(name) {
                let speed = format!("speed: {}", outlook.lora.basis_in_words);
                // Otherwise LoRA may seem to need more memory than full fine-tuning.
                let mut lora = method_in_words(&outlook.lora);
                if outlook.full.recompute && !outlook.lora.recompute && outlook.lora.pack_length.is_some() {
                    lora.push_str(", without recompute");
                }
                for words in [lora, method_in_words(&outlook.full), speed] {
                    lines.extend(wrapped(theme, Role::Dim, &words, width));
                }
                let words = format!("≤: longest pack that fits, in tokens; {}", self.question.data);
                lines.extend(wrapped(theme, Role::Dim, &ascii(&words, theme), width));
            }
        } else {
            lines.extend(wrapped(theme, Role::Dim, &other_about(), width));
        }
        draw(frame, area, lines);
    }

    /// Describes the state of the chosen model, unless it failed.
    fn status(&self, state: &State, width: usize, theme: &Theme) -> Vec<Line<'static>> {
        let Some(chosen) =
            state.planner.answers.model.as_ref().map(|answer| escape(&answer.value).into_owned())
        else {
            return Vec::new();
        };
        if let Some(wait) = state.model.wait() {
            let words = format!("checking {chosen}");
            return progress_lines(wait, &words, state.now, width, theme);
        }
        let Some(found) = state.model.ready() else { return Vec::new() };
        let mut lines = Vec::new();
        if let Some(family) = found.unknown_architecture.as_ref().filter(|_| !state.is_confirmed()) {
            let treated_as = found.facts.config.architecture;
            let unknown = UnknownFamily { name: &found.name, family, treated_as };
            let words = format!("{} y: {}.", unknown.explanation(), unknown.train_anyway());
            lines.extend(wrapped(theme, Role::Warn, &words, width));
        }
        for note in &found.notes {
            lines.extend(wrapped(theme, Role::Warn, note, width));
        }
        let ok = theme.glyph("✓", "ok:");
        let words = format!("{ok} {}", found_in_words(found));
        lines.push(inked(theme, Role::Good, fit(&escape(&words), width, theme)));
        lines
    }
}

/// Describes the model that was found in one line.
fn found_in_words(found: &ModelFound) -> String {
    let mut words = format!("{}: {} parameters", found.name, parameters(found.facts.text_parameters()));
    if let Some(commit) = &found.commit {
        words.push_str(&format!(", commit {}", commit.chars().take(8).collect::<String>()));
    }
    words.push_str(&match found.missing_bytes {
        0 => ", already downloaded".to_owned(),
        missing => format!(", {} to download when training starts", bytes(missing)),
    });
    words
}

fn view_other(line: &PathLine, frame: &mut Frame<'_>, area: Rect, theme: &Theme) {
    let width = usize::from(area.width);
    let mut typed = vec![ink(theme, Role::Accent, "id or folder: ")];
    typed.extend(line.input.line(area.width.saturating_sub(15), true, theme).spans);
    let mut lines = vec![Line::default(), Line::from(typed)];
    lines.extend(line.offers(width, usize::from(area.height).saturating_sub(2), theme));
    draw(frame, area, lines);
}
