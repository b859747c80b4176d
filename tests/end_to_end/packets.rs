//! `packet`: single packets, weights as packets, and what files carry. Also damage in token files.

use serde_json::{Value, json};

use crate::sparktune::{Place, checkpoint};

#[test]
fn a_packet_is_made_read_and_damaged_in_both_versions() {
    let place = Place::new();
    for version in ["v1", "v2"] {
        let args = ["packet", "encode", "--ids", "1,248319", "--src", "code", "--dst", "42", "--to", version];
        let hex = place.sparktune(args).exits(0).out.trim().to_owned();
        let read = place.sparktune(["packet", "decode", &hex]).exits(0).out;
        assert!(read.contains("code (2)") && read.contains("unknown (42)"), "{read}");
        assert!(read.contains("1, 248319"), "{read}");
        let hurt = place.sparktune(["packet", "flip", &hex, "70", "-o", "hurt"]).exits(0).out;
        assert!(hurt.contains("bit 6 of byte 8") && hurt.contains("the damage is noticed"), "{hurt}");
        let read = place.sparktune(["packet", "decode", "hurt"]).exits(3).out;
        assert!(read.contains("FAILS"), "{read}");
        let over = place.sparktune(["packet", "flip", "hurt", "3", "-o", "hurt"]).exits(2).err;
        assert!(over.contains("the same file"), "{over}");
        let every: Value = place.sparktune(["packet", "flip", &hex, "--every", "--json"]).exits(0).last();
        assert_eq!(every["bits"], every["noticed"]);
    }
    let v1 =
        place.sparktune(["packet", "encode", "--ids", "1,248319", "--src", "2", "--dst", "42", "--to", "v1"]);
    assert_eq!(v1.exits(0).out, "aa022a010008000000010003c9ff37dd\n");
    for (args, says) in [
        (&["packet", "encode", "--ids", "1", "--src", "neutrinos"][..], "for --src"),
        (&["packet", "encode", "--hex", "0"], "neither a file nor hex digits"),
        (&["packet", "decode", "nothing.bin"], "neither a file nor hex digits"),
        (&["packet", "flip", "aa", "8"], "there is no bit 8"),
        (&["packet", "encode", "--tensors", "a.safetensors"], "--output"),
    ] {
        let refused = place.sparktune(args).exits(2).err;
        assert!(refused.to_lowercase().contains(says), "{refused}");
    }
}

#[test]
fn weights_travel_as_packets_and_come_back_as_the_same_file() {
    let place = Place::new();
    let weights = checkpoint().join("model.safetensors");
    let before = std::fs::read(&weights).unwrap();
    let weights = weights.to_str().unwrap();
    place.sparktune(["packet", "encode", "--tensors", weights, "-o", "w.qubgpu"]).exits(0);
    let shown = place.sparktune(["packet", "show", "w.qubgpu"]).exits(0).out;
    assert!(shown.contains("typed packets of version 2") && shown.contains("from weights (128)"), "{shown}");
    let shown: Value = place.sparktune(["packet", "show", "w.qubgpu", "--json"]).exits(0).last();
    let tensors = shown["tensors"].as_array().unwrap();
    let to = |name: &str| {
        tensors.iter().find(|t| t["name"].as_str().unwrap().contains(name)).unwrap()["to"].clone()
    };
    assert_eq!(to("embed_tokens"), "embedding (1)");
    assert_eq!(to("mlp"), "feed-forward (3)");
    let done = place.sparktune(["packet", "decode", "w.qubgpu", "-o", "w.safetensors"]).exits(0).out;
    assert!(done.contains("w.safetensors: "), "{done}");
    assert_eq!(std::fs::read(place.join("w.safetensors")).unwrap().len(), before.len());
    let again = place.sparktune(["packet", "encode", "--tensors", "w.safetensors", "-o", "x.qubgpu"]);
    again.exits(0);
    let state = |name: &str| {
        let packet: Value = place.sparktune(["packet", "decode", name, "--json"]).exits(0).last();
        let fields = packet["fields"].as_array().unwrap().clone();
        fields.into_iter().find(|field| field["name"] == "state").unwrap()["value"].clone()
    };
    assert_eq!(state("w.qubgpu"), state("x.qubgpu"), "the hash of all names, dtypes, shapes and bytes");

    let mut bytes = std::fs::read(place.join("w.qubgpu")).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    place.write("w.qubgpu", bytes);
    let shown = place.sparktune(["packet", "show", "w.qubgpu"]).exits(3).out;
    assert!(shown.contains("damaged in total: 1 place") && shown.contains("not whole"), "{shown}");
    let args = ["packet", "decode", "w.qubgpu", "-o", "y.safetensors"];
    let refused = place.sparktune(args).exits(3).err;
    assert!(refused.contains("damaged at byte") && refused.contains("--on-damage drop"), "{refused}");
    let args = [&args[..], &["--on-damage", "drop"]].concat();
    let refused = place.sparktune(args).exits(3).err;
    assert!(refused.contains("and ") || refused.contains("missing"), "{refused}");
    assert!(!place.join("y.safetensors").exists(), "weights with a hole are not written");
}

#[test]
fn a_v1_file_keeps_its_codes_through_version_2_and_what_it_carries_is_listed() {
    let place = Place::new();
    let one = ["packet", "encode", "--ids", "5,6,7", "--src", "2", "--dst", "200", "--to", "v1", "-o", "one"];
    place.sparktune(one).exits(0);
    place.sparktune(["pack", "one", "two.qubgpu"]).exits(0);
    place.sparktune(["unpack", "two.qubgpu", "back", "--to", "v1"]).exits(0);
    let read = |name: &str| std::fs::read(place.join(name)).unwrap();
    assert_eq!(read("one"), read("back"));
    for name in ["one", "two.qubgpu"] {
        let shown: Value = place.sparktune(["packet", "show", name, "--json"]).exits(0).last();
        assert_eq!(
            (&shown["routes"][0]["src"], &shown["routes"][0]["to"]),
            (&json!(2), &json!("unknown (200)"))
        );
    }
    let other = ["packet", "encode", "--hex", "00ff", "--typ", "77", "--to", "v1", "-o", "other"];
    place.sparktune(other).exits(0);
    place.write("both", [read("one"), read("other")].concat());
    let packed = place.sparktune(["pack", "both", "three.qubgpu"]).exits(0).out;
    assert!(packed.contains("skipped 1 packet of TYP unknown (77)"), "{packed}");
}

#[test]
fn damaged_examples_stop_a_run_or_are_left_out_and_counted() {
    let place = Place::new();
    place.chats(30);
    let model = checkpoint();
    let model = model.to_str().unwrap();
    place.sparktune(["pack", "train.jsonl", "-o", "t.qubgpu", "--model", model]).exits(0);
    let mut bytes = std::fs::read(place.join("t.qubgpu")).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 4;
    place.write("t.qubgpu", bytes);
    let shown = place.sparktune(["packet", "show", "t.qubgpu"]).exits(3).out;
    assert!(shown.contains("  without SRC and DST: "), "{shown}");
    let line = shown.lines().find(|line| line.contains("damaged at byte")).unwrap();
    assert!(line.contains(": example ") && line.contains("(train.jsonl:"), "{line}");
    assert_eq!(line.matches("byte").count(), 1, "the place is said once: {line}");
    let check = ["check", "t.qubgpu", "--model", model, "--json"];
    place.sparktune(check).exits(3);
    let report: Value = place.sparktune([&check[..], &["--on-damage", "drop"]].concat()).exits(0).last();
    assert_eq!((&report["accepted"], &report["report"]["examples"]), (&json!(true), &json!(29)));
    assert_eq!(report["report"]["token_files"][0]["defects"], 1);

    let train = ["train", "--data", "t.qubgpu", "--model", model, "--device", "cpu", "--dry-run"];
    let refused = place.sparktune(train).exits(3).err;
    assert!(refused.contains("--on-damage drop"), "{refused}");
    let plan = place.sparktune([&train[..], &["--on-damage", "drop"]].concat()).exits(0);
    let said = format!("{}{}", plan.out, plan.err);
    assert!(said.contains("damaged examples of t.qubgpu left out") && said.contains("1 defect"), "{said}");
    // What was prepared without the damaged examples is not used where damage stops a run.
    place.sparktune(train).exits(3);

    place.sparktune(["unpack", "t.qubgpu", "t.jsonl"]).exits(3);
    let done: Value =
        place.sparktune(["unpack", "t.qubgpu", "t.jsonl", "--on-damage", "drop", "--json"]).exits(0).last();
    assert_eq!((&done["examples"], &done["left_out_count"]), (&json!(29), &json!(1)));
}

#[test]
fn what_is_no_file_is_not_replaced_by_one() {
    let place = Place::new();
    let pipe = place.join("pipe");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let pipe = pipe.to_str().unwrap();
    place.write("ids.jsonl", "{\"input_ids\": [1, 2, 3]}\n");
    for args in [&["packet", "encode", "--ids", "1", "-o", pipe][..], &["pack", "ids.jsonl", pipe]] {
        let refused = place.sparktune(args);
        assert!(refused.code != Some(0) && refused.err.contains("not a file"), "{refused:?}");
    }
    use std::os::unix::fs::FileTypeExt;
    assert!(std::fs::metadata(pipe).unwrap().file_type().is_fifo());
}
