//! Errors of checkpoints and adapters. Each message says what is wrong, where, and what to do.

use std::path::PathBuf;

use sparktune_base::escape::shortened;
use sparktune_base::units::bytes;
use sparktune_plan::Architecture;

/// The reasons why a model could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// A file could not be opened, read or written.
    #[error("{path}: {source}. Check that the file exists and is readable, and that the disk is not full")]
    Io {
        /// The file.
        path: PathBuf,
        /// The message of the system.
        source: std::io::Error,
    },
    /// `config.json` does not describe a model that can be trained.
    #[error("{path}: {source}")]
    Config {
        /// The folder.
        path: PathBuf,
        /// The problem with the config.
        source: sparktune_plan::model_config::ConfigError,
    },
    /// A weight file is damaged or is not safetensors.
    #[error("{path}: not a valid safetensors file ({reason}). Delete it and download the model again")]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The message of the parser.
        reason: String,
    },
    /// The folder contains no weights.
    #[error(
        "{0}: no model.safetensors and no model.safetensors.index.json. Only safetensors checkpoints can be trained; convert the model or choose another repository"
    )]
    NoWeights(PathBuf),
    /// The index names a file outside the folder.
    #[error(
        "{path}: the index names the file `{}`, which is not a plain file name, so it was not read. Download the model from a source that you trust",
        shortened(.file)
    )]
    UnsafeIndex {
        /// The index.
        path: PathBuf,
        /// The offending name.
        file: String,
    },
    /// A tensor that the model needs is missing.
    #[error(
        "{path}: the tensor `{name}` is missing. The checkpoint is incomplete or its config.json belongs to another model"
    )]
    Missing {
        /// The folder.
        path: PathBuf,
        /// The tensor's stored name.
        name: String,
    },
    /// An MTP head is to be taken from another model, but this one has its own.
    #[error(
        "{path}: the weights have an MTP head of their own, so none is taken from another model. Omit --mtp-from; if config.json does not declare the head, add mtp_num_hidden_layers to it"
    )]
    OwnHead {
        /// The folder.
        path: PathBuf,
    },
    /// The weights contain a tensor that no part of the model uses.
    #[error(
        "{path}: no part of a {family} model uses the tensor `{}`, so this model computes something that sparktune does not support. Choose another model; if the family was set with --architecture, set the one that has this tensor",
        shortened(.name)
    )]
    UnknownTensor {
        /// The folder.
        path: PathBuf,
        /// Stored name of the tensor.
        name: String,
        /// The family that the model is treated as.
        family: Architecture,
    },
    /// The shape of a tensor differs from the config.
    #[error(
        "{path}: the tensor `{name}` has the shape {found:?}, but config.json requires {expected:?}. The weights belong to another config"
    )]
    Shape {
        /// The folder.
        path: PathBuf,
        /// The tensor's stored name.
        name: String,
        /// The shape in the file.
        found: Vec<usize>,
        /// The shape required by the config.
        expected: Vec<usize>,
    },
    /// A tensor is stored in a type that cannot be trained.
    #[error(
        "{path}: the tensor `{name}` is stored as {dtype}, which cannot be trained. Choose a repository with bf16, f16 or f32 weights"
    )]
    Dtype {
        /// The folder.
        path: PathBuf,
        /// The tensor's stored name.
        name: String,
        /// The stored type.
        dtype: String,
    },
    /// The adapter files cannot be read or do not fit the model.
    #[error("{path}: {reason}")]
    Adapter {
        /// The folder.
        path: PathBuf,
        /// The part that does not fit.
        reason: String,
    },
    /// The export was asked to stop.
    #[error(
        "the export was stopped before it was complete; what was written of it was removed. Export again"
    )]
    Stopped,
    /// A GGUF file of the model would compute something else, or cannot hold it.
    #[error("{path}: this model cannot be written as GGUF: {reason}")]
    Gguf {
        /// The folder or file.
        path: PathBuf,
        /// What llama.cpp does not know.
        reason: String,
    },
    /// The disk has not enough space for a file.
    #[error(
        "{path}: needs {}, but the disk has {} left. Free space, or choose a smaller type",
        bytes(*.needed),
        bytes(*.available)
    )]
    NoSpace {
        /// The file.
        path: PathBuf,
        /// Its size in bytes.
        needed: u64,
        /// The free space in bytes.
        available: u64,
    },
    /// The exported folder differs from the model in memory.
    #[error(
        "{path}: the export failed its own check: {reason}. No output was written; the checkpoint is unchanged. Please report this"
    )]
    Export {
        /// The folder.
        path: PathBuf,
        /// The difference.
        reason: String,
    },
}

impl ModelError {
    pub(crate) fn io(path: impl Into<PathBuf>) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.into();
        move |source| Self::Io { path, source }
    }
}
