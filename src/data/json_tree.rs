//! How much JSON of the data becomes a tree, which takes up to seventy times the memory of its text.

/// The largest number of commas and opening brackets, inside strings too: there is one for each value of a
/// tree, whose strings may be read as JSON themselves. It is beyond what any model's context holds.
const MOST_MARKS: usize = 400_000;
/// What is wrong with JSON that is too large. A test compares the number.
pub(crate) const TOO_LARGE: &str = "more than 400,000 commas and opening brackets";
pub(crate) const TOO_LARGE_FIX: &str = "Remove the line, or shorten its tools and what they are called with";

/// Returns whether these texts are too large to become trees, all at the same time.
pub(crate) fn is_too_large<'a>(texts: impl IntoIterator<Item = &'a str>) -> bool {
    let marks = |text: &'a str| memchr::memchr3_iter(b',', b'[', b'{', text.as_bytes());
    texts.into_iter().flat_map(marks).nth(MOST_MARKS).is_some()
}

#[cfg(test)]
mod tests {
    use sparktune_base::units::count;

    use super::*;

    #[test]
    fn all_texts_count_together_up_to_the_number_that_is_said() {
        let half = ",".repeat(MOST_MARKS / 2);
        assert!(!is_too_large([&*half, "a string of 1", &*half]));
        assert!(is_too_large([&*half, "[", &*half]));
        assert!(TOO_LARGE.contains(&count(MOST_MARKS as u64)));
    }
}
