//! A copy of data without the lines that a check rejected.
//!
//! Enters: the report of a check, and the list of rejected lines. Leaves: a new file with the other lines,
//! byte for byte. Only JSON Lines can be copied line by line: a table has a heading, a quoted cell may have
//! line breaks, a JSON array is counted by its elements, and a compressed file is none of these.

use std::collections::HashSet;
use std::fs::{self, File, Permissions};
use std::io::{self, BufRead, BufReader, BufWriter, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use sparktune_base::escape::escape;
use sparktune_data::{Rejected, Report, has_plain_lines};

use crate::failure::{Exit, Failure};

/// What was copied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cleaned {
    /// The lines in the copy.
    pub kept: u64,
    /// The lines left out, without blank ones.
    pub left_out: u64,
}

/// Refuses a file for the copy that exists, or whose name has another ending than JSON Lines have, before
/// anything is read for it.
///
/// # Errors
/// It exists, or a link of its name, or it is not named as JSON Lines are.
pub fn refuse_output(output: &Path) -> Result<(), Failure> {
    if !is_named_as_lines(output) {
        let text = format!("{} would not be read as JSON Lines", escape(&output.display().to_string()));
        return Err(Failure::usage(text).hint("Name a file that ends with .jsonl"));
    }
    fs::symlink_metadata(output).map_or(Ok(()), |_| Err(exists(output)))
}

fn exists(output: &Path) -> Failure {
    let text = format!("{} exists already", escape(&output.display().to_string()));
    Failure::usage(text).hint("Name a new file")
}

/// Returns the files of a report that a copy would have, if all of them can be copied.
pub(crate) fn files_that_can_be_copied(report: &Report) -> Option<Vec<&Path>> {
    let files = files_to_copy(report);
    files.iter().all(|file| matches!(has_lines_to_copy(file), Ok(true))).then_some(files)
}

fn files_to_copy(report: &Report) -> Vec<&Path> {
    report.files.iter().filter(|file| !file.eval).map(|file| Path::new(&file.name)).collect()
}

fn has_lines_to_copy(file: &Path) -> Result<bool, Failure> {
    Ok(is_named_as_lines(file) && file.is_file() && has_plain_lines(file)?)
}

fn is_named_as_lines(file: &Path) -> bool {
    file.extension().is_some_and(|end| end == "jsonl" || end == "ndjson")
}

/// Writes the lines of all files of a report into the new file `output`, apart from blank ones and those that
/// count as rejected in the list `rejected`.
///
/// # Errors
/// A file is refused or is not JSON Lines, `output` exists, the list does not have all rejected lines, or a
/// file cannot be read or written.
pub fn write_clean(report: &Report, rejected: &Path, output: &Path) -> Result<Cleaned, Failure> {
    let shown = |path: &Path| escape(&path.display().to_string()).into_owned();
    if let Some(refused) = report.refused_files().find(|file| !file.eval) {
        let text = format!("{} is refused as a whole, so its lines cannot be copied", escape(&refused.name));
        return Err(
            Failure::new(Exit::Data, text).hint("Correct or convert it, or name only the other files")
        );
    }
    let files = files_to_copy(report);
    for file in &files {
        if !has_lines_to_copy(file)? {
            let text =
                format!("{}: only files of JSON Lines (.jsonl) can be copied line by line", shown(file));
            return Err(Failure::usage(text).hint("Leave out --write-clean, or convert the file first"));
        }
    }
    let without = rejected_places(report, rejected)?;
    refuse_output(output)?;
    let failed = |error: io::Error| match error.kind() {
        io::ErrorKind::AlreadyExists => exists(output),
        _ => Failure::io("write", output, &error),
    };
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
            // A mark of the encoding belongs to a file, not to a line.
            let line = line.strip_prefix(b"\xef\xbb\xbf").unwrap_or(&line);
            if line.trim_ascii().is_empty() {
                continue;
            }
            if without.contains(&(path.to_string_lossy().into_owned(), number)) {
                cleaned.left_out += 1;
                continue;
            }
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

/// Returns the places of the lines that count as rejected in a list.
///
/// # Errors
/// The list cannot be read, or does not have all of them.
fn rejected_places(report: &Report, list: &Path) -> Result<HashSet<(String, u64)>, Failure> {
    let mut places = HashSet::new();
    if report.rejected == 0 {
        return Ok(places);
    }
    let unreadable = |error: io::Error| Failure::io("read", list, &error);
    let mut found = 0;
    for line in BufReader::new(File::open(list).map_err(unreadable)?).lines() {
        let line = line.map_err(unreadable)?;
        let Rejected { file, line, not_counted, .. } =
            serde_json::from_str(&line).map_err(|error| unreadable(error.into()))?;
        if !not_counted {
            found += 1;
            places.insert((file, line));
        }
    }
    if found < report.rejected {
        let text = "too many lines are rejected or left out, so the list does not have all rejected ones";
        return Err(
            Failure::usage(text).hint("Correct what is wrong with most lines, and check the data again")
        );
    }
    Ok(places)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_without_all_rejected_lines_is_refused_and_one_that_lacks_others_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let list = folder.path().join("rejected.jsonl");
        let reason = r#""kind":"empty","field":"","reason":"r","fix":"f","text":"t""#;
        let lines = format!(
            "{{\"file\":\"a\",\"line\":1,\"not_counted\":true,{reason}}}\n{{\"file\":\"a\",\"line\":7,{reason}}}\n"
        );
        fs::write(&list, lines).unwrap();
        let report = |rejected| Report { rejected, unlisted: 5, ..Report::default() };
        assert_eq!(rejected_places(&report(1), &list).unwrap(), HashSet::from([("a".to_owned(), 7)]));
        let refused = rejected_places(&report(2), &list).unwrap_err().text;
        assert!(refused.contains("the list does not have all"), "{refused}");
    }
}
