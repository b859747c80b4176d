//! The key bindings of the list.

use crossterm::event::KeyCode;

use crate::screen::{Binding, Key, ctrl, key};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Do {
    Up,
    Down,
    PageUp,
    PageDown,
    First,
    Last,
    Watch,
    Resume,
    Again,
    Export,
    Stop,
    Delete,
    Filter,
    Order,
    Back,
    Help,
    Leave,
}

const fn c(c: char) -> Key {
    key(KeyCode::Char(c))
}

pub(super) const KEYS: &[Binding<Do>] = &[
    Binding {
        keys: &[key(KeyCode::Enter)],
        shown: "⏎",
        help: "watch it; leaving does not stop it",
        hint: Some("watch"),
        action: Do::Watch,
    },
    Binding {
        keys: &[c('r')],
        shown: "r",
        help: "resume it from its newest checkpoint",
        hint: Some("resume"),
        action: Do::Resume,
    },
    Binding {
        keys: &[c('n')],
        shown: "n",
        help: "a new run with its answers, which the wizard lets you change",
        hint: None,
        action: Do::Again,
    },
    Binding {
        keys: &[c('e')],
        shown: "e",
        help: "export its outputs again",
        hint: Some("export"),
        action: Do::Export,
    },
    Binding {
        keys: &[c('s')],
        shown: "s",
        help: "stop it after a checkpoint (asks first)",
        hint: Some("stop"),
        action: Do::Stop,
    },
    Binding {
        keys: &[c('x'), key(KeyCode::Delete)],
        shown: "x",
        help: "or del: delete it (asks twice)",
        hint: Some("delete"),
        action: Do::Delete,
    },
    Binding {
        keys: &[c('/')],
        shown: "/",
        help: "show only runs with these words in name, state or model",
        hint: Some("filter"),
        action: Do::Filter,
    },
    Binding {
        keys: &[c('o')],
        shown: "o",
        help: "sort by start, name, state, eval or size",
        hint: None,
        action: Do::Order,
    },
    Binding { keys: &[c('?')], shown: "?", help: "these keys", hint: Some("keys"), action: Do::Help },
    Binding {
        keys: &[c('q'), ctrl('c')],
        shown: "q",
        help: "leave; runs continue",
        hint: Some("leave"),
        action: Do::Leave,
    },
    Binding { keys: &[key(KeyCode::Up), c('k')], shown: "↑ k", help: "up", hint: None, action: Do::Up },
    Binding {
        keys: &[key(KeyCode::Down), c('j')], shown: "↓ j", help: "down", hint: None, action: Do::Down
    },
    Binding {
        keys: &[key(KeyCode::PageUp), ctrl('b')],
        shown: "page up",
        help: "page up",
        hint: None,
        action: Do::PageUp,
    },
    Binding {
        keys: &[key(KeyCode::PageDown), ctrl('f')],
        shown: "page down",
        help: "page down",
        hint: None,
        action: Do::PageDown,
    },
    Binding {
        keys: &[key(KeyCode::Home), c('g')],
        shown: "home g",
        help: "the first",
        hint: None,
        action: Do::First,
    },
    Binding {
        keys: &[key(KeyCode::End), c('G')],
        shown: "end G",
        help: "the last",
        hint: None,
        action: Do::Last,
    },
    Binding { keys: &[key(KeyCode::Esc)], shown: "esc", help: "show all runs", hint: None, action: Do::Back },
];

/// The action of a key while the filter is typed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Filtering {
    Keep,
    ShowAll,
}

/// The bindings while the filter is typed, which come before those of the list.
pub(super) const FILTER_KEYS: &[Binding<Filtering>] = &[
    Binding {
        keys: &[key(KeyCode::Enter)],
        shown: "⏎",
        help: "keep the filter",
        hint: Some("keep the filter"),
        action: Filtering::Keep,
    },
    Binding {
        keys: &[key(KeyCode::Esc)],
        shown: "esc",
        help: "show all runs",
        hint: Some("show all"),
        action: Filtering::ShowAll,
    },
];
