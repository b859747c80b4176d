//! Notices about problems of an event file that do not stop the reader.

use std::fmt;
use std::path::PathBuf;

/// A problem of an event file that does not stop the reader. Its message describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "the words are in Display")]
pub enum Notice {
    /// Lines that are not events were skipped: their number in this poll, and the first one.
    Malformed { file: PathBuf, count: u64, first_line: u64, reason: String },
    /// The attempt ended within a line, for example because of a kill or a power failure.
    TornEnd { file: PathBuf, bytes: usize },
    /// Events are missing in the numbering: the first range of this poll, and the number of further events.
    Gap { file: PathBuf, from_seq: u64, to_seq: u64, more: u64 },
    /// The file became shorter or was replaced.
    Rewritten { file: PathBuf },
    /// The file is gone. This is reported once; [`crate::Polled::gone`] stays set.
    Vanished { file: PathBuf },
}

impl fmt::Display for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Notice::Malformed { file, count, first_line, reason } => write!(
                f,
                "{}:{first_line}: {count} line(s) that are not events were skipped; the first: {reason}",
                file.display()
            ),
            Notice::TornEnd { file, bytes } => {
                write!(
                    f,
                    "{}: ends in the middle of a line ({bytes} bytes), probably because the trainer was killed",
                    file.display()
                )
            }
            Notice::Gap { file, from_seq, to_seq, more } => {
                write!(f, "{}: events {from_seq} to {to_seq} are missing", file.display())?;
                if *more > 0 { write!(f, ", and {more} more after them") } else { Ok(()) }
            }
            Notice::Rewritten { file } => write!(
                f,
                "{}: was truncated or replaced, which sparktune never does; it is read again, and known events are skipped",
                file.display()
            ),
            Notice::Vanished { file } => {
                write!(f, "{} is gone; was the run folder moved or deleted?", file.display())
            }
        }
    }
}

impl Notice {
    /// Adds another line of `file` that is not an event to the notice about this file.
    pub(crate) fn add_malformed(notices: &mut Vec<Notice>, file: &PathBuf, line_no: u64, reason: String) {
        for notice in notices.iter_mut() {
            if let Notice::Malformed { file: known, count, .. } = notice
                && known == file
            {
                *count += 1;
                return;
            }
        }
        notices.push(Notice::Malformed { file: file.clone(), count: 1, first_line: line_no, reason });
    }

    /// Adds another gap in the numbering of `file` to the notice about this file.
    pub(crate) fn add_gap(notices: &mut Vec<Notice>, file: &PathBuf, from_seq: u64, to_seq: u64) {
        for notice in notices.iter_mut() {
            if let Notice::Gap { file: known, more, .. } = notice
                && known == file
            {
                *more = more.saturating_add(to_seq - from_seq).saturating_add(1);
                return;
            }
        }
        notices.push(Notice::Gap { file: file.clone(), from_seq, to_seq, more: 0 });
    }
}
