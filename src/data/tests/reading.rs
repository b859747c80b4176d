//! Tests of reading all kinds of files: which lines are accepted or rejected, and that none is lost.

use std::ffi::OsStr;
use std::fs;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use proptest::prelude::*;
use sparktune_data::{
    CheckOptions, Conversation, DataError, Format, Kind, Message, Progress, Rejected, Report, Step, check,
    has_plain_lines, lines, parse_line,
};

const GOOD: &str = r#"{"messages":[{"role":"user","content":"q"},{"role":"assistant","content":"a"}]}"#;

fn good(text: &str) -> String {
    GOOD.replace("\"q\"", &serde_json::to_string(text).unwrap())
}

/// Checks one file with this content. Returns the report and the rejected lines.
fn check_bytes(name: &str, bytes: &[u8]) -> Result<(Report, Vec<Rejected>), DataError> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(name);
    fs::write(&path, bytes).unwrap();
    let kept = folder.path().join("rejected.jsonl");
    let options = CheckOptions { rejected_path: Some(kept.clone()), ..CheckOptions::default() };
    let report = check(&[path], &options, &())?;
    let rejected = fs::read_to_string(kept).unwrap_or_default();
    Ok((report, rejected.lines().map(|l| serde_json::from_str(l).unwrap()).collect()))
}

#[test]
fn line_ends_blank_lines_and_a_byte_order_mark_are_taken_as_they_come() {
    let text = format!("\u{feff}{GOOD}\r\n\r\n   \n{}\n\t\r\n{}", good("2"), good("3"));
    let (report, rejected) = check_bytes("a.jsonl", text.as_bytes()).unwrap();
    assert_eq!((report.lines, report.blank_lines, report.examples, report.rejected), (6, 3, 3, 0));
    assert!(rejected.is_empty());
}

#[test]
fn compressed_files_read_like_plain_ones_whatever_their_name() {
    let text = format!("{GOOD}\n{}\nbroken\n", good("2"));
    let (plain, plain_rejected) = check_bytes("a.jsonl", text.as_bytes()).unwrap();
    let mut gz = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gz.write_all(text.as_bytes()).unwrap();
    // A file with two gzip members contains one text.
    let split = [&gz.finish().unwrap()[..], &{
        let mut second = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        second.write_all(GOOD.as_bytes()).unwrap();
        second.finish().unwrap()
    }]
    .concat();
    let zst = zstd::encode_all(text.as_bytes(), 3).unwrap();
    for name in ["a.jsonl.zst", "a.jsonl", "a.data"] {
        let (report, rejected) = check_bytes(name, &zst).unwrap();
        assert_eq!((report.examples, report.rejected), (plain.examples, plain.rejected));
        assert_eq!(rejected[0].line, plain_rejected[0].line);
    }
    let (report, _) = check_bytes("a.jsonl.gz", &split).unwrap();
    assert_eq!((report.lines, report.examples), (4, 3));
}

#[test]
fn an_array_or_a_compressed_file_has_other_lines_than_reports_count_whatever_its_name() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.jsonl");
    let zst = zstd::encode_all(GOOD.as_bytes(), 3).unwrap();
    for (bytes, plain) in [
        (GOOD.as_bytes(), true),
        (b"", true),
        (b"\n\n{", true),
        (b"\xef\xbb\xbf{}\n[", true),
        (b"[{}]", false),
        (b"\xef\xbb\xbf \n[{}]", false),
        (&zst, false),
    ] {
        fs::write(&path, bytes).unwrap();
        assert_eq!(has_plain_lines(&path).unwrap(), plain, "{bytes:?}");
    }
}

#[test]
fn a_compressed_file_cut_short_is_an_error_that_says_so() {
    let zst = zstd::encode_all(GOOD.repeat(100).as_bytes(), 3).unwrap();
    let error = check_bytes("a.jsonl.zst", &zst[..zst.len() / 2]).unwrap_err();
    assert!(matches!(error, DataError::Compressed { .. }), "{error}");
    let mut gz = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gz.write_all(GOOD.repeat(100).as_bytes()).unwrap();
    let gz = gz.finish().unwrap();
    let error = check_bytes("a.jsonl.gz", &gz[..gz.len() / 2]).unwrap_err();
    assert!(matches!(error, DataError::Compressed { .. }), "{error}");
}

#[test]
fn each_kind_of_bad_line_is_kept_with_its_number_field_reason_and_fix() {
    let turn = |content: &str| {
        format!(
            r#"{{"messages":[{{"role":"user","content":{content}}},{{"role":"assistant","content":"a"}}]}}"#
        )
    };
    let cases: Vec<(Vec<u8>, Kind, &str)> = vec![
        (GOOD.as_bytes()[..40].to_vec(), Kind::InvalidJson, ""),
        (b"{\"messages\":[],\"x\":01}".to_vec(), Kind::InvalidJson, ""),
        ([&GOOD.as_bytes()[..GOOD.len() - 1], b",\"x\":[1,,2]}"].concat(), Kind::InvalidJson, ""),
        ([&GOOD.as_bytes()[..GOOD.len() - 1], b",\"x\":\"\xff\"}"].concat(), Kind::InvalidUtf8, ""),
        (b"[1, 2]".to_vec(), Kind::NotAnObject, ""),
        (b"{\"txt\": \"plain\"}".to_vec(), Kind::MissingField, "messages"),
        (b"{\"text\": \"plain\"}".to_vec(), Kind::UnknownFormat, "messages"),
        (br#"{"instruction":"i","output":"o"}"#.to_vec(), Kind::UnknownFormat, "messages"),
        (br#"{"messages":[]}"#.to_vec(), Kind::Empty, "messages"),
        (br#"{"messages":"text"}"#.to_vec(), Kind::WrongType, "messages"),
        (br#"{"messages":[{"role":"user","content":"q"}]}"#.to_vec(), Kind::NothingToTrain, "messages"),
        (br#"{"messages":[{"content":"q"}]}"#.to_vec(), Kind::MissingField, "messages[0].role"),
        (
            br#"{"messages":[{"role":"asistant","content":"q"}]}"#.to_vec(),
            Kind::UnknownRole,
            "messages[0].role",
        ),
        (turn("null").into(), Kind::MissingField, "messages[0].content"),
        (turn("7").into(), Kind::WrongType, "messages[0].content"),
        (
            turn(r#""q","weight":0.5},{"role":"assistant","content":"a","weight":0.5"#).into(),
            Kind::WrongType,
            "messages[1].weight",
        ),
        (
            turn(r#"[{"type":"text","text":"t"},{"type":"image_url","image_url":{}}]"#).into(),
            Kind::UnsupportedContent,
            "messages[0].content[1]",
        ),
        (turn(r#"[{"type":"text"}]"#).into(), Kind::MissingField, "messages[0].content[0].text"),
        (turn(r#""lone \ud800 surrogate""#).into(), Kind::InvalidJson, ""),
        (br#"{"messages":[],"messages":[]}"#.to_vec(), Kind::WrongType, "messages"),
    ];
    let mut file = format!("{GOOD}\n").into_bytes();
    for (line, ..) in &cases {
        file.extend_from_slice(line);
        file.push(b'\n');
    }
    let (report, rejected) = check_bytes("a.jsonl", &file).unwrap();
    assert_eq!((report.examples, report.rejected), (1, cases.len() as u64));
    assert_eq!(rejected.len(), cases.len());
    for (i, ((line, kind, field), kept)) in cases.iter().zip(&rejected).enumerate() {
        let text = String::from_utf8_lossy(line);
        assert_eq!(kept.line, i as u64 + 2);
        assert!(kept.file.ends_with("a.jsonl"));
        assert_eq!(
            (kept.rejection.kind, kept.rejection.field.as_str()),
            (*kind, *field),
            "{text}: {}",
            kept.rejection
        );
        assert_eq!(kept.text, text);
        assert!(!kept.rejection.reason.is_empty() && !kept.rejection.fix.is_empty());
    }
    assert_eq!(report.rejections.iter().map(|r| r.count).sum::<u64>(), report.rejected);
}

/// A tree of such a line would take up to seventy times its memory, so it is explained without one.
#[test]
fn lines_of_very_many_small_values_are_rejected_with_what_can_be_said_of_them() {
    let numbers = format!("[{}0]", "0,".repeat(400_000));
    let good = &GOOD[..GOOD.len() - 1];
    let called = |value: &str| {
        format!(
            r#"{{"conversations":[{{"from":"human","value":"q"}},{{"from":"function_call","value":"{value}"}}]}}"#
        )
    };
    let half = &format!("[{}0]", "0,".repeat(200_000));
    let of_calls = |arguments: &str, more: &str| {
        let call = format!(r#"{{"name":"f","arguments":"{arguments}"}}"#);
        let turns =
            format!(r#"{{"role":"user","content":"q"}},{{"role":"assistant","tool_calls":[{call}]}}"#);
        format!(r#"{{"messages":[{turns}]{more}}}"#)
    };
    let many_parts = |count: usize| {
        let parts = vec![r#"{"text":"p"}"#; count].join(",");
        format!(
            r#"{{"messages":[{{"role":"user","content":[{parts}]}},{{"role":"assistant","content":"a"}}]}}"#
        )
    };
    let cases = [
        (
            Format::Messages,
            format!(r#"{{"messages":[{}{{}}]}}"#, "{},".repeat(20_000)),
            Some("messages: 20,001 messages"),
        ),
        (
            Format::PromptCompletion,
            format!(r#"{{"prompt":[{}1],"completion":[]}}"#, "{},".repeat(20_000)),
            Some("prompt: 20,001"),
        ),
        (
            Format::Alpaca,
            format!(
                r#"{{"instruction":"q","output":"a","history":[{}["",""]]}}"#,
                r#"["",""],"#.repeat(10_000)
            ),
            Some("history: 20,004 messages"),
        ),
        (
            Format::ShareGpt,
            called(&numbers),
            Some("conversations[1].value: more than 400,000 commas and opening brackets. Shorten"),
        ),
        (
            Format::Messages,
            format!(r#"{good},"tools":"{numbers}"}}"#),
            Some("tools: tools and calls with more"),
        ),
        (
            Format::Messages,
            format!(r#"{good},"tools":{numbers}}}"#),
            Some("tools: tools and calls with more than 400,000"),
        ),
        (Format::Messages, of_calls(&numbers, ""), Some("messages: tools and calls with more than 400,000")),
        (Format::Messages, of_calls(&numbers.replace(',', r"\u002c"), ""), Some("messages: tools and calls")),
        (Format::Messages, of_calls(half, &format!(r#","tools":{half}"#)), Some("messages: tools and calls")),
        (Format::Messages, of_calls(half, ""), None),
        (Format::Messages, many_parts(20_001), Some("messages: 20,001 parts of content")),
        (Format::Messages, many_parts(20_000), None),
        (Format::Messages, format!(r#"{{"messages":"{numbers}"}}"#), Some("invalid type: string \"[0,0")),
        (
            Format::Messages,
            format!(r#"{{"text":"{numbers}"}}"#),
            Some("messages: missing: the line looks like text"),
        ),
        (
            Format::Messages,
            format!(r#"{{"messages":1,"x":{numbers}}}"#),
            Some("invalid type: integer `1`, expected a sequence at column 13. Write the line"),
        ),
        (Format::Messages, format!(r#"{{"x":{numbers}}}"#), Some("messages: missing. Add")),
        (Format::Messages, format!(r#"{good},"x":{numbers}"#), Some("the line ends in the middle")),
        (Format::Messages, format!(r#"{good},"x":{numbers}}}"#), None),
        (Format::Messages, format!(r#"{good},"x":"{numbers}"}}"#), None),
    ];
    for (format, line, said) in cases {
        let read = parse_line(Some(format), &line).map(|_| ()).map_err(|rejection| rejection.to_string());
        match said {
            None => assert_eq!(read, Ok(())),
            Some(said) => {
                let text = read.unwrap_err();
                assert!(
                    text.starts_with(said) && text.len() < 1000,
                    "{said}: {}",
                    &text[..text.len().min(1000)]
                );
            }
        }
    }
    let unknown = parse_line(None, &format!(r#"{{"x":{numbers}}}"#)).unwrap_err().to_string();
    assert!(unknown.contains("matches no known format"), "{unknown}");
    let cut = parse_line(None, &format!(r#"{{"x":{numbers}"#)).unwrap_err().to_string();
    assert!(cut.contains("in the middle"), "{cut}");
}

#[test]
fn all_formats_are_recognised_and_equal_examples_are_equal() {
    let same = [
        (
            Format::Messages,
            r#"{"id":1,"messages":[{"role":"system","content":"s"},{"role":"user","content":"do\nthis"},{"role":"assistant","content":"o"}]}"#,
        ),
        (
            Format::ShareGpt,
            r#"{"system":"s","conversations":[{"from":"human","value":"do\nthis"},{"from":"gpt","value":"o"}],"extra":{"a":[1]}}"#,
        ),
        (
            Format::ShareGpt,
            r#"{"conversations":[{"from":"system","value":"s"},{"role":"user","content":"do\u000athis"},{"from":"gpt","value":"o"}]}"#,
        ),
        (Format::Alpaca, r#"{"instruction":"do","input":"this","output":"o","system":"s"}"#),
        (
            Format::PromptCompletion,
            r#"{"prompt":[{"role":"system","content":"s"},{"role":"user","content":"do\nthis"}],"completion":[{"role":"assistant","content":"o"}]}"#,
        ),
    ];
    for (format, line) in same {
        assert_eq!(Format::detect([line.as_bytes()].into_iter()), Some(format));
        let conversation = parse_line(Some(format), line).unwrap();
        let Conversation::Chat(chat) = &conversation else { panic!("{conversation:?}") };
        let turns: Vec<_> = chat.messages.iter().map(|m| (&*m.role, m.texts().collect::<String>())).collect();
        assert_eq!(turns, [("system", "s".into()), ("user", "do\nthis".into()), ("assistant", "o".into())]);
        let first = parse_line(Some(Format::Messages), same[0].1).unwrap();
        assert_eq!(conversation.content_hash(), first.content_hash(), "{line}");
    }
    let plain = parse_line(Some(Format::PromptCompletion), r#"{"prompt":"p","completion":"c"}"#).unwrap();
    assert_eq!(plain, Conversation::Completion { prompt: "p".into(), completion: "c".into() });
}

#[test]
fn tool_calls_of_both_worlds_become_the_same_calls() {
    let sharegpt = r#"{"tools":"[{\"name\":\"f\"}]","conversations":[{"from":"human","value":"q"},
        {"from":"function_call","value":"{\"name\":\"f\",\"arguments\":{\"x\":1}}"},{"from":"observation","value":"r"},{"from":"gpt","value":"a"}]}"#;
    let Conversation::Chat(chat) = parse_line(Some(Format::ShareGpt), sharegpt).unwrap() else { panic!() };
    assert_eq!(chat.tools.unwrap().get(), r#"[{"name":"f"}]"#);
    let calls = chat.messages[1].tool_calls.as_ref().unwrap().get();
    assert_eq!(calls, r#"[{"type":"function","function":{"name":"f","arguments":{"x":1}}}]"#);
    assert_eq!(chat.messages[2].role, "tool");
    let openai = r#"{"messages":[{"role":"user","content":"q"},{"role":"assistant","content":null,"tool_calls":[{"function":{"name":"f","arguments":"{}"}}]}]}"#;
    assert!(parse_line(Some(Format::Messages), openai).is_ok());
}

#[test]
fn a_turn_of_sharegpt_keeps_what_a_turn_of_openai_does() {
    let line = r#"{"conversations":[{"from":"human","value":"q","weight":0.5},
        {"from":"function_call","value":"{\"name\":\"f\"}","weight":0},
        {"from":"observation","value":"r","name":"f","tool_call_id":"c1"},
        {"from":"gpt","value":"a","thinking":"t","tool_calls":[{"function":{"name":"g"}}],"weight":1}]}"#;
    let Conversation::Chat(chat) = parse_line(Some(Format::ShareGpt), line).unwrap() else { panic!() };
    let [_, call, result, answer] = &chat.messages[..] else { panic!("{chat:?}") };
    assert!(call.untrained && call.tool_calls.is_some());
    assert_eq!((result.name.as_deref(), result.tool_call_id.as_deref()), (Some("f"), Some("c1")));
    let calls = answer.tool_calls.as_ref().unwrap().get();
    assert_eq!((answer.reasoning_content.as_deref(), answer.untrained), (Some("t"), false));
    assert_eq!(calls, r#"[{"function":{"name":"g"}}]"#);
    let half = line.replace("\"weight\":1}", "\"weight\":0.5}");
    let rejection = parse_line(Some(Format::ShareGpt), &half).unwrap_err();
    assert_eq!(rejection.field, "conversations[3].weight");
    assert!(rejection.reason.contains("0.5 is neither 0 nor 1"), "{rejection}");
}

#[test]
fn only_the_answers_of_sharegpt_have_calls_and_reasoning_and_calls_that_are_no_list_are_none() {
    let line = |calls: &str| {
        let fields = format!(r#""value":"{{\"name\":\"f\"}}","thinking":"t","tool_calls":{calls}"#);
        let turns = ["system", "human", "function_call", "observation", "gpt"]
            .map(|from| format!(r#"{{"from":"{from}",{fields}}}"#));
        format!(r#"{{"conversations":[{}]}}"#, turns.join(","))
    };
    for (calls, has_calls) in [
        (r#""""#, false),
        ("{}", false),
        ("0", false),
        ("null", false),
        ("[]", false),
        (r#"[{"function":{"name":"g"}}]"#, true),
    ] {
        let line = line(calls);
        let Conversation::Chat(chat) = parse_line(Some(Format::ShareGpt), &line).unwrap() else { panic!() };
        let calling: Vec<bool> = chat.messages.iter().map(|turn| turn.tool_calls.is_some()).collect();
        assert_eq!(calling, [false, false, true, false, has_calls], "{calls}");
        let thinking: Vec<bool> = chat.messages.iter().map(|turn| turn.reasoning_content.is_some()).collect();
        assert_eq!(thinking, [false, false, true, false, true], "{calls}");
        assert!(chat.messages[2].tool_calls.as_ref().unwrap().get().contains("\"f\""), "{calls}");
    }
}

#[test]
fn reasoning_is_read_under_any_of_its_names() {
    let reasoning = |fields: &str| {
        let line = format!(
            r#"{{"messages":[{{"role":"user","content":"q"}},{{"role":"assistant","content":"a",{fields}}}]}}"#
        );
        let Conversation::Chat(chat) = parse_line(Some(Format::Messages), &line).unwrap() else { panic!() };
        chat.messages[1].reasoning_content.as_deref().map(str::to_owned)
    };
    assert_eq!(reasoning(r#""reasoning_content":"r""#).as_deref(), Some("r"));
    assert_eq!(reasoning(r#""reasoning":"r","reasoning_content":null"#).as_deref(), Some("r"));
    assert_eq!(reasoning(r#""thinking":"r""#).as_deref(), Some("r"));
    assert_eq!(reasoning(r#""reasoning":{"effort":"high"}"#), None);
    // An empty field is not the same as a missing one.
    assert_eq!(reasoning(r#""reasoning_content":"""#).as_deref(), Some(""));
}

#[test]
fn files_and_folders_are_read_in_order_and_each_in_its_own_format() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("b.jsonl"), r#"{"instruction":"i","output":"o"}"#).unwrap();
    fs::write(folder.path().join("a.jsonl"), format!("{GOOD}\n{GOOD}\n")).unwrap();
    fs::write(folder.path().join("rejected.jsonl"), "not data").unwrap();
    fs::write(folder.path().join("notes.txt"), "not data").unwrap();
    let report = check(&[folder.path().to_owned()], &CheckOptions::default(), &()).unwrap();
    let files: Vec<_> = report.files.iter().map(|f| (f.format, f.examples)).collect();
    assert_eq!(files, [(Some(Format::Messages), 2), (Some(Format::Alpaca), 1)]);
    assert_eq!((report.duplicates.examples, report.duplicates.first[0].line), (1, 2));

    // A name in an old encoding is no reason to leave a file out.
    fs::write(folder.path().join(OsStr::from_bytes(b"caf\xe9.jsonl")), GOOD).unwrap();
    fs::write(folder.path().join(OsStr::from_bytes(b".caf\xe9.jsonl")), GOOD).unwrap();
    let report = check(&[folder.path().to_owned()], &CheckOptions::default(), &()).unwrap();
    assert_eq!((report.files.len(), report.examples), (3, 4));
}

#[test]
fn inputs_that_are_no_json_lines_at_all_say_what_they_are() {
    for (bytes, hint) in [
        (&b"[\n{}\n]\n{}"[..], "jq -c"),
        (b"\xff\xfe{\0}\0", "iconv -f UTF-16 "),
        (b"{\0}\0", "iconv -f UTF-16LE"),
        (b"PAR1\x15\x04PAR1", ".parquet"),
        (b"PK\x03\x04\x14\0\0\0", "CSV"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n", "git lfs pull"),
    ] {
        let error = check_bytes("a.jsonl", bytes).unwrap_err();
        assert!(error.is_data_fault());
        assert!(error.to_string().contains(hint), "{error}");
    }
    let error = check_bytes("a.txt", b"T\0h\0e\0").unwrap_err();
    assert!(error.to_string().contains("UTF-16"), "{error}");
    let missing = check(&[PathBuf::from("no/such/file.jsonl")], &CheckOptions::default(), &()).unwrap_err();
    assert!(missing.to_string().contains("no/such/file.jsonl"), "{missing}");
    assert!(check::<PathBuf>(&[], &CheckOptions::default(), &()).is_err());
}

#[test]
fn every_file_of_a_folder_is_reported_and_refused_ones_with_their_sentence() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, bytes: &[u8]| fs::write(folder.path().join(name), bytes).unwrap();
    write("a.jsonl", format!("{GOOD}\n{}\n", good("2")).as_bytes());
    write("b.jsonl", b"\xff\xfe{\0}\0");
    let many: String = (0..2000).map(|i| good(&i.to_string()) + "\n").collect();
    let whole = zstd::encode_all(many.as_bytes(), 3).unwrap();
    write("c.jsonl.zst", &whole[..whole.len() - 9]);
    write("d.jsonl", format!("{}\nbad\n", good("3")).as_bytes());
    let options = CheckOptions { rejected_path: Some(folder.path().join("kept")), ..CheckOptions::default() };
    let report = check(&[folder.path().to_owned()], &options, &()).unwrap();
    let found: Vec<_> = report.files.iter().map(|file| (file.rejected, file.refused.is_some())).collect();
    assert_eq!(found, [(0, false), (0, true), (0, true), (1, false)]);
    assert_eq!((report.files[0].examples, report.files[3].examples), (2, 1));
    assert_eq!((report.refused_files().count(), report.lines_to_correct()), (2, 0));
    assert!(report.exceeds(1.0), "no limit on lines allows to leave out a file");
    let text = report.to_string();
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines[1].ends_with("b.jsonl (refused): 0 lines") && lines[2].contains("iconv"), "{text}");
    assert!(lines[3].contains("c.jsonl.zst (") && lines[4].contains("is damaged or truncated"), "{text}");
    assert!(lines[5].ends_with("d.jsonl (messages): 2 lines"), "{text}");
}

#[test]
fn too_many_rejections_are_told_apart_from_a_few() {
    let file = format!("{GOOD}\n").repeat(99) + "bad\n";
    let (report, _) = check_bytes("a.jsonl", file.as_bytes()).unwrap();
    assert!(!report.exceeds(0.01));
    assert!(report.exceeds(0.009));
    let (nothing, _) = check_bytes("a.jsonl", b"\n").unwrap();
    assert!(nothing.exceeds(1.0), "nothing to train is always too little");
}

#[test]
fn lines_longer_than_a_chunk_are_read_whole_and_absurd_ones_are_rejected() {
    let long = good(&"x".repeat(5 << 20));
    let absurd = good(&"y".repeat(70 << 20));
    let file = format!("{GOOD}\n{long}\n{absurd}\n{}\n", good("after"));
    let (report, rejected) = check_bytes("a.jsonl", file.as_bytes()).unwrap();
    assert_eq!((report.lines, report.examples, report.rejected), (4, 3, 1));
    assert_eq!((rejected[0].line, rejected[0].rejection.kind), (3, Kind::LineTooLong));
    assert_eq!(report.lengths.unwrap().max, (5 << 20) + 1);
}

#[test]
fn empty_turns_and_unusual_orders_are_counted_and_kept() {
    let file = [
        r#"{"messages":[{"role":"user","content":"q"},{"role":"assistant","content":" "}]}"#,
        r#"{"messages":[{"role":"user","content":"q"},{"role":"system","content":"late"},{"role":"assistant","content":"a"}]}"#,
        GOOD,
    ]
    .join("\n");
    let (report, _) = check_bytes("a.jsonl", file.as_bytes()).unwrap();
    assert_eq!(report.examples, 3);
    assert_eq!((report.empty_assistant_turns.examples, report.empty_assistant_turns.first[0].line), (1, 1));
    assert_eq!((report.unusual_order.examples, report.unusual_order.first[0].line), (1, 2));
}

#[test]
fn eval_data_is_compared_with_the_training_data() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str, text: String| {
        fs::write(folder.path().join(name), text).unwrap();
        folder.path().join(name)
    };
    let train = path("train.jsonl", format!("{}\n{}\n", good("1"), good("2")));
    let eval = path("eval.jsonl", format!("{}\n{}\n", good("3"), good("2")));
    let options = CheckOptions { eval_data: vec![eval.into()], ..CheckOptions::default() };
    let report = check(&[train], &options, &()).unwrap();
    assert_eq!(report.in_train_and_eval.examples, 1);
    let place = &report.in_train_and_eval.first[0];
    assert!(place.file.ends_with("eval.jsonl") && place.line == 2, "{place}");
}

#[test]
fn work_stops_when_asked_to() {
    struct Stop;
    impl Progress for Stop {
        fn step(&self, _: Step) {}
        fn cancelled(&self) -> bool {
            true
        }
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.jsonl");
    fs::write(&path, format!("{GOOD}\n").repeat(10)).unwrap();
    assert!(matches!(check(&[path], &CheckOptions::default(), &Stop), Err(DataError::Cancelled)));
}

/// Generates bytes that are almost data: pieces of valid lines, cut and mixed.
fn nearly_data() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop_oneof![
        Just(GOOD.as_bytes().to_vec()),
        Just(b"\n".to_vec()),
        Just(b"\r\n".to_vec()),
        Just(b"{\"messages\":[{\"role\":\"user\",".to_vec()),
        Just(b"\"content\":\"\\u00e9\\ud83d\\ude00\"}".to_vec()),
        Just(b"{\"conversations\":[{\"from\":\"human\",\"value\":\"x\"}]}".to_vec()),
        prop::collection::vec(any::<u8>(), 0..20),
    ];
    prop::collection::vec(piece, 0..20).prop_map(|pieces| pieces.concat())
}

proptest! {
    #[test]
    fn no_bytes_make_the_parser_panic(bytes in nearly_data()) {
        let text = String::from_utf8_lossy(&bytes);
        for format in Format::ALL.map(Some).into_iter().chain([None]) {
            for line in text.lines() {
                let _ = parse_line(format, line);
            }
        }
    }

    #[test]
    fn lines_are_the_bytes_between_line_ends(bytes in nearly_data(), first in 1u64..1000) {
        let found: Vec<_> = lines(&bytes, first).collect();
        let mut expected: Vec<&[u8]> = bytes.split(|&b| b == b'\n').collect();
        if expected.last().is_some_and(|l| l.is_empty()) {
            expected.pop();
        }
        prop_assert_eq!(found.len(), expected.len());
        for (i, (line, expected)) in found.iter().zip(expected).enumerate() {
            prop_assert_eq!(line.line_no, first + i as u64);
            prop_assert_eq!(line.bytes, expected.strip_suffix(b"\r").unwrap_or(expected));
        }
    }

    #[test]
    fn every_line_is_accepted_rejected_or_blank(bytes in nearly_data()) {
        // A byte-order mark or a bracket at the very start means another encoding, or a JSON array.
        let file = [GOOD.as_bytes(), b"\n", &bytes].concat();
        let (report, rejected) = check_bytes("a.jsonl", &file).unwrap();
        prop_assert_eq!(report.lines, lines(&file, 1).count() as u64);
        prop_assert_eq!(report.lines, report.blank_lines + report.examples + report.rejected);
        prop_assert_eq!(rejected.len() as u64, report.rejected);
    }

    #[test]
    fn what_a_line_says_is_what_is_read(texts in prop::collection::vec(any::<String>(), 2..6)) {
        let messages: Vec<_> = texts.iter().enumerate()
            .map(|(i, t)| serde_json::json!({"role": if i % 2 == 0 { "user" } else { "assistant" }, "content": t})).collect();
        let line = serde_json::json!({ "messages": messages }).to_string();
        let Conversation::Chat(chat) = parse_line(Some(Format::Messages), &line).unwrap() else { panic!() };
        let read: Vec<String> = chat.messages.iter().map(|m: &Message| m.texts().collect()).collect();
        prop_assert_eq!(read, texts);
    }
}

#[test]
fn the_list_of_rejected_lines_overwrites_nothing_but_an_earlier_list() {
    let folder = tempfile::tempdir().unwrap();
    let (data, list) = (folder.path().join("data.jsonl"), folder.path().join("rejected.jsonl"));
    fs::write(&data, format!("{GOOD}\n{{\n")).unwrap();
    let options = CheckOptions { rejected_path: Some(list.clone()), ..CheckOptions::default() };
    check(std::slice::from_ref(&data), &options, &()).unwrap();
    let first = fs::read_to_string(&list).unwrap();
    assert!(first.contains("\"line\":2"), "{first}");

    // A user's list is refused as data, and kept after being corrected by hand.
    check(std::slice::from_ref(&list), &options, &()).unwrap_err();
    assert_eq!(fs::read_to_string(&list).unwrap(), first);
    fs::write(&list, GOOD).unwrap();
    check(std::slice::from_ref(&list), &options, &()).unwrap_err();
    check(std::slice::from_ref(&data), &options, &()).unwrap_err();
    assert_eq!(fs::read_to_string(&list).unwrap(), GOOD);

    // Where no line is rejected, another file of this name is no obstacle, and stays.
    fs::write(&data, GOOD).unwrap();
    check(std::slice::from_ref(&data), &options, &()).unwrap();
    assert_eq!(fs::read_to_string(&list).unwrap(), GOOD);

    // The list of an earlier check is removed when no line is rejected any more.
    fs::write(&list, first).unwrap();
    check(std::slice::from_ref(&data), &options, &()).unwrap();
    assert!(!list.exists());
}
