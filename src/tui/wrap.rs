//! Wraps text into lines of a given width in terminal columns.

use unicode_segmentation::UnicodeSegmentation;
use unicode_width::UnicodeWidthStr;

/// Wraps the text into lines of at most `width` columns at spaces. A word wider than a line is broken after
/// `/` and `-`, or anywhere if necessary. The text must be escaped, so that it has no line breaks.
pub(crate) fn wrap(text: &str, width: usize) -> Vec<String> {
    let width = width.max(2);
    let mut lines = vec![String::new()];
    let mut used = 0;
    let words = text.split_inclusive(' ').flat_map(|word| {
        let breaks: &[char] = if word.trim_end_matches(' ').width() > width { &['/', '-'] } else { &[] };
        word.split_inclusive(breaks)
    });
    for word in words {
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

/// Wraps a line between words. What continues it stands below its beginning, or below the second column of a
/// row of a table. A word that is wider than a line, such as a path, stays whole, so that it can be copied.
/// The line must be escaped.
pub(crate) fn wrap_line(line: &str, width: usize) -> String {
    if line.width() <= width {
        return line.to_owned();
    }
    let text_at = |from: usize| line.len() - line[from..].trim_start_matches(' ').len();
    let start = text_at(0);
    let column =
        line[start..].find("  ").map(|gap| text_at(start + gap)).filter(|column| *column < width / 2);
    let (head, rest) = line.split_at(column.unwrap_or(start));
    let indent = head.width();
    let mut shown = head.to_owned();
    let mut used = indent;
    for word in rest.split_inclusive(' ') {
        if used > indent && used + word.trim_end_matches(' ').width() > width {
            shown.truncate(shown.trim_end_matches(' ').len());
            shown.push_str(&format!("\n{:indent$}", ""));
            used = indent;
        }
        shown.push_str(word);
        used += word.width();
    }
    shown.truncate(shown.trim_end_matches(' ').len());
    shown
}

/// Cuts the text to `width` columns and marks the cut with `…`.
pub(crate) fn cut(text: &str, width: usize) -> String {
    cut_to(text, width, 0, "…")
}

/// Cuts the text to `width` columns and replaces the cut part by `dots`. The last `end` characters are kept
/// if there is room for a beginning too.
pub(crate) fn cut_to(text: &str, width: usize, end: usize, dots: &str) -> String {
    if text.width() <= width {
        return text.to_owned();
    }
    let Some(room) = width.checked_sub(dots.width()) else { return ".".repeat(width) };
    let end = end.checked_sub(1).and_then(|nth| text.grapheme_indices(true).nth_back(nth));
    let (head, tail) = text.split_at(end.map_or(text.len(), |(at, _)| at));
    let (head, tail) = if tail.width() * 2 < width { (head, tail) } else { (text, "") };
    let mut shown = String::new();
    let mut used = tail.width();
    for grapheme in head.graphemes(true) {
        used += grapheme.width();
        if used > room {
            break;
        }
        shown.push_str(grapheme);
    }
    shown + dots + tail
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use sparktune_base::escape::escape;

    use super::*;

    #[test]
    fn a_long_line_goes_on_below_its_beginning_or_the_second_column_of_its_row() {
        assert_eq!(wrap_line("one two three", 20), "one two three");
        assert_eq!(wrap_line("  one two three four", 12), "  one two\n  three four");
        let row = "disk      one two three four five";
        assert_eq!(wrap_line(row, 24), "disk      one two three\n          four five");
        // A first column that takes most of the line is none.
        let wide = "a name as long as the line  and more";
        assert_eq!(wrap_line(wide, 20), "a name as long as\nthe line  and more");
        assert_eq!(wrap_line("see /a/path/that/is/long for more", 12), "see\n/a/path/that/is/long\nfor more");
    }

    #[test]
    fn lines_break_at_spaces_and_only_words_wider_than_a_line_within() {
        assert_eq!(wrap("what to do next", 7), ["what to", "do next"]);
        assert_eq!(wrap("a abcdefgh b", 4), ["a", "abcd", "efgh", "b"]);
        assert_eq!(wrap("in /home/you/my-runs", 10), ["in /home/", "you/my-", "runs"]);
        assert_eq!(wrap("a re-run", 8), ["a re-run"]);
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
        assert_eq!(cut_to("latest one", 6, 0, "..."), "lat...");
        assert_eq!(cut_to("latest one", 2, 0, "..."), "..");
    }

    #[test]
    fn the_end_of_what_is_cut_stays_where_a_beginning_has_room_too() {
        let name = "qwen3.5-0.8b-instruct-lora-1a2b";
        assert_eq!(cut_to(name, 20, 5, "…"), "qwen3.5-0.8b-i…-1a2b");
        assert_eq!(cut_to(name, 10, 5, "…"), "qwen3.5-0…");
        assert_eq!(cut_to("ab", 1, 5, "…"), "…");
    }

    proptest! {
        #[test]
        fn nothing_but_spaces_is_lost_and_no_line_is_too_wide(text in any::<String>(), width in 8_usize..40) {
            let text = escape(&text).into_owned();
            let lines = wrap(&text, width);
            prop_assert!(lines.iter().all(|line| line.width() <= width), "{lines:?}");
            let solid = |text: &str| text.replace(' ', "");
            prop_assert_eq!(solid(&lines.concat()), solid(&text));
            for end in [0, 5, 50] {
                prop_assert!(cut_to(&text, width, end, "…").width() <= width);
            }
        }
    }
}
