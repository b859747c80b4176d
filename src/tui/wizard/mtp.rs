//! The fifth page: what becomes of the multi-token-prediction head.

use crossterm::event::{KeyCode, KeyEvent};
use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::text::Line;
use sparktune_plan::render::parameters;
use sparktune_plan::{Mtp, Setting};

use super::cost::{basis, shown_s, total_s};
use super::keys::{Did, Keys, down, enter, up};
use super::lines::{draw, fit, ink, inked, wrapped};
use super::recommendation::not_yet;
use super::state::State;
use crate::screen::{Binding, Role, Theme, action, key};

#[derive(Debug, Default)]
pub(super) struct MtpPage {
    /// Seconds that each choice takes, where they can be told, or why it cannot be had.
    costs: Vec<(Mtp, Result<Option<f64>, String>)>,
    recommended: Option<Mtp>,
}

#[derive(Debug, Clone, Copy)]
enum Act {
    GoOn,
    Up,
    Down,
    Recommended,
}

const KEYS: &[Binding<Act>] = &[
    enter("go on with this choice", "go on", Act::GoOn),
    up("choice above", Act::Up),
    down("choice below", Some("choose"), Act::Down),
    Binding {
        keys: &[key(KeyCode::Char('r'))],
        shown: "r",
        help: "back to the recommended one",
        hint: Some("recommended"),
        action: Act::Recommended,
    },
];

fn setting() -> &'static Setting {
    Setting::of("mtp").expect("the table has the MTP head")
}

impl MtpPage {
    pub fn keys(&self) -> Keys {
        Keys::of(KEYS)
    }

    /// Whether the model of now has a head to ask about.
    pub fn is_asked(state: &State) -> bool {
        state.model_ready().is_none_or(|found| found.facts.has_mtp())
    }

    /// Called when the page comes up, and when the plan has changed.
    pub fn refresh(&mut self, state: &State) {
        self.costs.clear();
        for choice in Mtp::ALL {
            let Some(plan) = state.plan_with(setting(), Some(choice.word())) else { return };
            let seconds = plan.map(|plan| plan.advice.and_then(|advice| advice.time.mtp_s));
            self.costs.push((*choice, seconds.map_err(|problem| problem.text)));
        }
        self.recommended = state.plan_with(setting(), None).and_then(Result::ok).map(|plan| plan.mtp);
    }

    pub fn key(&mut self, event: &KeyEvent, state: &mut State) -> Did {
        let Some(act) = action(KEYS, event) else { return Did::Passed };
        let now = state.plan.as_ref().map(|plan| plan.mtp);
        let at = Mtp::ALL.iter().position(|choice| Some(*choice) == now).unwrap_or(0);
        let chosen = match act {
            Act::GoOn => return Did::Next,
            Act::Recommended => {
                state.take_back(setting());
                return Did::Done;
            }
            Act::Up => Mtp::ALL[at.saturating_sub(1)],
            Act::Down => Mtp::ALL[(at + 1).min(Mtp::ALL.len() - 1)],
        };
        if Some(chosen) == now {
            return Did::Done;
        }
        if self.recommended == Some(chosen) {
            state.take_back(setting());
            if state.plan.as_ref().is_some_and(|plan| plan.mtp == chosen) {
                return Did::Done;
            }
        }
        if let Err(problem) = state.try_answer(setting(), chosen.word()) {
            state.say(Role::Bad, problem.text);
        }
        Did::Done
    }

    pub fn view(&self, state: &State, frame: &mut Frame<'_>, area: Rect, theme: &Theme) {
        let width = usize::from(area.width);
        let (Some(plan), Some(model)) = (&state.plan, state.model_ready()) else {
            return draw(frame, area, not_yet(state, width, theme));
        };
        let head = model.facts.mtp_parameters();
        let roomy = area.height >= 14;
        let mut lines = Vec::new();
        if let Some(time) = plan.advice.as_ref().map(|advice| &advice.time) {
            let words = format!("whole run: {}, {}", shown_s(total_s(time)), basis(time));
            lines.push(inked(theme, Role::Text, fit(&words, width, theme)));
            lines.push(Line::default());
        }
        if roomy {
            let words = format!(
                "The head ({} parameters) guesses tokens ahead for speculative decoding. It never changes what the model \
                 says, only how fast.",
                parameters(head)
            );
            lines.extend(wrapped(theme, Role::Dim, &words, width));
            lines.push(Line::default());
        }
        for (choice, seconds) in &self.costs {
            lines.extend(self.choice(*choice, seconds, plan.mtp == *choice, head * 2, width, roomy, theme));
        }
        draw(frame, area, lines);
    }

    #[allow(clippy::too_many_arguments)] // one row of a list, drawn in one place
    fn choice(
        &self,
        choice: Mtp,
        seconds: &Result<Option<f64>, String>,
        chosen: bool,
        head_bytes: u64,
        width: usize,
        roomy: bool,
        theme: &Theme,
    ) -> Vec<Line<'static>> {
        let mark = if chosen { theme.glyph("● ", "(*) ") } else { theme.glyph("○ ", "( ) ") };
        let star = if self.recommended == Some(choice) { ", recommended" } else { "" };
        let cost = match seconds {
            Err(_) => "not possible".to_owned(),
            Ok(seconds) => choice.cost(*seconds, head_bytes),
        };
        let title = format!("{mark}{}{star}", choice.word());
        let role = if chosen { Role::Accent } else { Role::Title };
        let mut lines = vec![Line::from(vec![
            ink(theme, role, title.clone()),
            ink(
                theme,
                Role::Text,
                fit(&format!(": {cost}"), width.saturating_sub(title.chars().count()), theme),
            ),
        ])];
        let benefit = seconds.as_ref().err().map_or(choice.benefit(), String::as_str);
        let indent = 4;
        let shown = roomy || chosen || seconds.is_err();
        let benefit = wrapped(theme, Role::Dim, benefit, width.saturating_sub(indent));
        for line in benefit.into_iter().filter(|_| shown) {
            let style = line.style;
            let spans = line.spans.into_iter().map(|span| span.patch_style(style));
            lines.push(Line::from(
                [ink(theme, Role::Dim, " ".repeat(indent))].into_iter().chain(spans).collect::<Vec<_>>(),
            ));
        }
        if roomy {
            lines.push(Line::default());
        }
        lines
    }
}
