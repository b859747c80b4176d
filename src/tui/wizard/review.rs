//! The last page: the whole plan, the equivalent command line, and the start.

use crossterm::event::{KeyCode, KeyEvent};
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::text::Line;
use sparktune_app::questions::plan::PlanAction;
use sparktune_base::escape::escape;
use sparktune_base::units::{bytes, count, counted, parameters};
use sparktune_plan::render::counted_epochs;
use sparktune_plan::{Method, Origin, Plan, command_line};
use unicode_width::UnicodeWidthStr;

use super::cost::{basis, memory_lines, shown_s};
use super::keys::{KeyResult, Keys, down, enter, page_down, page_up, up};
use super::lines::{block, draw, fit, fit_end, from_row, ink, inked, left, wrap, wrapped};
use super::no_plan::not_yet;
use super::settings::origin_word;
use super::state::State;
use super::{command, frame};
use crate::screen::{Binding, Colours, Role, Theme, action, hint_line, key};

#[derive(Debug, Default)]
pub(super) struct ReviewPage {
    scroll: usize,
    /// Whether the command line is shown, on a screen of its own.
    pub command: bool,
}

#[derive(Debug, Clone, Copy)]
enum Action {
    Start,
    Command,
    Up,
    Down,
    PageUp,
    PageDown,
    Save,
}

const KEYS: &[Binding<Action>] = &[
    enter(PlanAction::Start.label(), "start", Action::Start),
    Binding {
        keys: &[key(KeyCode::Char('c'))],
        shown: "c",
        help: PlanAction::CommandLine.label(),
        hint: Some("command line"),
        action: Action::Command,
    },
    up("scroll up", Action::Up),
    down("scroll down", Some("scroll"), Action::Down),
    page_up(Action::PageUp),
    page_down(Action::PageDown),
    Binding {
        keys: &[key(KeyCode::Char('P'))],
        shown: "P",
        help: PlanAction::SavePreset.label(),
        hint: Some("save as preset"),
        action: Action::Save,
    },
];

#[derive(Debug, Clone, Copy)]
enum OnCommand {
    Close,
    Copy,
}

const COMMAND_KEYS: &[Binding<OnCommand>] = &[
    Binding {
        keys: &[key(KeyCode::Char('Y')), key(KeyCode::Char('y'))],
        shown: "Y",
        help: "copy it into the terminal's clipboard",
        hint: Some("copy"),
        action: OnCommand::Copy,
    },
    Binding {
        keys: &[key(KeyCode::Esc), key(KeyCode::Enter), key(KeyCode::Char('c'))],
        shown: "esc",
        help: "back to the review",
        hint: Some("back"),
        action: OnCommand::Close,
    },
];

impl ReviewPage {
    pub(super) fn keys(&self) -> Keys {
        if self.command { Keys::of(COMMAND_KEYS) } else { Keys::of(KEYS) }
    }

    pub(super) fn enter(&mut self) {
        *self = Self::default();
    }

    pub(super) fn key(&mut self, event: &KeyEvent, state: &mut State) -> KeyResult {
        if self.command {
            match action(COMMAND_KEYS, event) {
                None => return KeyResult::Ignored,
                Some(OnCommand::Close) => self.command = false,
                Some(OnCommand::Copy) => {
                    state.copied = command_line(&state.planner.answers).ok();
                    if state.copied.is_some() {
                        state.say(Role::Good, "copied, if this terminal allows it");
                    }
                }
            }
            return KeyResult::Handled;
        }
        let Some(act) = action(KEYS, event) else { return KeyResult::Ignored };
        let (page, most) = scrolling(state);
        match act {
            Action::Start if state.planner.plan.is_some() && state.planner.problem.is_none() => {
                return KeyResult::Start;
            }
            Action::Start => {}
            Action::Command => self.command = true,
            Action::Up => self.scroll = self.scroll.min(most).saturating_sub(1),
            Action::Down => self.scroll = (self.scroll + 1).min(most),
            Action::PageUp => self.scroll = self.scroll.min(most).saturating_sub(page),
            Action::PageDown => self.scroll = (self.scroll + page).min(most),
            Action::Save => return KeyResult::SavePreset,
        }
        KeyResult::Handled
    }

    pub(super) fn view(&self, state: &State, frame: &mut Frame<'_>, area: Rect, theme: &Theme) {
        let width = usize::from(area.width);
        let Some(plan) = &state.planner.plan else {
            let lines = match &state.planner.problem {
                Some(problem) => wrapped(theme, Role::Bad, &problem.text, width),
                None => not_yet(state, width, theme),
            };
            return draw(frame, area, lines);
        };
        let head = head(plan, state, area, theme);
        let [top, table] = parts(&head, area);
        draw(frame, top, head);
        let rows = table_rows(plan, width, theme);
        let height = visible_rows(table);
        let shown = from_row(self.scroll, rows.len(), height);
        let title = if rows.len() > height {
            format!("every value, {} to {} of {}", shown.start + 1, shown.end, rows.len())
        } else {
            "every value".to_owned()
        };
        let mut lines = vec![block(theme, &title, width)];
        lines.extend(rows[shown].to_vec());
        draw(frame, table, lines);
    }

    /// Draws the command line on a screen without anything else.
    pub(super) fn view_command(&self, state: &State, frame: &mut Frame<'_>, theme: &Theme) {
        let area = frame.area();
        let [head, text, foot] = area.layout(&Layout::vertical([
            Constraint::Length(1),
            Constraint::Min(1),
            Constraint::Length(1),
        ]));
        let width = usize::from(area.width);
        let mut lines = Vec::new();
        match command_line(&state.planner.answers) {
            Ok(command) => {
                let (rows, is_exact) = command::rows(&command, width);
                lines.extend(rows.into_iter().map(Line::raw));
                if !is_exact {
                    lines.push(Line::default());
                    let words = "A name in it contains control characters. They are escaped here, so the command line cannot be copied as it is.";
                    lines.extend(wrapped(theme, Role::Warn, words, width));
                }
            }
            Err(error) => lines.extend(wrapped(theme, Role::Bad, &error.to_string(), width)),
        }
        draw(frame, text, lines);
        if let Some((role, words)) = &state.notice {
            draw(frame, head, vec![inked(theme, *role, fit(words, width, theme))]);
        }
        frame.render_widget(hint_line(self.keys().hints, area.width, theme), foot);
    }
}

/// Returns the lines above the table: what will be done, or why nothing can be.
fn head(plan: &Plan, state: &State, area: Rect, theme: &Theme) -> Vec<Line<'static>> {
    let width = usize::from(area.width);
    let Some(problem) = &state.planner.problem else {
        return summary(plan, state, width, usize::from(area.height), theme);
    };
    let mut lines = wrapped(theme, Role::Bad, &problem.text, width);
    lines.truncate(usize::from(area.height / 2));
    lines
}

/// Returns the areas of the lines above the table and of the table with its title.
fn parts(head: &[Line<'_>], area: Rect) -> [Rect; 2] {
    area.layout(&Layout::vertical([Constraint::Length(head.len() as u16), Constraint::Min(3)]))
}

/// Returns the number of rows of the table that are visible below its title.
fn visible_rows(table: Rect) -> usize {
    usize::from(table.height).saturating_sub(1)
}

/// Returns the number of rows of a page, and the largest scroll offset.
fn scrolling(state: &State) -> (usize, usize) {
    let Some(plan) = &state.planner.plan else { return (1, 0) };
    let area = frame::body(state.size);
    let plain = Theme { colours: Colours::None, unicode: true };
    let [_, table] = parts(&head(plan, state, area, &plain), area);
    let rows = plan.advice.as_ref().map_or(0, |advice| advice.explain.len());
    let height = visible_rows(table);
    (height.max(1), rows.saturating_sub(height))
}

/// Describes what will be done, how long it takes and what it needs.
fn summary(plan: &Plan, state: &State, width: usize, height: usize, theme: &Theme) -> Vec<Line<'static>> {
    let mut lines = Vec::new();
    let label = |words: &str| ink(theme, Role::Dim, left(words, 8, theme));
    let room = width.saturating_sub(8);
    let rows_of = |name: &str, role: Role, words: &str, most: usize| {
        let rows = wrap(words, room);
        rows.into_iter()
            .take(most)
            .enumerate()
            .map(|(i, words)| {
                Line::from(vec![label(if i == 0 { name } else { "" }), ink(theme, role, words)])
            })
            .collect::<Vec<_>>()
    };
    let line =
        |name: &str, role: Role, words: &str| rows_of(name, role, words, if height < 14 { 1 } else { 2 });
    let model = state.model_ready().map_or_else(
        || plan.model.id.clone(),
        |found| {
            let fetch = match found.missing_bytes {
                0 => "already downloaded".to_owned(),
                missing => format!("{} to download", bytes(missing)),
            };
            format!(
                "{}, {} parameters, {fetch}",
                escape(&found.name),
                parameters(found.facts.text_parameters())
            )
        },
    );
    lines.extend(line("model", Role::Title, &model));
    // Line breaks in a name must not break the line on the screen.
    let paths: Vec<_> = plan.data.train.iter().map(|path| escape(&state.shown(path)).into_owned()).collect();
    let examples = state.data.ready().map_or_else(String::new, |data| {
        format!(
            ", {}, {}",
            counted(data.facts.examples, "example"),
            counted(data.facts.total_tokens, "token")
        )
    });
    lines.extend(line("data", Role::Title, &format!("{}{examples}", paths.join(", "))));
    let method = match plan.method {
        Method::Lora { rank, alpha, .. } => format!("LoRA of rank {rank}, alpha {alpha}"),
        Method::Full => "full fine-tuning".to_owned(),
        Method::Head => "only the MTP head".to_owned(),
    };
    let how = format!(
        "{method}; {}; packs of {} tokens, {} per step; MTP head {}",
        counted_epochs(plan.duration.epochs),
        count(plan.pack.length.into()),
        count(plan.batch.packs_per_step()),
        plan.mtp.word()
    );
    lines.extend(line("method", Role::Text, &how));
    if let Some(advice) = &plan.advice {
        let time = &advice.time;
        let words = format!(
            "{} for {}{}: {}",
            shown_s(time.total_s()),
            plan.duration.about(time.steps),
            counted(time.steps, "step"),
            basis(time)
        );
        lines.extend(line("time", Role::Accent, &words));
        let rows = if height >= 24 {
            3
        } else if height >= 14 {
            2
        } else {
            1
        };
        lines.extend(memory_lines(&advice.memory, None, width, rows, theme));
        if height >= 24 {
            lines.extend(wrapped(theme, Role::Dim, &time.formula, width));
        }
    }
    for warning in plan.warnings() {
        // What to do about it is at its end.
        lines.extend(rows_of("warning", Role::Warn, &escape(warning), usize::MAX));
    }
    let findings = state.data.ready().map(|data| data.report.findings()).unwrap_or_default();
    if let Some(first) = findings.first() {
        let others = match findings.len() - 1 {
            0 => String::new(),
            more => format!("{} about the data, the first: ", counted(more as u64 + 1, "finding")),
        };
        lines.extend(line("check", Role::Warn, &format!("{others}{first}")));
    }
    if state.recount.wait().is_some() {
        lines.push(inked(
            theme,
            Role::Dim,
            "the data is being counted again, because an answer changed how it is read",
        ));
    }
    lines.push(Line::default());
    lines
}

/// Returns one line for each value: its name, the value, its origin, and as much of its reason as fits.
fn table_rows(plan: &Plan, width: usize, theme: &Theme) -> Vec<Line<'static>> {
    let rows = plan.advice.as_ref().map(|advice| advice.explain.as_slice()).unwrap_or_default();
    let keys = rows.iter().map(|row| row.key.width()).max().unwrap_or(0).min(26);
    let values = if width < 100 { 18 } else { 28 };
    let reason = width.saturating_sub(keys + values + 6 + 6);
    rows.iter()
        .map(|row| {
            let value = if row.value.is_empty() {
                theme.glyph("–", "-").to_owned()
            } else {
                escape(&row.value).into_owned()
            };
            let own = if row.origin == Origin::BuiltIn { Role::Text } else { Role::Accent };
            Line::from(vec![
                ink(theme, Role::Dim, left(&row.key, keys, theme)),
                ink(theme, own, format!("  {}", left(&fit_end(&value, values, theme), values, theme))),
                ink(theme, own, format!("  {}", left(origin_word(row.origin), 6, theme))),
                ink(theme, Role::Dim, format!("  {}", fit(&escape(&row.reason), reason, theme))),
            ])
        })
        .collect()
}
