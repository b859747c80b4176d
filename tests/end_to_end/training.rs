//! Whole trainings of the fixture checkpoint: from JSON Lines to folders that can be served.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::Value;

use crate::sparktune::{Place, checkpoint, copy, done, events, files};

/// Name → (dtype, bytes) of a safetensors file.
fn tensors(file: &Path) -> BTreeMap<String, (String, Vec<u8>)> {
    let bytes = std::fs::read(file).unwrap();
    let head = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let index: BTreeMap<String, Value> = serde_json::from_slice(&bytes[8..8 + head]).unwrap();
    let data = &bytes[8 + head..];
    let entry = |(name, info): (String, Value)| {
        let at = |i: usize| info["data_offsets"][i].as_u64().unwrap() as usize;
        (name, (info["dtype"].as_str().unwrap().to_owned(), data[at(0)..at(1)].to_vec()))
    };
    index.into_iter().filter(|(name, _)| name != "__metadata__").map(entry).collect()
}

/// Every tensor of the base is in the output with its dtype; returns the names whose bytes changed.
fn changed(base: &Path, output: &Path) -> Vec<String> {
    let (base, output) =
        (tensors(&base.join("model.safetensors")), tensors(&output.join("model.safetensors")));
    assert_eq!(base.keys().collect::<Vec<_>>(), output.keys().collect::<Vec<_>>());
    let differs = |(name, (dtype, bytes)): (&String, &(String, Vec<u8>))| {
        let (new_dtype, new_bytes) = &output[name];
        assert_eq!((dtype, bytes.len()), (new_dtype, new_bytes.len()), "{name}");
        (bytes != new_bytes).then(|| name.clone())
    };
    base.iter().filter_map(differs).collect()
}

#[test]
fn lora_leaves_an_adapter_a_merged_model_one_with_its_mtp_head_and_how_to_serve_them() {
    let place = Place::new();
    place.chats(40);
    let result = done(&mut place.train(&["--rank", "4", "--max-steps", "4", "--save-steps", "2"])).exits(0);
    let last = result.last();
    assert_eq!((last["outcome"].as_str(), last["steps"].as_u64()), (Some("completed"), Some(4)));
    assert!(
        last["final_loss"].as_f64().unwrap() > 0.0 && last["eval_loss"].as_f64().unwrap() > 0.0,
        "{last}"
    );
    let outputs: Vec<&Path> =
        last["outputs"].as_array().unwrap().iter().map(|p| Path::new(p.as_str().unwrap())).collect();
    assert!(outputs.iter().all(|path| path.is_absolute() && path.exists()), "{outputs:?}");
    let names: Vec<_> = outputs.iter().map(|path| path.file_name().unwrap().to_str().unwrap()).collect();
    assert_eq!(names, ["adapter", "adapter-causal-lm", "merged", "merged-mtp", "SERVE.md"]);

    let run = result.run_dir();
    let adapter = tensors(&run.join("outputs/adapter/adapter_model.safetensors"));
    assert!(
        adapter.keys().all(|name| name.contains("lora_A") || name.contains("lora_B")),
        "{:?}",
        adapter.keys()
    );
    let merged = changed(&checkpoint(), &run.join("outputs/merged"));
    assert!(!merged.is_empty());
    assert!(
        merged
            .iter()
            .all(|name| name.contains("layers.") && !name.contains("visual") && !name.contains("mtp")),
        "{merged:?}"
    );
    // Of so short a training it is noise which head is better.
    let with_head = changed(&checkpoint(), &run.join("outputs/merged-mtp"));
    let page = std::fs::read_to_string(run.join("outputs/SERVE.md")).unwrap();
    let is_trained = page.contains("**The trained head is served**");
    assert_eq!(with_head.iter().any(|name| name.starts_with("mtp.")), is_trained, "{with_head:?}");
    for file in ["config.json", "tokenizer.json", "chat_template.jinja", "generation_config.json"] {
        assert!(run.join("outputs/merged").join(file).is_file(), "{file}");
    }
    assert!(std::fs::read_to_string(run.join("outputs/SERVE.md")).unwrap().contains("vllm"));
}

/// As Qwen3.5-0.8B and 2B are published.
#[test]
fn a_base_with_one_shard_under_an_index_is_trained_served_exported_and_trained_further() {
    const SHARD: &str = "model.safetensors-00001-of-00001.safetensors";
    let place = Place::new();
    place.chats(40);
    let base = place.join("published");
    copy(&checkpoint(), &base);
    let weight_map: BTreeMap<String, &str> =
        tensors(&base.join("model.safetensors")).into_keys().map(|name| (name, SHARD)).collect();
    std::fs::rename(base.join("model.safetensors"), base.join(SHARD)).unwrap();
    let index = serde_json::json!({ "metadata": {}, "weight_map": weight_map });
    std::fs::write(base.join("model.safetensors.index.json"), index.to_string()).unwrap();

    let result = done(&mut place.train_model(&base, &["--rank", "4", "--max-steps", "2"])).exits(0);
    assert_eq!(result.last()["outcome"], "completed");
    let run = result.run_dir();
    assert!(run.join("outputs/merged").join(SHARD).is_file());
    let name = run.to_str().unwrap();
    for target in [name, run.join("outputs/merged").to_str().unwrap()] {
        place.sparktune(["generate", target, "--prompt", "x", "--max-tokens", "3"]).exits(0);
    }
    place.sparktune(["export", name, "--best"]).exits(0);
    place.sparktune(["export", name, "--gguf", "bf16"]).exits(0);
    let merged = run.join("outputs/merged-mtp");
    done(&mut place.train_model(&merged, &["--method", "full", "--max-steps", "1"])).exits(0);
}

#[test]
fn a_draft_vocabulary_changes_what_is_drafted_and_no_weight() {
    let place = Place::new();
    place.chats(40);
    let run = |more: &[&str]| {
        let flags = ["--rank", "4", "--max-steps", "4", "--seed", "7"];
        done(&mut place.train(&[&flags, more].concat())).exits(0)
    };
    let (whole, trimmed) = (run(&[]), run(&["--draft-vocab", "100"]));
    let output = |result: &crate::sparktune::Done, file: &str| result.run_dir().join("outputs").join(file);
    for folder in ["merged", "merged-mtp"] {
        assert!(files(&output(&whole, folder)) == files(&output(&trimmed, folder)), "{folder} differs");
    }
    assert!(!output(&whole, "draft-tokens.pt").exists());
    // Five bytes for each id, and those that are PyTorch's.
    let list = std::fs::metadata(output(&trimmed, "draft-tokens.pt")).unwrap().len();
    assert_eq!(list, 29 + 5 * 100 + 6);
    let page = std::fs::read_to_string(output(&trimmed, "SERVE.md")).unwrap();
    assert!(page.contains(" head, 100 tokens | estimated speed-up |"), "{page}");
    assert!(page.contains("prompts: yes") && page.contains("`draft-tokens.pt`"), "{page}");
    let has_logged = |result: &crate::sparktune::Done, words: &str| {
        events(&result.run_dir())
            .iter()
            .any(|event| event["detail"].as_str().is_some_and(|d| d.contains(words)))
    };
    assert!(
        has_logged(&trimmed, "drafting from 100 tokens") && !has_logged(&whole, "drafting from 100 tokens")
    );

    let refused = done(&mut place.train(&["--draft-vocab", "100000"])).exits(2);
    assert!(
        refused.err.contains("--draft-vocab is `100000`: expected a whole number from 1 to"),
        "{}",
        refused.err
    );
}

#[test]
fn full_training_changes_every_text_tensor_and_its_loss_falls() {
    let place = Place::new();
    place.chats(40);
    let flags = [
        "--method",
        "full",
        "--max-steps",
        "20",
        "--learning-rate",
        "3e-3",
        "--mtp",
        "default",
        "--save-steps",
        "50",
    ];
    let result = done(&mut place.train(&flags)).exits(0);
    let run = result.run_dir();
    let losses: Vec<f64> = crate::sparktune::losses(&run).into_iter().map(|(_, _, loss)| loss).collect();
    assert_eq!(losses.len(), 20);
    assert!(losses[19] < losses[0] - 0.5, "{losses:?}");
    let changed = changed(&checkpoint(), &run.join("outputs/merged"));
    assert!(changed.iter().any(|name| name.contains("embed_tokens")));
    assert!(changed.iter().all(|name| !name.contains("visual") && !name.starts_with("mtp.")), "{changed:?}");
    assert!(!run.join("outputs/adapter").exists() && !run.join("outputs/merged-mtp").exists());
}

#[test]
fn events_are_json_lines_with_json_and_lines_for_people_without() {
    let place = Place::new();
    place.chats(40);
    let result = done(&mut place.train(&["--rank", "2", "--max-steps", "2", "--mtp", "none"])).exits(0);
    let lines: Vec<Value> = result.out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines[0]["kind"], "run_started");
    assert_eq!(lines[lines.len() - 2]["kind"], "run_finished");
    assert_eq!(events(&result.run_dir()).len() + 1, lines.len(), "every event, then the summary");

    let model = checkpoint();
    let flags = [
        "--non-interactive",
        "--plain",
        "--data",
        "train.jsonl",
        "--pack-length",
        "128",
        "--max-steps",
        "2",
        "--mtp",
        "none",
    ];
    let result = done(place.command(flags).arg("--model").arg(model)).exits(0);
    assert!(
        result.out.lines().any(|line| line.contains(" step ") && line.contains("loss ")),
        "{}",
        result.out
    );
    assert!(result.out.lines().last().unwrap().contains("finished"), "{}", result.out);
    assert!(!result.out.contains('\u{1b}'));
    assert!(result.err.contains("SERVE.md"), "{}", result.err);
}

#[test]
fn a_finished_run_tells_the_next_plan_how_fast_this_machine_is() {
    let (place, _) = Place::with_finished_run();
    place.chats(40);
    let plan = done(&mut place.train(&["--rank", "4", "--dry-run"])).exits(0).last();
    assert_eq!(plan["advice"]["time"]["basis"], "measured-here");
}

#[test]
fn the_run_folder_says_what_it_was_made_from() {
    let (_place, run) = Place::with_finished_run();
    assert!(run.file_name().unwrap().to_str().unwrap().contains("-first-try-lora-"), "{run:?}");
    let plan = std::fs::read_to_string(run.join("plan.toml")).unwrap();
    assert!(plan.contains("rank = 4") && plan.contains("train.jsonl"), "{plan}");
    let provenance: Value =
        serde_json::from_slice(&std::fs::read(run.join("provenance.json")).unwrap()).unwrap();
    assert_eq!(provenance["train_tokens_blake3"].as_str().unwrap().len(), 64);
    assert_eq!(provenance["build_blake3"].as_str().unwrap().len(), 64);
    let report: Value =
        serde_json::from_slice(&std::fs::read(run.join("data/report.json")).unwrap()).unwrap();
    assert_eq!(report["examples"], 40);
}

#[test]
fn rejected_lines_below_the_limit_are_kept_with_the_run() {
    let (_place, run) = Place::with_finished_run();
    assert!(std::fs::read_to_string(run.join("data/rejected.jsonl")).unwrap().contains("{oops"));
}

#[test]
fn the_demo_is_a_preset_that_takes_every_flag() {
    let place = Place::new();
    let flags = ["--demo", "--json", "--max-steps", "2", "--mtp", "none", "--rank", "2"];
    let result = done(place.command(flags).env("SPARKTUNE_SAMPLE_COUNT", "0")).exits(0);
    assert_eq!(result.last()["steps"], 2);
    let run = result.run_dir();
    assert!(
        run.starts_with(place.path().canonicalize().unwrap())
            && run.to_str().unwrap().contains("-demo-lora-"),
        "{run:?}"
    );
    let plan = std::fs::read_to_string(run.join("plan.toml")).unwrap();
    assert!(plan.contains("rank = 2") && plan.contains("length = 256"), "flag over preset: {plan}");
}

#[test]
fn prompts_of_the_users_own_are_answered_before_the_first_step_and_at_each_evaluation() {
    let place = Place::new();
    place.chats(40);
    let flags = ["--max-steps", "2", "--rank", "4", "--mtp", "none", "--eval-steps", "1"];
    let prompts = ["--sample-prompt", "Say lamp and north.", "--sample-prompt", "Who are you?"];
    let trained = done(&mut place.train(&[&flags[..], &prompts].concat())).exits(0);
    let samples = events(&trained.run_dir()).into_iter().filter(|event| event["kind"] == "sample");
    let asked: Vec<(u64, String)> = samples
        .map(|event| {
            assert!(event["text"].as_str().is_some(), "{event}");
            (event["step"].as_u64().unwrap(), event["prompt"].as_str().unwrap().to_owned())
        })
        .collect();
    for step in 0..=2 {
        let at_step: Vec<&String> =
            asked.iter().filter(|(at, _)| *at == step).map(|(_, prompt)| prompt).collect();
        // One question of the eval set beside them, as the plan says.
        assert_eq!(at_step.len(), 3, "{asked:?}");
        for text in ["Say lamp and north.", "Who are you?"] {
            let count = at_step.iter().filter(|prompt| prompt.contains(text)).count();
            assert_eq!(count, 1, "{text} at step {step}: {asked:?}");
        }
    }
    let refused = done(&mut place.train(&["--sample-prompt", "Who?", "--eval-fraction", "0"])).exits(2);
    assert!(
        refused.err.contains("sample-prompt") || refused.err.contains("sample_prompts"),
        "{}",
        refused.err
    );
}
