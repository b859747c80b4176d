//! The keys of the dashboard. These tables serve both dispatch and help.

use crossterm::event::KeyCode;

use super::tab::Tab;
use crate::screen::{Binding, ctrl, key};

/// The action of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Do {
    Open(Tab),
    NextTab,
    PreviousTab,
    ZoomIn,
    ZoomOut,
    Older,
    Newer,
    Whole,
    Follow,
    Crosshair,
    /// An arrow key. It moves the crosshair if there is one, otherwise it pans.
    Left,
    Right,
    Log,
    Compare,
    CompareNone,
    Freeze,
    Scroll(Scroll),
    Stop,
    /// Talk to the model of a finished run.
    Talk,
    /// Ask the wizard's questions with this run's answers.
    Again,
    /// Choose what is copied into the clipboard.
    Copy,
    /// Show how the model is served.
    Serve,
    Checkpoint,
    Help,
    Leave,
}

/// The direction of scrolling in a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Scroll {
    Up,
    Down,
    PageUp,
    PageDown,
    Top,
    Bottom,
}

const fn bind(
    keys: &'static [crate::screen::Key],
    shown: &'static str,
    help: &'static str,
    hint: Option<&'static str>,
    action: Do,
) -> Binding<Do> {
    Binding { keys, shown, help, hint, action }
}

/// A binding without a help row of its own, because the row above it describes both.
const fn also(keys: &'static [crate::screen::Key], action: Do) -> Binding<Do> {
    bind(keys, "", "", None, action)
}

pub(super) const PANELS: &[Binding<Do>] = &[
    bind(
        &[key(KeyCode::Char('1'))],
        "1–6 tab",
        "charts, events, samples, step, machine, run",
        Some("panels"),
        Do::Open(Tab::Charts),
    ),
    also(&[key(KeyCode::Char('2'))], Do::Open(Tab::Events)),
    also(&[key(KeyCode::Char('3'))], Do::Open(Tab::Samples)),
    also(&[key(KeyCode::Char('4'))], Do::Open(Tab::Step)),
    also(&[key(KeyCode::Char('5'))], Do::Open(Tab::Machine)),
    also(&[key(KeyCode::Char('6'))], Do::Open(Tab::Facts)),
    also(&[key(KeyCode::Tab)], Do::NextTab),
    also(&[key(KeyCode::BackTab)], Do::PreviousTab),
    bind(
        &[key(KeyCode::Up)],
        "↑ ↓ pgup pgdn",
        "scroll a list; home and end go to the ends",
        None,
        Do::Scroll(Scroll::Up),
    ),
    also(&[key(KeyCode::Down)], Do::Scroll(Scroll::Down)),
    also(&[key(KeyCode::PageUp)], Do::Scroll(Scroll::PageUp)),
    also(&[key(KeyCode::PageDown)], Do::Scroll(Scroll::PageDown)),
    also(&[key(KeyCode::Home)], Do::Scroll(Scroll::Top)),
    also(&[key(KeyCode::End)], Do::Scroll(Scroll::Bottom)),
    bind(
        &[key(KeyCode::Char(' '))],
        "space",
        "freeze the screen, or follow the run again",
        Some("freeze"),
        Do::Freeze,
    ),
];

pub(super) const CHARTS: &[Binding<Do>] = &[
    bind(
        &[key(KeyCode::Char('+')), key(KeyCode::Char('='))],
        "+ - 0",
        "zoom in, out, whole run; f follows newest",
        Some("zoom"),
        Do::ZoomIn,
    ),
    also(&[key(KeyCode::Char('-'))], Do::ZoomOut),
    bind(&[key(KeyCode::Left)], "← → h l", "pan, or move the crosshair", None, Do::Left),
    also(&[key(KeyCode::Right)], Do::Right),
    also(&[key(KeyCode::Char('h'))], Do::Older),
    also(&[key(KeyCode::Char('l'))], Do::Newer),
    also(&[key(KeyCode::Char('0'))], Do::Whole),
    also(&[key(KeyCode::Char('f'))], Do::Follow),
    bind(&[key(KeyCode::Char('c'))], "c", "crosshair with values", Some("values"), Do::Crosshair),
    bind(&[key(KeyCode::Char('y'))], "y", "logarithmic loss", Some("log"), Do::Log),
    bind(
        &[key(KeyCode::Char('o'))],
        "o",
        "overlay other runs; O removes all of them",
        Some("compare"),
        Do::Compare,
    ),
    also(&[key(KeyCode::Char('O'))], Do::CompareNone),
];

pub(super) const RUN: &[Binding<Do>] = &[
    bind(&[key(KeyCode::Char('s'))], "s", "stop after a checkpoint (asks first)", Some("stop"), Do::Stop),
    bind(&[key(KeyCode::Char('w'))], "w", "save a checkpoint now", None, Do::Checkpoint),
    bind(
        &[key(KeyCode::Char('t'))],
        "t",
        "talk to the model; v shows how to serve it",
        Some("talk to it"),
        Do::Talk,
    ),
    bind(
        &[key(KeyCode::Char('n'))],
        "n",
        "new run with its answers; Y copies commands",
        Some("again"),
        Do::Again,
    ),
    also(&[key(KeyCode::Char('v'))], Do::Serve),
    also(&[key(KeyCode::Char('Y'))], Do::Copy),
    bind(&[key(KeyCode::Char('?'))], "?", "these keys", Some("keys"), Do::Help),
    bind(
        &[key(KeyCode::Char('q')), key(KeyCode::Esc), ctrl('c')],
        "q esc",
        "leave; a run that is training continues",
        Some("leave"),
        Do::Leave,
    ),
];

/// All bindings, in the order of the help.
pub(super) const GROUPS: [(&str, &[Binding<Do>]); 3] = [("look", PANELS), ("charts", CHARTS), ("run", RUN)];
