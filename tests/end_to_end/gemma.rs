//! A Gemma 3 from JSON Lines to a folder that can be served, and trained again.

use std::path::Path;

use crate::sparktune::{Place, done, events, gemma3, losses};

/// The tensors whose bytes differ between two weight files of the same layout.
fn changed(base: &Path, output: &Path) -> usize {
    let read = |folder: &Path| {
        let bytes = std::fs::read(folder.join("model.safetensors")).unwrap();
        let head = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
        let index: serde_json::Map<String, serde_json::Value> =
            serde_json::from_slice(&bytes[8..head]).unwrap();
        (bytes, head, index)
    };
    let ((base, base_head, index), (output, output_head, written)) = (read(base), read(output));
    let bytes = |file: &[u8], head: usize, of: &serde_json::Value| {
        let [start, end] = [0, 1].map(|i| head + of["data_offsets"][i].as_u64().unwrap() as usize);
        file[start..end].to_vec()
    };
    let tensors = index.iter().filter(|(name, _)| *name != "__metadata__");
    tensors
        .filter(|(name, of)| bytes(&base, base_head, of) != bytes(&output, output_head, &written[*name]))
        .count()
}

#[test]
fn gemma_3_is_checked_trained_both_ways_exported_and_trained_again_from_its_output() {
    let Some(model) = gemma3() else {
        println!("skipped: SPARKTUNE_FIXTURES has no folder `others/gemma3`");
        return;
    };
    let place = Place::new();
    place.chats(40);
    let folder = model.to_str().unwrap();
    place.sparktune(["check", "train.jsonl", "--model", folder]).exits(0);

    // Two of its three layers have a window of 8 tokens, which every chat is longer than.
    let rate = ["--learning-rate", "3e-3", "--max-steps", "20", "--save-steps", "50"];
    let full = done(&mut place.train_model(&model, &[&["--method", "full"], &rate[..]].concat())).exits(0);
    let loss: Vec<f64> = losses(&full.run_dir()).into_iter().map(|(_, _, loss)| loss).collect();
    assert_eq!(loss.len(), 20);
    assert!(loss[19] < loss[0] - 0.5, "{loss:?}");
    let merged = full.run_dir().join("outputs/merged");
    assert_eq!(changed(&model, &merged), 41, "every tensor");
    let sampled = events(&full.run_dir()).iter().any(|event| event["kind"] == "sample");
    assert!(sampled, "a sample was decoded");

    let lora = done(&mut place.train_model(&merged, &["--rank", "4", "--max-steps", "4"])).exits(0);
    let first = losses(&lora.run_dir())[0].2;
    assert!(first < loss[0] - 0.3, "the output is what was trained: {first} after {loss:?}");
    assert_eq!(changed(&merged, &lora.run_dir().join("outputs/merged")), 21, "the linear layers");
    let adapter = lora.run_dir().join("outputs/adapter/adapter_config.json");
    let adapter: serde_json::Value = serde_json::from_slice(&std::fs::read(adapter).unwrap()).unwrap();
    let targets = ["down_proj", "gate_proj", "k_proj", "o_proj", "q_proj", "up_proj", "v_proj"];
    assert_eq!(adapter["target_modules"], serde_json::json!(targets));
}
