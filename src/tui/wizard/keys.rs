//! Keys that mean the same on every page, and how a page describes its own keys.

use crossterm::event::{KeyCode, KeyModifiers};

use crate::screen::{Binding, ctrl, key, rows};

/// The result of a key press on a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum KeyResult {
    /// The key means nothing on this page, but may mean something on every page.
    Ignored,
    /// Something visible has changed.
    Handled,
    /// The question is answered; go to the next page.
    Next,
    /// Fill in the answers of the demo.
    Demo,
    /// Choose a preset.
    Presets,
    /// Save the answers as a preset.
    SavePreset,
    /// Start the run.
    Start,
}

/// The actions of keys that work on every page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Common {
    Next,
    Back,
    Leave,
    Help,
}

/// The key bindings of every page.
pub(super) const COMMON: &[Binding<Common>] = &[
    Binding {
        keys: &[key(KeyCode::Tab), (KeyCode::Right, KeyModifiers::ALT)],
        shown: "tab",
        help: "next question",
        hint: None,
        action: Common::Next,
    },
    Binding {
        keys: &[key(KeyCode::Esc), key(KeyCode::BackTab), (KeyCode::Left, KeyModifiers::ALT)],
        shown: "esc",
        help: "previous question (also shift-tab)",
        hint: Some("back"),
        action: Common::Back,
    },
    Binding {
        keys: &[key(KeyCode::Char('?')), key(KeyCode::F(1))],
        shown: "?",
        help: "this help; F1 while typing",
        hint: Some("keys"),
        action: Common::Help,
    },
    Binding {
        keys: &[key(KeyCode::Char('q')), ctrl('c')],
        shown: "q",
        help: "leave (asks first); your answers are saved",
        hint: Some("leave"),
        action: Common::Leave,
    },
];

/// What keys do while a line of text is typed.
#[derive(Debug, Clone, Copy)]
pub(super) enum Typing {
    Take,
    Stop,
    Complete,
}

/// `tab`, where a typed line can be completed.
pub(super) const COMPLETE: Binding<Typing> = Binding {
    keys: &[key(KeyCode::Tab)],
    shown: "tab",
    help: "complete",
    hint: Some("complete"),
    action: Typing::Complete,
};

/// `esc`, which ends typing without taking the line.
pub(super) const fn stop(help: &'static str, hint: &'static str) -> Binding<Typing> {
    Binding {
        keys: const { &[key(KeyCode::Esc)] },
        shown: "esc",
        help,
        hint: Some(hint),
        action: Typing::Stop,
    }
}

/// The binding of `⏎`.
pub(super) const fn enter<A>(help: &'static str, hint: &'static str, action: A) -> Binding<A> {
    Binding { keys: const { &[key(KeyCode::Enter)] }, shown: "⏎", help, hint: Some(hint), action }
}

/// The binding of `↑ k`.
pub(super) const fn up<A>(help: &'static str, action: A) -> Binding<A> {
    Binding {
        keys: const { &[key(KeyCode::Up), key(KeyCode::Char('k'))] },
        shown: "↑ k",
        help,
        hint: None,
        action,
    }
}

/// The binding of `↓ j`. Its hint describes both directions.
pub(super) const fn down<A>(help: &'static str, hint: Option<&'static str>, action: A) -> Binding<A> {
    Binding {
        keys: const { &[key(KeyCode::Down), key(KeyCode::Char('j'))] },
        shown: "↓ j",
        help,
        hint,
        action,
    }
}

/// The binding of `g`.
pub(super) const fn first<A>(action: A) -> Binding<A> {
    let keys = const { &[key(KeyCode::Home), key(KeyCode::Char('g'))] };
    Binding { keys, shown: "g", help: "first", hint: None, action }
}

/// The binding of `G`.
pub(super) const fn last<A>(action: A) -> Binding<A> {
    let keys = const { &[key(KeyCode::End), key(KeyCode::Char('G'))] };
    Binding { keys, shown: "G", help: "last", hint: None, action }
}

/// The binding of `pgup`.
pub(super) const fn page_up<A>(action: A) -> Binding<A> {
    Binding { keys: const { &[key(KeyCode::PageUp)] }, shown: "pgup", help: "page up", hint: None, action }
}

/// The binding of `pgdn` and the space bar.
pub(super) const fn page_down<A>(action: A) -> Binding<A> {
    let keys = const { &[key(KeyCode::PageDown), key(KeyCode::Char(' '))] };
    Binding { keys, shown: "pgdn", help: "page down", hint: None, action }
}

/// The keys that are active now, for the hint line and the help.
#[derive(Debug, Clone, Default)]
pub(super) struct Keys {
    pub hints: Vec<(&'static str, &'static str)>,
    pub rows: Vec<(&'static str, &'static str)>,
    /// Keys are typed as text, so those of every page are inactive.
    pub typing: bool,
}

impl Keys {
    /// Creates the keys from a table.
    pub(super) fn of<A>(table: &'static [Binding<A>]) -> Self {
        // Of a pair of keys, one carries the hint for both.
        let pair = |shown: &'static str| match shown {
            "← h" | "← b" => "← →",
            "↓ j" => "↑ ↓",
            shown => shown,
        };
        let hints = table.iter().filter_map(|binding| Some((pair(binding.shown), binding.hint?))).collect();
        Self { hints, rows: rows(table), typing: false }
    }

    /// Creates the keys from a table while a line of text is being typed.
    pub(super) fn typing<A>(table: &'static [Binding<A>]) -> Self {
        Self { typing: true, ..Self::of(table) }
    }
}
