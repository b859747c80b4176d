//! Shows examples as the model will see them. Trained text is underlined and labelled in the margin.

use crossterm::event::{KeyCode, KeyEvent};
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::Modifier;
use ratatui::text::{Line, Span};
use sparktune_app::data::DataFound;
use sparktune_app::questions::data::{DataAction, other_think};
use sparktune_base::choices::Think;
use sparktune_base::escape::escape;
use sparktune_base::thinking::Thinking;
use sparktune_base::units::{count, counted};
use sparktune_data::{Pick, Preview as Found, Previewed, Rendering, Wanted};
use sparktune_plan::Answer;
use unicode_segmentation::UnicodeSegmentation;
use unicode_width::UnicodeWidthStr;

use super::keys::{Keys, Typing, down, enter, page_down, page_up, stop, up};
use super::lines::{draw, fit, from_row, ink, inked};
use super::loading::Loading;
use super::request::{Request, Response, Ticketed};
use super::state::State;
use crate::screen::{Binding, Role, TextInput, Theme, action, key};

#[derive(Debug, Default)]
pub(super) struct Preview {
    example: usize,
    scroll: usize,
    /// What is typed to be looked for: the number of a line, or a text.
    typing: Option<(By, TextInput)>,
    /// The examples that were looked for, which are shown instead of the first ones.
    found: Loading<Box<Found>>,
}

/// How examples are looked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum By {
    Line,
    Text,
}

#[derive(Debug, Clone, Copy)]
enum Action {
    Close,
    Think,
    Find(By),
    Next,
    Before,
    Up,
    Down,
    PageUp,
    PageDown,
}

const KEYS: &[Binding<Action>] = &[
    Binding {
        keys: &[key(KeyCode::Esc), key(KeyCode::Enter), key(KeyCode::Char('p'))],
        shown: "esc",
        help: "back to the data",
        hint: Some("back to the data"),
        action: Action::Close,
    },
    Binding {
        keys: &[key(KeyCode::Char('t'))],
        shown: "t",
        help: DataAction::SwitchThink.label(),
        hint: Some("think policy"),
        action: Action::Think,
    },
    Binding {
        keys: &[key(KeyCode::Right), key(KeyCode::Char('n'))],
        shown: "→ n",
        help: "next example",
        hint: None,
        action: Action::Next,
    },
    Binding {
        keys: &[key(KeyCode::Left), key(KeyCode::Char('b'))],
        shown: "← b",
        help: "previous example",
        hint: Some("other example"),
        action: Action::Before,
    },
    Binding {
        keys: &[key(KeyCode::Char('/'))],
        shown: "/",
        help: "look for examples with a text, in all of the data",
        hint: Some("search"),
        action: Action::Find(By::Text),
    },
    Binding {
        keys: &[key(KeyCode::Char(':'))],
        shown: ":",
        help: "show the example of a line",
        hint: Some("line"),
        action: Action::Find(By::Line),
    },
    up("scroll up", Action::Up),
    down("scroll down", Some("scroll"), Action::Down),
    page_up(Action::PageUp),
    page_down(Action::PageDown),
];

const FIND_KEYS: &[Binding<Typing>] =
    &[enter("look for it", "look for it", Typing::Take), stop("back to the example", "back")];

/// The width of the margin `context│` in columns.
const MARGIN: usize = 9;

/// Returns whether an inserted think block is trained, according to the answers.
pub(super) fn think(state: &State) -> Think {
    sparktune_app::data::think(&state.planner.answers, thinking(state))
}

fn thinking(state: &State) -> Thinking {
    state.data.ready().map(|data| data.facts.thinking).unwrap_or_default()
}

/// Switches the answer to the think question.
pub(super) fn switch_think(state: &mut State) {
    state.planner.answers.think = Some(Answer::flag(other_think(&state.planner.answers, thinking(state))));
    state.replan();
}

impl Preview {
    pub(super) fn keys(&self) -> Keys {
        if self.typing.is_some() { Keys::typing(FIND_KEYS) } else { Keys::of(KEYS) }
    }

    pub(super) fn receive(&mut self, response: &Ticketed<Response>) {
        if let Response::Found(found) = &response.body
            && self.found.answer(response.ticket, found.clone())
        {
            (self.example, self.scroll) = (0, 0);
        }
    }

    pub(super) fn paste(&mut self, text: &str) {
        if let Some((_, typed)) = &mut self.typing {
            typed.paste(text);
        }
    }

    /// Returns the examples that are shown: those that were looked for, or the first ones.
    fn examples<'a>(&'a self, state: &'a State) -> &'a [Previewed] {
        let first = || state.data.ready().map_or(&[][..], |data| data.preview.examples.as_slice());
        self.found.ready().map_or_else(first, |found| found.examples.as_slice())
    }

    /// Forgets what was found, and ends a search that is still going on.
    fn end_search(&mut self, state: &mut State) {
        let found = std::mem::take(&mut self.found);
        state.cancel(&found);
    }

    /// Handles a key while something is typed to be looked for.
    fn find_key(&mut self, by: By, mut typed: TextInput, event: &KeyEvent, state: &mut State) {
        match action(FIND_KEYS, event) {
            Some(Typing::Stop) => return,
            Some(Typing::Take) => {
                let wanted = match (by, typed.text().trim()) {
                    (_, "") => return self.end_search(state),
                    (By::Text, text) => Wanted::Text(text.to_owned()),
                    (By::Line, line) => match line.replace(',', "").parse() {
                        Ok(line) => Wanted::Line { file: None, line },
                        Err(_) => {
                            self.typing = Some((by, typed));
                            return state.say(Role::Warn, "the number of a line, such as 812");
                        }
                    },
                };
                self.end_search(state);
                let answers = Box::new(state.planner.answers.clone());
                self.found = state.request(Request::Find { answers, wanted });
                return;
            }
            _ => drop(typed.press(event)),
        }
        self.typing = Some((by, typed));
    }

    /// Handles a key. Returns `None` when it means nothing here, and true when the preview should be closed.
    pub(super) fn key(&mut self, event: &KeyEvent, state: &mut State) -> Option<bool> {
        if let Some((by, typed)) = self.typing.take() {
            self.find_key(by, typed, event, state);
            return Some(false);
        }
        let act = action(KEYS, event)?;
        let examples = self.examples(state).len();
        let page = usize::from(state.size.height).saturating_sub(8).max(1);
        let most = self.length(state).saturating_sub(page);
        match act {
            // What was looked for is left first.
            Action::Close if event.code == KeyCode::Esc && !matches!(self.found, Loading::Idle) => {
                self.end_search(state);
                *self = Self::default();
            }
            Action::Close => {
                self.end_search(state);
                return Some(true);
            }
            Action::Find(by) => self.typing = Some((by, TextInput::default())),
            Action::Think => switch_think(state),
            Action::Next if self.example + 1 < examples => {
                (self.example, self.scroll) = (self.example + 1, 0)
            }
            Action::Before if self.example > 0 => (self.example, self.scroll) = (self.example - 1, 0),
            Action::Next | Action::Before => {}
            Action::Up => self.scroll = self.scroll.min(most).saturating_sub(1),
            Action::Down => self.scroll = (self.scroll + 1).min(most),
            Action::PageUp => self.scroll = self.scroll.min(most).saturating_sub(page),
            Action::PageDown => self.scroll = (self.scroll + page).min(most),
        }
        Some(false)
    }

    /// Returns the number of rows that the example takes on this screen.
    fn length(&self, state: &State) -> usize {
        let width = usize::from(state.size.width).saturating_sub(2 + MARGIN);
        let example = self.examples(state).get(self.example);
        example.map_or(0, |example| rows(under(example, think(state)), width).len())
    }

    pub(super) fn view(&self, state: &State, frame: &mut Frame<'_>, area: Rect, theme: &Theme) {
        let Some(data) = state.data.ready() else { return };
        let width = usize::from(area.width);
        let [line, area] = area.layout(&Layout::vertical([
            Constraint::Length(u16::from(self.typing.is_some() || !matches!(self.found, Loading::Idle))),
            Constraint::Min(1),
        ]));
        draw(frame, line, vec![self.sought(width, theme)]);
        let Some(example) = self.examples(state).get(self.example) else {
            let none = if self.found.wait().is_some() { "" } else { "there is no example to show" };
            return draw(frame, area, vec![inked(theme, Role::Dim, none)]);
        };
        let [head, text] = area.layout(&Layout::vertical([Constraint::Length(3), Constraint::Min(1)]));
        draw(frame, head, self.head(example, data, state, width, theme));
        let all = rows(under(example, think(state)), width.saturating_sub(MARGIN));
        let shown = from_row(self.scroll, all.len(), usize::from(text.height));
        let lines = all[shown].iter().map(|row| row.line(theme)).collect();
        draw(frame, text, lines);
    }

    /// Says what is typed, or what became of the search.
    fn sought(&self, width: usize, theme: &Theme) -> Line<'static> {
        let words = match (&self.typing, &self.found) {
            (Some((by, typed)), _) => {
                let label = match by {
                    By::Line => "line: ",
                    By::Text => "search: ",
                };
                let mut line = typed.line(width.saturating_sub(label.width()) as u16, true, theme);
                line.spans.insert(0, ink(theme, Role::Accent, label));
                return line;
            }
            (None, Loading::Idle) => String::new(),
            (None, Loading::Waiting(_)) => "reading all of the data …".to_owned(),
            (None, Loading::Failed(why)) => escape(why).into_owned(),
            (None, Loading::Ready(found)) => match (&found.examples[..], found.why_not_found()) {
                ([], Some(why)) => escape(&why).into_owned(),
                ([], None) => "nothing was found; esc shows the first examples".to_owned(),
                (examples, _) => {
                    format!("{} found; esc shows the first ones", counted(examples.len() as u64, "example"))
                }
            },
        };
        inked(theme, Role::Dim, words)
    }

    fn head(
        &self,
        example: &Previewed,
        data: &DataFound,
        state: &State,
        width: usize,
        theme: &Theme,
    ) -> Vec<Line<'static>> {
        let pick = match example.pick {
            Pick::First => "",
            Pick::Middle => " (from the middle)",
            Pick::Longest => " (the longest)",
        };
        let trains = match under(example, think(state)).target_tokens {
            // Only an inserted think block is left, which is context.
            0 => "rejected with this policy".to_owned(),
            targets => format!("{} trained", count(targets.into())),
        };
        let first = format!(
            "example {} of {}{pick}: {}, {}, {trains}",
            self.example + 1,
            self.examples(state).len(),
            example.place,
            counted(example.tokens.into(), "token"),
        );
        let policy = policy_in_words(data, think(state));
        let (shown, all) = (data.preview.examples.len() as u64, data.facts.examples);
        let which = match self.found {
            Loading::Idle if shown < all => format!(
                "{} of {}: the first, from the middle, the longest; / finds others",
                count(shown),
                counted(all, "example")
            ),
            _ => String::new(),
        };
        vec![
            inked(theme, Role::Title, fit(&first, width, theme)),
            Line::from(vec![
                trained(theme, "underlined".into()),
                ink(theme, Role::Dim, fit(&format!(": trained. {policy}"), width.saturating_sub(10), theme)),
            ]),
            inked(theme, Role::Dim, fit(&which, width, theme)),
        ]
    }
}

/// Describes the effect of the think policy on this data.
pub(super) fn policy_in_words(data: &DataFound, think: Think) -> &'static str {
    match (&data.preview.empty_think_block, think) {
        (None, _) => "The template inserts no think block, so there is nothing to choose",
        (Some(_), Think::Skip) => "think = skip: the template's empty <think> is not trained",
        (Some(_), Think::Train) => "think = train: the template's empty <think> is trained",
    }
}

/// Returns an example as rendered under a think policy.
fn under(example: &Previewed, think: Think) -> &Rendering {
    match think {
        Think::Train => &example.train,
        Think::Skip => &example.skip,
    }
}

/// Returns the beginning of the first example in a few rows, to be shown next to the figures.
pub(super) fn excerpt(
    data: &DataFound,
    think: Think,
    width: usize,
    height: usize,
    theme: &Theme,
) -> Vec<Line<'static>> {
    let Some(example) = data.preview.examples.first() else { return Vec::new() };
    let all = rows(under(example, think), width.saturating_sub(MARGIN));
    all.iter().take(height).map(|row| row.line(theme)).collect()
}

fn trained(theme: &Theme, text: String) -> Span<'static> {
    Span::styled(text, theme.style(Role::Trained).add_modifier(Modifier::UNDERLINED))
}

/// One row of a rendered example.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Row {
    /// The characters, and whether each is trained.
    cells: Vec<(bool, String)>,
    width: usize,
    /// Whether the line break at the end of the row is trained.
    trained_break: bool,
    /// The kind of text differs from the row before, so its name is shown in the margin.
    turns: bool,
}

impl Row {
    fn is_trained(&self) -> bool {
        self.cells.iter().any(|(trained, _)| *trained) || (self.cells.is_empty() && self.trained_break)
    }

    fn push(&mut self, is_trained: bool, text: &str) {
        self.width += text.width();
        self.cells.push((is_trained, text.to_owned()));
    }

    /// Cuts off the part that belongs on the next row: the last word, unless it takes up most of this row.
    fn overflow(&mut self) -> Self {
        let blank =
            self.cells.iter().rposition(|(_, text)| text == " ").map_or(self.cells.len(), |at| at + 1);
        let cut = if blank > self.cells.len() / 2 { blank } else { self.cells.len() };
        let cells = self.cells.split_off(cut);
        let width = cells.iter().map(|(_, text)| text.width()).sum();
        self.width -= width;
        Self { cells, width, ..Self::default() }
    }

    /// Returns stretches of one kind of text.
    fn pieces(&self) -> Vec<(bool, String)> {
        let mut pieces: Vec<(bool, String)> = Vec::new();
        for (trained, text) in &self.cells {
            match pieces.last_mut() {
                Some((kind, piece)) if kind == trained => piece.push_str(text),
                _ => pieces.push((*trained, text.clone())),
            }
        }
        pieces
    }

    fn line(&self, theme: &Theme) -> Line<'static> {
        let is_trained = self.is_trained();
        let word = match (self.turns, is_trained) {
            (false, _) => "",
            (true, true) => "trained",
            (true, false) => "context",
        };
        let (role, rule) = if is_trained {
            (Role::Trained, theme.glyph("┃", "#"))
        } else {
            (Role::Line, theme.glyph("│", "|"))
        };
        let mut spans = vec![ink(theme, role, word), ink(theme, Role::Line, " ".repeat(7 - word.len()))];
        spans.push(ink(theme, role, format!("{rule} ")));
        spans.extend(
            self.pieces()
                .into_iter()
                .map(|(is_trained, text)| if is_trained { trained(theme, text) } else { Span::raw(text) }),
        );
        Line::from(spans)
    }
}

/// Wraps the example into rows of at most `width` columns. Control characters are escaped; line breaks are
/// kept.
fn rows(example: &Rendering, width: usize) -> Vec<Row> {
    let width = width.max(1);
    let mut rows = Vec::new();
    let mut row = Row::default();
    let graphemes = example
        .spans
        .iter()
        .flat_map(|span| span.text.graphemes(true).map(|grapheme| (span.trained, grapheme)));
    for (is_trained, grapheme) in graphemes {
        if grapheme == "\n" || grapheme == "\r\n" {
            row.trained_break = is_trained;
            rows.push(std::mem::take(&mut row));
            continue;
        }
        // An escaped character may be wider than the row.
        for piece in escape(grapheme).graphemes(true) {
            if row.width > 0 && row.width + piece.width() > width {
                let next = row.overflow();
                rows.push(std::mem::replace(&mut row, next));
            }
            row.push(is_trained, piece);
        }
    }
    rows.push(row);
    let mut before = None;
    for row in &mut rows {
        row.turns = before != Some(row.is_trained());
        before = Some(row.is_trained());
    }
    rows
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn rendering(pieces: &[(bool, &str)]) -> Rendering {
        let span = |(trained, text): &(bool, &str)| sparktune_data::Span {
            text: (*text).into(),
            trained: *trained,
            special: false,
            left_out: false,
        };
        Rendering { target_tokens: 9, spans: pieces.iter().map(span).collect() }
    }

    #[test]
    fn what_is_trained_is_marked_to_the_character() {
        let example = rendering(&[
            (false, "user: hi\nbot: "),
            (true, "<think></think>"),
            (false, "\n\n"),
            (true, "Hello"),
            (false, "\u{1b}[2J"),
        ]);
        let of = |row: &Row| {
            row.pieces().iter().map(|(t, p)| format!("{}{p}", if *t { "+" } else { "-" })).collect()
        };
        let kinds: Vec<String> = rows(&example, 40).iter().map(of).collect();
        assert_eq!(kinds, ["-user: hi", "-bot: +<think></think>", "", "+Hello-\\u{1b}[2J"]);
    }

    proptest! {
        #[test]
        fn rows_keep_their_width_and_lose_nothing(text in any::<String>(), width in 8usize..30) {
            let rows = rows(&rendering(&[(false, &text)]), width);
            prop_assert!(rows.iter().all(|row| row.width <= width));
            let shown: String = rows.iter().flat_map(|row| row.cells.iter().map(|(_, text)| text.as_str())).collect();
            prop_assert_eq!(shown, escape(&text.replace("\r\n", "").replace('\n', "")).into_owned());
        }
    }
}
