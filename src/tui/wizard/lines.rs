//! Cuts and wraps text by its width in columns, and draws the small elements that all pages use.

use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::text::{Line, Span};
use ratatui::widgets::Paragraph;
use sparktune_base::escape::escape;
use unicode_segmentation::UnicodeSegmentation;
use unicode_width::UnicodeWidthStr;

use crate::screen::{Role, Theme};
use crate::wrap::cut_to;

/// Returns text in a role. Untrusted text has to be escaped before.
pub(super) fn ink(theme: &Theme, role: Role, text: impl Into<String>) -> Span<'static> {
    Span::styled(text.into(), theme.style(role))
}

/// Returns a line in one role.
pub(super) fn inked(theme: &Theme, role: Role, text: impl Into<String>) -> Line<'static> {
    Line::styled(text.into(), theme.style(role))
}

/// Draws lines from the top of the area. Lines that do not fit are left out.
pub(super) fn draw(frame: &mut Frame<'_>, area: Rect, lines: Vec<Line<'static>>) {
    frame.render_widget(Paragraph::new(lines), area);
}

/// Cuts the text to `width` columns. If it is longer, its end is replaced by dots.
pub(super) fn fit(text: &str, width: usize, theme: &Theme) -> String {
    cut_to(text, width, 0, theme.glyph("…", "..."))
}

/// Like [`fit`], but cuts the beginning, because the end of a path is more important.
pub(super) fn fit_end(text: &str, width: usize, theme: &Theme) -> String {
    if text.width() <= width {
        return text.to_owned();
    }
    let dots = theme.glyph("…", "...");
    let room = width.saturating_sub(dots.width());
    let mut from = text.len();
    let mut used = 0;
    for (at, grapheme) in text.grapheme_indices(true).rev() {
        used += grapheme.width();
        if used > room {
            break;
        }
        from = at;
    }
    let kept = format!("{dots}{}", &text[from..]);
    if kept.width() <= width { kept } else { ".".repeat(width) }
}

/// Cuts or pads the text to exactly `width` columns, aligned left.
pub(super) fn left(text: &str, width: usize, theme: &Theme) -> String {
    let kept = fit(text, width, theme);
    let gap = width.saturating_sub(kept.width());
    kept + &" ".repeat(gap)
}

/// Cuts or pads the text to exactly `width` columns, aligned right.
pub(super) fn right(text: &str, width: usize, theme: &Theme) -> String {
    let kept = fit(text, width, theme);
    " ".repeat(width.saturating_sub(kept.width())) + &kept
}

/// Wraps the text into lines of at most `width` columns, between words and, if a word is longer, inside it.
/// Line breaks in the text are kept; all other control characters are escaped.
pub(super) fn wrap(text: &str, width: usize) -> Vec<String> {
    let part = |part: &str| {
        let part = escape(part.trim_end()).into_owned();
        let indent: String = part.chars().take_while(|c| *c == ' ').take(width / 4).collect();
        let lines = crate::wrap::wrap(part.trim_start(), width - indent.len());
        lines.into_iter().map(move |line| format!("{indent}{line}"))
    };
    text.trim_end().split('\n').flat_map(part).collect()
}

/// [`wrap`] with a role.
pub(super) fn wrapped(theme: &Theme, role: Role, text: &str, width: usize) -> Vec<Line<'static>> {
    wrap(text, width).into_iter().map(|line| inked(theme, role, line)).collect()
}

/// Highlights the line under the cursor in one style, to the end of the row.
pub(super) fn selected(line: &Line<'_>, width: usize, theme: &Theme) -> Line<'static> {
    inked(theme, Role::Selected, left(&line.to_string(), width, theme))
}

/// Returns the range of a list that is visible in `rows` rows, so that it includes `selected`.
pub(super) fn window(selected: usize, length: usize, rows: usize) -> std::ops::Range<usize> {
    let from = selected.saturating_sub(rows / 2).min(length.saturating_sub(rows));
    from..length.min(from + rows)
}

/// Like [`window`], where `scroll` is the requested first row.
pub(super) fn from_row(scroll: usize, length: usize, rows: usize) -> std::ops::Range<usize> {
    let from = scroll.min(length.saturating_sub(rows));
    from..length.min(from + rows)
}

/// Returns a bar of `width` columns, filled to `share`, in eighths of a column where the terminal shows them.
pub(super) fn bar(share: f64, width: usize, theme: &Theme) -> String {
    let share = if share.is_finite() { share.clamp(0.0, 1.0) } else { 0.0 };
    let cells = share * width as f64;
    if !theme.unicode {
        return "#".repeat(cells.round() as usize);
    }
    const EIGHTHS: [&str; 8] = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"];
    let whole = cells.floor() as usize;
    let part = ((cells - cells.floor()) * 8.0).round() as usize;
    if part == 8 { "█".repeat(whole + 1) } else { "█".repeat(whole) + EIGHTHS[part] }
}

/// Returns the heading of a block: a title and a rule to the end of the line.
pub(super) fn block(theme: &Theme, title: &str, width: usize) -> Line<'static> {
    let rule = theme.glyph("─", "-");
    let title = fit(title, width.saturating_sub(4), theme);
    let rest = width.saturating_sub(title.width() + 3);
    Line::from(vec![
        ink(theme, Role::Line, rule),
        ink(theme, Role::Title, format!(" {title} ")),
        ink(theme, Role::Line, rule.repeat(rest)),
    ])
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::screen::picture::{ASCII, TRUE_COLOUR};

    #[test]
    fn text_is_cut_by_columns_and_never_through_a_character() {
        assert_eq!(fit("世界你好", 5, &TRUE_COLOUR), "世界…");
        assert_eq!(fit_end("/data/sets/train.jsonl", 12, &TRUE_COLOUR), "…train.jsonl");
        assert_eq!(fit_end("/data/sets/train.jsonl", 12, &ASCII), "...ain.jsonl");
        assert_eq!(left("世", 4, &TRUE_COLOUR), "世  ");
        assert_eq!(right("7", 3, &TRUE_COLOUR), "  7");
    }

    #[test]
    fn wrapping_keeps_line_breaks_and_breaks_long_words() {
        assert_eq!(wrap("one two\n  three four", 9), ["one two", "  three", "  four"]);
        assert_eq!(wrap("abcdefgh ij", 4), ["abcd", "efgh", "ij"]);
        assert_eq!(wrap("a\u{1b}[2Jb", 20), ["a\\u{1b}[2Jb"]);
        assert_eq!(wrap("", 4), [""]);
    }

    #[test]
    fn a_bar_is_as_full_as_its_share() {
        assert_eq!(bar(0.5, 4, &TRUE_COLOUR), "██");
        assert_eq!(bar(0.3, 4, &TRUE_COLOUR), "█▎");
        assert_eq!(bar(0.5, 4, &ASCII), "##");
        assert_eq!(bar(f64::NAN, 4, &TRUE_COLOUR), "");
        assert_eq!(bar(7.0, 3, &TRUE_COLOUR), "███");
    }

    proptest! {
        #[test]
        fn nothing_is_wider_than_asked_for(text in any::<String>(), width in 8usize..60) {
            prop_assert!(fit(&escape(&text), width, &ASCII).width() <= width);
            prop_assert!(fit_end(&escape(&text), width, &ASCII).width() <= width);
            for line in wrap(&text, width) {
                // A single character with wide combining marks may be wider than any line.
                prop_assert!(line.width() <= width || line.graphemes(true).count() == 1, "{line:?}");
            }
        }
    }
}
