//! Key bindings: one table decides what a key does, what the hint line shows and what the help lists.

use crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::text::{Line, Span};
use unicode_width::UnicodeWidthStr;

use super::popup::Popup;
use super::theme::{Role, Theme};

/// A key with its modifiers. Shift counts only for keys that are not characters: `G` is a character of its
/// own.
pub type Key = (KeyCode, KeyModifiers);

/// Returns a key without modifiers.
pub const fn key(code: KeyCode) -> Key {
    (code, KeyModifiers::NONE)
}

/// Returns a character with Ctrl.
pub const fn ctrl(c: char) -> Key {
    (KeyCode::Char(c), KeyModifiers::CONTROL)
}

/// Returns a key with Shift.
pub const fn shift(code: KeyCode) -> Key {
    (code, KeyModifiers::SHIFT)
}

/// A binding of keys to an action.
#[derive(Debug, Clone, Copy)]
pub struct Binding<A: 'static> {
    /// The keys that trigger the action.
    pub keys: &'static [Key],
    /// The keys as written in the help: `↑ k`.
    pub shown: &'static str,
    /// The description of the action in the help: `step up`.
    pub help: &'static str,
    /// One word for the hint line, if the binding is shown there.
    pub hint: Option<&'static str>,
    /// The action.
    pub action: A,
}

/// Returns the action that the table binds to a key.
pub fn action<A: Copy>(table: &[Binding<A>], event: &KeyEvent) -> Option<A> {
    if event.kind == KeyEventKind::Release {
        return None;
    }
    let mut modifiers = event.modifiers & (KeyModifiers::CONTROL | KeyModifiers::ALT | KeyModifiers::SHIFT);
    if matches!(event.code, KeyCode::Char(_) | KeyCode::BackTab) {
        modifiers.remove(KeyModifiers::SHIFT);
    }
    table.iter().find(|binding| binding.keys.contains(&(event.code, modifiers))).map(|binding| binding.action)
}

/// Returns the hint line of a table, with as many hints as fit into `width` columns.
pub fn hints<A>(table: &[Binding<A>], width: u16, theme: &Theme) -> Line<'static> {
    hint_line(table.iter().filter_map(|binding| Some((binding.shown, binding.hint?))), width, theme)
}

/// Returns the hint line of several tables, the most important first.
pub fn hint_line(
    hints: impl IntoIterator<Item = (&'static str, &'static str)>,
    width: u16,
    theme: &Theme,
) -> Line<'static> {
    let mut spans = Vec::new();
    let mut used = 0;
    for (shown, hint) in hints {
        let shown = theme.key_names(shown);
        let wide = shown.width() + hint.width() + 3;
        if used + wide > usize::from(width) {
            break;
        }
        used += wide;
        spans.push(Span::styled(shown, theme.style(Role::Accent)));
        spans.push(Span::styled(format!(" {hint}  "), theme.style(Role::Dim)));
    }
    Line::from(spans)
}

/// Returns the rows of a table for the help. A binding whose `shown` is empty has no row, because the row
/// above describes it.
pub fn rows<A>(table: &'static [Binding<A>]) -> Vec<(&'static str, &'static str)> {
    let listed = table.iter().filter(|binding| !binding.shown.is_empty());
    listed.map(|binding| (binding.shown, binding.help)).collect()
}

/// Draws the help over `area`: each group of bindings under its title, and a note that any key closes it.
pub fn help(frame: &mut Frame<'_>, area: Rect, theme: &Theme, groups: &[(&str, Vec<(&str, &str)>)]) {
    let rows = groups.iter().flat_map(|(_, rows)| rows);
    let keys = rows.map(|(shown, _)| theme.key_names(shown).width()).max().unwrap_or(0);
    let mut lines = Vec::new();
    // On a low screen, showing all keys is more important than keeping their order.
    let all = groups.iter().map(|(_, rows)| rows.len() + 2).sum::<usize>() + 1;
    let room = usize::from(area.height);
    let (spaced, titled) = (all <= room, all - groups.len() < room);
    for (title, rows) in groups {
        if !lines.is_empty() && spaced {
            lines.push(Line::default());
        }
        if titled {
            lines.push(Line::styled((*title).to_owned(), theme.style(Role::Title)));
        }
        for (shown, what) in rows {
            let shown = theme.key_names(shown);
            let gap = " ".repeat(keys - shown.width() + 2);
            lines.push(Line::from(vec![
                Span::styled(format!("  {shown}"), theme.style(Role::Accent)),
                Span::raw(format!("{gap}{what}")),
            ]));
        }
    }
    Popup { title: "keys", role: Role::Accent, lines, keys: "any key closes this" }.draw(frame, area, theme);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Clone, Copy, PartialEq)]
    enum Do {
        Up,
        Last,
        Save,
        Back,
    }

    const TABLE: &[Binding<Do>] = &[
        Binding {
            keys: &[key(KeyCode::Up), key(KeyCode::Char('k'))],
            shown: "↑ k",
            help: "up",
            hint: Some("up"),
            action: Do::Up,
        },
        Binding { keys: &[key(KeyCode::Char('G'))], shown: "G", help: "last", hint: None, action: Do::Last },
        Binding { keys: &[ctrl('s')], shown: "ctrl-s", help: "save", hint: Some("save"), action: Do::Save },
        Binding {
            keys: &[key(KeyCode::BackTab)],
            shown: "shift-tab",
            help: "back",
            hint: Some("back"),
            action: Do::Back,
        },
    ];

    fn press(code: KeyCode, modifiers: KeyModifiers) -> Option<Do> {
        action(TABLE, &KeyEvent::new(code, modifiers))
    }

    #[test]
    fn a_key_does_what_the_table_says_however_the_terminal_reports_shift() {
        assert_eq!(press(KeyCode::Char('k'), KeyModifiers::NONE), Some(Do::Up));
        assert_eq!(press(KeyCode::Char('G'), KeyModifiers::SHIFT), Some(Do::Last));
        assert_eq!(press(KeyCode::Char('G'), KeyModifiers::NONE), Some(Do::Last));
        assert_eq!(press(KeyCode::Char('s'), KeyModifiers::CONTROL), Some(Do::Save));
        assert_eq!(press(KeyCode::BackTab, KeyModifiers::SHIFT), Some(Do::Back));
        assert_eq!(press(KeyCode::Char('s'), KeyModifiers::NONE), None);
        assert_eq!(press(KeyCode::Char('k'), KeyModifiers::ALT), None);
    }

    #[test]
    fn the_hint_line_shows_whole_hints_only_and_spells_arrows_out_without_unicode() {
        let theme = Theme { colours: super::super::Colours::None, unicode: false };
        let line = |width| hints(TABLE, width, &theme).to_string();
        assert_eq!(line(80), "Up k up  ctrl-s save  shift-tab back  ");
        assert_eq!(line(20), "Up k up  ");
    }
}
