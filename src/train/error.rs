//! The errors that end a run. Each message says what happened, where, and what to do.

use std::path::PathBuf;

use sparktune_base::program_name;
use sparktune_data::DataError;
use sparktune_data::packing::PackingError;
use sparktune_data::token_file::TokenFileError;
use sparktune_model::ModelError;

/// The reasons why the trainer failed.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the message of each variant says what it is")]
pub enum TrainError {
    #[error(transparent)]
    Run(#[from] sparktune_runlog::Error),
    #[error(transparent)]
    Model(#[from] ModelError),
    #[error(transparent)]
    Tokens(#[from] TokenFileError),
    #[error(transparent)]
    Packing(#[from] PackingError),
    #[error(transparent)]
    Data(#[from] DataError),
    #[error("plan.toml of this run cannot be read: {0}. Start a new run with `{program} train`", program = program_name())]
    Plan(String),
    #[error("the plan contains no model folder. Start a new run with `{program} train`", program = program_name())]
    NoModelFolder,
    #[error(
        "{path}: no token is trained, so there is nothing to learn. Check that the data has assistant turns, and check --think"
    )]
    NoTargets { path: PathBuf },
    #[error("{path}: the epochs have no example. Raise --weight or --epochs, or lower --crc-drop")]
    NothingInEpochs { path: PathBuf },
    #[error(
        "{path}: contains the token {token}, but the model's vocabulary ends at {vocabulary}. The token file was made with another tokenizer: delete it and train again"
    )]
    ForeignTokens { path: PathBuf, token: u32, vocabulary: usize },
    #[error(
        "{path}: {defect}. Put an undamaged copy back, or start a new run, which tokenises the data again"
    )]
    DamagedTokens { path: PathBuf, defect: String },
    #[error(
        "the {what} became {value} at step {step}. Start a new run with a lower --learning-rate, or check the examples of this step; `{program} export` exports the last checkpoint",
        program = program_name()
    )]
    NotFinite { what: &'static str, value: f64, step: u64 },
    #[error(
        "{count} trainable parameter(s) received no gradient at step {step}, the first of them `{first}`, and would silently stay untrained. This is a bug in sparktune; please report it"
    )]
    NoGradient { first: String, count: usize, step: u64 },
    #[error(
        "the checkpoint {path} does not fit this run: {reason}. Delete this folder to continue from an older checkpoint"
    )]
    ForeignCheckpoint { path: PathBuf, reason: String },
    #[error(
        "{path} is not what this run started with: {reason}. Restore the original file; or start a new run with `{program} train`; or, if the change is meant, continue with `{program} resume --accept-changes`",
        program = program_name()
    )]
    OtherInputs { path: PathBuf, reason: String },
    #[error(
        "{path}: cuBLASLt has computed matrix products of this run, but {reason}. Only the same version on the same GPU, with that record, gives the bits of a run that was not interrupted. Continue so; or with sparktune's own kernels, whose results are as exact: `{program} resume --accept-changes`",
        program = program_name()
    )]
    OtherProducts { path: PathBuf, reason: String },
    #[error(
        "{reason}. Only the same sums give the bits of a run that was not interrupted. Sum as before, by ranks with the same SPARKTUNE_CLUSTER_ENGINE at rank 0; or, if the change is meant, continue with `{program} resume --accept-changes` at rank 0",
        program = program_name()
    )]
    OtherSums { reason: String },
    #[error(
        "{path} is not what this run was trained with: {reason}. Restore the original file; with another one, the outputs would not be the model that was trained"
    )]
    OtherInputsThanTrained { path: PathBuf, reason: String },
    #[error(
        "the model in {path} is not the one that {parent} was trained on: {reason}. Start from the same model, in the same revision, or start from the merged model of {parent} with --model instead of --from"
    )]
    OtherBaseThanParent { path: PathBuf, parent: String, reason: String },
    #[error("no checkpoint of this run was evaluated, so there is no best one. Export without --best")]
    NoBest,
    #[error(
        "the text model of {run} is not finished, so no MTP head can be trained for it yet. Continue the run with `{program} resume`",
        program = program_name()
    )]
    UnfinishedTextModel { run: String },
    #[error(
        "{path}: {damage}. It is the newest checkpoint of {run}, and an older one may have a text model that was trained less. Restore this folder, or train again from the older one: `{program} resume {run}`",
        program = program_name()
    )]
    DamagedNewest { run: String, path: PathBuf, damage: String },
    #[error(
        "{run} trains only its MTP head, and its checkpoint with the finished text model is {reason}. Restore it, or start again with `{program} head`; without it, this run would train a text model",
        program = program_name()
    )]
    NoFinishedTextModel { run: String, reason: String },
    #[error(
        "{run} has trained {done} steps already, and what is asked for are {steps}. Give more with --epochs or --max-steps; both count from the beginning of the run"
    )]
    NotLonger { run: String, done: u64, steps: u64 },
    #[error(
        "{run} has no checkpoint of its text model's training any more, only of its MTP head's. Train on in a new run: `{program} train --from {run}`",
        program = program_name()
    )]
    NoTextModelCheckpoint { run: String },
    #[error(
        "{run} trains only its MTP head, and from the beginning. Train it longer in a new run: `{program} head … --mtp-epochs N`",
        program = program_name()
    )]
    HeadHasNoLength { run: String },
    #[error(
        "{path} has no MTP head to train: its config.json declares one, but the weights contain none. Take it with --mtp-from from the model that this one was trained from"
    )]
    NoHead { path: PathBuf },
    #[error("this run has no adapter. Export the model with --gguf")]
    NoAdapter,
    #[error("the run has no usable checkpoint to export. Run `{program} resume` first", program = program_name())]
    NothingToExport,
    #[error(
        "the device `cuda` was requested, but {0}. Use --device cpu, or a build with CUDA on a machine with an NVIDIA driver"
    )]
    NoDevice(String),
    #[error(
        "training is not exact on {on} ({failed}), so the run was not started. Run `{program} doctor`: if it fails too, send the output of `{program} doctor --json` to the developers. A new run with --device cpu does not need this device",
        program = program_name()
    )]
    Inexact { on: String, failed: String },
    #[error(transparent)]
    Cluster(#[from] sparktune_cluster::Error),
    #[error(
        "the ranks do not compute the same: {what}. Only the same program on sound processors and devices of the same kind computes the same bits"
    )]
    RanksDiffer { what: String },
    #[error("{what}. Details are in {details}")]
    Device { what: String, details: PathBuf },
    #[error("{path}: {source}. Check the run folder's permissions and the free space, then run `{program} resume`", program = program_name())]
    Io { path: PathBuf, source: std::io::Error },
}

impl TrainError {
    /// Returns the process's exit code: 2 usage, 3 data, 4 device, memory or disk, 70 a bug in this
    /// program, 130 an export that was interrupted, which `resume` does not continue.
    pub fn exit_code(&self) -> i32 {
        match self {
            Self::NoTargets { .. }
            | Self::NothingInEpochs { .. }
            | Self::DamagedTokens { .. }
            | Self::ForeignTokens { .. }
            | Self::Tokens(_) => 3,
            Self::NoGradient { .. } => 70,
            Self::Model(ModelError::Stopped) => 130,
            Self::Run(sparktune_runlog::Error::NoSuchCheckpoint { .. })
            | Self::Plan(_)
            | Self::NoModelFolder
            | Self::NothingToExport
            | Self::NoBest
            | Self::OtherInputs { .. }
            | Self::OtherProducts { .. }
            | Self::OtherSums { .. }
            | Self::OtherInputsThanTrained { .. }
            | Self::OtherBaseThanParent { .. }
            | Self::UnfinishedTextModel { .. }
            | Self::NoFinishedTextModel { .. }
            | Self::NotLonger { .. }
            | Self::NoTextModelCheckpoint { .. }
            | Self::HeadHasNoLength { .. }
            | Self::NoHead { .. }
            | Self::NoAdapter
            | Self::Model(ModelError::Adapter { .. } | ModelError::Gguf { .. }) => 2,
            _ => 4,
        }
    }

    /// Returns whether the training itself failed, which it would do again, and not a file or the machine.
    pub(crate) fn is_of_training(&self) -> bool {
        matches!(self, Self::NotFinite { .. } | Self::NoGradient { .. })
    }

    /// Returns a number that must be finite, or an error if it is not.
    pub(crate) fn require_finite(what: &'static str, value: f64, step: u64) -> Result<f64, Self> {
        if value.is_finite() { Ok(value) } else { Err(Self::NotFinite { what, value, step }) }
    }

    pub(crate) fn io(path: impl Into<PathBuf>) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.into();
        move |source| Self::Io { path, source }
    }
}
