//! The questions before an action that cannot be undone: stopping asks once, deleting twice.

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::text::{Line, Span};
use sparktune_base::escape::escape;
use sparktune_base::units::{bytes, counted};
use sparktune_runlog::{Checkpoints, RunDir};

use crate::screen::{Popup, Role, TextInput, Theme};
use crate::wrap::wrap;

/// The largest width of a line in columns.
const WIDEST: usize = 86;

/// An open question.
#[derive(Debug)]
pub(super) struct Ask {
    run: RunDir,
    stage: Stage,
}

#[derive(Debug)]
enum Stage {
    Stop,
    /// Asks the first time, with a description of what would be lost.
    Delete(String),
    /// Asks the second time: the user has to type the end of the name.
    DeleteForGood {
        word: String,
        typed: TextInput,
        wrong: bool,
    },
}

/// The result of a key press.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// The question is still open.
    Asking,
    /// The user declined.
    No,
    /// The user agreed to stop this run.
    Stop(RunDir),
    /// The user agreed twice to delete this run.
    Delete(RunDir),
}

impl Ask {
    pub(super) fn stop(run: &RunDir) -> Self {
        Ask { run: run.clone(), stage: Stage::Stop }
    }

    pub(super) fn delete(run: &RunDir, size_bytes: u64) -> Self {
        let checkpoints = Checkpoints::new(run).steps().map_or(0, |steps| steps.len());
        let outputs = outputs(run);
        let outputs = if outputs.is_empty() { "no outputs".to_owned() } else { outputs.join(", ") };
        let checkpoints = counted(checkpoints as u64, "checkpoint");
        let loss = format!("{} with {checkpoints} and {outputs}", bytes(size_bytes));
        Ask { run: run.clone(), stage: Stage::Delete(loss) }
    }

    pub(super) fn press(&mut self, event: &KeyEvent) -> Answer {
        let plain = !event.modifiers.intersects(KeyModifiers::CONTROL | KeyModifiers::ALT);
        let yes = plain && matches!(event.code, KeyCode::Char('y' | 'Y'));
        match &mut self.stage {
            Stage::Stop if yes => Answer::Stop(self.run.clone()),
            Stage::Delete(_) if yes => {
                let word = word_to_type(&self.run.name());
                self.stage = Stage::DeleteForGood { word, typed: TextInput::default(), wrong: false };
                Answer::Asking
            }
            Stage::DeleteForGood { word, typed, wrong } => match event.code {
                KeyCode::Esc => Answer::No,
                KeyCode::Char('c') if !plain => Answer::No,
                KeyCode::Enter if typed.text() == word => Answer::Delete(self.run.clone()),
                KeyCode::Enter => {
                    *wrong = true;
                    Answer::Asking
                }
                _ => {
                    typed.press(event);
                    *wrong = false;
                    Answer::Asking
                }
            },
            _ => Answer::No,
        }
    }

    pub(super) fn paste(&mut self, text: &str) {
        if let Stage::DeleteForGood { typed, .. } = &mut self.stage {
            typed.paste(text);
        }
    }

    /// Returns the message after the user declined.
    pub(super) fn kept(&self) -> String {
        let name = self.run.name();
        let name = escape(&name);
        match self.stage {
            Stage::Stop => format!("{name} continues"),
            _ => format!("{name} was not deleted"),
        }
    }

    pub(super) fn draw(&self, frame: &mut Frame<'_>, area: Rect, theme: &Theme) {
        let room = usize::from(area.width).saturating_sub(4).min(WIDEST);
        let in_role = |text: &str, role| {
            wrap(text, room).into_iter().map(move |line| Line::styled(line, theme.style(role)))
        };
        let name = self.run.name();
        let name = escape(&name);
        let dim = |text: &str| Line::styled(text.to_owned(), theme.style(Role::Dim));
        let keys = |yes: &str, no: &str| {
            let accent = theme.style(Role::Accent);
            let (yes, no) = (format!(" {yes}    "), format!(" {no}"));
            Line::from(vec![
                Span::styled("y", accent),
                yes.into(),
                Span::styled("any other key", accent),
                no.into(),
            ])
        };
        let (title, role, below) = match &self.stage {
            Stage::Stop => (
                "stop this run?",
                Role::Warn,
                vec![
                    dim("It saves a checkpoint and ends; r resumes it from there."),
                    Line::default(),
                    keys("stop it", "keep it running"),
                ],
            ),
            Stage::Delete(loss) => (
                "delete this run?",
                Role::Bad,
                in_role(loss, Role::Text)
                    .chain([dim("This cannot be undone."), Line::default(), keys("delete it", "keep it")])
                    .collect(),
            ),
            Stage::DeleteForGood { word, typed, wrong } => {
                let accent = theme.style(Role::Accent);
                let mut input = vec![Span::styled(theme.glyph("› ", "> "), accent)];
                input.extend(typed.line(24, true, theme).spans);
                let under = if *wrong {
                    Line::styled("that does not match; nothing was deleted", theme.style(Role::Warn))
                } else {
                    dim("Enter deletes it permanently, Esc keeps it")
                };
                let what = if name.ends_with(word.as_str()) { "the end of its name, " } else { "" };
                let ask = vec![
                    Span::raw(format!("Type {what}")),
                    Span::styled(word.clone(), accent),
                    Span::raw(":"),
                ];
                ("delete it permanently?", Role::Bad, vec![Line::from(ask), Line::from(input), under])
            }
        };
        let lines = in_role(&name, Role::Title).chain(below).collect();
        Popup { title, role, lines, keys: "" }.draw(frame, area, theme);
    }
}

/// Lists the contents of `outputs/`, escaped, ordered by name.
pub(super) fn outputs(run: &RunDir) -> Vec<String> {
    let entries = std::fs::read_dir(run.outputs()).into_iter().flatten().flatten();
    let mut names: Vec<String> =
        entries.map(|entry| escape(&entry.file_name().to_string_lossy()).into_owned()).collect();
    names.sort();
    names
}

/// Returns the last four characters of the name, or a plain word if some keyboards cannot type them.
fn word_to_type(name: &str) -> String {
    let end: Vec<char> = name.chars().rev().take(4).collect();
    if end.len() == 4 && end.iter().all(char::is_ascii_alphanumeric) {
        end.into_iter().rev().collect()
    } else {
        "delete".to_owned()
    }
}
