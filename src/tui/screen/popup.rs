//! A box over the screen: for what has to be read or answered before anything else.

use ratatui::Frame;
use ratatui::layout::{Constraint, Rect};
use ratatui::text::Line;
use ratatui::widgets::{Block, Clear, Padding, Paragraph};
use unicode_width::UnicodeWidthStr;

use super::theme::{Role, Theme};

/// A box over the screen.
pub(crate) struct Popup<'a> {
    /// Its subject.
    pub title: &'a str,
    /// How serious it is: the role of its frame.
    pub role: Role,
    /// Its text.
    pub lines: Vec<Line<'a>>,
    /// The keys it takes, in its lower border.
    pub keys: &'a str,
}

impl Popup<'_> {
    /// Draws it as large as what it says, in the middle of `area`; what has no room is cut off.
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
