//! Errors that end the work as a whole: inputs that cannot be read, tokenizers that cannot be loaded, folders
//! that cannot be written. A single bad line is not an error but a [`Rejection`](crate::Rejection).

use std::io;
use std::path::PathBuf;

use crate::token_file::TokenFileError;

/// The most bytes that a message repeats of what a file of a stranger says.
const MOST_QUOTED_BYTES: usize = 1000;

/// An error that ends `check` or `prepare`. Every message says what happened, where, and what to do.
#[derive(Debug, thiserror::Error)]
pub enum DataError {
    /// Reading or writing failed.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// The attempted action, as a verb: "read", "write".
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// A compressed input ends early or is damaged.
    #[error("{} is damaged or truncated ({message}): download or compress it again", path.display())]
    Compressed {
        /// The input file.
        path: PathBuf,
        /// The decoder's reason.
        message: String,
    },
    /// The input as a whole is unusable.
    #[error("{}: {problem}. {fix}", path.display())]
    Input {
        /// The file or folder.
        path: PathBuf,
        /// The problem.
        problem: String,
        /// The suggested remedy.
        fix: String,
    },
    /// A model folder's tokenizer, template or configuration is unusable.
    #[error("{}: {problem}. {fix}", path.display())]
    Model {
        /// The file in the model folder.
        path: PathBuf,
        /// The problem.
        problem: String,
        /// The suggested remedy.
        fix: String,
    },
    /// A token file could not be written or read back.
    #[error(transparent)]
    TokenFile(#[from] TokenFileError),
    /// The caller cancelled the work.
    #[error("stopped on request; nothing was saved. Run the command again to start over")]
    Cancelled,
}

impl DataError {
    pub(crate) fn io(action: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::Io { action, path, source }
    }

    pub(crate) fn input(
        path: impl Into<PathBuf>,
        problem: impl Into<String>,
        fix: impl Into<String>,
    ) -> Self {
        Self::Input { path: path.into(), problem: problem.into(), fix: fix.into() }
    }

    pub(crate) fn model(
        path: impl Into<PathBuf>,
        problem: impl Into<String>,
        fix: impl Into<String>,
    ) -> Self {
        Self::Model { path: path.into(), problem: problem.into(), fix: fix.into() }
    }

    pub(crate) fn no_data() -> Self {
        let fix = "Name a .jsonl file or a folder, for example --data train.jsonl";
        Self::input(PathBuf::new(), "no data was given", fix)
    }

    /// Returns whether the data is the cause (exit code 3), and not the machine or the model.
    pub fn is_data_fault(&self) -> bool {
        matches!(self, Self::Compressed { .. } | Self::Input { .. })
    }
}

/// Returns a text of a stranger, such as the message with which a template refuses a conversation, or its
/// beginning if it is long.
pub(crate) fn quoted(text: &str) -> String {
    let kept = &text[..text.floor_char_boundary(MOST_QUOTED_BYTES)];
    if kept.len() < text.len() { format!("{kept}…") } else { kept.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_text_of_a_stranger_is_repeated_to_a_whole_character() {
        assert_eq!(quoted("no system role"), "no system role");
        let long = quoted(&"ä€".repeat(100_000));
        assert!(long.ends_with('…') && long.len() < 1_010, "{} bytes", long.len());
    }
}
