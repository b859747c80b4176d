//! The first page: facts about this machine, and the problems that prevent training on it.

use crossterm::event::{KeyCode, KeyEvent};
use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::text::Line;
use sparktune_app::findings::{Finding, Severity};
use sparktune_app::machine::MachineFound;
use sparktune_app::questions::model::DEMO;
use sparktune_base::escape::escape;
use sparktune_base::program_name;
use unicode_width::UnicodeWidthStr;

use super::frame;
use super::keys::{KeyResult, Keys, down, enter, up};
use super::lines::{draw, fit, from_row, ink, inked, left, wrapped};
use super::state::State;
use crate::screen::{Binding, Colours, Role, Theme, action, key};

#[derive(Debug, Default)]
pub(super) struct MachinePage {
    scroll: usize,
    /// Whether the last key asked to replace the chosen model and data by the demo's.
    asked: bool,
}

#[derive(Debug, Clone, Copy)]
enum Action {
    GoOn,
    Demo,
    Again,
    Up,
    Down,
}

const KEYS: &[Binding<Action>] = &[
    enter("continue", "next", Action::GoOn),
    Binding {
        keys: &[key(KeyCode::Char('d'))],
        shown: "d",
        help: DEMO,
        hint: Some("demo"),
        action: Action::Demo,
    },
    Binding {
        keys: &[key(KeyCode::Char('u'))],
        shown: "u",
        help: "check again, after fixing something",
        hint: Some("check again"),
        action: Action::Again,
    },
    up("scroll up", Action::Up),
    down("scroll down", None, Action::Down),
];

impl MachinePage {
    pub(super) fn keys(&self) -> Keys {
        Keys::of(KEYS)
    }

    pub(super) fn key(&mut self, event: &KeyEvent, state: &mut State) -> KeyResult {
        let Some(act) = action(KEYS, event) else { return KeyResult::Ignored };
        let asked = std::mem::take(&mut self.asked);
        match act {
            Action::GoOn => return KeyResult::Next,
            Action::Demo if !asked && state.planner.has_own_choice() => {
                self.asked = true;
                state.say(
                    Role::Warn,
                    "the demo replaces the model and the data that you chose; d again does it",
                );
            }
            Action::Demo => return KeyResult::Demo,
            Action::Again => state.look_at_machine(),
            Action::Up => self.scroll = self.scroll.min(most_scrolled(state)).saturating_sub(1),
            Action::Down => self.scroll = (self.scroll + 1).min(most_scrolled(state)),
        }
        KeyResult::Handled
    }

    pub(super) fn view(&self, state: &State, frame: &mut Frame<'_>, area: Rect, theme: &Theme) {
        let width = usize::from(area.width);
        let mut lines = Vec::new();
        if let Some(words) = state.machine.failed() {
            lines.extend(wrapped(theme, Role::Bad, words, width));
            lines.push(Line::default());
            lines.extend(wrapped(
                theme,
                Role::Text,
                &format!(
                    "Nothing can be planned until this is fixed. u checks again; `{} doctor` shows every check.",
                    program_name()
                ),
                width,
            ));
        } else if let Some(found) = state.machine.ready() {
            let (all, verdict, rows) = parts(found, area, theme);
            let shown = from_row(self.scroll, all.len(), rows);
            lines.extend(all[shown].to_vec());
            lines.extend(verdict);
        } else {
            lines.push(inked(theme, Role::Dim, "checking this machine"));
        }
        draw(frame, area, lines);
    }
}

/// Returns the lines of the findings, those of the verdict below them, and the number of lines of the former
/// that are visible.
fn parts(found: &MachineFound, area: Rect, theme: &Theme) -> (Vec<Line<'static>>, Vec<Line<'static>>, usize) {
    let width = usize::from(area.width);
    let verdict = verdict(found, width, theme);
    let rows = usize::from(area.height).saturating_sub(verdict.len());
    (findings(found, width, theme), verdict, rows)
}

/// Returns the largest scroll offset of the findings.
fn most_scrolled(state: &State) -> usize {
    let Some(found) = state.machine.ready() else { return 0 };
    let plain = Theme { colours: Colours::None, unicode: true };
    let (all, _, rows) = parts(found, frame::body(state.size), &plain);
    all.len().saturating_sub(rows)
}

fn mark(severity: Severity, theme: &Theme) -> (Role, &'static str) {
    match severity {
        Severity::Good => (Role::Good, theme.glyph("✓", "ok")),
        Severity::Skipped => (Role::Dim, theme.glyph("–", "-")),
        Severity::Unknown => (Role::Dim, "?"),
        Severity::Note => (Role::Warn, theme.glyph("!", "!")),
        Severity::Problem => (Role::Bad, theme.glyph("✗", "BAD")),
    }
}

fn findings(found: &MachineFound, width: usize, theme: &Theme) -> Vec<Line<'static>> {
    let longest = found.findings.iter().map(|finding| escape(&finding.what).width()).max().unwrap_or(0);
    let name = longest.min(width / 3);
    let marks = if theme.unicode { 1 } else { 3 };
    let room = width.saturating_sub(name + marks + 4);
    found.findings.iter().flat_map(|finding| rows(finding, name, marks, room, theme)).collect()
}

fn rows(finding: &Finding, name: usize, marks: usize, room: usize, theme: &Theme) -> Vec<Line<'static>> {
    let Finding { what, found, advice, severity } = finding;
    let (role, glyph) = mark(*severity, theme);
    let found_role = if *severity == Severity::Problem { Role::Bad } else { Role::Text };
    let found = wrapped(theme, found_role, found, room);
    let advice = advice.iter().flat_map(|advice| {
        let arrow = theme.glyph("→ ", "-> ");
        let role = if *severity == Severity::Problem { Role::Bad } else { Role::Dim };
        wrapped(theme, role, &format!("{arrow}{advice}"), room)
    });
    found
        .into_iter()
        .chain(advice)
        .enumerate()
        .map(|(i, text)| {
            let head = match i {
                0 => vec![
                    ink(theme, role, left(glyph, marks, theme)),
                    ink(theme, Role::Title, format!(" {}  ", left(&escape(what), name, theme))),
                ],
                _ => vec![ink(theme, Role::Text, " ".repeat(marks + name + 3))],
            };
            let style = text.style;
            let spans = text.spans.into_iter().map(|span| span.patch_style(style));
            Line::from(head.into_iter().chain(spans).collect::<Vec<_>>())
        })
        .collect()
}

/// Returns the verdict in one sentence.
fn verdict(found: &MachineFound, width: usize, theme: &Theme) -> Vec<Line<'static>> {
    let problems = found.findings.iter().filter(|f| f.severity == Severity::Problem).count();
    let mut lines = vec![Line::default()];
    match (&found.facts.no_gpu_because, found.facts.gpus.first()) {
        (_, Some(gpu)) => {
            let words = format!("Training will use the {}.", gpu.name);
            lines.push(inked(theme, Role::Good, fit(&escape(&words), width, theme)));
        }
        (why, None) => {
            let why = why.as_deref().unwrap_or("no usable GPU was found");
            let words = format!("Training will use the CPU: {why}.");
            lines.extend(wrapped(theme, Role::Warn, &words, width));
            lines.extend(wrapped(
                theme,
                Role::Text,
                "d fills in the demo: the complete workflow on a tiny model, in about half a minute. A small model such as Qwen/Qwen3.5-0.8B can be trained here too, but slowly; the next page shows how slowly.",
                width,
            ));
        }
    }
    if problems > 0 {
        let words = match problems {
            1 => "One problem must be fixed before training; u checks again. You can still plan.".to_owned(),
            n => format!("{n} problems must be fixed before training; u checks again. You can still plan."),
        };
        lines.extend(wrapped(theme, Role::Bad, &words, width));
    }
    lines
}
