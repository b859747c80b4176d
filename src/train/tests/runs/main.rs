//! Tests of whole runs in this process: training, stopping, resuming, exporting.
#![expect(clippy::unwrap_used, reason = "clippy.toml allows it in unit tests only")]

mod damaged;
mod ending;
mod exports;
mod judged;
mod late;
#[cfg(feature = "cuda")]
mod on_device;
mod parents;
mod ranks;
mod rounded;
mod sums;
mod together;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use safetensors::SafeTensors;
use sparktune_data::token_file::{Header, Origin, TokenFileWriter};
use sparktune_runlog::{EventTailer, Kind, Limit, Outcome, RunDir, RunsRoot};
use sparktune_train::{
    Finished, TrainError, TrainOptions, Weights, begin_head_of_model, begin_head_run, export_run, train,
    train_with,
};

fn fixture() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/qwen35/checkpoint")
}

/// Copies the fixture, so that its files can be changed.
fn own_base(root: &Path) -> PathBuf {
    let base = root.join("base");
    std::fs::create_dir(&base).unwrap();
    for entry in std::fs::read_dir(fixture()).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), base.join(entry.file_name())).unwrap();
    }
    base
}

/// Gives a run another base than the fixture, and the settings in `more` of its model.
fn set_base(run: &RunDir, base: &Path, more: &str) {
    let plan = std::fs::read_to_string(run.plan()).unwrap();
    let path = |folder: &Path| format!("path = \"{}\"", folder.display());
    let other = plan.replace(&path(&fixture()), &format!("{}{more}", path(base)));
    assert_ne!(other, plan);
    std::fs::write(run.plan(), other).unwrap();
}

fn tokens(path: &Path, examples: u32, seed: u32, targets: bool) {
    let header =
        Header { tokenizer: Some("test".into()), template: None, policy: "test".into(), sources: Vec::new() };
    let mut writer = TokenFileWriter::create(path, header).unwrap();
    for example in 0..examples {
        let length = 8 + (example * 13 + seed) % 40;
        let ids: Vec<u32> = (0..length).map(|t| (example * 31 + t * t * 7 + seed) % 480).collect();
        let mask: Vec<bool> = (0..length).map(|t| targets && t >= 4).collect();
        writer.push(&ids, &mask, Origin { file: 0, line: u64::from(example) + 1 }).unwrap();
    }
    writer.finish().unwrap();
}

/// Returns the ids in a list that PyTorch can load: 32-bit integers (`J`) in the fourth of its five pickles.
fn draft_tokens(run: &RunDir) -> Vec<u32> {
    let bytes = bytes(run, "draft-tokens.pt");
    let list = bytes.windows(2).position(|two| two == b"](").unwrap() + 2;
    let numbers = bytes[list..].chunks_exact(5).take_while(|entry| entry[0] == b'J');
    numbers.map(|entry| u32::from_le_bytes(entry[1..].try_into().unwrap())).collect()
}

/// Creates a run folder like the launcher's, for the CPU.
fn run(root: &Path, method: &str, mtp: &str, steps: u64, recompute: bool) -> RunDir {
    run_on(CPU, root, method, mtp, steps, recompute)
}

const CPU: &str = r#"device = "cpu""#;

fn run_on(device: &str, root: &Path, method: &str, mtp: &str, steps: u64, recompute: bool) -> RunDir {
    let run = RunsRoot::new(root).create("tiny", "test").unwrap();
    let plan = format!(
        r#"
seed = 3
{device}
recompute = {recompute}
mtp = "{mtp}"
draft_vocab = 48
export = "best"
runs_dir = "runs"
model = {{ id = "fixture", path = "{}" }}
data = {{ train = ["x.jsonl"], eval_fraction = 0.1, format = "auto", think = "skip", max_example_tokens = 4096, max_rejected = 0.01, crc_drop = 0.0 }}
method = {method}
pack = {{ length = 64, mtp_length = 128, strategy = "bfd" }}
batch = {{ micro_batch_packs = 1, grad_accum_steps = 2 }}
optimizer = {{ learning_rate = 5e-3, min_lr_ratio = 0.1, warmup_ratio = 0.1, beta1 = 0.9, beta2 = 0.95, eps = 1e-8, weight_decay = 0.01, clip_norm = 1.0 }}
duration = {{ epochs = 2, max_steps = {steps} }}
head = {{ learning_rate = 2e-4, epochs = 1, draft_tokens = 3 }}
checkpoint = {{ save_steps = 5, save_minutes = 60, keep = 2 }}
eval = {{ every_steps = 6, sample_count = 1, sample_max_tokens = 4 }}
"#,
        fixture().display()
    );
    run.write_plan(&plan).unwrap();
    std::fs::create_dir_all(run.data()).unwrap();
    tokens(&run.data().join("train.qubgpu"), 40, 1, true);
    tokens(&run.data().join("eval.qubgpu"), 6, 2, true);
    run
}

const LORA: &str = r#"{ kind = "lora", rank = 4, alpha = 8.0, rslora = false }"#;
const FULL: &str = r#"{ kind = "full" }"#;

fn events(run: &RunDir) -> Vec<Kind> {
    let mut tailer = EventTailer::new(run);
    let limit = Limit { lines: 100_000, time: Duration::from_secs(600) };
    tailer.poll(limit).unwrap().records.into_iter().map(|record| record.event.kind).collect()
}

/// Returns losses with the text of the event file, so that no rounding hides a difference.
fn losses(run: &RunDir) -> Vec<(u64, String)> {
    let mut losses = std::collections::BTreeMap::new();
    for attempt in run.attempts().unwrap() {
        for line in std::fs::read_to_string(run.event_file(attempt)).unwrap().lines() {
            let event: serde_json::Value = serde_json::from_str(line).unwrap();
            if event["kind"] == "step" {
                losses.insert(event["step"].as_u64().unwrap(), event["loss_nats"].to_string());
            }
        }
    }
    losses.into_iter().collect()
}

fn export(run: &RunDir, weights: Weights) -> Result<Vec<PathBuf>, TrainError> {
    Ok(export_run(run, weights, &AtomicBool::new(false))?.paths)
}

/// Changes a byte in the middle of the weights of a checkpoint.
fn damage(run: &RunDir, step: u64) {
    let path = run.checkpoints().join(format!("step-{step:06}/weights.safetensors"));
    let mut content = std::fs::read(&path).unwrap();
    let middle = content.len() / 2;
    content[middle] ^= 1;
    std::fs::write(&path, content).unwrap();
}

/// Trains, and asks for a stop as soon as `is_time`.
fn train_until(run: &RunDir, is_time: impl Fn() -> bool + Sync) -> Finished {
    let (stop, ended) = (AtomicBool::new(false), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !ended.load(Ordering::SeqCst) && !is_time() {
                std::thread::sleep(Duration::from_millis(1));
            }
            stop.store(true, Ordering::SeqCst);
        });
        let finished = train(run, &stop);
        ended.store(true, Ordering::SeqCst);
        finished.unwrap()
    })
}

/// Makes runs and trains them, until one was stopped when `is_time`. On a busy machine, one may be over
/// before it is told to stop.
fn stopped_when(make: impl Fn() -> RunDir, is_time: impl Fn(&RunDir) -> bool + Sync) -> (RunDir, Finished) {
    for _ in 0..20 {
        let run = make();
        let finished = train_until(&run, || is_time(&run));
        if finished.outcome == Outcome::Stopped {
            return (run, finished);
        }
    }
    panic!("every run was over before it was told to stop");
}

/// Returns the number of steps of the head so far, in all attempts.
fn head_steps(run: &RunDir) -> usize {
    let is_step = |kind: &Kind| matches!(kind, Kind::Progress(progress) if progress.phase == "mtp");
    events(run).iter().filter(|kind| is_step(kind)).count()
}

fn warnings(run: &RunDir) -> Vec<String> {
    let message = |kind| match kind {
        Kind::Warning(warning) => Some(warning.message),
        _ => None,
    };
    events(run).into_iter().filter_map(message).collect()
}

/// Returns the names in `outputs/`, also those of unfinished folders.
fn outputs(run: &RunDir) -> Vec<String> {
    let names = std::fs::read_dir(run.outputs()).into_iter().flatten();
    let mut names: Vec<String> =
        names.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// Returns the bytes of an output. The page on serving names its run, which `RUN` stands for, and the weights
/// in its folder.
fn bytes(run: &RunDir, file: &str) -> Vec<u8> {
    let bytes = std::fs::read(run.outputs().join(file)).unwrap();
    if !file.ends_with("SERVE.md") {
        return bytes;
    }
    let page = String::from_utf8(bytes).unwrap().replace(&run.name(), "RUN");
    page.replace("export RUN --best", "export RUN").into_bytes()
}

#[test]
fn a_run_ends_with_falling_loss_and_all_its_outputs() {
    let root = tempfile::tempdir().unwrap();
    for (method, recompute) in [(LORA, false), (FULL, true)] {
        let run = run(root.path(), method, "trained", 12, recompute);
        let finished = train(&run, &AtomicBool::new(false)).unwrap();
        assert_eq!(finished.outcome, Outcome::Completed);
        assert_eq!(finished.steps, 12);
        let losses: Vec<f64> = losses(&run).iter().map(|(_, loss)| loss.parse().unwrap()).collect();
        assert_eq!(losses.len(), 12);
        assert!(losses[11] < losses[0] - 0.05, "{losses:?}");
        assert!(finished.eval_loss.unwrap().is_finite());
        for file in
            ["merged/model.safetensors", "merged-mtp/model.safetensors", "SERVE.md", "merged/tokenizer.json"]
        {
            assert!(run.outputs().join(file).is_file(), "{file}");
        }
        assert_eq!(run.outputs().join("adapter/adapter_config.json").exists(), method == LORA);
        let page = std::fs::read_to_string(run.outputs().join("SERVE.md")).unwrap();
        assert!(page.contains("equal to plain greedy decoding on these prompts: yes"), "{page}");
        assert!(page.contains("| drafted token | base's head | trained head | difference |"), "{page}");
        // Of a random model's text neither head knows much, so it is noise which one is better; all say the
        // same.
        let is_base_kept = page.contains("**The base's head is served**");
        let same = bytes(&run, "merged/model.safetensors") == bytes(&run, "merged-mtp/model.safetensors");
        assert_eq!(same, is_base_kept, "{page}");
        let which = if is_base_kept { "base's" } else { "trained" };
        assert!(page.contains(&format!("| {which} head, 48 tokens | estimated speed-up |")), "{page}");
        let ids = draft_tokens(&run);
        assert!(ids.len() == 48 && ids.is_sorted(), "{ids:?}");
        let details: Vec<String> = events(&run)
            .into_iter()
            .filter_map(|kind| match kind {
                Kind::Phase(phase) => phase.detail,
                _ => None,
            })
            .collect();
        let says = |start: &str, part: &str| details.iter().any(|d| d.starts_with(start) && d.contains(part));
        assert!(says("training the MTP head", "in packs of 128 tokens"), "{details:?}");
        assert!(says("base's MTP head: ", "drafting from 512 tokens"), "{details:?}");
        assert!(says("trained MTP head: ", "drafting from 512 tokens"), "{details:?}");
        assert!(says(&format!("{which} MTP head: "), "drafting from 48 tokens"), "{details:?}");
        let chosen = if is_base_kept { "is not better within noise" } else { "is better than the base's" };
        assert!(says("the trained MTP head ", chosen), "{details:?}");
        assert_eq!(std::fs::read_dir(run.tensorboard()).unwrap().count(), 1, "a file for TensorBoard");
        let samples = events(&run).into_iter().filter(|kind| matches!(kind, Kind::Sample(_))).count();
        assert_eq!(samples, 3, "the base's, and those of two evaluations");
    }
}

/// Describes every event of an attempt in a word or two, except those whose position depends on time: samples
/// of the machine, and checkpoints, which are committed while training continues.
fn story(run: &RunDir, attempt: usize) -> Vec<String> {
    let mut attempts: Vec<Vec<Kind>> = Vec::new();
    for kind in events(run) {
        if matches!(kind, Kind::RunStarted(_)) {
            attempts.push(Vec::new());
        }
        attempts.last_mut().unwrap().push(kind);
    }
    let in_words = |kind: &Kind| match kind {
        Kind::RunStarted(started) => Some(format!("start {:?}", started.resumed_from_step)),
        Kind::Phase(phase) => Some(phase.phase.clone()),
        Kind::Progress(progress) if progress.phase == "mtp" => Some(format!("head {}", progress.done)),
        Kind::Step(step) => Some(format!("step {}", step.step)),
        Kind::Eval(eval) => Some(format!("eval {}", eval.step)),
        Kind::HeadEval(eval) => Some(format!("head eval {}", eval.step)),
        Kind::Sample(sample) => Some(format!("sample {}", sample.step)),
        Kind::ControlApplied(applied) => Some(format!("{} {}", applied.action, applied.step)),
        Kind::RunFinished(finished) => Some(format!("{:?} {}", finished.outcome, finished.step)),
        _ => None,
    };
    attempts[attempt].iter().filter_map(in_words).collect()
}

#[test]
fn the_events_of_a_run_tell_its_story_in_order() {
    let root = tempfile::tempdir().unwrap();
    let run = run(root.path(), LORA, "trained", 3, false);
    let plan = std::fs::read_to_string(run.plan()).unwrap();
    std::fs::write(run.plan(), plan.replace("every_steps = 6", "every_steps = 2")).unwrap();
    train(&run, &AtomicBool::new(true)).unwrap();
    train(&run, &AtomicBool::new(false)).unwrap();
    assert_eq!(
        story(&run, 0),
        ["start None", "load", "train", "eval 0", "sample 0", "step 1", "stop 1", "Stopped 1"]
    );
    let text_model =
        ["start Some(1)", "load", "train", "step 2", "eval 2", "sample 2", "step 3", "eval 3", "sample 3"];
    // The text model, with the base's head, is written and measured before the head is trained.
    let merged = ["export"; 3];
    // With so few steps, the loss of each one is recorded in words.
    let head = ["mtp", "head eval 0", "mtp", "head 1", "head eval 1", "mtp", "head 2", "head eval 2"];
    let head = [&head[..], &["mtp", "head 3", "head eval 3"]].concat();
    let outputs = ["export"; 5];
    let expected = [&text_model[..], &merged, &head, &outputs, &["Completed 3"]].concat();
    assert_eq!(story(&run, 1), expected);
}

#[test]
fn the_head_of_an_old_plan_learns_one_token_in_one_epoch_and_is_evaluated_at_its_end() {
    let root = tempfile::tempdir().unwrap();
    let run = run(root.path(), LORA, "trained", 3, false);
    let plan = std::fs::read_to_string(run.plan()).unwrap();
    let old = plan.replace("head = { learning_rate = 2e-4, epochs = 1, draft_tokens = 3 }\n", "");
    assert_ne!(old, plan);
    std::fs::write(run.plan(), old).unwrap();
    train(&run, &AtomicBool::new(false)).unwrap();
    let of_head: Vec<String> = story(&run, 0).into_iter().filter(|word| word.starts_with("head")).collect();
    assert_eq!(of_head, ["head 1", "head 2", "head 3", "head eval 3"]);
    let drafted = events(&run).into_iter().find_map(|kind| match kind {
        Kind::HeadEval(eval) => Some(eval),
        _ => None,
    });
    let drafted = drafted.unwrap();
    assert_eq!(drafted.draft_nats, [drafted.loss_nats]);
}

#[test]
fn the_losses_of_each_drafted_token_are_recorded_and_the_best_head_is_kept() {
    let root = tempfile::tempdir().unwrap();
    let run = run(root.path(), LORA, "trained", 8, false);
    let plan = std::fs::read_to_string(run.plan()).unwrap();
    // With this learning rate the loss rises again.
    let plan =
        plan.replace("head = { learning_rate = 2e-4, epochs = 1", "head = { learning_rate = 0.2, epochs = 3");
    std::fs::write(run.plan(), plan.replace("keep = 2", "keep = 1")).unwrap();
    train(&run, &AtomicBool::new(false)).unwrap();
    let evals: Vec<_> = events(&run)
        .into_iter()
        .filter_map(|kind| match kind {
            Kind::HeadEval(eval) => Some(eval),
            _ => None,
        })
        .collect();
    assert_eq!(evals.iter().map(|eval| eval.step).collect::<Vec<_>>(), [0, 2, 4, 6, 8]);
    for eval in &evals {
        let [first, second, third] = eval.draft_nats[..] else { panic!("{eval:?}") };
        let mean = (first + 0.6 * second + 0.36 * third) / 1.96;
        assert!((eval.loss_nats / mean - 1.0).abs() < 1e-12, "{eval:?}");
    }
    let best = evals[1..].iter().min_by(|a, b| a.loss_nats.total_cmp(&b.loss_nats)).unwrap();
    assert!(best.step < 8, "the last head is not the best: {evals:?}");
    // Its checkpoint outlives others, and its head is measured: the same again from the checkpoints.
    let folders = std::fs::read_dir(run.checkpoints()).unwrap();
    let names: Vec<String> = folders.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    assert!(names.contains(&format!("step-{:06}", 8 + best.step)), "{names:?}");
    let page = bytes(&run, "SERVE.md");
    std::fs::remove_dir_all(run.outputs()).unwrap();
    export(&run, Weights::Planned).unwrap();
    assert!(page == bytes(&run, "SERVE.md"), "the export has another head");
}

#[test]
fn a_head_of_its_own_run_is_trained_like_that_of_the_whole_run() {
    let root = tempfile::tempdir().unwrap();
    let (whole, own) =
        (run(root.path(), LORA, "trained", 6, false), run(root.path(), LORA, "trained", 6, false));
    let empty = run(root.path(), LORA, "trained", 6, false);
    let refused = begin_head_run(&empty, &own).unwrap_err();
    assert!(refused.to_string().contains("is not finished") && refused.exit_code() == 2, "{refused}");
    train(&empty, &AtomicBool::new(true)).unwrap();
    assert!(begin_head_run(&empty, &own).unwrap_err().to_string().contains("sparktune resume"));
    train(&whole, &AtomicBool::new(false)).unwrap();
    begin_head_run(&whole, &own).unwrap();
    train(&own, &AtomicBool::new(false)).unwrap();
    let of_head = |run: &RunDir| {
        let words = story(run, 0).into_iter().skip_while(|word| word != "export").collect::<Vec<_>>();
        let losses = events(run).into_iter().filter_map(|kind| match kind {
            Kind::HeadEval(eval) => Some((eval.step, eval.loss_nats)),
            _ => None,
        });
        (words, losses.collect::<Vec<_>>())
    };
    assert_eq!(of_head(&own), of_head(&whole));
    assert!(story(&own, 0).iter().all(|word| !word.starts_with("step ")), "no step of the text model");
    for file in ["merged/model.safetensors", "merged-mtp/model.safetensors", "SERVE.md"] {
        assert!(bytes(&own, file) == bytes(&whole, file), "{file} differs");
    }
}

#[test]
fn a_run_of_the_head_alone_without_the_finished_text_model_is_refused_and_changes_nothing() {
    let root = tempfile::tempdir().unwrap();
    let run = run(root.path(), r#"{ kind = "head" }"#, "trained", 2, false);
    let plan = std::fs::read_to_string(run.plan()).unwrap();
    std::fs::write(run.plan(), plan.replace("draft_tokens = 3 }", "draft_tokens = 3, alone = true }"))
        .unwrap();
    let refused = |what: &str| {
        let error = train(&run, &AtomicBool::new(false)).unwrap_err();
        let message = error.to_string();
        assert!(matches!(error, TrainError::NoFinishedTextModel { .. }), "{message}");
        assert!(message.contains(what) && error.exit_code() == 2, "{message}");
    };
    refused("is missing");
    begin_head_of_model(&run).unwrap();
    let state = run.checkpoints().join("step-000000/state.json");
    let before = std::fs::read(&state).unwrap();
    std::fs::write(&state, "{}").unwrap();
    refused("damaged: ");
    std::fs::write(&state, before).unwrap();
    assert_eq!(train(&run, &AtomicBool::new(false)).unwrap().outcome, Outcome::Completed);
    assert!(losses(&run).is_empty(), "no step of the text model");
}

/// Writes the tensors of the fixture without those of the MTP head, in a file of the same name.
fn base_without_head(root: &Path) -> PathBuf {
    let base = own_base(root);
    let path = base.join("model.safetensors");
    let bytes = std::fs::read(&path).unwrap();
    let stored = SafeTensors::deserialize(&bytes).unwrap();
    let kept = stored.iter().filter(|(name, _)| !name.starts_with("mtp."));
    safetensors::serialize_to_file(kept, None, &path).unwrap();
    base
}

#[test]
fn a_run_with_the_head_of_a_model_whose_file_has_the_same_name_is_resumed_and_exported() {
    let root = tempfile::tempdir().unwrap();
    let base = base_without_head(root.path());
    let donor = format!(", mtp_path = \"{}\"", fixture().display());
    let run = run(root.path(), LORA, "trained", 3, false);
    set_base(&run, &base, &donor);
    assert_eq!(train(&run, &AtomicBool::new(true)).unwrap().steps, 1);
    assert_eq!(train(&run, &AtomicBool::new(false)).unwrap().outcome, Outcome::Completed);
    export(&run, Weights::Planned).unwrap();
    let index = String::from_utf8(bytes(&run, "merged/model.safetensors.index.json")).unwrap();
    assert!(index.contains("\"mtp.fc.weight\": \"model-00002-of-00002.safetensors\""), "{index}");

    // The head's file is still compared with the one that the run began with.
    let other = root.path().join("other");
    std::fs::create_dir(&other).unwrap();
    for file in ["config.json", "model.safetensors"] {
        std::fs::copy(base.join(file), other.join(file)).unwrap();
    }
    let mut donor = std::fs::read(fixture().join("model.safetensors")).unwrap();
    *donor.last_mut().unwrap() ^= 1;
    std::fs::write(other.join("model.safetensors"), donor).unwrap();
    let plan = std::fs::read_to_string(run.plan()).unwrap();
    let [from, to] = [&fixture(), &other].map(|folder| format!("mtp_path = \"{}\"", folder.display()));
    std::fs::write(run.plan(), plan.replace(&from, &to)).unwrap();
    let refused = export(&run, Weights::Planned).unwrap_err().to_string();
    assert!(refused.contains("model.safetensors has changed"), "{refused}");
}

#[test]
fn a_run_goes_on_and_is_exported_only_with_the_weights_that_it_began_with() {
    let root = tempfile::tempdir().unwrap();
    let run = run(root.path(), LORA, "none", 3, false);
    let base = own_base(root.path());
    set_base(&run, &base, "");
    assert_eq!(train(&run, &AtomicBool::new(true)).unwrap().steps, 1);

    let weights = base.join("model.safetensors");
    let before = std::fs::read(&weights).unwrap();
    let mut other = before.clone();
    *other.last_mut().unwrap() ^= 1;
    std::fs::write(&weights, other).unwrap();
    for error in
        [train(&run, &AtomicBool::new(false)).unwrap_err(), export(&run, Weights::Planned).unwrap_err()]
    {
        let message = error.to_string();
        assert!(message.contains("model.safetensors has changed"), "{message}");
        assert!(message.contains(base.to_str().unwrap()) && error.exit_code() == 2, "{message}");
    }

    std::fs::write(&weights, before).unwrap();
    // The configuration decides what the weights compute. A line break changes nothing but the bytes.
    let config = base.join("config.json");
    let before = std::fs::read(&config).unwrap();
    std::fs::write(&config, [&before[..], b"\n"].concat()).unwrap();
    let message = export(&run, Weights::Planned).unwrap_err().to_string();
    assert!(message.contains("config.json has") && message.contains("bytes instead of"), "{message}");

    std::fs::write(&config, before).unwrap();
    export(&run, Weights::Planned).unwrap();
    assert_eq!(train(&run, &AtomicBool::new(false)).unwrap().outcome, Outcome::Completed);
}

#[test]
fn recompute_changes_no_loss_beyond_rounding() {
    let root = tempfile::tempdir().unwrap();
    let curves: Vec<Vec<f64>> = [false, true]
        .into_iter()
        .map(|recompute| {
            let run = run(root.path(), FULL, "none", 3, recompute);
            train(&run, &AtomicBool::new(false)).unwrap();
            losses(&run).iter().map(|(_, loss)| loss.parse().unwrap()).collect()
        })
        .collect();
    for (a, b) in curves[0].iter().zip(&curves[1]) {
        assert!((a - b).abs() < 1e-4, "{a} and {b}");
    }
}

#[test]
fn a_run_stopped_after_every_step_continues_bit_for_bit() {
    let root = tempfile::tempdir().unwrap();
    for method in [LORA, FULL] {
        stops_change_nothing(CPU, root.path(), method, "trained", 4);
    }
}

/// Trains a run in one go and another that is stopped after every step, in the export and in the head's
/// stage, with checkpoints and evaluations in between, and compares them. Returns the one that was stopped.
fn stops_change_nothing(device: &str, root: &Path, method: &str, mtp: &str, steps: u64) -> RunDir {
    let run = || {
        let run = run_on(device, root, method, mtp, steps, false);
        let plan = std::fs::read_to_string(run.plan()).unwrap();
        let plan = plan.replace("save_steps = 5", "save_steps = 2");
        std::fs::write(run.plan(), plan.replace("every_steps = 6", "every_steps = 3")).unwrap();
        run
    };
    let (whole, parts) = (run(), run());
    train(&whole, &AtomicBool::new(false)).unwrap();
    // The stop is requested before the first step, so each attempt makes exactly one.
    for step in 1..=steps {
        let finished = train(&parts, &AtomicBool::new(true)).unwrap();
        assert_eq!((finished.outcome, finished.steps), (Outcome::Stopped, step));
    }
    // All steps are done. The export hears the stop as well and leaves nothing.
    assert_eq!(train(&parts, &AtomicBool::new(true)).unwrap().outcome, Outcome::Stopped);
    assert!(!outputs(&parts).iter().any(|name| name.contains("merged")), "{:?}", outputs(&parts));
    if mtp == "trained" {
        let mut before = 0;
        while train_until(&parts, || head_steps(&parts) > before).outcome != Outcome::Completed {
            assert!(head_steps(&parts) > before, "every attempt takes a step of the head");
            before = head_steps(&parts);
        }
    } else {
        assert_eq!(train(&parts, &AtomicBool::new(false)).unwrap().outcome, Outcome::Completed);
    }
    assert_eq!(losses(&whole), losses(&parts));
    let head: &[&str] =
        if mtp == "trained" { &["merged-mtp/model.safetensors", "draft-tokens.pt"] } else { &[] };
    for file in ["merged/model.safetensors", "SERVE.md"].iter().chain(head) {
        assert!(bytes(&whole, file) == bytes(&parts, file), "{file} differs");
    }
    parts
}

#[test]
fn a_run_that_memory_stopped_says_why_and_continues_bit_for_bit() {
    let root = tempfile::tempdir().unwrap();
    let whole = run(root.path(), LORA, "none", 4, false);
    train(&whole, &AtomicBool::new(false)).unwrap();
    let parts = run(root.path(), LORA, "none", 4, false);
    // No machine has enough memory to leave this reserve.
    let reserve = TrainOptions { reserve_bytes: Some(u64::MAX / 2), ..TrainOptions::default() };
    let out_of_memory = || train_with(&parts, &AtomicBool::new(false), &reserve).unwrap();
    let why = || match events(&parts).pop() {
        Some(Kind::RunFinished(finished)) => (finished.outcome, finished.reason.unwrap_or_default()),
        other => panic!("{other:?}"),
    };
    // Before the first step there is nothing to keep …
    assert_eq!((out_of_memory().outcome, out_of_memory().steps), (Outcome::Stopped, 0));
    assert!(why().1.contains("memory ran out") && why().1.contains("--recompute true"), "{:?}", why());
    assert_eq!(std::fs::read_dir(parts.checkpoints()).map_or(0, Iterator::count), 0);
    // … and in the middle of a later one, the steps before it are kept.
    assert_eq!(train(&parts, &AtomicBool::new(true)).unwrap().steps, 1);
    assert_eq!((out_of_memory().steps, why().0), (1, Outcome::Stopped));
    assert_eq!(train(&parts, &AtomicBool::new(false)).unwrap().outcome, Outcome::Completed);
    assert_eq!(losses(&whole), losses(&parts));
    assert!(bytes(&whole, "merged/model.safetensors") == bytes(&parts, "merged/model.safetensors"));
}

#[test]
fn a_damaged_checkpoint_is_named_and_the_one_before_is_used() {
    let root = tempfile::tempdir().unwrap();
    let hurt = run(root.path(), LORA, "none", 7, false);
    train(&hurt, &AtomicBool::new(false)).unwrap();
    let expected = bytes(&hurt, "merged/model.safetensors");
    damage(&hurt, 7);
    // An export says that it has other weights, and a head would be trained on them.
    let exported = export_run(&hurt, Weights::Planned, &AtomicBool::new(false)).unwrap();
    let said = "The checkpoint step-000007 is damaged: ";
    assert!(exported.notes.iter().any(|note| note.starts_with(said)), "{:?}", exported.notes);
    assert!(exported.notes.iter().any(|note| note.contains("of step 6")), "{:?}", exported.notes);
    assert!(String::from_utf8(bytes(&hurt, "SERVE.md")).unwrap().contains(said));
    let head = run(root.path(), LORA, "trained", 7, false);
    let refused = begin_head_run(&hurt, &head).unwrap_err().to_string();
    assert!(refused.contains("step-000007") && refused.contains("sparktune resume"), "{refused}");
    assert!(!head.checkpoints().exists() || std::fs::read_dir(head.checkpoints()).unwrap().count() == 0);

    std::fs::remove_dir_all(hurt.outputs()).unwrap();
    train(&hurt, &AtomicBool::new(false)).unwrap();
    assert!(bytes(&hurt, "merged/model.safetensors") == expected);
    let named = events(&hurt).into_iter().any(|kind| match kind {
        Kind::Warning(warning) => {
            warning.message.contains("step-000007") && warning.message.contains("damaged")
        }
        _ => false,
    });
    assert!(named, "the damaged checkpoint is named in a warning");
}

#[test]
fn data_without_targets_or_from_another_tokenizer_is_refused() {
    let root = tempfile::tempdir().unwrap();
    let run = run(root.path(), LORA, "none", 6, false);
    let path = run.data().join("train.qubgpu");
    tokens(&path, 10, 1, false);
    let error = train(&run, &AtomicBool::new(false)).unwrap_err();
    assert!(matches!(error, TrainError::NoTargets { .. }), "{error}");
    assert_eq!(error.exit_code(), 3);

    let header =
        Header { tokenizer: Some("x".into()), template: None, policy: "x".into(), sources: Vec::new() };
    let mut writer = TokenFileWriter::create(&path, header).unwrap();
    writer.push(&[1, 2, 600], &[false, true, true], Origin { file: 0, line: 1 }).unwrap();
    writer.finish().unwrap();
    let error = train(&run, &AtomicBool::new(false)).unwrap_err();
    assert!(matches!(error, TrainError::ForeignTokens { token: 600, .. }), "{error}");
    let last = events(&run).pop().unwrap();
    assert!(matches!(last, Kind::RunFinished(finished) if finished.outcome == Outcome::Failed));
}
