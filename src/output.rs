//! Standard output for results, standard error for what is said about them.

use std::io::{self, IsTerminal, Write};

use serde::Serialize;
use sparktune_tui::{escape, escape_json};

/// Prints a result. A reader that went away comes back as [`io::ErrorKind::BrokenPipe`].
pub fn print(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}

/// Prints one JSON value on a line of its own, with nothing in it that a terminal would obey.
pub fn print_json(value: &impl Serialize) -> io::Result<()> {
    let json = serde_json::to_string(value)?;
    print(&format!("{}\n", escape_json(&json)))
}

/// Says something beside the result; names in it may come from anywhere and are escaped, its line breaks stay. A closed
/// standard error is no reason to stop.
pub fn note(text: &str) {
    let lines: Vec<_> = text.split('\n').map(escape).collect();
    let _ = writeln!(io::stderr(), "{}", lines.join("\n"));
}

/// Whether bars and questions make sense on standard error.
pub fn stderr_is_lively() -> bool {
    let dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
    io::stderr().is_terminal() && !dumb
}

/// Columns of standard output, where it is a terminal that knows them.
pub fn columns() -> Option<usize> {
    let size = rustix::termios::tcgetwinsize(io::stdout()).ok()?;
    (size.ws_col > 0).then(|| size.ws_col.into())
}
