//! Flags of `chat`.

use std::path::PathBuf;

use clap::Args;
use sparktune_app::chat::Settings;
use sparktune_commands::ChatRequest;

use crate::cli::generate::{DecodingFlags, SamplingFlags};

#[derive(Debug, Args)]
pub(crate) struct ChatArgs {
    /// A finished run, the folder of a model or an adapter, a model downloaded from the hub, or `demo`
    #[arg(value_name = "MODEL", default_value = "latest")]
    pub run: String,
    /// Ask a second model the same questions: `base` for the base model of a run or of an edited
    /// model, or as MODEL
    #[arg(long, value_name = "MODEL")]
    pub beside: Option<String>,
    /// Continue the newest kept conversation with the run, or the one in FILE
    #[arg(long = "continue", value_name = "FILE", num_args = 0..=1, require_equals = true)]
    pub earlier: Option<Option<PathBuf>>,
    /// The system prompt, which the model reads before the conversation
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    pub system: String,
    /// Whether the chat template lets the model think first; by default, the template decides
    #[arg(long, value_name = "BOOL")]
    pub thinking: Option<bool>,
    #[command(flatten)]
    pub decoding: DecodingFlags,
    #[command(
        flatten,
        next_help_heading = "How tokens are chosen (by default as the model's generation_config.json says, as on a server)"
    )]
    pub sampling: SamplingFlags,
}

impl ChatArgs {
    /// Returns the request that the flags describe.
    pub(crate) fn request(self, runs_dir: Option<PathBuf>) -> ChatRequest {
        let Self { run, beside, earlier, system, thinking, decoding, sampling } = self;
        let wishes = sampling.wishes();
        let settings = Settings { system, sampling: sampling.params(), thinking };
        ChatRequest { model: run, beside, earlier, settings, wishes, decoding: decoding.decoding(), runs_dir }
    }
}
