//! Where a long text can be cut so that its parts have the same tokens as the whole.
//!
//! Enters: bytes of a text. Leaves: positions in it. Tokenizers that split a text into words before anything
//! else have a border between a line end and the first letter of the next line; whoever cuts there still
//! compares the tokens. This file must not know tokenizers.

/// The size of a part. A text that is not longer is not cut.
pub(crate) const SECTION_BYTES: usize = 1_000_000;
/// The largest part of a text that is repeated before the next part.
const TAIL_BYTES: usize = 1024;

/// Returns where a text is best cut: after the last line end that text follows, otherwise before the last
/// space, otherwise between the last two characters.
pub(crate) fn border(text: &[u8]) -> usize {
    let ends = memchr::memrchr_iter(b'\n', text).map(|at| at + 1);
    // A line end further back than half of the text would make parts of very different sizes.
    let near = |at: &usize| *at > text.len() / 2;
    let after_line = ends.take_while(near).find(|at| is_visible(text.get(*at)));
    let before_space =
        || memchr::memrchr_iter(b' ', text).take_while(near).find(|at| is_visible(text.get(at + 1)));
    after_line.or_else(before_space).unwrap_or_else(|| char_start(text, text.len() - 1))
}

/// Returns where the end of a text begins that is repeated before the next part: at the start of a line, if
/// its last lines are short.
pub(crate) fn tail(text: &[u8]) -> usize {
    let earliest = text.len().saturating_sub(TAIL_BYTES);
    let before_end = text.len().saturating_sub(1);
    let starts = memchr::memrchr_iter(b'\n', &text[earliest..before_end]).map(|at| earliest + at + 1);
    starts.take(TAIL_BYTES).find(|at| is_visible(text.get(*at))).unwrap_or_else(|| char_start(text, earliest))
}

fn is_visible(byte: Option<&u8>) -> bool {
    byte.is_some_and(|byte| !byte.is_ascii_whitespace())
}

/// Returns the start of the character that this byte belongs to, in a text that may not be UTF-8.
fn char_start(text: &[u8], at: usize) -> usize {
    let is_start = |at: &usize| text.get(*at).is_none_or(|byte| byte & 0xc0 != 0x80);
    (at.saturating_sub(3)..=at).rev().find(is_start).unwrap_or(at)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_text_is_cut_after_a_line_then_before_a_word_then_between_characters() {
        assert_eq!(border(b"one two\nthree\nfo"), 14);
        assert_eq!(border(b"one two three five\n\n "), 13, "no text follows the line ends");
        assert_eq!(border("aäää".as_bytes()), 5);
    }

    proptest! {
        #[test]
        fn a_part_is_never_empty_and_ends_between_characters(text in "[a ö\n\u{1f600}]{8,60}") {
            let at = border(text.as_bytes());
            prop_assert!(at > 0 && at < text.len() && text.is_char_boundary(at), "{at}");
            let from = tail(&text.as_bytes()[..at]);
            prop_assert!(from < at && text.is_char_boundary(from), "{from}");
        }
    }
}
