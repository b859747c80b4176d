//! Text in lines of a given width, counted in the columns a terminal gives it.

use unicode_segmentation::UnicodeSegmentation;
use unicode_width::UnicodeWidthStr;

/// The text in lines of at most `width` columns, broken at spaces, and within a word only where it is wider than a line.
/// For escaped text, which has no line breaks of its own.
pub(crate) fn wrap(text: &str, width: usize) -> Vec<String> {
    let width = width.max(2);
    let mut lines = vec![String::new()];
    let mut used = 0;
    for word in text.split_inclusive(' ') {
        let wide = word.trim_end_matches(' ').width();
        if used > 0 && used + wide > width {
            lines.push(String::new());
            used = 0;
        }
        for grapheme in word.graphemes(true) {
            let wide = grapheme.width();
            if used + wide > width {
                if grapheme == " " {
                    continue;
                }
                lines.push(String::new());
                used = 0;
            }
            used += wide;
            if let Some(line) = lines.last_mut() {
                line.push_str(grapheme);
            }
        }
    }
    for line in &mut lines {
        line.truncate(line.trim_end_matches(' ').len());
    }
    lines
}

/// The text in at most `width` columns; what is cut off is told by `…`.
pub(crate) fn cut(text: &str, width: usize) -> String {
    if text.width() <= width {
        return text.to_owned();
    }
    let mut shown = String::new();
    let mut used = 1;
    for grapheme in text.graphemes(true) {
        used += grapheme.width();
        if used > width {
            break;
        }
        shown.push_str(grapheme);
    }
    if width > 0 {
        shown.push('…');
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn lines_break_at_spaces_and_only_words_wider_than_a_line_within() {
        assert_eq!(wrap("what to do next", 7), ["what to", "do next"]);
        assert_eq!(wrap("a abcdefgh b", 4), ["a", "abcd", "efgh", "b"]);
        assert_eq!(wrap("  two  spaces", 20), ["  two  spaces"]);
        assert_eq!(wrap("世界世界", 5), ["世界", "世界"]);
        assert_eq!(wrap("", 5), [""]);
    }

    #[test]
    fn a_cut_says_so_and_counts_columns() {
        assert_eq!(cut("latest", 6), "latest");
        assert_eq!(cut("latest one", 6), "lates…");
        assert_eq!(cut("世界世界", 5), "世界…");
        assert_eq!(cut("世界世界", 4), "世…");
        assert_eq!(cut("ab", 1), "…");
        assert_eq!(cut("ab", 0), "");
    }

    proptest! {
        #[test]
        fn nothing_but_spaces_is_lost_and_no_line_is_too_wide(text in any::<String>(), width in 2_usize..40) {
            let text = crate::escape(&text).into_owned();
            let lines = wrap(&text, width);
            prop_assert!(lines.iter().all(|line| line.width() <= width), "{lines:?}");
            let solid = |text: &str| text.replace(' ', "");
            prop_assert_eq!(solid(&lines.concat()), solid(&text));
            prop_assert!(cut(&text, width).width() <= width);
        }
    }
}
