//! `generate`: continues one prompt with any model, run or adapter, as plain lines or as lines of JSON.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::json;
use sparktune_app::answers::runs_dir;
use sparktune_app::failure::{Exit, Failure};
use sparktune_app::inference::{Decoding, Worker, WorkerOptions};
use sparktune_app::models::find_named;
use sparktune_app::program::Program;
use sparktune_base::escape::escape;
use sparktune_plan::TemplateKwargs;
use sparktune_sampling::SamplingParams;
use sparktune_sampling::protocol::{Finished, Generate, Prompt, Reply, Request};
use sparktune_tui::output::{note, print, print_json};

use crate::interrupt::Interrupts;

/// The id of the only answer.
const ID: &str = "answer";

/// What `generate` is asked for.
#[derive(Debug, Clone)]
pub struct GenerateRequest {
    /// A finished run, the folder of a model or an adapter, a model of the hub's cache, or the demo.
    pub model: String,
    /// The base of an adapter or a run, if it is not where that says.
    pub base: Option<PathBuf>,
    /// The folder of the runs, if a flag names it.
    pub runs_dir: Option<PathBuf>,
    /// What to continue, or what the user says in a chat.
    pub prompt: String,
    /// Continue the prompt as it is, without the chat template.
    pub raw: bool,
    /// Variables of the chat template, which take precedence over those of the model's run.
    pub template_kwargs: TemplateKwargs,
    /// How tokens are chosen.
    pub sampling: SamplingParams,
    /// Where and how the model decodes.
    pub decoding: Decoding,
}

/// Runs `sparktune generate`. With `json`, prints the worker's replies as they are.
///
/// # Errors
/// There is no such model, it does not fit into memory, or the prompt is refused.
pub fn generate(program: &Program, request: GenerateRequest, json: bool) -> Result<Exit, Failure> {
    request.sampling.check().map_err(|error| Failure::usage(error.to_string()))?;
    let interrupts = Interrupts::listen()?;
    let options = WorkerOptions {
        model: find(&request.model, request.runs_dir)?,
        base: request.base,
        max_sequences: 1,
        decoding: request.decoding,
    };
    let mut worker = Worker::start(program, &options)?;
    let has_template = worker.ready().has_template;
    if !has_template && !request.template_kwargs.0.is_empty() {
        let text =
            format!("{} has no chat template, so --template-kwargs has no effect", escape(&request.model));
        return Err(Failure::usage(text).hint("Omit it"));
    }
    let is_chat = has_template && !request.raw;
    let prompt = if is_chat {
        Prompt::Messages(json!({
            "messages": [{"role": "user", "content": request.prompt}],
            "chat_template_kwargs": request.template_kwargs,
        }))
    } else {
        Prompt::Prompt(request.prompt)
    };
    let generate = Generate { id: ID.into(), prompt, adapter: None, sampling: request.sampling };
    worker.send(&Request::Generate(Box::new(generate)))?;
    let mut is_cancelled = false;
    loop {
        if interrupts.count() > 0 && !is_cancelled {
            is_cancelled = true;
            worker.send(&Request::Cancel { id: ID.into() })?;
        }
        let Some(reply) = worker.next(Duration::from_millis(100))? else { continue };
        if json {
            print_json(&reply)?;
        }
        match reply {
            Reply::Text(piece) if !json => print(&shown(&piece.text))?,
            Reply::Done { finished, .. } => {
                if !json {
                    print("\n")?;
                    note(&in_words(&finished));
                }
                return Ok(if is_cancelled { Exit::Interrupted } else { Exit::Done });
            }
            Reply::Error { error, .. } => return Err(Failure::usage(error)),
            Reply::Failed { error } => return Err(Failure::new(Exit::Device, error)),
            Reply::Accepted { .. } | Reply::Scored { .. } => {}
            Reply::Text(_) | Reply::Ready(_) | Reply::Adapters { .. } => {}
        }
    }
}

/// Returns the folder of a model: the folder itself, or that of what has this name.
fn find(model: &str, runs_dir_flag: Option<PathBuf>) -> Result<PathBuf, Failure> {
    let folder = Path::new(model);
    if folder.is_dir() {
        return Ok(folder.to_owned());
    }
    Ok(find_named(model, &runs_dir(runs_dir_flag)?)?.path)
}

/// Returns text of a model as a terminal may show it, with its lines.
fn shown(text: &str) -> String {
    text.split('\n').map(escape).collect::<Vec<_>>().join("\n")
}

fn in_words(finished: &Finished) -> String {
    let usage = finished.usage;
    let seconds = (finished.total_ms - finished.first_token_ms) / 1000.0;
    let speed = match usage.completion_tokens {
        2.. if seconds > 0.0 => format!(", {:.1} tokens/s", (usage.completion_tokens - 1) as f64 / seconds),
        _ => String::new(),
    };
    let drafts = match usage.drafted_tokens {
        0 => String::new(),
        drafted => format!(", {} of {drafted} drafted tokens accepted", usage.accepted_tokens),
    };
    format!(
        "{} tokens of prompt, {} of answer, the first after {:.2} s{speed}{drafts}; seed {}",
        usage.prompt_tokens,
        usage.completion_tokens,
        finished.first_token_ms / 1000.0,
        finished.seed
    )
}
