//! The second page, for the model: the catalog as a table, and an input line for any other model.
//!
//! Owns the cursor, the search and the input line. Enters: keys, and the listings that complete a path.
//! Leaves: the chosen model, whose facts the state requests. How the page looks is in `view`; what is
//! recommended is decided by the question.

mod view;

use crossterm::event::{KeyCode, KeyEvent};
use sparktune_app::files::Sought;
use sparktune_app::models::named;
use sparktune_app::questions::model::{ModelQuestion, OTHER};
use sparktune_plan::{Catalog, CatalogModel};

use super::keys::{COMPLETE, KeyResult, Keys, Typing, down, enter, first, last, stop, up};
use super::path_line::PathLine;
use super::request::{Response, Ticketed};
use super::state::State;
use crate::screen::{Binding, TextInput, action, key};

#[derive(Default)]
pub(super) struct ModelPage {
    selected: usize,
    search: TextInput,
    searching: bool,
    other: Option<PathLine>,
    /// The outlook for each model on this machine, with the current data.
    question: ModelQuestion,
    /// Go to the next page as soon as the model is found.
    eager: bool,
    /// Whether the user has moved the cursor or searched since the page was opened.
    is_moved: bool,
}

/// A row of the table.
#[derive(Debug, Clone, PartialEq)]
enum Row {
    Known(&'static CatalogModel),
    Named(String),
    Other,
}

impl Row {
    fn name(&self) -> Option<&str> {
        match self {
            Self::Known(model) => Some(&model.id),
            Self::Named(name) => Some(name),
            Self::Other => None,
        }
    }
}

#[derive(Debug, Clone, Copy)]
enum Action {
    Take,
    Up,
    Down,
    First,
    Last,
    Search,
    Other,
    Confirm,
    Again,
}

const KEYS: &[Binding<Action>] = &[
    enter("choose it; only its config.json is downloaded and checked", "choose", Action::Take),
    up("up", Action::Up),
    down("down", None, Action::Down),
    first(Action::First),
    last(Action::Last),
    Binding {
        keys: &[key(KeyCode::Char('/'))],
        shown: "/",
        help: "search",
        hint: Some("search"),
        action: Action::Search,
    },
    Binding {
        keys: &[key(KeyCode::Char('o'))],
        shown: "o",
        help: OTHER,
        hint: Some("other"),
        action: Action::Other,
    },
    Binding {
        keys: &[key(KeyCode::Char('y'))],
        shown: "y",
        help: "train a model of unknown architecture anyway",
        hint: None,
        action: Action::Confirm,
    },
    Binding {
        keys: &[key(KeyCode::Char('u'))],
        shown: "u",
        help: "check the model again",
        hint: None,
        action: Action::Again,
    },
];

const SEARCH_KEYS: &[Binding<Typing>] = &[
    enter("back to the list", "to the list", Typing::Take),
    stop("end the search and show all", "show all"),
];

const OTHER_KEYS: &[Binding<Typing>] =
    &[enter("check it", "check it", Typing::Take), COMPLETE, stop("back to the list", "back to the list")];

impl ModelPage {
    pub(super) fn keys(&self) -> Keys {
        match (&self.other, self.searching) {
            (Some(_), _) => Keys::typing(OTHER_KEYS),
            (None, true) => Keys::typing(SEARCH_KEYS),
            (None, false) => Keys::of(KEYS),
        }
    }

    /// Called when the page is opened, and when the content of its table has changed.
    pub(super) fn refresh(&mut self, state: &State) {
        let Some(machine) = state.machine.ready() else { return };
        let data = state.data.ready().map(|data| &data.facts);
        let found = state.model.ready().map(|found| &**found);
        self.question = ModelQuestion::new(&machine.facts, &machine.rates, data, found);
    }

    /// Called when the page is opened. Moves the cursor to the current answer or to the recommendation.
    pub(super) fn enter(&mut self, state: &State) {
        self.refresh(state);
        self.eager = false;
        self.is_moved = false;
        self.go_to_answer(state);
    }

    /// Moves the cursor to the current answer or to the recommendation.
    fn go_to_answer(&mut self, state: &State) {
        let answered = state.planner.answers.model.as_ref().map(|answer| answer.value.as_str());
        let wanted = answered.or_else(|| self.question.recommended());
        self.selected = self.rows(state).iter().position(|row| row.name() == wanted).unwrap_or(0);
    }

    /// Returns whether the cursor is where the user put it.
    pub(super) fn is_moved(&self) -> bool {
        self.is_moved
    }

    fn rows(&self, state: &State) -> Vec<Row> {
        let catalog = Catalog::shipped();
        let answered = state.planner.answers.model.iter().map(|answer| answer.value.clone());
        let given = answered.clone().filter(|name| catalog.find(name).is_none()).count();
        let recent = state.recent.ready().map(|recent| recent.models.clone()).unwrap_or_default();
        let mut others: Vec<String> = Vec::new();
        for name in answered.chain(recent).chain(state.demo.clone()) {
            if catalog.find(&name).is_none() && !others.contains(&name) {
                others.push(name);
            }
        }
        let sought = self.search.text().trim().to_lowercase();
        let known = catalog.models.iter().map(Row::Known);
        // The current model comes first, recently used ones and that of the demo last.
        let lately = others.split_off(given.min(others.len()));
        let rows = others.into_iter().map(Row::Named).chain(known).chain(lately.into_iter().map(Row::Named));
        let rows = rows.filter(|row| row.name().is_some_and(|name| name.to_lowercase().contains(&sought)));
        rows.chain([Row::Other]).collect()
    }

    pub(super) fn key(&mut self, event: &KeyEvent, state: &mut State) -> KeyResult {
        self.eager = false;
        if self.other.is_some() {
            return self.other_key(event, state);
        }
        if self.searching {
            return self.search_key(event, state);
        }
        let rows = self.rows(state);
        let last = rows.len() - 1;
        let Some(act) = action(KEYS, event) else {
            // Esc first ends a search.
            if event.code == KeyCode::Esc && !self.search.text().is_empty() {
                self.end_search(state);
                return KeyResult::Handled;
            }
            return KeyResult::Ignored;
        };
        self.is_moved |= matches!(act, Action::Up | Action::Down | Action::First | Action::Last);
        match act {
            Action::Take => return self.take(&rows, state),
            Action::Up => self.selected = self.selected.min(last).saturating_sub(1),
            Action::Down => self.selected = (self.selected + 1).min(last),
            Action::First => self.selected = 0,
            Action::Last => self.selected = last,
            Action::Search => self.searching = true,
            Action::Other => self.open_other(state),
            Action::Confirm => {
                match state.model.ready().and_then(|found| found.unknown_architecture.as_ref()) {
                    Some(_) => {
                        state.confirm_model();
                        return KeyResult::Next;
                    }
                    None => return KeyResult::Ignored,
                }
            }
            Action::Again => {
                let name = state.planner.answers.model.as_ref().map(|answer| answer.value.clone());
                if let (Some(name), Some(_)) = (name, state.model.failed()) {
                    state.choose_model(&name);
                }
            }
        }
        KeyResult::Handled
    }

    fn take(&mut self, rows: &[Row], state: &mut State) -> KeyResult {
        let Some(name) = rows.get(self.selected).and_then(Row::name) else {
            self.open_other(state);
            return KeyResult::Handled;
        };
        state.choose_model(name);
        // The row of a model that is in no catalog comes and goes with the answer, and moves all others.
        self.go_to_answer(state);
        self.eager = true;
        state.refresh_facts(super::Page::Model);
        self.go_on_if_found(state)
    }

    /// Goes to the next page once the facts that Enter waited for have arrived.
    pub(super) fn go_on_if_found(&mut self, state: &State) -> KeyResult {
        if self.eager && state.model_ready().is_some() {
            self.eager = false;
            return KeyResult::Next;
        }
        self.eager &= state.model.wait().is_some();
        KeyResult::Handled
    }

    fn open_other(&mut self, state: &mut State) {
        let mut words: Vec<String> = Catalog::shipped().models.iter().map(|model| model.id.clone()).collect();
        if let Some(recent) = state.recent.ready() {
            words.extend(
                recent.models.iter().filter(|name| !words.contains(name)).cloned().collect::<Vec<_>>(),
            );
        }
        let given = state.planner.answers.model.as_ref().map(|answer| answer.value.clone());
        let given = given.filter(|name| Catalog::shipped().find(name).is_none()).unwrap_or_default();
        self.other = Some(PathLine::new(given, Sought::Model, words, state));
    }

    fn other_key(&mut self, event: &KeyEvent, state: &mut State) -> KeyResult {
        let Some(line) = &mut self.other else { return KeyResult::Ignored };
        match action(OTHER_KEYS, event) {
            Some(Typing::Stop) => self.other = None,
            Some(Typing::Take) => {
                let typed = line.input.text().trim().to_owned();
                if typed.is_empty() {
                    self.other = None;
                    return KeyResult::Handled;
                }
                let name = match typed.strip_prefix('~') {
                    Some(_) => state.path(&typed).to_string_lossy().into_owned(),
                    None => named(&typed),
                };
                state.choose_model(&name);
                self.other = None;
                self.search.set("");
                self.go_to_answer(state);
                self.eager = true;
                state.refresh_facts(super::Page::Model);
                return self.go_on_if_found(state);
            }
            _ => {
                if !line.press(event, state) {
                    return KeyResult::Ignored;
                }
            }
        }
        KeyResult::Handled
    }

    fn search_key(&mut self, event: &KeyEvent, state: &State) -> KeyResult {
        self.is_moved = true;
        match action(SEARCH_KEYS, event) {
            Some(Typing::Take) => self.searching = false,
            Some(Typing::Stop) => self.end_search(state),
            _ if self.search.press(event) => self.selected = 0,
            _ => match event.code {
                KeyCode::Up => self.selected = self.selected.saturating_sub(1),
                KeyCode::Down => self.selected = (self.selected + 1).min(self.rows(state).len() - 1),
                _ => return KeyResult::Ignored,
            },
        }
        KeyResult::Handled
    }

    /// Shows all models again, with the cursor on the answer.
    fn end_search(&mut self, state: &State) {
        let under = self.rows(state).get(self.selected).and_then(|row| row.name().map(str::to_owned));
        let answered = state.planner.answers.model.as_ref().map(|answer| answer.value.clone());
        self.search.set("");
        self.searching = false;
        let rows = self.rows(state);
        let find = |name: Option<String>| rows.iter().position(|row| row.name() == name.as_deref());
        self.selected = find(under).or_else(|| find(answered)).unwrap_or(0);
    }

    pub(super) fn paste(&mut self, text: &str, state: &mut State) {
        match (&mut self.other, self.searching) {
            (Some(line), _) => line.paste(text, state),
            (None, true) => {
                self.search.paste(text);
                (self.selected, self.is_moved) = (0, true);
            }
            // Pasted text is most likely the name of another model.
            (None, false) => {
                self.open_other(state);
                if let Some(line) = &mut self.other {
                    line.input.set("");
                    line.paste(text, state);
                }
            }
        }
    }

    pub(super) fn receive(&mut self, response: &Ticketed<Response>) {
        if let (Some(line), Response::Listing(listing)) = (&mut self.other, &response.body) {
            line.receive(response.ticket, listing);
        }
    }
}
