//! How much JSON of the data becomes a tree, which takes up to seventy times the memory of its text.

/// The largest number of commas and opening brackets, inside strings too: there is one for each value of a
/// tree, whose strings may be read as JSON themselves. The tree of so many takes 200 MB at most.
const MOST_MARKS: usize = 400_000;
/// What is wrong with JSON that is too large. A test compares the number.
pub(crate) const TOO_LARGE: &str = "more than 400,000 commas and opening brackets";
/// What to do about tools and calls that are.
pub(crate) const TOO_LARGE_FIX: &str = "Shorten the tools or the arguments of the calls, or remove the line";

/// Returns whether these texts are too large to become trees, all at the same time.
pub(crate) fn is_too_large<'a>(texts: impl IntoIterator<Item = &'a str>) -> bool {
    texts.into_iter().map(marks).sum::<usize>() > MOST_MARKS
}

/// Counts the marks of a text, also those that are written as escapes, and backslashes, which may escape
/// another escape.
fn marks(text: &str) -> usize {
    let text = text.as_bytes();
    let is_mark = |at: &usize| {
        let code = text.get(at + 4..at + 6).map(<[u8]>::to_ascii_lowercase);
        matches!(code.as_deref(), Some(b"2c" | b"5b" | b"7b" | b"5c"))
    };
    let escapes = memchr::memmem::find_iter(text, br"\u00").filter(is_mark).count();
    memchr::memchr3_iter(b',', b'[', b'{', text).count() + escapes
}

#[cfg(test)]
mod tests {
    use sparktune_base::units::count;

    use super::*;

    #[test]
    fn all_texts_count_together_up_to_the_number_that_is_said() {
        let half = ",".repeat(MOST_MARKS / 2);
        assert!(!is_too_large([&*half, "a string of 1", &*half]));
        for mark in ["[", "{", r"\u007B", r"\u005b", r"\u002c", r"\u005c"] {
            assert!(is_too_large([&*half, mark, &*half]), "{mark}");
        }
        assert!(!is_too_large([&*half, r"\u00e9 \u00", &*half]));
        assert!(TOO_LARGE.contains(&count(MOST_MARKS as u64)));
    }
}
