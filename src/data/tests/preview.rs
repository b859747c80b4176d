//! Tests of the preview.

use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::json;
use sparktune_base::choices::Think;
use sparktune_data::{
    ChatTokenizer, Conversation, DataError, ExampleOptions, Format, Kind, MaskPolicy, Pick, PrepareOptions,
    Preview, PreviewOptions, Progress, RejectedList, Rendering, Step, Wanted, find_examples, parse_line,
    prepare, preview,
};

use crate::fixtures;

fn tokenizer() -> ChatTokenizer {
    ChatTokenizer::from_dir(&fixtures::qwen35().join("checkpoint")).unwrap()
}

fn chat(question: &str, answer: &str) -> String {
    json!({ "messages": [{ "role": "user", "content": question }, { "role": "assistant", "content": answer }] })
        .to_string()
}

struct Data {
    _folder: tempfile::TempDir,
    path: PathBuf,
}

fn data(lines: &[String]) -> Data {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("data.jsonl");
    fs::write(&path, lines.join("\n") + "\n").unwrap();
    Data { _folder: folder, path }
}

fn show(lines: &[String], options: &PreviewOptions) -> Preview {
    let data = data(lines);
    preview(std::slice::from_ref(&data.path), &tokenizer(), options).unwrap()
}

fn text(rendering: &Rendering, only: impl Fn(&sparktune_data::Span) -> bool) -> String {
    rendering.spans.iter().filter(|span| only(span)).map(|span| span.text.as_str()).collect()
}

#[test]
fn both_think_policies_are_shown_as_they_are_trained() {
    let line = chat("What is two plus two?", "Four <tag> & more.");
    let shown = show(std::slice::from_ref(&line), &PreviewOptions::default());
    let tokenizer = tokenizer();
    let conversation = parse_line(Some(Format::Messages), &line).unwrap();
    let Conversation::Chat(turns) = &conversation else { panic!() };
    let example = &shown.examples[0];
    for (think, rendering) in [(Think::Train, &example.train), (Think::Skip, &example.skip)] {
        let tokens = tokenizer.encode_conversation(&conversation, think).unwrap();
        assert_eq!(example.tokens as usize, tokens.input_ids.len());
        assert_eq!(rendering.target_tokens as usize, tokens.target_count());
        let (whole, targets) = tokenizer.render_targets(turns, MaskPolicy::from(think)).unwrap();
        assert_eq!(text(rendering, |_| true), whole);
        assert_eq!(text(rendering, |span| span.trained), whole[targets[0].clone()]);
        assert!(text(rendering, |span| span.special).starts_with("<|im_start|><|im_end|>"));
    }
    let block = shown.empty_think_block.as_deref().unwrap();
    assert_eq!(
        text(&example.train, |span| span.trained),
        format!("{block}{}", text(&example.skip, |s| s.trained))
    );
    assert!(text(&example.skip, |span| span.trained).starts_with("Four <tag> & more.<|im_end|>"));
    assert!(shown.thinking_in_words().contains("context with `skip`"), "{}", shown.thinking_in_words());
    assert!(shown.whole && shown.first_refused.is_none());
}

#[test]
fn an_example_that_thinks_is_the_same_under_both_and_so_are_plain_completions() {
    let thinking = json!({ "messages": [{ "role": "user", "content": "hi" },
        { "role": "assistant", "reasoning_content": "They greet.", "content": "Hello" }] })
    .to_string();
    let shown = show(&[thinking], &PreviewOptions::default());
    assert_eq!(shown.examples[0].train, shown.examples[0].skip);
    assert!(
        shown.thinking_in_words().contains("none of the examples shown"),
        "{}",
        shown.thinking_in_words()
    );

    let completion = json!({ "prompt": "2 + 2 = ", "completion": "4" }).to_string();
    let shown = show(&[completion], &PreviewOptions::default());
    let spans = &shown.examples[0].train.spans;
    assert_eq!((spans[0].text.as_str(), spans[0].trained), ("2 + 2 = ", false));
    assert_eq!((spans[1].text.as_str(), spans[1].trained, spans[1].special), ("4", true, false));
    assert!(
        spans[2].trained && spans[2].special && spans.len() == 3,
        "the end of text is trained: {spans:?}"
    );
}

#[test]
fn the_first_the_middle_and_the_longest_are_shown_with_their_places_and_bad_lines_are_passed_over() {
    let mut lines: Vec<String> = (0..100).map(|i| chat(&format!("question {i}"), "yes")).collect();
    lines[1] = "{\"messages\": 5}".into();
    lines[2] = String::new();
    lines[77] = chat("long", &"word ".repeat(400));
    let options = PreviewOptions { limit: 5, max_text_bytes: 200, ..PreviewOptions::default() };
    let shown = show(&lines, &options);
    let places: Vec<(u64, Pick)> = shown.examples.iter().map(|e| (e.place.line, e.pick)).collect();
    // 98 lines are examples; the one in the middle is line 52.
    let expected =
        [(1, Pick::First), (4, Pick::First), (5, Pick::First), (52, Pick::Middle), (78, Pick::Longest)];
    assert_eq!(places, expected);
    let (place, rejection) = shown.first_refused.clone().unwrap();
    assert_eq!((place.line, rejection.kind, rejection.field.as_str()), (2, Kind::WrongType, "messages"));
    let longest = &shown.examples[4].train;
    assert!(longest.spans.iter().any(|span| span.left_out && span.text.contains("bytes not shown")));
    assert!(text(longest, |span| !span.left_out).len() <= 200);
    assert!(shown.examples[4].tokens > 100, "tokens are those of the whole example");

    let beginning = show(&lines, &PreviewOptions { max_scan_bytes: 2000, ..options.clone() });
    assert!(!beginning.whole && beginning.examples.iter().all(|example| example.place.line < 70));
    let short = show(&lines, &PreviewOptions { max_example_tokens: Some(100), ..options });
    assert!(short.examples.iter().all(|example| example.tokens <= 100 && example.place.line != 78));
    assert_eq!(short.examples.len(), 5);
}

#[test]
fn the_first_examples_of_a_line_are_shown_and_one_of_the_longest() {
    let exchange = ["user", "assistant"].map(|role| json!({ "role": role, "content": "x" }));
    let line = json!({ "messages": vec![exchange; 9].concat() }).to_string();
    let examples = ExampleOptions { split_turns: true, ..ExampleOptions::default() };
    let options = PreviewOptions { limit: 5, examples, ..PreviewOptions::default() };
    let shown = show(&[line.clone(), chat("another", "yes"), line], &options);
    let turns = |rendering: &Rendering| text(rendering, |_| true).matches("<|im_start|>").count();
    let found: Vec<_> = shown.examples.iter().map(|e| (e.place.line, e.pick, turns(&e.train))).collect();
    let first = [(1, Pick::First, 2), (1, Pick::First, 4), (1, Pick::First, 6)];
    assert_eq!(found, [&first[..], &[(2, Pick::Middle, 2), (3, Pick::Longest, 2)]].concat());
}

/// After 64 lines of which no example can be made, no other line is tried.
#[test]
fn a_preview_says_that_it_has_not_looked_at_all_lines() {
    let options = PreviewOptions { max_example_tokens: Some(40), ..PreviewOptions::default() };
    let long = chat("long", &"word ".repeat(100));
    let mut lines = vec![long; 64];
    assert!(show(&lines, &options).whole);
    lines.push(chat("another", "yes"));
    let shown = show(&lines, &options);
    assert!(!shown.whole && shown.examples.is_empty());
}

#[test]
fn lines_that_are_no_examples_do_not_hide_those_that_are_found_after_them() {
    let mut lines = vec![r#"{"messages": "needle"}"#.to_owned(); 5];
    lines.extend([chat("needle", "one"), chat("needle", "two"), chat("needle", "three")]);
    let data = data(&lines);
    let options = PreviewOptions { limit: 2, ..PreviewOptions::default() };
    let wanted = Wanted::Text("needle".into());
    let found =
        find_examples(std::slice::from_ref(&data.path), &wanted, &tokenizer(), &options, &()).unwrap();
    let places: Vec<u64> = found.examples.iter().map(|example| example.place.line).collect();
    assert_eq!(places, [6, 7]);
    assert_eq!(found.first_refused.unwrap().0.line, 1);
}

/// Counts the batches that are read, and may end the reading.
#[derive(Default)]
struct Batches {
    read: AtomicUsize,
    is_stopped: bool,
}

impl Progress for Batches {
    fn step(&self, _: Step) {
        self.read.fetch_add(1, Ordering::Relaxed);
    }

    fn cancelled(&self) -> bool {
        self.is_stopped
    }
}

#[test]
fn a_search_says_what_it_has_not_looked_into_and_ends_when_it_has_enough() {
    let (tokenizer, wanted) = (tokenizer(), Wanted::Text("needle".into()));
    let options = PreviewOptions { limit: 2, ..PreviewOptions::default() };
    let find = |files: &[PathBuf], progress: &dyn Progress| {
        find_examples(files, &wanted, &tokenizer, &options, progress)
    };
    let long = chat("needle", &"x".repeat(1 << 20));
    let data = data(&[long.clone(), chat("hay", "yes"), long.replace("needle", "hay")]);
    let one = std::slice::from_ref(&data.path);
    let found = find(one, &()).unwrap();
    assert!(found.examples.is_empty() && found.whole && found.too_long_to_show == 1);
    assert_eq!(
        found.why_not_found().unwrap(),
        "it is in 1 line longer than 1 MiB, and such lines are not shown"
    );
    let stopped = Batches { is_stopped: true, ..Batches::default() };
    assert!(matches!(find(one, &stopped), Err(DataError::Cancelled)));

    fs::write(&data.path, chat("hay", "yes")).unwrap();
    assert_eq!(find(one, &()).unwrap().why_not_found(), None);
    let refused = data.path.with_file_name("utf16.jsonl");
    fs::write(&refused, b"\xff\xfe{\0}\0").unwrap();
    let found = find(&[data.path.clone(), refused], &()).unwrap();
    let why = found.why_not_found().unwrap();
    assert!(!found.whole && why.contains("not all of the data was read") && why.contains("iconv"), "{why}");

    // More files than are read at a time.
    fs::write(&data.path, chat("needle", "yes")).unwrap();
    let many = vec![data.path.clone(); 3 * 4 * rayon::current_num_threads()];
    let batches = Batches::default();
    let found = find(&many, &batches).unwrap();
    assert_eq!((found.examples.len(), found.whole, batches.read.into_inner()), (2, false, 1));
}

#[test]
fn a_file_that_is_refused_is_no_reason_why_another_one_lacks_a_line() {
    let data = data(&[chat("hay", "yes")]);
    let refused = data.path.with_file_name("utf16.jsonl");
    fs::write(&refused, b"\xff\xfe{\0}\0").unwrap();
    let files = [data.path.clone(), refused];
    let (tokenizer, options) = (tokenizer(), PreviewOptions::default());
    let find = |file: Option<&str>| {
        let wanted = Wanted::Line { file: file.map(str::to_owned), line: 99_999 };
        find_examples(&files, &wanted, &tokenizer, &options, &()).unwrap()
    };
    let found = find(Some("data.jsonl"));
    assert_eq!((found.why_not_found(), found.whole), (None, false));
    for file in [None, Some("utf16.jsonl")] {
        assert!(find(file).why_not_found().unwrap().contains("iconv"), "{file:?}");
    }
}

#[test]
fn data_without_a_single_example_says_why() {
    let lines = vec!["nonsense".to_owned(); 300];
    let shown = show(&lines, &PreviewOptions::default());
    assert!(shown.examples.is_empty());
    assert_eq!(shown.first_refused.unwrap().0.line, 1);
    assert!(preview(&[PathBuf::from("no such file")], &tokenizer(), &PreviewOptions::default()).is_err());
}

#[test]
fn what_prepare_rejected_is_read_back() {
    let mut lines: Vec<String> = (0..40).map(|i| chat(&format!("question {i}"), "yes")).collect();
    lines[3] = "{\"messages\": 5}".into();
    lines[30] = json!({ "messages": [{ "role": "wizard", "content": "x".repeat(3000) }] }).to_string();
    let data = data(&lines);
    let out = data.path.with_file_name("out");
    let prepared =
        prepare(std::slice::from_ref(&data.path), &tokenizer(), &PrepareOptions::default(), &out, &())
            .unwrap();
    let mut list = RejectedList::open(&prepared.rejected.unwrap()).unwrap();
    let page = list.page(0, 10, 100).unwrap();
    assert_eq!(page.len() as u64, prepared.report.rejected);
    assert_eq!(
        (page[0].rejected.line, page[0].rejected.text.as_str(), page[0].cut),
        (4, lines[3].as_str(), false)
    );
    assert_eq!((page[1].rejected.line, page[1].cut), (31, true));
    assert!(page[1].rejected.rejection.reason.contains("wizard") && page[1].rejected.text.len() == 100);
    assert_eq!(list.page(1, 10, 100).unwrap()[..], page[1..]);
}

#[test]
fn a_template_without_thinking_is_the_same_under_both() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["tokenizer.json", "tokenizer_config.json", "generation_config.json"] {
        fs::copy(fixtures::qwen35().join("checkpoint").join(name), folder.path().join(name)).unwrap();
    }
    let template = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}";
    fs::write(folder.path().join("chat_template.jinja"), template).unwrap();
    let tokenizer = ChatTokenizer::from_dir(folder.path()).unwrap();
    let data = data(&[chat("hi", "Hello")]);
    let shown = preview(std::slice::from_ref(&data.path), &tokenizer, &PreviewOptions::default()).unwrap();
    assert_eq!(shown.examples[0].train, shown.examples[0].skip);
    assert_eq!(shown.empty_think_block, None);
    assert!(shown.thinking_in_words().contains("inserts no empty think block"));
}
