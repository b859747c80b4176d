//! Standard output for results, standard error for everything else that is said.

use std::io::{self, IsTerminal, Write};

use serde::Serialize;
use sparktune_app::failure::{Exit, Failure};
use sparktune_base::escape::{escape, escape_json};

/// Prints a result. A reader that went away comes back as [`io::ErrorKind::BrokenPipe`].
///
/// # Errors
/// Standard output cannot be written.
pub fn print(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}

/// Prints one JSON value on a line of its own, with nothing in it that a terminal would obey.
///
/// # Errors
/// Standard output cannot be written.
pub fn print_json(value: &impl Serialize) -> io::Result<()> {
    let json = serde_json::to_string(value)?;
    print(&format!("{}\n", escape_json(&json)))
}

/// Writes a note to standard error. Names in it may come from anywhere and are escaped; its line breaks stay.
/// A closed standard error is no reason to stop.
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

/// Whether a person can be asked, at least line by line.
pub fn can_ask() -> bool {
    io::stdin().is_terminal() && io::stderr().is_terminal()
}

/// Whether standard error is a terminal that can redraw a line, as progress bars and prompts do.
pub fn stderr_can_redraw() -> bool {
    let is_dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
    io::stderr().is_terminal() && !is_dumb
}

/// Returns the columns of standard output, where it is a terminal that knows them.
pub fn columns() -> Option<usize> {
    let size = rustix::termios::tcgetwinsize(io::stdout()).ok()?;
    (size.ws_col > 0).then(|| size.ws_col.into())
}
