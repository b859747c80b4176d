//! A box over the screen for messages and questions that need attention first.

use ratatui::Frame;
use ratatui::layout::{Constraint, Rect};
use ratatui::text::Line;
use ratatui::widgets::{Block, Clear, Padding, Paragraph};
use unicode_width::UnicodeWidthStr;

use super::theme::{Role, Theme};

/// A box over the screen.
pub(crate) struct Popup<'a> {
    /// The title.
    pub title: &'a str,
    /// The role of the frame, which shows the severity.
    pub role: Role,
    /// The text.
    pub lines: Vec<Line<'a>>,
    /// The keys it handles, shown in the lower border.
    pub keys: &'a str,
}

impl Popup<'_> {
    /// Draws the box in the middle of `area`, as large as its content. Content that does not fit is cut off.
    pub(crate) fn draw(self, frame: &mut Frame<'_>, area: Rect, theme: &Theme) {
        let keys = match self.keys {
            "" => String::new(),
            keys => format!(" {} ", theme.key_names(keys)),
        };
        let title = format!(" {} ", self.title);
        let widest = self.lines.iter().map(Line::width).max().unwrap_or(0);
        let wide = widest.max(title.width()).max(keys.width()) as u16 + 4;
        let place = area.centered(Constraint::Max(wide), Constraint::Max(self.lines.len() as u16 + 2));
        let block = Block::bordered()
            .border_set(theme.border())
            .border_style(theme.style(self.role))
            .padding(Padding::horizontal(1))
            .title(Line::styled(title, theme.style(Role::Title)))
            .title_bottom(Line::from(keys).right_aligned());
        frame.render_widget(Clear, place);
        frame.render_widget(Paragraph::new(self.lines).block(block), place);
    }
}
