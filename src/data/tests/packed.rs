//! Token files as data: a run on one has the examples of a run on the text that it was made of.

use std::fs;
use std::path::{Path, PathBuf};

use proptest::prelude::*;
use sparktune_base::choices::{Overlong, Think, TrainOn};
use sparktune_data::packets::codes::Route;
use sparktune_data::token_file::{self, Exchange, OnDamage, TokenFile, TokenFileWriter};
use sparktune_data::{
    ChatTokenizer, CheckOptions, EvalData, EvalSplit, ExampleOptions, PackOptions, Policy, PrepareOptions,
    Prepared, PreviewOptions, Report, check, pack_text, packed_data, prepare, preview,
};

use crate::fixtures;

/// The tokens, the mask and the line of every example.
type Examples = Vec<(Vec<u32>, Vec<bool>, u64)>;

fn examples(path: &Path) -> Examples {
    let file = TokenFile::open(path).unwrap();
    let one = |i| (file.tokens(i).to_vec(), file.mask(i).iter().collect(), file.source_line(i));
    (0..file.len()).map(one).collect()
}

struct Scene {
    folder: tempfile::TempDir,
    tokenizer: ChatTokenizer,
}

impl Scene {
    fn new() -> Self {
        let tokenizer = ChatTokenizer::from_dir(&fixtures::qwen35().join("checkpoint")).unwrap();
        Self { folder: tempfile::tempdir().unwrap(), tokenizer }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn write(&self, lines: &[String]) -> PathBuf {
        fs::write(self.path("data.jsonl"), lines.join("\n") + "\n").unwrap();
        self.path("data.jsonl")
    }

    fn pack(&self, policy: &Policy) -> PathBuf {
        let options = PackOptions { policy: policy.clone(), max_rejected: 1.0, rejected_path: None };
        let output = self.path("data.qubgpu");
        let packed = pack_text(&[self.path("data.jsonl")], &self.tokenizer, &options, &output, &()).unwrap();
        assert!(packed.written.is_some());
        output
    }

    fn prepare(&self, data: &Path, policy: &Policy, eval: EvalData) -> Prepared {
        let options = PrepareOptions {
            format: policy.format,
            policy: policy.mask,
            examples: policy.examples,
            max_example_tokens: policy.max_example_tokens,
            eval,
            ..PrepareOptions::default()
        };
        let name = format!("out-{}", data.extension().unwrap().display());
        prepare(&[data.to_owned()], &self.tokenizer, &options, &self.path(&name), &()).unwrap()
    }

    fn check(&self, data: &Path) -> Result<Report, String> {
        let options = CheckOptions { tokenizer: Some(&self.tokenizer), ..CheckOptions::default() };
        check(&[data.to_owned()], &options, &()).map_err(|error| error.to_string())
    }
}

fn chat(i: usize, turns: usize) -> String {
    let mut messages = Vec::new();
    for turn in 0..turns {
        let question = format!("What is {i} plus {turn}? {}", "Think well. ".repeat(i % 5));
        messages.push(serde_json::json!({ "role": "user", "content": question }));
        messages.push(serde_json::json!({ "role": "assistant", "content": (i + turn).to_string() }));
    }
    serde_json::json!({ "messages": messages }).to_string()
}

/// Lines of one to three turns, with copies and a line that is none.
fn lines() -> Vec<String> {
    let mut lines: Vec<String> = (0..120).map(|i| chat(i % 90, 1 + i % 3)).collect();
    lines.insert(7, "{oops".into());
    lines
}

#[test]
fn the_examples_and_both_sets_are_those_of_the_text_under_every_setting() {
    let scene = Scene::new();
    let text = scene.write(&lines());
    let split = |fraction, min_examples| {
        EvalData::Split(EvalSplit { fraction, min_examples, ..EvalSplit::default() })
    };
    let of = |train_on, split_turns, overlong| ExampleOptions {
        train_on,
        split_turns,
        overlong,
        ..ExampleOptions::default()
    };
    for (think, examples_made, limit, eval) in [
        (Think::Skip, ExampleOptions::default(), None, EvalData::default()),
        (Think::Train, of(TrainOn::All, true, Overlong::Drop), None, split(0.3, 0)),
        (Think::Skip, of(TrainOn::Last, false, Overlong::Truncate), Some(40), split(0.02, 8)),
        (Think::Skip, of(TrainOn::All, false, Overlong::Split), Some(60), split(0.5, 0)),
    ] {
        let policy = Policy {
            mask: think.into(),
            examples: examples_made,
            max_example_tokens: limit,
            ..Policy::default()
        };
        let packed = scene.pack(&policy);
        assert_eq!(packed_data(std::slice::from_ref(&packed)).unwrap().unwrap().policy, Some(policy.clone()));
        let [of_text, of_tokens] = [&text, &packed].map(|data| scene.prepare(data, &policy, eval.clone()));
        assert!(!examples(&of_text.eval).is_empty(), "{policy:?}");
        assert_eq!(examples(&of_text.train), examples(&of_tokens.train), "{policy:?}");
        assert_eq!(examples(&of_text.eval), examples(&of_tokens.eval), "{policy:?}");
        let (a, b) = (&of_text.report, &of_tokens.report);
        assert_eq!((&a.tokens, &a.lengths, &a.split), (&b.tokens, &b.lengths, &b.split));
        assert_eq!((a.examples, &a.split_lines), (b.examples, &b.split_lines));
        assert_eq!(a.duplicates.examples, b.duplicates.examples, "{policy:?}");
        assert!(scene.prepare(&packed, &policy, eval).reused, "nothing has changed");
    }
}

#[test]
fn packing_replaces_no_input_with_the_list_of_its_rejected_lines() {
    let scene = Scene::new();
    let first = scene.write(&lines());
    let list = scene.path("rejected.jsonl");
    let options = PackOptions { rejected_path: Some(list.clone()), max_rejected: 1.0, ..Default::default() };
    let pack = |data: &Path| {
        pack_text(&[data.to_owned()], &scene.tokenizer, &options, &scene.path("data.qubgpu"), &())
    };
    pack(&first).unwrap();
    let kept = fs::read_to_string(&list).unwrap();
    assert!(kept.contains("{oops"), "{kept}");
    let refused = pack(&list).unwrap_err().to_string();
    assert!(refused.contains("rejected.jsonl: is read as data, so the list"), "{refused}");
    assert_eq!(fs::read_to_string(&list).unwrap(), kept);
}

#[test]
fn the_pieces_of_a_text_are_one_line_in_a_token_file_too() {
    let scene = Scene::new();
    let text = |word: &str| serde_json::json!({ "text": format!("{word} stones. ").repeat(60) }).to_string();
    scene.write(&[text("River"), text("Mountain")]);
    let packed = scene.pack(&Policy { max_example_tokens: Some(40), ..Policy::default() });
    let report = scene.check(&packed).unwrap();
    assert!(report.examples > 10, "{report}");
    assert_eq!(report.lines, 2, "{report}");
}

#[test]
fn eval_data_alone_is_no_data() {
    let scene = Scene::new();
    scene.write(&lines());
    let eval_data = vec![scene.pack(&Policy::default()).into()];
    let options = CheckOptions { eval_data, ..CheckOptions::default() };
    let refused = check::<PathBuf>(&[], &options, &()).unwrap_err().to_string();
    assert!(refused.contains("no data was given"), "{refused}");
}

#[test]
fn separate_eval_data_may_be_a_token_file_too_but_not_of_other_settings() {
    let scene = Scene::new();
    let text = scene.write(&lines());
    let policy = Policy::default();
    let packed = scene.pack(&policy);
    fs::copy(&packed, scene.path("eval.qubgpu")).unwrap();
    let eval = EvalData::Files(vec![scene.path("eval.qubgpu").into()]);
    let of_tokens = scene.prepare(&packed, &policy, eval.clone());
    assert_eq!(examples(&of_tokens.train), examples(&of_tokens.eval));
    assert!(of_tokens.report.in_train_and_eval.examples > 100);

    let skip = Policy { mask: Think::Skip.into(), ..policy };
    fs::rename(scene.pack(&skip), scene.path("other.qubgpu")).unwrap();
    let packed = scene.pack(&Policy::default());
    let mixed = [packed.clone(), scene.path("other.qubgpu")];
    let error = packed_data(&mixed).unwrap_err().to_string();
    assert!(error.contains("other.qubgpu: it was made in another way than"), "{error}");
    let error = packed_data(&[packed, text]).unwrap_err().to_string();
    assert!(error.contains("this is a token file, but") && error.contains("data.jsonl is not"), "{error}");
}

#[test]
fn tables_with_different_columns_are_packed_apart_and_trained_together() {
    let scene = Scene::new();
    let pack = |name: &str, line: &str, map: &str| {
        scene.write(&[line.to_owned()]);
        let policy = Policy { map: map.parse().unwrap(), ..Policy::default() };
        fs::rename(scene.pack(&policy), scene.path(name)).unwrap();
        scene.path(name)
    };
    let first = pack("a.qubgpu", r#"{"q": "One?", "a": "Two."}"#, "q=prompt,a=completion");
    let second = pack("b.qubgpu", r#"{"x": "Three?", "y": "Four."}"#, "x=prompt,y=completion");
    let files = [first, second];
    let found = packed_data(&files).unwrap().unwrap().policy.unwrap();
    assert_eq!(found.map.to_string(), "", "there is no map that made both");
    let options = PrepareOptions { policy: found.mask, ..PrepareOptions::default() };
    let prepared = prepare(&files, &scene.tokenizer, &options, &scene.path("out"), &()).unwrap();
    assert_eq!(prepared.report.examples, 2);
    assert!(prepare(&files, &scene.tokenizer, &options, &scene.path("out"), &()).unwrap().reused);
}

#[test]
fn a_token_that_the_model_does_not_know_is_refused_before_training() {
    let scene = Scene::new();
    scene.write(&lines());
    let header = TokenFile::open(&scene.pack(&Policy::default())).unwrap().header().clone();
    let other = scene.path("other.qubgpu");
    let mut writer = TokenFileWriter::create(&other, header).unwrap();
    let origin = token_file::Origin { file: 9, line: 1 };
    writer.push(&[1, 4_000_000_000], &[false, true], origin).unwrap();
    writer.finish().unwrap();
    let checked = |vocabulary| {
        let tokenizer = Some(&scene.tokenizer);
        let options = CheckOptions { tokenizer, vocabulary, ..CheckOptions::default() };
        check(std::slice::from_ref(&other), &options, &())
    };
    let error = checked(Some(248_320)).unwrap_err();
    assert!(error.is_data_fault(), "{error}");
    let error = error.to_string();
    assert!(error.contains("the token 4,000,000,000, but the model's vocabulary ends at 248,320"), "{error}");
    assert!(checked(Some(4_000_000_001)).is_ok());
}

#[test]
fn what_a_header_says_reaches_no_terminal_unescaped() {
    let scene = Scene::new();
    scene.write(&lines());
    let packed = scene.pack(&Policy::default());
    let header = TokenFile::open(&packed).unwrap().header().clone();
    let other = scene.path("other.qubgpu");
    for header in [
        token_file::Header { tokenizer: Some("\nerror: \u{1b}[2J".into()), ..header.clone() },
        token_file::Header { policy: "v3;\nerror: \u{1b}[2J".into(), ..header },
    ] {
        let mut writer = TokenFileWriter::create(&other, header).unwrap();
        writer.push(&[1, 2], &[false, true], token_file::Origin { file: 9, line: 1 }).unwrap();
        writer.finish().unwrap();
        let files = [packed.clone(), other.clone()];
        let options = CheckOptions { tokenizer: Some(&scene.tokenizer), ..CheckOptions::default() };
        let of_both = check(&files, &options, &()).unwrap_err().to_string();
        let alone = check(&files[1..], &options, &()).map_or_else(|e| e.to_string(), |r| r.to_string());
        for text in [of_both, alone.replace(".\n", "")] {
            assert!(!text.contains("\nerror") && !text.contains('\u{1b}'), "{text:?}");
        }
    }
}

#[test]
fn several_token_files_are_the_sets_that_several_texts_are() {
    let scene = Scene::new();
    let policy = Policy::default();
    let lines = lines();
    let mut texts = Vec::new();
    let mut packed = Vec::new();
    for (name, lines) in [("a", &lines[..50]), ("b", &lines[50..])] {
        scene.write(lines);
        packed.push(scene.path(&format!("{name}.qubgpu")));
        fs::rename(scene.pack(&policy), packed.last().unwrap()).unwrap();
        texts.push(scene.path(&format!("{name}.jsonl")));
        fs::rename(scene.path("data.jsonl"), texts.last().unwrap()).unwrap();
    }
    let options = PrepareOptions { policy: policy.mask, ..PrepareOptions::default() };
    let prepare_in = |folder: &str, data: &[PathBuf]| {
        prepare(data, &scene.tokenizer, &options, &scene.path(folder), &()).unwrap()
    };
    let (of_text, of_tokens) = (prepare_in("text", &texts), prepare_in("tokens", &packed));
    let sets = |path: &Path| -> Vec<Option<u32>> {
        let file = TokenFile::open(path).unwrap();
        (0..file.len()).map(|example| file.header().set_of(file.origin(example))).collect()
    };
    for side in [|of: &Prepared| of.train.clone(), |of: &Prepared| of.eval.clone()] {
        assert_eq!(examples(&side(&of_text)), examples(&side(&of_tokens)));
        assert_eq!(sets(&side(&of_text)), sets(&side(&of_tokens)));
    }
    assert!(sets(&of_tokens.train).contains(&Some(0)) && sets(&of_tokens.train).contains(&Some(1)));
    let counts = |of: &Prepared| -> Vec<_> {
        of.report.sets.iter().map(|set| (set.examples, set.train_examples, set.train_tokens)).collect()
    };
    assert_eq!(counts(&of_text), counts(&of_tokens));
    assert_eq!(of_tokens.report.sets[1].name, packed[1].display().to_string());
    assert!(prepare_in("tokens", &packed).reused, "nothing has changed");

    // A token file of several sets is one set, also next to another one.
    let cached = scene.path("cached.qubgpu");
    fs::copy(&of_tokens.train, &cached).unwrap();
    let alone = prepare_in("alone", std::slice::from_ref(&cached));
    assert!(sets(&alone.train).iter().all(Option::is_none));
    fs::copy(&cached, scene.path("again.qubgpu")).unwrap();
    let both = prepare_in("both", &[cached, scene.path("again.qubgpu")]);
    let second = sets(&both.train).iter().filter(|set| **set == Some(1)).count();
    assert_eq!(2 * second, sets(&both.train).len());
}

#[test]
fn v1_packets_train_what_text_trains_of_which_everything_is_trained() {
    let scene = Scene::new();
    let line =
        |i| serde_json::json!({ "prompt": "", "completion": format!("Line {i}, {}", "on. ".repeat(i)) });
    let text = scene.write(&(0..30).map(|i| line(i).to_string()).collect::<Vec<_>>());
    let policy = Policy::default();
    let v1 = scene.path("v1.qubgpu");
    token_file::unpack(&scene.pack(&policy), &v1, Exchange::V1, OnDamage::Stop).unwrap();
    let none = || EvalData::Split(EvalSplit { fraction: 0.0, ..EvalSplit::default() });
    let of_text = scene.prepare(&text, &policy, none());
    let of_v1 = scene.prepare(&v1, &policy, none());
    assert_eq!(examples(&of_text.train), examples(&of_v1.train));
    let tokens = of_v1.report.tokens.unwrap();
    assert_eq!(tokens.total - tokens.targets, 30, "the first token of each example is not predicted");
    let said = of_v1.report.findings().join("\n");
    assert!(said.contains("every token of an example except the first is trained, prompts too"), "{said}");
    assert!(said.contains("does not say which tokenizer"), "{said}");
    assert_eq!(packed_data(&[v1]).unwrap().unwrap().policy, None);
}

#[test]
fn tokens_of_another_model_are_refused_by_their_hashes() {
    let scene = Scene::new();
    scene.write(&lines());
    let packed = scene.pack(&Policy::default());
    let header = TokenFile::open(&packed).unwrap().header().clone();
    let other = scene.path("other.qubgpu");
    for (name, header) in [
        ("tokenizer", token_file::Header { tokenizer: Some("0".repeat(64)), ..header.clone() }),
        ("chat template", token_file::Header { template: Some("0".repeat(64)), ..header.clone() }),
        ("chat template", token_file::Header { template: None, ..header }),
    ] {
        let mut writer = TokenFileWriter::create(&other, header).unwrap();
        writer.push(&[1, 2], &[false, true], token_file::Origin { file: 9, line: 1 }).unwrap();
        writer.finish().unwrap();
        let error = scene.check(&other).unwrap_err();
        assert!(error.contains(&format!("made with another {name} than the model's")), "{error}");
        assert!(error.contains("pack") && error.contains("other.qubgpu"), "{error}");
        let without_model = check(std::slice::from_ref(&other), &CheckOptions::default(), &()).unwrap();
        assert_eq!(without_model.lengths.unwrap().total, 2, "lengths are in tokens without a model too");
    }
}

#[test]
fn an_example_longer_than_the_model_allows_is_refused_with_its_length() {
    let scene = Scene::new();
    scene.write(&lines());
    let packed = scene.pack(&Policy::default());
    let options = CheckOptions {
        tokenizer: Some(&scene.tokenizer),
        max_example_tokens: Some(20),
        ..CheckOptions::default()
    };
    let error = check(&[packed], &options, &()).unwrap_err().to_string();
    assert!(error.contains("at most 20 are allowed") && error.contains("--max-tokens 20"), "{error}");
}

#[test]
fn the_preview_of_a_token_file_marks_the_same_text_as_trained() {
    let scene = Scene::new();
    let text = scene.write(&(0..8).map(|i| chat(i, 1)).collect::<Vec<_>>());
    let packed = scene.pack(&Policy { mask: Think::Skip.into(), ..Policy::default() });
    let [of_text, of_tokens] =
        [text, packed].map(|data| preview(&[data], &scene.tokenizer, &PreviewOptions::default()).unwrap());
    assert_eq!(of_tokens.examples.len(), 8);
    for (text, tokens) in of_text.examples.iter().zip(&of_tokens.examples) {
        assert_eq!((text.place.line, text.tokens), (tokens.place.line, tokens.tokens));
        assert_eq!(text.skip, tokens.skip);
    }
}

#[test]
fn damage_is_counted_and_located_and_nothing_is_trained_on_it() {
    let scene = Scene::new();
    scene.write(&lines());
    let packed = scene.pack(&Policy::default());
    let sound = fs::read(&packed).unwrap();
    let at = TokenFile::open(&packed).unwrap().offsets()[5] as usize + 70;
    let mut bytes = sound.clone();
    bytes[at] ^= 1;
    fs::write(&packed, &bytes).unwrap();
    let report = scene.check(&packed).unwrap();
    let file = &report.token_files[0];
    assert_eq!((file.defects, report.examples), (1, 119));
    assert!(file.first_defects[0].contains("example 5") && file.first_defects[0].contains("data.jsonl:6"));
    assert!(report.exceeds(1.0));
    let options = PrepareOptions::default();
    let error = prepare(std::slice::from_ref(&packed), &scene.tokenizer, &options, &scene.path("out"), &())
        .unwrap_err();
    let error = error.to_string();
    assert!(error.contains("data.qubgpu: damaged: 1 defect, 119 examples intact"), "{error}");
    assert!(error.contains("example 5") && error.contains("--rebuild"), "{error}");
    assert!(!scene.path("out/train.qubgpu").exists());

    fs::write(&packed, &sound[..sound.len() - 100]).unwrap();
    let error = scene.check(&packed).unwrap_err();
    assert!(error.contains("2 defects, 120 examples intact"), "{error}");
}

#[test]
fn token_files_of_an_earlier_program_are_read() {
    let scene = Scene::new();
    let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/run-261c35e");
    for (name, policy) in [("run/data/train.qubgpu", "v1; empty_think=skip"), ("eval.v1.qubgpu", "")] {
        let path = fixture.join(name);
        let report = check(std::slice::from_ref(&path), &CheckOptions::default(), &()).unwrap();
        assert!(report.examples > 0 && report.token_files[0].policy.starts_with(policy));
        assert_eq!(report.token_files[0].defects, 0);
        assert!(report.findings().iter().any(|finding| finding.contains("a hash of the tokens decides")));
        assert_eq!(packed_data(&[path]).unwrap().unwrap().policy, None, "another version made it");
    }
    // The tokenizer is not that of the fixtures.
    assert!(scene.check(&fixture.join("run/data/train.qubgpu")).is_err());
}

#[test]
fn a_source_that_the_header_does_not_name_is_no_panic() {
    let scene = Scene::new();
    let path = scene.path("odd.qubgpu");
    let mut writer = TokenFileWriter::create(&path, token_file::Header::default()).unwrap();
    for line in [0, 0, 3] {
        let origin = token_file::Origin { file: u32::MAX, line };
        writer.push_hashed(&[1, 2, 3], &[false, true, false], origin, 7).unwrap();
    }
    writer.push(&[4], &[false], token_file::Origin::default()).unwrap();
    writer.finish().unwrap();
    let report = scene.check(&path).unwrap();
    assert_eq!((report.examples, report.duplicates.examples), (3, 2));
    assert!(report.findings().iter().any(|finding| finding.contains("without a trained token left out")));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn a_changed_or_truncated_v2_file_is_never_taken_for_a_sound_one(
        at in any::<prop::sample::Index>(), flip in 1u8.., cut in any::<Option<prop::sample::Index>>(),
    ) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("t.qubgpu");
        let header = token_file::Header { policy: "anything".into(), ..token_file::Header::default() };
        let mut writer = TokenFileWriter::create(&path, header).unwrap();
        for line in 1..6 {
            let origin = token_file::Origin { file: 0, line };
            writer.push_hashed(&[1, 2, 3], &[false, true, true], origin, line).unwrap();
        }
        writer.finish().unwrap();
        let mut bytes = fs::read(&path).unwrap();
        let at = at.index(bytes.len());
        bytes[at] ^= flip;
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len()));
        }
        fs::write(&path, bytes).unwrap();
        if let Ok(report) = check(&[path], &CheckOptions::default(), &()) {
            prop_assert!(report.exceeds(1.0), "{report}");
        }
    }

    #[test]
    fn any_bytes_after_v1_packets_are_counted_and_no_panic(
        noise in prop::collection::vec(any::<u8>(), 0..60), packets in 1usize..5,
    ) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("t.qubgpu");
        let mut bytes = Vec::new();
        for packet in 0..packets {
            token_file::v1::encode(&[packet as u32, 2, 3], Route::default(), &mut bytes).unwrap();
        }
        bytes.extend(&noise);
        fs::write(&path, bytes).unwrap();
        let report = check(&[path], &CheckOptions::default(), &()).unwrap();
        prop_assert!(report.examples >= packets as u64);
        prop_assert!(noise.is_empty() || report.exceeds(1.0) || report.examples > packets as u64);
    }
}
