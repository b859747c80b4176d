//! Parquet: every encoding, and small files that claim much or contradict themselves.

use std::fs;

use serde_json::{Value, json};
use sparktune_data::{CheckOptions, DataError, Rejected, Report, check};

use crate::fixtures;

/// Checks a file of these bytes. Returns the report and the rejected rows.
fn checked(bytes: &[u8]) -> Result<(Report, Vec<Rejected>), DataError> {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    fs::write(at("a.parquet"), bytes).unwrap();
    let options = CheckOptions { rejected_path: Some(at("rejected.jsonl")), ..CheckOptions::default() };
    let report = check(&[at("a.parquet")], &options, &())?;
    let rejected = fs::read_to_string(at("rejected.jsonl")).unwrap_or_default();
    Ok((report, rejected.lines().map(|line| serde_json::from_str(line).unwrap()).collect()))
}

fn fixture(name: &str) -> Vec<u8> {
    fs::read(fixtures::root().join("parquet").join(name)).unwrap()
}

fn refused(bytes: &[u8]) -> String {
    let error = checked(bytes).unwrap_err();
    assert!(error.is_data_fault(), "{error}");
    error.to_string()
}

#[test]
fn every_encoding_gives_the_values_that_were_written() {
    // As tests/fixtures/parquet/make.py writes it. No format has these columns, so each row is rejected with
    // its text.
    let unless = |is_null: bool, value: Value| if is_null { Value::Null } else { value };
    let (_, rejected) = checked(&fixture("encodings.parquet")).unwrap();
    assert_eq!(rejected.len(), 300);
    for (i, row) in (0..).zip(&rejected) {
        let expected = json!({
            "number": unless(i % 7 == 3, json!(i * i - 40)),
            "small": (i64::from(i32::MAX) - i) * if i % 2 == 0 { 1 } else { -1 },
            "ratio": i as f64 / 8.0,
            "whole": i - 150,
            "word": unless(i % 5 == 1, json!("ä".repeat(i as usize % 4))),
            "path": format!("rivers/{}/stone {i}", i / 10),
            "even": i % 2 == 0,
        });
        assert_eq!(serde_json::from_str::<Value>(&row.text).unwrap(), expected, "row {i}");
    }
}

#[test]
fn a_page_that_differs_from_its_checksum_is_damaged() {
    let mut bytes = fixture("encodings.parquet");
    bytes[60] ^= 1;
    let text = refused(&bytes);
    assert!(text.contains("does not have its checksum"), "{text}");
}

#[test]
fn a_compression_that_is_not_read_is_named_with_the_way_to_another() {
    let text = refused(&fixture("brotli.parquet"));
    assert!(text.contains("Brotli") && text.contains("compression=\"zstd\""), "{text}");
}

#[test]
fn a_small_file_cannot_claim_billions_of_rows_or_the_same_long_one_again_and_again() {
    let text = refused(&fixture("claims.parquet"));
    assert!(text.contains("claims 8,589,934,588 rows in 406 B:"), "{text}");
    let text = refused(&fixture("growth.parquet"));
    assert!(text.contains("more than 1,000 times as large as the file"), "{text}");
}

#[test]
fn values_that_no_row_has_and_rows_that_are_counted_twice_are_damage() {
    for (name, words) in [
        ("no_rows.parquet", "a page of the column \"prompt\" cannot be read"),
        ("more_values.parquet", "a page of the column \"prompt\" cannot be read"),
        ("num_rows.parquet", "it says that it has 5 rows, and its row groups have 3 rows"),
    ] {
        let text = refused(&fixture(name));
        assert!(text.contains(words), "{name}: {text}");
    }
}

/// Headers of pages and the footer have no checksum of their own.
#[test]
fn damage_in_any_byte_ends_neither_the_program_nor_its_memory() {
    let whole = fixture("encodings.parquet");
    for at in (0..whole.len()).step_by(11) {
        for change in [0x01, 0x80] {
            let mut bytes = whole.clone();
            bytes[at] ^= change;
            if let Err(error) = checked(&bytes) {
                assert!(error.is_data_fault(), "{error}");
            }
        }
    }
}

#[test]
fn the_list_of_rejected_lines_has_the_first_of_each_file_and_says_how_many_more_there_are() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    fs::write(at("a.jsonl"), "x\n".repeat(100_003)).unwrap();
    fs::write(at("b.jsonl"), "y\n{\"text\": \"A text.\"}\n").unwrap();
    let options = CheckOptions { rejected_path: Some(at("rejected.jsonl")), ..CheckOptions::default() };
    let report = check(&[at("a.jsonl"), at("b.jsonl")], &options, &()).unwrap();
    assert_eq!((report.rejected, report.unlisted, report.listed_lines()), (100_004, 3, 100_001));
    assert_eq!(fs::read_to_string(at("rejected.jsonl")).unwrap().lines().count(), 100_001);
    assert!(report.to_string().contains("3 lines more than the 100,001 in the list"), "{report}");
}
