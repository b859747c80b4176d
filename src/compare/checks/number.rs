//! The number that an answer gives.

use std::sync::LazyLock;

use regex::Regex;

static NUMBER: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(r"[-−]?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?:[eE][-+]?\d+)?").expect("the pattern is fixed")
});

/// Returns the last number of a text: `1,250.5`, `-3`, `2e-4`. A dash directly behind a digit or a letter is
/// no sign.
pub(super) fn last_number(text: &str) -> Option<f64> {
    let found = NUMBER.find_iter(text).last()?;
    let plain = found.as_str().replace(',', "").replace('−', "-");
    let before = text[..found.start()].chars().next_back();
    let is_joined = before.is_some_and(char::is_alphanumeric);
    let plain = if is_joined { plain.trim_start_matches('-') } else { &plain };
    plain.parse().ok().filter(|number: &f64| number.is_finite())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_number_of_an_answer_is_its_result() {
        for (text, number) in [
            ("17 + 25 = 42", Some(42.0)),
            ("The answer is **1,250.50**.", Some(1250.5)),
            ("It is -3.", Some(-3.0)),
            ("It is −3.", Some(-3.0)),
            ("5-6", Some(6.0)),
            ("2e-4", Some(2e-4)),
            ("1,2,3", Some(3.0)),
            ("nothing", None),
            ("1e999", None),
        ] {
            assert_eq!(last_number(text), number, "{text}");
        }
    }
}
