//! Text made to fit its place on the screen.

use unicode_segmentation::UnicodeSegmentation;
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

use crate::screen::Theme;

/// The last characters of a name, which tell runs of one model apart: `-1a2b`.
const NAME_END: usize = 5;

/// The text in exactly `wide` columns.
pub(super) fn place(text: &str, wide: usize, right: bool, theme: &Theme) -> String {
    let text = shorten(text, wide, NAME_END, theme);
    let gap = " ".repeat(wide.saturating_sub(text.width()));
    if right { gap + &text } else { text + &gap }
}

/// The text in at most `wide` columns; of one that is too long the last `end` characters are kept, where they leave
/// room for a beginning.
pub(super) fn shorten(text: &str, wide: usize, end: usize, theme: &Theme) -> String {
    if text.width() <= wide {
        return text.to_owned();
    }
    if wide == 0 {
        return String::new();
    }
    let graphemes: Vec<&str> = text.graphemes(true).collect();
    let mut tail = graphemes[graphemes.len().saturating_sub(end)..].concat();
    let mut head = &graphemes[..graphemes.len().saturating_sub(end)];
    if tail.width() * 2 >= wide {
        (tail, head) = (String::new(), &graphemes);
    }
    let mut cut = String::new();
    for grapheme in head {
        if cut.width() + grapheme.width() + 1 + tail.width() > wide {
            break;
        }
        cut.push_str(grapheme);
    }
    cut + theme.glyph("…", "~") + &tail
}

/// The text in parts of at most `wide` columns, between words where that is possible.
pub(super) fn split(text: &str, wide: usize) -> Vec<String> {
    let wide = wide.max(2);
    let mut parts = Vec::new();
    let mut part = String::new();
    for word in text.split_inclusive([' ', '/', '-']) {
        if !part.is_empty() && part.width() + word.trim_end().width() > wide {
            parts.push(std::mem::take(&mut part));
        }
        for c in word.chars() {
            if part.width() + c.width().unwrap_or(0) > wide {
                parts.push(std::mem::take(&mut part));
                if c == ' ' {
                    continue;
                }
            }
            part.push(c);
        }
    }
    parts.push(part);
    parts
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::screen::picture::{ASCII, NO_COLOUR};

    #[test]
    fn what_is_too_long_loses_its_middle_and_never_gets_wider() {
        assert_eq!(place("qwen3.5-0.8b-instruct-lora-1a2b", 20, false, &NO_COLOUR), "qwen3.5-0.8b-i…-1a2b");
        assert_eq!(place("qwen3.5-0.8b-instruct-lora-1a2b", 20, false, &ASCII), "qwen3.5-0.8b-i~-1a2b");
        assert_eq!(shorten("a sentence that goes on", 12, 0, &NO_COLOUR), "a sentence …");
        for wide in 0..30 {
            for text in ["世界世界世界世界世界世界", "👩\u{200d}🚀👩\u{200d}🚀👩\u{200d}🚀", "plain", ""]
            {
                assert_eq!(place(text, wide, true, &NO_COLOUR).width(), wide, "{text} in {wide}");
            }
        }
    }

    #[test]
    fn a_long_value_is_split_between_words_and_a_long_word_anywhere() {
        assert_eq!(split("step 1,200 and 2 older", 12), ["step 1,200 ", "and 2 older"]);
        assert_eq!(split("/some/folder/of/runs", 10), ["/some/", "folder/of/", "runs"]);
        assert_eq!(split("abcdefghij", 4), ["abcd", "efgh", "ij"]);
        assert_eq!(split("", 4), [""]);
        assert!(split("世界世界世界 long-words and short", 5).iter().all(|part| part.width() <= 6));
    }
}
