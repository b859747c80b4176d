//! Finds examples in data of any size: those of a line, or those whose line has a text in it.
//!
//! Enters: the user's text, or token files. Leaves: a [`Preview`] of what was found, in the order of the
//! data. The data is read until enough is found, and only what is found is rendered.

use std::sync::atomic::{AtomicBool, Ordering};

use aho_corasick::AhoCorasick;
use serde::{Deserialize, Serialize};

use crate::at_work;
use crate::chat_tokenizer::ChatTokenizer;
use crate::chunk::Chunk;
use crate::chunks::Reading;
use crate::error::DataError;
use crate::explain;
use crate::mapped::{Columns, in_own_names};
use crate::preview::{LONGEST_LINE, Pick, Preview, PreviewOptions, Previewed, previewed};
use crate::progress::{Phase, Progress, Step};
use crate::rejection::Rejection;
use crate::report::Place;
use crate::source::Source;

/// The target size of a chunk in bytes.
const CHUNK: usize = 1 << 20;

/// What is looked for in the data.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Wanted {
    /// The examples of a line, of this file, or of every file that has such a line.
    Line {
        /// The file's name or the end of its path.
        file: Option<String>,
        /// The number of the line, from 1; of a table, that of the row.
        line: u64,
    },
    /// The examples of lines that contain this text, in any case of ASCII letters.
    Text(String),
}

impl Wanted {
    /// Returns whether a line of this file and number may be looked for.
    pub(crate) fn is_at(&self, name: &str, number: u64) -> bool {
        let is_line = match self {
            Self::Line { line, .. } => number == *line,
            Self::Text(_) => true,
        };
        is_line && self.may_be_in(name)
    }

    /// Returns whether what is looked for may be in this file.
    fn may_be_in(&self, name: &str) -> bool {
        let Self::Line { file: Some(file), .. } = self else { return true };
        name.strip_suffix(file.as_str()).is_some_and(|rest| rest.is_empty() || rest.ends_with('/'))
    }

    /// Returns what finds the text in the bytes of a line, where JSON may have escaped it; `None` if no text
    /// is looked for.
    pub(crate) fn finder(&self) -> Option<AhoCorasick> {
        let Self::Text(text) = self else { return None };
        let escaped = serde_json::to_string(text).expect("a text is JSON");
        let escaped = escaped[1..escaped.len() - 1].to_owned();
        let ascii: String = escaped.chars().map(in_ascii).collect();
        let finder = AhoCorasick::builder().ascii_case_insensitive(true).build([text, &escaped, &ascii]);
        Some(finder.expect("three short patterns"))
    }
}

/// Writes a character as JSON does that is limited to ASCII.
fn in_ascii(c: char) -> String {
    if c.is_ascii() {
        return c.to_string();
    }
    c.encode_utf16(&mut [0; 2]).iter().map(|unit| format!("\\u{unit:04x}")).collect()
}

/// What was found in a chunk.
#[derive(Default)]
struct Found {
    /// The lines with their examples, and the first one that is rejected.
    lines: Vec<(u64, Result<Vec<Previewed>, Rejection>)>,
    /// The number of lines that are too long to be shown.
    too_long: u64,
    /// Why the rest of the file cannot be read, if so.
    refused_file: Option<String>,
}

/// Passes progress on, and also ends the reading once enough is found.
struct UntilEnough<'a> {
    progress: &'a dyn Progress,
    is_enough: AtomicBool,
}

impl UntilEnough<'_> {
    fn is_enough(&self) -> bool {
        self.is_enough.load(Ordering::Relaxed)
    }
}

impl Progress for UntilEnough<'_> {
    fn step(&self, step: Step) {
        self.progress.step(step);
    }

    fn cancelled(&self) -> bool {
        self.is_enough() || self.progress.cancelled()
    }
}

/// Shows the examples that are looked for, at most as many as the options allow.
pub(crate) fn search(
    source: &Source,
    wanted: &Wanted,
    tokenizer: &ChatTokenizer,
    options: &PreviewOptions,
    progress: &dyn Progress,
) -> Result<Preview, DataError> {
    let (columns, finder) = (Columns::default(), wanted.finder());
    let until = UntilEnough { progress, is_enough: AtomicBool::new(false) };
    let reading = Reading {
        source,
        format: options.format,
        map: &options.map,
        columns: &columns,
        phase: Phase::Check,
        chunk_bytes: CHUNK,
        tells_refused_files: true,
    };
    let mut preview = Preview {
        whole: true,
        empty_think_block: tokenizer.thinking().and_then(|thinking| thinking.empty_block),
        ..Preview::default()
    };
    let look = |chunk: &Chunk| {
        let name = &source.files()[chunk.file as usize].name;
        let found = if until.is_enough() {
            Found::default()
        } else {
            look_into(chunk, name, wanted, finder.as_ref(), tokenizer, options)
        };
        (name.clone(), found)
    };
    let read = reading.run(&until, look, |(name, found)| {
        tokenizer.template_holds()?;
        preview.too_long_to_show += found.too_long;
        if let Some(error) = found.refused_file {
            preview.whole = false;
            if wanted.may_be_in(&name) {
                preview.refused_file.get_or_insert(error);
            }
        }
        for (line, examples) in found.lines {
            match examples {
                Ok(examples) => {
                    let room = options.limit.saturating_sub(preview.examples.len());
                    preview.examples.extend(examples.into_iter().take(room));
                }
                Err(rejection) if preview.first_refused.is_none() => {
                    let place = Place { file: name.clone(), line };
                    preview.first_refused = Some((place, in_own_names(rejection, &options.map)));
                }
                Err(_) => {}
            }
        }
        until.is_enough.store(preview.examples.len() >= options.limit, Ordering::Relaxed);
        Ok(preview.examples.len() as u64)
    });
    match read {
        Err(DataError::Cancelled) if until.is_enough() => preview.whole = false,
        read => read?,
    }
    Ok(preview)
}

fn look_into(
    chunk: &Chunk,
    name: &str,
    wanted: &Wanted,
    finder: Option<&AhoCorasick>,
    tokenizer: &ChatTokenizer,
    options: &PreviewOptions,
) -> Found {
    let mut found = Found { refused_file: chunk.refused_file.clone(), ..Found::default() };
    if let Some(rejection) = &chunk.refused {
        let is_it = wanted.is_at(name, chunk.first_line) && finder.is_none();
        found.lines.extend(is_it.then(|| (chunk.first_line, Err(rejection.clone()))));
        return found;
    }
    at_work::lines_of(name);
    let at_work = at_work::on_lines();
    let mut examples_found = 0;
    let mut is_one_refused = false;
    for line in chunk.lines().filter(|line| !line.bytes.trim_ascii().is_empty()) {
        let is_it =
            wanted.is_at(name, line.line_no) && finder.is_none_or(|finder| finder.is_match(line.bytes));
        if !is_it {
            continue;
        }
        if line.bytes.len() > LONGEST_LINE {
            found.too_long += 1;
            continue;
        }
        at_work.begin(line.line_no);
        let place = Place { file: name.to_owned(), line: line.line_no };
        let examples = std::str::from_utf8(line.bytes)
            .map_err(|error| explain::invalid_utf8(error.valid_up_to()))
            .and_then(|text| chunk.parse(text))
            .and_then(|conversation| {
                previewed(&conversation, place, (Pick::First, options.limit), tokenizer, options)
            });
        match &examples {
            Ok(examples) => examples_found += examples.len(),
            Err(_) if is_one_refused => continue,
            Err(_) => is_one_refused = true,
        }
        found.lines.push((line.line_no, examples));
        if examples_found >= options.limit {
            break;
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_found_in_any_case_and_however_json_writes_it() {
        let finder = Wanted::Text("Größe \"XL\"".into()).finder().unwrap();
        for line in [
            r#"{"text": "die größe \"xl\" passt"}"#,
            r#"{"text": "Gr\u00f6\u00dfe \"XL\""}"#,
            "Gr\u{f6}\u{df}e \"XL\"",
        ] {
            assert!(finder.is_match(line), "{line}");
        }
        assert!(!finder.is_match("Grösse XL"));
    }

    #[test]
    fn a_line_is_named_by_the_end_of_its_files_path() {
        let at = |file: Option<&str>, name: &str| {
            Wanted::Line { file: file.map(str::to_owned), line: 7 }.is_at(name, 7)
        };
        assert!(
            at(None, "a/b.jsonl") && at(Some("b.jsonl"), "a/b.jsonl") && at(Some("a/b.jsonl"), "a/b.jsonl")
        );
        assert!(!at(Some("b.jsonl"), "a/bb.jsonl") && !at(Some("c.jsonl"), "a/b.jsonl"));
        assert!(!Wanted::Line { file: None, line: 7 }.is_at("a", 8));
    }
}
