//! The rows of the list: which columns fit, and their content.

use ratatui::layout::Rect;
use ratatui::style::Style;
use ratatui::text::{Line, Span};
use sparktune_base::units::{UNKNOWN, bytes, count, duration, loss, or_unknown, rough_duration};
use unicode_width::UnicodeWidthStr;

use super::shelf::Look;
use super::{Order, curve};
use crate::screen::{Role, Theme};
use crate::state::State;
use crate::wrap::cut_to;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Column {
    Name,
    State,
    /// The percentage of steps done.
    Share,
    /// The number of steps done and in total.
    Steps,
    /// The peak learning rate.
    Rate,
    Rank,
    /// The moving average of the training loss.
    Loss,
    /// The lowest held-out loss, which runs are compared by.
    Eval,
    Curve,
    When,
    Size,
}

impl Column {
    /// Returns the smallest width of the column.
    fn width(self) -> usize {
        match self {
            Column::Name => 20,
            Column::State => 13,
            // "100 %"
            Column::Share => 5,
            Column::Steps => 13,
            // "2.5e-4"
            Column::Rate => 6,
            Column::Rank => 4,
            // The width of its title
            Column::Loss => 8,
            Column::Eval => 7,
            Column::Curve => 8,
            Column::When => 10,
            Column::Size => 9,
        }
    }

    fn is_number(self) -> bool {
        !matches!(self, Column::Name | Column::State | Column::Curve)
    }

    fn title(self) -> (&'static str, Option<Order>) {
        match self {
            Column::Name => ("run", Some(Order::Name)),
            Column::State => ("state", Some(Order::State)),
            Column::Share => ("done", None),
            Column::Steps => ("steps", None),
            Column::Rate => ("lr", None),
            Column::Rank => ("rank", None),
            Column::Loss => ("avg loss", None),
            Column::Eval => ("eval", Some(Order::Eval)),
            Column::Curve => ("curve", None),
            Column::When => ("when", Some(Order::Started)),
            Column::Size => ("size", Some(Order::Size)),
        }
    }
}

/// Returns the columns that fit into `width`, separated by one space, and their widths. The most important
/// columns are chosen first; the remaining width goes to steps, curve and name.
fn columns(width: usize) -> Vec<(Column, usize)> {
    let wanted = [
        Column::Name,
        Column::State,
        Column::When,
        Column::Eval,
        Column::Curve,
        Column::Size,
        Column::Share,
        Column::Loss,
        Column::Rate,
        Column::Rank,
    ];
    let mut left = width + 1;
    let mut chosen: Vec<(Column, usize)> = Vec::new();
    for column in wanted {
        if left < column.width() + 1 {
            break;
        }
        left -= column.width() + 1;
        chosen.push((column, column.width()));
    }
    if let Some(share) = chosen.iter_mut().find(|(column, _)| *column == Column::Share) {
        let more = Column::Steps.width() - Column::Share.width();
        if left >= more {
            *share = (Column::Steps, Column::Steps.width());
            left -= more;
        }
    }
    for (column, most) in [(Column::Name, 32), (Column::Curve, 24), (Column::Name, 80)] {
        if let Some((_, wide)) = chosen.iter_mut().find(|(c, _)| *c == column) {
            let more = left.min(most - *wide);
            *wide += more;
            left -= more;
        }
    }
    chosen.sort_by_key(|(column, _)| *column as usize);
    chosen
}

/// Returns the heading. The sorted column has an arrow.
pub(super) fn heading(width: u16, order: Order, theme: &Theme) -> Line<'static> {
    let mut spans = vec![Span::raw("  ")];
    for (column, wide) in columns(usize::from(width).saturating_sub(MARK)) {
        let (title, sorted) = column.title();
        let arrow = if sorted == Some(order) { theme.glyph("▾", "v") } else { "" };
        let title = place(&format!("{title}{arrow}"), wide, column.is_number());
        spans.push(Span::styled(title + " ", theme.style(Role::Dim)));
    }
    Line::from(spans)
}

/// The number of last characters of a name that are always kept, because they distinguish runs of one model:
/// `-1a2b`.
const NAME_END: usize = 5;

/// Pads or cuts the text to exactly `wide` columns.
fn place(text: &str, wide: usize, right: bool) -> String {
    let text = cut_to(text, wide, NAME_END, "…");
    let gap = " ".repeat(wide.saturating_sub(text.width()));
    if right { gap + &text } else { text + &gap }
}

/// The width of the cursor mark.
const MARK: usize = 2;

/// Returns one row.
pub(super) fn row(look: &Look, area: Rect, chosen: bool, now_us: u64, theme: &Theme) -> Line<'static> {
    let mark = if chosen { theme.glyph("› ", "> ") } else { "  " };
    let mut spans = vec![Span::styled(mark.to_owned(), theme.style(Role::Accent))];
    for (column, wide) in columns(usize::from(area.width).saturating_sub(MARK)) {
        let (text, role) = cell(look, column, wide, now_us, theme);
        spans.push(Span::styled(place(&text, wide, column.is_number()), theme.style(role)));
        spans.push(Span::raw(" "));
    }
    if chosen {
        let style: Style = theme.style(Role::Selected);
        for span in &mut spans {
            span.style = style;
        }
    }
    Line::from(spans)
}

fn cell(look: &Look, column: Column, wide: usize, now_us: u64, theme: &Theme) -> (String, Role) {
    let Some(row) = &look.row else {
        return match column {
            Column::Name => (look.short_name().to_owned(), Role::Text),
            Column::State => (theme.glyph("… reading", ". reading").to_owned(), Role::Dim),
            _ => (String::new(), Role::Dim),
        };
    };
    match column {
        Column::Name => (look.short_name().to_owned(), Role::Text),
        Column::State => {
            let state = State::of(row.liveness);
            (state.label(theme), state.role)
        }
        Column::Share => {
            let share = row.step.zip(row.total_steps).filter(|(_, total)| *total > 0);
            (
                or_unknown(share, |(step, total)| {
                    format!("{} %", u128::from(step) * 100 / u128::from(total))
                }),
                Role::Text,
            )
        }
        Column::Steps => {
            let steps = |step| format!("{}/{}", count(step), or_unknown(row.total_steps, count));
            (or_unknown(row.step, steps), Role::Text)
        }
        Column::Rate => (or_unknown(row.learning_rate, |rate| format!("{rate:e}")), Role::Text),
        Column::Rank => (or_unknown(row.rank, |rank| count(rank.into())), Role::Text),
        Column::Loss => (or_unknown(row.loss_nats, loss), Role::Text),
        Column::Eval => (or_unknown(row.best_eval_nats, loss), Role::Text),
        Column::Curve => (curve::rows(&look.losses, wide, 1, theme.unicode).remove(0), Role::Curve),
        Column::When => {
            (when_in(look, wide, now_us), if look.left_s.is_some() { Role::Accent } else { Role::Dim })
        }
        Column::Size => (bytes(row.size_bytes), Role::Dim),
    }
}

/// Returns the same in at most `wide` columns, if it can be said so.
fn when_in(look: &Look, wide: usize, now_us: u64) -> String {
    let words = when(look, now_us);
    let time = words.strip_suffix(" left").filter(|_| words.width() > wide).map(str::to_owned);
    time.unwrap_or(words)
}

/// Returns the remaining time of a running run, otherwise the age of its last event.
pub(super) fn when(look: &Look, now_us: u64) -> String {
    let Some(row) = &look.row else { return String::new() };
    match (look.left_s, row.last_event_us) {
        (Some(left_s), _) => format!("{} left", duration(left_s)),
        (None, Some(at)) if at <= now_us => format!("{} ago", rough_duration((now_us - at) as f64 / 1e6)),
        _ => UNKNOWN.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_fill_the_width_and_the_dispensable_ones_go_first() {
        let at = |width: usize| columns(width).iter().map(|(column, _)| *column).collect::<Vec<_>>();
        use Column::{Curve, Eval, Loss, Name, Rank, Rate, Share, Size, State, Steps, When};
        assert_eq!(at(58), [Name, State, Eval, When]);
        assert_eq!(at(66), [Name, State, Eval, Curve, When]);
        assert_eq!(at(78), [Name, State, Share, Eval, Curve, When, Size]);
        assert_eq!(at(130), [Name, State, Steps, Rate, Rank, Loss, Eval, Curve, When, Size]);
        for width in 30..300 {
            let columns = columns(width);
            let used: usize = columns.iter().map(|(_, wide)| wide + 1).sum();
            assert!(used <= width + 1, "{width}: {columns:?}");
        }
    }

    #[test]
    fn a_cell_is_as_wide_as_its_column_whatever_stands_in_it() {
        assert_eq!(place("7", 3, true), "  7");
        for wide in 0..30 {
            for text in ["世界世界世界世界世界世界", "👩\u{200d}🚀👩\u{200d}🚀👩\u{200d}🚀", "plain", ""]
            {
                assert_eq!(place(text, wide, true).width(), wide, "{text} in {wide}");
            }
        }
    }
}
