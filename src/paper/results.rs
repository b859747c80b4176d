//! The format of the results: what `sparktune bench pipelines` writes and everything else here reads.

use serde::{Deserialize, Serialize};

use crate::pipeline::{Arrangement, Pipeline};

/// The version of the format.
pub const VERSION: u32 = 1;

/// Everything that one benchmark has measured.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Results {
    /// The version of the format, [`VERSION`].
    pub version: u32,
    /// When the last measurement ended, in microseconds since the Unix epoch.
    pub created_us: u64,
    /// The program with its version.
    pub program: String,
    /// The command that repeats the measurements.
    pub command: String,
    /// Where it was measured.
    pub machine: Machine,
    /// What was trained.
    pub model: Model,
    /// What it was trained on.
    pub data: Data,
    /// How.
    pub settings: Settings,
    /// Loading alone.
    pub loading: Vec<Loading>,
    /// Training, one entry for each arrangement, pipeline and seed.
    pub training: Vec<Training>,
    /// The models' answers.
    pub quality: Vec<Quality>,
    /// What was left out and why, and what else a reader has to know, in sentences.
    pub notes: Vec<String>,
}

/// A machine in words, without names.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Machine {
    /// Such as `2 cores of an x86_64 processor, 24 GB of memory, no GPU`.
    pub words: String,
    /// The number of cores that the program could use.
    pub cores: u32,
    /// The device that trained, `cpu` or `cuda`.
    pub device: String,
}

/// A trained model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Model {
    /// Its id.
    pub name: String,
    /// How it was trained, such as `LoRA r=8`.
    pub method: String,
}

/// The training data.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Data {
    /// Its name.
    pub name: String,
    /// The number of training examples.
    pub examples: u64,
    /// Their tokens.
    pub tokens: u64,
    /// Those of them that are trained in the fair arrangement.
    pub target_tokens: u64,
    /// The number of examples of the eval set.
    pub eval_examples: u64,
    /// The number of examples with more tokens than a row, which all pipelines cut.
    pub cut_examples: u64,
    /// Bytes of the JSON Lines.
    pub jsonl_bytes: u64,
    /// Bytes of the token file.
    pub token_file_bytes: u64,
    /// Bytes of the same tokens as v1 packets, which have no mask.
    pub v1_bytes: u64,
}

/// How it was measured.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// Optimizer steps of each training.
    pub steps: u64,
    /// Examples of a step.
    pub batch: u64,
    /// Tokens of a row.
    pub max_tokens: u64,
    /// The share of the examples that `qubgpu+drop` leaves out.
    pub drop: f64,
    /// The seeds.
    pub seeds: Vec<u64>,
    /// The suites of prompts.
    pub suites: Vec<String>,
}

/// Loading of one pipeline without a model, in a process of its own.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Loading {
    /// The arrangement.
    pub arrangement: Arrangement,
    /// The pipeline.
    pub pipeline: Pipeline,
    /// Examples of a pass over the data.
    pub examples: u64,
    /// Their tokens, padding not counted.
    pub tokens: u64,
    /// Their positions in rows, padding counted.
    pub positions: u64,
    /// From nothing to the first batch, with the file not in the page cache, in milliseconds; one per round.
    pub first_batch_ms: Vec<f64>,
    /// The part of it that reads the tokenizer and the chat template.
    pub tokenizer_ms: Vec<f64>,
    /// From nothing to the end of a first pass over the data, in milliseconds; one per round.
    pub cold_ms: Vec<f64>,
    /// A later pass in the same process, in milliseconds; one per round.
    pub warm_ms: Vec<f64>,
    /// The most memory of the process in bytes.
    pub peak_bytes: Option<u64>,
    /// The system's mean number of running processes in the minute before the end; above the number of cores,
    /// other programs slowed it.
    pub load_average: Option<f64>,
}

/// One training, in a process of its own. Columns have one value per step.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Training {
    /// The arrangement.
    pub arrangement: Arrangement,
    /// The pipeline.
    pub pipeline: Pipeline,
    /// The seed of the order of examples and of the adapters' initial values.
    pub seed: u64,
    /// A hash of the examples in their order.
    pub order: String,
    /// Mean loss per target before each update, nats; null where it is not finite.
    pub loss: Vec<Option<f64>>,
    /// The time until the rows of a step are there, in milliseconds.
    pub wait_ms: Vec<f64>,
    /// The time of a step with that, in milliseconds.
    pub step_ms: Vec<f64>,
    /// The processor time of all threads during a step, in milliseconds.
    pub cpu_ms: Vec<f64>,
    /// Positions that the model computed, padding counted.
    pub positions: Vec<u64>,
    /// Tokens of examples.
    pub tokens: Vec<u64>,
    /// Trained tokens.
    pub targets: Vec<u64>,
    /// Losses on the eval set.
    pub evaluations: Vec<Evaluation>,
    /// The most memory of the process in bytes.
    pub peak_bytes: Option<u64>,
    /// As in [`Loading`].
    pub load_average: Option<f64>,
}

/// A loss on the eval set.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Evaluation {
    /// Steps before it.
    pub step: u64,
    /// Mean loss per target, nats; null if it is not finite.
    pub loss: Option<f64>,
}

/// Answers of one model to one suite, one prompt at a time.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Quality {
    /// What trained it; null for the untuned base.
    pub trained: Option<Trained>,
    /// The suite.
    pub suite: String,
    /// The number of answers that a check decided about.
    pub decided: u64,
    /// The number of those that passed all checks.
    pub passed: u64,
    /// Tokens of all answers.
    pub tokens: u64,
    /// The number of answers.
    pub answers: u64,
    /// The time of all answers, in milliseconds.
    pub generating_ms: f64,
    /// Whether code of answers was run for the checks that need it.
    pub code_ran: bool,
    /// As in [`Loading`].
    pub load_average: Option<f64>,
}

/// Which training a model comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Trained {
    /// The arrangement.
    pub arrangement: Arrangement,
    /// The pipeline.
    pub pipeline: Pipeline,
    /// The seed.
    pub seed: u64,
}

/// Why results cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ResultsError {
    /// It is not the JSON that the benchmark writes.
    #[error(
        "the results cannot be read: {0}. Give a file that `sparktune bench pipelines --output FILE` has written"
    )]
    Unreadable(#[from] serde_json::Error),
    /// It is not what the other benchmark writes.
    #[error(
        "the rows about loading cannot be read: {0}. Give a file that `sparktune bench loading --output FILE` has written"
    )]
    UnreadableSpeeds(#[source] serde_json::Error),
    /// It is no list of results of edits.
    #[error(
        "the results of edits cannot be read: {0}. Give a list of what `sparktune edit --measure --json` has printed, each with `created_us`, `machine` and `command`"
    )]
    UnreadableEdits(#[source] serde_json::Error),
    /// It was written by a newer program.
    #[error(
        "the results have version {0} of their format, and this program reads version {VERSION}. Use the program that wrote them, or measure again"
    )]
    Version(u32),
    /// It contradicts itself.
    #[error("the results contradict themselves: {0}. Measure again")]
    Contradiction(String),
}

impl Results {
    /// Reads results from JSON.
    ///
    /// # Errors
    /// It is not JSON of this format and version, or columns of a training differ in length.
    pub fn from_json(text: &str) -> Result<Self, ResultsError> {
        #[derive(Deserialize)]
        struct Version {
            version: u32,
        }
        let Version { version } = serde_json::from_str(text)?;
        if version != VERSION {
            return Err(ResultsError::Version(version));
        }
        let results: Self = serde_json::from_str(text)?;
        for training in &results.training {
            training.check()?;
        }
        Ok(results)
    }

    /// Returns the results as JSON: compact, with a line for each measurement.
    pub fn to_json(&self) -> String {
        let text = serde_json::to_string(self).expect("plain fields serialise");
        let mut lines = text.replace(r#"{"arrangement""#, "\n  {\"arrangement\"");
        lines = lines.replace(r#"{"trained""#, "\n  {\"trained\"");
        for field in ["machine", "model", "data", "settings", "loading", "training", "quality", "notes"] {
            lines = lines.replacen(&format!(",\"{field}\":"), &format!(",\n\"{field}\":"), 1);
        }
        lines + "\n"
    }

    /// Returns the trainings of a pipeline, in the order of their seeds.
    pub fn trainings(&self, arrangement: Arrangement, pipeline: Pipeline) -> Vec<&Training> {
        let is_one = |one: &&Training| one.arrangement == arrangement && one.pipeline == pipeline;
        let mut found: Vec<&Training> = self.training.iter().filter(is_one).collect();
        found.sort_by_key(|one| one.seed);
        found
    }
}

impl Training {
    fn check(&self) -> Result<(), ResultsError> {
        let steps = self.loss.len();
        let columns = [self.wait_ms.len(), self.step_ms.len(), self.cpu_ms.len()];
        let counts = [self.positions.len(), self.tokens.len(), self.targets.len()];
        if steps == 0 || columns.iter().chain(&counts).any(|length| *length != steps) {
            let Self { arrangement, pipeline, seed, .. } = self;
            return Err(ResultsError::Contradiction(format!(
                "the training {} {} with seed {seed} does not have one value per step in each column",
                arrangement.name(),
                pipeline.name()
            )));
        }
        Ok(())
    }

    /// Returns the time of all steps, in seconds, evaluations left out.
    pub fn wall_s(&self) -> f64 {
        self.step_ms.iter().sum::<f64>() / 1e3
    }

    /// Returns the mean loss per target of the last tenth of the steps, at least one. A single step has the
    /// noise of a few examples.
    pub fn final_loss(&self) -> Option<f64> {
        let last = self.loss.len().div_ceil(10);
        let from = self.loss.len() - last;
        let mut nats = 0.0;
        for (loss, targets) in self.loss.iter().zip(&self.targets).skip(from) {
            nats += (*loss)? * *targets as f64;
        }
        let targets: u64 = self.targets[from..].iter().sum();
        (targets > 0).then(|| nats / targets as f64)
    }

    /// Returns the last loss on the eval set.
    pub fn held_out(&self) -> Option<f64> {
        self.evaluations.last().and_then(|evaluation| evaluation.loss)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::results;

    #[test]
    fn results_are_read_as_they_were_written_bit_for_bit() {
        let mut written = results();
        written.training[0].loss[0] = Some(0.1 + 0.2);
        written.training[0].loss[1] = None;
        let text = written.to_json();
        assert_eq!(Results::from_json(&text).unwrap(), written);
        assert!(text.lines().count() > written.training.len(), "{text}");
    }

    #[test]
    fn other_json_other_versions_and_missing_values_are_refused_in_words() {
        let text = |results: &Results| results.to_json();
        let refused = |text: &str| Results::from_json(text).unwrap_err().to_string();
        assert!(refused("{}").contains("bench pipelines"));
        let mut newer = results();
        newer.version = 9;
        assert!(refused(&text(&newer)).contains("version 9"));
        let unknown = text(&results()).replacen("\"command\"", "\"other\":1,\"command\"", 1);
        assert!(refused(&unknown).contains("unknown field `other`"));
        let mut short = results();
        short.training[2].targets.pop();
        let message = refused(&text(&short));
        assert!(message.contains("one value per step"), "{message}");
    }

    #[test]
    fn the_final_loss_is_that_of_the_last_tenth_weighted_by_targets() {
        let mut training = results().training[0].clone();
        let steps = 20;
        training.loss = (0..steps).map(|step| Some(if step < 18 { 9.0 } else { step as f64 })).collect();
        training.targets = (0..steps).map(|step| if step == 19 { 3 } else { 1 }).collect();
        assert_eq!(training.final_loss(), Some((18.0 + 3.0 * 19.0) / 4.0));
        training.loss[19] = None;
        assert_eq!(training.final_loss(), None);
    }
}
