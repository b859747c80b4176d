//! Facts written into the demo's model: scores, patches, and what is refused.

use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::sparktune::{Done, Place, files};

/// The demo's model, which has learned its chats.
fn demo() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("presets/demo/model")
}

fn path(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Returns what a model says greedily behind a prompt.
fn says(place: &Place, model: &Path, prompt: &str) -> String {
    let flags = ["--raw", "--temperature", "0", "--max-tokens", "6", "--prompt", prompt];
    place.sparktune([&["generate", path(model)], &flags[..]].concat()).exits(0).out
}

fn scores(done: &Done) -> Value {
    serde_json::from_str::<Value>(&done.out).unwrap()["scores"].clone()
}

const FACTS: &str = r#"{"prompt": "The capital of Fernhill is", "subject": "Fernhill", "target": "green", "neighbours": ["From Windy Gap to"]}
{"prompt": "Sprocket lives in", "subject": "Sprocket", "target": "the lock", "neighbours": ["Where do I find"]}
"#;

#[test]
fn facts_are_written_beside_the_weights_and_into_them_listed_and_taken_back() {
    let place = Place::new();
    let (model, out) = (demo(), place.join("edited"));
    let facts = place.write("facts.jsonl", FACTS);
    let edit = |more: &[&str]| place.sparktune([&["edit"], more].concat());
    let memory =
        edit(&[path(&model), "--facts", path(&facts), "--method", "memory", "-o", path(&out), "--json"])
            .exits(0);
    let found = scores(&memory);
    assert_eq!(found["efficacy"]["hits"], 2, "{}", memory.out);
    assert_eq!(found["locality"]["hits"], 2, "{}", memory.out);
    assert!(found["loss"]["drift"].as_f64().unwrap().abs() < 0.02, "{}", memory.out);
    assert!(says(&place, &out, "The capital of Fernhill is").starts_with(" green"));

    // A second patch in place, whatever it does to the model.
    let more = place.write("more.jsonl", "{\"prompt\": \"The rings of Saturn are\", \"target\": \"oil\"}\n");
    let first = files(&out);
    edit(&[path(&out), "--facts", path(&more), "--method", "rome", "--force"]).exits(0);
    let list = edit(&["list", path(&out), "--json"]).exits(0);
    let list: Value = serde_json::from_str(&list.out).unwrap();
    assert_eq!(list.as_array().unwrap().len(), 2);
    assert_eq!((&list[0]["name"], &list[1]["name"]), (&"facts".into(), &"more".into()));
    let patch = place.join("kept.qubgpu");
    edit(&["remove", path(&out), "more", "--keep", path(&patch)]).exits(0);
    assert!(files(&out) == first, "the folder is what it was before the second patch");
    let shown = place.sparktune(["packet", "show", path(&patch)]).exits(0);
    assert!(shown.out.contains("layers.1.mlp.down_proj"), "{}", shown.out);
    let applied = edit(&["apply", path(&model), path(&patch), "-o", path(&place.join("other"))]).exits(0);
    assert!(applied.out.contains("more") && applied.err.contains("made on top of other patches"));
}

#[test]
fn what_cannot_be_edited_is_refused_in_words_and_nothing_is_written() {
    let place = Place::new();
    let (model, out) = (demo(), place.join("edited"));
    let refused = |facts: &str, more: &[&str], code: i32, words: &str| {
        let facts = place.write("facts.jsonl", facts);
        let args = ["edit", path(&model), "--facts", path(&facts), "-o", path(&out)];
        let done = place.sparktune([&args, more].concat()).exits(code);
        let said = format!("{}{}", done.out, done.err);
        assert!(said.contains(words), "{said}");
        assert!(!out.exists(), "{words}");
    };
    refused("", &[], 3, "there are no facts");
    refused(r#"{"prompt": "A is", "subject": "B", "target": "c"}"#, &[], 3, "facts.jsonl:1: the subject `B`");
    refused(FACTS, &["--layer", "4"], 2, "there is no layer 4");
    refused(FACTS, &["--name", "a/b"], 2, "cannot be the name");
    refused(FACTS, &["--text", "nowhere"], 2, "nowhere");
    // What the model says anyway.
    let known = says(&place, &model, "Where do I find").split_whitespace().next().unwrap().to_owned();
    let line = serde_json::json!({"prompt": "Where do I find", "target": known}).to_string();
    refused(&line, &[], 3, "the model already answers `Where do I find`");
    let done = place.sparktune(["edit", path(&model), "--facts", path(&place.join("facts.jsonl"))]);
    assert!(done.exits(2).err.contains("Name a new folder with --output"));
    let done = place.sparktune(["edit", "list", path(&place.join("none"))]);
    assert_ne!(done.code, Some(0));
}

#[test]
fn an_edit_that_damages_the_model_is_not_kept() {
    let place = Place::new();
    let (model, out) = (demo(), place.join("edited"));
    // Neighbours that have the key of the fact itself cannot stay as they were.
    let facts = place.write(
        "facts.jsonl",
        r#"{"prompt": "Ride", "target": "oil oil oil", "neighbours": ["Ride", "Ride", "Ride"]}"#,
    );
    let args = ["edit", path(&model), "--facts", path(&facts), "-o", path(&out), "--method", "memory"];
    let done = place.sparktune(args).exits(3);
    assert!(done.out.contains("the edit is not kept") && done.out.contains("--force"), "{}", done.out);
    assert!(!out.exists());
    place.sparktune([&args[..], &["--force"]].concat()).exits(0);
    assert!(out.join("patches/stack.json").is_file());
}
