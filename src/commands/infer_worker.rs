//! The inference worker process: lines of JSON on standard input and output.

use std::io;
use std::sync::Arc;

use burn::tensor::Device;
use signal_hook::consts::SIGINT;
use sparktune_app::data_worker::keep_ledger;
use sparktune_app::failure::{Exit, Failure};
use sparktune_app::inference::WorkerOptions;
use sparktune_infer::{Engine, EngineOptions, InferError, Room, Source, serve};
use sparktune_plan::memory::system_reserve;
use sparktune_sampling::protocol::Reply;
use sparktune_telemetry::Sampler;
use sparktune_tui::output::print;

/// Runs the hidden command of a worker, until its input ends.
///
/// # Errors
/// The output cannot be written. A model that cannot be loaded is an answer, and the exit code.
pub fn infer_worker(options: &WorkerOptions) -> Result<Exit, Failure> {
    // A training run is worth more than an answer, and the worker can be started again.
    sparktune_telemetry::offer_to_end_first();
    // Ctrl-C reaches every process of a terminal. The one that asks decides what it means for the answer.
    signal_hook::flag::register(SIGINT, Arc::default())
        .map_err(|error| Failure::usage(format!("cannot handle signals: {error}")))?;
    keep_ledger();
    match load(options) {
        Ok(engine) => {
            let served = serve(engine, io::stdin(), io::stdout().lock());
            served.map(|()| Exit::Done).or_else(|error| match error.kind() {
                // Nobody reads the answers any more.
                io::ErrorKind::BrokenPipe => Ok(Exit::Done),
                _ => Err(error.into()),
            })
        }
        Err(error) => {
            let failed = Reply::Failed { error: error.to_string() };
            print(&format!("{}\n", serde_json::to_string(&failed).expect("a reply is JSON")))?;
            Ok(if matches!(error, InferError::NoRoom { .. }) { Exit::Device } else { Exit::Usage })
        }
    }
}

fn load(options: &WorkerOptions) -> Result<Engine, InferError> {
    let source = Source::open(&options.model, options.base.as_deref())?;
    let engine = EngineOptions {
        max_sequences: options.max_sequences,
        draft_tokens: options.draft_tokens,
        ..EngineOptions::default()
    };
    Engine::load(&source, engine, &room(), &Device::flex(), &mut |_, _| ())
}

/// Returns the memory that a model may use: what is available now, which a training run has already taken its
/// part of, less the system's reserve.
pub(crate) fn room() -> Room {
    let memory = Sampler::new().memory();
    let beside = sparktune_telemetry::largest_other().filter(|other| other.bytes > memory.total_bytes / 10);
    Room {
        available: memory.available_bytes,
        reserve: system_reserve(memory.total_bytes, memory.unified),
        beside: beside.map_or_else(String::new, |other| {
            let used = sparktune_base::units::bytes(other.bytes);
            format!(
                ", and `{}` (process {}) uses {used}",
                sparktune_base::escape::escape(&other.name),
                other.pid
            )
        }),
    }
}
