//! Loading without a model: rows are made as for training, and thrown away.

use std::hint::black_box;
use std::time::{Duration, Instant};

use sparktune_paper::Loading;
use sparktune_plan::Plan;

use super::job::Job;
use super::kept::load_average;
use super::loader::{Loader, milliseconds};
use super::order;
use super::rows::{Counts, Layout};
use crate::error::BenchError;

/// A pass over a small file is too short to be timed; it is repeated for this long.
const LEAST: Duration = Duration::from_millis(100);

/// Measures a first and further passes over the data, as often as there are rounds.
///
/// # Errors
/// The data cannot be read.
pub(crate) fn measure(job: &Job, plan: &Plan, rounds: u64) -> Result<Loading, BenchError> {
    let layout = Layout::of(job);
    let mut loading = Loading {
        arrangement: job.arrangement,
        pipeline: job.pipeline,
        examples: 0,
        tokens: 0,
        positions: 0,
        first_batch_ms: Vec::new(),
        tokenizer_ms: Vec::new(),
        cold_ms: Vec::new(),
        warm_ms: Vec::new(),
        peak_bytes: None,
        load_average: None,
    };
    for _ in 0..rounds {
        Loader::forget(job);
        let began = Instant::now();
        let (loader, tokenizer_ms) = Loader::open(job, plan)?;
        // A pass is one epoch: what is dropped is not read, and nothing is read twice.
        let kept = kept_of_an_epoch(loader.len(), job);
        let epoch = order::steps(loader.len(), job.seed, job.dropped_share(), kept, 1).concat();
        let steps: Vec<&[u32]> = epoch.chunks(job.batch.max(1) as usize).collect();
        let mut sum = Counts::default();
        let mut first_batch_ms = None;
        for step in &steps {
            let rows = black_box(layout.rows(&loader, step)?);
            first_batch_ms.get_or_insert_with(|| milliseconds(began));
            sum.tokens += rows.counts.tokens;
            sum.positions += rows.counts.positions;
        }
        loading.cold_ms.push(milliseconds(began));
        loading.first_batch_ms.extend(first_batch_ms);
        loading.tokenizer_ms.push(tokenizer_ms);
        loading.examples = steps.iter().map(|step| step.len() as u64).sum();
        (loading.tokens, loading.positions) = (sum.tokens, sum.positions);

        let began = Instant::now();
        let mut passes = 0;
        while began.elapsed() < LEAST || passes == 0 {
            for step in &steps {
                black_box(layout.rows(&loader, step)?);
            }
            passes += 1;
        }
        loading.warm_ms.push(milliseconds(began) / f64::from(passes));
    }
    loading.peak_bytes = sparktune_telemetry::peak_rss_bytes();
    loading.load_average = load_average();
    Ok(loading)
}

/// Returns the number of examples that the first epoch keeps.
fn kept_of_an_epoch(examples: usize, job: &Job) -> usize {
    let dropped = sparktune_data::packing::dropped(job.dropped_share(), job.seed, 0);
    (0..examples as u32).filter(|example| !dropped(*example)).count()
}
