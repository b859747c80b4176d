//! An input line.

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use ratatui::text::{Line, Span};
use sparktune_base::escape::escape;
use unicode_segmentation::UnicodeSegmentation;
use unicode_width::UnicodeWidthStr;

use super::theme::{Role, Theme};

/// Text with a cursor that moves by grapheme clusters.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TextInput {
    text: String,
    /// The byte position, at a boundary between graphemes.
    cursor: usize,
}

impl TextInput {
    /// Creates an input with the cursor at the end of `text`.
    pub fn new(text: impl Into<String>) -> Self {
        let text = text.into();
        Self { cursor: text.len(), text }
    }

    /// Returns the typed text.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Replaces the text and moves the cursor to the end.
    pub fn set(&mut self, text: impl Into<String>) {
        *self = Self::new(text);
    }

    /// Handles a key. Returns false if it means nothing here.
    pub fn press(&mut self, event: &KeyEvent) -> bool {
        let ctrl = event.modifiers.contains(KeyModifiers::CONTROL);
        match event.code {
            KeyCode::Char('a') if ctrl => self.cursor = 0,
            KeyCode::Char('e') if ctrl => self.cursor = self.text.len(),
            KeyCode::Char('u') if ctrl => {
                self.text.drain(..self.cursor);
                self.cursor = 0;
            }
            KeyCode::Char('k') if ctrl => self.text.truncate(self.cursor),
            KeyCode::Char('w') if ctrl => {
                let from = self.word_before();
                self.text.drain(from..self.cursor);
                self.cursor = from;
            }
            KeyCode::Char(c) if !ctrl && !event.modifiers.contains(KeyModifiers::ALT) => {
                self.text.insert(self.cursor, c);
                self.cursor += c.len_utf8();
            }
            KeyCode::Left => self.cursor = self.before(),
            KeyCode::Right => self.cursor = self.after(),
            KeyCode::Home => self.cursor = 0,
            KeyCode::End => self.cursor = self.text.len(),
            KeyCode::Backspace => {
                let from = self.before();
                self.text.drain(from..self.cursor);
                self.cursor = from;
            }
            KeyCode::Delete => {
                let to = self.after();
                self.text.drain(self.cursor..to);
            }
            _ => return false,
        }
        true
    }

    /// Inserts pasted text without its line breaks.
    pub fn paste(&mut self, text: &str) {
        let line: String = text.chars().filter(|c| !c.is_control()).collect();
        self.insert(&line);
    }

    /// Inserts text at the cursor.
    pub fn insert(&mut self, text: &str) {
        self.text.insert_str(self.cursor, text);
        self.cursor += text.len();
    }

    fn before(&self) -> usize {
        self.text[..self.cursor].grapheme_indices(true).next_back().map_or(0, |(at, _)| at)
    }

    fn after(&self) -> usize {
        self.text[self.cursor..].graphemes(true).next().map_or(self.cursor, |g| self.cursor + g.len())
    }

    /// Returns the start of the word before the cursor. Slashes end words too, for paths.
    fn word_before(&self) -> usize {
        let is_break = |c: char| c.is_whitespace() || c == '/';
        let before = self.text[..self.cursor].trim_end_matches(is_break);
        before.rfind(is_break).map_or(0, |at| at + before[at..].chars().next().map_or(0, char::len_utf8))
    }

    /// Returns the text in at most `width` columns with the cursor visible. The cell at the cursor is shown
    /// as selected if `focused`.
    pub fn line(&self, width: u16, focused: bool, theme: &Theme) -> Line<'static> {
        let width = usize::from(width).max(2);
        let before = escape(&self.text[..self.cursor]).into_owned();
        let (at, after) = self.text[self.cursor..].split_at(self.after() - self.cursor);
        let at = if at.is_empty() { " ".to_owned() } else { escape(at).into_owned() };
        // Text before the cursor is cut on its left.
        let room = width.saturating_sub(at.width());
        let (mut start, mut taken) = (before.len(), 0);
        for (at, grapheme) in before.grapheme_indices(true).rev() {
            taken += grapheme.width();
            if taken > room {
                break;
            }
            start = at;
        }
        let shown = &before[start..];
        let cursor = if focused { theme.style(Role::Selected) } else { theme.style(Role::Text) };
        Line::from(vec![
            Span::raw(shown.to_owned()),
            Span::styled(at, cursor),
            Span::raw(escape(beginning(after, width)).into_owned()),
        ])
    }
}

/// Returns at most so many graphemes of a text, which may be a long paste.
fn beginning(text: &str, most: usize) -> &str {
    text.grapheme_indices(true).nth(most).map_or(text, |(end, _)| &text[..end])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::screen::Colours;

    #[test]
    fn a_long_paste_is_drawn_as_its_end_at_once() {
        let theme = Theme { colours: Colours::None, unicode: true };
        let mut input = TextInput::new("ab ".repeat(400_000));
        let words = |input: &TextInput| {
            input
                .line(10, false, &theme)
                .spans
                .iter()
                .map(|span| span.content.to_string())
                .collect::<String>()
        };
        assert_eq!(words(&input), "ab ab ab  ");
        input.press(&KeyEvent::new(KeyCode::Home, KeyModifiers::NONE));
        assert!(words(&input).starts_with("ab ab") && words(&input).len() < 30);
    }

    fn typed(keys: &[KeyEvent]) -> TextInput {
        let mut input = TextInput::default();
        for key in keys {
            assert!(input.press(key));
        }
        input
    }

    fn plain(code: KeyCode) -> KeyEvent {
        KeyEvent::new(code, KeyModifiers::NONE)
    }

    fn ctrl(c: char) -> KeyEvent {
        KeyEvent::new(KeyCode::Char(c), KeyModifiers::CONTROL)
    }

    #[test]
    fn a_character_is_what_a_person_takes_for_one() {
        let mut input = TextInput::new("a👩\u{200d}🚀e\u{301}");
        input.press(&plain(KeyCode::Backspace));
        assert_eq!(input.text(), "a👩\u{200d}🚀");
        input.press(&plain(KeyCode::Left));
        input.press(&plain(KeyCode::Char('b')));
        assert_eq!(input.text(), "ab👩\u{200d}🚀");
        input.press(&plain(KeyCode::Delete));
        assert_eq!(input.text(), "ab");
    }

    #[test]
    fn words_of_a_path_are_deleted_one_by_one() {
        let mut input = TextInput::new("/data/my sets/train.jsonl");
        for left in ["/data/my sets/", "/data/my ", "/data/", "/", ""] {
            input.press(&ctrl('w'));
            assert_eq!(input.text(), left);
        }
    }

    #[test]
    fn keys_that_are_not_for_text_are_left_to_others() {
        let mut input = typed(&[plain(KeyCode::Char('x'))]);
        for key in [plain(KeyCode::Enter), plain(KeyCode::Up), ctrl('s'), plain(KeyCode::Tab)] {
            assert!(!input.press(&key));
        }
        assert_eq!(input.text(), "x");
    }

    #[test]
    fn a_paste_stays_on_its_line_and_a_long_line_keeps_the_cursor_in_sight() {
        let theme = Theme { colours: Colours::None, unicode: true };
        let mut input = TextInput::default();
        input.paste("one\ntwo\u{1b}[2J three");
        assert_eq!(input.text(), "onetwo[2J three");
        assert_eq!(input.line(8, true, &theme).to_string(), "2J three"[1..].to_owned() + " ");
        input.press(&plain(KeyCode::Home));
        assert_eq!(input.line(8, true, &theme).to_string(), "onetwo[2J");
    }
}
