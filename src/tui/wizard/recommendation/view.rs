//! Draws the page of the settings: their list, and beside it the cost, the setting under the cursor and the
//! cost of every pack length.
//!
//! Enters: the page with its cursor and the value that is being typed, and the plan of the state. Leaves: a
//! drawn area. Drawing changes nothing; what fits is decided here, from the size alone.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::text::Line;
use sparktune_base::escape::escape;
use sparktune_plan::setting::Page;
use sparktune_plan::{Origin, Setting};
use unicode_width::UnicodeWidthStr;

use super::PlanPage;
use crate::screen::{Role, Theme};
use crate::wizard::cost::{curve_lines, memory_lines, time_lines};
use crate::wizard::lines::{block, draw, fit, ink, inked, left, window, wrapped};
use crate::wizard::no_plan::not_yet;
use crate::wizard::settings::{Now, name, now, origin_word, stepped};
use crate::wizard::state::State;

/// The rows that the memory has beside a setting with room to spare.
const MEMORY_ROWS: usize = 5;

impl PlanPage {
    pub(crate) fn view(&self, state: &State, frame: &mut Frame<'_>, area: Rect, theme: &Theme) {
        // Data that cannot be read with a value of this page is corrected on this page.
        let can_correct = state.data.failed().is_some();
        if state.planner.plan.is_none() && state.planner.problem.is_none() && !can_correct {
            return draw(frame, area, not_yet(state, usize::from(area.width), theme));
        }
        if let (true, Some(plan)) = (self.curve, &state.planner.plan) {
            return view_curve(plan, frame, area, theme);
        }
        let list = (area.width * 47 / 100).clamp(30, 56);
        let [list, _, side] = area.layout(&Layout::horizontal([
            Constraint::Length(list),
            Constraint::Length(2),
            Constraint::Fill(1),
        ]));
        // If there is room below the essential settings, the cost of pack lengths is shown there.
        let rows = self.listed(state).len() as u16 + 2;
        match &state.planner.plan {
            Some(plan) if list.height >= rows + 10 => {
                let [list, cost] =
                    list.layout(&Layout::vertical([Constraint::Length(rows), Constraint::Fill(1)]));
                self.view_list(state, frame, list, theme);
                let width = usize::from(cost.width);
                let mut lines = vec![block(theme, "cost of pack lengths", width)];
                lines.extend(curve_lines(plan, width, usize::from(cost.height).saturating_sub(1), theme));
                draw(frame, cost, lines);
                self.view_side(state, frame, side, false, theme);
            }
            _ => {
                self.view_list(state, frame, list, theme);
                self.view_side(state, frame, side, true, theme);
            }
        }
    }

    fn view_list(&self, state: &State, frame: &mut Frame<'_>, area: Rect, theme: &Theme) {
        let width = usize::from(area.width);
        let settings = self.listed(state);
        let names = settings.iter().map(|setting| name(setting).width()).max().unwrap_or(0);
        // A row also has a mark, a short value between arrows, and a word about its origin.
        let names = names.min(width / 2).min(width.saturating_sub(if width < 34 { 15 } else { 20 }));
        let height = usize::from(area.height).saturating_sub(1);
        // Behind the essential settings, each group stands under its heading.
        let mut rows: Vec<Option<usize>> = Vec::new();
        let mut headings: Vec<&str> = Vec::new();
        for (at, setting) in settings.iter().enumerate() {
            let heading = setting.heading.title();
            if setting.page == Page::AllSettings && headings.last() != Some(&heading) {
                headings.push(heading);
                rows.push(None);
            }
            rows.push(Some(at));
        }
        let selected = self.selected.min(settings.len().saturating_sub(1));
        let visual = rows.iter().position(|row| *row == Some(selected)).unwrap_or(0);
        let shown = window(visual, rows.len(), height);
        let mut above = rows[..shown.start].iter().filter(|row| row.is_none()).count();
        let mut lines = Vec::new();
        for row in &rows[shown] {
            lines.push(match *row {
                Some(at) => self.row(settings[at], at == selected, names, width, state, theme),
                None => {
                    above += 1;
                    block(theme, &headings[above - 1].to_lowercase(), width)
                }
            });
        }
        if self.is_searched() {
            let mut spans = vec![ink(theme, Role::Accent, "/ ")];
            spans.extend(self.search.line(area.width.saturating_sub(3), self.searching, theme).spans);
            lines.push(Line::from(spans));
        } else {
            let words = if self.all {
                format!("{} settings; / searches them", settings.len())
            } else {
                "a shows all settings, / searches".to_owned()
            };
            lines.push(inked(theme, Role::Dim, fit(&words, width, theme)));
        }
        draw(frame, area, lines);
    }

    fn row(
        &self,
        setting: &'static Setting,
        selected: bool,
        names: usize,
        width: usize,
        state: &State,
        theme: &Theme,
    ) -> Line<'static> {
        let Now { value, origin, .. } = now(setting, state.planner.plan.as_ref(), &state.planner.answers);
        let at_fault = state.planner.problem.as_ref().is_some_and(|problem| problem.key == Some(setting.key));
        let mark = match (selected, at_fault) {
            (_, true) => "! ",
            (true, _) => theme.glyph("▸ ", "> "),
            _ => "  ",
        };
        // Where the word does not fit, a star marks values that differ from the recommendation.
        let narrow = width < 34;
        let word = match origin_word(origin) {
            "" => "",
            _ if narrow => "*",
            word => word,
        };
        let words = if narrow { 1 } else { 6 };
        let shown =
            if value.is_empty() { theme.glyph("–", "-").to_owned() } else { escape(&value).into_owned() };
        // Arrows are shown next to values that the arrow keys change.
        let arrows = [theme.glyph("◂ ", "< "), theme.glyph(" ▸", " >")];
        let moves = selected && stepped(setting, &value, true).is_some();
        // A name that is longer than its column takes what its value leaves, whether or not the row is
        // selected; without a word about its origin, also the room of that.
        let whole = shown.width() + arrows.concat().width();
        let after_name = width.saturating_sub(2 + 2 + if word.is_empty() { 0 } else { 1 + words });
        let names = name(setting).width().min(after_name.saturating_sub(whole)).max(names);
        let usual = width.saturating_sub(names + 2 + 2 + 1 + words);
        let room = usual.max(whole.min(after_name.saturating_sub(names)));
        let mut spans = vec![
            ink(theme, if at_fault { Role::Bad } else { Role::Accent }, mark),
            ink(theme, if selected { Role::Title } else { Role::Text }, left(&name(setting), names, theme)),
            ink(theme, Role::Text, "  "),
        ];
        match self.edit.as_ref().filter(|_| selected) {
            Some(edit) => spans.extend(edit.input.line((usual + words) as u16, true, theme).spans),
            None => {
                let shown = if moves { arrows.join(&shown) } else { shown };
                let cell = left(&shown, room, theme);
                let role = if origin == Origin::BuiltIn { Role::Text } else { Role::Accent };
                spans.push(if selected { ink(theme, Role::Selected, cell) } else { ink(theme, role, cell) });
                spans.push(ink(theme, role, format!(" {}", left(word, words, theme))));
            }
        }
        Line::from(spans)
    }

    fn view_side(&self, state: &State, frame: &mut Frame<'_>, area: Rect, with_curve: bool, theme: &Theme) {
        let width = usize::from(area.width);
        let height = usize::from(area.height);
        let setting = self.setting(state);
        let high = height >= 28;
        let on_curve =
            setting.key == "pack.length" && self.edit.as_ref().is_none_or(|edit| edit.problem.is_none());
        let mut about = self.about(setting, state, width, theme);
        let mut lines = Vec::new();
        if state.recount.wait().is_some() {
            let words =
                "The data is being read again, because a value changed its examples; the figures follow.";
            lines.extend(wrapped(theme, Role::Warn, words, width));
        }
        if let Some(plan) = &state.planner.plan {
            let compact = !high && on_curve;
            let mut time = time_lines(plan, self.was, width, if high { 6 } else { 0 }, theme);
            if !high {
                // If there is little room, the basis is more important than the steps.
                time.truncate(2);
            }
            lines.extend(time);
            if high {
                lines.push(Line::default());
            }
            if let Some(advice) = &plan.advice {
                // The parts of the memory give way to what is said about the setting.
                let is_crowded = lines.len() + MEMORY_ROWS + 1 + about.len() > height;
                let rows = match (high, compact || height < 14 || is_crowded) {
                    (true, _) => 8,
                    (false, true) => 2,
                    (false, false) => MEMORY_ROWS,
                };
                lines.extend(memory_lines(&advice.memory, self.was, width, rows, theme));
            }
            lines.push(Line::default());
        }
        let rest = height.saturating_sub(lines.len());
        let curve_rows = match (&state.planner.plan, high, on_curve) {
            _ if !with_curve => 0,
            (Some(_), true, _) => rest.saturating_sub(about.len() + 2),
            (Some(_), false, true) => rest.saturating_sub(about.len()).min(7),
            _ => 0,
        };
        let shows_curve = curve_rows >= 4;
        if on_curve && with_curve && !shows_curve && self.edit.is_none() && about.len() < rest {
            about.push(inked(theme, Role::Dim, fit("c shows the cost of every length", width, theme)));
        }
        if about.len() > rest {
            about.truncate(rest.saturating_sub(1));
            let words = format!("{} more in a larger window", theme.glyph("…", "..."));
            about.push(inked(theme, Role::Dim, fit(&words, width, theme)));
        }
        lines.extend(about);
        if let (Some(plan), true) = (&state.planner.plan, shows_curve) {
            if high {
                lines.push(Line::default());
                lines.push(block(theme, "cost of pack lengths", width));
            }
            lines.extend(curve_lines(plan, width, curve_rows, theme));
        }
        draw(frame, area, lines);
    }

    /// Describes the setting under the cursor: its meaning, its recommendation with the reason, or its
    /// problem.
    fn about(
        &self,
        setting: &'static Setting,
        state: &State,
        width: usize,
        theme: &Theme,
    ) -> Vec<Line<'static>> {
        let Now { value, origin, reason } = now(setting, state.planner.plan.as_ref(), &state.planner.answers);
        let mut lines = vec![block(theme, setting.key, width)];
        if let Some(problem) = self.edit.as_ref().and_then(|edit| edit.problem.as_ref()) {
            lines.extend(wrapped(theme, Role::Bad, problem, width));
            lines.push(inked(
                theme,
                Role::Dim,
                fit("the plan still uses the last valid value", width, theme),
            ));
            return lines;
        }
        let problem = state.planner.problem.as_ref().map(|problem| problem.text.as_str());
        if let Some(problem) = problem.or(state.data.failed()) {
            lines.extend(wrapped(theme, Role::Bad, problem, width));
            let words = "r resets the value under the cursor, p loads a preset";
            lines.extend(wrapped(theme, Role::Dim, words, width));
            return lines;
        }
        let recommended = self.recommended.as_deref().unwrap_or_default();
        let shown = |value: &str| match value {
            "" => "not set".to_owned(),
            value => escape(value).into_owned(),
        };
        let words = match origin {
            Origin::BuiltIn => format!("{}, as recommended", shown(&value)),
            _ if value == recommended => {
                format!("{} ({}), as recommended", shown(&value), setting.place(origin))
            }
            _ => format!(
                "{} ({}); recommended is {}",
                shown(&value),
                setting.place(origin),
                shown(recommended)
            ),
        };
        let role = if origin == Origin::BuiltIn || value == recommended { Role::Good } else { Role::Accent };
        lines.extend(wrapped(theme, role, &words, width));
        // The list already shows that the value is the recommended one.
        let reason = reason.strip_prefix("as recommended: ").unwrap_or(&reason);
        let reason = reason.strip_prefix(&format!("recommended was {recommended}: ")).unwrap_or(reason);
        lines.extend(wrapped(theme, Role::Text, reason, width));
        lines.extend(wrapped(theme, Role::Dim, setting.about, width));
        lines.extend(wrapped(theme, Role::Dim, &format!("expects {}", setting.expects()), width));
        lines
    }
}

fn view_curve(plan: &sparktune_plan::Plan, frame: &mut Frame<'_>, area: Rect, theme: &Theme) {
    let width = usize::from(area.width);
    let rule = plan.advice.as_ref().map_or(0, |advice| advice.recipe_pack_length);
    let words = format!(
        "With longer packs there are fewer of them, so fixed costs are lower, but attention and memory cost more and there are fewer steps. empty: the share of the pack space that no example fills. The Qwen3.5 recipe's rule, the mean length rounded to a multiple of 128, gives {}.",
        sparktune_base::units::count(rule.into())
    );
    let mut lines = vec![block(theme, "cost of pack lengths", width)];
    lines.extend(wrapped(theme, Role::Dim, &words, width));
    lines.push(Line::default());
    let rows = usize::from(area.height).saturating_sub(lines.len());
    lines.extend(curve_lines(plan, width, rows, theme));
    draw(frame, area, lines);
}
