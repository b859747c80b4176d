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
    /// Creates the summary of an operation that failed: before there was a run, or with this one.
    pub fn from_failure(failure: &Failure, run: Option<&RunDir>) -> Self {
        Self { error: Some(failure.to_string()), ..Self::without_steps("failed", run) }
    }

    /// Creates the summary of a run whose training was stopped before it began.
    pub fn of_unstarted(run: &RunDir) -> Self {
        Self::without_steps("stopped", Some(run))
    }

    fn without_steps(outcome: &'static str, run: Option<&RunDir>) -> Self {
        Self {
            run_dir: run.map(folder_of),
            outcome,
            steps: 0,
            final_loss: None,
            eval_loss: None,
            base_eval: None,
            best_step: None,
            best_eval: None,
            exported_step: None,
            warnings: Vec::new(),
            outputs: Vec::new(),
            error: None,
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
        let folder = folder_of(run);
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

/// Returns the whole path of a run, because whoever reads it may be elsewhere.
fn folder_of(run: &RunDir) -> PathBuf {
    run.path().canonicalize().unwrap_or_else(|_| run.path().to_owned())
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use sparktune_runlog::RunsRoot;

    use super::*;

    #[test]
    fn a_training_that_did_not_begin_names_its_run_and_why() {
        let root = tempfile::tempdir().unwrap();
        let run = RunsRoot::new(root.path()).create("m", "lora").unwrap();
        let failure = Failure::usage("no trainer");
        let json = |summary: &Summary| serde_json::to_value(summary).unwrap();
        let failed = json(&Summary::from_failure(&failure, Some(&run)));
        let folder = json!(run.path().canonicalize().unwrap());
        assert_eq!((&failed["run_dir"], &failed["outcome"]), (&folder, &json!("failed")));
        assert_eq!(failed["error"], "no trainer");
        assert!(json(&Summary::from_failure(&failure, None))["run_dir"].is_null());
        let stopped = json(&Summary::of_unstarted(&run));
        assert_eq!((&stopped["run_dir"], &stopped["outcome"]), (&folder, &json!("stopped")));
        assert_eq!((&stopped["steps"], stopped.get("error")), (&json!(0), None));
    }
}
