//! Our side of a comparison: takes optimizer steps on request, in a separate process, so that its memory and
//! processor time can be measured.
//!
//! Enters: a plan, a file of packs, and the lines of `protocol`. Leaves: one line for each. The steps are
//! those of `sparktune_train`.

use std::io::{BufRead, Write};
use std::path::{Path, PathBuf};
use std::time::Instant;

use sparktune_model::{Loss, PackedSequence};
use sparktune_plan::Plan;
use sparktune_train::stepper::Stepper;

use crate::BenchError;
use crate::cpu::process_cpu_seconds;
use crate::protocol::{Answer, Finished, PROTOCOL, QUIT, Ready, STEP, Stepped, put, read_packs};

/// The parameters to train.
#[derive(Debug, Clone)]
pub struct Training {
    /// The plan, as TOML, with the folder of its model.
    pub plan: PathBuf,
    /// The packs of each step; after the last step they start again from the first.
    pub packs: PathBuf,
    /// The folder for the adapters' initial values, in PEFT's format.
    pub adapter: Option<PathBuf>,
}

/// Takes a step for each line that requests one.
///
/// # Errors
/// The plan cannot be trained, a line is not a command, or the reader has closed the pipe.
pub fn serve(training: &Training, commands: impl BufRead, mut answers: impl Write) -> Result<(), BenchError> {
    let plan = read_plan(&training.plan)?;
    let steps = read_packs(&training.packs)?;
    let mut stepper = Stepper::from_plan(&plan)?;
    if let Some(folder) = &training.adapter {
        stepper.save_adapter(&plan, folder)?;
    }
    let ready = Ready {
        protocol: PROTOCOL,
        peer: format!("sparktune {}", env!("CARGO_PKG_VERSION")),
        torch: None,
        trained_parameters: stepper.trained_parameters(),
    };
    put(&mut answers, &Answer::Ready(ready))?;
    let mut done = 0;
    for command in commands.lines() {
        match command.map_err(BenchError::Output)?.trim() {
            STEP => {
                let rows = &steps[done as usize % steps.len()];
                let stepped = step(&mut stepper, rows, steps.len() as u64)?;
                done += 1;
                put(&mut answers, &Answer::Step(Stepped { step: done, ..stepped }))?;
            }
            QUIT => break,
            other => {
                let message = format!("`{other}` is not a command: send `{STEP}` or `{QUIT}`");
                return put(&mut answers, &Answer::Error { message });
            }
        }
    }
    let peak_rss_bytes = sparktune_telemetry::peak_rss_bytes();
    put(&mut answers, &Answer::Finished(Finished { steps: done, peak_rss_bytes }))
}

fn step(stepper: &mut Stepper, rows: &[PackedSequence], total_steps: u64) -> Result<Stepped, BenchError> {
    let learning_rate = stepper.next_learning_rate(total_steps);
    let (began, cpu_began) = (Instant::now(), process_cpu_seconds());
    let losses = stepper.step(rows, learning_rate)?;
    // The update may still be under way when the loss is known.
    stepper.model().device().sync().expect("the device does what was queued");
    let wall_s = began.elapsed().as_secs_f64();
    let cpu_s = process_cpu_seconds().zip(cpu_began).map_or(0.0, |(now, before)| now - before);
    let loss: f64 = losses.iter().map(Loss::nats).sum();
    Ok(Stepped {
        step: 0,
        loss: Some(loss).filter(|loss| loss.is_finite()),
        learning_rate,
        wall_s,
        cpu_s,
        trained_tokens: rows.iter().map(|row| row.target_tokens() as u64).sum(),
    })
}

fn read_plan(path: &Path) -> Result<Plan, BenchError> {
    let text = std::fs::read_to_string(path).map_err(BenchError::io("read", path))?;
    Ok(Plan::from_toml(&text, &path.display().to_string())?)
}
