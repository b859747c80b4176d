//! The two questions around the wizard: whether to continue a draft, and whether to leave.

use crossterm::event::{KeyCode, KeyEvent};
use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::text::Line;
use sparktune_app::draft::Draft;
use sparktune_base::escape::escape;
use sparktune_base::program_name;

use super::keys::Keys;
use super::lines::{fit, fit_end, inked, wrapped};
use super::state::State;
use crate::screen::{Binding, Popup, Role, Theme, action, key};

/// A question about the wizard itself.
pub(super) enum Leaving {
    /// Asks whether to continue an unfinished wizard.
    Continue(Box<Draft>),
    /// Asks whether to leave.
    Leave {
        /// What becomes of the answers.
        answers: AnswersAre,
        /// A run is being started.
        starting: bool,
    },
}

/// What becomes of the answers if the user leaves.
pub(super) enum AnswersAre {
    /// There are none.
    None,
    /// They are saved, and the next wizard offers to continue.
    Saved,
    /// The last changes are lost, because they could not be saved for this reason. The next wizard offers to
    /// continue with the answers that were saved before.
    SavedBefore(String),
    /// They are lost, because they could not be saved for this reason.
    Lost(String),
    /// They are not saved, because the draft of another wizard is kept.
    BesideDraft,
}

impl AnswersAre {
    /// Returns whether there is a draft of this wizard.
    fn can_be_deleted(&self) -> bool {
        matches!(self, Self::Saved | Self::SavedBefore(_))
    }
}

/// The chosen entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Choice {
    Continue,
    Anew,
    Stay,
    Leave { keep: bool },
}

const CONTINUE_KEYS: &[Binding<Choice>] = &[
    Binding {
        keys: &[key(KeyCode::Char('c')), key(KeyCode::Enter)],
        shown: "c",
        help: "continue where you left off",
        hint: Some("continue where you left off"),
        action: Choice::Continue,
    },
    Binding {
        keys: &[key(KeyCode::Char('n'))],
        shown: "n",
        help: "start over and delete the saved answers",
        hint: Some("start over"),
        action: Choice::Anew,
    },
    Binding {
        keys: &[key(KeyCode::Char('q')), key(KeyCode::Esc)],
        shown: "q",
        help: "leave; the saved answers are kept",
        hint: Some("leave"),
        action: Choice::Leave { keep: true },
    },
];

const LEAVE_KEYS: &[Binding<Choice>] = &[
    Binding {
        keys: &[key(KeyCode::Char('y')), key(KeyCode::Char('q')), key(KeyCode::Enter)],
        shown: "y",
        help: "leave",
        hint: Some("leave"),
        action: Choice::Leave { keep: true },
    },
    Binding {
        keys: &[key(KeyCode::Char('n')), key(KeyCode::Esc)],
        shown: "n",
        help: "stay",
        hint: Some("stay"),
        action: Choice::Stay,
    },
    Binding {
        keys: &[key(KeyCode::Char('d'))],
        shown: "d",
        help: "leave, and delete the answers",
        hint: Some("leave and delete the answers"),
        action: Choice::Leave { keep: false },
    },
];

impl Leaving {
    fn table(&self) -> &'static [Binding<Choice>] {
        match self {
            Self::Continue(_) => CONTINUE_KEYS,
            Self::Leave { answers, .. } if answers.can_be_deleted() => LEAVE_KEYS,
            Self::Leave { .. } => &LEAVE_KEYS[..2],
        }
    }

    pub(super) fn keys(&self) -> Keys {
        Keys::of(self.table())
    }

    pub(super) fn key(&self, event: &KeyEvent) -> Option<Choice> {
        action(self.table(), event)
    }

    /// Returns the choice for Ctrl-C while a question is open.
    pub(super) fn insisted(&self) -> Choice {
        Choice::Leave { keep: true }
    }

    pub(super) fn view(&self, state: &State, frame: &mut Frame<'_>, area: Rect, theme: &Theme) {
        let width = usize::from(area.width).saturating_sub(8).min(64);
        match self {
            Self::Continue(draft) => {
                let mut lines =
                    vec![inked(theme, Role::Text, "There is an unfinished wizard:"), Line::default()];
                let model = draft.answers.model.as_ref().map(|answer| answer.value.clone());
                let data = draft.answers.data.as_ref().and_then(|answer| answer.value.first());
                let data = data.map(|path| state.shown(path));
                for (name, value) in [("model  ", model), ("data   ", data)] {
                    if let Some(value) = value {
                        let value = fit_end(&escape(&value), width - name.len(), theme);
                        lines.push(inked(theme, Role::Title, format!("{name}{value}")));
                    }
                }
                lines.push(inked(
                    theme,
                    Role::Title,
                    fit(&format!("page   {}", draft.page.word()), width, theme),
                ));
                lines.push(Line::default());
                lines.push(inked(theme, Role::Text, "c  continue where you left off"));
                lines.push(inked(theme, Role::Text, "n  start over"));
                Popup { title: "continue?", role: Role::Accent, lines, keys: "" }.draw(frame, area, theme);
            }
            Self::Leave { answers, starting } => {
                let program = program_name();
                let mut words = match answers {
                    AnswersAre::Saved => {
                        format!("Your answers are saved: the next `{program}` offers to continue here.")
                    }
                    AnswersAre::None => {
                        "Nothing has been answered yet, so there is nothing to save.".to_owned()
                    }
                    AnswersAre::SavedBefore(why) => format!(
                        "Your last changes could not be saved and are lost when you leave: {why}\nThe next `{program}` offers to continue with the answers that were saved before."
                    ),
                    AnswersAre::Lost(why) => {
                        format!("Your answers could not be saved and are lost when you leave: {why}")
                    }
                    AnswersAre::BesideDraft => format!(
                        "The answers on these pages are not saved, so that those of your unfinished wizard are kept: the next `{program}` offers to continue that one."
                    ),
                };
                if *starting {
                    words.push_str(
                        "\nThe download stops; what has been downloaded is kept, and the next start continues.",
                    );
                }
                let mut lines = wrapped(theme, Role::Text, &words, width);
                lines.push(Line::default());
                lines.push(inked(theme, Role::Text, "y  leave"));
                lines.push(inked(theme, Role::Text, "n  stay"));
                if answers.can_be_deleted() {
                    lines.push(inked(theme, Role::Text, "d  leave and delete the answers"));
                }
                Popup { title: "leave the wizard?", role: Role::Accent, lines, keys: "" }
                    .draw(frame, area, theme);
            }
        }
    }
}
