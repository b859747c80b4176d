//! `pack`, `unpack`, `verify` through the binary.

use crate::sparktune::{Place, checkpoint};

fn packed(place: &Place) {
    let lines: String = (0..20u32)
        .map(|i| {
            format!(
                "{{\"input_ids\": [{}, {}, 7, 8], \"loss_mask\": [0, 0, 1, 1], \"source_line\": {}}}\n",
                i,
                i + 1,
                i + 1
            )
        })
        .collect();
    place.write("ids.jsonl", lines);
    let done = place.sparktune(["pack", "ids.jsonl", "t.qubgpu", "--json"]).exits(0).last();
    assert_eq!((done["examples"].as_u64(), done["target_tokens"].as_u64()), (Some(20), Some(40)));
}

#[test]
fn token_files_go_out_and_come_back_the_same() {
    let place = Place::new();
    packed(&place);
    place.sparktune(["unpack", "t.qubgpu", "back.jsonl"]).exits(0);
    place.sparktune(["pack", "back.jsonl", "again.qubgpu"]).exits(0);
    place.sparktune(["unpack", "again.qubgpu", "back2.jsonl"]).exits(0);
    let text = |name: &str| std::fs::read_to_string(place.join(name)).unwrap();
    assert_eq!(text("back.jsonl").lines().count(), 20);
    let ids = |name: &str| -> Vec<serde_json::Value> {
        text(name)
            .lines()
            .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap()["input_ids"].clone())
            .collect()
    };
    assert_eq!(ids("back.jsonl"), ids("back2.jsonl"));
    place.sparktune(["unpack", "t.qubgpu", "v1.qubgpu", "--to", "v1"]).exits(0);
    assert_eq!(std::fs::read(place.join("v1.qubgpu")).unwrap()[0], 0xAA);
    place.sparktune(["verify", "v1.qubgpu"]).exits(0);
}

#[test]
fn a_flipped_bit_is_named_and_the_rest_can_be_saved() {
    let place = Place::new();
    packed(&place);
    place.sparktune(["verify", "t.qubgpu"]).exits(0);
    let mut bytes = std::fs::read(place.join("t.qubgpu")).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 4;
    place.write("t.qubgpu", &bytes);
    let over = place.sparktune(["verify", "t.qubgpu", "--rebuild", "t.qubgpu"]).exits(2);
    assert!(over.err.contains("the same file"), "{}", over.err);
    assert_eq!(std::fs::read(place.join("t.qubgpu")).unwrap(), bytes, "the damaged file is still there");
    let result = place.sparktune(["verify", "t.qubgpu", "--rebuild", "saved.qubgpu"]).exits(3);
    assert!(result.out.contains("defect") && result.out.contains("example"), "{}", result.out);
    assert!(result.out.contains("saved 19 examples"), "{}", result.out);
    place.sparktune(["verify", "saved.qubgpu"]).exits(0);
    let result = place.sparktune(["unpack", "t.qubgpu", "out.jsonl"]).exits(3);
    assert!(result.err.contains("t.qubgpu") && !place.join("out.jsonl").exists(), "{}", result.err);
}

#[test]
fn a_file_of_another_kind_is_never_replaced() {
    let place = Place::new();
    packed(&place);
    place.write("notes.txt", "keep me\n");
    std::fs::copy(place.join("t.qubgpu"), place.join("t2.qubgpu")).unwrap();
    place.sparktune(["unpack", "t.qubgpu", "v1.bin", "--to", "v1"]).exits(0);
    place.write("around.bin", [b"not a packet", &*std::fs::read(place.join("v1.bin")).unwrap()].concat());
    place.write("own.jsonl", "{\"input_ids\": [1, 2]}\n");
    for args in [
        &["unpack", "t.qubgpu", "notes.txt"][..],
        &["unpack", "t.qubgpu", "t2.qubgpu"],
        &["unpack", "t.qubgpu", "v1.bin"],
        &["unpack", "t.qubgpu", "own.jsonl"],
        &["verify", "t.qubgpu", "--rebuild", "notes.txt"],
        &["pack", "ids.jsonl", "notes.txt"],
        &["pack", "ids.jsonl", "around.bin"],
    ] {
        let refused = place.sparktune(args).exits(2);
        let why = "exists and is another kind of file, so it is not replaced";
        assert!(refused.err.contains(why), "{args:?}: {}", refused.err);
    }
    assert_eq!(std::fs::read_to_string(place.join("notes.txt")).unwrap(), "keep me\n");
    // A token file, also a damaged one, and an empty file are replaced.
    place.write("out.jsonl", "");
    place.sparktune(["unpack", "t.qubgpu", "out.jsonl"]).exits(0);
    assert_eq!(std::fs::read_to_string(place.join("out.jsonl")).unwrap().lines().count(), 20);
    place.write("t2.qubgpu", "damaged");
    for output in ["t2.qubgpu", "v1.bin"] {
        place.sparktune(["pack", "ids.jsonl", output]).exits(0);
        place.sparktune(["verify", "t.qubgpu", "--rebuild", output]).exits(0);
        let whole = std::fs::read(place.join("t.qubgpu")).unwrap().len();
        assert_eq!(std::fs::read(place.join(output)).unwrap().len(), whole, "{output}");
    }
}

#[test]
fn the_list_of_rejected_lines_is_not_written_to_another_output() {
    let place = Place::new();
    let model = checkpoint();
    place.write("text.jsonl", "{\"text\": \"a\"}\n{\n");
    let pack = ["pack", "text.jsonl", "x", "--rejected", "./x", "--model", model.to_str().unwrap()];
    let check = ["check", "text.jsonl", "--write-clean", "x", "--rejected", "x"];
    for (args, flag) in [(&pack[..], "--output"), (&check, "--write-clean")] {
        let refused = place.sparktune(args).exits(2);
        let why = format!("--rejected and {flag} name the same file, x");
        assert!(refused.err.contains(&why) && !place.join("x").exists(), "{args:?}: {}", refused.err);
    }
    let pack = ["pack", "text.jsonl", "x", "--rejected", "x.partial", "--model", model.to_str().unwrap()];
    let refused = place.sparktune(pack).exits(2);
    assert!(refused.err.contains("names x.partial, where --output is written"), "{}", refused.err);
}
