//! The file `rejected.jsonl` as `check`, `pack` and `train` write it.
//!
//! Enters: rejected lines. Leaves: their list, whole or not at all. Whatever else has its name stays.

use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use sparktune_base::files::leads_to_a_device;
use sparktune_base::regular_file::open_regular;
use tempfile::NamedTempFile;

use crate::error::DataError;
use crate::rejected_list::RejectedList;
use crate::rejection::Rejected;

/// Writes `rejected.jsonl` under a temporary name first, and renames it when it is complete. Only an earlier
/// list of rejected lines is ever replaced or removed; any other file of this name is an error once a line
/// has to be written, and stays as it is.
pub(crate) struct RejectedFile {
    path: PathBuf,
    /// The file at the path is not a list of rejected lines.
    is_taken: bool,
    file: Option<BufWriter<NamedTempFile>>,
}

impl RejectedFile {
    /// Refuses to write the list of rejected lines to one of these data files, which would replace or remove
    /// it.
    ///
    /// # Errors
    /// The list is one of them.
    pub(crate) fn refuse_input<'a>(
        list: Option<&Path>,
        mut files: impl Iterator<Item = &'a Path>,
    ) -> Result<(), DataError> {
        let Some(list) = list.and_then(|path| path.canonicalize().ok()) else { return Ok(()) };
        if files.any(|file| file.canonicalize().is_ok_and(|path| path == list)) {
            let problem = "is read as data, so the list of rejected lines cannot be written there";
            return Err(DataError::input(list, problem, "Choose another path with --rejected"));
        }
        Ok(())
    }

    pub(crate) fn create(path: &Path) -> Result<Self, DataError> {
        if leads_to_a_device(path) {
            let problem = "leads to a device or an open file, which no list of rejected lines replaces";
            return Err(DataError::input(path, problem, "Name a file with --rejected"));
        }
        let is_taken = match open_regular(path) {
            Ok(_) => !is_list_of_rejected(path),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => false,
            Err(e) => return Err(DataError::io("read", path)(e)),
        };
        Ok(Self { path: path.to_owned(), is_taken, file: None })
    }

    pub(crate) fn push(&mut self, rejected: &Rejected) -> Result<(), DataError> {
        if self.is_taken {
            return Err(list_is_taken(&self.path));
        }
        if self.file.is_none() {
            let folder = self.path.parent().filter(|folder| !folder.as_os_str().is_empty());
            let folder = folder.unwrap_or(Path::new("."));
            let file = NamedTempFile::with_prefix_in(".rejected-", folder);
            self.file = Some(BufWriter::new(file.map_err(DataError::io("write into", folder))?));
        }
        let Some(file) = &mut self.file else { return Ok(()) };
        serde_json::to_writer(&mut *file, rejected)
            .map_err(std::io::Error::from)
            .and_then(|()| file.write_all(b"\n"))
            .map_err(DataError::io("write", &self.path))
    }

    /// Moves the list to its final name and returns the path if there is one. Without rejected lines an
    /// earlier list is removed.
    pub(crate) fn finish(self) -> Result<Option<PathBuf>, DataError> {
        let Some(file) = self.file else {
            let is_empty = || std::fs::metadata(&self.path).is_ok_and(|file| file.len() == 0);
            if self.is_taken || is_empty() {
                return Ok(None);
            }
            return match std::fs::remove_file(&self.path) {
                Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
                    Err(DataError::io("remove", self.path)(e))
                }
                _ => Ok(None),
            };
        };
        let file = file.into_inner().map_err(|e| DataError::io("write", &self.path)(e.into_error()))?;
        file.persist(&self.path).map_err(|e| DataError::io("write", &self.path)(e.error))?;
        Ok(Some(self.path))
    }
}

/// Returns that rejected lines are not written because another file has the name of their list.
pub fn list_is_taken(path: &Path) -> DataError {
    let problem = "exists and is not a list of rejected lines, so they are not written there";
    DataError::input(path, problem, "Choose another path with --rejected")
}

/// Returns whether the file is a list of rejected lines that sparktune wrote. One that is empty may be.
pub fn is_list_of_rejected(path: &Path) -> bool {
    RejectedList::open(path).and_then(|mut list| list.page(0, 1, 0)).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rejection::{Kind, Rejection};

    #[test]
    fn a_list_is_known_by_the_beginning_of_its_first_line_and_no_other_file_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("rejected.jsonl");
        let write = |text: &str| {
            let mut file = RejectedFile::create(&path)?;
            let rejection = Rejection::new(Kind::InvalidJson, "", "is wrong", "Correct it");
            let file_name = "a.jsonl".to_owned();
            let line =
                Rejected { file: file_name, line: 1, not_counted: false, rejection, text: text.into() };
            file.push(&line)?;
            file.finish()
        };
        // Longer than what is looked at, and with characters that JSON writes in six bytes.
        for text in ["short", &"x".repeat(3 << 20), &"\u{1}".repeat(1 << 20)] {
            assert_eq!(write(text).unwrap().as_ref(), Some(&path));
            assert!(is_list_of_rejected(&path), "{} bytes", text.len());
        }
        std::fs::write(&path, "").unwrap();
        assert!(is_list_of_rejected(&path), "an empty file is nobody's");
        for other in ["{\"messages\": []}\n", "notes", &format!("{{\"file\": \"{}\"}}", "x".repeat(1 << 20))]
        {
            std::fs::write(&path, other).unwrap();
            let refused = write("x").unwrap_err().to_string();
            assert!(refused.contains("is not a list of rejected lines"), "{refused}");
            assert_eq!(std::fs::read_to_string(&path).unwrap(), *other);
        }
    }
}
