//! Builds markup in which all text is escaped.
//!
//! Tag and attribute names are constants of the program (`&'static str`). All other text goes through
//! [`Markup::text`], [`Markup::lines`] or an attribute value, which show active characters as
//! [`crate::escape`] does and then escape for XML. The result is XHTML that an HTML parser reads the same
//! way.

use std::borrow::Cow;
use std::fmt::Write as _;

use sparktune_base::escape::escape;
use sparktune_base::units::count;

/// Attributes as pairs of a name and an unescaped value.
pub(super) type Attrs<'a> = &'a [(&'static str, &'a str)];

/// A page being written.
#[derive(Debug, Default)]
pub(super) struct Markup {
    out: String,
}

impl Markup {
    /// Returns the finished page.
    pub(super) fn finish(self) -> String {
        self.out
    }

    /// Writes an element with the content that `inside` writes.
    pub(super) fn element(&mut self, tag: &'static str, attrs: Attrs, inside: impl FnOnce(&mut Self)) {
        self.begin(tag, attrs);
        self.out.push('>');
        inside(self);
        self.out.push_str("</");
        self.out.push_str(tag);
        self.out.push('>');
    }

    /// Writes an element that contains only text.
    pub(super) fn leaf(&mut self, tag: &'static str, attrs: Attrs, text: &str) {
        self.element(tag, attrs, |page| page.text(text));
    }

    /// Writes an element that is always empty: a void element of HTML, or one of SVG.
    pub(super) fn empty(&mut self, tag: &'static str, attrs: Attrs) {
        self.begin(tag, attrs);
        self.out.push_str("/>");
    }

    fn begin(&mut self, tag: &'static str, attrs: Attrs) {
        self.out.push('<');
        self.out.push_str(tag);
        for (name, value) in attrs {
            self.out.push(' ');
            self.out.push_str(name);
            self.out.push_str("=\"");
            self.text(value);
            self.out.push('"');
        }
    }

    /// Writes text on one line. Newlines in it become visible.
    pub(super) fn text(&mut self, text: &str) {
        for c in escape(text).chars() {
            match c {
                '&' => self.out.push_str("&amp;"),
                '<' => self.out.push_str("&lt;"),
                '>' => self.out.push_str("&gt;"),
                '"' => self.out.push_str("&quot;"),
                '\'' => self.out.push_str("&#39;"),
                // These characters are not allowed in XML.
                '\u{fffe}' | '\u{ffff}' => {
                    let _ = write!(self.out, "\\u{{{:x}}}", u32::from(c)); // a String takes everything
                }
                c => self.out.push(c),
            }
        }
    }

    /// Writes text and keeps its newlines, for elements that show them.
    pub(super) fn lines(&mut self, text: &str) {
        for (i, line) in text.split('\n').enumerate() {
            if i > 0 {
                self.out.push('\n');
            }
            self.text(line.strip_suffix('\r').unwrap_or(line));
        }
    }

    /// Writes text in which words between backticks are set as code.
    pub(super) fn sentence(&mut self, text: &str) {
        for (i, part) in text.split('`').enumerate() {
            if i % 2 == 1 {
                self.leaf("code", &[], part);
            } else {
                self.text(part);
            }
        }
    }

    /// Writes constant text without escaping: the document type and the style sheet.
    pub(super) fn verbatim(&mut self, own: &'static str) {
        self.out.push_str(own);
    }
}

/// Cuts a text after `most` characters and says how many were left out.
pub(super) fn clip(text: &str, most: usize) -> Cow<'_, str> {
    match text.char_indices().nth(most) {
        None => Cow::Borrowed(text),
        Some((end, _)) => {
            let more = text[end..].chars().count();
            Cow::Owned(format!("{} … ({} more characters)", &text[..end], count(more as u64)))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_and_attributes_cannot_become_markup() {
        let mut page = Markup::default();
        let evil = "</b><script>x</script>\" onload='y' & \u{202e}\u{1b}[2J\n\u{ffff}";
        page.element("p", &[("title", evil)], |page| page.text(evil));
        let shown = "&lt;/b&gt;&lt;script&gt;x&lt;/script&gt;&quot; onload=&#39;y&#39; &amp; \\u{202e}\\u{1b}[2J\\n\\u{ffff}";
        assert_eq!(page.finish(), format!("<p title=\"{shown}\">{shown}</p>"));
    }

    #[test]
    fn lines_keep_their_newlines_and_sentences_their_commands() {
        let mut page = Markup::default();
        page.lines("a\r\n<b>\rc\n");
        page.sentence("run `x <y>` now");
        assert_eq!(page.finish(), "a\n&lt;b&gt;\\rc\nrun <code>x &lt;y&gt;</code> now");
    }

    #[test]
    fn a_long_text_is_cut_where_a_character_ends_and_says_so() {
        assert_eq!(clip("üüü", 3), "üüü");
        assert_eq!(clip("üüüü", 2), "üü … (2 more characters)");
    }
}
