//! Loading a preset, and saving the answers as one.

use crossterm::event::{KeyCode, KeyEvent};
use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::text::Line;
use sparktune_app::presets::{Preset, Saved, text};
use sparktune_app::questions::plan::{PRESET_ABOUT, PRESET_EXISTS, check_preset_name};
use sparktune_base::escape::escape;

use super::keys::{Keys, down, enter, up};
use super::lines::{fit, ink, inked, left, selected, window, wrap, wrapped};
use super::loading::Loading;
use super::request::{Request, Response, Ticketed};
use super::state::State;
use crate::screen::{Binding, Popup, Role, TextInput, Theme, action, key};

#[derive(Debug, Clone, Copy)]
enum Action {
    Take,
    Close,
    Up,
    Down,
}

const LIST_KEYS: &[Binding<Action>] = &[
    enter("load it", "load it", Action::Take),
    Binding {
        keys: &[key(KeyCode::Esc)],
        shown: "esc",
        help: "none",
        hint: Some("none"),
        action: Action::Close,
    },
    up("up", Action::Up),
    down("down", None, Action::Down),
];

/// The list of presets from which one can be loaded.
pub(super) struct PresetList {
    presets: Loading<Vec<Preset>>,
    selected: usize,
}

impl PresetList {
    pub(super) fn open(state: &mut State) -> Self {
        Self { presets: state.request(Request::Presets { also: None }), selected: 0 }
    }

    pub(super) fn keys(&self) -> Keys {
        Keys::of(LIST_KEYS)
    }

    pub(super) fn receive(&mut self, response: &Ticketed<Response>) {
        if let Response::Presets(presets) = &response.body {
            self.presets.answer(response.ticket, Ok(presets.clone()));
        }
    }

    /// Handles a key. Returns `None` when it means nothing here, and true when the list should be closed.
    pub(super) fn key(&mut self, event: &KeyEvent, state: &mut State) -> Option<bool> {
        let act = action(LIST_KEYS, event)?;
        let presets = self.presets.ready().map(Vec::as_slice).unwrap_or_default();
        match act {
            Action::Close => return Some(true),
            Action::Up => self.selected = self.selected.saturating_sub(1),
            Action::Down => self.selected = (self.selected + 1).min(presets.len().saturating_sub(1)),
            Action::Take => {
                let Some(preset) = presets.get(self.selected) else { return Some(true) };
                match load(preset, state) {
                    Ok(words) => state.say(Role::Accent, words),
                    Err(words) => state.say(Role::Bad, words),
                }
                return Some(true);
            }
        }
        Some(false)
    }

    pub(super) fn view(&self, frame: &mut Frame<'_>, area: Rect, theme: &Theme) {
        let width = usize::from(area.width).saturating_sub(8).min(86);
        let lines = match &self.presets {
            Loading::Ready(presets) => {
                let names = presets
                    .iter()
                    .map(|preset| preset.name.chars().count())
                    .max()
                    .unwrap_or(0)
                    .min(width / 3);
                let rows = usize::from(area.height).saturating_sub(6).max(1);
                // The description of the preset under the cursor is whole, the others are lines of a list.
                let lines_of = |at: usize| -> Vec<Line<'static>> {
                    let (name, label) = (escape(&presets[at].name), presets[at].label());
                    let (room, is_selected) = (width - names - 2, at == self.selected);
                    let label = escape(&label);
                    let parts = if is_selected { wrap(&label, room) } else { vec![fit(&label, room, theme)] };
                    let head = |n: usize| left(if n == 0 { &name } else { "" }, names, theme);
                    let line = |(n, part): (usize, String)| {
                        let name = ink(theme, Role::Title, head(n));
                        let line = Line::from(vec![name, ink(theme, Role::Text, format!("  {part}"))]);
                        if is_selected { selected(&line, line.width().max(1), theme) } else { line }
                    };
                    parts.into_iter().enumerate().map(line).collect()
                };
                window(self.selected, presets.len(), rows).flat_map(lines_of).collect()
            }
            _ => vec![inked(theme, Role::Dim, "looking for presets")],
        };
        Popup { title: "load a preset", role: Role::Accent, lines, keys: "" }.draw(frame, area, theme);
    }
}

/// Loads a preset. Returns a message about it, or the reason why it could not be loaded.
fn load(preset: &Preset, state: &mut State) -> Result<String, String> {
    let overriding = state.planner.use_preset(preset).map_err(|failure| failure.to_string())?;
    Ok(overriding.in_words(&preset.name, "R resets"))
}

/// Loads the preset of this name, which a draft or a flag gave.
pub(super) fn load_named(name: &str, presets: &[Preset], state: &mut State) -> Result<(), String> {
    match presets.iter().find(|preset| preset.name == name) {
        Some(preset) => load(preset, state).map(drop),
        None => Err(format!(
            "the preset {name} of the unfinished wizard no longer exists; its values were replaced by the recommended ones"
        )),
    }
}

#[derive(Debug, Clone, Copy)]
enum Naming {
    Save,
    Close,
}

const NAME_KEYS: &[Binding<Naming>] = &[
    enter("save; press again to replace an existing preset", "save", Naming::Save),
    Binding {
        keys: &[key(KeyCode::Esc)],
        shown: "esc",
        help: "do not save",
        hint: Some("do not save"),
        action: Naming::Close,
    },
];

/// The dialog for saving the answers under a name.
pub(super) struct SavePreset {
    name: TextInput,
    saved: Loading<Saved>,
    problem: Option<String>,
    /// The name of an existing preset about which the user was asked. Saving under this name again replaces
    /// it.
    exists: Option<String>,
}

impl SavePreset {
    pub(super) fn open() -> Self {
        Self { name: TextInput::default(), saved: Loading::Idle, problem: None, exists: None }
    }

    pub(super) fn keys(&self) -> Keys {
        Keys::typing(NAME_KEYS)
    }

    /// Handles a key. Returns `None` when it means nothing here, and true when the dialog should be closed.
    pub(super) fn key(&mut self, event: &KeyEvent, state: &mut State) -> Option<bool> {
        match action(NAME_KEYS, event) {
            Some(Naming::Close) => return Some(true),
            Some(Naming::Save) => self.save(state),
            None => {
                if !self.name.press(event) {
                    return None;
                }
                (self.problem, self.exists) = (None, None);
            }
        }
        Some(false)
    }

    pub(super) fn paste(&mut self, text: &str) {
        self.name.paste(text);
    }

    fn save(&mut self, state: &mut State) {
        let name = self.name.text().trim().to_owned();
        if let Err(problem) = check_preset_name(&name) {
            self.problem = Some(problem);
            return;
        }
        match text(&state.planner.answers, state.planner.plan.as_ref()) {
            Ok(toml) => {
                let replace = self.exists.as_ref() == Some(&name);
                self.saved = state.request(Request::SavePreset { name, toml, replace });
            }
            Err(failure) => self.problem = Some(failure.to_string()),
        }
    }

    /// Takes the result of saving. Returns true when the dialog should be closed.
    pub(super) fn receive(&mut self, response: &Ticketed<Response>, state: &mut State) -> bool {
        let Response::Saved(result) = &response.body else { return false };
        if !self.saved.answer(response.ticket, result.clone()) {
            return false;
        }
        match std::mem::take(&mut self.saved) {
            Loading::Ready(Saved::Written { path }) => {
                state.say(Role::Good, format!("saved: {}", state.shown(&path)));
                return true;
            }
            Loading::Ready(Saved::Exists { .. }) => self.exists = Some(self.name.text().trim().to_owned()),
            Loading::Failed(words) => self.problem = Some(words),
            _ => {}
        }
        false
    }

    pub(super) fn view(&self, frame: &mut Frame<'_>, area: Rect, theme: &Theme) {
        let width = usize::from(area.width).saturating_sub(8).min(64);
        let mut typed = vec![ink(theme, Role::Accent, "name: ")];
        typed.extend(self.name.line(width.saturating_sub(6) as u16, true, theme).spans);
        let mut lines = vec![Line::from(typed), Line::default()];
        if let Some(problem) = &self.problem {
            lines.extend(wrapped(theme, Role::Bad, problem, width));
        } else if self.exists.is_some() {
            let words = format!("{PRESET_EXISTS} Press Enter again to replace it.");
            lines.extend(wrapped(theme, Role::Warn, &words, width));
        } else {
            lines.extend(wrapped(theme, Role::Dim, PRESET_ABOUT, width));
        }
        Popup { title: "save as a preset", role: Role::Accent, lines, keys: "" }.draw(frame, area, theme);
    }
}
