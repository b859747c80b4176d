//! Words that users can paste into a shell.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use crate::escape::escape;

/// Quotes a word for a POSIX shell. Returns `None` for one with a NUL, which a command line cannot contain.
pub fn quoted(word: &str) -> Option<String> {
    shlex::try_quote(word).ok().map(Into::into)
}

/// Quotes a word for a shell and a terminal. A word with control characters is written as `$'…'`, which bash,
/// zsh and ksh understand.
pub fn shown_word(word: &OsStr) -> String {
    let harmless = word.to_str().filter(|text| escape(text) == *text);
    harmless.and_then(quoted).unwrap_or_else(|| {
        let spelled = |byte: &u8| match byte {
            b'\'' | b'\\' => format!("\\{}", char::from(*byte)),
            b' '..=b'~' => char::from(*byte).to_string(),
            _ => format!("\\{byte:03o}"),
        };
        format!("$'{}'", word.as_bytes().iter().map(spelled).collect::<String>())
    })
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_word_is_quoted_only_where_it_must_be() {
        for (word, shown) in [
            ("20261120T175342Z-m-lora-c9db", "20261120T175342Z-m-lora-c9db"),
            ("my run; rm -rf $HOME", "'my run; rm -rf $HOME'"),
            ("", "''"),
            ("a\u{1b}[2J\u{202e}b", r"$'a\033[2J\342\200\256b'"),
        ] {
            assert_eq!(shown_word(OsStr::new(word)), shown);
        }
        assert_eq!(quoted("a\0b"), None);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]
        #[test]
        fn a_shell_reads_the_word_back(bytes in proptest::collection::vec(1_u8.., 0..40)) {
            let word = shown_word(OsStr::from_bytes(&bytes));
            prop_assert_eq!(escape(&word), word.clone());
            let read = Command::new("bash").args(["-c", &format!("printf %s {word}")]).output().unwrap();
            prop_assert_eq!(read.stdout, bytes);
        }
    }
}
