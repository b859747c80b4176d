//! The key bindings of the chat. Characters are typed, so all others have Ctrl or are no characters.

use crossterm::event::KeyCode;

use crate::screen::{Binding, ctrl, key};

/// The action of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Do {
    Send,
    Stop,
    Again,
    New,
    Thoughts,
    Earlier,
    Later,
    PageUp,
    PageDown,
    Help,
    /// Ends the answer, or leaves if there is none.
    StopOrLeave,
    /// Leaves if nothing is typed.
    Leave,
}

pub(super) const KEYS: &[Binding<Do>] = &[
    Binding {
        keys: &[key(KeyCode::Enter)],
        shown: "⏎",
        help: "say it",
        hint: Some("send"),
        action: Do::Send,
    },
    Binding {
        keys: &[key(KeyCode::Esc)],
        shown: "esc",
        help: "end the answer, or clear what is typed",
        hint: Some("stop"),
        action: Do::Stop,
    },
    Binding {
        keys: &[ctrl('r')],
        shown: "^r",
        help: "ask the last question in a new conversation",
        hint: None,
        action: Do::Again,
    },
    Binding { keys: &[ctrl('n')], shown: "^n", help: "new conversation", hint: Some("new"), action: Do::New },
    Binding {
        keys: &[ctrl('t')],
        shown: "^t",
        help: "show or hide what the model thinks",
        hint: Some("thoughts"),
        action: Do::Thoughts,
    },
    Binding {
        keys: &[key(KeyCode::PageUp)],
        shown: "pgup pgdn",
        help: "scroll",
        hint: Some("scroll"),
        action: Do::PageUp,
    },
    Binding { keys: &[key(KeyCode::PageDown)], shown: "", help: "", hint: None, action: Do::PageDown },
    Binding {
        keys: &[key(KeyCode::Up)],
        shown: "↑ ↓",
        help: "what was said before",
        hint: None,
        action: Do::Earlier,
    },
    Binding { keys: &[key(KeyCode::Down)], shown: "", help: "", hint: None, action: Do::Later },
    Binding {
        keys: &[key(KeyCode::F(1))],
        shown: "f1",
        help: "these keys and commands",
        hint: Some("help"),
        action: Do::Help,
    },
    Binding {
        keys: &[ctrl('c')],
        shown: "^c",
        help: "end the answer, or leave",
        hint: Some("leave"),
        action: Do::StopOrLeave,
    },
    Binding {
        keys: &[ctrl('d')],
        shown: "^d",
        help: "leave, if nothing is typed",
        hint: None,
        action: Do::Leave,
    },
];
