//! A panic is a bug in sparktune: it leaves a report for the developers and two lines for the user, never a
//! backtrace on the screen.

use std::backtrace::Backtrace;
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

use sparktune_app::failure::Exit;
use sparktune_base::files::appended_file;
use sparktune_base::program_name;
use sparktune_tui::output::note;

/// Where panics of this process are reported.
static REPORT: Mutex<Report> = Mutex::new(Report { path: None, file: None });

/// A report, which is created when there is something to write.
struct Report {
    /// The path of the report, once it is known. Without one, the report gets an unpredictable name in the
    /// folder for temporary files, which all users share.
    path: Option<PathBuf>,
    /// The report of the first panic. A second one is added to it, because the first may have caused it in
    /// another thread.
    file: Option<File>,
}

impl Report {
    fn append(&mut self, text: &str) -> io::Result<()> {
        let file = if let Some(file) = self.file.take() {
            file
        } else if let Some(path) = &self.path {
            // A link that someone else created is not followed.
            appended_file().mode(0o600).open(path)?
        } else {
            let named = format!("sparktune-crash-{}-", std::process::id());
            let new = tempfile::Builder::new().prefix(&named).suffix(".txt").tempfile()?;
            let (file, path) = new.keep().map_err(|error| error.error)?;
            self.path = Some(path);
            file
        };
        self.file.insert(file).write_all(text.as_bytes())
    }
}

fn report() -> MutexGuard<'static, Report> {
    REPORT.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Sends reports of panics to a file instead of the screen.
pub fn install() {
    std::panic::set_hook(Box::new(|panic| {
        // A thread of the GPU's runtime may be the only one that reports the cause.
        sparktune_telemetry::record_panic(panic.payload_as_str().unwrap_or_default());
        let text = format!(
            "sparktune {} ({})\nthread '{}': {panic}\n\n{}\n",
            env!("CARGO_PKG_VERSION"),
            std::env::consts::ARCH,
            std::thread::current().name().unwrap_or("unnamed"),
            Backtrace::force_capture()
        );
        let mut report = report();
        if report.append(&text).is_err() {
            note(&format!("{panic}"));
            *report = Report { path: None, file: None };
        }
    }));
}

/// Writes later reports into this file.
pub fn report_to(path: PathBuf) {
    *report() = Report { path: Some(path), file: None };
}

/// Reports a panic to the user: as a failure of the GPU's runtime if it was one, otherwise as a bug. Returns
/// the exit code.
pub fn report_panic() -> Exit {
    let place = match &report().path {
        Some(path) => format!("The crash report is {}", path.display()),
        None => "A crash report could not be written".to_owned(),
    };
    if let Some(what) = sparktune_telemetry::recorded_failure() {
        note(&format!("error: {what}. {place}"));
        return Exit::Device;
    }
    note(&format!(
        "error: this command ended because of a bug in sparktune. {place}. Please report this to the developers; `{program} resume` continues a run",
        program = program_name()
    ));
    Exit::Bug
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_panic_leaves_a_report_with_its_message_and_ends_with_70() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("crash-0001.txt");
        report_to(path.clone());
        install();
        let caught = std::panic::catch_unwind(|| panic!("the sky fell"));
        let _ = std::panic::take_hook();
        assert!(caught.is_err());
        let text = std::fs::read_to_string(path).unwrap();
        assert!(text.contains("the sky fell") && text.contains(env!("CARGO_PKG_VERSION")), "{text}");
        assert_eq!(report_panic(), Exit::Bug);
    }

    #[test]
    fn outside_a_run_the_report_is_a_new_file_of_its_own_to_which_the_next_panic_is_added() {
        let mut reports = [(); 2].map(|()| Report { path: None, file: None });
        for text in ["one\n", "two\n"] {
            reports.iter_mut().for_each(|report| report.append(text).unwrap());
        }
        let [one, other] = reports.map(|report| report.path.unwrap());
        assert_ne!(one, other, "the number of the process alone could be guessed");
        for path in [one, other] {
            assert_eq!(std::fs::read_to_string(&path).unwrap(), "one\ntwo\n");
            assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
            std::fs::remove_file(path).unwrap();
        }
    }
}
