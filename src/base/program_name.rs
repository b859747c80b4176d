//! The name that the user types to start this program, for hints such as "`./run.sh resume` continues".
//!
//! `run.sh` starts the program under a path that nobody types, so it passes on the name it was called by
//! itself. The binary stores that name once, before anything else; tests of libraries store none and see
//! [`DEFAULT`].

use std::ffi::OsString;
use std::sync::OnceLock;

use crate::escape::is_active;
/// The name of an installed program.
const DEFAULT: &str = "sparktune";

static NAME: OnceLock<String> = OnceLock::new();

/// Returns the name that a hint puts before a command. It is shell text: words that need quotes have them.
pub fn program_name() -> &'static str {
    NAME.get().map_or(DEFAULT, String::as_str)
}

/// Stores the name by which the user called the program, quoted for a shell. A name that a terminal could
/// obey, or that is empty, is not used. The first call decides.
pub fn set_program_name(called_as: Option<OsString>) {
    if let Some(name) = called_as.and_then(usable) {
        NAME.get_or_init(|| name);
    }
}

fn usable(called_as: OsString) -> Option<String> {
    let name = called_as.into_string().ok()?;
    let is_safe = !name.trim().is_empty() && !name.contains(is_active);
    is_safe.then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_used_as_the_shell_text_it_is_unless_a_terminal_could_obey_it() {
        for name in ["./run.sh", "./run.sh --docker", r"/my\ folder/run.sh", "/größe/run.sh"] {
            assert_eq!(usable(name.into()).as_deref(), Some(name));
        }
        for name in ["", "  ", "run\u{1b}[2J.sh", "run\n.sh", "run\u{202e}.sh"] {
            assert_eq!(usable(name.into()), None, "{name:?}");
        }
    }

    #[test]
    fn without_a_name_hints_say_sparktune() {
        assert_eq!(program_name(), "sparktune");
    }
}
