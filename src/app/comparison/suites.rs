//! Suites by their names and by their files.

use std::path::Path;

use serde::Serialize;
use sparktune_base::escape::escape;
use sparktune_base::regular_file::read_regular;
use sparktune_base::shell::shown_word;
use sparktune_compare::built_in::{BuiltIn, SUITES};
use sparktune_compare::{MOST_SUITE_BYTES, Suite, SuiteError};

use crate::failure::{Exit, Failure};

/// A suite of the program, for lists.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SuiteName {
    /// Its name.
    pub name: &'static str,
    /// What it is about, in a sentence.
    pub about: &'static str,
    /// The number of its prompts.
    pub prompts: usize,
}

/// Lists the suites of the program. The first one is asked if the user names none.
pub fn suites() -> Vec<SuiteName> {
    let of = |built_in: &BuiltIn| SuiteName {
        name: built_in.name,
        about: built_in.about,
        prompts: built_in.suite().prompts.len(),
    };
    SUITES.iter().map(of).collect()
}

/// Returns the suite of this name, or in this file.
///
/// # Errors
/// There is no such suite or file, or a line of it cannot be used.
pub fn find_suite(name: &str) -> Result<Suite, Failure> {
    let path = Path::new(name);
    if let Some(built_in) = BuiltIn::named(name) {
        return Ok(built_in.suite());
    }
    if !path.exists() {
        let names: Vec<&str> = SUITES.iter().map(|suite| suite.name).collect();
        let text = format!("there is no suite and no file '{}'", escape(name));
        return Err(Failure::usage(text).hint(format!("Choose {}, or name a file", names.join(", "))));
    }
    let bytes = read_regular(path, MOST_SUITE_BYTES).map_err(|error| Failure::io("read", path, &error))?;
    read_suite(&shown_word(path.as_os_str()), &bytes)
}

/// Reads a suite that a person wrote. `name` stands for it in messages.
///
/// # Errors
/// A line of it cannot be used.
pub fn read_suite(name: &str, bytes: &[u8]) -> Result<Suite, Failure> {
    Suite::read(name, bytes).map_err(|SuiteError { name, line, what, fix }| {
        let text = format!("{name}:{line}: {}", escape(&what));
        Failure::new(Exit::Usage, text).hint(escape(&fix).into_owned())
    })
}
