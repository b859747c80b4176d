//! Names runs for command lines that users can paste.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use sparktune_base::shell::shown_word;
use sparktune_plan::Plan;
use sparktune_runlog::RunDir;

/// Returns the argument that names this run for `sparktune resume` and other commands, quoted for a shell:
/// its name if it is in `runs` of the working directory, otherwise its path. Control characters are escaped.
pub fn run_argument(run: &RunDir) -> String {
    match std::path::absolute(Plan::RUNS_DIR) {
        Ok(runs) => argument(run.path(), &runs),
        Err(_) => shown_word(run.path().as_os_str()),
    }
}

fn argument(path: &Path, runs: &Path) -> String {
    let (Some(name), Some(folder)) = (path.file_name(), path.parent()) else {
        return shown_word(path.as_os_str());
    };
    // A name that looks like a flag, or like the word for the newest run, is written with its folder, and so
    // is a hidden one, which is in no list.
    let is_name =
        !name.as_bytes().starts_with(b"-") && !name.as_bytes().starts_with(b".") && name != "latest";
    if is_name && std::path::absolute(folder).is_ok_and(|folder| folder == runs) {
        return shown_word(name);
    }
    if folder.as_os_str().is_empty() {
        return shown_word(Path::new(".").join(name).as_os_str());
    }
    shown_word(path.as_os_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_is_named_so_that_the_next_command_finds_it() {
        for (path, expected) in [
            ("/w/runs/20261120T175342Z-m-lora-c9db", "20261120T175342Z-m-lora-c9db"),
            ("/w/runs/my run; rm -rf $HOME", "'my run; rm -rf $HOME'"),
            ("/w/runs/it's", "\"it's\""),
            ("/w/runs/a\u{1b}[2J\u{202e}b", r"$'a\033[2J\342\200\256b'"),
            ("/w/runs/-x", "/w/runs/-x"),
            ("/w/runs/latest", "/w/runs/latest"),
            ("/w/runs/.rank-1-of-a", "/w/runs/.rank-1-of-a"),
            ("/elsewhere/a b", "'/elsewhere/a b'"),
            ("other/a", "other/a"),
            ("a", "./a"),
            (".", "."),
        ] {
            assert_eq!(argument(Path::new(path), Path::new("/w/runs")), expected);
        }
    }
}
