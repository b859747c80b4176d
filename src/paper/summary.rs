//! The figures of one pipeline in one arrangement, computed from the measurements.

use serde::Serialize;

use crate::pipeline::{Arrangement, Pipeline};
use crate::results::{Loading, Quality, Results, Training};
use crate::spread::Spread;

/// Examples, tokens and positions in a second.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Rates {
    /// Examples.
    pub samples: f64,
    /// Tokens of examples.
    pub tokens: f64,
    /// Positions of rows, padding counted.
    pub positions: f64,
    /// What QubGPU counts as tokens of this pipeline.
    pub published: f64,
}

/// The answers of one model to a suite.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Score {
    /// The suite.
    pub suite: String,
    /// Answers that passed all checks, over all seeds.
    pub passed: u64,
    /// Answers that a check decided about.
    pub decided: u64,
    /// Tokens of answers in a second, one prompt at a time.
    pub tokens_per_s: f64,
    /// The mean time of an answer in seconds.
    pub answer_s: f64,
}

/// The figures of one pipeline in one arrangement. What was not measured is `None`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Summary {
    /// The arrangement.
    pub arrangement: Arrangement,
    /// The pipeline.
    pub pipeline: Pipeline,
    /// From nothing to the first batch: the median in milliseconds.
    pub load_ms: Option<f64>,
    /// The part of it that reads the tokenizer.
    pub tokenizer_ms: Option<f64>,
    /// The first pass over the data.
    pub cold: Option<Rates>,
    /// A later pass.
    pub warm: Option<Rates>,
    /// Positions that are trained in a second.
    pub positions_per_s: Option<Spread>,
    /// Tokens of examples that are trained in a second.
    pub tokens_per_s: Option<Spread>,
    /// Targets in a second.
    pub targets_per_s: Option<Spread>,
    /// What QubGPU counts as tokens of this pipeline, in a second.
    pub published_per_s: Option<Spread>,
    /// The time of all steps in seconds.
    pub wall_s: Option<Spread>,
    /// The share of it that waits for data.
    pub wait_share: Option<Spread>,
    /// The most memory of a training process.
    pub peak_bytes: Option<u64>,
    /// The loss of the last tenth of the steps.
    pub final_loss: Option<Spread>,
    /// The last loss on the eval set.
    pub held_out: Option<Spread>,
    /// Positions for each token of an example: 1 without padding.
    pub padding: Option<f64>,
    /// Its answers, by suite.
    pub scores: Vec<Score>,
}

/// Returns the figures of all pipelines that were measured in this arrangement.
pub fn summaries(results: &Results, arrangement: Arrangement) -> Vec<Summary> {
    let is_measured = |pipeline: &Pipeline| {
        let loads = |one: &Loading| one.arrangement == arrangement && one.pipeline == *pipeline;
        results.loading.iter().any(loads) || !results.trainings(arrangement, *pipeline).is_empty()
    };
    let pipelines = arrangement.pipelines().iter().copied();
    pipelines.filter(is_measured).map(|pipeline| Summary::of(results, arrangement, pipeline)).collect()
}

/// Returns the answers of the untuned base, by suite.
pub fn base_quality(results: &Results) -> Vec<Score> {
    scores(results, |quality| quality.trained.is_none())
}

/// Returns the number of tokens that QubGPU would count: those of examples for JSON Lines, and all positions
/// of a row, padding included, for a token file.
pub(crate) fn published_tokens(pipeline: Pipeline, tokens: u64, positions: u64) -> u64 {
    if pipeline.reads_tokens() { positions } else { tokens }
}

/// Returns the seconds of the steps that speeds are computed from: all but the first, in which memory is
/// allocated and kernels are compiled.
fn steady(training: &Training) -> (usize, f64) {
    let from = usize::from(training.step_ms.len() > 1);
    (from, training.step_ms[from..].iter().sum::<f64>() / 1e3)
}

/// Returns a count in a second, for each seed.
pub(crate) fn per_second(trainings: &[&Training], count: impl Fn(&Training) -> u64) -> Vec<f64> {
    trainings.iter().map(|training| count(training) as f64 / steady(training).1).collect()
}

/// Returns the sum of a column over the steps that speeds are computed from.
pub(crate) fn steady_sum(training: &Training, column: &[u64]) -> u64 {
    column[steady(training).0..].iter().sum()
}

/// Returns what QubGPU counts as tokens of a training.
pub(crate) fn published_sum(training: &Training) -> u64 {
    published_tokens(
        training.pipeline,
        steady_sum(training, &training.tokens),
        steady_sum(training, &training.positions),
    )
}

/// Returns the share of a training that waits for data.
pub(crate) fn wait_share(training: &Training) -> f64 {
    training.wait_ms.iter().sum::<f64>() / training.step_ms.iter().sum::<f64>()
}

fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied()
}

fn rates(loading: &Loading, ms: &[f64]) -> Option<Rates> {
    let per_second = |count: u64| median(ms).map(|ms| count as f64 * 1e3 / ms);
    Some(Rates {
        samples: per_second(loading.examples)?,
        tokens: per_second(loading.tokens)?,
        positions: per_second(loading.positions)?,
        published: per_second(published_tokens(loading.pipeline, loading.tokens, loading.positions))?,
    })
}

fn scores(results: &Results, is_one: impl Fn(&Quality) -> bool) -> Vec<Score> {
    let of_suite = |suite: &String| {
        let found: Vec<&Quality> =
            results.quality.iter().filter(|quality| quality.suite == *suite && is_one(quality)).collect();
        let sum = |count: fn(&Quality) -> u64| found.iter().map(|quality| count(quality)).sum::<u64>();
        let seconds = found.iter().map(|quality| quality.generating_ms).sum::<f64>() / 1e3;
        let answers = sum(|quality| quality.answers);
        (answers > 0 && seconds > 0.0).then(|| Score {
            suite: suite.clone(),
            passed: sum(|quality| quality.passed),
            decided: sum(|quality| quality.decided),
            tokens_per_s: sum(|quality| quality.tokens) as f64 / seconds,
            answer_s: seconds / answers as f64,
        })
    };
    results.settings.suites.iter().filter_map(of_suite).collect()
}

impl Summary {
    fn of(results: &Results, arrangement: Arrangement, pipeline: Pipeline) -> Self {
        let is_one = |one: &&Loading| one.arrangement == arrangement && one.pipeline == pipeline;
        let loading = results.loading.iter().find(is_one);
        let trainings = results.trainings(arrangement, pipeline);
        let spread = |count: &dyn Fn(&Training) -> u64| Spread::of(per_second(&trainings, count));
        let each = |value: fn(&Training) -> f64| Spread::of(trainings.iter().map(|one| value(one)));
        let losses = |loss: fn(&Training) -> Option<f64>| {
            let found: Option<Vec<f64>> = trainings.iter().map(|one| loss(one)).collect();
            found.and_then(Spread::of)
        };
        let total = |column: fn(&Training) -> &[u64]| {
            trainings.iter().flat_map(|one| column(one)).sum::<u64>() as f64
        };
        let tokens = total(|one| &one.tokens);
        Self {
            arrangement,
            pipeline,
            load_ms: loading.and_then(|one| median(&one.first_batch_ms)),
            tokenizer_ms: loading.and_then(|one| median(&one.tokenizer_ms)),
            cold: loading.and_then(|one| rates(one, &one.cold_ms)),
            warm: loading.and_then(|one| rates(one, &one.warm_ms)),
            positions_per_s: spread(&|one| steady_sum(one, &one.positions)),
            tokens_per_s: spread(&|one| steady_sum(one, &one.tokens)),
            targets_per_s: spread(&|one| steady_sum(one, &one.targets)),
            published_per_s: spread(&published_sum),
            wall_s: each(Training::wall_s),
            wait_share: each(wait_share),
            peak_bytes: trainings.iter().filter_map(|one| one.peak_bytes).max(),
            final_loss: losses(Training::final_loss),
            held_out: losses(Training::held_out),
            padding: (tokens > 0.0).then(|| total(|one| &one.positions) / tokens),
            scores: scores(results, |quality| {
                let is_it = |one: &crate::results::Trained| {
                    one.arrangement == arrangement && one.pipeline == pipeline
                };
                quality.trained.as_ref().is_some_and(is_it)
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::results;

    fn summary(arrangement: Arrangement, pipeline: Pipeline) -> Summary {
        summaries(&results(), arrangement).into_iter().find(|one| one.pipeline == pipeline).unwrap()
    }

    #[test]
    fn padded_real_and_target_tokens_are_counted_apart() {
        let padded = summary(Arrangement::Published, Pipeline::Qubgpu);
        let rate = |spread: Option<Spread>| spread.unwrap().mean;
        // 1,024 positions, 200 tokens and 100 targets a step, a step in 0.1 s.
        assert!((rate(padded.positions_per_s) - 10_240.0).abs() < 1e-6, "{padded:?}");
        assert!((rate(padded.tokens_per_s) - 2_000.0).abs() < 1e-6);
        assert!((rate(padded.targets_per_s) - 1_000.0).abs() < 1e-6);
        assert!((padded.padding.unwrap() - 5.12).abs() < 1e-9);
    }

    #[test]
    fn qubgpus_way_of_counting_counts_padding_for_one_side_only() {
        let jsonl = summary(Arrangement::Published, Pipeline::Jsonl);
        let qubgpu = summary(Arrangement::Published, Pipeline::Qubgpu);
        assert_eq!(jsonl.published_per_s, jsonl.tokens_per_s);
        assert_eq!(qubgpu.published_per_s, qubgpu.positions_per_s);
        let warm = (jsonl.warm.unwrap(), qubgpu.warm.unwrap());
        assert_eq!((warm.0.published, warm.1.published), (warm.0.tokens, warm.1.positions));
    }

    #[test]
    fn the_share_of_waiting_is_of_the_whole_step_and_answers_are_summed_over_seeds() {
        let jsonl = summary(Arrangement::Fair, Pipeline::Jsonl);
        assert!((jsonl.wait_share.unwrap().mean - 0.02).abs() < 1e-9, "{jsonl:?}");
        let score = &jsonl.scores[0];
        assert_eq!((score.suite.as_str(), score.passed, score.decided), ("coding", 6, 30));
        assert_eq!(base_quality(&results())[0].decided, 10);
    }

    #[test]
    fn what_was_not_measured_has_no_figures() {
        let mut results = results();
        results.loading.clear();
        results.training.retain(|one| one.pipeline != Pipeline::Jsonl);
        let found = summaries(&results, Arrangement::Fair);
        assert!(found.iter().all(|one| one.pipeline != Pipeline::Jsonl && one.load_ms.is_none()));
        assert!(summaries(&results, Arrangement::QubgpuSize).is_empty());
    }
}
