//! The samples that the model writes during training, newest first. All of this text is untrusted.

use ratatui::text::{Line, Span};
use sparktune_base::escape::escape;
use sparktune_base::units::{clock, count, counted};

use super::Known;
use crate::screen::{Role, Theme};
use crate::wrap::wrap;

/// The largest number of characters of a text that is shown; the log has all of it.
const MOST: usize = 4000;

/// Returns the samples in lines of at most `width` columns.
pub(super) fn lines(known: &Known, width: u16, theme: &Theme) -> Vec<Line<'static>> {
    let mut lines = Vec::new();
    for sample in known.view.samples.iter().rev() {
        if !lines.is_empty() {
            lines.push(Line::default());
        }
        let mut head = vec![
            Span::styled(format!("step {}", count(sample.what.step)), theme.style(Role::Title)),
            Span::styled(
                format!("  {}  {}", counted(sample.what.tokens, "token"), clock(sample.time_us)),
                theme.style(Role::Dim),
            ),
        ];
        if sample.discarded {
            head.push(Span::styled("  replaced by a later attempt", theme.style(Role::Discarded)));
        }
        lines.push(Line::from(head));
        let body = if sample.discarded { Role::Discarded } else { Role::Text };
        text(&sample.what.prompt, "asked ", Role::Dim, width, theme, &mut lines);
        text(&sample.what.text, "wrote ", body, width, theme, &mut lines);
    }
    if lines.is_empty() {
        let none = "no samples yet; they are written at each evaluation if the plan includes samples";
        lines.extend(
            wrap(none, usize::from(width)).into_iter().map(|l| Line::styled(l, theme.style(Role::Dim))),
        );
    }
    lines
}

fn text(
    text: &str,
    label: &'static str,
    role: Role,
    width: u16,
    theme: &Theme,
    lines: &mut Vec<Line<'static>>,
) {
    let shown: String = text.chars().take(MOST).collect();
    let more = if shown.len() < text.len() { "…" } else { "" };
    let room = usize::from(width).saturating_sub(label.len());
    let mut label = label;
    // Its own line breaks are kept; everything else that could move the cursor is escaped.
    for line in format!("{shown}{more}").split('\n') {
        for part in wrap(&escape(line.trim_end_matches('\r')), room) {
            lines.push(Line::from(vec![
                Span::styled(format!("{label:<6}"), theme.style(Role::Accent)),
                Span::styled(part, theme.style(role)),
            ]));
            label = "";
        }
    }
}
