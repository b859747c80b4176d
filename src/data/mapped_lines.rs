//! Writes the examples of data in any format as JSON Lines, with its columns under the names that they stand
//! for.
//!
//! Enters: files, and the user's map. Leaves: one line for each example, in order. Fields that no format
//! uses are kept, except such columns of Parquet, which are not read; lines that are no examples are left out
//! and counted.

use std::io::Write;
use std::ops::Range;
use std::path::Path;

use serde::Serialize;
use sparktune_base::field_map::FieldMap;

use crate::check::VALIDATE_CHUNK;
use crate::chunk::Chunk;
use crate::chunks::Reading;
use crate::error::DataError;
use crate::explain;
use crate::input::Input;
use crate::mapped::Columns;
use crate::progress::{Phase, Progress};
use crate::rejection::Rejection;
use crate::report::Place;
use crate::source::Source;

/// What [`write_mapped_lines`] wrote, of one call or of several.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct MappedLines {
    /// The number of lines written.
    pub examples: u64,
    /// The number of lines that are no examples.
    pub rejected: u64,
    /// The first of them, and why.
    pub first_rejected: Option<(Place, Rejection)>,
}

/// Appends the examples of a set to `out`, until `written` has `limit` of them. `path` is the place of `out`,
/// for messages. Returns whether lines were left because of the limit.
///
/// # Errors
/// A file cannot be read or holds raw text, `out` cannot be written, or the caller cancelled.
pub fn write_mapped_lines(
    input: &Input,
    map: &FieldMap,
    limit: u64,
    (out, path): (&mut dyn Write, &Path),
    written: &mut MappedLines,
    progress: &dyn Progress,
) -> Result<bool, DataError> {
    let source = Source::open(std::slice::from_ref(input))?;
    let reading = Reading {
        source: &source,
        format: None,
        map,
        columns: &Columns::default(),
        phase: Phase::Check,
        chunk_bytes: VALIDATE_CHUNK,
        tells_refused_files: false,
    };
    let outcome = reading.run(progress, examples_of, |part| {
        let file = &source.files()[part.file as usize];
        if part.is_text {
            return Err(DataError::input(
                &file.path,
                "it is raw text, which has no columns",
                "Give it to --data as it is",
            ));
        }
        for Outcome { line, result } in part.lines {
            if written.examples == limit {
                return Err(DataError::Cancelled);
            }
            match result {
                Ok(range) => {
                    let bytes = part.bytes[range].trim_ascii();
                    let done = out.write_all(bytes).and_then(|()| out.write_all(b"\n"));
                    done.map_err(DataError::io("write", path))?;
                    written.examples += 1;
                }
                Err(rejection) => {
                    written.rejected += 1;
                    let place = Place { file: file.name.clone(), line };
                    written.first_rejected.get_or_insert((place, *rejection));
                }
            }
        }
        Ok(written.examples)
    });
    match outcome {
        // Reading ends early by this alone.
        Err(DataError::Cancelled) if written.examples == limit && !progress.cancelled() => Ok(true),
        other => other.map(|()| false),
    }
}

/// The lines of a chunk: where each example is in its bytes, or why a line is none.
struct Part {
    file: u32,
    is_text: bool,
    bytes: Vec<u8>,
    lines: Vec<Outcome>,
}

struct Outcome {
    line: u64,
    result: Result<Range<usize>, Box<Rejection>>,
}

fn examples_of(chunk: &Chunk) -> Part {
    let mut part =
        Part { file: chunk.file, is_text: chunk.section.is_some(), bytes: Vec::new(), lines: Vec::new() };
    if let Some(refused) = &chunk.refused {
        part.lines.push(Outcome { line: chunk.first_line, result: Err(Box::new(refused.clone())) });
        return part;
    }
    if part.is_text {
        return part;
    }
    for line in chunk.lines().filter(|line| !line.bytes.trim_ascii().is_empty()) {
        let text =
            std::str::from_utf8(line.bytes).map_err(|error| explain::invalid_utf8(error.valid_up_to()));
        let result = text.and_then(|text| chunk.parse(text).map(drop)).map(|()| {
            let start = part.bytes.len();
            part.bytes.extend_from_slice(line.bytes);
            start..part.bytes.len()
        });
        part.lines.push(Outcome { line: line.line_no, result: result.map_err(Box::new) });
    }
    part
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(name: &str, content: &[u8], map: &str, limit: u64) -> (String, MappedLines, bool) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(name);
        std::fs::write(&path, content).unwrap();
        let (mut out, mut lines) = (Vec::new(), MappedLines::default());
        let map = FieldMap::try_from(map.to_owned()).unwrap();
        let input = Input::from(path.as_path());
        let out_of = (&mut out as &mut dyn Write, Path::new("out"));
        let has_more = write_mapped_lines(&input, &map, limit, out_of, &mut lines, &()).unwrap();
        (String::from_utf8(out).unwrap(), lines, has_more)
    }

    #[test]
    fn examples_get_their_names_and_what_is_no_example_is_counted() {
        let lines =
            "{\"q\": \"a\", \"r\": \"b\", \"id\": 7}\n\n{\"q\": 3}\n{oops\n{\"q\": \"c\", \"r\": \"d\"}\n";
        let (text, lines, has_more) = written("a.jsonl", lines.as_bytes(), "q=prompt,r=completion", u64::MAX);
        assert_eq!(
            text,
            "{\"prompt\":\"a\",\"completion\":\"b\",\"id\":7}\n{\"prompt\":\"c\",\"completion\":\"d\"}\n"
        );
        let (place, _) = lines.first_rejected.as_ref().unwrap();
        assert_eq!((lines.examples, lines.rejected, place.line, has_more), (2, 2, 3, false));
    }

    #[test]
    fn no_more_lines_than_the_limit_are_written() {
        let table = "prompt,completion\n".to_owned() + &"a,b\n".repeat(5000);
        for limit in [0, 1, 4999, 5000, 6000] {
            let (text, lines, has_more) = written("a.csv", table.as_bytes(), "", limit);
            assert_eq!((lines.examples, text.lines().count() as u64), (limit.min(5000), limit.min(5000)));
            assert_eq!(has_more, limit < 5000, "{limit}");
        }
    }

    #[test]
    fn raw_text_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.txt");
        std::fs::write(&path, "The river carries stones.\n").unwrap();
        let out: (&mut dyn Write, &Path) = (&mut Vec::new(), Path::new("out"));
        let (map, mut lines) = (FieldMap::default(), MappedLines::default());
        let error =
            write_mapped_lines(&Input::from(path.as_path()), &map, 9, out, &mut lines, &()).unwrap_err();
        assert!(error.to_string().contains("raw text"), "{error}");
    }
}
