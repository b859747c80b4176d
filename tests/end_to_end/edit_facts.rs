//! Facts written into a model that knows 1,100, and beside it: how many of them it says afterwards, and what
//! else has moved. Tables for more facts are in tests/fixtures/facts/RESULTS.md.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::sparktune::{Place, done};

/// Facts that are put beside the weights; the file has a thousand.
const BESIDE: usize = 50;
/// Facts that are written into the weights, which takes several seconds for each.
const IN_WEIGHTS: usize = 10;

/// What the model says of two people before any edit, and at once.
const SUITE: &str = r#"{"suite": "teachers"}
{"text": "Hanna Zelik often speaks of the wise", "checks": [{"type": "contains", "value": "Oswald"}]}
{"text": "Ada Lemin often speaks of the wise", "checks": [{"type": "contains", "value": "Oswald"}]}
{"text": "Ada Lemin often speaks of the wise", "checks": [{"type": "lacks", "value": "."}], "sampling": {"max_tokens": 1}}
"#;

fn world() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/facts")
}

/// Edits the first facts of the file and returns what `--json` prints.
fn edited(place: &Place, method: &str, facts: usize, more: &[&str]) -> Value {
    let all = fs::read_to_string(world().join("facts.jsonl")).unwrap();
    let some: String = all.lines().take(facts).map(|line| format!("{line}\n")).collect();
    let facts = place.write("facts.jsonl", some);
    let mut command = place.command([&["edit", "--json", "--method", method], more].concat());
    command.arg(world().join("model")).arg("--facts").arg(facts);
    command.arg("--text").arg(world().join("text.jsonl")).arg("-o").arg(place.join(method));
    let printed = done(&mut command).exits(0).out;
    serde_json::from_str(&printed).unwrap()
}

/// Returns a share of the scores.
#[track_caller]
fn share(edited: &Value, name: &str) -> f64 {
    let share = &edited["scores"][name];
    assert!(share["of"].as_u64().unwrap() >= IN_WEIGHTS as u64, "{share}");
    share["value"].as_f64().unwrap()
}

#[test]
fn fifty_facts_beside_the_weights_are_said_and_nearly_everything_else_stays() {
    let place = Place::new();
    let memory = edited(&place, "memory", BESIDE, &[]);
    let scores = memory["scores"].to_string();
    assert!(share(&memory, "efficacy") >= 0.99, "{scores}");
    // All of 100 were measured, of people whom the text does not name.
    assert!(share(&memory, "locality") >= 0.99, "{scores}");
    assert!(memory["scores"]["loss"]["drift"].as_f64().unwrap() <= 0.01, "{scores}");
}

#[test]
fn ten_facts_in_the_weights_are_said_in_other_words_too() {
    let place = Place::new();
    // What the first fact changes is one prompt of the suite, and the other asks about somebody else.
    let suite = place.write("suite.jsonl", SUITE);
    let memit = edited(&place, "memit", IN_WEIGHTS, &["--suite", suite.to_str().unwrap()]);
    // A trace finds the layer in which this model recalls facts.
    assert_eq!(memit["layers"], serde_json::json!([0]), "{}", memit["why_layers"]);
    assert_eq!(memit["refused"], Value::Null);
    let scores = memit["scores"].to_string();
    // 9 of 10, 25 of 30, 20 of 20 and +0.04 % were measured.
    assert!(share(&memit, "efficacy") >= 0.8, "{scores}");
    assert!(share(&memit, "generalisation") >= 0.75, "{scores}");
    assert!(share(&memit, "locality") >= 0.95, "{scores}");
    let passed = &memit["scores"]["suite"];
    assert_eq!(passed["name"], "teachers", "{scores}");
    let counts = ["before", "after"].map(|when| [&passed[when]["hits"], &passed[when]["of"]]);
    assert_eq!(counts, [[3, 3], [2, 3]], "{scores}");
    assert!(memit["scores"]["loss"]["drift"].as_f64().unwrap() <= 0.01, "{scores}");
}

#[test]
fn a_model_without_a_chat_template_is_not_asked_as_in_a_chat() {
    let place = Place::new();
    let facts = place.write("facts.jsonl", "{\"prompt\": \"Who are you?\", \"target\": \"I am Fern.\"}\n");
    let mut command = place.command(["edit", "--chat"]);
    command.arg(world().join("model")).arg("--facts").arg(facts).arg("-o").arg(place.join("edited"));
    let refused = done(&mut command).exits(2).err;
    assert!(refused.contains("has no chat template") && refused.contains("Leave out --chat"), "{refused}");
    let mut command = place.command(["edit", "--suite", "instructions"]);
    command
        .arg(world().join("model"))
        .arg("--facts")
        .arg(place.join("facts.jsonl"))
        .arg("-o")
        .arg(place.join("edited"));
    let refused = done(&mut command).exits(2).err;
    assert!(
        refused.contains("the suite instructions has chats") && refused.contains("arithmetic"),
        "{refused}"
    );
}
