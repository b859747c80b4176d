//! Prints results to standard output and everything else to standard error.

use std::io::{self, IsTerminal, Write};
use std::os::fd::AsFd;

use rustix::fs::FileType;
use serde::Serialize;
use sparktune_app::failure::{Exit, Failure};
use sparktune_base::escape::{escape, escape_json};

use crate::wrap::wrap_line;

/// Prints a result. If the reader has closed the pipe, the error is [`io::ErrorKind::BrokenPipe`].
///
/// # Errors
/// Standard output cannot be written.
pub fn print(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}

/// Prints lines that people read. On a terminal, those that are wider than it are wrapped.
///
/// # Errors
/// Standard output cannot be written.
pub fn print_lines(text: &str) -> io::Result<()> {
    let mut lines = WrappedLines::new(io::stdout().lock(), columns());
    lines.write_all(text.as_bytes())?;
    lines.flush()
}

/// Prints one JSON value on a line of its own. Characters that could control a terminal are escaped.
///
/// # Errors
/// Standard output cannot be written.
pub fn print_json(value: &impl Serialize) -> io::Result<()> {
    let json = serde_json::to_string(value)?;
    print(&format!("{}\n", escape_json(&json)))
}

/// Writes a note to standard error. Control characters are escaped, because names in a note are untrusted;
/// line breaks are kept. On a terminal, lines that are wider than it are wrapped. Write errors are ignored.
pub fn note(text: &str) {
    let width = stderr_columns().unwrap_or(usize::MAX);
    let lines: Vec<_> = text.split('\n').map(|line| wrap_line(&escape(line), width)).collect();
    let _ = writeln!(io::stderr(), "{}", lines.join("\n"));
}

/// Passes lines on, those that are wider than `width` wrapped. Escape sequences would be counted as text.
pub struct WrappedLines<W> {
    out: W,
    width: Option<usize>,
    /// The beginning of a line whose end was not written yet.
    line: Vec<u8>,
}

impl<W: Write> WrappedLines<W> {
    /// Wraps the lines that are written to `out`. Without a width it passes them on as they are.
    pub fn new(out: W, width: Option<usize>) -> Self {
        Self { out, width, line: Vec::new() }
    }

    fn pass_on(&mut self, end: &str) -> io::Result<()> {
        let line = std::mem::take(&mut self.line);
        let line = String::from_utf8_lossy(&line);
        write!(self.out, "{}{end}", wrap_line(&line, self.width.unwrap_or(usize::MAX)))
    }
}

impl<W: Write> Write for WrappedLines<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.width.is_none() {
            return self.out.write(bytes);
        }
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            match piece.strip_suffix(b"\n") {
                Some(end) => {
                    self.line.extend_from_slice(end);
                    self.pass_on("\n")?;
                }
                None => self.line.extend_from_slice(piece),
            }
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        if !self.line.is_empty() {
            self.pass_on("")?;
        }
        self.out.flush()
    }
}

/// Reports a failure with its hints on standard error, and returns its exit code.
pub fn report(failure: &Failure) -> Exit {
    if !failure.is_closed_pipe() {
        note(&format!("error: {}", failure.text));
        failure.hints.iter().for_each(|hint| note(&format!("Hint: {hint}")));
    }
    failure.exit
}

/// Returns whether a user can answer questions, at least line by line.
pub fn can_ask() -> bool {
    io::stdin().is_terminal() && io::stderr().is_terminal()
}

/// Returns whether standard error is a terminal that can redraw a line, as progress bars and prompts do.
pub fn stderr_can_redraw() -> bool {
    let is_dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
    io::stderr().is_terminal() && !is_dumb
}

/// Returns the number of columns if standard output is a terminal that reports it.
pub fn columns() -> Option<usize> {
    columns_of(io::stdout())
}

/// Returns the number of columns if standard error is a terminal that reports it.
pub fn stderr_columns() -> Option<usize> {
    columns_of(io::stderr())
}

/// Returns the number of columns of the terminal on which a person reads standard output: also that of a
/// pager, which a pipe leads to.
pub fn reading_columns() -> Option<usize> {
    let is_pipe = || {
        rustix::fs::fstat(io::stdout())
            .is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Fifo)
    };
    columns().or_else(|| is_pipe().then(stderr_columns).flatten())
}

fn columns_of(terminal: impl AsFd) -> Option<usize> {
    let size = rustix::termios::tcgetwinsize(terminal).ok()?;
    (size.ws_col > 0).then(|| size.ws_col.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_wrapped_as_they_are_written_in_pieces_and_passed_on_without_a_width() {
        let mut wrapped = WrappedLines::new(Vec::new(), Some(9));
        for piece in ["one two ", "three\nfour", "\n\nfive six seven"] {
            wrapped.write_all(piece.as_bytes()).unwrap();
        }
        wrapped.flush().unwrap();
        assert_eq!(String::from_utf8(wrapped.out).unwrap(), "one two\nthree\nfour\n\nfive six\nseven");
        let mut plain = WrappedLines::new(Vec::new(), None);
        plain.write_all(b"one two three four \xff").unwrap();
        assert_eq!(plain.out, b"one two three four \xff");
    }
}
