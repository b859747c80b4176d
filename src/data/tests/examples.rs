//! Tests of how a conversation becomes examples: the turns that are trained, and the limit on tokens.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use sparktune_base::choices::{Overlong, Think, TrainOn};
use sparktune_data::token_file::TokenFile;
use sparktune_data::{
    ChatTokenizer, CheckOptions, Conversation, EvalData, EvalSplit, ExampleOptions, Format, Kind,
    PrepareOptions, Prepared, PreviewOptions, Rejected, Tokens, check, parse_line, prepare, preview,
};

use crate::fixtures;

fn tokenizer() -> ChatTokenizer {
    ChatTokenizer::from_dir(&fixtures::qwen35().join("checkpoint")).unwrap()
}

/// Three exchanges after a system turn, with reasoning in each answer.
fn conversation(name: &str) -> Vec<Value> {
    let mut messages = vec![json!({ "role": "system", "content": "Be kind." })];
    for i in 1..=3 {
        messages.push(json!({ "role": "user", "content": format!("{name} asks question {i}?") }));
        let reasoning = format!("thought {i}");
        messages.push(json!({
            "role": "assistant", "reasoning_content": reasoning, "content": format!("answer {i}"),
        }));
    }
    messages
}

fn line(messages: &[Value]) -> String {
    json!({ "messages": messages }).to_string()
}

fn tokens(messages: &[Value]) -> Tokens {
    let line = line(messages);
    let conversation = parse_line(Some(Format::Messages), &line).unwrap();
    tokenizer().encode_conversation(&conversation, Think::Skip).unwrap()
}

fn length(messages: &[Value]) -> u32 {
    tokens(messages).input_ids.len() as u32
}

/// Where each stretch of trained tokens begins and ends.
fn trained_runs(messages: &[Value]) -> Vec<(u32, u32)> {
    let mask = tokens(messages).loss_mask;
    let mut runs = Vec::new();
    let mut at = 0;
    for run in mask.chunk_by(|a, b| a == b) {
        if run[0] {
            runs.push((at, at + run.len() as u32));
        }
        at += run.len() as u32;
    }
    runs
}

struct Made {
    _folder: tempfile::TempDir,
    data: PathBuf,
    prepared: Prepared,
}

fn make(lines: &[String], limit: Option<u32>, examples: ExampleOptions, eval: EvalData) -> Made {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data.jsonl");
    fs::write(&data, lines.join("\n") + "\n").unwrap();
    let policy = Think::Skip.into();
    let options =
        PrepareOptions { policy, examples, max_example_tokens: limit, eval, ..PrepareOptions::default() };
    let prepared =
        prepare(std::slice::from_ref(&data), &tokenizer(), &options, &folder.path().join("out"), &())
            .unwrap();
    Made { _folder: folder, data, prepared }
}

fn without_eval() -> EvalData {
    EvalData::Split(EvalSplit { fraction: 0.0, ..EvalSplit::default() })
}

/// The line of each example, its text, and its trained text, with a bar between two trained spans.
fn examples(file: &Path) -> Vec<(u64, String, String)> {
    let (file, tokenizer) = (TokenFile::open(file).unwrap(), tokenizer());
    let example = |i: usize| {
        let mut trained = String::new();
        let mut was_trained = false;
        for (token, is_trained) in file.tokens(i).iter().zip(file.mask(i).iter()) {
            if is_trained && !was_trained && !trained.is_empty() {
                trained.push('|');
            }
            if is_trained {
                trained.push_str(&tokenizer.decode(&[*token]));
            }
            was_trained = is_trained;
        }
        (file.source_line(i), tokenizer.decode(file.tokens(i)), trained)
    };
    (0..file.len()).map(example).collect()
}

fn trained(made: &Made) -> Vec<String> {
    examples(&made.prepared.train).into_iter().map(|(_, _, trained)| trained).collect()
}

#[test]
fn all_turns_are_trained_or_only_the_last() {
    let lines = [line(&conversation("Ann"))];
    let all = make(&lines, None, ExampleOptions::default(), without_eval());
    // The template drops the reasoning of earlier turns.
    let last_answer = "<think>\nthought 3\n</think>\n\nanswer 3<|im_end|>";
    assert_eq!(trained(&all), [format!("answer 1<|im_end|>|answer 2<|im_end|>|{last_answer}")]);
    let last = ExampleOptions { train_on: TrainOn::Last, ..ExampleOptions::default() };
    let last = make(&lines, None, last, without_eval());
    assert_eq!(trained(&last), [last_answer]);
    let text = |made: &Made| examples(&made.prepared.train)[0].1.clone();
    assert_eq!(text(&all), text(&last), "what is not trained is still read");
}

#[test]
fn split_turns_are_trained_after_the_prompt_of_a_server_with_their_reasoning() {
    let messages = conversation("Ann");
    let mut unweighted = conversation("Bob");
    unweighted[4]["weight"] = json!(0);
    let lines = [line(&messages), line(&unweighted)];
    let split = ExampleOptions { split_turns: true, ..ExampleOptions::default() };
    let made = make(&lines, None, split, without_eval());
    let answer = |i: u32| format!("<think>\nthought {i}\n</think>\n\nanswer {i}<|im_end|>");
    assert_eq!(trained(&made), [answer(1), answer(2), answer(3), answer(1), answer(3)]);
    let examples = examples(&made.prepared.train);
    assert_eq!(examples.iter().map(|(line, _, _)| *line).collect::<Vec<_>>(), [1, 1, 1, 2, 2]);
    let tokenizer = tokenizer();
    for (i, (_, text, _)) in examples[..3].iter().enumerate() {
        let Conversation::Chat(mut chat) = parse_line(Some(Format::Messages), &lines[0]).unwrap() else {
            panic!("a chat")
        };
        chat.messages.truncate(2 * i + 2);
        let prompt = tokenizer.render_prompt(&chat).unwrap().text;
        assert!(text.starts_with(&prompt), "{text} does not begin with {prompt}");
    }

    let report = &made.prepared.report;
    assert_eq!((report.examples, report.lines, report.accepted_lines()), (5, 2, 2));
    assert_eq!((report.split_lines.lines, report.split_lines.examples), (2, 5));
    assert_eq!(report.split.unwrap().train_examples, 5);
    assert_eq!(report.duplicates.examples, 0, "parts of one line are no copies of each other");
    assert!(report.to_string().contains("5 examples from 2 lines accepted, 0 lines rejected"), "{report}");
    assert_eq!(report.lengths.as_ref().unwrap().count, 5);
}

/// Each turn repeats those before it: these 200 KB would become 90 MB of text, and as many tokens.
#[test]
fn a_line_whose_split_turns_are_too_much_text_is_rejected_alone() {
    let exchange = [("user", "7"), ("assistant", "8")];
    let messages = exchange.map(|(role, digit)| json!({ "role": role, "content": digit.repeat(55) }));
    let long = json!({ "messages": vec![messages; 1_000].concat() }).to_string();
    let split = ExampleOptions { split_turns: true, ..ExampleOptions::default() };
    let made =
        make(&[line(&conversation("Ann")), long, line(&conversation("Bob"))], None, split, without_eval());
    let report = &made.prepared.report;
    assert_eq!((report.examples, report.lines, report.accepted_lines()), (6, 3, 2));
    assert!(report.to_string().contains("1,000 trained turns"), "{report}");
}

#[test]
fn the_last_of_the_split_turns_is_the_only_example_if_only_the_last_is_trained() {
    let options = ExampleOptions { split_turns: true, train_on: TrainOn::Last, ..ExampleOptions::default() };
    let made = make(&[line(&conversation("Ann"))], None, options, without_eval());
    assert_eq!(trained(&made), ["<think>\nthought 3\n</think>\n\nanswer 3<|im_end|>"]);
}

#[test]
fn parts_of_one_line_are_on_one_side() {
    let lines: Vec<String> = (0..80).map(|i| line(&conversation(&format!("Guest {i}")))).collect();
    let split = ExampleOptions { split_turns: true, ..ExampleOptions::default() };
    let made = make(&lines, None, split, EvalData::default());
    let sides = [&made.prepared.train, &made.prepared.eval].map(|file| {
        let mut lines: Vec<u64> = examples(file).into_iter().map(|(line, _, _)| line).collect();
        assert_eq!(lines.len() % 3, 0, "all examples of a line are there");
        lines.dedup();
        lines
    });
    assert!(sides[1].len() >= 8 && sides[0].iter().all(|line| !sides[1].contains(line)), "{sides:?}");
    let whole = make(&lines, None, ExampleOptions::default(), EvalData::default());
    let of_whole: Vec<u64> = examples(&whole.prepared.eval).into_iter().map(|(line, _, _)| line).collect();
    assert_eq!(sides[1], of_whole, "splitting moves no line to the other side");
}

#[test]
fn too_long_is_left_out_and_named_but_not_rejected() {
    let short =
        vec![json!({ "role": "user", "content": "hi" }), json!({ "role": "assistant", "content": "yes" })];
    let long = conversation("Ann");
    let lines = [line(&short), line(&long), line(&short)];
    let made = make(&lines, Some(length(&short)), ExampleOptions::default(), without_eval());
    let report = &made.prepared.report;
    assert_eq!((report.examples, report.rejected, report.listed_lines()), (2, 0, 1));
    assert_eq!((report.overlong.left_out.examples, report.overlong.lines_left_out), (1, 1));
    assert_eq!(report.overlong.left_out.first[0].line, 2);
    assert_eq!((report.filled_lines(), report.rejected_share()), (3, 0.0));
    assert!(!report.exceeds(0.0), "whatever the share of lines that are too long");
    let words = format!(" ({} tokens)", length(&long));
    let found = report
        .findings()
        .into_iter()
        .find(|found| found.starts_with("1 example too long and left out, first "));
    assert!(found.is_some_and(|found| found.ends_with(&words)), "{report}");

    let kept = fs::read_to_string(made.prepared.rejected.as_ref().unwrap()).unwrap();
    let kept: Rejected = serde_json::from_str(kept.trim()).unwrap();
    assert_eq!((kept.line, kept.rejection.kind, kept.text), (2, Kind::TooManyTokens, lines[1].clone()));
    assert!(kept.not_counted);
    let fix = kept.rejection.fix;
    assert!(fix.contains("--max-example-tokens") && fix.contains("--overlong truncate"), "{fix}");
    let all = make(&lines[1..2], Some(4), ExampleOptions::default(), without_eval());
    assert!(all.prepared.report.exceeds(1.0), "nothing is left to train");
}

#[test]
fn a_cut_keeps_the_beginning_and_trains_no_end_that_was_not_reached() {
    let messages = conversation("Ann");
    let truncate = ExampleOptions { overlong: Overlong::Truncate, ..ExampleOptions::default() };
    let lines = [line(&messages)];
    let cut = |limit| make(&lines, Some(limit), truncate, without_eval());
    let whole = examples(&cut(length(&messages)).prepared.train)[0].1.clone();

    let [first, second, _] = trained_runs(&messages)[..] else { panic!("three answers") };

    // The end of the second answer is not reached.
    let made = cut(second.1 - 1);
    let (_, text, trained) = examples(&made.prepared.train)[0].clone();
    assert!(whole.starts_with(&text) && text.starts_with("<|im_start|>system\nBe kind."), "{text}");
    assert_eq!(trained, "answer 1<|im_end|>|answer 2");
    assert!(text.ends_with("answer 2"), "{text}");
    let report = &made.prepared.report;
    assert_eq!((report.overlong.cut.examples, report.overlong.left_out.examples), (1, 0));
    assert_eq!((report.rejected, made.prepared.rejected.clone()), (0, None));

    // Within the second question: the whole turn is gone.
    let (_, text, trained) = examples(&cut(first.1 + 3).prepared.train)[0].clone();
    assert_eq!(trained, "answer 1<|im_end|>");
    assert!(text.ends_with("answer 1<|im_end|>"), "{text}");

    // Before the first answer nothing is trained.
    let made = cut(first.0);
    let report = &made.prepared.report;
    assert_eq!((report.examples, report.overlong.left_out.examples, report.overlong.cut.examples), (0, 1, 0));
    let reason = fs::read_to_string(made.prepared.rejected.as_ref().unwrap()).unwrap();
    assert!(reason.contains("none of the tokens before the limit is trained"), "{reason}");
}

#[test]
fn a_split_keeps_whole_turns_after_the_system_turn_and_trains_each_once() {
    let messages = conversation("Ann");
    let split = ExampleOptions { overlong: Overlong::Split, ..ExampleOptions::default() };
    let two = [&messages[..1], &messages[3..]].concat();
    assert!(length(&two) < length(&messages));
    let made = make(&[line(&messages)], Some(length(&two)), split, without_eval());
    let found = examples(&made.prepared.train);
    let texts: Vec<&str> = found.iter().map(|(_, text, _)| text.as_str()).collect();
    assert!(
        texts
            .iter()
            .all(|text| text.starts_with("<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\n"))
    );
    // The first part is the short one, because nothing precedes it.
    assert_eq!(
        trained(&made),
        [
            "<think>\nthought 1\n</think>\n\nanswer 1<|im_end|>",
            "answer 2<|im_end|>|<think>\nthought 3\n</think>\n\nanswer 3<|im_end|>"
        ]
    );
    let report = &made.prepared.report;
    assert_eq!((report.examples, report.accepted_lines(), report.rejected), (2, 1, 0));
    assert_eq!((report.overlong.split.examples, report.overlong.left_out.examples), (1, 0));

    // The second exchange alone is too long: the others are kept, and the line is listed.
    let mut long = messages.clone();
    long[4]["content"] = json!("word ".repeat(100));
    let made = make(&[line(&long)], Some(length(&two)), split, without_eval());
    let answers: Vec<bool> =
        [1, 3].iter().zip(trained(&made)).map(|(i, t)| t.contains(&format!("answer {i}"))).collect();
    assert_eq!(answers, [true, true]);
    let report = &made.prepared.report;
    assert_eq!((report.overlong.left_out.examples, report.overlong.lines_left_out), (1, 0));
    assert_eq!((report.listed_lines(), report.filled_lines()), (1, 1));
}

#[test]
fn a_greeting_before_the_first_question_stays_with_it() {
    let mut messages = conversation("Ann");
    messages.insert(1, json!({ "role": "assistant", "content": "Welcome!" }));
    let limit = length(&messages[..4]);
    let split = ExampleOptions { overlong: Overlong::Split, ..ExampleOptions::default() };
    let made = make(&[line(&messages)], Some(limit), split, without_eval());
    let texts: Vec<String> = examples(&made.prepared.train).into_iter().map(|(_, text, _)| text).collect();
    assert_eq!((texts.len(), made.prepared.report.rejected), (3, 0), "{texts:?}");
    assert!(texts[0].contains("Welcome!") && texts[0].contains("question 1?"), "{}", texts[0]);
}

#[test]
fn a_completion_can_be_cut_but_not_split() {
    let completion = [json!({ "prompt": "2 + 2 = ", "completion": "word ".repeat(50) }).to_string()];
    let with = |overlong| {
        make(&completion, Some(20), ExampleOptions { overlong, ..ExampleOptions::default() }, without_eval())
    };
    let cut = with(Overlong::Truncate);
    assert_eq!(cut.prepared.report.lengths.as_ref().unwrap().max, 20);
    let split = with(Overlong::Split);
    assert_eq!((split.prepared.report.examples, split.prepared.report.overlong.left_out.examples), (0, 1));
}

#[test]
fn each_of_these_choices_makes_new_token_files() {
    let scene = make(&[line(&conversation("Ann"))], None, ExampleOptions::default(), without_eval());
    let out = scene.prepared.train.parent().unwrap();
    let again = |examples| {
        let options = PrepareOptions {
            policy: Think::Skip.into(),
            examples,
            eval: without_eval(),
            ..PrepareOptions::default()
        };
        prepare(std::slice::from_ref(&scene.data), &tokenizer(), &options, out, &()).unwrap().reused
    };
    let default = ExampleOptions::default();
    assert!(again(default));
    assert!(!again(ExampleOptions { train_on: TrainOn::Last, ..default }));
    assert!(!again(ExampleOptions { split_turns: true, ..default }));
    assert!(!again(ExampleOptions { overlong: Overlong::Split, ..default }));
    assert!(again(ExampleOptions { overlong: Overlong::Split, ..default }));
}

#[test]
fn check_counts_what_prepare_makes_and_the_preview_shows_it() {
    let messages = conversation("Ann");
    let split =
        ExampleOptions { split_turns: true, overlong: Overlong::Truncate, ..ExampleOptions::default() };
    let limit = Some(length(&messages[..5]) - 2);
    let made = make(&[line(&messages)], limit, split, without_eval());
    let tokenizer = tokenizer();
    let options = CheckOptions {
        tokenizer: Some(&tokenizer),
        policy: Think::Skip.into(),
        examples: split,
        max_example_tokens: limit,
        ..CheckOptions::default()
    };
    let inputs = std::slice::from_ref(&made.data);
    let report = check(inputs, &options, &()).unwrap();
    assert_eq!(
        (report.examples, &report.tokens),
        (made.prepared.report.examples, &made.prepared.report.tokens)
    );
    assert_eq!(report.overlong, made.prepared.report.overlong);

    let options = PreviewOptions { examples: split, max_example_tokens: limit, ..PreviewOptions::default() };
    let shown = preview(inputs, &tokenizer, &options).unwrap();
    let found = examples(&made.prepared.train);
    assert_eq!(shown.examples.len(), found.len());
    for (shown, (line, text, trained)) in shown.examples.iter().zip(&found) {
        let text_of = |only_trained: bool| -> String {
            let spans = shown.skip.spans.iter().filter(|span| span.trained || !only_trained);
            spans.map(|span| span.text.as_str()).collect()
        };
        assert_eq!((shown.place.line, &text_of(false), &text_of(true)), (*line, text, trained));
    }
}

/// Each part repeats the system turn.
#[test]
fn a_conversation_whose_parts_would_take_all_memory_is_rejected_alone() {
    let mut messages = vec![json!({ "role": "system", "content": "7".repeat(60_000) })];
    let exchange = ["user", "assistant"].map(|role| json!({ "role": role, "content": "x".repeat(40) }));
    messages.extend(std::iter::repeat_n(exchange, 2_000).flatten());
    let lines = [line(&messages), line(&conversation("Ann"))];
    let split = ExampleOptions { overlong: Overlong::Split, ..ExampleOptions::default() };
    let report = make(&lines, Some(60_120), split, without_eval()).prepared.report;
    assert_eq!((report.rejected, report.accepted_lines()), (1, 1), "{report}");
    assert_eq!(report.rejections[0].kind, Kind::LineTooLong);
}
