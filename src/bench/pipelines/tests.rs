//! The pipelines on the demo's model and data, in this process.

use std::path::{Path, PathBuf};

use sparktune_data::{ChatTokenizer, EvalData, EvalSplit, MaskPolicy, PrepareOptions, prepare};
use sparktune_paper::{Arrangement, Pipeline, Training};
use sparktune_plan::Plan;

use super::job::{Job, Work};
use super::loader::Loader;
use super::rows::Layout;
use super::{lines, order, training};

struct NoProgress;

impl sparktune_data::Progress for NoProgress {
    fn step(&self, _: sparktune_data::Step) {}
}

fn demo() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../presets/demo")
}

/// A job on the demo's data, whose files are in `folder`.
fn job(folder: &Path) -> (Job, Plan) {
    let mut plan = crate::model::plan(&demo().join("model"), sparktune_plan::MethodKind::Lora, 512).unwrap();
    plan.optimizer.learning_rate = 2e-3;
    let policy = MaskPolicy::from(plan.data.think);
    let split = EvalSplit { fraction: 0.02, ..EvalSplit::default() };
    let options = PrepareOptions { policy, eval: EvalData::Split(split), ..PrepareOptions::default() };
    let tokenizer = ChatTokenizer::from_dir(&demo().join("model")).unwrap();
    let source = demo().join("train.jsonl");
    let prepared =
        prepare(&[source.as_path()], &tokenizer, &options, &folder.join("data"), &NoProgress).unwrap();
    let job = Job {
        work: Work::Lines,
        arrangement: Arrangement::Fair,
        pipeline: Pipeline::Jsonl,
        seed: 3,
        steps: 3,
        batch: 4,
        row_tokens: 512,
        drop: 0.2,
        plan: folder.join("plan.toml"),
        lines: folder.join("train.jsonl"),
        tokens: prepared.train,
        eval: prepared.eval,
        sources: vec![source],
    };
    lines::write(&job, &plan).unwrap();
    (job, plan)
}

fn trained(job: &Job, plan: &Plan, arrangement: Arrangement, pipeline: Pipeline) -> Training {
    let job = Job { arrangement, pipeline, ..job.clone() };
    training::measure(&job, plan.clone(), None, &mut |_| Ok(())).unwrap()
}

#[test]
fn json_lines_and_a_token_file_give_the_same_rows() {
    let folder = tempfile::tempdir().unwrap();
    let (job, plan) = job(folder.path());
    for arrangement in [Arrangement::Published, Arrangement::Fair] {
        let rows = |pipeline| {
            // The layout of one, the file of the other: only where the tokens come from differs.
            let layout = Job { arrangement, pipeline: Pipeline::JsonlPacked, ..job.clone() };
            let layout = Layout::of(&layout);
            let (loader, _) = Loader::open(&Job { arrangement, pipeline, ..job.clone() }, &plan).unwrap();
            let steps = order::steps(loader.len(), 7, 0.0, 4, 20);
            steps.iter().map(|step| layout.rows(&loader, step).unwrap()).collect::<Vec<_>>()
        };
        for (jsonl, qubgpu) in rows(Pipeline::JsonlPacked).iter().zip(&rows(Pipeline::Qubgpu)) {
            assert_eq!(jsonl.counts, qubgpu.counts);
            for (one, other) in jsonl.sequences.iter().zip(&qubgpu.sequences) {
                assert_eq!(one.input_ids[..], other.input_ids[..]);
                assert_eq!(one.cu_seqlens[..], other.cu_seqlens[..]);
                assert_eq!(one.loss_mask, other.loss_mask);
            }
        }
    }
}

#[test]
fn padding_is_counted_as_positions_and_never_as_tokens_or_targets() {
    let folder = tempfile::tempdir().unwrap();
    let (job, plan) = job(folder.path());
    let counts = |arrangement, pipeline| {
        let job = Job { arrangement, pipeline, ..job.clone() };
        let (loader, _) = Loader::open(&job, &plan).unwrap();
        Layout::of(&job).rows(&loader, &[0, 1, 2, 3]).unwrap().counts
    };
    let padded = counts(Arrangement::Fair, Pipeline::Jsonl);
    let packed = counts(Arrangement::Fair, Pipeline::Qubgpu);
    assert_eq!((padded.positions, packed.positions), (4 * 512, packed.tokens));
    assert_eq!((padded.tokens, padded.targets), (packed.tokens, packed.targets));
    let published = counts(Arrangement::Published, Pipeline::Qubgpu);
    assert_eq!((published.positions, published.tokens), (padded.positions, padded.tokens));
    // Every token but the first of each of the four examples is trained.
    assert_eq!(published.targets, published.tokens - 4);
    assert!(packed.targets < published.targets);
}

#[test]
fn the_packed_pipelines_have_the_same_losses_bit_for_bit_and_padding_changes_only_the_rounding() {
    let folder = tempfile::tempdir().unwrap();
    let (job, plan) = job(folder.path());
    let [padded, packed, qubgpu, dropped] =
        Pipeline::ALL.map(|pipeline| trained(&job, &plan, Arrangement::Fair, pipeline));
    let bits = |one: &Training| one.loss.iter().map(|loss| loss.unwrap().to_bits()).collect::<Vec<_>>();
    assert_eq!(bits(&packed), bits(&qubgpu));
    assert_eq!(packed.evaluations, qubgpu.evaluations);
    assert!(packed.order == qubgpu.order && padded.order == qubgpu.order && dropped.order != qubgpu.order);
    assert_eq!(padded.targets, qubgpu.targets);
    for (one, other) in padded.loss.iter().zip(&qubgpu.loss) {
        let (one, other) = (one.unwrap(), other.unwrap());
        assert!((one - other).abs() < 1e-4 * other, "{one} {other}");
    }
    assert!(qubgpu.evaluations.last().unwrap().loss < qubgpu.evaluations[0].loss, "{qubgpu:?}");
    assert!(qubgpu.wait_ms.iter().zip(&qubgpu.step_ms).all(|(wait, step)| wait < step));
}

#[test]
fn a_token_file_whose_examples_are_no_lines_is_refused_with_the_place() {
    let folder = tempfile::tempdir().unwrap();
    let (job, plan) = job(folder.path());
    let other = folder.path().join("other.jsonl");
    let text = std::fs::read_to_string(&job.sources[0]).unwrap();
    std::fs::write(&other, text.replacen("Sprocket", "Spocket", 40)).unwrap();
    let error = lines::write(&Job { sources: vec![other], ..job }, &plan).unwrap_err().to_string();
    assert!(error.contains("train.jsonl:") && error.contains("one example a line"), "{error}");
}
