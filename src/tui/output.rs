//! Prints results to standard output and everything else to standard error.

use std::io::{self, IsTerminal, Write};

use serde::Serialize;
use sparktune_app::failure::{Exit, Failure};
use sparktune_base::escape::{escape, escape_json};

/// Prints a result. If the reader has closed the pipe, the error is [`io::ErrorKind::BrokenPipe`].
///
/// # Errors
/// Standard output cannot be written.
pub fn print(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
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
/// line breaks are kept. Write errors are ignored.
pub fn note(text: &str) {
    let lines: Vec<_> = text.split('\n').map(escape).collect();
    let _ = writeln!(io::stderr(), "{}", lines.join("\n"));
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
    let size = rustix::termios::tcgetwinsize(io::stdout()).ok()?;
    (size.ws_col > 0).then(|| size.ws_col.into())
}
