//! Training speed and memory on the CPU, LoRA and full, side by side with transformers and peft.
//!
//! Each side is a process of its own that makes optimizer steps (forward, backward, clipping, AdamW) on the
//! same pack from the same weights. The sides alternate: while one computes, the other waits. After two steps
//! of each that are not measured the median of a side's steps counts, in wall time and in processor time.

use std::path::Path;

use sparktune_plan::MethodKind;

use crate::context::Context;
use crate::error::BenchError;
use crate::median::median;
use crate::model::{self, RANK};
use crate::protocol::Stepped;
use crate::row::{Row, Target, Timing};
use crate::worker::{Work, Worker};

/// Steps of each side before the measured ones.
const WARM_UP: usize = 2;
/// The required speed of training as a multiple of the peer's.
const SPEED_GOAL: Target = Target::AtLeast(2.5);
/// Share of the peer's memory that training may take at its peak.
const MEMORY_GOAL: Target = Target::AtMost(0.5);

pub(crate) fn measure(context: &Context) -> Result<Vec<Row>, BenchError> {
    let checkpoint = context.folder.join("model");
    std::fs::create_dir_all(&checkpoint).map_err(BenchError::io("create", &checkpoint))?;
    model::write(&checkpoint)?;
    let mut rows = Vec::new();
    for method in [MethodKind::Lora, MethodKind::Full] {
        (context.note)(&format!("measuring train, {method}"));
        rows.extend(measure_method(context, &checkpoint, method)?);
    }
    Ok(rows)
}

fn measure_method(context: &Context, checkpoint: &Path, method: MethodKind) -> Result<Vec<Row>, BenchError> {
    let folder = context.folder.join(method.word());
    std::fs::create_dir_all(&folder).map_err(BenchError::io("create", &folder))?;
    let tokens = context.size.train_tokens;
    let plan = model::plan(checkpoint, method, tokens)?;
    let work = Work::new(&plan, &folder, &[&[model::pack(tokens)?]])?;
    let mut ours = Worker::ours(&context.options.program, &work)?;
    let peers = context.options.peers.as_ref();
    let mut peer = peers.map(|python| Worker::peer(python, &work)).transpose()?;
    alternate(1, WARM_UP, &mut ours, &mut peer)?;
    let (rounds, steps) = (context.size.rounds, context.size.steps_per_round);
    let (own, others) = alternate(rounds, steps, &mut ours, &mut peer)?;

    let what = match method {
        MethodKind::Lora => format!("training 42.5 M, LoRA r={RANK}, {tokens} tokens"),
        MethodKind::Full => format!("training 42.5 M, full, {tokens} tokens"),
    };
    let count = own.len();
    let note = match &peer {
        Some(_) => format!("median of {count} steps, {rounds} rounds of {steps} in turn with the peer"),
        None => {
            format!("median of {count} steps; no peer was run: --peers PYTHON runs transformers and peft")
        }
    };
    let rate = |timing: Timing| tokens as f64 / timing.seconds;
    let own_time = timing(&own);
    let own_peak = ours.finish()?.peak_rss_bytes;
    let mut rows = vec![Row::new(what, rate(own_time), "tokens/s", note).with_timing(own_time)];
    let mut peer_peak = None;
    if let Some(peer) = peer {
        let time = timing(&others);
        let name = format!("  {}", peer.name());
        rows.push(Row::new(name, rate(time), "tokens/s", agreement(&own, &others)).with_timing(time));
        let speed = Row::new("  ratio to the peer", time.seconds / own_time.seconds, "×", "wall time");
        rows.push(speed.with_target(SPEED_GOAL));
        rows.push(Row::new("  ratio in CPU time", time.cpu_seconds / own_time.cpu_seconds, "×", ""));
        peer_peak = peer.finish()?.peak_rss_bytes;
    }
    rows.extend(own_peak.map(|bytes| Row::new("  peak memory", bytes as f64, "bytes", "of the process")));
    if let Some((own, peer)) = own_peak.zip(peer_peak) {
        rows.push(Row::new("  peak memory of the peer", peer as f64, "bytes", "of the process"));
        let share = Row::new("  ratio to the peer's memory", own as f64 / peer as f64, "×", "");
        rows.push(share.with_target(MEMORY_GOAL));
    }
    Ok(rows)
}

/// Has both sides make `steps` steps in turn, in so many rounds. Returns ours and the peer's.
fn alternate(
    rounds: usize,
    steps: usize,
    ours: &mut Worker,
    peer: &mut Option<Worker>,
) -> Result<(Vec<Stepped>, Vec<Stepped>), BenchError> {
    let (mut own, mut others) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        for _ in 0..steps {
            own.push(ours.step()?);
        }
        if let Some(peer) = peer {
            for _ in 0..steps {
                others.push(peer.step()?);
            }
        }
    }
    Ok((own, others))
}

fn timing(steps: &[Stepped]) -> Timing {
    Timing {
        seconds: median(steps.iter().map(|step| step.wall_s)),
        cpu_seconds: median(steps.iter().map(|step| step.cpu_s)),
    }
}

/// Says how far the losses of both sides lie apart: a peer that computes something else is no peer.
fn agreement(own: &[Stepped], others: &[Stepped]) -> String {
    let loss = |steps: &[Stepped]| steps.last().and_then(|step| step.loss).unwrap_or(f64::NAN);
    let (own, other) = (loss(own), loss(others));
    format!("loss of the last step {other:.5}, ours {own:.5}")
}
