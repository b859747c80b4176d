//! The fourth page, for the settings: every value with its recommendation, its reason and its cost.
//!
//! Owns the cursor, and the value that is being typed. Enters: keys. Leaves: answers, each of which makes a
//! new plan at once. How the page looks is in `view`. No setting is known here by its name: the table of the
//! plan says which there are and how they change.

mod view;

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use sparktune_app::questions::plan::PlanAction;
use sparktune_plan::{Answers, Setting};

use super::cost::Cost;
use super::keys::{KeyResult, Keys, down, enter, first, last, page_up, stop, up};
use super::settings::{explained, is_found, listed, now, stepped, text_to_edit};
use super::state::State;
use crate::screen::{Binding, Role, TextInput, action, key};

#[derive(Default)]
pub(super) struct PlanPage {
    all: bool,
    curve: bool,
    selected: usize,
    edit: Option<Edit>,
    /// The words that all listed settings have; while it is open, keys are typed into it.
    search: TextInput,
    searching: bool,
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
    First,
    Last,
    PageUp,
    PageDown,
    Search,
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
    first(Action::First),
    last(Action::Last),
    page_up(Action::PageUp),
    Binding {
        keys: &[key(KeyCode::PageDown)],
        shown: "pgdn",
        help: "page down",
        hint: None,
        action: Action::PageDown,
    },
    Binding {
        keys: &[key(KeyCode::Char('/'))],
        shown: "/",
        help: "search all settings",
        hint: Some("search"),
        action: Action::Search,
    },
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

/// The rows that a page key moves by.
const PAGE: usize = 10;

#[derive(Debug, Clone, Copy)]
enum Typing {
    Keep,
    Undo,
}

#[derive(Debug, Clone, Copy)]
enum Curve {
    Close,
}

/// Above the cost of pack lengths, the list and its keys are not there.
const CURVE_KEYS: &[Binding<Curve>] = &[Binding {
    keys: &[key(KeyCode::Enter), key(KeyCode::Char('c')), key(KeyCode::Esc)],
    shown: "⏎ c esc",
    help: "back to the settings",
    hint: Some("back to the settings"),
    action: Curve::Close,
}];

const SEARCH_KEYS: &[Binding<super::keys::Typing>] = &[
    enter("back to the list", "to the list", super::keys::Typing::Take),
    stop("end the search", "end the search"),
];

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
        if self.edit.is_some() {
            Keys::typing(EDIT_KEYS)
        } else if self.curve {
            Keys::of(CURVE_KEYS)
        } else if self.searching {
            Keys::typing(SEARCH_KEYS)
        } else {
            Keys::of(KEYS)
        }
    }

    /// Returns whether a value is being typed.
    pub(super) fn is_typing(&self) -> bool {
        self.edit.is_some()
    }

    fn is_searched(&self) -> bool {
        self.searching || !self.search.text().is_empty()
    }

    /// Called when the page is opened.
    pub(super) fn enter(&mut self, state: &State) {
        self.edit = None;
        self.curve = false;
        self.search.set("");
        self.searching = false;
        self.go_to_problem(state);
        self.look(state, true);
    }

    /// Moves the cursor to the setting that causes the problem.
    fn go_to_problem(&mut self, state: &State) {
        let Some(key) = state.planner.problem.as_ref().and_then(|problem| problem.key) else { return };
        self.all |= listed(false, &state.planner.answers).iter().all(|setting| setting.key != key);
        if let Some(at) = self.listed(state).iter().position(|setting| setting.key == key) {
            self.selected = at;
        }
    }

    fn listed(&self, state: &State) -> Vec<&'static Setting> {
        if self.is_searched() {
            let mut found = listed(true, &state.planner.answers);
            found.retain(|setting| is_found(setting, self.search.text()));
            // Of a search that finds nothing, everything is left.
            if !found.is_empty() {
                return found;
            }
        }
        listed(self.all || self.is_searched(), &state.planner.answers)
    }

    fn setting(&self, state: &State) -> &'static Setting {
        let listed = self.listed(state);
        listed[self.selected.min(listed.len() - 1)]
    }

    /// Computes the recommended value of the row under the cursor. With `reset_baseline`, cost changes are
    /// counted from now on.
    fn look(&mut self, state: &State, reset_baseline: bool) {
        let setting = self.setting(state);
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
        if self.curve {
            if action(CURVE_KEYS, event).is_none() {
                return KeyResult::Ignored;
            }
            self.curve = false;
            return KeyResult::Handled;
        }
        if self.searching {
            return self.search_key(event, state);
        }
        let setting = self.setting(state);
        let Some(act) = action(KEYS, event) else {
            return match event.code {
                // Esc first ends a search.
                KeyCode::Esc if self.is_searched() => {
                    self.end_search(state);
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
        let last = self.listed(state).len() - 1;
        match act {
            Action::GoOn => return KeyResult::Next,
            Action::Up => self.go(self.selected.saturating_sub(1), state),
            Action::Down => self.go((self.selected + 1).min(last), state),
            Action::First => self.go(0, state),
            Action::Last => self.go(last, state),
            Action::PageUp => self.go(self.selected.saturating_sub(PAGE), state),
            Action::PageDown => self.go((self.selected + PAGE).min(last), state),
            Action::Search => {
                self.searching = true;
                let at = self.listed(state).iter().position(|other| other.key == setting.key);
                self.go(at.unwrap_or(0), state);
            }
            Action::More => self.step(true, state),
            Action::Less => self.step(false, state),
            Action::Edit => {
                let text = text_to_edit(setting, state.planner.plan.as_ref(), &state.planner.answers);
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
                let at = self.listed(state).iter().position(|other| other.key == setting.key);
                self.go(at.unwrap_or(0), state);
            }
            Action::Curve => self.curve = true,
            Action::Presets => return KeyResult::Presets,
            Action::Save => return KeyResult::SavePreset,
        }
        KeyResult::Handled
    }

    fn search_key(&mut self, event: &KeyEvent, state: &State) -> KeyResult {
        let last = self.listed(state).len() - 1;
        match action(SEARCH_KEYS, event) {
            Some(super::keys::Typing::Take) => self.searching = false,
            Some(_) => self.end_search(state),
            None if self.search.press(event) => self.go(0, state),
            None => match event.code {
                KeyCode::Up => self.go(self.selected.saturating_sub(1), state),
                KeyCode::Down => self.go((self.selected + 1).min(last), state),
                _ => return KeyResult::Ignored,
            },
        }
        self.look(state, true);
        KeyResult::Handled
    }

    /// Shows the list again, with the cursor on the setting that was found.
    fn end_search(&mut self, state: &State) {
        let found = self.setting(state);
        self.search.set("");
        self.searching = false;
        self.all |= listed(false, &state.planner.answers).iter().all(|setting| setting.key != found.key);
        let at = self.listed(state).iter().position(|setting| setting.key == found.key);
        self.go(at.unwrap_or(0), state);
    }

    fn go(&mut self, to: usize, state: &State) {
        if to != self.selected {
            self.selected = to;
            self.look(state, true);
        }
    }

    fn step(&mut self, up: bool, state: &mut State) {
        let setting = self.setting(state);
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
        let setting = self.setting(state);
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
        } else if self.searching {
            self.search.paste(text);
            self.go(0, state);
        }
    }
}
