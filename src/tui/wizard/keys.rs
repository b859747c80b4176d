//! Keys that mean the same on every page, and how a page tells of its own.

use crossterm::event::{KeyCode, KeyModifiers};

use crate::screen::{Binding, ctrl, key, rows};

/// What a page made of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum KeyResult {
    /// It means nothing on this page, and may mean something on every page.
    Ignored,
    /// It changed something that is shown.
    Handled,
    /// The question is answered: on to the next.
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

/// What keys do on every page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Common {
    Next,
    Back,
    Leave,
    Help,
}

/// Keys of every page.
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
        help: "previous question; shift-tab too",
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
        help: "leave; asks first, and keeps your answers",
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

/// `⏎`
pub(super) const fn enter<A>(help: &'static str, hint: &'static str, action: A) -> Binding<A> {
    Binding { keys: const { &[key(KeyCode::Enter)] }, shown: "⏎", help, hint: Some(hint), action }
}

/// `↑ k`
pub(super) const fn up<A>(help: &'static str, action: A) -> Binding<A> {
    Binding {
        keys: const { &[key(KeyCode::Up), key(KeyCode::Char('k'))] },
        shown: "↑ k",
        help,
        hint: None,
        action,
    }
}

/// `↓ j`; its hint speaks for both directions.
pub(super) const fn down<A>(help: &'static str, hint: Option<&'static str>, action: A) -> Binding<A> {
    Binding {
        keys: const { &[key(KeyCode::Down), key(KeyCode::Char('j'))] },
        shown: "↓ j",
        help,
        hint,
        action,
    }
}

/// `g`
pub(super) const fn first<A>(action: A) -> Binding<A> {
    let keys = const { &[key(KeyCode::Home), key(KeyCode::Char('g'))] };
    Binding { keys, shown: "g", help: "first", hint: None, action }
}

/// `G`
pub(super) const fn last<A>(action: A) -> Binding<A> {
    let keys = const { &[key(KeyCode::End), key(KeyCode::Char('G'))] };
    Binding { keys, shown: "G", help: "last", hint: None, action }
}

/// `pgup`
pub(super) const fn page_up<A>(action: A) -> Binding<A> {
    Binding {
        keys: const { &[key(KeyCode::PageUp)] },
        shown: "pgup",
        help: "a screen up",
        hint: None,
        action,
    }
}

/// `pgdn`, and the space bar.
pub(super) const fn page_down<A>(action: A) -> Binding<A> {
    let keys = const { &[key(KeyCode::PageDown), key(KeyCode::Char(' '))] };
    Binding { keys, shown: "pgdn", help: "a screen down", hint: None, action }
}

/// The keys that mean something now: for the hint line, and for the help.
#[derive(Debug, Clone, Default)]
pub(super) struct Keys {
    pub hints: Vec<(&'static str, &'static str)>,
    pub rows: Vec<(&'static str, &'static str)>,
    /// Keys are text here, so those of every page mean nothing.
    pub typing: bool,
}

impl Keys {
    /// Of a table.
    pub(super) fn of<A>(table: &'static [Binding<A>]) -> Self {
        // Of a pair of keys one carries the hint for both.
        let pair = |shown: &'static str| match shown {
            "← h" | "← b" => "← →",
            "↓ j" => "↑ ↓",
            shown => shown,
        };
        let hints = table.iter().filter_map(|binding| Some((pair(binding.shown), binding.hint?))).collect();
        Self { hints, rows: rows(table), typing: false }
    }

    /// Of a table, while a line of text is being typed.
    pub(super) fn typing<A>(table: &'static [Binding<A>]) -> Self {
        Self { typing: true, ..Self::of(table) }
    }
}
