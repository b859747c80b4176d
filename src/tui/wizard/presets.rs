//! Loading a preset, and keeping the answers as one.

use crossterm::event::{KeyCode, KeyEvent};
use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::text::Line;
use sparktune_plan::presets::{OF_ONE_RUN, check_name, text};
use sparktune_plan::{Answers, Method, Origin};

use super::asked::Asked;
use super::desk::{Ask, PresetFound, Reply, SaveOutcome, Told};
use super::keys::{Keys, down, enter, up};
use super::lines::{fit, ink, inked, left, selected, window, wrapped};
use super::state::State;
use crate::escape::escape;
use crate::screen::{Binding, Popup, Role, TextInput, Theme, action, key};

#[derive(Debug, Clone, Copy)]
enum Act {
    Take,
    Close,
    Up,
    Down,
}

const LIST_KEYS: &[Binding<Act>] = &[
    enter("load it", "load it", Act::Take),
    Binding {
        keys: &[key(KeyCode::Esc)],
        shown: "esc",
        help: "none",
        hint: Some("none"),
        action: Act::Close,
    },
    up("up", Act::Up),
    down("down", None, Act::Down),
];

/// The presets there are, one of them to be loaded.
pub(super) struct PresetList {
    presets: Asked<Vec<PresetFound>>,
    selected: usize,
}

impl PresetList {
    pub fn open(state: &mut State) -> Self {
        Self { presets: state.expect(Ask::Presets { also: None }), selected: 0 }
    }

    pub fn keys(&self) -> Keys {
        Keys::of(LIST_KEYS)
    }

    pub fn told(&mut self, reply: &Reply) {
        if let Told::Presets(presets) = &reply.told {
            self.presets.answer(reply.ticket, Ok(presets.clone()));
        }
    }

    /// Takes a key; `None` when it means nothing here, true when the list is to be closed.
    pub fn key(&mut self, event: &KeyEvent, state: &mut State) -> Option<bool> {
        let act = action(LIST_KEYS, event)?;
        let presets = self.presets.here().map(Vec::as_slice).unwrap_or_default();
        match act {
            Act::Close => return Some(true),
            Act::Up => self.selected = self.selected.saturating_sub(1),
            Act::Down => self.selected = (self.selected + 1).min(presets.len().saturating_sub(1)),
            Act::Take => {
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

    pub fn view(&self, frame: &mut Frame<'_>, area: Rect, theme: &Theme) {
        let width = usize::from(area.width).saturating_sub(8).min(86);
        let lines = match &self.presets {
            Asked::Here(presets) => {
                let names = presets
                    .iter()
                    .map(|preset| preset.name.chars().count())
                    .max()
                    .unwrap_or(0)
                    .min(width / 3);
                let rows = usize::from(area.height).saturating_sub(6).max(1);
                let row = |at: usize| {
                    let preset = &presets[at];
                    let about = match (&preset.toml, preset.shipped) {
                        (Err(problem), _) => format!("cannot be read: {problem}"),
                        (Ok(_), true) => preset.about.clone(),
                        (Ok(_), false) if preset.about.is_empty() => "your own".to_owned(),
                        (Ok(_), false) => format!("your own: {}", preset.about),
                    };
                    let line = Line::from(vec![
                        ink(theme, Role::Title, left(&escape(&preset.name), names, theme)),
                        ink(
                            theme,
                            Role::Text,
                            format!("  {}", fit(&escape(&about), width - names - 2, theme)),
                        ),
                    ]);
                    if at == self.selected { selected(&line, line.width().max(1), theme) } else { line }
                };
                window(self.selected, presets.len(), rows).map(row).collect()
            }
            _ => vec![inked(theme, Role::Dim, "looking for presets")],
        };
        Popup { title: "load a preset", role: Role::Accent, lines, keys: "" }.draw(frame, area, theme);
    }
}

/// Puts a preset in the place of the last one. What the user said in other ways still counts more.
fn load(preset: &PresetFound, state: &mut State) -> Result<String, String> {
    let toml =
        preset.toml.as_ref().map_err(|problem| format!("{} cannot be read: {problem}", preset.name))?;
    let loaded = Answers::from_toml(toml, Origin::Preset, &preset.name).map_err(|error| error.to_string())?;
    Ok(match state.use_preset(&preset.name, loaded) {
        0 => format!("preset {} is loaded", preset.name),
        1 => format!("preset {} is loaded; one value of your own counts more (R takes it back)", preset.name),
        n => {
            format!("preset {} is loaded; {n} values of your own count more (R takes them back)", preset.name)
        }
    })
}

/// Loads the preset of this name, as a draft or a flag has it.
pub(super) fn load_named(name: &str, presets: &[PresetFound], state: &mut State) -> Result<(), String> {
    match presets.iter().find(|preset| preset.name == name) {
        Some(preset) => load(preset, state).map(drop),
        None => Err(format!(
            "the preset {name} of the unfinished wizard is gone: its values are the recommended ones"
        )),
    }
}

#[derive(Debug, Clone, Copy)]
enum Naming {
    Save,
    Close,
}

const NAME_KEYS: &[Binding<Naming>] = &[
    enter("save; once more replaces an older one", "save", Naming::Save),
    Binding {
        keys: &[key(KeyCode::Esc)],
        shown: "esc",
        help: "do not save",
        hint: Some("do not save"),
        action: Naming::Close,
    },
];

/// The answers about to be kept under a name.
pub(super) struct SavePreset {
    name: TextInput,
    saved: Asked<SaveOutcome>,
    problem: Option<String>,
    /// One of this name exists, and the user was told.
    exists: Option<String>,
}

impl SavePreset {
    pub fn open() -> Self {
        Self { name: TextInput::default(), saved: Asked::Not, problem: None, exists: None }
    }

    pub fn keys(&self) -> Keys {
        Keys::typing(NAME_KEYS)
    }

    /// Takes a key; `None` when it means nothing here, true when this is to be closed.
    pub fn key(&mut self, event: &KeyEvent, state: &mut State) -> Option<bool> {
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

    pub fn paste(&mut self, text: &str) {
        self.name.paste(text);
    }

    fn save(&mut self, state: &mut State) {
        let name = self.name.text().trim().to_owned();
        if let Err(error) = check_name(&name) {
            self.problem = Some(error.to_string());
            return;
        }
        let answers = state.answers.without(|_, name| OF_ONE_RUN.contains(&name));
        match text(&about(state), &answers) {
            Ok(toml) => {
                let replace = self.exists.as_ref() == Some(&name);
                self.saved = state.expect(Ask::SavePreset { name, toml, replace });
            }
            Err(error) => self.problem = Some(error.to_string()),
        }
    }

    /// Takes what became of it; true when this is to be closed.
    pub fn told(&mut self, reply: &Reply, state: &mut State) -> bool {
        let Told::Saved(result) = &reply.told else { return false };
        if !self.saved.answer(reply.ticket, result.clone()) {
            return false;
        }
        match std::mem::take(&mut self.saved) {
            Asked::Here(SaveOutcome::Saved { path }) => {
                state.say(Role::Good, format!("saved: {}", state.shown(&path)));
                return true;
            }
            Asked::Here(SaveOutcome::Exists { .. }) => self.exists = Some(self.name.text().trim().to_owned()),
            Asked::Failed(words) => self.problem = Some(words),
            _ => {}
        }
        false
    }

    pub fn view(&self, frame: &mut Frame<'_>, area: Rect, theme: &Theme) {
        let width = usize::from(area.width).saturating_sub(8).min(64);
        let mut typed = vec![ink(theme, Role::Accent, "name: ")];
        typed.extend(self.name.line(width.saturating_sub(6) as u16, true, theme).spans);
        let mut lines = vec![Line::from(typed), Line::default()];
        if let Some(problem) = &self.problem {
            lines.extend(wrapped(theme, Role::Bad, problem, width));
        } else if self.exists.is_some() {
            let words = "There is a preset of this name. Enter once more replaces it.";
            lines.extend(wrapped(theme, Role::Warn, words, width));
        } else {
            let words = "Keeps what you, your files and the preset have said; model and data are left out.";
            lines.extend(wrapped(theme, Role::Dim, words, width));
        }
        Popup { title: "save as a preset", role: Role::Accent, lines, keys: "" }.draw(frame, area, theme);
    }
}

/// A line about the present plan, to recognise the preset by.
fn about(state: &State) -> String {
    match &state.plan {
        Some(plan) => match plan.method {
            Method::Lora { rank, .. } => format!("LoRA of rank {rank}, pack length {}", plan.pack.length),
            Method::Full => format!("full fine-tuning, pack length {}", plan.pack.length),
        },
        None => "saved in the wizard".into(),
    }
}
