//! Texts of models and of suites in sentences.

/// The most characters of an answer that an outcome quotes.
const QUOTED: usize = 60;

/// Returns the beginning of a text as one line in quotation marks. It is not escaped for a terminal.
pub(crate) fn quoted(text: &str) -> String {
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let mut short: String = line.chars().take(QUOTED).collect();
    if short.len() < line.len() {
        short.push('…');
    }
    format!("`{short}`")
}
