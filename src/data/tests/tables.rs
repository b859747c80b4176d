//! CSV, TSV and Parquet: what their rows become, what is rejected where, and what damage does.

use std::fs;
use std::path::Path;

use proptest::prelude::*;
use serde_json::{Value, json};
use sparktune_base::field_map::FieldMap;
use sparktune_data::{CheckOptions, DataError, Format, Kind, Rejected, Report, check};

use crate::fixtures;

/// Checks a file of these bytes, and compares its examples with those of lines of JSON. Returns the report,
/// in which `in_train_and_eval` counts the examples of the lines that the file has too.
fn compared(
    name: &str,
    bytes: &[u8],
    lines: &[Value],
    map: &str,
) -> Result<(Report, Vec<Rejected>), DataError> {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    fs::write(at(name), bytes).unwrap();
    let lines: String = lines.iter().map(|line| format!("{line}\n")).collect();
    fs::write(at("same.jsonl"), &lines).unwrap();
    let options = CheckOptions {
        map: if map.is_empty() { FieldMap::default() } else { map.parse().unwrap() },
        eval_data: if lines.is_empty() { Vec::new() } else { vec![at("same.jsonl").into()] },
        rejected_path: Some(at("rejected.jsonl")),
        ..CheckOptions::default()
    };
    let report = check(&[at(name)], &options, &())?;
    let rejected = fs::read_to_string(at("rejected.jsonl")).unwrap_or_default();
    Ok((report, rejected.lines().map(|line| serde_json::from_str(line).unwrap()).collect()))
}

fn pair(prompt: &str, completion: &str) -> Value {
    json!({ "prompt": prompt, "completion": completion })
}

#[test]
fn rows_of_a_table_are_read_like_lines_of_json() {
    let csv = "\u{feff}prompt,completion,id\r\n\r\n\"one, \"\"two\"\"\",\"a\r\nb\",1\r\nthree,c,2\r\n";
    let same = [pair("one, \"two\"", "a\r\nb"), pair("three", "c")];
    let (report, rejected) = compared("a.csv", csv.as_bytes(), &same, "").unwrap();
    assert_eq!((report.in_train_and_eval.examples, rejected.len()), (2, 0), "{report}");
    assert_eq!(report.files[0].format, Some(Format::PromptCompletion));
    assert!(report.to_string().contains("a.csv (prompt-completion): 2 rows"), "{report}");

    let tsv = "prompt\tcompletion\none, \"two\"\t\"a\r\nb\"\n";
    assert_eq!(compared("a.tsv", tsv.as_bytes(), &same, "").unwrap().0.in_train_and_eval.examples, 1);

    let mut gz = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    std::io::Write::write_all(&mut gz, csv.as_bytes()).unwrap();
    let (report, _) = compared("a.csv.gz", &gz.finish().unwrap(), &same, "").unwrap();
    assert_eq!(report.in_train_and_eval.examples, 2);
}

#[test]
fn a_cell_may_contain_the_turns_as_json() {
    let messages = json!([{"role": "user", "content": "a\nb"}, {"role": "assistant", "content": "c"}]);
    let cell = serde_json::to_string_pretty(&messages).unwrap().replace('"', "\"\"");
    let csv = format!("id,messages\n1,\"{cell}\"\n");
    let (report, rejected) =
        compared("a.csv", csv.as_bytes(), &[json!({ "messages": messages })], "").unwrap();
    assert_eq!((report.in_train_and_eval.examples, rejected.len()), (1, 0), "{rejected:?}");
}

#[test]
fn a_row_that_does_not_fit_is_rejected_with_the_line_on_which_it_begins() {
    let csv = b"prompt,completion\n\"a\nb\",c\nd\n\ne,f,g\nh,i\nj,\"k\n\xff\"\nl,\"m\nn\n";
    let (report, rejected) = compared("a.csv", csv, &[pair("a\nb", "c"), pair("h", "i")], "").unwrap();
    assert_eq!((report.examples - 2, report.in_train_and_eval.examples, report.rejected), (2, 2, 4));
    let places: Vec<_> = rejected.iter().map(|r| (r.line, r.rejection.kind)).collect();
    let table = Kind::InvalidTable;
    assert_eq!(places, [(4, table), (6, table), (8, Kind::InvalidUtf8), (10, table)], "{rejected:?}");
    let says = |i: usize, words: &str| assert!(rejected[i].rejection.reason.contains(words), "{rejected:?}");
    says(0, "has 1 field, but the header names 2");
    says(1, "has 3 fields");
    says(2, "field 2 is not valid UTF-8, on line 9");
    says(3, "never closed");
}

/// A control character is six as JSON, so that the row fits and the line does not.
#[test]
fn a_row_whose_line_of_json_would_be_too_long_is_rejected_and_the_next_one_read() {
    let table = format!("prompt,completion\na,{}\nc,d\n", "\u{1}".repeat(12 << 20));
    let (report, rejected) = compared("a.csv", table.as_bytes(), &[pair("c", "d")], "").unwrap();
    assert_eq!((report.examples, report.in_train_and_eval.examples), (2, 1), "{report}");
    assert_eq!((rejected.len(), rejected[0].line, rejected[0].rejection.kind), (1, 2, Kind::LineTooLong));
}

#[test]
fn lines_of_a_table_are_counted_with_the_line_ends_of_any_system() {
    for end in ["\n", "\r\n", "\r"] {
        let rows =
            ["prompt,completion", "a,b", "\"c", "d\",e", "", "f", "g,h"].map(|row| row.to_owned() + end);
        let c = format!("c{end}d");
        let (report, rejected) =
            compared("a.csv", rows.concat().as_bytes(), &[pair("a", "b"), pair(&c, "e"), pair("g", "h")], "")
                .unwrap();
        assert_eq!((report.in_train_and_eval.examples, report.rejected), (3, 1), "{end:?}");
        assert_eq!(rejected[0].line, 6, "{end:?}: {rejected:?}");
    }
    // A line end of two characters may be cut by the pieces in which a file is read.
    let filler = "x".repeat((1 << 16) - "prompt,completion\r\na,b\r".len());
    let csv = format!("prompt,completion\r\na,b{filler}\r\nc\r\n");
    assert_eq!(csv.as_bytes()[(1 << 16) - 2..][..2], *b"x\r");
    let (_, rejected) = compared("a.csv", csv.as_bytes(), &[], "").unwrap();
    assert_eq!(rejected[0].line, 3, "{rejected:?}");
}

#[test]
fn spaces_around_the_name_of_a_column_do_not_belong_to_it() {
    let csv = "prompt, completion ,id\na,b,c\n";
    let (report, _) = compared("a.csv", csv.as_bytes(), &[pair("a", "b")], "").unwrap();
    assert_eq!(report.in_train_and_eval.examples, 1, "{report}");
    let error = compared("a.csv", b"prompt,completion, prompt\n", &[], "").unwrap_err();
    assert!(error.to_string().contains("two columns are called \"prompt\""), "{error}");
}

#[test]
fn a_table_without_a_usable_header_says_why() {
    let huge = [b"prompt,completion\n\"".as_slice(), &vec![b'x'; 65 << 20]].concat();
    for (bytes, words) in [
        (&b"a,a\n1,2\n"[..], "two columns are called \"a\""),
        (b"prompt;completion\n1;2\n", "Write commas between the columns"),
        (b"\xff\xfep\0", "UTF-16"),
        (b"\xe4,b\n1,2\n", "not UTF-8"),
        (b"\"a,b\n1,2\n", "never closed"),
        (&huge[..], "the row on line 2 is longer than 64 MiB"),
    ] {
        let error = compared("a.csv", bytes, &[], "").unwrap_err();
        assert!(error.is_data_fault() && error.to_string().contains(words), "{error}");
    }
    let (report, _) = compared("a.csv", b"", &[], "").unwrap();
    assert_eq!(report.lines, 0);
}

#[test]
fn foreign_columns_are_named_and_the_map_that_fits_is_offered() {
    let csv = "id,question,answer\n1,a,b\n2,c,d\n";
    let (report, rejected) = compared("a.csv", csv.as_bytes(), &[], "").unwrap();
    let said = rejected[0].rejection.to_string();
    assert!(said.contains("\"id\", \"question\", \"answer\""), "{said}");
    assert!(said.contains("--map question=instruction,answer=output"), "{said}");
    let hint = report.map_hint().unwrap();
    assert!(
        hint.contains("id, question, answer fit no format") && hint.contains("--map question="),
        "{hint}"
    );
    let foreign = report.foreign.unwrap();
    assert_eq!(foreign.columns, ["id", "question", "answer"]);
    let map = foreign.map.unwrap().to_string();
    let same =
        [("a", "b"), ("c", "d")].map(|(asked, answered)| json!({"instruction": asked, "output": answered}));
    let (report, _) = compared("a.csv", csv.as_bytes(), &same, &map).unwrap();
    assert_eq!((report.in_train_and_eval.examples, report.rejected, report.foreign), (2, 0, None));

    let lines = "{\"q\": \"a\", \"meta\": {\"a\": \"b\"}}\n{\"q\": \"c\"}\n";
    let (report, rejected) =
        compared("a.jsonl", lines.as_bytes(), &[pair("a", "b")], "q=prompt,meta.a=completion").unwrap();
    assert_eq!((report.in_train_and_eval.examples, report.rejected), (1, 1));
    assert_eq!((rejected[0].line, rejected[0].rejection.field.as_str()), (2, "meta.a"));
    assert!(rejected[0].rejection.fix.contains("Add \"meta.a\""), "{rejected:?}");
    assert_eq!(rejected[0].text, "{\"q\": \"c\"}", "the line as it was");
}

#[test]
fn one_map_serves_tables_with_different_columns_and_a_column_that_none_has_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    fs::write(at("a.csv"), "question,answer\na,b\n").unwrap();
    fs::write(at("b.jsonl"), "{\"query\": \"c\", \"reply\": \"d\"}\n{\"query\": \"e\"}\n").unwrap();
    fs::write(at("c.jsonl"), format!("{}\n", pair("f", "g"))).unwrap();
    let files = ["a.csv", "b.jsonl", "c.jsonl"].map(at);
    let checked = |map: &str| {
        let options = CheckOptions { map: map.parse().unwrap(), ..CheckOptions::default() };
        check(&files, &options, &())
    };
    let map = "question=prompt,query=prompt,answer=completion,reply=completion";
    let report = checked(map).unwrap();
    assert_eq!((report.examples, report.rejected), (3, 1), "{report}");
    assert_eq!(report.rejections[0].example.field, "answer or reply");
    let error = checked(&format!("{map},sistem=system")).unwrap_err();
    assert!(error.is_data_fault(), "{error}");
    let error = error.to_string();
    assert!(error.contains("no file of the data has the column \"sistem\""), "{error}");
    assert!(error.contains("\"question\", \"answer\", \"query\", \"reply\""), "{error}");

    fs::write(at("d.txt"), "The river carries stones.\n").unwrap();
    let options = CheckOptions { map: "a=text".parse().unwrap(), ..CheckOptions::default() };
    let error = check(&[at("d.txt")], &options, &()).unwrap_err().to_string();
    assert!(error.contains("d.txt: this is raw text, which has no columns"), "{error}");
}

#[test]
fn one_json_array_is_read_like_its_elements_on_lines() {
    let pretty = "\u{feff}\n[\n  {\n    \"prompt\": \"[a, \\\"b\\\"\",\r\n    \"completion\": \"c}\"\n  },\n  {\"prompt\": 3},\n  {\"prompt\":\"d\ne\", \"completion\": \"f\"}\n]\n";
    let same = [pair("[a, \"b\"", "c}")];
    let (report, rejected) = compared("a.json", pretty.as_bytes(), &same, "").unwrap();
    assert_eq!((report.in_train_and_eval.examples, report.rejected), (1, 2), "{report}");
    let places: Vec<_> = rejected.iter().map(|r| (r.line, r.rejection.kind)).collect();
    assert_eq!(places, [(2, Kind::MissingField), (3, Kind::InvalidJson)], "by the number of the element");
    let foreign = br#"[{"q": "a", "a": "b"}, {"q": "c", "a": "d"}]"#;
    let same = [pair("a", "b"), pair("c", "d")];
    let (report, _) = compared("a.json", foreign, &same, "q=prompt,a=completion").unwrap();
    assert_eq!((report.in_train_and_eval.examples, report.rejected), (2, 0), "{report}");
    let (report, _) = compared("a.json", b" [ ]\n", &[], "").unwrap();
    assert_eq!(report.lines, 0);

    let cut = br#"[{"prompt": "a", "completion": "b"}, {"prompt": "c", "compl"#;
    let (report, rejected) = compared("a.json", cut, &[pair("a", "b")], "").unwrap();
    assert_eq!((report.in_train_and_eval.examples, rejected.len()), (1, 1));
    assert!(rejected[0].rejection.reason.contains("in the middle of its JSON array"), "{rejected:?}");
    let error = compared("a.json", b"[1]\n[2]\n", &[], "").unwrap_err();
    assert!(error.is_data_fault() && error.to_string().contains("something else follows"), "{error}");
    let long = [
        b"[{\"prompt\": \"".as_slice(),
        &vec![b'x'; 65 << 20],
        b"\"}, ",
        br#"{"prompt": "a", "completion": "b"}]"#,
    ];
    let (report, rejected) = compared("a.json", &long.concat(), &[pair("a", "b")], "").unwrap();
    assert_eq!((report.in_train_and_eval.examples, rejected[0].rejection.kind), (1, Kind::LineTooLong));
}

fn parquet(name: &str) -> Vec<u8> {
    fs::read(fixtures::root().join("parquet").join(name)).unwrap()
}

#[test]
fn parquet_of_another_writer_is_read_with_its_lists_groups_and_nulls() {
    // As tests/fixtures/parquet/make.py writes it.
    let words = ["river", "stone", "Brücke", "lamp", "北", "glass"];
    let chat = |i: usize| {
        let name = if i % 2 == 1 { Value::Null } else { json!("Ada") };
        let mut messages = vec![
            json!({ "role": "user", "content": format!("Say {} {i}.", words[i % 6]), "name": name }),
            json!({ "role": "assistant", "content": format!("{}, {}.", words[i % 6], words[(i + 1) % 6]) }),
        ];
        if i.is_multiple_of(5) {
            messages.insert(0, json!({ "role": "system", "content": "Be brief." }));
        }
        json!({ "messages": messages })
    };
    let same: Vec<Value> = (0..12).filter(|i| ![7, 9].contains(i)).map(chat).collect();
    let (report, rejected) = compared("chats.parquet", &parquet("chats.parquet"), &same, "").unwrap();
    assert_eq!(report.in_train_and_eval.examples, 10, "{report}\n{rejected:?}");
    let places: Vec<_> = rejected.iter().map(|r| (r.line, r.rejection.kind)).collect();
    assert_eq!(places, [(8, Kind::MissingField), (10, Kind::Empty)]);
    assert!(report.to_string().contains("chats.parquet:row 8"), "{report}");
}

#[test]
fn parquet_with_foreign_and_nested_columns_is_mapped() {
    let bytes = parquet("answers.parquet");
    let (report, _) = compared("answers.parquet", &bytes, &[], "").unwrap();
    assert_eq!(
        (report.rejected, report.foreign.unwrap().columns),
        (9, vec!["Question".into(), "meta".into()])
    );
    let same: Vec<Value> =
        (0..9).map(|i| pair(&format!("How much is {i} and {i}?"), &format!("It is {}.", 2 * i))).collect();
    let map = "Question=prompt,meta.answer=completion";
    let (report, _) = compared("answers.parquet", &bytes, &same, map).unwrap();
    assert_eq!((report.in_train_and_eval.examples, report.rejected), (9, 0));
    // A message about a column that there is not names also those that are not read.
    let error = compared("chats.parquet", &parquet("chats.parquet"), &[], "skore=system").unwrap_err();
    let columns = r#"the data has "id", "messages", "tools", "score", "picture""#;
    assert!(error.to_string().ends_with(columns), "{error}");
}

/// Both files were made byte by byte, since no writer makes such ones.
#[test]
fn parquet_with_bytes_that_are_no_text_or_with_more_values_than_rows_loses_nothing_silently() {
    // Two rows of prompt and completion; the first prompt is Latin-1 in a column of bytes.
    let (report, rejected) = compared("a.parquet", &parquet("bytes.parquet"), &[], "").unwrap();
    assert_eq!((report.examples, report.rejected), (1, 1));
    assert!(rejected[0].rejection.kind == Kind::InvalidUtf8, "{rejected:?}");
    assert!(rejected[0].rejection.to_string().contains("bytes of any kind"), "{rejected:?}");
    // One row, and three values.
    let error = compared("a.parquet", &parquet("fewer.parquet"), &[], "").unwrap_err();
    assert!(error.is_data_fault() && error.to_string().contains("is damaged"), "{error}");
}

#[test]
fn rows_before_damage_are_examples_of_their_file() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    fs::write(at("good.jsonl"), pair("a", "b").to_string()).unwrap();
    let found = |name: &str, bytes: &[u8]| {
        fs::write(at(name), bytes).unwrap();
        let report = check(&[name, "good.jsonl"].map(at), &CheckOptions::default(), &()).unwrap();
        (report.files[0].examples, report.files[0].refused.is_some())
    };
    let array = format!("[{}, {}] more", pair("a", "b"), pair("c", "d"));
    assert_eq!(found("a.json", array.as_bytes()), (2, true));
    let whole = parquet("chats.parquet");
    let (all, _) = found("whole.parquet", &whole);
    let damaged = (0..whole.len()).step_by(16).map(|at| {
        let mut bytes = whole.clone();
        bytes[at] ^= 0xff;
        found("damaged.parquet", &bytes)
    });
    let some_are_read = damaged.filter(|(examples, is_refused)| *is_refused && (1..all).contains(examples));
    assert!(some_are_read.count() > 0);
}

#[test]
fn a_file_that_is_no_parquet_says_so() {
    for bytes in [&b""[..], b"PAR1", b"PAR1 no footer PAR1", b"{\"prompt\": 1}"] {
        let error = compared("a.parquet", bytes, &[], "").unwrap_err();
        assert!(error.is_data_fault() && error.to_string().contains("a.parquet: the file is"), "{error}");
    }
    let pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n";
    let error = compared("a.parquet", pointer, &[], "").unwrap_err();
    assert!(error.to_string().contains("git lfs pull"), "{error}");
    let whole = parquet("chats.parquet");
    let error = compared("a.parquet", &whole[..whole.len() - 1], &[], "").unwrap_err();
    assert!(error.to_string().contains("Download or write it again"), "{error}");
}

/// Changes some bytes of a file, most of them where its structure is: at its end.
fn damaged(bytes: &[u8], changes: &[(usize, u8)], cut: Option<usize>) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    for (at, byte) in changes {
        let from_end = at % (bytes.len() - 4) / if at % 2 == 0 { 1 } else { 2 };
        let last = bytes.len() - 1;
        bytes[last - from_end] = *byte;
    }
    if let Some(cut) = cut {
        let from = cut % bytes.len();
        bytes.drain(from..(from + 1 + cut % 7).min(bytes.len()));
    }
    bytes
}

/// Texts with everything that a table has to quote.
fn cell() -> impl Strategy<Value = String> {
    "[ab,;\"\n\r\tä]{0,6}".prop_map(|text| format!("x{text}"))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    #[test]
    fn damaged_parquet_is_refused_or_read_in_part_and_never_ends_the_program(
        changes in prop::collection::vec((any::<usize>(), any::<u8>()), 1..4), cut in prop::option::of(any::<usize>()),
    ) {
        for name in ["chats.parquet", "answers.parquet"] {
            let bytes = damaged(&parquet(name), &changes, cut.filter(|cut| cut % 3 == 0));
            match compared("a.parquet", &bytes, &[], "") {
                Ok((report, _)) => prop_assert_eq!(report.lines, report.examples + report.rejected),
                Err(error) => prop_assert!(error.is_data_fault(), "{error}"),
            }
        }
    }

    #[test]
    fn damaged_tables_are_refused_or_rejected_row_by_row(bytes in prop::collection::vec(
        prop_oneof![Just(b','), Just(b'"'), Just(b'\n'), Just(b'\r'), any::<u8>()], 0..80,
    )) {
        let bytes = [b"prompt,completion\na,b\n", bytes.as_slice()].concat();
        let (report, rejected) = compared("a.csv", &bytes, &[], "").unwrap();
        prop_assert_eq!(report.lines, report.examples + report.rejected);
        prop_assert!(report.examples > 0 && rejected.len() as u64 == report.rejected);
        let lines = bytes.iter().filter(|byte| matches!(byte, b'\n' | b'\r')).count() as u64 + 1;
        prop_assert!(rejected.iter().all(|row| (3..=lines).contains(&row.line)), "{rejected:?}");
    }

    #[test]
    fn any_bytes_in_an_array_end_in_words_and_every_text_survives_one(
        cells in prop::collection::vec((cell(), cell()), 1..6), is_pretty in any::<bool>(),
        bytes in prop::collection::vec(prop_oneof![
            Just(b','), Just(b'"'), Just(b'\n'), Just(b'['), Just(b']'), Just(b'{'), Just(b'}'), any::<u8>(),
        ], 0..40),
    ) {
        let same: Vec<Value> = cells.iter().map(|(a, b)| pair(a, b)).collect();
        let json = Value::from(same.clone());
        let text = if is_pretty { format!("{json:#}") } else { json.to_string() };
        let (report, rejected) = compared("a.json", text.as_bytes(), &same, "").unwrap();
        prop_assert_eq!(report.in_train_and_eval.examples, cells.len() as u64, "{:?}", rejected);
        match compared("a.json", &[b"[", bytes.as_slice()].concat(), &[], "") {
            Ok((report, _)) => prop_assert_eq!(report.lines, report.blank_lines + report.examples + report.rejected),
            Err(error) => prop_assert!(error.is_data_fault(), "{error}"),
        }
    }

    #[test]
    fn every_text_survives_a_table(cells in prop::collection::vec((cell(), cell()), 1..6)) {
        let quoted = |text: &str| format!("\"{}\"", text.replace('"', "\"\""));
        let mut csv = "prompt,completion\n".to_owned();
        cells.iter().for_each(|(a, b)| csv += &format!("{},{}\r\n", quoted(a), quoted(b)));
        let same: Vec<Value> = cells.iter().map(|(a, b)| pair(a, b)).collect();
        let (report, rejected) = compared("a.csv", csv.as_bytes(), &same, "").unwrap();
        prop_assert_eq!(report.in_train_and_eval.examples, cells.len() as u64, "{:?}", rejected);
    }
}

#[test]
fn a_folder_is_its_tables_and_lines_or_else_its_texts() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
    let files = || {
        let report = check(&[folder.path().to_owned()], &CheckOptions::default(), &()).unwrap();
        let name = |name: &String| Path::new(name).file_name().unwrap().to_str().unwrap().to_owned();
        report.files.iter().map(|file| name(&file.name)).collect::<Vec<_>>()
    };
    write("README.md", "About this data.");
    write("b.txt", "A text.");
    assert_eq!(files(), ["README.md", "b.txt"]);
    write("a.csv", "text\nA row.\n");
    write("c.jsonl", "{\"text\": \"A line.\"}\n");
    assert_eq!(files(), ["a.csv", "c.jsonl"]);
}
