//! Colours by meaning. A screen uses roles; the style of a role depends on the capabilities of the terminal.
//!
//! No role is shown by colour alone: each screen also has words or glyphs for it, so [`Colours::None`] loses
//! nothing.

use ratatui::style::{Color, Modifier, Style};
use ratatui::symbols::border;

/// The number of colours that the terminal shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Colours {
    /// 24 bits, if `COLORTERM` says so.
    True,
    /// The 256 of xterm.
    Indexed,
    /// The 16 colours of the terminal's palette.
    Ansi,
    /// None, because of `NO_COLOR` or a terminal without colours.
    None,
}

/// The meaning of a piece of a screen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Ordinary text.
    Text,
    /// Headings and the most important text.
    Title,
    /// Less important text: labels, units, reasons.
    Dim,
    /// Frames, axes, grid.
    Line,
    /// A key to press, the chosen value, progress.
    Accent,
    /// The row or cell under the cursor.
    Selected,
    /// Training loss and other measured curves.
    Curve,
    /// Moving average.
    Average,
    /// Evaluation.
    Eval,
    /// Another run, shown for comparison.
    Other,
    /// The second of several such runs.
    Second,
    /// The third one.
    Third,
    /// Steps that a later attempt repeated.
    Discarded,
    /// Everything is in order.
    Good,
    /// Something needs attention.
    Warn,
    /// An error.
    Bad,
    /// Tokens that contribute to the loss.
    Trained,
}

/// The style of roles, and the available glyphs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Theme {
    /// Colours of the terminal.
    pub colours: Colours,
    /// Whether braille, blocks and box lines can be shown; otherwise plain ASCII is used.
    pub unicode: bool,
}

impl Theme {
    /// Chooses the theme for the environment (`NO_COLOR`, `COLORTERM`, `TERM`, `LC_ALL`, `LC_CTYPE`, `LANG`).
    pub fn from_env(env: impl Fn(&str) -> Option<String>) -> Self {
        let set = |name: &str| env(name).filter(|value| !value.is_empty());
        let term = set("TERM").unwrap_or_default();
        let colours = if set("NO_COLOR").is_some() || ["", "dumb", "vt100", "vt220"].contains(&&*term) {
            Colours::None
        } else if set("COLORTERM").is_some_and(|value| value == "truecolor" || value == "24bit") {
            Colours::True
        } else if term.contains("256color") {
            Colours::Indexed
        } else {
            Colours::Ansi
        };
        let locale = ["LC_ALL", "LC_CTYPE", "LANG"].into_iter().find_map(set).unwrap_or_default();
        let utf8 = locale.to_lowercase().replace('-', "").ends_with("utf8");
        // The Linux console has box lines, but neither braille nor partial blocks.
        Self { colours, unicode: utf8 && term != "linux" }
    }

    /// Returns the style of a role.
    pub fn style(&self, role: Role) -> Style {
        let plain = Style::new();
        let modifiers = match role {
            Role::Title => Modifier::BOLD,
            Role::Selected => Modifier::REVERSED,
            _ if self.colours != Colours::None => Modifier::empty(),
            Role::Dim | Role::Discarded => Modifier::DIM,
            Role::Accent | Role::Warn | Role::Average => Modifier::BOLD,
            Role::Bad => Modifier::BOLD.union(Modifier::REVERSED),
            Role::Trained => Modifier::UNDERLINED,
            _ => Modifier::empty(),
        };
        let style = plain.add_modifier(modifiers);
        match self.colour(role) {
            Some(colour) => style.fg(colour),
            None => style,
        }
    }

    /// The colours are readable on black and on white: none is very light or very dark.
    fn colour(&self, role: Role) -> Option<Color> {
        let (rgb, indexed, ansi) = match role {
            Role::Text | Role::Title | Role::Selected => return None,
            Role::Dim => (0x86_90_9c, 245, Color::DarkGray),
            Role::Line => (0x5c_66_73, 241, Color::DarkGray),
            Role::Accent => (0x3d_a5_f4, 39, Color::Cyan),
            Role::Curve => (0x4d_8f_d6, 68, Color::Blue),
            Role::Average => (0xf0_9a_3e, 208, Color::Yellow),
            Role::Eval => (0xc6_7a_e6, 170, Color::Magenta),
            Role::Other => (0x2f_b5_a5, 37, Color::Cyan),
            Role::Second => (0xd8_6f_9c, 168, Color::Red),
            Role::Third => (0x8f_a8_3a, 106, Color::Green),
            Role::Discarded => (0x70_76_7e, 242, Color::DarkGray),
            Role::Good | Role::Trained => (0x3f_b9_5f, 71, Color::Green),
            Role::Warn => (0xd9_9a_1c, 172, Color::Yellow),
            Role::Bad => (0xf0_55_5c, 203, Color::Red),
        };
        match self.colours {
            Colours::True => Some(Color::from_u32(rgb)),
            Colours::Indexed => Some(Color::Indexed(indexed)),
            Colours::Ansi => Some(ansi),
            Colours::None => None,
        }
    }

    /// Returns the first text if the terminal shows all of Unicode, otherwise the second.
    pub fn glyph<'a>(&self, unicode: &'a str, ascii: &'a str) -> &'a str {
        if self.unicode { unicode } else { ascii }
    }

    /// Names of keys, with words in place of arrows where there are none.
    pub(super) fn key_names(&self, shown: &str) -> String {
        if self.unicode {
            return shown.to_owned();
        }
        [("↑", "Up"), ("↓", "Down"), ("←", "Left"), ("→", "Right"), ("⏎", "Enter")]
            .iter()
            .fold(shown.to_owned(), |text, (arrow, word)| text.replace(arrow, word))
    }

    /// Returns the lines of frames.
    pub fn border(&self) -> border::Set<'static> {
        const ASCII: border::Set<'static> = border::Set {
            top_left: "+",
            top_right: "+",
            bottom_left: "+",
            bottom_right: "+",
            vertical_left: "|",
            vertical_right: "|",
            horizontal_top: "-",
            horizontal_bottom: "-",
        };
        if self.unicode { border::ROUNDED } else { ASCII }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn theme(pairs: &[(&str, &str)]) -> Theme {
        Theme::from_env(|name| {
            pairs.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn colours_are_as_many_as_the_terminal_claims_and_none_when_unwanted() {
        let colours = |pairs| theme(pairs).colours;
        assert_eq!(colours(&[("TERM", "xterm-256color"), ("COLORTERM", "truecolor")]), Colours::True);
        assert_eq!(colours(&[("TERM", "xterm-256color")]), Colours::Indexed);
        assert_eq!(colours(&[("TERM", "xterm"), ("COLORTERM", "yes")]), Colours::Ansi);
        assert_eq!(colours(&[("TERM", "xterm-256color"), ("NO_COLOR", "1")]), Colours::None);
        assert_eq!(colours(&[("TERM", "xterm"), ("NO_COLOR", "")]), Colours::Ansi);
        assert_eq!(colours(&[("TERM", "dumb")]), Colours::None);
    }

    #[test]
    fn glyphs_need_a_utf8_locale_and_more_than_the_console() {
        assert!(theme(&[("TERM", "xterm"), ("LANG", "de_DE.UTF-8")]).unicode);
        assert!(theme(&[("TERM", "xterm"), ("LANG", "C.utf8")]).unicode);
        assert!(!theme(&[("TERM", "xterm"), ("LANG", "de_DE.UTF-8"), ("LC_ALL", "C")]).unicode);
        assert!(!theme(&[("TERM", "linux"), ("LANG", "C.UTF-8")]).unicode);
        assert!(!theme(&[("TERM", "xterm")]).unicode);
    }

    #[test]
    fn without_colours_no_role_has_one() {
        let theme = Theme { colours: Colours::None, unicode: true };
        for role in [Role::Text, Role::Curve, Role::Bad, Role::Trained, Role::Selected] {
            let style = theme.style(role);
            assert!(style.fg.is_none() && style.bg.is_none(), "{role:?}");
        }
        assert_ne!(theme.style(Role::Trained), theme.style(Role::Text));
        assert_ne!(theme.style(Role::Selected), theme.style(Role::Text));
    }
}
