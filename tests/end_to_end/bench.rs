//! `bench`: what is measured, what the rows say, and the comparison with a peer. How fast anything is, is not
//! tested.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;

use serde_json::Value;

use crate::sparktune::{Done, Place, checkpoint};

/// The program as the peer of itself: it makes the same steps, from the same files.
const ITSELF: &str =
    r#""$SPARKTUNE" bench stepper --plan "$(dirname "$1")/plan.toml" --packs "$(dirname "$1")/packs.jsonl""#;
/// What a Python prints that has timed json.loads.
const JSON_LOADS: &str = r#"echo '{"seconds": 2.0, "cpu_seconds": 2.5}'"#;

/// A script in place of a Python.
fn python(place: &Place, script: &str) -> PathBuf {
    let program = env!("CARGO_BIN_EXE_sparktune");
    let draft = place.write("draft", format!("#!/bin/sh\nSPARKTUNE='{program}'\n{script}\n"));
    fs::set_permissions(&draft, fs::Permissions::from_mode(0o700)).unwrap();
    // A process that another test starts meanwhile may hold the draft open for writing, but not the copy.
    let python = place.join("python");
    assert!(Command::new("cp").args([&draft, &python]).status().unwrap().success());
    python
}

/// `bench lossless` on the fixture with this script in place of a Python.
fn lossless(place: &Place, script: &str, more: &[&str]) -> Done {
    let mut command = place.command(["bench", "lossless", "--device", "cpu", "--max-steps", "3"]);
    command.arg("--model").arg(checkpoint()).arg("--data").arg(place.chats(12));
    command.arg("--peers").arg(python(place, script)).args(more);
    crate::sparktune::done(&mut command)
}

fn row<'a>(rows: &'a Value, what: &str) -> &'a Value {
    let found = rows.as_array().unwrap().iter().find(|row| row["what"].as_str().unwrap().contains(what));
    found.unwrap_or_else(|| panic!("no row for {what} in {rows}"))
}

#[test]
fn a_tokenizer_is_measured_by_itself_on_the_text_of_a_folder() {
    let place = Place::new();
    fs::create_dir(place.join("text")).unwrap();
    place.write("text/a.rs", "fn main() { println!(\"naïve 123\"); }\n\n".repeat(300));
    place.write("text/b.bin", [0xff, 0xfe, 0]);
    let tokenizer = checkpoint().join("tokenizer.json");
    let args = ["bench", "tokenising", "--text", "text", "--json", "--tokenizer"];
    let rows = place.sparktune(args.iter().copied().chain([tokenizer.to_str().unwrap()])).exits(0).last();
    assert!(row(&rows, "plain text")["note"].as_str().unwrap().starts_with("1 file,"), "{rows}");
    assert!(row(&rows, "ratio to the library")["value"].as_f64().unwrap() > 0.0);
    place.sparktune(["bench", "tokenising", "--text", "text"]).exits(2);
}

#[test]
fn every_section_is_measured_when_none_is_named() {
    let rows = Place::new().sparktune(["bench", "--quick", "--json"]).exits(0).last();
    for (section, what) in [
        ("start", "--help"),
        ("validation", "validation"),
        ("tokenising", "tokenising"),
        ("tokenising", "tokenizers library"),
        ("tokens", "memory copy"),
        ("tokens", "reading"),
        ("loading", "building rows"),
        ("loading", "version 1"),
        ("packing", "packing"),
        ("log", "opening a log"),
        ("screen", "key to frame"),
        ("train", "LoRA"),
        ("train", "full"),
        ("train", "peak memory"),
        ("edit", "one edit by rome"),
    ] {
        let row = row(&rows, what);
        assert_eq!(row["section"], section, "{row}");
        assert!(row["value"].as_f64().unwrap() > 0.0, "{row}");
        assert_eq!(row["target"].is_null(), row["met"].is_null(), "{row}");
    }
    // No figure of another machine, and no ratio to a peer that was not run.
    for what in ["LoRA", "full", "validation"] {
        assert!(row(&rows, what)["note"].as_str().unwrap().contains("no peer was run"), "{rows}");
    }
    // Engines of the cluster are compared with each other.
    let is_ratio = |row: &&Value| row["unit"] == "×" && row["section"] != "cluster";
    let ratios: Vec<&Value> = rows.as_array().unwrap().iter().filter(is_ratio).collect();
    assert_eq!(ratios.len(), 4, "to the tokenizers library and to memory copies: {ratios:?}");
    sums_are_measured_or_say_why_not(&rows);
}

/// Sums over TCP are measured on every machine; those of the other engines, and the claims about them, may be
/// skipped or unknown, with a reason.
fn sums_are_measured_or_say_why_not(rows: &Value) {
    let of_cluster = rows.as_array().unwrap().iter().filter(|row| row["section"] == "cluster");
    for row in of_cluster {
        let note = row["note"].as_str().unwrap();
        let why = note.strip_prefix("skipped: ").or(note.strip_prefix("UNKNOWN: "));
        let is_measured = row["value"].as_f64().is_some_and(f64::is_finite);
        let is_explained = why.is_some_and(|why| !why.trim().is_empty());
        // So few numbers may take no processor time that the system counts.
        let is_of_ticks = row["what"].as_str().unwrap().contains("ainftp, CPU");
        assert!(is_measured != is_explained || is_of_ticks, "{row}");
    }
    for what in [
        "copying the numbers in memory",
        "tcp: exact sums",
        "the model's sum of 3 ranks",
        "estimate, 2B lora, 2 ranks",
    ] {
        let row = row(rows, what);
        assert_eq!(row["section"], "cluster", "{row}");
        assert!(row["value"].as_f64().unwrap() > 0.0, "{row}");
    }
    row(rows, "nccl: exact sums on the GPU");
    row(rows, "results by AF_XDP");
    // A few numbers may take less time than the system counts.
    row(rows, "adding numbers in small pages");
    if row(rows, "xdp in user space")["value"].is_number() {
        let wakes = row(rows, "packets for each wake-up");
        assert_eq!(
            (&wakes["target"]["at_least"], wakes["met"].is_boolean()),
            (&32.0.into(), true),
            "{wakes}"
        );
    }
    if row(rows, "xdp in the kernel: sums")["value"].is_null() {
        assert!(row(rows, "ainftp's claims")["value"].is_null(), "{rows}");
        return;
    }
    for what in [
        "bandwidth",
        "latency",
        "interrupts",
        "CPU",
        "copies of a packet's values",
        "dTLB misses",
        "cost of the check",
        "straggler blocking",
        "\"10×\"",
        "\"near-InfiniBand\"",
    ] {
        row(rows, &format!("ainftp, {what}"));
    }
}

#[test]
fn a_section_is_selected_by_name_and_says_whether_its_target_was_met() {
    let place = Place::new();
    let table = place.sparktune(["bench", "packing", "start", "--quick"]).exits(0).out;
    let lines: Vec<&str> = table.lines().collect();
    assert!(lines.len() == 3 && lines[0].starts_with("sparktune --help"), "{table}");
    assert!(lines[0].contains("target: < 30 ms, "), "{table}");
    let rows = place.sparktune(["bench", "--quick", "--json", "packing"]).exits(0).last();
    assert_eq!(rows.as_array().unwrap().len(), 2, "{rows}");
    let refused = place.sparktune(["bench", "pakcing"]).exits(2).err;
    assert!(refused.contains("pakcing") && refused.contains("packing"), "{refused}");
    place.sparktune(["bench", "--quick", "packing", "--output", "rows.json"]).exits(0);
    let written: Value = serde_json::from_slice(&fs::read(place.join("rows.json")).unwrap()).unwrap();
    assert_eq!(written.as_array().unwrap().len(), 2, "{written}");
}

#[test]
fn peers_run_in_turn_with_ours_and_are_beside_it_in_the_table() {
    let place = Place::new();
    let python = python(&place, &format!("if test \"$1\" = -c; then {JSON_LOADS}; else exec {ITSELF}; fi"));
    let peers = python.to_str().unwrap();
    let rows =
        place.sparktune(["bench", "validation", "train", "--quick", "--json", "--peers", peers]).exits(0);
    let rows = rows.last();
    let json_loads = row(&rows, "  json.loads");
    assert_eq!((&json_loads["seconds"], &json_loads["cpu_seconds"]), (&2.0.into(), &2.5.into()));
    let peer = row(&rows, "  sparktune ");
    assert!(peer["seconds"].as_f64().unwrap() > 0.0 && peer["cpu_seconds"].as_f64().unwrap() > 0.0, "{peer}");
    // The same steps: the note holds both losses.
    let note = peer["note"].as_str().unwrap();
    let (theirs, ours) = note.strip_prefix("loss of the last step ").unwrap().split_once(", ours ").unwrap();
    assert_eq!(theirs, ours);
    for (what, limit) in [("ratio to the peer", 2.5), ("ratio to the peer's memory", 0.5)] {
        let rows = rows.as_array().unwrap();
        let row = rows.iter().find(|row| row["what"].as_str().unwrap().trim() == what).unwrap();
        let target = row["target"].as_object().unwrap().values().next().unwrap();
        assert_eq!((target, row["met"].is_boolean()), (&limit.into(), true), "{row}");
    }
}

#[test]
fn a_peer_that_makes_the_same_steps_is_within_the_bound() {
    let place = Place::new();
    let done = lossless(&place, &format!("exec {ITSELF}"), &["--json"]).exits(0);
    let json = done.last();
    assert_eq!(json["within_bound"], true);
    let comparisons = json["comparisons"].as_array().unwrap();
    let methods: Vec<&Value> = comparisons.iter().map(|comparison| &comparison["method"]).collect();
    assert_eq!(methods, ["lora", "full"]);
    for comparison in comparisons {
        let steps = comparison["steps"].as_array().unwrap();
        assert_eq!((steps.len(), &comparison["largest_difference"]), (3, &0.0.into()), "{comparison}");
        assert!(steps[0]["loss"].as_f64().unwrap() > 1.0 && comparison["bound"] == 1e-3, "{comparison}");
        assert!(steps[2]["loss"] != steps[0]["loss"], "the model learns: {comparison}");
    }
}

#[test]
fn a_peer_whose_losses_are_others_ends_with_exit_code_70() {
    let place = Place::new();
    let lies = format!(r#"{ITSELF} | sed -u 's/"loss":/"loss":1/'"#);
    let done = lossless(&place, &lies, &["--method", "full"]).exits(70);
    assert!(done.out.contains("target: ≤ 1e-3, missed") && !done.out.contains("LoRA"), "{}", done.out);
    // A step that is no number is within no bound.
    let breaks = format!(r#"{ITSELF} | sed -u 's/"step":3,"loss":[0-9.]*/"step":3,"loss":null/'"#);
    let done = lossless(&place, &breaks, &["--method", "lora", "--json"]).exits(70);
    let comparison = &done.last()["comparisons"][0];
    assert!(comparison["largest_difference"].is_null() && comparison["steps"][2]["peer_loss"].is_null());
}

#[test]
fn a_peer_that_trains_something_else_or_dies_is_named_with_what_to_do() {
    let place = Place::new();
    let fewer = format!(r#"{ITSELF} | sed -u 's/"trained_parameters":/"trained_parameters":9/'"#);
    let stderr = lossless(&place, &fewer, &["--method", "lora"]).exits(2).err;
    assert!(stderr.contains("the two trainings differ"), "{stderr}");
    let stderr = lossless(&place, "echo no torch here >&2; exit 1", &["--method", "lora"]).exits(2).err;
    assert!(stderr.contains("ended before the first step") && stderr.contains("no torch here"), "{stderr}");
    assert!(stderr.contains("/python") && stderr.contains("--peers"), "{stderr}");
}
