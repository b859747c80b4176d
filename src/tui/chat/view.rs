//! Draws the chat.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect, Size};
use ratatui::text::{Line, Span};
use ratatui::widgets::Paragraph;
use sparktune_app::inference::Decoding;
use sparktune_app::thought::without_thinking;
use sparktune_base::escape::escape;
use sparktune_base::units::counted;
use unicode_width::UnicodeWidthStr;

use super::ending::{words_of_end, words_of_no_answer};
use super::keys::KEYS;
use super::line::COMMANDS;
use super::{AnswerShown, ChatScreen, Exchange, State};
use crate::screen::{Role, Theme, help, hints, rows};
use crate::wrap::{cut, wrap};

/// The height of the message in rows.
const MESSAGE: u16 = 2;
/// The rows that show no part of the conversation: header, message, input, keys.
const FIXED_ROWS: u16 = MESSAGE + 3;

/// Returns the height of the conversation in rows.
pub(super) fn transcript_height(size: Size) -> usize {
    usize::from(size.height.saturating_sub(FIXED_ROWS))
}

pub(super) fn draw(chat: &ChatScreen, frame: &mut Frame<'_>, theme: &Theme) {
    let area = frame.area();
    let row = Constraint::Length(1);
    let parts = [row, Constraint::Fill(1), Constraint::Length(MESSAGE), row, row];
    let [top, middle, words, input, keys] = Layout::vertical(parts).areas(area);
    header(chat, frame, top, theme);
    let mut lines = transcript(chat, middle.width, theme);
    let height = usize::from(middle.height);
    // There may be fewer lines than when the user scrolled: thoughts were hidden, or the screen is wider.
    let below = chat.below.min(lines.len().saturating_sub(height));
    let end = lines.len() - below;
    let start = end.saturating_sub(height);
    frame.render_widget(Paragraph::new(lines.drain(start..end).collect::<Vec<_>>()), middle);
    frame.render_widget(Paragraph::new(message(chat, below, words.width, theme)), words);
    let mut typed = vec![Span::styled("> ", theme.style(Role::Accent))];
    typed.extend(chat.input.line(input.width.saturating_sub(3), true, theme).spans);
    frame.render_widget(Line::from(typed), input);
    frame.render_widget(hints(KEYS, keys.width, theme), keys);
    if chat.helping {
        help(frame, area, theme, &[("keys", rows(KEYS)), ("commands", COMMANDS.to_vec())]);
    }
}

fn header(chat: &ChatScreen, frame: &mut Frame<'_>, area: Rect, theme: &Theme) {
    let names: Vec<_> = chat.names.iter().map(|name| escape(name)).collect();
    let sampling = &chat.settings.sampling;
    let most = sampling.max_tokens.map(|most| format!(", at most {most} tokens")).unwrap_or_default();
    let Decoding { device, draft_tokens } = chat.decoding;
    let place = if device == Decoding::default().device { String::new() } else { format!(", {device}") };
    let drafts = if draft_tokens == 0 { String::new() } else { format!(", drafts {draft_tokens}") };
    let facts = format!("temperature {}{most}{place}{drafts}", sampling.temperature);
    let room = usize::from(area.width).saturating_sub(facts.width() + 2);
    let title = cut(&format!("chat with {}", names.join(" and ")), room);
    frame.render_widget(Line::styled(title, theme.style(Role::Title)), area);
    frame.render_widget(Line::styled(facts, theme.style(Role::Dim)).right_aligned(), area);
}

/// Returns the last message, or the state of the models, or the number of lines below the screen.
fn message(chat: &ChatScreen, below: usize, width: u16, theme: &Theme) -> Vec<Line<'static>> {
    let (text, role) = match (&chat.message, &chat.state) {
        (Some(message), _) => (message.clone(), Role::Accent),
        (None, State::Loading(name)) => (format!("loading {} …", escape(name)), Role::Dim),
        (None, State::Answering) => ("answering …".to_owned(), Role::Dim),
        (None, State::Ended(why)) => (why.replace('\n', " "), Role::Bad),
        (None, State::Ready) if below > 0 => {
            (format!("{} below; page down", counted(below as u64, "line")), Role::Dim)
        }
        (None, State::Ready) => (String::new(), Role::Dim),
    };
    let mut lines = wrap(&text, width.into());
    if lines.len() > usize::from(MESSAGE) {
        lines.truncate(MESSAGE.into());
        if let Some(last) = lines.last_mut() {
            *last = cut(&format!("{last} …"), width.into());
        }
    }
    lines.into_iter().map(|line| Line::styled(line, theme.style(role))).collect()
}

/// Returns the whole conversation in lines of at most `width` columns.
pub(super) fn transcript(chat: &ChatScreen, width: u16, theme: &Theme) -> Vec<Line<'static>> {
    let width = usize::from(width);
    if chat.exchanges.is_empty() {
        let text = "Type what you would say to the model, and Enter. F1 shows keys and commands.";
        return wrap(text, width)
            .into_iter()
            .map(|line| Line::styled(line, theme.style(Role::Dim)))
            .collect();
    }
    let mut lines = Vec::new();
    for exchange in &chat.exchanges {
        if !lines.is_empty() {
            lines.push(Line::default());
        }
        for (n, text) in wrapped(&exchange.question, width.saturating_sub(2)).into_iter().enumerate() {
            let mark = if n == 0 { "> " } else { "  " };
            lines.push(Line::styled(format!("{mark}{text}"), theme.style(Role::Title)));
        }
        lines.extend(answers(chat, exchange, width, theme));
    }
    lines
}

/// Returns the answers to a question, side by side.
fn answers(chat: &ChatScreen, exchange: &Exchange, width: usize, theme: &Theme) -> Vec<Line<'static>> {
    let sides = exchange.answers.len().max(1);
    let between = theme.glyph(" │ ", " | ");
    let column = width.saturating_sub(between.width() * (sides - 1)) / sides;
    let mut columns: Vec<_> = exchange
        .answers
        .iter()
        .enumerate()
        .map(|(side, answer)| {
            let mut lines = Vec::new();
            if sides > 1 {
                let name = cut(&escape(&chat.names[side]), column);
                lines.push((name, Role::Accent));
            }
            lines.extend(answer_lines(answer, column, chat.shows_thoughts));
            lines
        })
        .collect();
    let height = columns.iter().map(Vec::len).max().unwrap_or(0);
    for lines in &mut columns {
        lines.resize(height, (String::new(), Role::Text));
    }
    let row = |n: usize| {
        let mut spans = Vec::new();
        for (side, lines) in columns.iter().enumerate() {
            let (text, role) = &lines[n];
            spans.push(Span::styled(text.clone(), theme.style(*role)));
            if side + 1 < sides {
                spans.push(Span::raw(" ".repeat(column.saturating_sub(text.width()))));
                spans.push(Span::styled(between.to_owned(), theme.style(Role::Line)));
            }
        }
        Line::from(spans)
    };
    (0..height).map(row).collect()
}

fn answer_lines(answer: &AnswerShown, width: usize, shows_thoughts: bool) -> Vec<(String, Role)> {
    let mut lines = Vec::new();
    let mut add = |text: &str, role| lines.extend(wrapped(text, width).into_iter().map(|line| (line, role)));
    let (thought, text) = without_thinking(&answer.text, answer.opens_thinking);
    if let Some(thought) = thought {
        if shows_thoughts {
            add(thought, Role::Dim);
        } else {
            let words = thought.split_whitespace().count() as u64;
            add(&format!("[thought: {}, ^t shows]", counted(words, "word")), Role::Dim);
        }
    }
    if !text.trim().is_empty() {
        add(text.trim_end(), Role::Text);
    }
    if let Some(error) = &answer.error {
        add(error, Role::Bad);
    }
    if let Some(finished) = &answer.finished
        && text.trim().is_empty()
    {
        add(&format!("({})", words_of_no_answer(finished.finish_reason)), Role::Dim);
    }
    if let Some(finished) = &answer.finished {
        add(&words_of_end(finished), Role::Dim);
    }
    lines
}

/// Wraps the text of a stranger, line by line.
fn wrapped(text: &str, width: usize) -> Vec<String> {
    // A tab is spaces, which escaping would show as \t.
    text.split('\n').flat_map(|line| wrap(&escape(&line.replace('\t', "    ")), width)).collect()
}
