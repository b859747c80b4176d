//! Data files: lines of JSON, tables, texts, Parquet, all of them compressed or not.

use std::path::{Path, PathBuf};

use sparktune_base::field_map::FieldMap;
use sparktune_data::{CheckOptions, Format, RejectedList, Report, check, parse_line};

use super::{file, is_a_sentence, parts, says_why};

/// What an earlier check has left at the place of the list of rejected lines.
const EARLIER_LIST: &[u8] = b"{\"file\":\"earlier\",\"line\":1,\"kind\":\"empty\",\"field\":\"\",\"reason\":\"r\",\"fix\":\"f\",\"text\":\"t\"}\n";

/// One line is read as every format. What it holds is no more than what was written.
pub(super) fn lines(input: &[u8]) {
    for line in sparktune_data::lines(input, 1) {
        let Ok(text) = std::str::from_utf8(line.bytes) else { continue };
        for format in Format::ALL.into_iter().map(Some).chain([None]) {
            let read = parse_line(format, text);
            assert_eq!(read, parse_line(format, text), "the same line, read twice");
            match read {
                Ok(conversation) => {
                    // An instruction and its input are joined by a line break; a part of a list has one too.
                    let (found, given) = (conversation.text_bytes(), text.len());
                    assert!(found <= given + 1, "{found} bytes of text in a line of {given}");
                    assert_eq!(conversation.content_hash(), conversation.clone().content_hash());
                }
                Err(rejection) => {
                    says_why(&rejection.reason);
                    says_why(&rejection.fix);
                }
            }
        }
    }
    checked("data.jsonl", input, &FieldMap::default(), 1);
}

/// The same bytes as a CSV and as a TSV file, with a map of columns in front.
pub(super) fn tables(input: &[u8]) {
    let [map, table] = parts(input);
    let map = String::from_utf8_lossy(map).parse().unwrap_or_default();
    checked("data.csv", table, &map, 1);
    checked("data.tsv", table, &map, 1);
}

/// Raw text, which may turn out to be lines of JSON.
pub(super) fn texts(input: &[u8]) {
    checked("data.txt", input, &FieldMap::default(), 1);
}

pub(super) fn parquet(input: &[u8]) {
    // A dictionary's value may stand in any number of rows, and so may a value that the levels repeat.
    checked("data.parquet", input, &FieldMap::default(), 1 << 20);
}

/// Gzip and Zstandard.
pub(super) fn compressed(input: &[u8]) {
    // A thousandfold is what the two can do with text that repeats itself.
    checked("data.jsonl.gz", input, &FieldMap::default(), 1 << 20);
    checked("data.jsonl.zst", input, &FieldMap::default(), 1 << 20);
}

/// Checks a data file twice, and the list of rejected lines. `growth` bounds the text by the file.
fn checked(name: &str, bytes: &[u8], map: &FieldMap, growth: u64) {
    let path = file(name, bytes);
    let list = file("rejected.jsonl", EARLIER_LIST);
    let first = report(&path, map, Some(&list));
    let second = report(&path, map, None);
    match (first, second) {
        (Ok(first), Ok(second)) => {
            assert!(first == second, "two reports of the same file: {first:?} and {second:?}");
            assert!(first.text_bytes <= growth.saturating_mul(bytes.len() as u64 + 1), "{first:?}");
            assert!(first.rejected + first.blank_lines <= first.lines, "{first:?}");
            is_a_sentence(&format_args!("report: {first}"));
            match RejectedList::open(&list) {
                Ok(mut list) => {
                    let page = list.page(0, 10_000, 1 << 10).expect("our own list");
                    assert!(!page.is_empty() && page.len() as u64 <= first.rejected, "{page:?} of {first:?}");
                    assert!(page.iter().all(|line| line.rejected.file != "earlier"), "{page:?}");
                }
                Err(_) => assert_eq!(first.rejected, 0, "the list is missing"),
            }
        }
        (Err(first), Err(second)) => {
            says_why(&first);
            assert_eq!(first.to_string(), second.to_string());
        }
        (first, second) => panic!("{first:?} and then {second:?}"),
    }
}

fn report(path: &Path, map: &FieldMap, list: Option<&Path>) -> Result<Report, sparktune_data::DataError> {
    let rejected_path = list.map(Path::to_owned);
    let options = CheckOptions { map: map.clone(), rejected_path, ..CheckOptions::default() };
    check(&[PathBuf::from(path)], &options, &())
}
