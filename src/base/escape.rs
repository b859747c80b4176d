//! Makes untrusted text safe for a terminal or a page.

use std::borrow::Cow;
use std::fmt::Write;

/// Returns whether a character is invisible, or would be obeyed instead of shown by a terminal or the
/// bidirectional algorithm.
pub fn is_active(c: char) -> bool {
    c.is_control() // C0, DEL and C1 (which some terminals take for ESC sequences)
        || matches!(c,
            '\u{ad}'                      // soft hyphen
            | '\u{61c}'                   // Arabic letter mark
            | '\u{180e}'                  // Mongolian vowel separator
            | '\u{200b}'                  // zero-width space
            | '\u{200e}' | '\u{200f}'     // left-to-right and right-to-left marks
            | '\u{2028}' | '\u{2029}'     // line and paragraph separators
            | '\u{202a}'..='\u{202e}'     // bidi embeddings and overrides
            | '\u{2060}'..='\u{206f}'     // invisible operators, bidi isolates, deprecated formats
            | '\u{feff}'                  // byte order mark
            | '\u{fff9}'..='\u{fffb}'     // interlinear annotation
            | '\u{e0000}'..='\u{e007f}'   // tags, which spell invisible text
        )
    // Zero-width joiner and non-joiner (200c, 200d) stay: Persian, Indic scripts and emoji need them.
}

/// Returns the text with active characters escaped: `\n`, `\t`, `\u{1b}`.
pub fn escape(text: &str) -> Cow<'_, str> {
    if !text.contains(is_active) {
        return Cow::Borrowed(text);
    }
    let mut safe = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        match c {
            '\n' => safe.push_str("\\n"),
            '\r' => safe.push_str("\\r"),
            '\t' => safe.push_str("\\t"),
            c if is_active(c) => {
                let _ = write!(safe, "\\u{{{:x}}}", u32::from(c)); // a String takes everything
            }
            c => safe.push(c),
        }
    }
    Cow::Owned(safe)
}

/// The most characters of a stranger's name that a message shows.
const SHOWN_OF_NAME: usize = 128;

/// Returns a name that a file of a stranger contains, cut where it is longer than any honest one.
pub fn shortened(name: &str) -> Cow<'_, str> {
    match name.char_indices().nth(SHOWN_OF_NAME) {
        None => Cow::Borrowed(name),
        Some((end, _)) => Cow::Owned(format!("{}…", &name[..end])),
    }
}

/// Returns one line of valid JSON with the same value and without active characters. Inside strings they
/// become `\u` escapes; outside strings only white space is possible.
pub fn escape_json(json: &str) -> Cow<'_, str> {
    if !json.contains(is_active) {
        return Cow::Borrowed(json);
    }
    let mut safe = String::with_capacity(json.len() + 16);
    for c in json.chars() {
        match c {
            '\t' | '\r' | '\n' => safe.push(' '),
            c if is_active(c) => {
                for unit in c.encode_utf16(&mut [0; 2]) {
                    let _ = write!(safe, "\\u{unit:04x}");
                }
            }
            c => safe.push(c),
        }
    }
    Cow::Owned(safe)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn control_sequences_and_bidi_overrides_are_spelled_out() {
        for (text, shown) in [
            ("\u{1b}[2J\u{1b}]0;title\u{7}", "\\u{1b}[2J\\u{1b}]0;title\\u{7}"),
            ("\u{9b}31m", "\\u{9b}31m"),
            ("safe\u{202e}txt.exe", "safe\\u{202e}txt.exe"),
            ("\u{2066}a\u{2069}", "\\u{2066}a\\u{2069}"),
            ("a\u{200b}b\u{feff}", "a\\u{200b}b\\u{feff}"),
            ("\u{e0041}", "\\u{e0041}"),
            ("two\r\nlines\tand a tab", "two\\r\\nlines\\tand a tab"),
            ("\u{0}\u{8}\u{7f}", "\\u{0}\\u{8}\\u{7f}"),
        ] {
            assert_eq!(escape(text), shown);
        }
    }

    #[test]
    fn only_a_name_that_is_far_too_long_is_cut_between_two_characters() {
        let name = "é".repeat(SHOWN_OF_NAME);
        assert_eq!(shortened(&name), name);
        assert_eq!(shortened(&name.repeat(25)), format!("{name}…"));
    }

    #[test]
    fn ordinary_text_of_any_script_is_left_alone() {
        for text in ["", "Grüße, 世界", "שלום", "می\u{200c}خواهم", "👩\u{200d}🚀", "C:\\n"]
        {
            assert!(matches!(escape(text), Cow::Borrowed(same) if same == text));
        }
    }

    proptest! {
        #[test]
        fn nothing_active_is_left_and_escaping_again_changes_nothing(text in any::<String>()) {
            let safe = escape(&text).into_owned();
            prop_assert!(!safe.contains(is_active));
            prop_assert_eq!(escape(&safe), safe.clone());
        }

        #[test]
        fn json_keeps_its_value(text in any::<String>(), active in "[\u{80}-\u{9f}\u{202a}-\u{202e}\u{e0041}\u{7f}]{0,5}") {
            let value = serde_json::json!({ "text": format!("{text}{active}"), "n": 1 });
            // White space outside strings only: the first brace is the object's own.
            let line = serde_json::to_string(&value).unwrap().replacen('{', "{\t", 1);
            let safe = escape_json(&line).into_owned();
            prop_assert!(!safe.contains(is_active));
            prop_assert_eq!(serde_json::from_str::<serde_json::Value>(&safe).unwrap(), value);
        }
    }
}
