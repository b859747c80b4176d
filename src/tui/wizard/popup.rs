//! A box over the page: for questions that have to be answered before anything else.

use ratatui::Frame;
use ratatui::layout::{Constraint, Rect};
use ratatui::text::Line;
use ratatui::widgets::{Block, Clear, Padding, Paragraph};

use crate::screen::{Role, Theme};

/// Draws lines in a box as large as they are, in the middle of `area`.
pub(super) fn popup(
    frame: &mut Frame<'_>,
    area: Rect,
    theme: &Theme,
    title: &str,
    lines: Vec<Line<'static>>,
) {
    let wide = lines.iter().map(Line::width).max().unwrap_or(0).max(title.len() + 4) as u16 + 4;
    let high = lines.len() as u16 + 2;
    let place = area.centered(Constraint::Max(wide), Constraint::Max(high));
    let block = Block::bordered()
        .border_set(theme.border())
        .border_style(theme.style(Role::Accent))
        .padding(Padding::horizontal(1))
        .title(Line::styled(format!(" {title} "), theme.style(Role::Title)));
    frame.render_widget(Clear, place);
    frame.render_widget(Paragraph::new(lines).block(block), place);
}
