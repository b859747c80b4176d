//! Draws the screen: header, rows, the pane if it fits, one message, and the keys.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::text::{Line, Span};
use ratatui::widgets::Paragraph;
use sparktune_base::escape::escape;
use sparktune_base::program_name;
use sparktune_base::units::{count, counted};
use sparktune_runlog::Liveness;

use super::keys::{FILTER_KEYS, KEYS};
use super::shelf::Look;
use super::{RunsList, detail, table};
use crate::screen::{Role, Theme, help, hints, rows};
use crate::wrap::{cut, cut_to, wrap};

/// The number of rows that show no runs: header, headings, message, keys.
pub(super) const FIXED_ROWS: usize = 5;
/// The height of the words about a run in rows. A message may be longer, because it is nowhere else.
const WORDS: u16 = 2;
const MESSAGE: u16 = 6;
/// The width from which the pane is shown.
const PANE_FROM: u16 = 110;
const PANE: u16 = 44;

pub(super) fn draw(list: &RunsList, frame: &mut Frame<'_>, theme: &Theme) {
    let area = frame.area();
    let shown = list.rows();
    let with_pane = area.width >= PANE_FROM && !shown.is_empty();
    let at = list.position(&shown);
    let lines_of = shown.get(at).filter(|_| !with_pane);
    let said = words_lines(list, lines_of, area.width, theme);
    let height = WORDS.max(said.len() as u16);
    let parts =
        [Constraint::Length(1), Constraint::Fill(1), Constraint::Length(height), Constraint::Length(1)];
    let [top, middle, words, keys] = Layout::vertical(parts).areas(area);
    header(list, &shown, frame, top, theme);

    let pane = if with_pane { PANE } else { 0 };
    let [left, right] = Layout::horizontal([Constraint::Fill(1), Constraint::Length(pane)]).areas(middle);
    if shown.is_empty() {
        frame.render_widget(
            nothing(list, theme).centered(),
            middle.centered_vertically(Constraint::Length(3)),
        );
    } else {
        let [heading, body] = Layout::vertical([Constraint::Length(1), Constraint::Fill(1)]).areas(left);
        frame.render_widget(table::heading(heading.width, list.order, theme), heading);
        body_rows(list, &shown, at, frame, body, theme);
    }
    if let (true, Some(look)) = (with_pane, shown.get(at)) {
        detail::draw(look, list.now_us, frame, right, theme);
    }
    frame.render_widget(Paragraph::new(said), words);
    let keys_now =
        if list.filtering { hints(FILTER_KEYS, keys.width, theme) } else { hints(KEYS, keys.width, theme) };
    frame.render_widget(keys_now, keys);
    if let Some(ask) = &list.asking {
        ask.draw(frame, area, theme);
    }
    if list.helping {
        help(frame, area, theme, &[("runs", rows(KEYS))]);
    }
}

fn header(list: &RunsList, shown: &[&Look], frame: &mut Frame<'_>, area: Rect, theme: &Theme) {
    let looks = &list.shelf.looks;
    let number = |n: usize| count(n as u64);
    let live = looks.iter().filter(|look| look.liveness().is_some_and(Liveness::is_live)).count();
    let unread = looks.iter().filter(|look| look.row.is_none()).count();
    let mut facts = vec![if shown.len() == looks.len() {
        counted(looks.len() as u64, "run")
    } else {
        format!("{} of {} runs", number(shown.len()), number(looks.len()))
    }];
    if live > 0 {
        facts.push(format!("{} running", number(live)));
    }
    if unread > 0 {
        facts.push(format!("reading {} more", number(unread)));
    }
    let facts = format!("  {}", facts.join(" · "));
    let left = Line::from(vec![
        Span::styled("sparktune runs", theme.style(Role::Title)),
        Span::styled(facts, theme.style(Role::Dim)),
    ]);
    let room = usize::from(area.width).saturating_sub(left.width() + 2);
    let folder = list.shelf.root.path().display().to_string();
    let folder = cut_to(&escape(&folder), room, room / 2, "…");
    frame.render_widget(left, area);
    frame.render_widget(Line::styled(folder, theme.style(Role::Dim)).right_aligned(), area);
}

fn body_rows(list: &RunsList, shown: &[&Look], at: usize, frame: &mut Frame<'_>, area: Rect, theme: &Theme) {
    let height = usize::from(area.height);
    // The cursor is in the middle, except near the ends of the list.
    let first = at.saturating_sub(height / 2).min(shown.len().saturating_sub(height));
    for (n, place) in area.rows().enumerate() {
        let Some(look) = shown.get(first + n) else { break };
        frame.render_widget(table::row(look, area, first + n == at, list.now_us, theme), place);
    }
}

/// Explains why there are no rows.
fn nothing(list: &RunsList, theme: &Theme) -> Paragraph<'static> {
    let lines = if let Some(problem) = &list.shelf.problem {
        vec![Line::styled(problem.to_owned(), theme.style(Role::Bad))]
    } else if list.shelf.looks.is_empty() {
        vec![
            Line::styled("no runs here yet", theme.style(Role::Title)),
            Line::raw(format!("`{}` starts one; --runs-dir shows another folder", program_name())),
        ]
    } else {
        vec![Line::styled("no run matches", theme.style(Role::Title)), Line::raw("Esc shows all of them")]
    };
    Paragraph::new(lines).wrap(ratatui::widgets::Wrap { trim: true })
}

/// Returns a message, the filter while it is typed or active, or the state of the chosen run.
fn words_lines(list: &RunsList, chosen: Option<&&Look>, width: u16, theme: &Theme) -> Vec<Line<'static>> {
    let lines_of = |text: &str, most: u16, role| {
        let mut parts = wrap(text, usize::from(width));
        if parts.len() > usize::from(most) {
            parts.truncate(most.into());
            if let Some(last) = parts.last_mut() {
                *last = cut(&format!("{last} …"), width.into());
            }
        }
        parts.into_iter().map(|part| Line::styled(part, theme.style(role))).collect()
    };
    if let Some(message) = &list.message {
        return lines_of(message, MESSAGE, Role::Accent);
    }
    if list.filtering || !list.filter.text().is_empty() {
        // While the filter is typed, the last line says what the keys do.
        let (label, keys) = ("filter: ", if list.filtering { "" } else { "  Esc shows all" });
        let room = width.saturating_sub((label.len() + keys.len()) as u16);
        let mut spans = vec![Span::styled(label, theme.style(Role::Accent))];
        spans.extend(list.filter.line(room, list.filtering, theme).spans);
        spans.push(Span::styled(keys, theme.style(Role::Dim)));
        return vec![Line::from(spans)];
    }
    lines_of(chosen.map_or("", |look| look.stands.as_str()), WORDS, Role::Dim)
}
