//! A panic is a bug in sparktune: it leaves a report for the developers and two lines for the user, never a
//! backtrace on the screen.

use std::backtrace::Backtrace;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

use sparktune_app::failure::Exit;
use sparktune_base::files::appended_file;
use sparktune_base::program_name;
use sparktune_tui::output::note;

/// The path for the report and, after a panic, of the report. `None` if it could not be written.
static REPORT: Mutex<Option<PathBuf>> = Mutex::new(None);

fn report() -> MutexGuard<'static, Option<PathBuf>> {
    REPORT.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Sends reports of panics to a file instead of the screen.
pub fn install() {
    std::panic::set_hook(Box::new(|panic| {
        // A thread of the GPU's runtime may be the only one that reports the cause.
        sparktune_telemetry::record_panic(panic.payload_as_str().unwrap_or_default());
        let mut at = report();
        let path = at.get_or_insert_with(|| {
            std::env::temp_dir().join(format!("sparktune-crash-{}.txt", std::process::id()))
        });
        let text = format!(
            "sparktune {} ({})\nthread '{}': {panic}\n\n{}\n",
            env!("CARGO_PKG_VERSION"),
            std::env::consts::ARCH,
            std::thread::current().name().unwrap_or("unnamed"),
            Backtrace::force_capture()
        );
        // The report is appended, because a second thread may crash because of the first. A link that someone
        // else created is not followed.
        let file = appended_file().mode(0o600).open(&*path);
        if file.and_then(|mut file| file.write_all(text.as_bytes())).is_err() {
            note(&format!("{panic}"));
            *at = None;
        }
    }));
}

/// Writes later reports into this file.
pub fn report_to(path: PathBuf) {
    *report() = Some(path);
}

/// Reports a panic to the user: as a failure of the GPU's runtime if it was one, otherwise as a bug. Returns
/// the exit code.
pub fn report_panic() -> Exit {
    let place = match &*report() {
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
}
