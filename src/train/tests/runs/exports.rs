//! What a run exports: which weights, in which order, and what a stop or a failure leaves.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;

use safetensors::SafeTensors;
use sparktune_runlog::{Kind, Outcome, RunDir};
use sparktune_train::{
    GgufRequest, GgufType, TrainOptions, Weights, export_gguf, export_run, train, train_with,
};

use crate::{
    FULL, LORA, bytes, events, export, head_steps, losses, outputs, own_base, run, set_base, stopped_when,
    warnings,
};

fn page(run: &RunDir) -> String {
    std::fs::read_to_string(run.outputs().join("SERVE.md")).unwrap()
}

#[test]
fn an_early_stop_ends_the_text_model_but_not_the_head() {
    let root = tempfile::tempdir().unwrap();
    let early = |name: &str| {
        let run = run(root.path(), FULL, "trained", 40, false);
        let plan = std::fs::read_to_string(run.plan()).unwrap();
        // This learning rate soon increases the eval loss.
        let plan = plan.replace("every_steps = 6", "every_steps = 2, early_stop_patience = 1");
        let plan = plan.replace("learning_rate = 5e-3", "learning_rate = 2e-1");
        std::fs::write(run.plan(), plan).unwrap();
        println!("{name}: {}", run.path().display());
        run
    };
    let whole = early("whole");
    let finished = train(&whole, &AtomicBool::new(false)).unwrap();
    assert!(finished.steps < 30, "stopped early: {} steps", finished.steps);
    let steps_of_head = events(&whole).into_iter().filter(
        |kind| matches!(kind, Kind::Phase(phase) if phase.phase == "mtp" && phase.detail.as_ref().is_some_and(|d| d.starts_with("step"))),
    );
    assert!(steps_of_head.count() > 5, "the head is trained to its end");
    let after_one_step = || {
        let parts = early("parts");
        assert_eq!(train(&parts, &AtomicBool::new(true)).unwrap().outcome, Outcome::Stopped);
        parts
    };
    let (parts, _) = stopped_when(after_one_step, |parts| head_steps(parts) > 0);
    // This learning rate may raise the loss so far that the run counts as diverged.
    assert!(train(&parts, &AtomicBool::new(false)).unwrap().outcome.is_complete());
    assert_eq!(losses(&whole), losses(&parts));
    for file in ["merged/model.safetensors", "merged-mtp/model.safetensors"] {
        assert!(bytes(&whole, file) == bytes(&parts, file), "{file} differs");
    }
}

/// Of a run with a learning rate that soon increases the eval loss.
#[test]
fn the_best_weights_are_exported_and_the_head_belongs_to_them() {
    let root = tempfile::tempdir().unwrap();
    let trained = |export: &str| {
        let run = run(root.path(), FULL, "trained", 40, false);
        let plan = std::fs::read_to_string(run.plan()).unwrap();
        let plan = plan.replace("every_steps = 6", "every_steps = 2, early_stop_patience = 1");
        let plan = plan.replace("learning_rate = 5e-3", "learning_rate = 2e-1");
        std::fs::write(run.plan(), plan.replace("export = \"best\"", export)).unwrap();
        let finished = train(&run, &AtomicBool::new(false)).unwrap();
        let Some(Kind::RunFinished(event)) = events(&run).pop() else { panic!("it ends with an event") };
        assert_eq!((event.best_step, event.exported_step), (finished.best_step, finished.exported_step));
        assert!((event.best_eval_nats.unwrap() - finished.best_eval.unwrap()).abs() < 1e-12);
        let best = finished.best_step.unwrap();
        assert!(best < finished.steps && finished.best_eval < finished.eval_loss, "{finished:?}");
        (run, finished)
    };
    let (best, of_best) = trained("export = \"best\"");
    assert_eq!(of_best.exported_step, of_best.best_step);
    let step = of_best.best_step.unwrap();
    assert!(page(&best).contains(&format!("of step {step} of {}", of_best.steps)), "{}", page(&best));
    // A plan without the setting is one of an older program, which exported the last weights.
    let (last, of_last) = trained("");
    assert_eq!((of_last.best_step, of_last.exported_step), (of_best.best_step, Some(of_last.steps)));
    for file in ["merged/model.safetensors", "merged-mtp/model.safetensors"] {
        assert!(bytes(&best, file) != bytes(&last, file), "{file}");
    }

    // With the best weights exported, `--best` has the head that was trained on them …
    export(&best, Weights::Best).unwrap();
    for file in ["merged/model.safetensors", "merged-mtp/model.safetensors", "SERVE.md"] {
        assert!(bytes(&best, file) == bytes(&best, &format!("best/{file}")), "{file}");
    }
    // … and otherwise it has the same weights, without the head that was trained on others, and says so.
    // One of an earlier export, with other weights, would be served by whoever looks for it.
    std::fs::create_dir_all(last.outputs().join("best/merged-mtp")).unwrap();
    std::fs::write(last.outputs().join("best/draft-tokens.pt"), "of other weights").unwrap();
    export(&last, Weights::Best).unwrap();
    let merged = "best/merged/model.safetensors";
    assert!(bytes(&best, merged) == bytes(&last, merged));
    assert!(!last.outputs().join("best/merged-mtp").exists());
    let page = std::fs::read_to_string(last.outputs().join("best/SERVE.md")).unwrap();
    // The commands of a page are about the weights beside it.
    let command = format!("export {} --best --gguf q8_0\n", last.name());
    assert!(page.contains(&command), "{page}");
    assert_ne!(bytes(&last, "best/draft-tokens.pt"), b"of other weights");
    let head = format!("was trained on the weights of step {}", of_last.steps);
    assert!(page.contains(&format!("of step {step} of {}", of_last.steps)) && page.contains(&head), "{page}");
}

#[test]
fn a_best_checkpoint_that_is_damaged_is_told_and_the_last_weights_are_exported() {
    let root = tempfile::tempdir().unwrap();
    let run = run(root.path(), FULL, "none", 40, false);
    let plan = std::fs::read_to_string(run.plan()).unwrap();
    let plan = plan.replace("every_steps = 6", "every_steps = 2, early_stop_patience = 1");
    std::fs::write(run.plan(), plan.replace("learning_rate = 5e-3", "learning_rate = 2e-1")).unwrap();
    // The export is left to another attempt.
    let best = loop {
        let finished = train(&run, &AtomicBool::new(true)).unwrap();
        assert_eq!(finished.outcome, Outcome::Stopped);
        if warnings(&run).iter().any(|warning| warning.contains("stopping early")) {
            break finished.best_step.unwrap();
        }
    };
    let weights = run.checkpoints().join(format!("step-{best:06}/weights.safetensors"));
    let mut content = std::fs::read(&weights).unwrap();
    *content.last_mut().unwrap() ^= 1;
    std::fs::write(&weights, content).unwrap();
    let finished = train(&run, &AtomicBool::new(false)).unwrap();
    assert!(finished.outcome.is_complete() && finished.exported_step == Some(finished.steps), "{finished:?}");
    let told = format!("the best weights, those of step {best}, cannot be exported");
    assert!(warnings(&run).iter().any(|warning| warning.contains(&told)), "{:?}", warnings(&run));
}

#[test]
fn memory_that_runs_out_in_the_export_stops_the_run_which_goes_on_with_the_export() {
    let root = tempfile::tempdir().unwrap();
    let whole = run(root.path(), LORA, "none", 1, false);
    train(&whole, &AtomicBool::new(false)).unwrap();
    let parts = run(root.path(), LORA, "none", 1, false);
    assert_eq!(train(&parts, &AtomicBool::new(true)).unwrap().steps, 1);
    let reserve = TrainOptions { reserve_bytes: Some(u64::MAX / 2), ..TrainOptions::default() };
    let finished = train_with(&parts, &AtomicBool::new(false), &reserve).unwrap();
    assert_eq!((finished.outcome, finished.steps), (Outcome::Stopped, 1));
    let Some(Kind::RunFinished(event)) = events(&parts).pop() else { panic!("it ends with an event") };
    assert!(event.reason.is_some_and(|reason| reason.contains("memory ran out")));
    assert!(!outputs(&parts).iter().any(|name| name.contains("merged")), "{:?}", outputs(&parts));
    let before = losses(&parts).len();
    assert_eq!(train(&parts, &AtomicBool::new(false)).unwrap().outcome, Outcome::Completed);
    assert_eq!((losses(&parts).len(), losses(&parts)), (before, losses(&whole)), "no step is repeated");
    assert!(bytes(&whole, "merged/model.safetensors") == bytes(&parts, "merged/model.safetensors"));
}

#[test]
fn a_stopped_head_leaves_a_model_that_can_be_served_and_is_not_written_again() {
    use std::os::unix::fs::MetadataExt;
    let root = tempfile::tempdir().unwrap();
    let make = || run(root.path(), LORA, "trained", 12, false);
    let (run, stopped) = stopped_when(make, |run| head_steps(run) > 0);
    assert_eq!((stopped.outcome, stopped.exported_step), (Outcome::Stopped, stopped.best_step));
    assert_eq!(outputs(&run), ["SERVE.md", "adapter", "adapter-causal-lm", "merged"]);
    let early = page(&run);
    assert!(early.contains("vllm serve ./merged\n") || early.contains("vllm serve ./merged \\"), "{early}");
    assert!(early.contains("its training is not complete") && early.contains("| base's head |"), "{early}");
    let merged = run.outputs().join("merged/model.safetensors");
    let inode = || std::fs::metadata(&merged).unwrap().ino();
    let written = inode();
    assert_eq!(train(&run, &AtomicBool::new(false)).unwrap().outcome, Outcome::Completed);
    assert_eq!(inode(), written);
    assert_eq!(
        outputs(&run),
        ["SERVE.md", "adapter", "adapter-causal-lm", "draft-tokens.pt", "merged", "merged-mtp"]
    );
    assert!(page(&run).contains("vllm serve ./merged-mtp"), "{}", page(&run));
}

#[test]
fn a_head_that_cannot_be_trained_leaves_the_base_models_head_and_a_warning() {
    let root = tempfile::tempdir().unwrap();
    let run = run(root.path(), LORA, "trained", 2, false);
    let base = own_base(root.path());
    // With this norm, no loss of the head is a number.
    let weights = base.join("model.safetensors");
    let mut content = std::fs::read(&weights).unwrap();
    let start = 8 + u64::from_le_bytes(content[..8].try_into().unwrap()) as usize;
    let header: serde_json::Value = serde_json::from_slice(&content[8..start]).unwrap();
    let at = |end: usize| start + header["mtp.norm.weight"]["data_offsets"][end].as_u64().unwrap() as usize;
    content[at(0)..at(1)].fill(0xff);
    std::fs::write(&weights, content).unwrap();
    set_base(&run, &base, "");

    let finished = train(&run, &AtomicBool::new(false)).unwrap();
    assert_eq!((finished.outcome, finished.steps), (Outcome::Completed, 2));
    assert_eq!(outputs(&run), ["SERVE.md", "adapter", "adapter-causal-lm", "draft-tokens.pt", "merged"]);
    let told = "the MTP head could not be trained, so the outputs have the base model's head: the held-out loss became NaN";
    assert!(warnings(&run).iter().any(|warning| warning.contains(told)), "{:?}", warnings(&run));
    assert!(page(&run).contains(told) && page(&run).contains("vllm serve ./merged"), "{}", page(&run));
}

/// Of a base as Qwen3.5-0.8B and 2B are published.
#[test]
fn a_run_on_a_base_with_one_shard_under_an_index_is_trained_exported_and_starts_another() {
    const SHARD: &str = "model.safetensors-00001-of-00001.safetensors";
    let root = tempfile::tempdir().unwrap();
    let base = own_base(root.path());
    let bytes = std::fs::read(base.join("model.safetensors")).unwrap();
    let names = SafeTensors::deserialize(&bytes).unwrap();
    let weight_map: BTreeMap<&str, &str> = names.names().into_iter().map(|name| (name, SHARD)).collect();
    let index = serde_json::json!({ "metadata": {}, "weight_map": weight_map });
    std::fs::write(base.join("model.safetensors.index.json"), index.to_string()).unwrap();
    std::fs::rename(base.join("model.safetensors"), base.join(SHARD)).unwrap();

    let parent = run(root.path(), FULL, "trained", 3, false);
    set_base(&parent, &base, "");
    assert_eq!(train(&parent, &AtomicBool::new(true)).unwrap().steps, 1);
    assert_eq!(train(&parent, &AtomicBool::new(false)).unwrap().outcome, Outcome::Completed);
    for folder in ["merged", "merged-mtp"] {
        assert!(parent.outputs().join(folder).join(SHARD).is_file(), "{folder}");
        assert!(parent.outputs().join(folder).join("model.safetensors.index.json").is_file(), "{folder}");
    }
    export(&parent, Weights::Best).unwrap();
    let request = GgufRequest { model: Some(GgufType::Bf16), adapter: false };
    export_gguf(&parent, Weights::Planned, request, &AtomicBool::new(false), &|_, _, _| ()).unwrap();
    let child = run(root.path(), LORA, "none", 1, false);
    set_base(&child, &parent.outputs().join("merged-mtp"), "");
    assert_eq!(train(&child, &AtomicBool::new(false)).unwrap().outcome, Outcome::Completed);
}

#[test]
fn an_export_is_made_again_from_the_checkpoint() {
    let root = tempfile::tempdir().unwrap();
    let run = run(root.path(), LORA, "trained", 6, false);
    train(&run, &AtomicBool::new(false)).unwrap();
    let files = ["merged/model.safetensors", "merged-mtp/model.safetensors", "draft-tokens.pt", "SERVE.md"];
    let before = files.map(|file| bytes(&run, file));
    std::fs::remove_dir_all(run.outputs()).unwrap();
    export(&run, Weights::Planned).unwrap();
    for (file, before) in files.iter().zip(before) {
        assert!(before == bytes(&run, file), "{file} differs");
    }
    // The last weights are the best here, so the head belongs to them.
    export(&run, Weights::Best).unwrap();
    for file in files {
        assert!(bytes(&run, file) == bytes(&run, &format!("best/{file}")), "best/{file} differs");
    }
    let stopped = export_run(&run, Weights::Best, &AtomicBool::new(true)).unwrap_err();
    assert_eq!(stopped.exit_code(), 130, "`resume` would not continue it: {stopped}");
    assert!(run.outputs().join("best/merged/model.safetensors").is_file(), "the earlier export is kept");

    let elsewhere = tempfile::tempdir().unwrap();
    std::fs::remove_dir_all(run.outputs()).unwrap();
    std::os::unix::fs::symlink(elsewhere.path(), run.outputs()).unwrap();
    let refused = export_run(&run, Weights::Planned, &AtomicBool::new(false)).unwrap_err().to_string();
    assert!(refused.contains("it is a link"), "{refused}");
    assert_eq!(std::fs::read_dir(elsewhere.path()).unwrap().count(), 0);
}
