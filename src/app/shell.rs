//! Words that a person can paste into a shell.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use sparktune_base::escape::escape;
use sparktune_runlog::RunDir;

/// Where `sparktune` looks for a run by its name alone.
const RUNS: &str = "runs";

/// What names this run after `sparktune resume` and its like, quoted for a shell: its name where it lies in
/// `runs` of the working directory, else its path. Nothing in it can steer a terminal.
pub fn run_argument(run: &RunDir) -> String {
    match std::path::absolute(RUNS) {
        Ok(runs) => argument(run.path(), &runs),
        Err(_) => shell_word(run.path().as_os_str()),
    }
}

fn argument(path: &Path, runs: &Path) -> String {
    let (Some(name), Some(folder)) = (path.file_name(), path.parent()) else {
        return shell_word(path.as_os_str());
    };
    // What looks like a flag, or like the word for the newest run, is said with its folder.
    let is_name = !name.as_bytes().starts_with(b"-") && name != "latest";
    if is_name && std::path::absolute(folder).is_ok_and(|folder| folder == runs) {
        return shell_word(name);
    }
    if folder.as_os_str().is_empty() {
        return shell_word(Path::new(".").join(name).as_os_str());
    }
    shell_word(path.as_os_str())
}

/// A word as a POSIX shell reads it back. One that a terminal would obey is spelled in `$'…'`.
fn shell_word(word: &OsStr) -> String {
    let is_plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_./:@%+,".contains(byte);
    match word.to_str() {
        Some(text) if !text.is_empty() && text.bytes().all(|byte| is_plain(&byte)) => text.to_owned(),
        Some(text) if escape(text) == text => format!("'{}'", text.replace('\'', r"'\''")),
        _ => {
            let byte = |byte: &u8| match byte {
                b'\'' | b'\\' => format!("\\{}", char::from(*byte)),
                b' '..=b'~' => char::from(*byte).to_string(),
                _ => format!("\\{byte:03o}"),
            };
            format!("$'{}'", word.as_bytes().iter().map(byte).collect::<String>())
        }
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_run_is_named_so_that_the_next_command_finds_it() {
        for (path, said) in [
            ("/w/runs/20261120T175342Z-m-lora-c9db", "20261120T175342Z-m-lora-c9db"),
            ("/w/runs/my run; rm -rf $HOME", "'my run; rm -rf $HOME'"),
            ("/w/runs/it's", r"'it'\''s'"),
            ("/w/runs/a\u{1b}[2J\u{202e}b", r"$'a\033[2J\342\200\256b'"),
            ("/w/runs/-x", "/w/runs/-x"),
            ("/w/runs/latest", "/w/runs/latest"),
            ("/elsewhere/a b", "'/elsewhere/a b'"),
            ("other/a", "other/a"),
            ("a", "./a"),
            (".", "."),
        ] {
            assert_eq!(argument(Path::new(path), Path::new("/w/runs")), said);
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]
        #[test]
        fn a_shell_reads_the_word_back(bytes in proptest::collection::vec(1_u8.., 0..40)) {
            let word = shell_word(OsStr::from_bytes(&bytes));
            prop_assert_eq!(escape(&word), word.clone());
            let read = Command::new("bash").args(["-c", &format!("printf %s {word}")]).output().unwrap();
            prop_assert_eq!(read.stdout, bytes);
        }
    }
}
