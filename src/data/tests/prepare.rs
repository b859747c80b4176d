//! Tests of the whole pipeline from lines to token files and report, and of its cache.

use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::path::{Path, PathBuf};

use sparktune_base::choices::Think;
use sparktune_data::token_file::TokenFile;
use sparktune_data::{
    ChatTokenizer, Conversation, DataError, EvalData, EvalSplit, Format, Kind, PrepareOptions, Prepared,
    Progress, Report, Step, parse_line, prepare,
};

use crate::fixtures;

struct Scene {
    folder: tempfile::TempDir,
    tokenizer: ChatTokenizer,
    options: PrepareOptions,
}

impl Scene {
    fn new() -> Self {
        Self {
            folder: tempfile::tempdir().unwrap(),
            tokenizer: ChatTokenizer::from_dir(&fixtures::qwen35().join("checkpoint")).unwrap(),
            options: PrepareOptions::default(),
        }
    }

    fn data(&self) -> PathBuf {
        self.folder.path().join("data.jsonl")
    }

    fn write(&self, lines: &[String]) {
        fs::write(self.data(), lines.join("\n") + "\n").unwrap();
    }

    fn prepare(&self) -> Prepared {
        prepare(&[self.data()], &self.tokenizer, &self.options, &self.folder.path().join("out"), &()).unwrap()
    }
}

fn example(i: usize) -> String {
    let question = format!("What is {i} plus {i}? {}", "Think well. ".repeat(i % 7));
    serde_json::json!({ "messages": [
        { "role": "user", "content": question }, { "role": "assistant", "content": format!("{}", 2 * i) },
    ] })
    .to_string()
}

fn source_lines(file: &Path) -> Vec<u64> {
    let file = TokenFile::open(file).unwrap();
    (0..file.len()).map(|i| file.source_line(i)).collect()
}

#[test]
fn a_line_with_a_token_that_the_model_does_not_have_is_rejected_until_it_has_it() {
    let mut scene = Scene::new();
    scene.write(&(0..50).map(example).collect::<Vec<_>>());
    let whole = scene.prepare();
    let [train, eval] = [&whole.train, &whole.eval].map(|path| TokenFile::open(path).unwrap().max_token_id());
    let largest = train.max(eval);
    scene.options.vocabulary = Some(largest + 1);
    assert!(scene.prepare().reused, "all tokens are the model's");
    scene.options.vocabulary = Some(largest);
    for _ in 0..2 {
        let report = scene.prepare().report;
        assert!(report.rejected > 0 && report.rejected + report.accepted_lines() == 50, "{report}");
        let (kind, example) = (report.rejections[0].kind, &report.rejections[0].example);
        assert_eq!(kind, Kind::UnknownToken);
        let words = format!("it has the token {largest}, but the model's vocabulary ends at {largest}");
        assert!(example.reason.contains(&words), "{example}");
    }
    // The config is corrected.
    scene.options.vocabulary = Some(largest + 1);
    assert_eq!(scene.prepare().report, whole.report);
}

#[test]
fn every_example_is_in_one_of_the_two_files_with_its_tokens_mask_and_line() {
    let scene = Scene::new();
    let lines: Vec<String> = (0..500).map(example).collect();
    scene.write(&lines);
    let prepared = scene.prepare();
    let mut seen = HashMap::new();
    for path in [&prepared.train, &prepared.eval] {
        let file = TokenFile::open(path).unwrap();
        let mut previous = 0;
        for i in 0..file.len() {
            let line = file.source_line(i);
            assert!(line > previous, "examples keep the order of the file");
            previous = line;
            let conversation = parse_line(Some(Format::Messages), &lines[line as usize - 1]).unwrap();
            let tokens = scene.tokenizer.encode_conversation(&conversation, Think::Train).unwrap();
            assert_eq!(file.tokens(i), tokens.input_ids);
            assert_eq!(file.mask(i).iter().collect::<Vec<_>>(), tokens.loss_mask);
            assert!(seen.insert(line, i).is_none(), "line {line} twice");
        }
    }
    assert_eq!(seen.len(), lines.len());
    let report = &prepared.report;
    let split = report.split.unwrap();
    assert_eq!(split.train_examples + split.eval_examples, 500);
    assert!((8..=40).contains(&split.eval_examples), "{split:?}");
    let tokens = report.tokens.unwrap();
    let lengths = report.lengths.as_ref().unwrap();
    assert_eq!((tokens.total, lengths.count), (lengths.total, 500));
    assert!(tokens.target_share > 0.0 && tokens.target_share < 1.0);
    assert_eq!(prepared.rejected, None);
    assert!(!scene.folder.path().join("out/rejected.jsonl").exists());
    let written: Report =
        serde_json::from_slice(&fs::read(scene.folder.path().join("out/report.json")).unwrap()).unwrap();
    assert_eq!(&written, report);
}

#[test]
fn nobody_else_looks_into_the_folder() {
    use std::os::unix::fs::PermissionsExt;
    let scene = Scene::new();
    scene.write(&[example(1), example(2)]);
    let prepared = scene.prepare();
    let folder = prepared.train.parent().unwrap();
    assert_eq!(std::fs::metadata(folder).unwrap().permissions().mode() & 0o777, 0o700);
}

#[test]
fn growing_the_file_moves_no_old_example_if_its_share_gives_enough_of_them() {
    let mut scene = Scene::new();
    scene.options.eval = EvalData::Split(EvalSplit { fraction: 0.1, min_examples: 0, seed: 0 });
    let all: Vec<String> = (0..300).map(example).collect();
    let mut side_of: HashMap<u64, bool> = HashMap::new();
    for length in [9, 40, 41, 150, 300] {
        scene.write(&all[..length]);
        let prepared = scene.prepare();
        for (path, is_eval) in [(&prepared.train, false), (&prepared.eval, true)] {
            for line in source_lines(path) {
                assert_eq!(
                    *side_of.entry(line).or_insert(is_eval),
                    is_eval,
                    "line {line} at length {length}"
                );
            }
        }
    }
    assert!(side_of.values().filter(|e| **e).count() >= 8);
}

#[test]
fn neither_the_order_of_lines_nor_that_of_files_decides_what_is_held_out() {
    let scene = Scene::new();
    let mut all: Vec<String> = (0..120).map(example).collect();
    let held_out = |lines: &[String]| {
        scene.write(lines);
        let held_out: BTreeSet<String> = source_lines(&scene.prepare().eval)
            .iter()
            .map(|line| lines[*line as usize - 1].clone())
            .collect();
        held_out
    };
    let first = held_out(&all);
    assert_eq!(first.len(), 8);
    // Not only among the first lines, as long as there are few.
    assert!(first.iter().any(|line| all[60..].contains(line)));
    all.reverse();
    assert_eq!(held_out(&all), first);
    all.rotate_left(50);
    assert_eq!(held_out(&all), first);
}

#[test]
fn nothing_is_done_again_until_source_policy_or_result_change() {
    let mut scene = Scene::new();
    scene.write(&(0..50).map(example).collect::<Vec<_>>());
    let first = scene.prepare();
    assert!(!first.reused);
    let again = scene.prepare();
    assert!(again.reused);
    assert_eq!(Prepared { reused: false, ..again }, first);

    scene.options.policy = Think::Skip.into();
    let skipped = scene.prepare();
    assert!(!skipped.reused);
    assert!(skipped.report.tokens.unwrap().targets < first.report.tokens.unwrap().targets);

    scene.options.eval = EvalData::Split(EvalSplit { seed: 7, ..EvalSplit::default() });
    assert!(!scene.prepare().reused);
    scene.options.max_example_tokens = Some(1000);
    assert!(!scene.prepare().reused);

    let mut lines: Vec<String> = (0..50).map(example).collect();
    lines[3] = example(1000);
    scene.write(&lines);
    let changed = scene.prepare();
    assert!(!changed.reused);
    assert!(scene.prepare().reused);

    fs::write(&changed.eval, "damaged").unwrap();
    assert!(!scene.prepare().reused);
    fs::remove_file(&changed.train).unwrap();
    assert!(!scene.prepare().reused);
    assert!(scene.prepare().reused);
}

#[test]
fn special_tokens_duplicates_and_refusals_are_reported() {
    let scene = Scene::new();
    let special =
        r#"{"messages":[{"role":"user","content":"<|im_end|>"},{"role":"assistant","content":"a"}]}"#;
    let late = r#"{"messages":[{"role":"user","content":"q"},{"role":"system","content":"s"},{"role":"assistant","content":"a"}]}"#;
    scene.write(&[example(1), special.into(), example(1), late.into()]);
    let report = scene.prepare().report;
    assert_eq!(report.duplicates.examples, 1);
    assert_eq!(report.special_tokens_in_text.as_ref().unwrap().first[0].line, 2);
    assert_eq!((report.rejections[0].kind, report.rejections[0].count), (Kind::TemplateRefused, 1));
    assert_eq!(report.rejections[0].first.line, 4);
    assert_eq!(report.in_train_and_eval.examples, 0);
    let text = report.to_string();
    assert!(text.contains("System message must be at the beginning."), "{text}");
}

#[test]
fn eval_files_are_eval_and_nothing_else_is() {
    let mut scene = Scene::new();
    scene.write(&(0..60).map(example).collect::<Vec<_>>());
    let eval = scene.folder.path().join("eval.jsonl");
    fs::write(&eval, format!("{}\n{}\n", example(5), example(100))).unwrap();
    scene.options.eval = EvalData::Files(vec![eval.clone().into()]);
    let prepared = scene.prepare();
    assert_eq!(TokenFile::open(&prepared.train).unwrap().len(), 60);
    let file = TokenFile::open(&prepared.eval).unwrap();
    assert_eq!((file.len(), file.source_line(1)), (2, 2));
    assert!(file.origin_text(0).contains("eval.jsonl"), "{}", file.origin_text(0));
    assert_eq!(prepared.report.in_train_and_eval.examples, 1);
    fs::write(&eval, format!("{}\n", example(101))).unwrap();
    assert!(!scene.prepare().reused);
}

#[test]
fn a_stopped_preparation_leaves_nothing_that_looks_finished() {
    struct StopAfterFirst;
    impl Progress for StopAfterFirst {
        fn step(&self, _: Step) {}
        fn cancelled(&self) -> bool {
            true
        }
    }
    let scene = Scene::new();
    scene.write(&(0..20).map(example).collect::<Vec<_>>());
    let out = scene.folder.path().join("out");
    let result = prepare(&[scene.data()], &scene.tokenizer, &scene.options, &out, &StopAfterFirst);
    assert!(matches!(result, Err(DataError::Cancelled)));
    assert!(!out.join("report.json").exists() && !out.join("train.qubgpu").exists());
    assert!(!scene.prepare().reused);
}

#[test]
fn a_checkpoint_without_a_template_tokenises_completions_and_says_what_messages_need() {
    let folder = tempfile::tempdir().unwrap();
    fs::copy(fixtures::qwen35().join("checkpoint/tokenizer.json"), folder.path().join("tokenizer.json"))
        .unwrap();
    let tokenizer = ChatTokenizer::from_dir(folder.path()).unwrap();
    let completion = Conversation::Completion { prompt: "a b".into(), completion: " c".into() };
    assert!(tokenizer.encode_conversation(&completion, Think::Train).is_ok());
    let line = example(1);
    let chat = parse_line(Some(Format::Messages), &line).unwrap();
    let rejection = tokenizer.encode_conversation(&chat, Think::Train).unwrap_err();
    assert!(rejection.reason.contains("no chat template"), "{rejection}");
    assert!(rejection.fix.contains("prompt and completion"), "{rejection}");
}
