//! Reads the list of rejected lines that `check` and `prepare` write, page by page.
//!
//! A line of the list contains a line of the user's data, which may have many megabytes, and there may be
//! millions of lines. Therefore neither a whole line nor the whole list is ever held in memory: only the
//! beginning of a line is kept, and only the positions of some lines are stored.

use std::fs::File;
use std::io::{BufRead, BufReader, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use sparktune_base::regular_file::open_regular;

use crate::error::DataError;
use crate::rejection::Rejected;

/// The number of bytes kept of a line of the list. Everything except the user's text fits easily.
const LOOKED_AT: usize = 256 << 10;
/// The distance in lines between two stored positions.
const STRIDE: u64 = 256;

/// The list of rejected lines, open for reading.
#[derive(Debug)]
pub struct RejectedList {
    path: PathBuf,
    file: BufReader<File>,
    /// The byte offset of every [`STRIDE`]th line, as far as the list was read.
    marks: Vec<u64>,
}

/// A rejected line of bounded size.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeptLine {
    /// Place, reason, fix, and the beginning of the line. All of it is untrusted and has to be escaped for a
    /// terminal.
    pub rejected: Rejected,
    /// Whether the line was longer than the text kept here.
    pub cut: bool,
}

impl RejectedList {
    /// Opens the list, whose path is in `Prepared::rejected` or the options of `check`.
    ///
    /// # Errors
    /// The file does not exist or cannot be read.
    pub fn open(path: &Path) -> Result<Self, DataError> {
        let file = open_regular(path).map_err(DataError::io("read", path))?;
        Ok(Self { path: path.to_owned(), file: BufReader::new(file), marks: vec![0] })
    }

    /// Returns up to `limit` lines from line `offset` on (counted from 0), each with up to `max_text_bytes`
    /// of its text; fewer at the end. Moving by one page in either direction costs no more than reading the
    /// page.
    ///
    /// # Errors
    /// Reading fails, or the file is not a list of rejected lines.
    pub fn page(
        &mut self,
        offset: u64,
        limit: usize,
        max_text_bytes: usize,
    ) -> Result<Vec<KeptLine>, DataError> {
        let mark = (offset / STRIDE).min(self.marks.len() as u64 - 1);
        let mut at = self.marks[mark as usize];
        let read = |e| DataError::io("read", &self.path)(e);
        self.file.seek(SeekFrom::Start(at)).map_err(read)?;
        let mut line_no = mark * STRIDE;
        let mut page = Vec::new();
        let mut line = Vec::new();
        while page.len() < limit {
            let kept = if line_no < offset { 0 } else { LOOKED_AT };
            let bytes = read_line(&mut self.file, kept, &mut line).map_err(read)?;
            if bytes == 0 {
                break;
            }
            if line_no >= offset {
                let kept = parse(&line, bytes > line.len() as u64, max_text_bytes);
                page.push(kept.ok_or_else(|| self.no_list(line_no))?);
            }
            at += bytes;
            line_no += 1;
            if line_no.is_multiple_of(STRIDE) && line_no / STRIDE == self.marks.len() as u64 {
                self.marks.push(at);
            }
        }
        Ok(page)
    }

    fn no_list(&self, line_no: u64) -> DataError {
        let problem = format!("line {} does not belong to a list of rejected lines", line_no + 1);
        DataError::input(&self.path, problem, "run the check again to rebuild the list")
    }
}

/// Reads a line to its end and keeps up to `kept` bytes of it in `line`. Returns the length of the whole line
/// including its line break, or 0 at the end of the file.
fn read_line(from: &mut impl BufRead, kept: usize, line: &mut Vec<u8>) -> std::io::Result<u64> {
    line.clear();
    let mut bytes = 0;
    loop {
        let piece = match from.fill_buf() {
            Ok(piece) => piece,
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => continue,
            Err(e) => return Err(e),
        };
        let end = memchr::memchr(b'\n', piece);
        let used = end.map_or(piece.len(), |at| at + 1);
        line.extend_from_slice(&piece[..used.min(kept.saturating_sub(line.len()))]);
        bytes += used as u64;
        from.consume(used);
        if end.is_some() || used == 0 {
            return Ok(bytes);
        }
    }
}

fn parse(line: &[u8], cut: bool, max_text_bytes: usize) -> Option<KeptLine> {
    let rejected = if cut { parse_beginning(line) } else { serde_json::from_slice(line).ok() };
    let Rejected { text, .. } = rejected.as_ref()?;
    let keep = text.floor_char_boundary(max_text_bytes);
    let cut = cut || keep < text.len();
    let mut rejected = rejected?;
    rejected.text.truncate(keep);
    Some(KeptLine { rejected, cut })
}

/// Parses a line that was cut inside its last field, the text, by closing the string at a valid position.
fn parse_beginning(line: &[u8]) -> Option<Rejected> {
    // The cut splits at most a surrogate pair in escapes, `\ud83d\ude00`, or the bytes of one character.
    (0..12).find_map(|cut_off| {
        let line = std::str::from_utf8(line.get(..line.len().checked_sub(cut_off)?)?).ok()?;
        serde_json::from_str(&format!("{line}\"}}")).ok()
    })
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use proptest::prelude::*;

    use super::*;
    use crate::rejection::{Kind, Rejection};

    fn rejected(line: u64, text: &str) -> Rejected {
        Rejected {
            file: "a \"b\".jsonl".into(),
            line,
            not_counted: false,
            rejection: Rejection::new(Kind::UnknownRole, "messages[0].role", "unknown", "Use another"),
            text: text.into(),
        }
    }

    fn list(lines: &[Rejected]) -> (tempfile::TempDir, RejectedList) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("rejected.jsonl");
        let mut file = File::create(&path).unwrap();
        for line in lines {
            writeln!(file, "{}", serde_json::to_string(line).unwrap()).unwrap();
        }
        let list = RejectedList::open(&path).unwrap();
        (folder, list)
    }

    #[test]
    fn any_page_can_be_read_in_any_order() {
        let lines: Vec<Rejected> =
            (0..1000).map(|i| rejected(i * 3 + 1, &"x".repeat(i as usize % 90))).collect();
        let (_folder, mut list) = list(&lines);
        for offset in [0, 990, 255, 256, 257, 600, 0, 999, 1000, 5000] {
            let page = list.page(offset, 20, 1000).unwrap();
            let expected: Vec<KeptLine> = lines
                .iter()
                .skip(offset as usize)
                .take(20)
                .map(|rejected| KeptLine { rejected: rejected.clone(), cut: false })
                .collect();
            assert_eq!(page, expected, "from {offset}");
        }
    }

    #[test]
    fn a_line_of_megabytes_is_shown_by_its_beginning() {
        let long = "\u{1}ü😀\"".repeat(1 << 20);
        let (_folder, mut list) = list(&[rejected(1, "short"), rejected(2, &long), rejected(3, "last")]);
        let page = list.page(0, 10, 100).unwrap();
        assert_eq!(page.iter().map(|line| line.cut).collect::<Vec<_>>(), [false, true, false]);
        assert!(page[1].rejected.text.len() <= 100 && long.starts_with(&page[1].rejected.text));
        assert_eq!((page[1].rejected.line, page[2].rejected.line), (2, 3));
        assert_eq!(page[1].rejected.rejection.field, "messages[0].role");
    }

    #[test]
    fn what_is_no_list_is_said_with_its_line() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("data.jsonl");
        std::fs::write(&path, "{\"messages\": []}\n").unwrap();
        let error = RejectedList::open(&path).unwrap().page(0, 1, 10).unwrap_err().to_string();
        assert!(error.contains("data.jsonl") && error.contains("line 1 does not belong"), "{error}");
        std::fs::write(&path, "").unwrap();
        assert!(RejectedList::open(&path).unwrap().page(0, 1, 10).unwrap().is_empty());
        assert!(RejectedList::open(&folder.path().join("none")).is_err());
    }

    proptest! {
        #[test]
        fn wherever_a_line_is_cut_its_beginning_is_read(text in "\\PC{0,30}|[\u{0}-\u{20}😀\"\\\\]{0,30}", cut in any::<u16>()) {
            let whole = serde_json::to_string(&rejected(7, &text)).unwrap();
            let begin = whole.find("\"text\":\"").unwrap() + 8;
            let at = begin + usize::from(cut) % (whole.len() - 2 - begin + 1);
            let found = parse_beginning(&whole.as_bytes()[..at]).unwrap();
            prop_assert!(text.starts_with(&found.text), "{:?} {:?}", text, found.text);
            prop_assert!(found.text.len() + 12 >= (at - begin) / 6);
            // The same list with all characters as escapes, as other programs write it.
            let escaped: String = text.encode_utf16().map(|unit| format!("\\u{unit:04x}")).collect();
            let line = format!("{}{escaped}", &whole[..begin]);
            let at = begin + usize::from(cut) % (escaped.len() + 1);
            let found = parse_beginning(&line.as_bytes()[..at]).unwrap();
            prop_assert!(text.starts_with(&found.text), "{:?} {:?}", text, found.text);
        }
    }
}
