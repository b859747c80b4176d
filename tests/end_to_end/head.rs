//! `head`: the MTP head of a finished run or of a model, trained in a run of its own.

use std::path::Path;

use crate::sparktune::{Place, checkpoint, copy, done, events, files, gemma3};

#[test]
fn head_trains_only_the_mtp_head_of_a_finished_run_and_is_a_run_like_any_other() {
    let (place, first) = Place::with_finished_run();
    place.chats(40);
    let flags = ["--data", "train.jsonl", "--mtp-draft-tokens", "2", "--mtp-epochs", "2", "--json"];
    let result = place.sparktune(["head", "latest"].into_iter().chain(flags)).exits(0);
    assert_eq!(result.last()["outcome"], "completed");
    let run = result.run_dir();
    assert_ne!(run.canonicalize().unwrap(), first.canonicalize().unwrap());
    let logged = events(&run);
    assert!(result.err.contains("how   only the MTP head, on the finished text model"), "{result:?}");
    let name = run.file_name().unwrap().to_str().unwrap();
    assert!(name.contains("-first-try-head-lora-"), "{name}");
    let of_kind = |kind: &str| logged.iter().filter(|event| event["kind"] == kind).count();
    assert_eq!(of_kind("step"), 0, "no step of the text model");
    assert!(of_kind("head_eval") > 2);
    let two = |event: &&serde_json::Value| event["draft_nats"].as_array().is_some_and(|nats| nats.len() == 2);
    assert_eq!(logged.iter().filter(two).count(), of_kind("head_eval"));
    for folder in ["merged", "adapter"] {
        let [ours, theirs] = [&run, &first].map(|run| files(&run.join("outputs").join(folder)));
        assert!(ours.iter().any(|(name, _)| name.extension().is_some_and(|end| end == "safetensors")));
        // The other run left the head out of its outputs.
        let weights = |all: Vec<(std::path::PathBuf, Vec<u8>)>| {
            all.into_iter().filter(|(name, _)| name.starts_with("adapter_model")).collect::<Vec<_>>()
        };
        assert_eq!(weights(ours), weights(theirs), "{folder}");
    }
    // Examples that the text model was not trained on.
    let held_out = |run: &Path| {
        let list = place.join("held-out.jsonl");
        let _ = std::fs::remove_file(&list);
        let file = run.join("data/eval.qubgpu");
        place.sparktune(["unpack".as_ref(), file.as_os_str(), list.as_os_str()]).exits(0);
        let ids = |line: &str| serde_json::from_str::<serde_json::Value>(line).unwrap()["input_ids"].clone();
        std::fs::read_to_string(list).unwrap().lines().map(ids).collect::<Vec<_>>()
    };
    assert_eq!(held_out(&run), held_out(&first));
    assert!(run.join("outputs/merged-mtp").is_dir());
    let page = std::fs::read_to_string(run.join("outputs/SERVE.md")).unwrap();
    let gguf = place.sparktune(["export", run.to_str().unwrap(), "--gguf", "bf16"]).exits(0);
    let is_trained_served = page.contains("**The trained head is served**");
    let which =
        if is_trained_served { "Its MTP head is the trained one" } else { "Its MTP head is the base's" };
    assert!(gguf.err.contains(which), "{page}\n{gguf:?}");
    let again = place.sparktune(["resume", run.to_str().unwrap(), "--json"]).exits(0);
    assert!(again.err.contains("nothing to resume"), "{again:?}");
    place.sparktune(["report", run.to_str().unwrap(), "--json"]).exits(0);
    assert!(std::fs::read_to_string(run.join("report.html")).unwrap().contains("2nd drafted token"));
    let page = std::fs::read_to_string(run.join("report.html")).unwrap();
    assert!(page.contains("Held-out loss of the MTP head"), "no curve of the head");
}

#[test]
fn head_trains_the_head_of_a_model_as_it_is_with_a_head_that_its_config_does_not_declare() {
    let (place, first) = Place::with_finished_run();
    place.chats(40);
    // That run left the head out, and says so in its config.
    let base = place.join("bare");
    copy(&first.join("outputs/merged"), &base);
    let (model, donor) = (base.to_str().unwrap(), checkpoint());
    let head = |more: &[&str]| {
        let flags = ["head", model, "--data", "train.jsonl", "--device", "cpu", "--max-steps", "2"];
        place.sparktune(flags.into_iter().chain(more.iter().copied()))
    };
    let refused = head(&[]).exits(2);
    assert!(
        refused.err.contains("no MTP head to train") && refused.err.contains("--mtp-from"),
        "{refused:?}"
    );

    let donor = donor.to_str().unwrap();
    let result = head(&["--mtp-from", donor, "--mtp-draft-tokens", "1", "--json"]).exits(0);
    assert!(result.err.contains("steps 2 (") && result.err.contains("as it is"), "{result:?}");
    assert_eq!(result.last()["outcome"], "completed");
    let run = result.run_dir();
    let logged = events(&run);
    let of_kind = |kind: &str| logged.iter().filter(|event| event["kind"] == kind).count();
    assert_eq!(of_kind("step"), 0, "no step of the text model");
    assert!(of_kind("head_eval") > 1 && of_kind("warning") == 0, "{logged:?}");
    let outputs = run.join("outputs");
    assert!(!outputs.join("adapter").exists() && outputs.join("merged-mtp").is_dir());
    let read = |path: std::path::PathBuf| std::fs::read(path).unwrap();
    let json =
        |path: &Path| serde_json::from_slice::<serde_json::Value>(&std::fs::read(path).unwrap()).unwrap();
    for folder in ["merged", "merged-mtp"] {
        let folder = outputs.join(folder);
        let shard = json(&folder.join("model.safetensors.index.json"))["weight_map"]
            ["model.language_model.norm.weight"]
            .as_str()
            .unwrap()
            .to_owned();
        assert_eq!(read(folder.join(shard)), read(base.join("model.safetensors")), "{folder:?}");
        assert_eq!(json(&folder.join("config.json"))["text_config"]["mtp_num_hidden_layers"], 1);
    }
    let page = String::from_utf8(read(outputs.join("SERVE.md"))).unwrap();
    assert!(page.contains("The text model is the base as it is"), "{page}");

    let words = place.sparktune(["watch", run.to_str().unwrap(), "--plain"]).exits(0);
    assert!(words.out.contains("completed · 2 steps of the MTP head"), "{words:?}");
    let continued = ["generate", run.to_str().unwrap(), "--prompt", "x", "--max-tokens", "3"];
    assert!(place.sparktune(continued).exits(0).err.contains("tokens of prompt"));

    let again = place.sparktune(["head", "latest", "--data", "train.jsonl"]).exits(2);
    assert!(again.err.contains("trained only the MTP head of") && again.err.contains("head "), "{again:?}");
    let neither = place.sparktune(["head", "nothing", "--data", "train.jsonl"]).exits(2);
    assert!(neither.err.contains("the folder of a model with its config.json"), "{neither:?}");
    let from =
        ["train", "--from", "latest", "--data", "train.jsonl", "--dry-run", "--json", "--device", "cpu"];
    let planned = place.sparktune(from).exits(0);
    assert!(planned.last()["model"]["id"].as_str().unwrap().ends_with("outputs/merged-mtp"), "{planned:?}");
}

#[test]
fn head_refuses_a_run_whose_text_model_is_not_finished_and_leaves_no_run() {
    let place = Place::new();
    place.old_run();
    let runs = || place.sparktune(["runs", "--json"]).exits(0).last().as_array().unwrap().len();
    place.chats(40);
    let refused = place.sparktune(["head", "old", "--data", "train.jsonl"]).exits(2);
    assert!(refused.err.contains("is not finished") && refused.err.contains("resume"), "{refused:?}");
    assert_eq!(runs(), 1);
}

#[test]
fn a_base_that_lost_its_head_takes_it_from_another_model() {
    let (place, first) = Place::with_finished_run();
    place.chats(40);
    // That run left the head out; transformers leaves the config as it was.
    let base = place.join("bare");
    copy(&first.join("outputs/merged"), &base);
    std::fs::copy(checkpoint().join("config.json"), base.join("config.json")).unwrap();
    let donor = checkpoint();
    let flags = ["--rank", "4", "--max-steps", "2", "--mtp", "default", "--mtp-from"];
    let with = |from: &str| done(&mut place.train_model(&base, &[&flags[..], &[from]].concat()));
    let run = with(donor.to_str().unwrap()).exits(0).run_dir();
    let index = std::fs::read_to_string(run.join("outputs/merged/model.safetensors.index.json")).unwrap();
    assert!(index.contains("\"mtp.fc.weight\": \"model-00002-of-00002.safetensors\""), "{index}");
    let page = std::fs::read_to_string(run.join("outputs/SERVE.md")).unwrap();
    assert!(page.contains("| draft length | base's head |"), "{page}");
    // The weight files of both models have the same name.
    let name = run.to_str().unwrap();
    place.sparktune(["export", name]).exits(0);
    let flags = ["--data", "train.jsonl", "--max-steps", "2", "--json"];
    place.sparktune(["head", name].into_iter().chain(flags)).exits(0);
    if let Some(gemma) = gemma3() {
        let refused = with(gemma.to_str().unwrap()).exits(2);
        assert!(refused.last()["error"].to_string().contains("no MTP head either"), "{refused:?}");
    }
}
