//! The tokens of NIST's script `mteval-v13a`, by which BLEU scores are compared: punctuation is a token of
//! its own, except `.` and `,` between digits and `-` elsewhere than behind a digit.

use std::sync::LazyLock;

use regex::Regex;

use super::chrf::is_space;

/// The script's rules in their order, each with what takes the place of a match.
static RULES: LazyLock<[(Regex, &str); 4]> = LazyLock::new(|| {
    let rule = |pattern: &str, by| (Regex::new(pattern).expect("the pattern is fixed"), by);
    [
        // Every ASCII symbol but `'`, `,`, `-` and `.`.
        rule(r"([!-&(-+/:-@\[-`{-~])", " $1 "),
        rule(r"([^0-9])([.,])", "$1 $2 "),
        rule(r"([.,])([^0-9])", " $1 $2"),
        rule(r"([0-9])(-)", "$1 $2 "),
    ]
});

/// Splits a text into its tokens.
pub(super) fn tokens(text: &str) -> Vec<String> {
    let line = text.replace("<skipped>", "").replace("-\n", "").replace('\n', " ");
    let line = line.replace("&quot;", "\"").replace("&amp;", "&").replace("&lt;", "<").replace("&gt;", ">");
    let mut line = format!(" {line} ");
    for (rule, by) in &*RULES {
        line = rule.replace_all(&line, *by).into_owned();
    }
    line.split(is_space).filter(|token| !token.is_empty()).map(str::to_owned).collect()
}
