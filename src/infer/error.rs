//! Errors of decoding. Each message says what is wrong, where, and what to do.

use std::path::PathBuf;

use sparktune_base::units::bytes;
use sparktune_data::{DataError, Rejection};
use sparktune_model::ModelError;
use sparktune_plan::PlanError;
use sparktune_sampling::Invalid;

/// The reasons why a model cannot be loaded or a prompt cannot be continued.
#[derive(Debug, thiserror::Error)]
pub enum InferError {
    /// The folder is none of the kinds that can be loaded.
    #[error(
        "{0}: neither a model (config.json) nor a run (plan.toml) nor an adapter (adapter_config.json). Name the folder of one of them"
    )]
    NoModel(PathBuf),
    /// A run has no weights yet.
    #[error("{0}: the run has no exported weights yet. Wait for its end, or export it with `export`")]
    NotExported(PathBuf),
    /// The base of an adapter or a run is not where it was.
    #[error("{path}: {reason}. Name the folder of its base model with --base")]
    NoBase {
        /// The folder of the adapter or the run.
        path: PathBuf,
        /// What is known of the base.
        reason: String,
    },
    /// The weights, the tokenizer or the config cannot be used.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// The tokenizer or the chat template cannot be used.
    #[error(transparent)]
    Data(#[from] DataError),
    /// The file of corrections next to the weights is damaged.
    #[error(transparent)]
    Packets(#[from] sparktune_data::packets::PacketError),
    /// The file of corrections next to the weights does not belong to them.
    #[error("{}: {what}. Make the folder again from its base with `edit apply`", path.display())]
    Codebook {
        /// The file.
        path: PathBuf,
        /// What does not fit.
        what: String,
    },
    /// The plan of a run cannot be read.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The folder of a run cannot be read.
    #[error(transparent)]
    Run(#[from] sparktune_runlog::Error),
    /// A parameter is outside its range.
    #[error(transparent)]
    Sampling(#[from] Invalid),
    /// The model needs more memory than there is.
    #[error(
        "the model needs {} for its weights and {} to answer with {least_tokens} tokens, but of the {} that are available {} must stay free for the system{beside}. End other programs, or choose a smaller model",
        bytes(*.weights),
        bytes(*.working),
        bytes(*.available),
        bytes(*.reserve)
    )]
    NoRoom {
        /// Bytes of its weights.
        weights: u64,
        /// Bytes to answer one short prompt.
        working: u64,
        /// The number of tokens of that.
        least_tokens: usize,
        /// Available bytes.
        available: u64,
        /// Bytes that stay free.
        reserve: u64,
        /// What else uses the memory, in words; may be empty.
        beside: String,
    },
    /// The adapter needs more memory than the model and its answers leave.
    #[error(
        "the adapter needs {}, and {} are left beside the model, its other adapters and their answers. Wait for the end of other answers, free memory and start again, or merge the adapter",
        bytes(*.needed),
        bytes(*.left)
    )]
    NoRoomForAdapter {
        /// Its bytes.
        needed: u64,
        /// The bytes that are left.
        left: u64,
    },
    /// The messages are not in OpenAI's form, or the template or the tokenizer refuses the prompt.
    #[error("{0}")]
    Prompt(Rejection),
    /// The prompt is empty.
    #[error("the prompt has no tokens. Give at least one character")]
    EmptyPrompt,
    /// The prompt has a token that the model does not have.
    #[error(
        "the prompt has the token {token}, but the model has only {vocab_size} tokens. Its tokenizer belongs to another model; name a folder whose files belong together"
    )]
    UnknownToken {
        /// The token.
        token: u32,
        /// The number of tokens of the model.
        vocab_size: usize,
    },
    /// The prompt leaves no room for an answer.
    #[error("the prompt has {tokens} tokens, but {what} is {most} tokens. Shorten the prompt{or_memory}")]
    TooLong {
        /// The tokens of the prompt, or of prompt and answer.
        tokens: usize,
        /// What the limit belongs to.
        what: &'static str,
        /// The limit.
        most: usize,
        /// What else can be done.
        or_memory: &'static str,
    },
    /// There is no adapter of this name.
    #[error("there is no adapter `{name}` ({}). Load it first, or leave the name out", .known.join(", "))]
    UnknownAdapter {
        /// The name.
        name: String,
        /// The names that there are.
        known: Vec<String>,
    },
    /// The model computes numbers that are not finite.
    #[error(
        "the model computed no finite number after token {0} of the answer: its weights are damaged, or its training has failed. Choose another checkpoint"
    )]
    NotFinite(usize),
    /// There are too many answers.
    #[error("{0} answers are waiting already. Wait until one of them is done")]
    Busy(usize),
}
