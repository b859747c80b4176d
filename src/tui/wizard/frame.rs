//! The frame around every page: the steps above, the question, the last notice, and the keys below.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect, Size};
use ratatui::text::Line;
use sparktune_app::questions::page::Page;
use sparktune_base::escape::escape;
use unicode_width::UnicodeWidthStr;

use super::lines::{fit_end, ink, inked, wrapped};
use super::mtp::MtpPage;
use super::state::State;
use crate::screen::{Role, Theme, hint_line};

/// The height from which blank rows are added.
const ROOMY: u16 = 20;
/// The largest number of lines of a notice.
const NOTICE: usize = 6;

/// Draws the frame and returns the room inside.
pub(super) fn around(
    page: Page,
    starting: bool,
    state: &State,
    hints: Vec<(&'static str, &'static str)>,
    frame: &mut Frame<'_>,
    theme: &Theme,
) -> Rect {
    let area = frame.area();
    let roomy = area.height >= ROOMY;
    let width = usize::from(area.width).saturating_sub(2);
    let mut notice = match &state.notice {
        Some((role, words)) => wrapped(theme, *role, words, width),
        None => Vec::new(),
    };
    notice.truncate(NOTICE.min(usize::from(area.height / 3)));
    let head = if roomy { 4 } else { 2 };
    let below = notice.len().max(usize::from(roomy)) as u16;
    let [top, body, words, foot] = area.layout(&Layout::vertical([
        Constraint::Length(head),
        Constraint::Min(1),
        Constraint::Length(below),
        Constraint::Length(1),
    ]));
    let question = if starting { "Starting" } else { page.question() };
    let mut lines = vec![steps(page, starting, state, width, theme)];
    if roomy {
        lines.push(inked(theme, Role::Line, theme.glyph("─", "-").repeat(width)));
    }
    lines.push(asked(question, page, state, width, theme));
    super::lines::draw(frame, inner(top), lines);
    super::lines::draw(frame, inner(words), notice);
    frame.render_widget(hint_line(hints, foot.width.saturating_sub(2), theme), inner(foot));
    inner(body)
}

/// Returns the hints in at most `width` columns. Those of every page are always included; the least important
/// ones of the page are left out.
pub(super) fn hints(
    mut of_page: Vec<(&'static str, &'static str)>,
    always: &[(&'static str, &'static str)],
    width: u16,
) -> Vec<(&'static str, &'static str)> {
    let wide = |hints: &[(&str, &str)]| {
        hints.iter().map(|(key, hint)| key.width() + hint.width() + 3).sum::<usize>()
    };
    while !of_page.is_empty() && wide(&of_page) + wide(always) > usize::from(width) {
        of_page.pop();
    }
    of_page.extend(always);
    of_page
}

/// Returns the inner area on a screen of this size when there is no notice.
pub(super) fn body(size: Size) -> Rect {
    let roomy = size.height >= ROOMY;
    let around = if roomy { 6 } else { 3 };
    Rect::new(0, 0, size.width.saturating_sub(2), size.height.saturating_sub(around))
}

/// Returns the area without a blank column on either side.
fn inner(area: Rect) -> Rect {
    Rect { x: area.x + 1, width: area.width.saturating_sub(2), ..area }
}

/// Returns the line of steps: done, current, remaining.
fn steps(page: Page, starting: bool, state: &State, width: usize, theme: &Theme) -> Line<'static> {
    let mut spans = Vec::new();
    if width >= 76 {
        spans.push(ink(theme, Role::Title, "sparktune  "));
    }
    for (i, step) in Page::ALL.into_iter().enumerate() {
        if i > 0 {
            spans.push(ink(theme, Role::Line, "  "));
        }
        let skipped = step == Page::Mtp && !MtpPage::is_asked(state);
        let (role, mark) = if skipped {
            (Role::Dim, theme.glyph("–", "-"))
        } else if step < page || starting {
            (Role::Good, theme.glyph("✓", "x"))
        } else if step == page {
            (Role::Accent, theme.glyph("●", ">"))
        } else {
            (Role::Dim, theme.glyph("○", "."))
        };
        let word = if step == page && !starting { Role::Title } else { Role::Dim };
        spans.push(ink(theme, role, format!("{mark} ")));
        spans.push(ink(theme, word, step.word()));
    }
    Line::from(spans)
}

/// Returns the question and, on the right, the choices made so far.
fn asked(question: &str, page: Page, state: &State, width: usize, theme: &Theme) -> Line<'static> {
    let mut chosen = Vec::new();
    if page > Page::Model {
        chosen.extend(state.planner.answers.model.as_ref().map(|answer| {
            let name = escape(&answer.value).into_owned();
            name.trim_end_matches('/').rsplit('/').next().map_or(name.clone(), str::to_owned)
        }));
    }
    if page > Page::Data {
        chosen.extend(state.planner.answers.data.as_ref().and_then(|answer| {
            let name = answer.value.first()?.file_name()?.to_string_lossy().into_owned();
            let more = answer.value.len() - 1;
            Some(if more > 0 {
                format!("{} and {more} more", escape(&name))
            } else {
                escape(&name).into_owned()
            })
        }));
    }
    let separator = theme.glyph(" · ", ", ");
    let room = width.saturating_sub(question.width() + 2);
    let chosen = fit_end(&chosen.join(separator), room, theme);
    let gap = width.saturating_sub(question.width() + chosen.width());
    Line::from(vec![
        ink(theme, Role::Title, question),
        ink(theme, Role::Text, " ".repeat(gap)),
        ink(theme, Role::Dim, chosen),
    ])
}
