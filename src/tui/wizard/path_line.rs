//! An input line for a path or a model id, with completion.

use std::path::PathBuf;

use crossterm::event::{KeyCode, KeyEvent};
use ratatui::text::Line;
use sparktune_app::files::{Listing, Sought, common_beginning, completions, split_typed};
use sparktune_base::escape::escape;

use super::lines::{fit, inked};
use super::loading::Loading;
use super::request::{Request, Ticket};
use super::state::State;
use crate::screen::{Role, TextInput, Theme};

/// The typed text and its completions.
#[derive(Debug)]
pub(super) struct PathLine {
    pub input: TextInput,
    /// What the path is wanted for.
    sought: Sought,
    /// Completions that are not paths: the ids of models.
    words: Vec<String>,
    /// The folder part of the typed path, and its listing.
    folder: Option<String>,
    listing: Loading<Listing>,
    /// The completions shown since the last Tab.
    pub offered: Vec<String>,
}

impl PathLine {
    pub(super) fn new(
        text: impl Into<String>,
        sought: Sought,
        words: Vec<String>,
        state: &mut State,
    ) -> Self {
        let mut line = Self {
            input: TextInput::new(text),
            sought,
            words,
            folder: None,
            listing: Loading::default(),
            offered: Vec::new(),
        };
        line.look(state);
        line
    }

    /// Returns the typed path.
    pub(super) fn path(&self, state: &State) -> PathBuf {
        state.path(self.input.text().trim())
    }

    /// Handles a key. Returns false when the key is not for an input line.
    pub(super) fn press(&mut self, event: &KeyEvent, state: &mut State) -> bool {
        if event.code == KeyCode::Tab {
            self.complete();
        } else if self.input.press(event) {
            self.offered.clear();
        } else {
            return false;
        }
        self.look(state);
        true
    }

    pub(super) fn paste(&mut self, text: &str, state: &mut State) {
        self.input.paste(text);
        self.offered.clear();
        self.look(state);
    }

    /// Takes the listing of the typed folder.
    pub(super) fn receive(&mut self, ticket: Ticket, listing: &Result<Listing, String>) -> bool {
        self.listing.answer(ticket, listing.clone())
    }

    /// Requests the listing of the typed folder.
    fn look(&mut self, state: &mut State) {
        let folder = split_typed(self.input.text()).0.to_owned();
        if self.folder.as_ref() != Some(&folder) {
            let path = if folder.is_empty() { state.folder.clone() } else { state.path(&folder) };
            self.listing = state.request(Request::List { folder: path });
            self.folder = Some(folder);
        }
    }

    /// Returns the completions of the text, in order.
    fn candidates(&self) -> Vec<String> {
        let text = self.input.text();
        let entries = self.listing.ready().map(|listing| listing.entries.as_slice()).unwrap_or_default();
        let words = self.words.iter().filter(|word| starts_with(word, text)).cloned();
        words.chain(completions(text, entries, self.sought)).collect()
    }

    fn complete(&mut self) {
        let candidates = self.candidates();
        match candidates.as_slice() {
            [] => self.offered.clear(),
            [one] => {
                self.input.set(one.as_str());
                self.offered.clear();
            }
            several => {
                let common = common_beginning(several);
                if common.len() > self.input.text().len() {
                    self.input.set(common);
                }
                self.offered = candidates;
            }
        }
    }

    /// Draws the completions in at most `rows` lines.
    pub(super) fn offers(&self, width: usize, rows: usize, theme: &Theme) -> Vec<Line<'static>> {
        let mut lines: Vec<_> = self
            .offered
            .iter()
            .take(rows)
            .map(|text| inked(theme, Role::Dim, fit(&escape(text), width, theme)))
            .collect();
        if self.offered.len() > rows && rows > 0 {
            let more = format!("and {} more", self.offered.len() - rows + 1);
            lines.truncate(rows - 1);
            lines.push(inked(theme, Role::Dim, more));
        }
        lines
    }
}

/// Compares without regard to case, for ids.
fn starts_with(word: &str, text: &str) -> bool {
    word.get(..text.len()).is_some_and(|start| start.eq_ignore_ascii_case(text))
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;
    use std::sync::mpsc;

    use crossterm::event::KeyModifiers;
    use sparktune_app::files::{Entry, EntryKind};
    use sparktune_plan::Answers;

    use super::*;

    fn entry(name: &str, kind: EntryKind) -> Entry {
        Entry { name: OsString::from(name), kind, bytes: None, is_data: false, is_model: false }
    }

    #[test]
    fn tab_completes_as_far_as_it_is_clear_and_then_offers() {
        let (outbox, requests) = mpsc::channel();
        let mut state = State::new(Answers::default(), "/desk".into(), Some("/home/me".into()), None, outbox);
        let mut line = PathLine::new("~/da", Sought::Data, vec!["Qwen/Qwen3.5-2B".into()], &mut state);
        let request = requests.try_iter().last().unwrap();
        assert_eq!(request.body, Request::List { folder: "/home/me/".into() });
        let entries = ["data-a", "data-b", "other"].map(|name| entry(name, EntryKind::Folder)).to_vec();
        let listing = Listing { folder: "/home/me".into(), entries, left_out: 0 };
        assert!(!line.receive(request.ticket + 1, &Ok(listing.clone())));
        assert!(line.receive(request.ticket, &Ok(listing)));
        let tab = KeyEvent::new(KeyCode::Tab, KeyModifiers::NONE);
        line.press(&tab, &mut state);
        assert_eq!((line.input.text(), line.offered.len()), ("~/data-", 2));
        line.press(&KeyEvent::new(KeyCode::Char('b'), KeyModifiers::NONE), &mut state);
        line.press(&tab, &mut state);
        assert_eq!(line.input.text(), "~/data-b/");
        assert_eq!(
            requests.try_iter().last().unwrap().body,
            Request::List { folder: "/home/me/data-b/".into() }
        );

        let mut line = PathLine::new("qwen", Sought::Model, vec!["Qwen/Qwen3.5-2B".into()], &mut state);
        line.press(&tab, &mut state);
        assert_eq!(line.input.text(), "Qwen/Qwen3.5-2B");
    }
}
