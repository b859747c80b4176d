//! Finds out whether any example of the data reasons before it answers, before the data is tokenised.
//!
//! Enters: files and folders. Leaves: yes or no. Only lines that contain a word of reasoning are parsed, and
//! reading ends with the first example that reasons. This file must not know chat templates.

use std::sync::atomic::{AtomicBool, Ordering};

use memchr::memmem;
use sparktune_base::field_map::FieldMap;

use crate::check::VALIDATE_CHUNK;
use crate::chunk::Chunk;
use crate::chunks::Reading;
use crate::error::DataError;
use crate::format::Format;
use crate::input::Input;
use crate::mapped::Columns;
use crate::progress::{Phase, Progress, Step};
use crate::source::Source;

/// Parts of every spelling of reasoning: `reasoning_content`, `reasoning`, `thinking`, and `<think>`, also
/// where its brackets are written as escapes.
const WORDS: [&[u8]; 2] = [b"reasoning", b"think"];

/// Returns whether an assistant turn in these files has reasoning, in a field of its own or as a think block
/// at the start of its text, if they are read in this format and with these names of columns. Lines that
/// cannot be read have none.
///
/// # Errors
/// The inputs cannot be read at all, or the caller cancelled.
pub fn has_reasoning<I: Clone + Into<Input>>(
    inputs: &[I],
    (format, map): (Option<Format>, &FieldMap),
    progress: &dyn Progress,
) -> Result<bool, DataError> {
    let source = Source::open(inputs)?;
    let (columns, chunk_bytes) = (&Columns::default(), VALIDATE_CHUNK);
    let reading = Reading {
        source: &source,
        format,
        map,
        columns,
        phase: Phase::Check,
        chunk_bytes,
        tells_refused_files: true,
    };
    let found = AtomicBool::new(false);
    let search = |chunk: &Chunk| {
        if !found.load(Ordering::Relaxed) && reasons(chunk) {
            found.store(true, Ordering::Relaxed);
        }
    };
    let read = reading.run(&UntilFound { progress, found: &found }, search, |()| Ok(0));
    match (found.load(Ordering::Relaxed), read) {
        (true, Ok(()) | Err(DataError::Cancelled)) => Ok(true),
        (found, read) => read.map(|()| found),
    }
}

fn reasons(chunk: &Chunk) -> bool {
    let may_reason = |text: &[u8]| WORDS.iter().any(|word| memmem::find(text, word).is_some());
    chunk.refused.is_none()
        && chunk.section.is_none()
        && may_reason(&chunk.bytes)
        && chunk.lines().filter(|line| may_reason(line.bytes)).any(|line| {
            let text = std::str::from_utf8(line.bytes).ok();
            let conversation = text.and_then(|text| chunk.parse(text).ok());
            conversation.is_some_and(|conversation| conversation.has_reasoning())
        })
}

/// Ends the reading once there is an answer. It shows no progress, because tokenising the same bytes takes a
/// hundred times as long.
struct UntilFound<'a> {
    progress: &'a dyn Progress,
    found: &'a AtomicBool,
}

impl Progress for UntilFound<'_> {
    fn step(&self, _: Step) {}

    fn cancelled(&self) -> bool {
        self.found.load(Ordering::Relaxed) || self.progress.cancelled()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn searched(text: &str) -> bool {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("data.jsonl");
        std::fs::write(&path, text).unwrap();
        has_reasoning(&[path], (None, &FieldMap::default()), &()).unwrap()
    }

    fn line(answer: &str) -> String {
        format!(r#"{{"messages":[{{"role":"user","content":"Think!"}},{{"role":"assistant",{answer}}}]}}"#)
    }

    #[test]
    fn reasoning_is_found_in_a_field_and_at_the_start_of_an_answer_and_nowhere_else() {
        let plain = line(r#""content":"I think so""#);
        assert!(!searched(&plain));
        assert!(!searched(&line(r#""content":"a","reasoning_content":"  ""#)));
        assert!(!searched(&line(r#""content":"the <think>tag</think>""#)));
        assert!(!searched(&line(r#""content":"<think>\n\n</think>\n\na""#)));
        for answer in [
            r#""content":"a","reasoning_content":"why""#,
            r#""content":"a","thinking":"why""#,
            r#""content":"\n<think>why</think>a""#,
            r#""content":"\u003cthink\u003ewhy\u003c/think\u003ea""#,
        ] {
            assert!(searched(&format!("{plain}\nno JSON\n{}\n", line(answer))), "{answer}");
        }
    }

    #[test]
    fn a_cancelled_search_is_no_answer() {
        struct Cancelled;
        impl Progress for Cancelled {
            fn step(&self, _: Step) {}
            fn cancelled(&self) -> bool {
                true
            }
        }
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("data.jsonl");
        std::fs::write(&path, line(r#""content":"a""#)).unwrap();
        assert!(matches!(
            has_reasoning(&[path], (None, &FieldMap::default()), &Cancelled),
            Err(DataError::Cancelled)
        ));
    }
}
