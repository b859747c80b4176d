//! Flags of `generate` and of its worker process. The flags of sampling have the names of OpenAI's API and of
//! vLLM.

use std::path::PathBuf;

use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use sparktune_app::chat::recommended::Wishes;
use sparktune_app::inference::{Decoding, WorkerOptions};
use sparktune_commands::GenerateRequest;
use sparktune_plan::TemplateKwargs;
use sparktune_plan::choices::Device;
use sparktune_sampling::SamplingParams;

#[derive(Debug, Args)]
pub(crate) struct GenerateArgs {
    /// A finished run, the folder of a model or an adapter, a model downloaded from the hub, or `demo`
    pub model: String,
    /// What the user says; or with --raw, the text to continue
    #[arg(long, value_name = "TEXT")]
    pub prompt: String,
    /// Continue the text as it is, without the model's chat template
    #[arg(long)]
    pub raw: bool,
    /// Variables of the chat template, as a JSON object, over those that the model was trained with
    #[arg(long, value_name = "JSON", value_parser = TemplateKwargs::read, conflicts_with = "raw")]
    pub template_kwargs: Option<TemplateKwargs>,
    /// The base model of an adapter or a run, if it is not where that says
    #[arg(long, value_name = "FOLDER")]
    pub base: Option<PathBuf>,
    #[command(flatten)]
    pub decoding: DecodingFlags,
    #[command(flatten)]
    pub sampling: SamplingFlags,
    /// With --json: log-probabilities of each token and of this many of the most likely ones
    #[arg(long, value_name = "N")]
    pub logprobs: Option<u32>,
}

/// Flags of the commands whose models answer.
#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct DecodingFlags {
    /// Where the models answer; on the GPU, in bf16, an answer may have other tokens than on the CPU
    #[arg(long, value_name = "DEVICE", default_value = "cpu", hide_default_value = true, value_parser = devices())]
    pub device: Device,
    /// Tokens that the MTP head drafts, if a model has one; never changes an answer
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    pub draft_tokens: usize,
}

fn devices() -> impl TypedValueParser<Value = Device> {
    PossibleValuesParser::new(Device::WORDS).try_map(|word| word.parse())
}

impl DecodingFlags {
    /// Returns what the flags describe.
    pub(crate) fn decoding(self) -> Decoding {
        let Self { device, draft_tokens } = self;
        Decoding { device, draft_tokens }
    }
}

#[derive(Debug, Args)]
pub(crate) struct SamplingFlags {
    /// Divides the logits; 0 chooses the most likely token
    #[arg(long, value_name = "X")]
    pub temperature: Option<f64>,
    /// Keep the most likely tokens whose probabilities add up to this
    #[arg(long, value_name = "P")]
    pub top_p: Option<f64>,
    /// Keep this many of the most likely tokens; 0 keeps all
    #[arg(long, value_name = "N")]
    pub top_k: Option<u32>,
    /// Keep tokens that are at least this share as likely as the most likely one
    #[arg(long, value_name = "P")]
    pub min_p: Option<f64>,
    /// Subtracted once from the logits of tokens that the answer has
    #[arg(long, value_name = "X", default_value_t = 0.0, allow_negative_numbers = true)]
    pub presence_penalty: f64,
    /// Subtracted from the logits of tokens for each time that the answer has them
    #[arg(long, value_name = "X", default_value_t = 0.0, allow_negative_numbers = true)]
    pub frequency_penalty: f64,
    /// Makes tokens of prompt and answer less likely if above 1
    #[arg(long, value_name = "X")]
    pub repetition_penalty: Option<f64>,
    /// Seed of the random numbers; the same seed gives the same answer
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
    /// A text that ends the answer; can be given several times
    #[arg(long, value_name = "TEXT")]
    pub stop: Vec<String>,
    /// The largest number of tokens of the answer
    #[arg(long, value_name = "N", default_value_t = 512)]
    pub max_tokens: u32,
}

/// What the worker process is started with.
#[derive(Debug, Args)]
pub(crate) struct WorkerArgs {
    /// The folder of a model, a run or an adapter
    pub model: PathBuf,
    /// The base of an adapter or a run
    #[arg(long)]
    pub base: Option<PathBuf>,
    /// The largest number of answers at a time
    #[arg(long, default_value_t = 8)]
    pub max_sequences: usize,
    #[command(flatten)]
    pub decoding: DecodingFlags,
}

impl GenerateArgs {
    /// Returns the request that the flags describe.
    pub(crate) fn request(self, runs_dir: Option<PathBuf>) -> GenerateRequest {
        let Self { model, prompt, raw, template_kwargs, base, decoding, sampling, logprobs } = self;
        let template_kwargs = template_kwargs.unwrap_or_default();
        let sampling = SamplingParams { logprobs, ..sampling.wishes().over(sampling.params()) };
        let decoding = decoding.decoding();
        GenerateRequest { model, base, runs_dir, prompt, raw, template_kwargs, decoding, sampling }
    }
}

impl SamplingFlags {
    /// Returns what the flags say of the settings that a model can have its own values for.
    pub(crate) fn wishes(&self) -> Wishes {
        let Self { temperature, top_p, top_k, min_p, repetition_penalty, .. } = *self;
        Wishes { temperature, top_p, top_k, min_p, repetition_penalty }
    }

    /// Returns the other parameters of sampling that the flags describe.
    pub(crate) fn params(&self) -> SamplingParams {
        SamplingParams {
            presence_penalty: self.presence_penalty,
            frequency_penalty: self.frequency_penalty,
            seed: self.seed,
            stop: self.stop.clone(),
            max_tokens: Some(self.max_tokens),
            ..SamplingParams::default()
        }
    }
}

impl WorkerArgs {
    /// Returns the options of the worker.
    pub(crate) fn options(self) -> WorkerOptions {
        let Self { model, base, max_sequences, decoding } = self;
        WorkerOptions { model, base, max_sequences, decoding: decoding.decoding() }
    }
}
