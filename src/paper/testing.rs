//! Results for tests, with figures that are easily computed by hand.

use crate::pipeline::{Arrangement, Pipeline};
use crate::results::{
    Data, Evaluation, Loading, Machine, Model, Quality, Results, Settings, Trained, Training, VERSION,
};
use crate::speeds::Speeds;

/// Rows of `bench loading` on a machine with a GPU, of which one could not be measured.
pub(crate) fn speeds() -> Speeds {
    let lines = [
        r#"{"what":"measured on","value":2.0,"unit":"cores","target":null,"met":null,"note":"2025-11-24, 2 cores"}"#,
        r#"{"what":"memory copy","value":12000.0,"unit":"MB/s","target":null,"met":null,"note":""}"#,
        r#"{"what":"  ratio to the memory copy","value":0.71,"unit":"×","target":{"at_least":0.8},"met":false,"note":""}"#,
        r#"{"what":"  the first time","value":2400.0,"unit":"MB/s","target":null,"met":null,"note":""}"#,
        r#"{"what":"version 1, read and checked","value":1080.0,"unit":"MB/s","target":{"at_least":1000.0},"met":true,"note":""}"#,
        r#"{"what":"  QubGPU's way","value":27.0,"unit":"MB/s","target":null,"met":null,"note":""}"#,
        r#"{"what":"to the device: pageable","value":10000.0,"unit":"MB/s","target":null,"met":null,"note":""}"#,
        r#"{"what":"  copies on the host","value":1.0,"unit":"","target":null,"met":null,"note":""}"#,
        r#"{"what":"to the device: pages of the file pinned in place","value":null,"unit":"MB/s","target":null,"met":null,"note":"skipped: refused"}"#,
        r#"{"what":"to the device: read in place by a kernel","value":20000.0,"unit":"MB/s","target":null,"met":null,"note":""}"#,
        r#"{"what":"  copies on the host","value":0.0,"unit":"","target":null,"met":null,"note":""}"#,
    ];
    Speeds::from_json(&format!("[{}]", lines.join(","))).expect("rows as the benchmark writes them")
}

/// Steps of each training.
const STEPS: u64 = 10;

/// Results of both arrangements with three seeds. A padded step takes 0.1 s and a packed one 0.02 s; JSON
/// Lines wait for 2 % of it and token files for 0.2 %.
pub(crate) fn results() -> Results {
    let arrangements = [Arrangement::Published, Arrangement::Fair];
    let cells = || {
        arrangements.into_iter().flat_map(|arrangement| {
            arrangement.pipelines().iter().map(move |pipeline| (arrangement, *pipeline))
        })
    };
    let training = cells()
        .flat_map(|(arrangement, pipeline)| (0..3).map(move |seed| training(arrangement, pipeline, seed)));
    let trained = cells().flat_map(|(arrangement, pipeline)| {
        (0..3).map(move |seed| Some(Trained { arrangement, pipeline, seed }))
    });
    Results {
        version: VERSION,
        created_us: 1_764_000_000_000_000,
        program: "sparktune 0.1.0".into(),
        command: "sparktune bench pipelines --demo --steps 10 --seeds 3".into(),
        machine: Machine {
            words: "2 cores of an x86_64 processor, 24 GB of memory, no GPU".into(),
            cores: 2,
            device: "cpu".into(),
        },
        model: Model { name: "demo".into(), method: "LoRA r=8".into() },
        data: Data {
            name: "demo".into(),
            examples: 288,
            tokens: 28_800,
            target_tokens: 14_400,
            eval_examples: 32,
            cut_examples: 0,
            jsonl_bytes: 150_000,
            token_file_bytes: 160_000,
            v1_bytes: 117_504,
        },
        settings: Settings {
            steps: STEPS,
            batch: 2,
            max_tokens: 512,
            drop: 0.05,
            seeds: vec![0, 1, 2],
            suites: vec!["coding".into()],
        },
        loading: cells().map(|(arrangement, pipeline)| loading(arrangement, pipeline)).collect(),
        training: training.collect(),
        quality: std::iter::once(None).chain(trained).map(quality).collect(),
        notes: vec!["No GPU was there.".into()],
    }
}

fn training(arrangement: Arrangement, pipeline: Pipeline, seed: u64) -> Training {
    let steps = STEPS as usize;
    let (positions, step_ms) = if pipeline.pads(arrangement) { (1024, 100.0) } else { (200, 20.0) };
    let wait = if pipeline.reads_tokens() { 0.002 } else { 0.02 };
    let shift = seed as f64 * 0.01 + if pipeline.drops() { 0.05 } else { 0.0 };
    let loss = |step: u64| 3.0 - step as f64 / STEPS as f64 + shift;
    Training {
        arrangement,
        pipeline,
        seed,
        order: format!("order of seed {seed}, dropped: {}", pipeline.drops()),
        loss: (0..STEPS).map(|step| Some(loss(step))).collect(),
        wait_ms: vec![wait * step_ms; steps],
        step_ms: vec![step_ms; steps],
        cpu_ms: vec![1.9 * step_ms; steps],
        positions: vec![positions; steps],
        tokens: vec![200; steps],
        targets: vec![100; steps],
        evaluations: [0, 5, 10].map(|step| Evaluation { step, loss: Some(loss(step)) }).into(),
        peak_bytes: Some(200 << 20),
        load_average: Some(1.5),
    }
}

fn loading(arrangement: Arrangement, pipeline: Pipeline) -> Loading {
    let factor = if pipeline.reads_tokens() { 1.0 } else { 40.0 };
    let positions = if pipeline.pads(arrangement) { 288 * 512 } else { 28_800 };
    Loading {
        arrangement,
        pipeline,
        examples: 288,
        tokens: 28_800,
        positions,
        first_batch_ms: [1.0, 1.1, 1.2].map(|ms| ms * factor).into(),
        tokenizer_ms: if pipeline.reads_tokens() { vec![0.0; 3] } else { vec![30.0; 3] },
        cold_ms: [2.0, 2.1, 2.2].map(|ms| ms * factor).into(),
        warm_ms: [1.0, 1.1, 1.2].map(|ms| ms * factor).into(),
        peak_bytes: Some(20 << 20),
        load_average: Some(1.0),
    }
}

fn quality(trained: Option<Trained>) -> Quality {
    Quality {
        trained,
        suite: "coding".into(),
        decided: 10,
        passed: if trained.is_some() { 2 } else { 1 },
        tokens: 1_000,
        answers: 10,
        generating_ms: 2_000.0,
        code_ran: false,
        load_average: None,
    }
}
