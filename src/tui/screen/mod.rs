//! Everything that full screens share: the terminal and its restoration, the event loop, colours, keys and
//! the input line.
//!
//! A screen is an [`App`]: its `update` takes one [`Input`] and changes its state, its `view` draws that
//! state and nothing else. Neither uses the terminal, so tests drive both without one.

mod clipboard;
mod keys;
mod popup;
mod run;
mod terminal;
mod text_input;
mod theme;

#[cfg(test)]
pub(crate) mod picture;

pub use keys::{Binding, Key, action, ctrl, help, hint_line, hints, key, rows, shift};
pub(crate) use popup::Popup;
pub use ratatui::Frame;
pub use run::{App, Input, Left, MIN_HEIGHT, MIN_WIDTH, Next, draw, run};
pub use terminal::{Terminal, can_fill_the_screen, end_by_signal, restore};
pub use text_input::TextInput;
pub use theme::{Colours, Role, Theme};
