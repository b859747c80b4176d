//! The state of a run as one object: the last line of `train --json`, and the output of `stop --json`.

use std::path::PathBuf;

use serde::Serialize;
use sparktune_runlog::{Liveness, Outcome, RunDir, RunView};

use crate::failure::Failure;

/// The outcome of a run, or of an attempt to start one.
#[derive(Debug, Serialize)]
pub struct Summary {
    run_dir: Option<PathBuf>,
    outcome: &'static str,
    steps: u64,
    final_loss: Option<f64>,
    eval_loss: Option<f64>,
    /// The base model's loss on the eval set.
    base_eval: Option<f64>,
    best_step: Option<u64>,
    best_eval: Option<f64>,
    /// The step of the weights that the outputs contain.
    exported_step: Option<u64>,
    /// The warnings about steps that count, oldest first.
    warnings: Vec<String>,
    outputs: Vec<PathBuf>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

impl Summary {
    /// Creates the summary of an operation that ended before there was a run.
    pub fn from_failure(failure: &Failure) -> Self {
        Self {
            run_dir: None,
            outcome: "failed",
            steps: 0,
            final_loss: None,
            eval_loss: None,
            base_eval: None,
            best_step: None,
            best_eval: None,
            exported_step: None,
            warnings: Vec::new(),
            outputs: Vec::new(),
            error: Some(failure.to_string()),
        }
    }

    /// Creates the summary of a run in its current state.
    pub fn from_run(run: &RunDir, liveness: Liveness, view: &RunView) -> Self {
        let finished = view.finished();
        let finite = |loss: Option<f64>| loss.filter(|loss| loss.is_finite());
        let outcome = match liveness {
            Liveness::Finished { outcome: Outcome::Completed } => "completed",
            Liveness::Finished { outcome: Outcome::Diverged } => "diverged",
            Liveness::Finished { outcome: Outcome::Stopped } => "stopped",
            Liveness::Finished { .. } => "failed",
            Liveness::Running | Liveness::Stalled { .. } => "running",
            Liveness::Crashed | Liveness::NotStarted => "crashed",
            Liveness::Gone => "gone",
        };
        let last_step = view.last_step.as_ref().map(|step| step.loss_nats);
        let last_eval = view.last_eval.as_ref().map(|eval| eval.loss_nats);
        let (best_step, best_eval) = view.best().unzip();
        let kept = view.warnings.iter().filter(|warning| !warning.discarded);
        let folder = run.path().canonicalize().unwrap_or_else(|_| run.path().to_owned());
        Self {
            outcome,
            steps: finished.map_or_else(|| view.steps_done(), |finished| finished.step),
            final_loss: finite(finished.and_then(|f| f.final_loss_nats).or(last_step)),
            eval_loss: finite(finished.and_then(|f| f.eval_loss_nats).or(last_eval)),
            base_eval: finite(view.base_eval.as_ref().map(|eval| eval.loss_nats)),
            best_step,
            best_eval: finite(best_eval),
            exported_step: view.exported_step(),
            warnings: kept.map(|warning| warning.what.message.clone()).collect(),
            outputs: finished
                .map(|f| f.outputs.iter().map(|name| folder.join(name)).collect())
                .unwrap_or_default(),
            error: finished.and_then(|f| f.reason.clone()),
            run_dir: Some(folder),
        }
    }
}
