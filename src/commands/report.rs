//! `report`: writes a run as one page for a browser.

use std::path::{Path, PathBuf};

use serde::Serialize;
use sparktune_app::failure::{Exit, Failure};
use sparktune_base::escape::escape;
use sparktune_plan::elsewhere::Elsewhere;
use sparktune_tui::output::{print, print_json};
use sparktune_tui::report::{ReportInput, html, is_page, write_page};

use crate::outputs::refuse_to_replace_another;
use crate::request::RunName;
use crate::runs::find_run;

#[derive(Serialize)]
struct Written {
    run_dir: PathBuf,
    report: PathBuf,
    bytes: usize,
}

/// Runs `sparktune report`. `output` is the page to write, instead of `report.html` in the run folder. With
/// another machine, the page says what the job would have taken there.
///
/// # Errors
/// The run does not exist, or the page cannot be written.
pub fn report(
    name: RunName,
    output: Option<PathBuf>,
    elsewhere: Option<Elsewhere>,
    json: bool,
) -> Result<Exit, Failure> {
    let run = find_run(name)?;
    let path = output.unwrap_or_else(|| run.path().join("report.html"));
    let failed = |error: std::io::Error| Failure::io("write", &path, &error);
    refuse_to_replace_another(&path, |path| {
        is_page(path).map_err(|error| Failure::io("read", path, &error))
    })?;
    let page = html(&ReportInput { elsewhere, ..ReportInput::read(&run) });
    write_page(&path, &page).map_err(failed)?;
    let path = path.canonicalize().map_err(failed)?;
    if json {
        let absolute = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.to_owned());
        print_json(&Written { run_dir: absolute(run.path()), report: path, bytes: page.len() })?;
    } else {
        print(&format!("{}\n", escape(&path.display().to_string())))?;
    }
    Ok(Exit::Done)
}
