//! Raw text: its tokens, the pieces of long texts, and what is rejected.

use std::fs;
use std::path::PathBuf;

use serde_json::{Value, json};
use sparktune_base::choices::{Overlong, Think};
use sparktune_data::token_file::TokenFile;
use sparktune_data::{
    ChatTokenizer, CheckOptions, Conversation, Document, EvalData, EvalSplit, ExampleOptions, Format, Kind,
    PrepareOptions, Prepared, Preview, PreviewOptions, Report, check, prepare, preview,
};
use tokenizers::Tokenizer;

use crate::fixtures;

fn tokenizers() -> Vec<ChatTokenizer> {
    let folders = [fixtures::qwen35().join("checkpoint"), fixtures::root().join("others/gemma3")];
    folders.iter().map(|folder| ChatTokenizer::from_dir(folder).unwrap()).collect()
}

/// Returns a tokenizer that puts the end-of-text token after every text.
fn ending() -> ChatTokenizer {
    adding(false, true).0
}

/// Returns a tokenizer that puts the end-of-text token before a text or after it, and the same as the crate
/// reads it.
fn adding(before: bool, after: bool) -> (ChatTokenizer, Tokenizer) {
    let folder = tempfile::tempdir().unwrap();
    let (from, to) = (fixtures::qwen35().join("checkpoint"), folder.path());
    fs::copy(from.join("tokenizer_config.json"), to.join("tokenizer_config.json")).unwrap();
    let mut tokenizer: Value =
        serde_json::from_slice(&fs::read(from.join("tokenizer.json")).unwrap()).unwrap();
    let [text, pair] = ["A", "B"].map(|id| json!({ "Sequence": { "id": id, "type_id": 0 } }));
    let end = json!({ "SpecialToken": { "id": "<|im_end|>", "type_id": 0 } });
    let parts = [before.then_some(&end), Some(&text), after.then_some(&end)];
    let single: Vec<&Value> = parts.into_iter().flatten().collect();
    tokenizer["post_processor"] = json!({
        "type": "TemplateProcessing",
        "single": single,
        "pair": [text, end, pair, end],
        "special_tokens": { "<|im_end|>": { "id": "<|im_end|>", "ids": [491], "tokens": ["<|im_end|>"] } },
    });
    fs::write(to.join("tokenizer.json"), tokenizer.to_string()).unwrap();
    (ChatTokenizer::from_dir(to).unwrap(), Tokenizer::from_file(to.join("tokenizer.json")).unwrap())
}

struct Texts {
    folder: tempfile::TempDir,
    files: Vec<PathBuf>,
}

impl Texts {
    fn new(files: &[(&str, &[u8])]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let write = |(name, bytes): &(&str, &[u8])| {
            let path = folder.path().join(name);
            fs::write(&path, bytes).unwrap();
            path
        };
        Self { files: files.iter().map(write).collect(), folder }
    }

    fn check(&self, tokenizer: Option<&ChatTokenizer>) -> Report {
        check(&self.files, &CheckOptions { tokenizer, ..CheckOptions::default() }, &()).unwrap()
    }

    fn prepare(&self, tokenizer: &ChatTokenizer, options: &PrepareOptions) -> Prepared {
        prepare(&self.files, tokenizer, options, &self.folder.path().join("out"), &()).unwrap()
    }
}

/// Without an eval set, so that all examples are in one file.
fn options(limit: u32, overlong: Overlong) -> PrepareOptions {
    PrepareOptions {
        max_example_tokens: Some(limit),
        eval: EvalData::Split(EvalSplit { fraction: 0.0, ..EvalSplit::default() }),
        examples: ExampleOptions { overlong, ..ExampleOptions::default() },
        ..PrepareOptions::default()
    }
}

/// Lines of different lengths, with everything at their ends that a cut could disturb, and one that is longer
/// than a section.
fn long_text() -> String {
    let mut text = String::new();
    for i in 0..9_000 {
        let end = ["\n", "\r\n", " \n\n", "\n\n\n\t", ".\n   ", "\n\u{3000}"][i % 6];
        text += &format!("Line {i} says Brücke, don't and 北 {}{end}", "word ".repeat(i % 40));
    }
    text += &"a line without an end ".repeat(60_000);
    text + "\nlast"
}

/// Returns the tokens of all examples in order, and those of them that are trained.
fn tokens(prepared: &Prepared) -> (Vec<Vec<u32>>, Vec<u32>) {
    let file = TokenFile::open(&prepared.train).unwrap();
    let all: Vec<Vec<u32>> = (0..file.len()).map(|i| file.tokens(i).to_vec()).collect();
    let trained = (0..file.len()).flat_map(|i| {
        let of_example = all[i].iter().copied().zip(file.mask(i).iter().collect::<Vec<_>>());
        of_example.filter(|(_, trained)| *trained).map(|(id, _)| id).collect::<Vec<_>>()
    });
    let trained = trained.collect();
    (all, trained)
}

#[test]
fn a_document_has_the_tokens_of_a_completion_without_a_prompt() {
    for tokenizer in tokenizers().into_iter().chain([ending()]) {
        for text in ["One sentence.", " \n two\n\nlines ", "ends <|endoftext|>", "a"] {
            let document = Document { text: text.into(), ..Document::default() };
            let completion = Conversation::Completion { prompt: "".into(), completion: text.into() };
            let document = Conversation::Document(document);
            assert_eq!(document.content_hash(), completion.content_hash());
            let encode = |conversation| tokenizer.encode_conversation(conversation, Think::Train).unwrap();
            assert_eq!(encode(&document), encode(&completion), "{text:?}");
        }
    }
}

/// What the tokenizer adds around a text does not keep it from the fast path, which takes any length.
#[test]
fn a_completion_has_the_tokens_that_the_crate_gives_it_and_may_be_long() {
    for (before, after) in [(false, false), (true, false), (false, true), (true, true)] {
        let (tokenizer, of_crate) = adding(before, after);
        for (prompt, completion) in [("2+2=", "4"), ("", "a b"), ("a ", " b\n"), ("it", "'s <|im_end|>")] {
            let text = format!("{prompt}{completion}");
            let expected = of_crate.encode(text.as_str(), true).unwrap();
            let example = Conversation::Completion { prompt: prompt.into(), completion: completion.into() };
            let found = tokenizer.encode_conversation(&example, Think::Train).unwrap();
            let ids = expected.get_ids();
            let ends = ids.last() == Some(&491);
            assert_eq!(found.input_ids[..ids.len()], *ids, "{text:?}");
            assert_eq!(found.input_ids.len(), ids.len() + usize::from(!ends), "{text:?}");
            let of_completion = |(i, offset): (usize, &(usize, usize))| {
                i > 0 && (offset.1 > prompt.len() || (ends && i + 1 == ids.len()))
            };
            let mask: Vec<bool> = expected.get_offsets().iter().enumerate().map(of_completion).collect();
            assert_eq!(found.loss_mask[..ids.len()], mask, "{text:?}");
        }
    }
    let (tokenizer, _) = adding(true, true);
    let long = "a word and ".repeat(500_000);
    let example = Conversation::Completion { prompt: "Say".into(), completion: long.as_str().into() };
    let tokens = tokenizer.encode_conversation(&example, Think::Train).unwrap();
    let last = tokens.input_ids.len() - 1;
    assert_eq!((tokens.input_ids[0], tokens.input_ids[last]), (491, 491));
    assert!(tokenizer.decode(&tokens.input_ids[1..last]) == format!("Say{long}"));
}

/// A tokenizer may have no token for what it does not know.
#[test]
fn a_text_that_a_tokenizer_does_not_know_is_rejected_with_the_name_of_its_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tokenizer.json");
    let tokenizer = json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
        "pre_tokenizer": { "type": "Whitespace" }, "post_processor": null, "decoder": null,
        "model": { "type": "WordLevel", "vocab": { "a": 0 }, "unk_token": "[UNK]" },
    });
    fs::write(&path, tokenizer.to_string()).unwrap();
    let rejection = ChatTokenizer::from_dir(folder.path()).unwrap().encode("b").unwrap_err();
    assert_eq!(rejection.kind, Kind::TokenizerFailed);
    let begins = format!("{} cannot tokenise the text: ", path.display());
    assert!(rejection.to_string().starts_with(&begins), "{rejection}");
}

#[test]
fn a_text_whose_pieces_would_take_all_memory_is_rejected_alone() {
    let text = json!({ "text": "7".repeat(8 << 20) }).to_string();
    let lines = format!("{text}\n{}\n", json!({ "text": "It is short." }));
    let texts = Texts::new(&[("a.jsonl", lines.as_bytes())]);
    // Each token is in two pieces, each of which takes memory of its own.
    let prepared = texts.prepare(&tokenizers()[0], &options(2, Overlong::Split));
    let report = prepared.report;
    assert_eq!((report.rejected, report.accepted_lines()), (1, 1), "{report}");
    let reason = &report.rejections[0].example.reason;
    assert_eq!(reason, "tokenised, its examples would take more than 384 MiB of memory");
    let prepared = texts.prepare(&tokenizers()[0], &options(500, Overlong::Split));
    assert_eq!((prepared.report.rejected, prepared.report.accepted_lines()), (0, 2));
}

/// A section then ends within a word, which has other tokens on either side of the border.
#[test]
fn a_long_text_without_spaces_keeps_every_byte() {
    let text = "theriverstones".repeat(80_000);
    let in_json = json!({ "text": text }).to_string();
    for (name, bytes) in [("book.txt", &text), ("book.jsonl", &in_json)] {
        let texts = Texts::new(&[(name, bytes.as_bytes())]);
        let prepared = texts.prepare(&tokenizers()[0], &options(100_000, Overlong::Auto));
        let (pieces, trained) = tokens(&prepared);
        let all = [&pieces[0][..1], &trained].concat();
        let decoded = tokenizers()[0].decode(&all);
        assert!(decoded.strip_suffix("<|im_end|>") == Some(&text), "{name}: {} bytes", decoded.len());
    }
}

/// A single token would have nothing to train.
#[test]
fn a_text_is_cut_to_two_tokens_and_left_out_for_one() {
    let texts = Texts::new(&[("a.jsonl", br#"{"text": "One two three four."}"#)]);
    for (limit, examples) in [(2, 1), (1, 0)] {
        let overlong = texts.prepare(&tokenizers()[0], &options(limit, Overlong::Truncate)).report.overlong;
        assert_eq!((overlong.cut.examples, overlong.left_out.examples), (examples, 1 - examples), "{limit}");
    }
}

#[test]
fn a_long_text_is_cut_at_the_limit_and_every_token_is_trained_exactly_once() {
    let text = long_text();
    assert!(text.len() > 2_200_000);
    for (tokenizer, bytes) in tokenizers().iter().zip([text.len(), 1_100_000]) {
        let text = &text[..text.floor_char_boundary(bytes)];
        let completion = Conversation::Completion { prompt: "".into(), completion: text.into() };
        let whole = tokenizer.encode_conversation(&completion, Think::Train).unwrap();
        let in_json = serde_json::json!({ "text": text }).to_string();
        let in_file = format!("\u{feff}{text}");
        for (name, bytes) in [("book.txt", &in_file), ("book.jsonl", &in_json)] {
            let texts = Texts::new(&[(name, bytes.as_bytes())]);
            let prepared = texts.prepare(tokenizer, &options(500, Overlong::Auto));
            let (pieces, trained) = tokens(&prepared);
            assert!(
                trained == whole.input_ids[1..],
                "{name}: {} of {}",
                trained.len(),
                whole.input_ids.len()
            );
            assert!(pieces.iter().all(|piece| (2..=500).contains(&piece.len())));
            let continues = pieces.windows(2).all(|pair| pair[0].last() == pair[1].first());
            assert!(continues, "each piece begins with the last token before it");
            assert_eq!(prepared.report.rejected + prepared.report.overlong.left_out.examples, 0);
            assert!(prepared.report.overlong.pieces.examples > 0);
            assert!(prepared.report.to_string().contains("of raw text cut into pieces"));
        }
    }
}

#[test]
fn what_becomes_of_a_long_text_is_the_users_choice() {
    let tokenizer = &tokenizers()[0];
    let text = "Many words. ".repeat(3000);
    let texts = Texts::new(&[("a.txt", text.as_bytes()), ("b.md", b"# Short")]);
    let lengths = |options: &PrepareOptions| {
        let (pieces, _) = tokens(&texts.prepare(tokenizer, options));
        pieces.iter().map(Vec::len).collect::<Vec<_>>()
    };
    let split = lengths(&options(1_000_000, Overlong::Auto));
    assert!(split[..split.len() - 2].iter().all(|length| *length == 4096), "{split:?}");
    assert_eq!(lengths(&options(1_000_000, Overlong::Split)), split);
    assert_eq!(lengths(&options(100, Overlong::Truncate))[0], 100);
    assert_eq!(lengths(&options(100, Overlong::Truncate)).len(), 2);
    assert_eq!(lengths(&options(100, Overlong::Drop)).len(), 1);
    let mut long = options(1_000_000, Overlong::Auto);
    long.examples.long_pieces = true;
    assert_eq!(lengths(&long).len(), 2, "a limit that the user gave is the limit of pieces too");
}

#[test]
fn documents_without_text_are_rejected_in_words() {
    let lines =
        b"{\"text\": \"One.\"}\n{\"text\": \"\"}\n{\"text\": \" \\n\"}\n{\"text\": 3}\n{\"txt\": \"a\"}\n";
    let texts = Texts::new(&[
        ("lines.jsonl", lines),
        ("empty.txt", b""),
        ("blank.md", b" \n\n"),
        ("latin.txt", b"first\nsecond \xe4\n"),
        ("good.txt", b"\xef\xbb\xbfA text."),
    ]);
    let report = texts.check(None);
    assert_eq!((report.examples, report.rejected), (2, 7), "{report}");
    let count = |kind| report.rejections.iter().find(|r| r.kind == kind).map_or(0, |r| r.count);
    assert_eq!((count(Kind::Empty), count(Kind::InvalidUtf8), count(Kind::WrongType)), (4, 1, 1), "{report}");
    assert!(report.to_string().contains("not valid UTF-8 on line 2"), "{report}");
    assert_eq!(report.files[4].format, Some(Format::Text));
}

#[test]
fn a_long_text_of_nothing_but_line_breaks_is_no_example() {
    let texts = Texts::new(&[("a.txt", &vec![b'\n'; 3 << 20]), ("b.txt", b"A text.")]);
    let report = texts.check(None);
    assert_eq!((report.examples, report.rejected > 0), (1, true), "{report}");
}

#[test]
fn a_text_file_of_json_lines_is_read_as_lines() {
    let line = r#"{"prompt": "a", "completion": "b"}"#;
    let texts = Texts::new(&[("a.txt", format!("{line}\n{line}\n").as_bytes()), ("b.txt", b"{\n  not json")]);
    let report = texts.check(None);
    let formats: Vec<_> = report.files.iter().map(|file| (file.format, file.examples)).collect();
    assert_eq!(formats, [(Some(Format::PromptCompletion), 2), (Some(Format::Text), 1)]);
}

#[test]
fn the_pieces_of_one_text_are_in_both_sets() {
    let text = "Many words, and more. ".repeat(2000);
    let texts = Texts::new(&[("a.txt", text.as_bytes())]);
    let options = PrepareOptions { max_example_tokens: Some(100), ..PrepareOptions::default() };
    let report = texts.prepare(&tokenizers()[0], &options).report;
    let split = report.split.unwrap();
    assert!(split.eval_examples >= 8 && split.train_examples > split.eval_examples, "{split:?}");
    assert_eq!(split.eval_examples + split.train_examples, report.examples);
}

#[test]
fn the_report_of_each_set_counts_the_pieces_and_tokens_that_are_trained() {
    let text = "Many words, and more. ".repeat(2000);
    let texts = Texts::new(&[
        ("a.txt", text.as_bytes()),
        ("b.csv", b"prompt,completion\nHow much is 2 and 2?,It is 4.\n"),
    ]);
    let options = PrepareOptions { max_example_tokens: Some(100), ..PrepareOptions::default() };
    let prepared = texts.prepare(&tokenizers()[0], &options);
    let file = TokenFile::open(&prepared.train).unwrap();
    for (set, report) in prepared.report.sets.iter().enumerate() {
        let is_of_set = |i: &usize| file.header().set_of(file.origin(*i)) == Some(set as u32);
        let lengths: Vec<u32> = (0..file.len()).filter(is_of_set).map(|i| file.lengths()[i]).collect();
        let tokens: u64 = lengths.iter().map(|length| u64::from(*length)).sum();
        assert_eq!((report.train_examples, report.train_tokens), (lengths.len() as u64, Some(tokens)));
    }
    let [text, table] = prepared.report.sets.as_slice() else { panic!("{:?}", prepared.report.sets) };
    assert!(text.train_examples > 0 && text.train_examples < text.examples, "{text}");
    assert_eq!(table.examples, 1);
}

#[test]
fn tokens_are_made_again_if_and_only_if_they_would_be_others() {
    let tokenizer = &tokenizers()[0];
    let texts = Texts::new(&[("a.jsonl", br#"{"text": "A text.", "a": "Another."}"#)]);
    let mut options = options(100_000, Overlong::Auto);
    let first = texts.prepare(tokenizer, &options);
    assert_eq!(
        TokenFile::open(&first.train).unwrap().header().policy,
        "v4; empty_think=train; template_kwargs={}; max_example_tokens=100000; format=detected; eval=split fraction=0 min=8 seed=0; train_on=all; split_turns=false; overlong=drop",
        "the spelling of the versions that knew no text"
    );
    assert!(texts.prepare(tokenizer, &options).reused);
    options.examples.overlong = Overlong::Drop;
    assert!(!texts.prepare(tokenizer, &options).reused);
    options.examples.long_pieces = true;
    assert!(!texts.prepare(tokenizer, &options).reused);
    options.map = "a=text".parse().unwrap();
    assert!(!texts.prepare(tokenizer, &options).reused);
    assert!(texts.prepare(tokenizer, &options).reused);
}

#[test]
fn a_preview_shows_the_text_of_each_piece_as_trained() {
    let texts = Texts::new(&[("a.txt", "One two three four. ".repeat(40).as_bytes())]);
    let options = PreviewOptions { max_example_tokens: Some(50), limit: 2, ..PreviewOptions::default() };
    let Preview { examples, .. } = preview(&texts.files, &tokenizers()[0], &options).unwrap();
    assert_eq!(examples.len(), 2);
    for example in &examples {
        let trained: String =
            example.train.spans.iter().filter(|span| span.trained).map(|span| span.text.as_str()).collect();
        assert!(trained.contains("two three four") && trained.len() < 700, "{trained}");
        assert_eq!((example.tokens, example.train.target_tokens), (50, 49));
    }
}
