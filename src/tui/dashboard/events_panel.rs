//! The list of events, newest first: warnings, evaluations, checkpoints, phases, requests, and problems found
//! in the log itself.

use ratatui::text::{Line, Span};
use sparktune_base::units::{UNKNOWN, clock};

use super::Known;
use crate::screen::{Role, Theme};
use crate::wrap::wrap;

/// Returns the list in lines of at most `width` columns.
pub(super) fn lines(known: &Known, width: u16, theme: &Theme) -> Vec<Line<'static>> {
    let mut lines = Vec::new();
    for note in known.notes.iter().rev() {
        let time = note.time_us.map_or_else(|| format!("{UNKNOWN:<8}"), clock);
        let room = usize::from(width).saturating_sub(22);
        for (i, text) in wrap(&note.text, room).into_iter().enumerate() {
            let head = if i == 0 { (time.as_str(), note.kind) } else { ("", "") };
            // A note that needs attention is coloured as a whole; for others only the kind is.
            let body = if matches!(note.role, Role::Warn | Role::Bad) { note.role } else { Role::Text };
            lines.push(Line::from(vec![
                Span::styled(format!("{:<8}  ", head.0), theme.style(Role::Dim)),
                Span::styled(format!("{:<11} ", head.1), theme.style(note.role)),
                Span::styled(text, theme.style(body)),
            ]));
        }
    }
    if lines.is_empty() {
        lines.push(Line::styled("nothing has happened yet", theme.style(Role::Dim)));
    }
    lines
}
