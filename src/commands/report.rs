//! `report`: a run as one page for a browser.

use std::path::{Path, PathBuf};

use serde::Serialize;
use sparktune_tui::escape;
use sparktune_tui::report::{ReportInput, html, write_page};

use super::runs::find;
use crate::cli::ReportArgs;
use crate::failure::{Exit, Failure};
use crate::output::{print, print_json};

#[derive(Serialize)]
struct Written {
    run_dir: PathBuf,
    report: PathBuf,
    bytes: usize,
}

/// `sparktune report`.
///
/// # Errors
/// A run that does not exist, or a page that cannot be written.
pub fn report(args: ReportArgs) -> Result<Exit, Failure> {
    let run = find(args.run)?;
    let path = args.output.unwrap_or_else(|| run.path().join("report.html"));
    let failed = |error: std::io::Error| Failure::io("write", &path, &error);
    let page = html(&ReportInput::read(&run));
    write_page(&path, &page).map_err(failed)?;
    let path = path.canonicalize().map_err(failed)?;
    if args.json {
        let absolute = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.to_owned());
        print_json(&Written { run_dir: absolute(run.path()), report: path, bytes: page.len() })?;
    } else {
        print(&format!("{}\n", escape(&path.display().to_string())))?;
    }
    Ok(Exit::Done)
}
