//! `bench pipelines` and `bench white-paper`: results that the paper's reader accepts, losses that do not
//! depend on the file, and measurements that are made once. How fast anything is, is not tested.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant, SystemTime};

use serde_json::Value;

use crate::sparktune::{Place, checkpoint, done};

/// Two steps of two pipelines' worth of everything, with one prompt.
fn pipelines(place: &Place, more: &[&str]) -> Command {
    let suite = "{\"prompt\": \"Say river.\", \"checks\": [{\"type\": \"contains\", \"value\": \"river\"}], \"sampling\": {\"max_tokens\": 4}}\n";
    place.write("suite.jsonl", suite);
    let flags = ["bench", "pipelines", "--device", "cpu", "--steps", "2", "--seeds", "1", "--rank", "4"];
    let mut command = place.command(flags);
    command.args(["--max-tokens", "96", "--suite", "suite.jsonl", "--folder", "kept"]);
    command.arg("--model").arg(checkpoint()).arg("--data").arg(place.chats(40)).args(more);
    command
}

/// The files of finished measurements with the times at which they were written.
fn kept(place: &Place) -> Vec<(PathBuf, SystemTime)> {
    let is_measurement = |path: &Path| {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        ["loading-", "training-", "quality-"].iter().any(|start| name.starts_with(start))
    };
    let Ok(entries) = fs::read_dir(place.join("kept")) else { return Vec::new() };
    let paths = entries.map(|entry| entry.unwrap().path()).filter(|path| is_measurement(path));
    let mut found: Vec<_> =
        paths.map(|path| (path.clone(), fs::metadata(&path).unwrap().modified().unwrap())).collect();
    found.sort();
    found
}

fn losses(results: &Value, arrangement: &str, pipeline: &str) -> String {
    let is_one = |one: &&Value| one["arrangement"] == arrangement && one["pipeline"] == pipeline;
    let found = results["training"].as_array().unwrap().iter().find(is_one);
    found.unwrap_or_else(|| panic!("no {arrangement} {pipeline}"))["loss"].to_string()
}

#[test]
fn pipelines_are_measured_once_continue_after_a_kill_and_end_in_a_paper() {
    let place = Place::new();
    let mut first = pipelines(&place, &["--output", "results.json"]).spawn().unwrap();
    let patience = Instant::now() + Duration::from_secs(600);
    while kept(&place).len() < 3 && first.try_wait().unwrap().is_none() && Instant::now() < patience {
        std::thread::sleep(Duration::from_millis(10));
    }
    first.kill().unwrap();
    first.wait().unwrap();
    let before = kept(&place);
    assert!(before.len() >= 3 && !place.join("results.json").exists(), "{before:?}");

    let text = done(&mut pipelines(&place, &["--output", "results.json"])).exits(0).out;
    let after = kept(&place);
    assert!(before.iter().all(|one| after.contains(one)), "a finished measurement was repeated");
    for expected in ["PUBLISHED", "FAIR", "jsonl-packed", "held-out loss", "VERDICTS"] {
        assert!(text.contains(expected), "{text}");
    }
    // Two steps of one seed say nothing about chance, and the paper says so.
    assert!(text.contains("not measured: dropping 5 %"), "{text}");
    let results: Value = serde_json::from_slice(&fs::read(place.join("results.json")).unwrap()).unwrap();
    assert_eq!(losses(&results, "fair", "jsonl-packed"), losses(&results, "fair", "qubgpu"));
    assert_eq!(results["quality"].as_array().unwrap().len(), 8, "the base and seven trained models");
    assert!(results["command"].as_str().unwrap().starts_with("sparktune bench pipelines --device cpu"));

    let other = done(&mut pipelines(&place, &["--batch", "1"])).exits(2);
    assert!(other.err.contains("measurements of another build, plan"), "{}", other.err);
    let over = ["bench", "white-paper", "--results", "results.json", "--output", "results.json"];
    place.sparktune(over).exits(2);

    let paper = ["bench", "white-paper", "--results", "results.json", "--output", "paper.html"];
    place.sparktune(paper).exits(0);
    let page = fs::read_to_string(place.join("paper.html")).unwrap();
    assert!(page.contains("<svg") && page.contains("does not hold"), "{page}");
    place.write("other.json", "{\"version\": 1}");
    let refused = place.sparktune(["bench", "white-paper", "--results", "other.json"]).exits(2);
    assert!(refused.err.contains("other.json") && refused.err.contains("bench pipelines"), "{}", refused.err);
}

#[test]
fn data_that_is_not_one_example_a_line_is_refused_before_anything_is_measured() {
    let place = Place::new();
    let csv = place.write("train.csv", "prompt,completion\nSay river.,river\nSay stone.,stone\n".repeat(20));
    let mut command =
        place.command(["bench", "pipelines", "--device", "cpu", "--steps", "2", "--folder", "other"]);
    command.arg("--model").arg(checkpoint()).arg("--data").arg(csv);
    let refused = done(&mut command).exits(2);
    assert!(refused.err.contains("JSON Lines"), "{}", refused.err);
}
