//! A pairwise objective, which exists only here. It tests that a loss over groups of examples works in the
//! real loop: from a token file through packing, training, evaluation, checkpoints and resume to the outputs.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use burn::tensor::activation::log_sigmoid;
use burn::tensor::{Device, Tensor};
use sparktune_cluster::tcp::join;
use sparktune_cluster::{Launcher, Limits, Placement, free_port};
use sparktune_data::token_file::{Header, Origin, TokenFileWriter};
use sparktune_kernels::Weight;
use sparktune_kernels::linear_cross_entropy::{Targets, linear_cross_entropy};
use sparktune_model::{Checkpoint, LoraConfig};
use sparktune_plan::Plan;
use sparktune_runlog::{Checkpoints, Outcome, RunDir, RunView, RunsRoot};

use super::*;
use crate::batches::{Batches, NewOrder};
use crate::examples::Examples;
use crate::optimizer::Optimizer;
use crate::ranks::Ranks;
use crate::run::{Finished, train_for};
use crate::session::Session;
use crate::state::State;
use crate::steps::Steps;
use crate::{TrainError, TrainOptions, load};

/// `Σ -ln σ(β · (log p(chosen) - log p(rejected)))` over pairs of answers: DPO without a reference model.
/// Source: equation 7 of Rafailov et al. 2023 (arXiv 2305.18290).
struct Preference {
    beta: f64,
}

impl Preference {
    /// `scale · Σ losses` of the pairs in a sequence, `[1, 1]`, from its hidden states `[T, H]` and the
    /// output head `[V, H]`.
    fn loss(&self, sequence: &PackedSequence, hidden: &Tensor<2>, head: &Weight, scale: f64) -> Tensor<2> {
        let answers: Vec<Tensor<2>> = sequence
            .cu_seqlens
            .windows(2)
            .map(|border| {
                let trained = sequence.targets.rows.iter().zip(sequence.targets.tokens.iter());
                let (rows, tokens): (Vec<u32>, Vec<u32>) =
                    trained.filter(|(row, _)| (border[0]..border[1]).contains(row)).unzip();
                let targets = Targets { rows: rows.into(), tokens: tokens.into() };
                linear_cross_entropy(hidden.clone(), head.clone(), &targets, 1.0)
            })
            .collect();
        let losses = answers.chunks(2).map(|pair| {
            // Cross-entropies are negative log-probabilities.
            let margin = (pair[1].clone() - pair[0].clone()).mul_scalar(self.beta as f32);
            -log_sigmoid(margin)
        });
        losses.reduce(|sum, loss| sum + loss).expect("a sequence holds a pair").mul_scalar(scale as f32)
    }
}

impl Objective for Preference {
    type Trainee = TextModel;

    fn examples_per_group(&self) -> usize {
        2
    }

    fn loss_terms(&self, sequence: &PackedSequence) -> usize {
        (sequence.cu_seqlens.len() - 1) / 2
    }

    fn loss_and_gradients(
        &self,
        text: &TextModel,
        sequence: &PackedSequence,
        scale: f64,
        gradients: &mut Gradients,
    ) -> Loss {
        text.in_training().gradients_of(sequence, text.recompute, gradients, |hidden, head| {
            self.loss(sequence, &hidden, &head, scale)
        })
    }

    fn loss_sum(&self, text: &TextModel, sequence: &PackedSequence) -> Loss {
        text.model.loss_of(sequence, |hidden, head| self.loss(sequence, &hidden, &head, 1.0))
    }
}

const PREFERENCE: Preference = Preference { beta: 0.1 };
const PROMPT: usize = 3;

/// Returns an example of pair `pair`. Its first tokens identify it, so that the model can learn to
/// distinguish chosen from rejected answers.
fn example(pair: u32, is_chosen: bool) -> Vec<u32> {
    let length = 4 + (pair * 5 + u32::from(is_chosen) * 3) % 9;
    let answer = (0..length).map(|t| if is_chosen { 20 + t } else { 220 + t * 3 });
    [pair, 100 + u32::from(is_chosen), 7].into_iter().chain(answer).collect()
}

fn write_pairs(path: &Path, pairs: std::ops::Range<u32>) {
    let header = Header { tokenizer: None, template: None, policy: "test".into(), sources: Vec::new() };
    let mut writer = TokenFileWriter::create(path, header).unwrap();
    for (line, (pair, is_chosen)) in pairs.flat_map(|pair| [(pair, true), (pair, false)]).enumerate() {
        let ids = example(pair, is_chosen);
        let mask: Vec<bool> = (0..ids.len()).map(|t| t >= PROMPT).collect();
        writer.push(&ids, &mask, Origin { file: 0, line: line as u64 + 1 }).unwrap();
    }
    writer.finish().unwrap();
}

fn fixture() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/qwen35/checkpoint")
}

fn plan(method: &str, recompute: bool) -> String {
    format!(
        r#"
seed = 3
device = "cpu"
recompute = {recompute}
mtp = "default"
runs_dir = "runs"
model = {{ id = "fixture", path = "{}" }}
data = {{ train = ["x.jsonl"], eval_fraction = 0.1, format = "auto", think = "skip", max_example_tokens = 4096, max_rejected = 0.01, crc_drop = 0.0 }}
method = {method}
pack = {{ length = 64, mtp_length = 128, strategy = "stream" }}
batch = {{ micro_batch_packs = 1, grad_accum_steps = 2 }}
optimizer = {{ learning_rate = 5e-3, min_lr_ratio = 0.1, warmup_ratio = 0.1, beta1 = 0.9, beta2 = 0.95, eps = 1e-8, weight_decay = 0.01, clip_norm = 1.0 }}
duration = {{ epochs = 2, max_steps = 9 }}
checkpoint = {{ save_steps = 4, save_minutes = 60, keep = 2 }}
eval = {{ every_steps = 6, sample_count = 1, sample_max_tokens = 4 }}
"#,
        fixture().display()
    )
}

const LORA: &str = r#"{ kind = "lora", rank = 4, alpha = 8.0, rslora = false }"#;
const FULL: &str = r#"{ kind = "full" }"#;

/// Creates a run folder like the launcher's, with pairs.
fn run_of_pairs(root: &Path, method: &str, recompute: bool) -> RunDir {
    let run = RunsRoot::new(root).create("tiny", "test").unwrap();
    run.write_plan(&plan(method, recompute)).unwrap();
    fs::create_dir_all(run.data()).unwrap();
    write_pairs(&run.data().join("train.qubgpu"), 0..24);
    write_pairs(&run.data().join("eval.qubgpu"), 24..30);
    run
}

fn train(run: &RunDir, stop: bool) -> Finished {
    train_for(&PREFERENCE, run, &AtomicBool::new(stop), &TrainOptions::default(), Ranks::Alone).unwrap()
}

/// Returns a field of all events of a kind by their step, with the text of the event files.
fn recorded(run: &RunDir, kind: &str, field: &str) -> BTreeMap<u64, String> {
    let events = run.attempts().unwrap().into_iter().flat_map(|attempt| {
        let text = fs::read_to_string(run.event_file(attempt)).unwrap();
        let parse = |line: &str| serde_json::from_str::<serde_json::Value>(line).unwrap();
        text.lines().map(parse).collect::<Vec<_>>()
    });
    let of_kind = events.filter(|event| event["kind"] == kind);
    of_kind.map(|event| (event["step"].as_u64().unwrap(), event[field].to_string())).collect()
}

#[test]
fn a_pairwise_objective_learns_through_the_whole_loop() {
    let root = tempfile::tempdir().unwrap();
    for (method, recompute) in [(LORA, false), (FULL, true)] {
        let run = run_of_pairs(root.path(), method, recompute);
        let finished = train(&run, false);
        assert_eq!((finished.outcome, finished.steps), (Outcome::Completed, 9));
        let losses = recorded(&run, "step", "loss_nats");
        let losses: Vec<f64> = losses.values().map(|loss| loss.parse().unwrap()).collect();
        // A model without a preference has a loss of at least ln 2 per pair.
        assert!(losses[0] > 0.69 && losses[8] < 0.6 * losses[0], "{losses:?}");
        // Pairs that were never trained on are distinguished too.
        assert!(finished.eval_loss.unwrap() < 0.6 * losses[0], "{:?} of {losses:?}", finished.eval_loss);
        assert_eq!(recorded(&run, "eval", "loss_nats").keys().collect::<Vec<_>>(), [&0, &6, &9]);
        assert!(run.outputs().join("merged/model.safetensors").is_file());
    }
}

#[test]
fn a_pairwise_run_stopped_after_every_step_continues_bit_for_bit() {
    let root = tempfile::tempdir().unwrap();
    for method in [LORA, FULL] {
        let whole = run_of_pairs(root.path(), method, false);
        train(&whole, false);
        let parts = run_of_pairs(root.path(), method, false);
        for step in 1..=9 {
            let finished = train(&parts, true);
            assert_eq!((finished.outcome, finished.steps), (Outcome::Stopped, step), "one for each step");
        }
        assert_eq!(train(&parts, true).outcome, Outcome::Stopped, "the export hears a stop too");
        assert_eq!(train(&parts, false).outcome, Outcome::Completed);
        for (kind, field) in [("step", "loss_nats"), ("step", "grad_norm"), ("eval", "loss_nats")] {
            assert_eq!(recorded(&whole, kind, field), recorded(&parts, kind, field), "{kind} {field}");
        }
        let weights = |run: &RunDir| fs::read(run.outputs().join("merged/model.safetensors")).unwrap();
        assert!(weights(&whole) == weights(&parts));
    }
}

/// The same objective, except that the sequences with this property have no finite loss in training.
struct Poisoned<F>(F);

impl<F: Fn(&PackedSequence) -> bool> Objective for Poisoned<F> {
    type Trainee = TextModel;

    fn examples_per_group(&self) -> usize {
        PREFERENCE.examples_per_group()
    }

    fn loss_terms(&self, sequence: &PackedSequence) -> usize {
        PREFERENCE.loss_terms(sequence)
    }

    fn loss_and_gradients(
        &self,
        text: &TextModel,
        sequence: &PackedSequence,
        scale: f64,
        gradients: &mut Gradients,
    ) -> Loss {
        let scale = if (self.0)(sequence) { f64::NAN } else { scale };
        PREFERENCE.loss_and_gradients(text, sequence, scale, gradients)
    }

    fn loss_sum(&self, text: &TextModel, sequence: &PackedSequence) -> Loss {
        PREFERENCE.loss_sum(text, sequence)
    }
}

fn train_poisoned(
    run: &RunDir,
    stop: bool,
    is_poisoned: impl Fn(&PackedSequence) -> bool,
) -> Result<Finished, TrainError> {
    train_for(&Poisoned(is_poisoned), run, &AtomicBool::new(stop), &TrainOptions::default(), Ranks::Alone)
}

/// Returns a property that only the sequences of some calls have.
fn calls(poisoned: std::ops::Range<u32>) -> impl Fn(&PackedSequence) -> bool {
    let call = Cell::new(0);
    move |_| poisoned.contains(&call.replace(call.get() + 1))
}

fn warnings(run: &RunDir, words: &str) -> usize {
    let view = RunView::replay(run).unwrap();
    view.warnings.iter().filter(|warning| warning.what.message.contains(words)).count()
}

#[test]
fn a_step_without_a_finite_loss_is_skipped_and_a_resumed_run_skips_the_same() {
    let root = tempfile::tempdir().unwrap();
    let holds_pair_5 = |sequence: &PackedSequence| {
        sequence.cu_seqlens.windows(2).any(|border| sequence.input_ids[border[0] as usize] == 5)
    };
    let whole = run_of_pairs(root.path(), LORA, false);
    let finished = train_poisoned(&whole, false, holds_pair_5).unwrap();
    assert_eq!((finished.outcome, finished.steps), (Outcome::Completed, 9));
    let losses = recorded(&whole, "step", "loss_nats");
    let skipped = losses.values().filter(|loss| *loss == "null").count();
    assert!((1..=3).contains(&skipped), "pair 5 is in one step of each epoch: {losses:?}");
    assert_eq!(warnings(&whole, "so the step was skipped (1 of at most 3 in a row)"), skipped);

    let parts = run_of_pairs(root.path(), LORA, false);
    for step in 1..=9 {
        let finished = train_poisoned(&parts, true, holds_pair_5).unwrap();
        assert_eq!((finished.outcome, finished.steps), (Outcome::Stopped, step));
    }
    // The export hears a stop too, so the last attempt gets none.
    assert_eq!(train_poisoned(&parts, false, holds_pair_5).unwrap().outcome, Outcome::Completed);
    assert_eq!(recorded(&parts, "step", "loss_nats"), losses);
    let weights = |run: &RunDir| fs::read(run.outputs().join("merged/model.safetensors")).unwrap();
    assert!(weights(&whole) == weights(&parts));
}

#[test]
fn after_too_many_skipped_steps_a_run_returns_to_its_last_good_checkpoint_once() {
    let root = tempfile::tempdir().unwrap();
    let started_from = |run: &RunDir| {
        let text = fs::read_to_string(run.event_file(1)).unwrap();
        let events = text.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
        let started = events.filter(|event| event["kind"] == "run_started");
        started
            .map(|event| (event["resumed_from_step"].as_u64(), event["order_seed"].is_u64()))
            .collect::<Vec<_>>()
    };
    // With at most two sequences a step, the steps 6 to 9 are poisoned, and step 4 has a checkpoint.
    let run = run_of_pairs(root.path(), LORA, false);
    let finished = train_poisoned(&run, false, calls(10..18)).unwrap();
    assert_eq!((finished.outcome, finished.steps), (Outcome::Completed, 9));
    assert_eq!(started_from(&run), [(None, false), (Some(4), true)]);
    assert_eq!(warnings(&run, "returns to the checkpoint of step 4"), 1);
    assert!(run.checkpoints().join("later-step-000008").is_dir(), "it is set aside");

    let run = run_of_pairs(root.path(), LORA, false);
    let error = train_poisoned(&run, false, calls(10..10_000)).unwrap_err();
    assert!(matches!(error, TrainError::NotFinite { step: 8, .. }), "three more are skipped: {error}");
    assert_eq!(warnings(&run, "returns to the checkpoint"), 1, "it returns once");

    let run = run_of_pairs(root.path(), LORA, false);
    let error = train_poisoned(&run, false, calls(0..10_000)).unwrap_err();
    assert!(matches!(error, TrainError::NotFinite { step: 4, .. }), "there is no checkpoint yet: {error}");
    assert_eq!(warnings(&run, "returns to the checkpoint"), 0);
}

/// The same objective, whose sequences can lose all terms of their loss, or the loss its value.
struct Emptied<'a> {
    has_terms: &'a Cell<bool>,
    is_finite: bool,
}

impl Objective for Emptied<'_> {
    type Trainee = TextModel;

    fn examples_per_group(&self) -> usize {
        PREFERENCE.examples_per_group()
    }

    fn loss_terms(&self, sequence: &PackedSequence) -> usize {
        if self.has_terms.get() { PREFERENCE.loss_terms(sequence) } else { 0 }
    }

    fn loss_and_gradients(
        &self,
        text: &TextModel,
        sequence: &PackedSequence,
        scale: f64,
        gradients: &mut Gradients,
    ) -> Loss {
        let scale = if self.is_finite { scale } else { f64::NAN };
        PREFERENCE.loss_and_gradients(text, sequence, scale, gradients)
    }

    fn loss_sum(&self, text: &TextModel, sequence: &PackedSequence) -> Loss {
        PREFERENCE.loss_sum(text, sequence)
    }
}

#[test]
fn a_step_without_trained_tokens_counts_before_the_step_in_flight_is_settled_and_after() {
    let root = tempfile::tempdir().unwrap();
    let run = run_of_pairs(root.path(), LORA, false);
    let stop = AtomicBool::new(false);
    let mut session = Session::open(&run, &stop, None, Ranks::Alone).unwrap();
    let plan = session.plan.clone();
    let base = Checkpoint::open(&fixture()).unwrap();
    let model = load::text_model(&plan, &base, None, &Device::flex(), &mut |_, _| ()).unwrap();
    let mut text = TextModel { model, recompute: false, fp8: false, dropout: Dropout::OFF };
    for is_finite in [true, false] {
        let (mut state, mut optimizer) = (State::start(), Optimizer::default());
        let examples = Examples::open(&run.data().join("train.qubgpu"), 512, 2).unwrap();
        let batches = Batches::new(examples, &plan, 2.0, None).unwrap();
        let has_terms = Cell::new(true);
        let objective = Emptied { has_terms: &has_terms, is_finite };
        let mut steps =
            Steps::new(&objective, &mut text, &mut state, &mut optimizer, batches, plan.optimizer);
        steps.queue_next(&mut session).unwrap();
        assert!(steps.is_in_flight(), "as on a device that computes meanwhile");
        has_terms.set(false);
        steps.queue_next(&mut session).unwrap();
        assert_eq!((steps.state.step, steps.state.main_steps), (2, 2), "finite: {is_finite}");
    }
}

/// Replaces a part of a run's plan.
fn replan(run: &RunDir, part: &str, by: &str) {
    let plan = run.read_plan().unwrap();
    assert!(plan.contains(part), "{part}");
    fs::write(run.plan(), plan.replace(part, by)).unwrap();
}

#[test]
fn where_a_run_returns_to_follows_from_its_steps_and_not_from_when_it_was_saved() {
    let root = tempfile::tempdir().unwrap();
    let run = || {
        let run = run_of_pairs(root.path(), LORA, false);
        replan(&run, "save_steps = 4", "save_steps = 3");
        run
    };
    // All steps after the fifth are poisoned until the run returns.
    let train = |run: &RunDir| {
        let is_poisoned = |_: &PackedSequence| {
            recorded(run, "step", "loss_nats").len() >= 5 && warnings(run, "returns to the checkpoint") == 0
        };
        assert_eq!(train_poisoned(run, false, is_poisoned).unwrap().outcome, Outcome::Completed);
    };
    let whole = run();
    train(&whole);
    // This run has a checkpoint of every step up to 5, as if each had taken longer than `save_minutes`.
    let parts = run();
    for _ in 0..5 {
        train_poisoned(&parts, true, |_| false).unwrap();
    }
    train(&parts);
    for run in [&whole, &parts] {
        assert_eq!(warnings(run, "returns to the checkpoint of step 3"), 1);
    }
    assert_eq!(recorded(&whole, "step", "loss_nats"), recorded(&parts, "step", "loss_nats"));
    let weights = |run: &RunDir| fs::read(run.outputs().join("merged/model.safetensors")).unwrap();
    assert!(weights(&whole) == weights(&parts));
}

#[test]
fn ranks_that_exchange_rarely_count_skipped_steps_over_a_stop_as_without_one() {
    let root = tempfile::tempdir().unwrap();
    let train = |run: &RunDir, stop: bool| {
        let (ranks, options) = (Ranks::of(Some(2.into())), TrainOptions::default());
        train_for(&Poisoned(|_: &PackedSequence| true), run, &AtomicBool::new(stop), &options, ranks)
    };
    let run = || {
        let run = run_of_pairs(root.path(), LORA, false);
        replan(&run, "grad_accum_steps = 2", "grad_accum_steps = 2, sync = \"diloco:2\"");
        run
    };
    let parts = run();
    assert_eq!(train(&parts, true).unwrap().steps, 2);
    let checkpoint = Checkpoints::new(&parts).newest_valid().unwrap().checkpoint.unwrap();
    assert_eq!(State::read(&checkpoint.path).unwrap().skipped_of_ranks, [2, 2]);
    for run in [parts, run()] {
        let error = train(&run, false).unwrap_err();
        assert!(matches!(error, TrainError::NotFinite { step: 4, .. }), "{error}");
    }
}

#[test]
fn ranks_skip_steps_and_return_to_a_checkpoint_together_with_the_bits_of_one_process() {
    let root = tempfile::tempdir().unwrap();
    let run = || {
        let run = run_of_pairs(root.path(), LORA, false);
        replan(&run, "save_steps = 4", "save_steps = 3");
        run
    };
    // All steps after the fifth are poisoned until the run returns.
    let train = |run: &RunDir, ranks: Ranks| {
        let is_poisoned = |_: &PackedSequence| {
            let log = fs::read_to_string(run.event_file(1)).unwrap();
            recorded(run, "step", "loss_nats").len() >= 5 && !log.contains("order_seed")
        };
        let stop = AtomicBool::new(false);
        train_for(&Poisoned(is_poisoned), run, &stop, &TrainOptions::default(), ranks).unwrap()
    };
    let alone = run();
    assert_eq!(train(&alone, Ranks::of(Some(2.into()))).outcome, Outcome::Completed);

    let members = [run(), run()];
    let port = free_port().unwrap();
    std::thread::scope(|scope| {
        for (rank, run) in members.iter().enumerate() {
            let train = &train;
            scope.spawn(move || {
                let host = "127.0.0.1".to_owned();
                let launcher = Launcher::Torchrun;
                let placement = Placement { rank, world_size: 2, local_rank: rank, host, port, launcher };
                let mut tcp = join(&placement, None, "test", Limits::default(), Arc::new(|| false)).unwrap();
                assert_eq!(train(run, Ranks::member(&mut tcp)).outcome, Outcome::Completed);
            });
        }
    });
    assert_eq!(warnings(&members[0], "returns to the checkpoint of step 3"), 1);
    for (kind, field) in [("step", "loss_nats"), ("step", "grad_norm"), ("eval", "loss_nats")] {
        for member in &members {
            assert_eq!(recorded(&alone, kind, field), recorded(member, kind, field), "{kind} {field}");
        }
    }
    let weights = |run: &RunDir| fs::read(run.outputs().join("merged/model.safetensors"));
    assert!(weights(&alone).unwrap() == weights(&members[0]).unwrap());
    assert!(weights(&members[1]).is_err(), "only rank 0 writes outputs");
}

#[test]
fn a_run_that_returned_to_a_checkpoint_still_has_its_best_weights() {
    let root = tempfile::tempdir().unwrap();
    let run = run_of_pairs(root.path(), LORA, false);
    replan(&run, "every_steps = 6", "every_steps = 3");
    // Step 3 has the best weights until step 6, behind which the run returns to step 4.
    train_poisoned(&run, false, calls(10..10_000)).unwrap_err();
    assert_eq!(warnings(&run, "returns to the checkpoint of step 4"), 1);
    let mut checkpoints = Checkpoints::new(&run);
    let bests = checkpoints.steps().unwrap().into_iter().map(|step| {
        let path = checkpoints.verify(step).unwrap().path;
        State::read(&path).unwrap().best_step
    });
    let bests: BTreeSet<u64> = bests.flatten().collect();
    assert!(bests.contains(&3), "step 4 is kept, and its best is that of step 3: {bests:?}");
    for best in bests {
        checkpoints.verify(best).unwrap();
    }
}

#[test]
fn a_new_order_moves_only_what_follows_its_step_and_trains_every_pack_once() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("pairs.qubgpu");
    write_pairs(&path, 0..60);
    let plan = Plan::from_toml(&plan(FULL, false), "plan.toml").unwrap();
    let steps = |order: Option<NewOrder>| -> Vec<Vec<Vec<u32>>> {
        let examples = Examples::open(&path, 512, 2).unwrap();
        let mut batches = Batches::new(examples, &plan, 2.0, None).unwrap();
        order.into_iter().for_each(|order| batches.change_order(order));
        let ids = |sequence: &PackedSequence| sequence.input_ids.to_vec();
        let all = 0..batches.total_steps();
        all.map(|step| batches.step(step).unwrap().sequences.iter().map(ids).collect()).collect()
    };
    let usual = steps(None);
    let epoch = usual.len() / 2;
    let from_step = 3;
    let moved = steps(Some(NewOrder { from_step: from_step as u64, seed: 1 }));
    assert_eq!(moved[..from_step], usual[..from_step]);
    assert_ne!(moved[from_step..epoch], usual[from_step..epoch]);
    assert_eq!(moved[epoch + 1..], usual[epoch + 1..], "the next epoch is the same");
    let sorted = |steps: &[Vec<Vec<u32>>]| {
        let mut packs = steps.concat();
        packs.sort();
        packs
    };
    assert_eq!(sorted(&moved), sorted(&usual));
}

#[test]
fn a_part_of_an_epoch_has_its_first_steps_rounded_up() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("pairs.qubgpu");
    write_pairs(&path, 0..60);
    let plan = Plan::from_toml(&plan(FULL, false), "plan.toml").unwrap();
    let batches =
        |epochs: f64| Batches::new(Examples::open(&path, 512, 2).unwrap(), &plan, epochs, None).unwrap();
    let (mut two, mut more) = (batches(2.0), batches(1.3));
    let epoch = two.total_steps() / 2;
    let expected = (1.3 * epoch as f64 - 1e-9).ceil() as u64;
    assert!(epoch > 3 && expected < 2 * epoch, "{epoch}");
    assert_eq!((more.total_steps(), batches(0.001).total_steps()), (expected, 1));
    let last = expected - 1;
    let ids = |batches: &mut Batches| {
        batches.step(last).unwrap().sequences.iter().map(|packs| packs.input_ids.to_vec()).collect::<Vec<_>>()
    };
    assert_eq!(ids(&mut more), ids(&mut two), "the same data as in a longer run");
}

#[test]
fn packing_keeps_every_pair_together_and_in_order() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("pairs.qubgpu");
    write_pairs(&path, 0..24);
    // The plan asks for `stream`, which splits examples, but groups are packed whole.
    let plan = Plan::from_toml(&plan(FULL, false), "plan.toml").unwrap();
    for micro_batch_packs in [1, 2] {
        let mut plan = plan.clone();
        plan.batch.micro_batch_packs = micro_batch_packs;
        let examples = Examples::open(&path, 512, 2).unwrap();
        let mut batches = Batches::new(examples, &plan, 2.0, None).unwrap();
        let mut seen = BTreeMap::new();
        for step in 0..batches.total_steps() {
            for sequence in batches.step(step).unwrap().sequences {
                assert!(sequence.len() <= 64 * micro_batch_packs as usize, "packs are full at 64 tokens");
                let examples: Vec<&[u32]> = sequence
                    .cu_seqlens
                    .windows(2)
                    .map(|border| &sequence.input_ids[border[0] as usize..border[1] as usize])
                    .collect();
                assert_eq!(examples.len(), 2 * PREFERENCE.loss_terms(&sequence));
                for pair in examples.chunks(2) {
                    let number = pair[0][0];
                    assert_eq!(pair, [example(number, true), example(number, false)]);
                    *seen.entry(number).or_insert(0) += 1;
                }
            }
        }
        assert_eq!(seen, (0..24).map(|pair| (pair, 2)).collect(), "every pair once in each epoch");
    }
}

#[test]
fn a_file_that_ends_in_the_middle_of_a_pair_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("pairs.qubgpu");
    let header = Header { tokenizer: None, template: None, policy: "test".into(), sources: Vec::new() };
    let mut writer = TokenFileWriter::create(&path, header).unwrap();
    for line in 1..=3 {
        writer.push(&[1, 2], &[false, true], Origin { file: 0, line }).unwrap();
    }
    writer.finish().unwrap();
    assert!(Examples::open(&path, 512, 1).is_ok());
    let error = Examples::open(&path, 512, 2).map(drop).unwrap_err();
    assert!(matches!(&error, TrainError::DamagedTokens { .. }), "{error}");
    assert!(error.to_string().contains("its 3 examples are not a whole number of groups of 2"), "{error}");
}

/// Two pairs in one sequence: `-ln σ(m)` has the slope `-σ(-m)` along `m`, so the gradient is a sum of the
/// language-model objective's gradients of each answer alone.
#[test]
fn the_gradient_of_a_pairwise_loss_is_the_weighted_sum_of_those_of_its_answers() {
    let base = Checkpoint::open(&fixture()).unwrap();
    let model = Model::load(&base, &Device::flex(), &mut |_, _| ()).unwrap();
    let answers = [(3, true), (3, false), (8, true), (8, false)].map(|(pair, chosen)| example(pair, chosen));
    let borders: Vec<u32> = (0..=4).map(|n| answers[..n].iter().map(|ids| ids.len() as u32).sum()).collect();
    let mask = |ids: &Vec<u32>| (0..ids.len()).map(|t| t >= PROMPT).collect::<Vec<bool>>();
    let masks: Vec<bool> = answers.iter().flat_map(mask).collect();
    let packed = PackedSequence::new(&answers.concat(), &borders, &masks);
    let alone: Vec<PackedSequence> =
        answers.iter().map(|ids| PackedSequence::new(ids, &[0, ids.len() as u32], &mask(ids))).collect();

    for (lora, recompute) in [(true, false), (true, true), (false, false), (false, true)] {
        let mut model = model.clone();
        if lora {
            model.attach_lora(LoraConfig::new(4, 8.0), 1);
        } else {
            model.set_trainable(true);
        }
        let text = TextModel { model, recompute, fp8: false, dropout: Dropout::OFF };
        let mut expected = Gradients::default();
        let mut expected_loss = 0.0;
        for pair in alone.chunks(2) {
            let [chosen, rejected] = [&pair[0], &pair[1]].map(|answer| text.model.loss_sum(answer).nats());
            let margin = PREFERENCE.beta * (rejected - chosen);
            expected_loss += (-margin).exp().ln_1p();
            let slope = PREFERENCE.beta / (1.0 + margin.exp());
            NextToken.loss_and_gradients(&text, &pair[0], slope, &mut expected);
            NextToken.loss_and_gradients(&text, &pair[1], -slope, &mut expected);
        }
        let mut gradients = Gradients::default();
        let loss = PREFERENCE.loss_and_gradients(&text, &packed, 1.0, &mut gradients).nats();
        assert!((loss / expected_loss - 1.0).abs() < 1e-4, "{loss} for {expected_loss}");
        assert!((PREFERENCE.loss_sum(&text, &packed).nats() / loss - 1.0).abs() < 1e-5);
        let norm = |of: &Tensor<2>| f64::from(of.clone().square().sum().into_scalar::<f32>()).sqrt();
        let (mut distance, mut length) = (0.0, 0.0);
        for param in trained_parameters(&text.model) {
            let [found, wanted] = [&gradients, &expected].map(|all| all.get(param.name()).unwrap());
            distance += norm(&(found.clone() - wanted.clone())).powi(2);
            length += norm(wanted).powi(2);
        }
        let error = (distance / length).sqrt();
        assert!(length > 0.0 && error < 1e-3, "lora {lora}, recompute {recompute}: {error:e}");
    }
}
