//! The inference worker process: lines of JSON on standard input and output.

use std::io;
use std::sync::Arc;

use burn::tensor::Device;
use signal_hook::consts::SIGINT;
use sparktune_app::data_worker::keep_ledger;
use sparktune_app::failure::{Exit, Failure};
use sparktune_app::inference::WorkerOptions;
use sparktune_infer::{Engine, EngineOptions, InferError, Room, Source, serve};
use sparktune_plan::choices;
use sparktune_plan::memory::system_reserve;
use sparktune_sampling::protocol::Reply;
use sparktune_telemetry::{Machine, Sampler};
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
    let (device, room) = match place(options.decoding.device) {
        Ok(place) => place,
        Err(error) => return failed(error).map(|()| Exit::Usage),
    };
    match load(options, &device, &room) {
        Ok(engine) => {
            let served = serve(engine, io::stdin(), io::stdout().lock());
            served.map(|()| Exit::Done).or_else(|error| match error.kind() {
                // Nobody reads the answers any more.
                io::ErrorKind::BrokenPipe => Ok(Exit::Done),
                _ => Err(error.into()),
            })
        }
        Err(error) => {
            failed(error.to_string())?;
            Ok(if matches!(error, InferError::NoRoom { .. }) { Exit::Device } else { Exit::Usage })
        }
    }
}

/// Says that there will be no model.
fn failed(error: String) -> Result<(), Failure> {
    let reply = serde_json::to_string(&Reply::Failed { error }).expect("a reply is JSON");
    Ok(print(&format!("{reply}\n"))?)
}

/// Returns the device that the user has chosen, and its memory.
fn place(chosen: choices::Device) -> Result<(Device, Room), String> {
    match chosen {
        choices::Device::Cpu => Ok((Device::flex(), room())),
        choices::Device::Cuda => first_cuda_device().map(|device| (device, room_of_gpu())),
    }
}

#[cfg(feature = "cuda")]
fn first_cuda_device() -> Result<Device, String> {
    let devices = Device::enumerate(burn::tensor::DeviceType::Cuda).into_vec();
    devices.into_iter().next().ok_or_else(|| {
        "no CUDA device responds. `doctor` says why; --device cpu answers on the CPU".to_owned()
    })
}

#[cfg(not(feature = "cuda"))]
fn first_cuda_device() -> Result<Device, String> {
    Err("this build has no CUDA; --device cpu answers on the CPU".to_owned())
}

/// Returns the memory of the first GPU that is free now, or what [`room`] does where the GPU shares the
/// memory of the CPU.
fn room_of_gpu() -> Room {
    let machine = Machine::gather();
    let free = machine.gpus.first().and_then(|gpu| gpu.mem_free_bytes);
    match free {
        Some(available) if !machine.mem_unified => {
            Room { available, reserve: 1 << 29, beside: String::new() }
        }
        _ => room(),
    }
}

fn load(options: &WorkerOptions, device: &Device, room: &Room) -> Result<Engine, InferError> {
    let source = Source::open(&options.model, options.base.as_deref())?;
    let engine = EngineOptions {
        max_sequences: options.max_sequences,
        draft_tokens: options.decoding.draft_tokens,
        ..EngineOptions::default()
    };
    Engine::load(&source, engine, room, device, &mut |_, _| ())
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
