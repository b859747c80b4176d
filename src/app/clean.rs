//! A copy of data without the lines that a check rejected.
//!
//! Enters: the report of a check, and the list of rejected lines. Leaves: a new file with the other lines,
//! byte for byte. Only JSON Lines can be copied line by line: a table has a heading, a quoted cell may have
//! line breaks, and a compressed file is none of these.

use std::collections::HashSet;
use std::fs::{self, File, Permissions};
use std::io::{self, BufRead, BufReader, BufWriter, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use sparktune_base::escape::escape;
use sparktune_data::{Rejected, Report};

use crate::failure::{Exit, Failure};

/// What was copied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cleaned {
    /// The lines in the copy.
    pub kept: u64,
    /// The lines left out, without blank ones.
    pub left_out: u64,
}

/// Writes the lines of all files of a report into the new file `output`, apart from blank ones and those in
/// the list `rejected`.
///
/// # Errors
/// A file is refused or is not JSON Lines, `output` exists, the list does not have all rejected lines, or a
/// file cannot be read or written.
pub fn write_clean(report: &Report, rejected: &Path, output: &Path) -> Result<Cleaned, Failure> {
    let shown = |path: &Path| escape(&path.display().to_string()).into_owned();
    if report.unlisted > 0 {
        let text = "too many lines are rejected, and the list has not all of them";
        return Err(Failure::usage(text).hint("Correct what is wrong with most lines first"));
    }
    if let Some(refused) = report.refused_files().find(|file| !file.eval) {
        let text = format!("{} is refused as a whole, so its lines cannot be copied", escape(&refused.name));
        return Err(
            Failure::new(Exit::Data, text).hint("Correct or convert it, or name only the other files")
        );
    }
    let files: Vec<&Path> =
        report.files.iter().filter(|file| !file.eval).map(|file| Path::new(&file.name)).collect();
    for file in &files {
        let is_lines = file.extension().is_some_and(|end| end == "jsonl" || end == "ndjson");
        if !is_lines || !file.is_file() {
            let text =
                format!("{}: only files of JSON Lines (.jsonl) can be copied line by line", shown(file));
            return Err(Failure::usage(text).hint("Leave out --write-clean, or convert the file first"));
        }
    }
    let without = if report.listed_lines() > 0 { listed(rejected)? } else { HashSet::new() };
    let failed = |error: io::Error| match error.kind() {
        io::ErrorKind::AlreadyExists => {
            Failure::usage(format!("{} exists already", shown(output))).hint("Name a new file")
        }
        _ => Failure::io("write", output, &error),
    };
    if fs::symlink_metadata(output).is_ok() {
        return Err(failed(io::ErrorKind::AlreadyExists.into()));
    }
    // Half a copy never has the name of the whole one.
    let folder = output.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let readable = Permissions::from_mode(0o666);
    let unfinished = tempfile::Builder::new().permissions(readable).tempfile_in(folder).map_err(failed)?;
    let mut copy = BufWriter::new(unfinished);
    let mut cleaned = Cleaned { kept: 0, left_out: 0 };
    for path in files {
        let unreadable = |error: io::Error| Failure::io("read", path, &error);
        let mut input = BufReader::new(File::open(path).map_err(unreadable)?);
        for number in 1_u64.. {
            let mut line = Vec::new();
            if input.read_until(b'\n', &mut line).map_err(unreadable)? == 0 {
                break;
            }
            if line.trim_ascii().is_empty() {
                continue;
            }
            if without.contains(&(path.to_string_lossy().into_owned(), number)) {
                cleaned.left_out += 1;
                continue;
            }
            // A mark of the encoding belongs to a file, not to a line.
            let line = line.strip_prefix(b"\xef\xbb\xbf").unwrap_or(&line);
            let line = line.strip_suffix(b"\n").unwrap_or(line);
            copy.write_all(line).and_then(|()| copy.write_all(b"\n")).map_err(failed)?;
            cleaned.kept += 1;
        }
    }
    let whole = copy.into_inner().map_err(|error| failed(error.into_error()))?;
    whole.as_file().sync_all().map_err(failed)?;
    whole.persist_noclobber(output).map_err(|refused| failed(refused.error))?;
    Ok(cleaned)
}

/// Returns the places of the lines in a list.
fn listed(rejected: &Path) -> Result<HashSet<(String, u64)>, Failure> {
    let unreadable = |error: io::Error| Failure::io("read", rejected, &error);
    let mut places = HashSet::new();
    for line in BufReader::new(File::open(rejected).map_err(unreadable)?).lines() {
        let line = line.map_err(unreadable)?;
        let Rejected { file, line, .. } =
            serde_json::from_str(&line).map_err(|error| unreadable(error.into()))?;
        places.insert((file, line));
    }
    Ok(places)
}
