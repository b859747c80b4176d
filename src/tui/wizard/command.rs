//! The equivalent command line, in rows that can be selected and copied from a terminal.
//!
//! Rows end in a backslash, between words where possible and inside a word that is longer than the screen, so
//! that the copied text is one command. It is drawn without a frame, from the first column.

use std::borrow::Cow;

use sparktune_base::escape::escape;
use unicode_segmentation::UnicodeSegmentation;
use unicode_width::UnicodeWidthStr;

/// Returns the command in rows of at most `width` columns, and whether it is exact. It is not exact if a name
/// in it contains control characters, which are escaped.
pub(super) fn rows(command: &str, width: usize) -> (Vec<String>, bool) {
    let width = width.max(8);
    let safe = escape(command);
    let is_exact = matches!(safe, Cow::Borrowed(_));
    let mut rows = vec![String::new()];
    for (i, word) in words(&safe).into_iter().enumerate() {
        let row = rows.last_mut().expect("there is always a row");
        let room = width - 2;
        if i > 0 {
            if row.width() + 1 + word.width() <= room {
                row.push(' ');
            } else {
                row.push_str(" \\");
                rows.push("  ".to_owned());
            }
        }
        push(word, room, &mut rows);
    }
    (rows, is_exact)
}

/// The quoting state of a shell inside a word.
#[derive(Clone, Copy, PartialEq)]
enum Quote {
    None,
    Single,
    Double,
}

impl Quote {
    /// Returns the state after this piece of text. A backslash quotes the next character, except between
    /// single quotes.
    fn after(self, text: &str) -> Self {
        match (self, text) {
            (Self::None, "'") => Self::Single,
            (Self::None, "\"") => Self::Double,
            (Self::Single, "'") | (Self::Double, "\"") => Self::None,
            (quote, _) => quote,
        }
    }
}

/// Splits a word into pieces that must not be broken: characters, and backslashes with the character they
/// quote.
fn pieces(text: &str) -> Vec<(Quote, &str)> {
    let mut pieces = Vec::new();
    let mut quote = Quote::None;
    let mut graphemes = text.grapheme_indices(true).peekable();
    while let Some((at, grapheme)) = graphemes.next() {
        let mut end = at + grapheme.len();
        if grapheme == "\\" && quote != Quote::Single {
            if let Some((_, next)) = graphemes.next() {
                end += next.len();
            }
        } else {
            quote = quote.after(grapheme);
        }
        pieces.push((quote, &text[at..end]));
    }
    pieces
}

/// Splits a command into words, including their quotes.
fn words(command: &str) -> Vec<&str> {
    let mut words = Vec::new();
    let (mut from, mut at) = (0, 0);
    for (quote, piece) in pieces(command) {
        if piece == " " && quote == Quote::None {
            words.push(&command[from..at]);
            from = at + piece.len();
        }
        at += piece.len();
    }
    words.push(&command[from..]);
    words.into_iter().filter(|word| !word.is_empty()).collect()
}

/// Appends a word to the last row and continues in further rows if it is too long.
fn push(word: &str, room: usize, rows: &mut Vec<String>) {
    let mut quote = Quote::None;
    for (after, piece) in pieces(word) {
        let row = rows.last_mut().expect("there is always a row");
        if row.width() + piece.width() > room && !row.trim().is_empty() {
            // A row that continues inside a word starts at the first column, because a blank would be part of
            // the word or end it.
            match quote {
                Quote::Single => {
                    row.push_str("'\\");
                    rows.push("'".to_owned());
                }
                Quote::None | Quote::Double => {
                    row.push('\\');
                    rows.push(String::new());
                }
            }
        }
        rows.last_mut().expect("there is always a row").push_str(piece);
        quote = after;
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    /// Returns how a shell splits the command into words.
    fn read_by_sh(command: &str) -> Vec<String> {
        let script = format!("set -- {command}\nprintf '%s\\0' \"$@\"");
        let output = Command::new("sh").args(["-c", &script]).output().unwrap();
        assert!(output.status.success(), "{command}");
        let text = String::from_utf8(output.stdout).unwrap();
        text.split_terminator('\0').map(str::to_owned).collect()
    }

    #[test]
    fn what_is_copied_from_narrow_rows_is_the_same_command() {
        let long = "/a/very/long/path/without/any/blank/".repeat(4);
        let args = [
            "sparktune",
            "train",
            "--model",
            "Qwen/Qwen3.5-2B",
            "--data",
            "my data/it's \"here\" $HOME `x` \\ *.jsonl",
            &long,
            "größe 世界 👩\u{200d}🚀",
            "-",
            "~/x",
        ];
        let quoted: Vec<_> = args.iter().map(|arg| shlex_quote(arg)).collect();
        let command = quoted.join(" ");
        for width in [8, 12, 20, 33, 60, 80, 300] {
            let (rows, is_exact) = rows(&command, width);
            assert!(is_exact);
            assert!(rows.iter().all(|row| row.width() <= width), "{width}: {rows:#?}");
            assert_eq!(read_by_sh(&rows.join("\n")), args, "{width}: {rows:#?}");
        }
    }

    /// Quotes an argument in both ways that a shell has.
    fn shlex_quote(arg: &str) -> String {
        let plain = |c: char| c.is_ascii_alphanumeric() || "/-._".contains(c);
        if arg.chars().all(plain) {
            return arg.to_owned();
        }
        arg.split('\'').map(|part| format!("'{part}'")).collect::<Vec<_>>().join("\"'\"")
    }

    #[test]
    fn what_would_move_the_cursor_is_spelled_out_and_said_to_be_inexact() {
        let (rows, is_exact) = rows("sparktune --data 'a\u{1b}[2J\u{202e}b'", 80);
        assert!(!is_exact);
        assert_eq!(rows, ["sparktune --data 'a\\u{1b}[2J\\u{202e}b'"]);
    }
}
