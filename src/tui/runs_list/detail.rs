//! The pane next to the rows, with details of the run under the cursor.

use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Borders, Padding, Paragraph};
use sparktune_base::escape::escape;
use sparktune_base::units::bytes;

use super::curve;
use super::shelf::Look;
use super::table::when;
use crate::screen::{Role, Theme};
use crate::state::State;
use crate::wrap::wrap;

/// The height of the curve in rows.
const CURVE_HEIGHT: usize = 6;
/// The width of the labels in columns.
const LABEL: usize = 11;

pub(super) fn draw(look: &Look, now_us: u64, frame: &mut Frame<'_>, area: Rect, theme: &Theme) {
    let block = Block::new()
        .borders(Borders::LEFT)
        .border_set(theme.border())
        .border_style(theme.style(Role::Line))
        .padding(Padding::horizontal(1));
    let wide = usize::from(block.inner(area).width);
    let lines = lines(look, now_us, wide, theme);
    frame.render_widget(Paragraph::new(lines).block(block), area);
}

fn lines(look: &Look, now_us: u64, wide: usize, theme: &Theme) -> Vec<Line<'static>> {
    let in_role = |text: &str, role| {
        wrap(text, wide)
            .into_iter()
            .map(move |part| Line::styled(part, theme.style(role)))
            .collect::<Vec<_>>()
    };
    let mut lines = in_role(&look.name, Role::Title);
    let Some(row) = &look.row else { return lines };
    let state = State::of(row.liveness);
    lines.push(Line::from(vec![
        Span::styled(state.label(theme), theme.style(state.role)),
        Span::styled(format!("  {}", when(look, now_us)), theme.style(Role::Dim)),
    ]));
    lines.extend(in_role(&look.stands, Role::Text));
    lines.push(Line::default());
    if !look.losses.is_empty() {
        let curve = curve::rows(&look.losses, wide, CURVE_HEIGHT, theme.unicode);
        lines.extend(curve.into_iter().map(|row| Line::styled(row, theme.style(Role::Curve))));
        lines.push(Line::default());
    }
    let size = ("size", bytes(row.size_bytes));
    let folder = ("folder", escape(&row.path.display().to_string()).into_owned());
    for (label, value) in look.facts.iter().chain([&size, &folder]) {
        // A long value continues in the lines below.
        for (n, part) in wrap(value, wide.saturating_sub(LABEL)).into_iter().enumerate() {
            let label = if n == 0 { label } else { "" };
            let label = Span::styled(format!("{label:<LABEL$}"), theme.style(Role::Dim));
            lines.push(Line::from(vec![label, Span::raw(part)]));
        }
    }
    lines
}
