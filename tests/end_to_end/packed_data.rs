//! Token files as data, through the binary: made of text once, then given in its place.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::sparktune::{Done, Place, chat, checkpoint, done, events, files, gemma3, old_fixture};

/// `pack train.jsonl` for the fixture checkpoint with more flags.
fn pack(place: &Place, more: &[&str]) -> Done {
    let model = checkpoint();
    let args = ["pack", "train.jsonl", "--model", model.to_str().unwrap()];
    place.sparktune(args.iter().chain(more))
}

/// A command about `t.qubgpu` for the fixture checkpoint.
fn about(place: &Place, words: &[&str], more: &[&str]) -> Done {
    let model = checkpoint();
    place.sparktune(words.iter().chain(&["--model", model.to_str().unwrap()]).chain(more))
}

/// The events that do not depend on when or how fast something happened.
fn what_happened(run: &Path) -> Vec<Value> {
    let kept = ["step", "eval", "sample", "checkpoint_committed", "phase"];
    let mut all = events(run);
    all.retain(|event| kept.contains(&event["kind"].as_str().unwrap()));
    for event in &mut all {
        let fields = event.as_object_mut().unwrap();
        fields.retain(|name, _| !is_timing(name));
    }
    // Checkpoints are written while training goes on, so each kind has its own order.
    all.sort_by_key(|event| event["kind"].as_str().unwrap().to_owned());
    all
}

fn is_timing(name: &str) -> bool {
    // Samples of the machine stand between the events and count too.
    name == "seq" || ["_us", "_ms", "_per_s", "bytes"].iter().any(|end| name.ends_with(end))
}

fn adapter(run: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut weights = files(&run.join("outputs/adapter"));
    weights.retain(|(name, _)| name.extension().is_some_and(|end| end == "safetensors"));
    assert!(!weights.is_empty());
    weights
}

#[test]
fn a_run_from_a_token_file_is_the_run_from_its_text_bit_for_bit() {
    let (place, of_text) = Place::with_finished_run();
    // The data of that run.
    let chats: String = (0..40).map(|i| chat(i).to_string() + "\n").collect();
    place.write("train.jsonl", chats + "{oops\n");
    let packed = pack(&place, &["-o", "t.qubgpu", "--max-rejected", "0.1", "--json"]).exits(0).last();
    assert_eq!((packed["examples"].as_u64(), packed["accepted"].as_bool()), (Some(40), Some(true)));
    assert_eq!(packed["report"]["rejected"], 1);

    let model = checkpoint();
    let mut train = place.command(["train", "--non-interactive", "--json", "--device", "cpu", "--model"]);
    train
        .arg(model)
        .args(["--data", "t.qubgpu", "--pack-length", "128", "--rank", "4", "--max-steps", "6"])
        .args(["--save-steps", "2", "--mtp", "none", "--name", "from tokens"])
        .env("SPARKTUNE_GRAD_ACCUM_STEPS", "2")
        .env("SPARKTUNE_SAMPLE_COUNT", "1")
        .env("SPARKTUNE_SAMPLE_MAX_TOKENS", "8");
    let of_tokens = done(&mut train).exits(0).run_dir();
    let of_tokens = place.join(of_tokens.to_str().unwrap());
    let (text, tokens) = (what_happened(&of_text), what_happened(&of_tokens));
    assert!(text.iter().filter(|event| event["kind"] == "step").count() == 6, "{text:?}");
    assert_eq!(text, tokens);
    assert!(adapter(&of_text) == adapter(&of_tokens), "the adapters differ");
    let plan = |run: &Path| std::fs::read_to_string(run.join("plan.toml")).unwrap();
    assert!(plan(&of_tokens).contains("as the token file was made"), "{}", plan(&of_tokens));
}

#[test]
fn what_was_asked_for_and_what_made_the_tokens_must_be_the_same() {
    let place = Place::new();
    place.chats(12);
    pack(&place, &["-o", "t.qubgpu", "--train-on", "last", "--max-example-tokens", "64"]).exits(0);
    let check = |more: &[&str]| about(&place, &["check", "t.qubgpu"], more);
    check(&["--train-on", "last", "--think", "skip", "--format", "auto"]).exits(0);
    for (flags, said) in [
        (["--think", "train"], "--think is train, but the data is the token file t.qubgpu"),
        (["--train-on", "all"], "its tokens were made with last"),
        (["--split-turns", "true"], "--split-turns is true"),
        (["--max-example-tokens", "65"], "its tokens were made with 64"),
        (["--overlong", "split"], "its tokens were made with auto"),
        (["--format", "alpaca"], "its tokens were made with auto"),
        (["--template-kwargs", "{\"enable_thinking\": true}"], "--template-kwargs is"),
    ] {
        let result = check(&flags).exits(2);
        assert!(result.err.contains(said) && result.err.contains("make the file again"), "{}", result.err);
    }
    // What a preset says is meant for text.
    place.write("mine.toml", "[data]\nthink = \"train\"\noverlong = \"split\"\n");
    let plan = ["plan", "--data", "t.qubgpu", "--device", "cpu", "--json", "--preset", "mine.toml"];
    let data = about(&place, &plan, &[]).exits(0).last()["data"].clone();
    assert_eq!((&data["think"], &data["train_on"]), (&"skip".into(), &"last".into()), "{data}");
    assert_eq!(data["max_example_tokens"], 64);

    let result = check(&["--eval-data", "train.jsonl"]).exits(3);
    assert!(result.err.contains("only one of the two kinds"), "{}", result.err);
    place.write("other.jinja", "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}");
    let result = check(&["--chat-template", "other.jinja"]);
    assert!(result.code != Some(0), "{result:?}");
    if let Some(other) = gemma3() {
        let args = ["check", "t.qubgpu", "--model", other.to_str().unwrap()];
        let result = place.sparktune(args).exits(3);
        assert!(result.err.contains("another tokenizer than the model's"), "{}", result.err);
    }
}

#[test]
fn a_token_file_is_checked_and_planned_like_text() {
    let place = Place::new();
    place.chats(30);
    pack(&place, &["-o", "t.qubgpu"]).exits(0);
    let text = about(&place, &["check", "train.jsonl", "--json"], &[]).exits(0).last();
    let tokens = about(&place, &["check", "t.qubgpu", "--json", "--show", "1"], &[]).exits(0).last();
    assert_eq!(text["report"]["tokens"], tokens["report"]["tokens"]);
    assert_eq!(text["report"]["lengths"], tokens["report"]["lengths"]);
    assert_eq!(tokens["report"]["token_files"][0]["sources"][0], "train.jsonl");
    assert!(tokens["examples"][0]["spans"].as_array().unwrap().iter().any(|span| span["trained"] == true));
    let result = place.sparktune(["check", "t.qubgpu"]).exits(0);
    assert!(result.out.contains("t.qubgpu (token file, version 2)"), "{}", result.out);
    assert!(result.out.contains("made of train.jsonl") && result.out.contains("empty_think=skip"));
    assert!(result.out.contains("30 examples accepted") && result.out.contains("p99"), "{}", result.out);

    let plan = |data: &str| {
        let words = ["plan", "--data", data, "--device", "cpu", "--json"];
        about(&place, &words, &[]).exits(0).last()
    };
    let (text, tokens) = (plan("train.jsonl"), plan("t.qubgpu"));
    for part in ["pack", "batch", "duration", "optimizer"] {
        assert_eq!(text[part], tokens[part]);
    }
    assert_eq!(text["data"]["template_kwargs"], tokens["data"]["template_kwargs"]);
}

#[test]
fn v1_packets_are_planned_with_what_they_lack_said_plainly() {
    let place = Place::new();
    place.chats(30);
    pack(&place, &["-o", "v1.qubgpu", "--to", "v1"]).exits(0);
    assert_eq!(std::fs::read(place.join("v1.qubgpu")).unwrap()[0], 0xAA);
    let all = "every token of an example except the first is trained, prompts too";
    let result = about(&place, &["check", "v1.qubgpu"], &[]).exits(0);
    assert!(result.out.contains(all) && result.out.contains("which tokenizer"), "{}", result.out);
    let plan = ["plan", "--data", "v1.qubgpu", "--device", "cpu", "--explain"];
    let result = about(&place, &plan, &[]).exits(0);
    assert!(result.err.contains(all), "{}", result.err);
    assert!(result.out.contains("the token file does not say"), "{}", result.out);
    let result = about(&place, &["check", "v1.qubgpu", "--train-on", "all"], &[]).exits(2);
    assert!(result.err.contains("it does not say what made its tokens"), "{}", result.err);

    let mut bytes = std::fs::read(place.join("v1.qubgpu")).unwrap();
    bytes[100] ^= 1;
    place.write("v1.qubgpu", bytes);
    let result = about(&place, &["check", "v1.qubgpu"], &[]).exits(3);
    assert!(
        result.out.contains("damaged: 1 defect") && result.err.contains("--on-damage drop"),
        "{result:?}"
    );
    let result = about(&place, &["plan", "--data", "v1.qubgpu", "--device", "cpu"], &[]).exits(3);
    assert!(result.err.contains("1 defect, 29 examples intact"), "{}", result.err);
    place.sparktune(["pack", "v1.qubgpu", "saved.qubgpu", "--on-damage", "drop"]).exits(0);
    let saved = about(&place, &["check", "saved.qubgpu", "--json"], &[]).exits(0).last();
    assert_eq!(saved["report"]["examples"], 29);
}

#[test]
fn the_words_of_qubgpus_converter_are_understood() {
    let place = Place::new();
    place.chats(12);
    let model = checkpoint();
    let model = model.to_str().unwrap();
    let args = ["pack", "train.jsonl", "t.qubgpu", "--tokenizer", model, "--max-tokens", "60"];
    let result = place.sparktune(args).exits(0);
    assert!(result.out.contains("too long and left out"), "{}", result.out);
    assert!(place.join("rejected.jsonl").is_file());
    let report = place.sparktune(["check", "t.qubgpu", "--json"]).exits(0).last();
    assert!(report["report"]["lengths"]["max"].as_u64().unwrap() <= 60);
    let result = place.sparktune(["pack", "train.jsonl", "u.qubgpu"]).exits(2);
    assert!(result.err.contains("--model"), "{}", result.err);
    let result = place.sparktune(["pack", "train.jsonl", "--model", model]).exits(2);
    assert!(result.err.contains("--output"), "{}", result.err);
    let help = place.sparktune(["pack", "--help"]).exits(0);
    assert!(help.out.contains("tokenizer") && help.out.contains("convert.py"), "{}", help.out);
}

#[test]
fn nothing_half_made_is_left_and_nothing_else_is_overwritten() {
    let place = Place::new();
    place.chats(60);
    place.write("other.jsonl", "mine");
    let model = checkpoint();
    let model = model.to_str().unwrap();
    let result = place.sparktune(["pack", "train.jsonl", "other.jsonl", "--model", model]).exits(2);
    assert!(result.err.contains("other.jsonl exists and is another kind of file"), "{}", result.err);
    assert_eq!(std::fs::read_to_string(place.join("other.jsonl")).unwrap(), "mine");

    // A file may not grow beyond a few blocks, as on a disk that is full.
    let program = place.command(["pack"]).get_program().to_owned();
    let full = |to: &str| {
        let mut command = Command::new("sh");
        let script = "trap '' XFSZ; ulimit -f 4; exec \"$0\" \"$@\"";
        command.args(["-c", script]).arg(&program).args(["pack", "train.jsonl", "-o", "t.qubgpu"]);
        command.args(["--model", model, "--to", to]).current_dir(place.path());
        done(&mut command)
    };
    for to in ["v1", "v2"] {
        let result = full(to);
        assert!(result.code.is_some_and(|code| code != 0) && !result.err.is_empty(), "{result:?}");
    }
    place.write("bad.jsonl", "{oops\n");
    place.sparktune(["pack", "bad.jsonl", "-o", "t.qubgpu", "--model", model]).exits(3);
    let mut left: Vec<String> = std::fs::read_dir(place.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| !name.starts_with(".cache"))
        .collect();
    left.sort();
    assert_eq!(left, ["bad.jsonl", "other.jsonl", "rejected.jsonl", "train.jsonl"]);
}

#[test]
fn token_files_of_an_earlier_program_are_data() {
    let place = Place::new();
    let fixture = old_fixture();
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("presets/demo/model");
    for (name, said) in [("run/data/train.qubgpu", "empty_think=skip"), ("eval.v1.qubgpu", "no loss mask")] {
        let file = fixture.join(name);
        let args = ["check", file.to_str().unwrap(), "--model", model.to_str().unwrap()];
        let result = place.sparktune(args).exits(0);
        assert!(result.out.contains(said), "{}", result.out);
    }
}
