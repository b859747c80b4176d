//! The Python package of `src/data/python` reads token files as this program does.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::sparktune::{Place, checkpoint};

/// Returns the package's folder.
fn package() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src/data/python")
}

/// Returns whether python3 can run the package. If it cannot, says that the test is skipped.
fn has_numpy() -> bool {
    let found = Command::new("python3").args(["-c", "import numpy"]).output();
    let found = found.is_ok_and(|output| output.status.success());
    if !found {
        println!("skipped: reading token files in Python, because python3 has no package `numpy`");
    }
    found
}

/// Compares what the package reads in a file with lines of token ids and, if the file is damaged, with the
/// report of `verify`.
fn compare(place: &Place, file: &str, lines: &str, report: Option<&str>) {
    let output = Command::new("python3")
        .arg("-B")
        .arg(package().join("tests/compare_with_sparktune.py"))
        .args([file, lines].into_iter().chain(report))
        .current_dir(place.path())
        .env("PYTHONPATH", package())
        .output()
        .unwrap();
    assert!(output.status.success(), "{file}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Writes what `verify --json` reports of a damaged file.
fn report(place: &Place, file: &str, to: &str) {
    let report = place.sparktune(["verify", file, "--json"]).exits(3);
    place.write(to, report.out);
}

/// Writes 300 lines of token ids of very different lengths, the longest a whole packet of version 1.
fn ids(place: &Place) {
    let line = |i: u32| {
        let length = if i == 150 { 16_383 } else { 1 + i * i % 97 };
        let ids: Vec<u32> = (0..length).map(|t| (i * 7919 + t * 31) % 250_000).collect();
        let mask: Vec<u32> = (0..length).map(|t| u32::from(t > 0 && !(t + i).is_multiple_of(3))).collect();
        serde_json::json!({"input_ids": ids, "loss_mask": mask, "source_line": 3 * i + 1}).to_string() + "\n"
    };
    place.write("ids.jsonl", (0..300).map(line).collect::<String>());
}

#[test]
fn python_reads_the_batches_of_both_versions_byte_for_byte() {
    if !has_numpy() {
        return;
    }
    let place = Place::new();
    ids(&place);
    place.sparktune(["pack", "ids.jsonl", "t.qubgpu"]).exits(0);
    place.sparktune(["unpack", "t.qubgpu", "t.jsonl"]).exits(0);
    compare(&place, "t.qubgpu", "t.jsonl", None);

    place.sparktune(["unpack", "t.qubgpu", "v1.qubgpu", "--to", "v1"]).exits(0);
    place.sparktune(["pack", "v1.qubgpu", "from-v1.qubgpu"]).exits(0);
    place.sparktune(["unpack", "from-v1.qubgpu", "v1.jsonl"]).exits(0);
    compare(&place, "v1.qubgpu", "v1.jsonl", None);

    let text = place.chats(8);
    let model = checkpoint();
    place
        .sparktune(["pack", text.to_str().unwrap(), "c.qubgpu", "--model", model.to_str().unwrap()])
        .exits(0);
    place.sparktune(["unpack", "c.qubgpu", "c.jsonl"]).exits(0);
    compare(&place, "c.qubgpu", "c.jsonl", None);
}

#[test]
fn python_leaves_out_the_damaged_packets_that_verify_lists_and_no_others() {
    if !has_numpy() {
        return;
    }
    let place = Place::new();
    ids(&place);
    place.sparktune(["pack", "ids.jsonl", "t.qubgpu"]).exits(0);
    place.sparktune(["unpack", "t.qubgpu", "v1.qubgpu", "--to", "v1"]).exits(0);
    for (name, places) in [("t.qubgpu", [596, 9_000, 30_001]), ("v1.qubgpu", [3, 700, 40_003])] {
        let mut bytes = fs::read(place.join(name)).unwrap();
        for at in places {
            bytes[at] ^= 0x10;
        }
        place.write(name, bytes);
    }
    report(&place, "t.qubgpu", "t.json");
    place.sparktune(["unpack", "t.qubgpu", "t.jsonl", "--on-damage", "drop"]).exits(0);
    compare(&place, "t.qubgpu", "t.jsonl", Some("t.json"));

    report(&place, "v1.qubgpu", "v1.json");
    place.sparktune(["pack", "v1.qubgpu", "sound.qubgpu", "--on-damage", "drop"]).exits(0);
    place.sparktune(["unpack", "sound.qubgpu", "v1.jsonl"]).exits(0);
    compare(&place, "v1.qubgpu", "v1.jsonl", Some("v1.json"));
}
