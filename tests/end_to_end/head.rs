//! `head`: the MTP head of a finished run, trained in a run of its own.

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
    let again = place.sparktune(["resume", run.to_str().unwrap(), "--json"]).exits(0);
    assert!(again.err.contains("nothing to resume"), "{again:?}");
    place.sparktune(["report", run.to_str().unwrap(), "--json"]).exits(0);
    assert!(std::fs::read_to_string(run.join("report.html")).unwrap().contains("2nd drafted token"));
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
    if let Some(gemma) = gemma3() {
        let refused = with(gemma.to_str().unwrap()).exits(2);
        assert!(refused.last()["error"].to_string().contains("no MTP head either"), "{refused:?}");
    }
}
