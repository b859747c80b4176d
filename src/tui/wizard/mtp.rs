//! The fifth page, for the multi-token-prediction head.

use crossterm::event::{KeyCode, KeyEvent};
use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::text::Line;
use sparktune_app::questions::mtp::{MtpChoice, MtpQuestion, setting};
use sparktune_plan::{Mtp, Plan};

use super::cost::{basis, shown_s};
use super::keys::{KeyResult, Keys, down, enter, up};
use super::lines::{draw, fit, ink, inked, wrapped};
use super::no_plan::not_yet;
use super::state::State;
use crate::screen::{Binding, Role, Theme, action, key};

#[derive(Debug, Default)]
pub(super) struct MtpPage {
    question: Option<MtpQuestion>,
}

#[derive(Debug, Clone, Copy)]
enum Action {
    GoOn,
    Up,
    Down,
    Recommended,
}

const KEYS: &[Binding<Action>] = &[
    enter("continue with this choice", "next", Action::GoOn),
    up("choice above", Action::Up),
    down("choice below", Some("choose"), Action::Down),
    Binding {
        keys: &[key(KeyCode::Char('r'))],
        shown: "r",
        help: "back to the recommended one",
        hint: Some("recommended"),
        action: Action::Recommended,
    },
];

/// What of the page there is room for. The note of the choice that is taken always stands.
#[derive(Debug, Clone, Copy, Default)]
struct Room {
    explains: bool,
    all_notes: bool,
    gaps: bool,
}

/// From the most to the least that is shown.
const ROOMS: [Room; 3] = [
    Room { explains: true, all_notes: true, gaps: true },
    Room { explains: true, all_notes: true, gaps: false },
    Room { explains: true, all_notes: false, gaps: true },
];

impl MtpPage {
    pub(super) fn keys(&self) -> Keys {
        Keys::of(KEYS)
    }

    /// Returns whether the chosen model has a head to ask about.
    pub(super) fn is_asked(state: &State) -> bool {
        state.model_ready().is_none_or(|found| found.facts.has_mtp())
    }

    /// Called when the page is opened, and when the plan has changed.
    pub(super) fn refresh(&mut self, state: &State) {
        self.question = MtpQuestion::new(&state.planner);
    }

    fn recommended(&self) -> Option<Mtp> {
        self.question.as_ref()?.recommended
    }

    pub(super) fn key(&mut self, event: &KeyEvent, state: &mut State) -> KeyResult {
        let Some(act) = action(KEYS, event) else { return KeyResult::Ignored };
        let now = state.planner.plan.as_ref().map(|plan| plan.mtp);
        let at = Mtp::ALL.iter().position(|choice| Some(*choice) == now).unwrap_or(0);
        let chosen = match act {
            Action::GoOn => return KeyResult::Next,
            Action::Recommended => {
                state.planner.take_back(setting());
                return KeyResult::Handled;
            }
            Action::Up => Mtp::ALL[at.saturating_sub(1)],
            Action::Down => Mtp::ALL[(at + 1).min(Mtp::ALL.len() - 1)],
        };
        if Some(chosen) == now {
            return KeyResult::Handled;
        }
        if self.recommended() == Some(chosen) {
            state.planner.take_back(setting());
            if state.planner.plan.as_ref().is_some_and(|plan| plan.mtp == chosen) {
                return KeyResult::Handled;
            }
        }
        if let Err(problem) = state.planner.try_answer(setting(), chosen.word()) {
            state.say(Role::Bad, problem.text);
        }
        KeyResult::Handled
    }

    pub(super) fn view(&self, state: &State, frame: &mut Frame<'_>, area: Rect, theme: &Theme) {
        let width = usize::from(area.width);
        let (Some(plan), Some(question)) = (&state.planner.plan, &self.question) else {
            return draw(frame, area, not_yet(state, width, theme));
        };
        let height = usize::from(area.height);
        let mut fitting = ROOMS.into_iter().map(|room| self.lines(plan, question, width, room, theme));
        let lines = fitting.find(|lines| lines.len() <= height);
        draw(frame, area, lines.unwrap_or_else(|| self.lines(plan, question, width, Room::default(), theme)));
    }

    fn lines(
        &self,
        plan: &Plan,
        question: &MtpQuestion,
        width: usize,
        room: Room,
        theme: &Theme,
    ) -> Vec<Line<'static>> {
        let mut lines = Vec::new();
        if let Some(time) = plan.advice.as_ref().map(|advice| &advice.time) {
            let words = format!("whole run: {}, {}", shown_s(time.total_s()), basis(time));
            lines.push(inked(theme, Role::Text, fit(&words, width, theme)));
            lines.push(Line::default());
        }
        if room.explains {
            lines.extend(wrapped(theme, Role::Dim, &question.explanation, width));
            lines.push(Line::default());
        }
        for (i, choice) in question.choices.iter().enumerate() {
            if i > 0 && room.gaps {
                lines.push(Line::default());
            }
            lines.extend(self.choice(choice, plan.mtp == choice.value, width, room.all_notes, theme));
        }
        lines
    }

    fn choice(
        &self,
        choice: &MtpChoice,
        chosen: bool,
        width: usize,
        all_notes: bool,
        theme: &Theme,
    ) -> Vec<Line<'static>> {
        let mark = if chosen { theme.glyph("● ", "(*) ") } else { theme.glyph("○ ", "( ) ") };
        let star = if self.recommended() == Some(choice.value) { ", recommended" } else { "" };
        let title = format!("{mark}{}{star}", choice.value.word());
        let role = if chosen { Role::Accent } else { Role::Title };
        let mut lines = vec![Line::from(vec![
            ink(theme, role, title.clone()),
            ink(
                theme,
                Role::Text,
                fit(
                    &format!(": {}", choice.cost_in_words()),
                    width.saturating_sub(title.chars().count()),
                    theme,
                ),
            ),
        ])];
        let indent = 4;
        let shown = all_notes || chosen || choice.cost.is_err();
        let note = wrapped(theme, Role::Dim, choice.note(), width.saturating_sub(indent));
        for line in note.into_iter().filter(|_| shown) {
            let style = line.style;
            let spans = line.spans.into_iter().map(|span| span.patch_style(style));
            lines.push(Line::from(
                [ink(theme, Role::Dim, " ".repeat(indent))].into_iter().chain(spans).collect::<Vec<_>>(),
            ));
        }
        lines
    }
}
