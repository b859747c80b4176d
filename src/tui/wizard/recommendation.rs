//! The fourth page, for the settings: every value with its recommendation, its reason and its cost.

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::text::Line;
use sparktune_app::questions::plan::PlanAction;
use sparktune_base::escape::escape;
use sparktune_plan::{Answers, Origin, Setting};
use unicode_width::UnicodeWidthStr;

use super::cost::{Cost, curve_lines, memory_lines, time_lines};
use super::keys::{KeyResult, Keys, down, enter, up};
use super::lines::{block, draw, fit, ink, inked, left, window, wrapped};
use super::settings::{Now, explained, listed, name, now, origin_word, stepped};
use super::state::State;
use crate::screen::{Binding, Role, TextInput, Theme, action, key};

#[derive(Default)]
pub(super) struct PlanPage {
    all: bool,
    curve: bool,
    selected: usize,
    edit: Option<Edit>,
    /// The cost of the plan when the cursor moved to this row.
    was: Option<Cost>,
    /// The value that the row under the cursor would have without an answer.
    recommended: Option<String>,
}

/// A value that is being typed.
struct Edit {
    input: TextInput,
    before: Answers,
    problem: Option<String>,
}

#[derive(Debug, Clone, Copy)]
enum Action {
    GoOn,
    Up,
    Down,
    More,
    Less,
    Edit,
    Recommended,
    AllRecommended,
    All,
    Curve,
    Presets,
    Save,
}

const KEYS: &[Binding<Action>] = &[
    enter("continue with these values", "next", Action::GoOn),
    up("value above", Action::Up),
    down("value below", None, Action::Down),
    Binding {
        keys: &[
            key(KeyCode::Right),
            key(KeyCode::Char('l')),
            key(KeyCode::Char('+')),
            key(KeyCode::Char(' ')),
        ],
        shown: "→ l",
        help: "more, or the next choice",
        hint: None,
        action: Action::More,
    },
    Binding {
        keys: &[key(KeyCode::Left), key(KeyCode::Char('h'))],
        shown: "← h",
        help: "less, or the previous choice",
        hint: Some("change"),
        action: Action::Less,
    },
    Binding {
        keys: &[key(KeyCode::Char('e'))],
        shown: "0-9 e",
        help: "type a value; the plan changes as you type",
        hint: Some("type"),
        action: Action::Edit,
    },
    Binding {
        keys: &[key(KeyCode::Char('r')), key(KeyCode::Delete), key(KeyCode::Backspace)],
        shown: "r",
        help: "reset the value to the preset's or the recommended one",
        hint: Some("recommended"),
        action: Action::Recommended,
    },
    Binding {
        keys: &[key(KeyCode::Char('R'))],
        shown: "R",
        help: "reset all your own values",
        hint: None,
        action: Action::AllRecommended,
    },
    Binding {
        keys: &[key(KeyCode::Char('a'))],
        shown: "a",
        help: "show all settings, or only the essential ones",
        hint: Some("all"),
        action: Action::All,
    },
    Binding {
        keys: &[key(KeyCode::Char('c'))],
        shown: "c",
        help: "cost of every pack length",
        hint: Some("cost"),
        action: Action::Curve,
    },
    Binding {
        keys: &[key(KeyCode::Char('p'))],
        shown: "p",
        help: PlanAction::LoadPreset.label(),
        hint: Some("preset"),
        action: Action::Presets,
    },
    Binding {
        keys: &[key(KeyCode::Char('P'))],
        shown: "P",
        help: PlanAction::SavePreset.label(),
        hint: None,
        action: Action::Save,
    },
];

#[derive(Debug, Clone, Copy)]
enum Typing {
    Keep,
    Undo,
}

const EDIT_KEYS: &[Binding<Typing>] = &[
    Binding {
        keys: &[key(KeyCode::Enter), key(KeyCode::Tab), key(KeyCode::Up), key(KeyCode::Down)],
        shown: "⏎",
        help: "accept the value; an empty line restores the recommended one",
        hint: Some("keep it"),
        action: Typing::Keep,
    },
    Binding {
        keys: &[key(KeyCode::Esc)],
        shown: "esc",
        help: "restore the previous value",
        hint: Some("restore"),
        action: Typing::Undo,
    },
];

impl PlanPage {
    pub(super) fn keys(&self) -> Keys {
        if self.edit.is_some() { Keys::typing(EDIT_KEYS) } else { Keys::of(KEYS) }
    }

    /// Called when the page is opened.
    pub(super) fn enter(&mut self, state: &State) {
        self.edit = None;
        self.curve = false;
        self.go_to_problem(state);
        self.look(state, true);
    }

    /// Moves the cursor to the setting that causes the problem.
    fn go_to_problem(&mut self, state: &State) {
        let Some(key) = state.planner.problem.as_ref().and_then(|problem| problem.key) else { return };
        self.all |= listed(false).iter().all(|setting| setting.key != key);
        if let Some(at) = listed(self.all).iter().position(|setting| setting.key == key) {
            self.selected = at;
        }
    }

    fn setting(&self) -> &'static Setting {
        let listed = listed(self.all);
        listed[self.selected.min(listed.len() - 1)]
    }

    /// Computes the recommended value of the row under the cursor. With `reset_baseline`, cost changes are
    /// counted from now on.
    fn look(&mut self, state: &State, reset_baseline: bool) {
        let setting = self.setting();
        if reset_baseline {
            self.was = state.planner.plan.as_ref().and_then(Cost::of);
        }
        let plan = state.planner.plan_with(setting, None).and_then(Result::ok);
        self.recommended = explained(plan.as_ref(), setting.key).map(|row| row.value.clone());
    }

    /// Called when something other than a key has changed the plan.
    pub(super) fn refresh(&mut self, state: &State) {
        self.look(state, self.was.is_none());
    }

    pub(super) fn key(&mut self, event: &KeyEvent, state: &mut State) -> KeyResult {
        if self.edit.is_some() {
            return self.edit_key(event, state);
        }
        let setting = self.setting();
        let Some(act) = action(KEYS, event) else {
            return match event.code {
                KeyCode::Esc if self.curve => {
                    self.curve = false;
                    KeyResult::Handled
                }
                // A digit starts the input of a value.
                KeyCode::Char(c) if c.is_ascii_digit() || c == '.' || c == '-' => {
                    let alone =
                        event.modifiers & (KeyModifiers::CONTROL | KeyModifiers::ALT) == KeyModifiers::NONE;
                    if !alone || !setting.choices().is_empty() {
                        return KeyResult::Ignored;
                    }
                    self.begin(c.to_string(), state);
                    self.typed(state);
                    KeyResult::Handled
                }
                _ => KeyResult::Ignored,
            };
        };
        let last = listed(self.all).len() - 1;
        match act {
            Action::GoOn => return KeyResult::Next,
            Action::Up => self.go(self.selected.saturating_sub(1), state),
            Action::Down => self.go((self.selected + 1).min(last), state),
            Action::More => self.step(true, state),
            Action::Less => self.step(false, state),
            Action::Edit => {
                let text = now(setting, state.planner.plan.as_ref(), &state.planner.answers).value;
                self.begin(text, state);
            }
            Action::Recommended => {
                state.planner.take_back(setting);
                self.look(state, false);
            }
            Action::AllRecommended => {
                state.planner.take_back_all();
                state.say(Role::Accent, "all your own values were reset");
                self.look(state, false);
            }
            Action::All => {
                self.all = !self.all;
                let at = listed(self.all).iter().position(|other| other.key == setting.key);
                self.go(at.unwrap_or(0), state);
            }
            Action::Curve => self.curve = !self.curve,
            Action::Presets => return KeyResult::Presets,
            Action::Save => return KeyResult::SavePreset,
        }
        KeyResult::Handled
    }

    fn go(&mut self, to: usize, state: &State) {
        if to != self.selected {
            self.selected = to;
            self.look(state, true);
        }
    }

    fn step(&mut self, up: bool, state: &mut State) {
        let setting = self.setting();
        let value = now(setting, state.planner.plan.as_ref(), &state.planner.answers).value;
        let Some(next) = stepped(setting, &value, up) else {
            return state.say(Role::Dim, format!("e types a value: {}", setting.expects()));
        };
        if let Err(problem) = state.planner.try_answer(setting, &next) {
            state.say(Role::Bad, format!("{next} is not possible: {}", problem.text));
        }
        self.look(state, false);
    }

    fn begin(&mut self, text: String, state: &State) {
        self.look(state, true);
        self.edit =
            Some(Edit { input: TextInput::new(text), before: state.planner.answers.clone(), problem: None });
    }

    fn edit_key(&mut self, event: &KeyEvent, state: &mut State) -> KeyResult {
        let Some(edit) = &mut self.edit else { return KeyResult::Ignored };
        match action(EDIT_KEYS, event) {
            Some(Typing::Undo) => {
                state.planner.answers = edit.before.clone();
                state.replan();
                self.edit = None;
                self.look(state, false);
            }
            Some(Typing::Keep) => {
                // An invalid value has to be corrected or undone first.
                if edit.problem.is_none() {
                    self.edit = None;
                    self.look(state, false);
                }
            }
            None => {
                if !edit.input.press(event) {
                    return KeyResult::Ignored;
                }
                self.typed(state);
            }
        }
        KeyResult::Handled
    }

    /// Makes a new plan from the typed text.
    fn typed(&mut self, state: &mut State) {
        let setting = self.setting();
        let Some(edit) = &mut self.edit else { return };
        let text = edit.input.text().trim();
        let refused = state.planner.answer_as_typed(setting, text).err();
        // Removing an answer cannot be refused, but there may be no plan without it.
        let remaining = state.planner.problem.clone().filter(|_| text.is_empty());
        edit.problem = refused.or(remaining).map(|problem| problem.text);
    }

    pub(super) fn paste(&mut self, text: &str, state: &mut State) {
        if let Some(edit) = &mut self.edit {
            edit.input.paste(text);
            self.typed(state);
        }
    }

    pub(super) fn view(&self, state: &State, frame: &mut Frame<'_>, area: Rect, theme: &Theme) {
        if state.planner.plan.is_none() && state.planner.problem.is_none() {
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
        let rows = listed(self.all).len() as u16 + 2;
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
        let settings = listed(self.all);
        let names = settings.iter().map(|setting| name(setting).width()).max().unwrap_or(0);
        let names = names.min(width / 2);
        let height = usize::from(area.height).saturating_sub(1);
        let mut lines: Vec<_> = window(self.selected, settings.len(), height)
            .map(|at| self.row(settings[at], at == self.selected, names, width, state, theme))
            .collect();
        let words = if self.all {
            format!("{} settings; a shows the essential ones", settings.len())
        } else {
            "a shows all settings".to_owned()
        };
        lines.push(inked(theme, Role::Dim, fit(&words, width, theme)));
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
        let room = width.saturating_sub(names + 2 + 2 + 1 + words);
        let mut spans = vec![
            ink(theme, if at_fault { Role::Bad } else { Role::Accent }, mark),
            ink(theme, if selected { Role::Title } else { Role::Text }, left(&name(setting), names, theme)),
            ink(theme, Role::Text, "  "),
        ];
        match self.edit.as_ref().filter(|_| selected) {
            Some(edit) => spans.extend(edit.input.line((room + words) as u16, true, theme).spans),
            None => {
                let shown = if value.is_empty() {
                    theme.glyph("–", "-").to_owned()
                } else {
                    escape(&value).into_owned()
                };
                // Arrows are shown next to values that the arrow keys change.
                let moves = selected && stepped(setting, &value, true).is_some();
                let shown = if moves {
                    format!("{}{shown}{}", theme.glyph("◂ ", "< "), theme.glyph(" ▸", " >"))
                } else {
                    shown
                };
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
        let setting = self.setting();
        let high = height >= 28;
        let on_curve =
            setting.key == "pack.length" && self.edit.as_ref().is_none_or(|edit| edit.problem.is_none());
        let mut lines = Vec::new();
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
                let rows = match (high, compact || height < 14) {
                    (true, _) => 8,
                    (false, true) => 2,
                    (false, false) => 5,
                };
                lines.extend(memory_lines(&advice.memory, self.was, width, rows, theme));
            }
            lines.push(Line::default());
        }
        let rest = height.saturating_sub(lines.len());
        let mut about = self.about(setting, state, width, theme);
        let curve_rows = match (&state.planner.plan, high, on_curve) {
            _ if !with_curve => 0,
            (Some(_), true, _) => rest.saturating_sub(about.len().min(12) + 2),
            (Some(_), false, true) => rest.saturating_sub(about.len().min(4)).min(7),
            _ => 0,
        };
        about.truncate(rest.saturating_sub(curve_rows));
        lines.extend(about);
        if let (Some(plan), true) = (&state.planner.plan, curve_rows >= 4) {
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
        if let Some(problem) = &state.planner.problem {
            lines.extend(wrapped(theme, Role::Bad, &problem.text, width));
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

/// Explains why there is no plan to show.
pub(super) fn not_yet(state: &State, width: usize, theme: &Theme) -> Vec<Line<'static>> {
    let unfinished = [
        ("the machine", state.machine.wait(), state.machine.failed()),
        ("the model", state.model.wait(), state.model.failed()),
        ("the data", state.data.wait(), state.data.failed()),
    ];
    for (what, wait, failed) in unfinished {
        if let Some(problem) = failed {
            let mut lines = wrapped(theme, Role::Bad, problem, width);
            lines.push(inked(theme, Role::Dim, format!("esc goes back to {what}")));
            return lines;
        }
        if let Some(wait) = wait {
            return super::starting::progress_lines(
                wait,
                &format!("reading {what}"),
                state.now,
                width,
                theme,
            );
        }
    }
    wrapped(theme, Role::Warn, "A plan needs a model and data; esc goes back to them.", width)
}
