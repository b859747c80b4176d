//! The file browser: one folder at a time, with recently used files at the top, a filter, and an input line
//! for a path.
//!
//! Owns the folder, the cursor and the marks. Enters: keys, and the listings of folders. Leaves: requests for
//! listings, and in the end the chosen paths. How it looks is in `view`. It must not know what files hold.

mod view;

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use crossterm::event::{KeyCode, KeyEvent};
use sparktune_app::data_sets::is_elsewhere;
use sparktune_app::files::{Entry, EntryKind, Listing, Sought};

use super::keys::{COMPLETE, Keys, Typing, down, enter, first, last, stop, up};
use super::loading::Loading;
use super::path_line::PathLine;
use super::request::{Request, Response, Ticketed};
use super::state::State;
use crate::screen::{Binding, Role, TextInput, action, key};

/// The number of recently used files that are listed.
const RECENT: usize = 5;

/// A folder that is being browsed.
#[derive(Default)]
pub(super) struct Browser {
    /// The folder as requested; the listing has its absolute path.
    folder: PathBuf,
    listing: Loading<Listing>,
    selected: usize,
    /// The marked files, in the order in which they were marked.
    marked: Vec<PathBuf>,
    filter: TextInput,
    filtering: bool,
    typing: Option<PathLine>,
    /// The name of the folder that the user left for its parent; the cursor moves to it.
    came_from: Option<OsString>,
    /// Whether the user has moved the cursor in this folder.
    is_moved: bool,
}

/// The result of a key press.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Browsed {
    Passed,
    Done,
    /// The user chose these files and folders.
    Chosen(Vec<PathBuf>),
}

#[derive(Debug, Clone)]
enum Row {
    Recent(PathBuf),
    Up,
    Entry(Entry),
}

#[derive(Debug, Clone, Copy)]
enum Action {
    Take,
    Mark,
    Into,
    Parent,
    Up,
    Down,
    First,
    Last,
    Filter,
    Path,
    Again,
}

const KEYS: &[Binding<Action>] = &[
    enter("choose the file or the marked files; open the folder", "choose, open", Action::Take),
    Binding {
        keys: &[key(KeyCode::Char(' '))],
        shown: "space",
        help: "mark files, or a whole folder",
        hint: Some("mark"),
        action: Action::Mark,
    },
    Binding {
        keys: &[key(KeyCode::Right), key(KeyCode::Char('l'))],
        shown: "→ l",
        help: "open the folder",
        hint: None,
        action: Action::Into,
    },
    Binding {
        keys: &[key(KeyCode::Left), key(KeyCode::Char('h')), key(KeyCode::Backspace)],
        shown: "← h",
        help: "go to the parent folder",
        hint: None,
        action: Action::Parent,
    },
    Binding {
        keys: &[key(KeyCode::Char('/'))],
        shown: "/",
        help: "filter by name",
        hint: Some("filter"),
        action: Action::Filter,
    },
    Binding {
        keys: &[key(KeyCode::Char('o')), key(KeyCode::Char('~'))],
        shown: "o",
        help: "type a path",
        hint: Some("type a path"),
        action: Action::Path,
    },
    up("up", Action::Up),
    down("down", None, Action::Down),
    first(Action::First),
    last(Action::Last),
    Binding {
        keys: &[key(KeyCode::Char('u'))],
        shown: "u",
        help: "reload the folder",
        hint: None,
        action: Action::Again,
    },
];

const FILTER_KEYS: &[Binding<Typing>] =
    &[enter("back to the list", "to the list", Typing::Take), stop("show all", "show all")];

const PATH_KEYS: &[Binding<Typing>] = &[
    enter("choose it; a folder that ends in / is opened", "choose", Typing::Take),
    COMPLETE,
    stop("back to the list", "back to the list"),
];

impl Browser {
    pub(super) fn keys(&self) -> Keys {
        match (&self.typing, self.filtering) {
            (Some(_), _) => Keys::typing(PATH_KEYS),
            (None, true) => Keys::typing(FILTER_KEYS),
            (None, false) => Keys::of(KEYS),
        }
    }

    /// Opens the folder of the files chosen so far, or the working directory.
    pub(super) fn open(&mut self, state: &mut State) {
        if matches!(self.listing, Loading::Idle) {
            let chosen = state.planner.answers.data.as_ref().and_then(|answer| answer.value.first());
            let chosen = chosen.filter(|path| !is_elsewhere(path));
            let folder = chosen.and_then(|path| state.folder.join(path).parent().map(Path::to_owned));
            self.go(folder.unwrap_or_else(|| state.folder.clone()), state);
        }
    }

    fn go(&mut self, folder: PathBuf, state: &mut State) {
        self.listing = state.request(Request::List { folder: folder.clone() });
        self.folder = folder;
        self.selected = 0;
        self.is_moved = false;
        self.filter.set("");
        self.filtering = false;
    }

    fn here(&self) -> &Path {
        self.listing.ready().map_or(&self.folder, |listing| &listing.folder)
    }

    fn rows(&self, state: &State) -> Vec<Row> {
        let sought = self.filter.text().trim().to_lowercase();
        let mut rows = Vec::new();
        // Recently used files are listed only in the first folder.
        if sought.is_empty() && self.here() == state.folder {
            let recent = state.recent.ready().map(|recent| recent.data.as_slice()).unwrap_or_default();
            rows.extend(recent.iter().take(RECENT).cloned().map(Row::Recent));
        }
        if sought.is_empty() && self.here().parent().is_some() {
            rows.push(Row::Up);
        }
        let entries = self.listing.ready().map(|listing| listing.entries.as_slice()).unwrap_or_default();
        let mut entries: Vec<&Entry> = entries
            .iter()
            .filter(|entry| entry.name.to_string_lossy().to_lowercase().contains(&sought))
            .collect();
        // What cannot be read comes last.
        let order = |entry: &Entry| entry.rank(Sought::Data).unwrap_or(u8::MAX);
        entries.sort_by(|a, b| order(a).cmp(&order(b)).then_with(|| a.name.cmp(&b.name)));
        rows.extend(entries.into_iter().cloned().map(Row::Entry));
        rows
    }

    fn path_of(&self, row: &Row) -> Option<PathBuf> {
        match row {
            Row::Recent(path) => Some(path.clone()),
            Row::Up => None,
            Row::Entry(entry) => Some(self.here().join(&entry.name)),
        }
    }

    pub(super) fn key(&mut self, event: &KeyEvent, state: &mut State) -> Browsed {
        if self.typing.is_some() {
            return self.path_key(event, state);
        }
        if self.filtering {
            return self.filter_key(event, state);
        }
        let Some(act) = action(KEYS, event) else {
            if event.code == KeyCode::Esc && !self.filter.text().is_empty() {
                self.filter.set("");
                self.selected = 0;
                return Browsed::Done;
            }
            return Browsed::Passed;
        };
        let rows = self.rows(state);
        let last = rows.len().saturating_sub(1);
        self.selected = self.selected.min(last);
        let row = rows.get(self.selected);
        self.is_moved |= matches!(act, Action::Up | Action::Down | Action::First | Action::Last);
        match act {
            Action::Up => self.selected = self.selected.saturating_sub(1),
            Action::Down => self.selected = (self.selected + 1).min(last),
            Action::First => self.selected = 0,
            Action::Last => self.selected = last,
            Action::Filter => self.filtering = true,
            Action::Path => {
                let mut text = self.here().to_string_lossy().into_owned();
                if !text.ends_with('/') {
                    text.push('/');
                }
                let text = if event.code == KeyCode::Char('~') { "~/".to_owned() } else { text };
                self.typing = Some(PathLine::new(text, Sought::Data, Vec::new(), state));
            }
            Action::Again => self.go(self.here().to_owned(), state),
            Action::Parent => self.up(state),
            Action::Mark => {
                if let Some(path) = row.and_then(|row| self.path_of(row)) {
                    match self.marked.iter().position(|marked| *marked == path) {
                        Some(at) => drop(self.marked.remove(at)),
                        None => self.marked.push(path),
                    }
                    self.selected = (self.selected + 1).min(last);
                }
            }
            Action::Into => {
                if let Some(row @ Row::Entry(Entry { kind: EntryKind::Folder, .. })) = row {
                    self.go(self.path_of(row).unwrap_or_default(), state);
                }
            }
            Action::Take => return self.take(row.cloned(), state),
        }
        Browsed::Done
    }

    fn take(&mut self, row: Option<Row>, state: &mut State) -> Browsed {
        if !self.marked.is_empty() {
            return Browsed::Chosen(std::mem::take(&mut self.marked));
        }
        let Some(row) = row else { return Browsed::Done };
        match (&row, self.path_of(&row)) {
            // Who opens a folder without data by Enter and presses it again does not mean the folder above.
            (Row::Up, _) if !self.is_moved => {
                state.say(Role::Warn, "no data file in this folder; ← goes to the folder above it");
            }
            (Row::Up, _) => self.up(state),
            (Row::Entry(Entry { kind: EntryKind::Folder, .. }), Some(path)) => self.go(path, state),
            (_, Some(path)) => return Browsed::Chosen(vec![path]),
            (_, None) => {}
        }
        Browsed::Done
    }

    fn up(&mut self, state: &mut State) {
        let Some(parent) = self.here().parent().map(Path::to_owned) else { return };
        self.came_from = self.here().file_name().map(ToOwned::to_owned);
        self.go(parent, state);
    }

    fn filter_key(&mut self, event: &KeyEvent, state: &State) -> Browsed {
        match action(FILTER_KEYS, event) {
            Some(Typing::Take) => self.filtering = false,
            Some(Typing::Stop) => {
                self.filtering = false;
                self.filter.set("");
                self.selected = 0;
            }
            _ if self.filter.press(event) => self.selected = 0,
            _ => match event.code {
                KeyCode::Up => self.selected = self.selected.saturating_sub(1),
                KeyCode::Down => {
                    self.selected = (self.selected + 1).min(self.rows(state).len().saturating_sub(1));
                }
                _ => return Browsed::Passed,
            },
        }
        Browsed::Done
    }

    fn path_key(&mut self, event: &KeyEvent, state: &mut State) -> Browsed {
        let Some(line) = &mut self.typing else { return Browsed::Passed };
        match action(PATH_KEYS, event) {
            Some(Typing::Stop) => self.typing = None,
            Some(Typing::Take) => {
                let path = line.path(state);
                let is_open = line.input.text().ends_with('/');
                self.typing = None;
                if is_open {
                    self.go(path, state);
                } else if !path.as_os_str().is_empty() {
                    return Browsed::Chosen(vec![path]);
                }
            }
            _ => {
                if !line.press(event, state) {
                    return Browsed::Passed;
                }
            }
        }
        Browsed::Done
    }

    pub(super) fn paste(&mut self, text: &str, state: &mut State) {
        match (&mut self.typing, self.filtering) {
            (Some(line), _) => line.paste(text, state),
            (None, true) => self.filter.paste(text),
            (None, false) => {
                let text: String = text.trim().chars().filter(|c| !c.is_control()).collect();
                self.typing = Some(PathLine::new(text, Sought::Data, Vec::new(), state));
            }
        }
    }

    pub(super) fn receive(&mut self, response: &Ticketed<Response>, state: &State) {
        let Response::Listing(listing) = &response.body else { return };
        if let Some(line) = &mut self.typing {
            line.receive(response.ticket, listing);
        }
        if self.listing.answer(response.ticket, listing.clone()) {
            let rows = self.rows(state);
            let from = self.came_from.take();
            let is_from = |row: &Row| matches!(row, Row::Entry(entry) if Some(&entry.name) == from.as_ref());
            // Data comes first, because the user most likely looks for it.
            let is_data = |row: &Row| match row {
                Row::Recent(_) => true,
                Row::Up => false,
                Row::Entry(entry) => entry.is_data,
            };
            let at = rows.iter().position(is_from).or_else(|| rows.iter().position(is_data));
            self.selected = at.unwrap_or(0);
        }
    }
}
