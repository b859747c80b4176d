//! Exports a run again, outside of training: the command `export`.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

use sparktune_base::program_name;
use sparktune_model::{Checkpoint, Model, Mtp};
use sparktune_plan::Plan;
use sparktune_runlog::{Checkpoints, Lease, RunDir, Skipped};

use crate::error::TrainError;
use crate::evaluate::EvalSet;
use crate::objective::{NextToken, Objective};
use crate::outputs::{Export, Heads};
use crate::session::read_plan;
use crate::state::{Stage, State, read_head};
use crate::{chosen, draft_vocab, load, parent};

/// The weights of a run that are exported again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Weights {
    /// Those that the plan names, from the newest intact checkpoint, into `outputs/`.
    Planned,
    /// Those with the lowest eval loss, into `outputs/best/`.
    Best,
    /// Those of the checkpoint of this step, into `outputs/step-…/`.
    Step(u64),
}

/// The weights of a run in memory, as they are exported.
pub(crate) struct Loaded {
    pub(crate) plan: Plan,
    pub(crate) base: Checkpoint,
    pub(crate) model: Model,
    /// The MTP head before and after training.
    pub(crate) heads: [Option<Mtp>; 2],
    /// `outputs/` or the folder below it for these weights.
    pub(crate) folder: PathBuf,
    /// The flag of `export` that names these weights, with a space before it; empty for the planned ones.
    pub(crate) flag: String,
    /// What is to be known about the weights, a paragraph each.
    pub(crate) notes: Vec<String>,
}

/// The files that an export has written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExportedFiles {
    /// All of them.
    pub paths: Vec<PathBuf>,
    /// What they contain and what they lack, in whole sentences.
    pub notes: Vec<String>,
}

impl Loaded {
    /// Loads the weights of a run, which is leased to this process.
    ///
    /// # Errors
    /// When the run has no such checkpoint, or its base is not the one that it began with.
    pub(crate) fn load(run: &RunDir, weights: Weights) -> Result<Self, TrainError> {
        let outputs = run.outputs();
        // A link could lead into a folder of somebody else, whose files would be replaced.
        if std::fs::symlink_metadata(&outputs).is_ok_and(|found| !found.is_dir()) {
            let what = "it is a link or a file, and outputs are written only into a folder of the run. Remove or rename it";
            return Err(TrainError::io(outputs)(std::io::Error::other(what)));
        }
        let plan = read_plan(run)?;
        let mut checkpoints = Checkpoints::new(run);
        let found = checkpoints.newest_valid()?;
        let newest = found.checkpoint.ok_or(TrainError::NothingToExport)?;
        let newest_state = State::read(&newest.path)?;
        let (mut state, mut checkpoint, mut notes) = (newest_state.clone(), newest.path, Vec::new());
        let named = match weights {
            Weights::Planned => None,
            Weights::Best => Some(state.best_step.ok_or(TrainError::NoBest)?),
            Weights::Step(step) => Some(checkpoints.named(run, step)?.step),
        };
        // The newest checkpoint has the MTP head too, which belongs to the weights that it was trained on.
        if let Some(step) = named.filter(|step| *step != state.weights_step()) {
            checkpoint = checkpoints.verify(step)?.path;
            state = State::read(&checkpoint)?;
            if (newest_state.stage, state.stage) == (Stage::Mtp, Stage::Main) {
                notes.push(format!(
                    "The MTP head of this run was trained on the weights of step {}, so it is not among these outputs, which have the base model's head.",
                    newest_state.weights_step()
                ));
            }
        }
        let base = load::base_of_run(run, &plan)?;
        state.inputs.check(run, &base, &plan.duration.before, false, |_| ()).map_err(
            |error| match error {
                // An export does not continue the run, so its advice is another.
                TrainError::OtherInputs { path, reason } => {
                    TrainError::OtherInputsThanTrained { path, reason }
                }
                other => other,
            },
        )?;
        let device = load::device(&plan)?;
        let adapter = parent::adapter(run, &plan)?;
        let mut model = load::text_model(&plan, &base, adapter.as_deref(), &device, &mut |_, _| ())?;
        let mut head = load::mtp_head(&plan, &base, &device)?;
        let before = head.clone().filter(|_| state.stage == Stage::Mtp);
        load::restore(&checkpoint, &state, &mut model, head.as_mut())?;
        if let Some(head) = head.as_mut().filter(|_| state.stage == Stage::Mtp)
            && let Some(best) = chosen::best_head(run, &state, &mut |warning| notes.push(warning))
        {
            read_head(&best, head)?;
        }
        let step = match weights {
            Weights::Planned => {
                chosen::load_chosen(run, &plan, &state, &mut model, &mut |warning| notes.push(warning))?
            }
            Weights::Best | Weights::Step(_) => state.weights_step(),
        };
        notes.insert(0, chosen::in_words(&plan, &newest_state, step));
        // Whoever names a step does not ask for the newest.
        if !matches!(weights, Weights::Step(_)) {
            let newest = newest_state.checkpoint_step();
            notes.extend(found.skipped.iter().map(|skipped| damaged_in_words(skipped, newest)));
        }
        // Other weights than the plan's get a folder of their own.
        let (folder, flag) = match weights {
            Weights::Planned => (run.outputs(), String::new()),
            Weights::Best => (run.outputs().join("best"), " --best".to_owned()),
            Weights::Step(step) => {
                (run.outputs().join(format!("step-{step:06}")), format!(" --checkpoint {step}"))
            }
        };
        Ok(Self { plan, base, model, heads: [before, head], folder, flag, notes })
    }
}

/// Says that a damaged checkpoint was not read. `newest` is the step of the newest intact one.
fn damaged_in_words(skipped: &Skipped, newest: u64) -> String {
    let name = skipped.path.file_name().unwrap_or_default().to_string_lossy();
    format!(
        "The checkpoint {name} is damaged: {}. The state of the run was read from the one of step {newest}; `{} resume` trains on from there.",
        skipped.damage,
        program_name()
    )
}

/// Exports a run again. `stop` ends it, and then an earlier export is still there.
///
/// # Errors
/// When the run is training, has no such checkpoint, or the export fails its own check or is stopped.
pub fn export_run(run: &RunDir, weights: Weights, stop: &AtomicBool) -> Result<ExportedFiles, TrainError> {
    let _lease = Lease::acquire(run)?;
    let Loaded { plan, base, model, heads: [before, last], folder, flag, notes } =
        Loaded::load(run, weights)?;
    let among = draft_vocab::for_run(run, &plan, &base)?;
    let heads = Heads { before, last, among };
    // Only prompts are read from the eval set, so the objective does not matter.
    let group_size = NextToken.examples_per_group();
    let eval_set = EvalSet::open(run, &plan, &base, group_size, &mut |_| ())?;
    let export = Export {
        run,
        folder: &folder,
        flag: &flag,
        plan: &plan,
        base: &base,
        eval_set: eval_set.as_ref(),
        record: &|_| (),
        warn: &|_| (),
        progress: &|_, _, _| (),
        go_on: &|| !stop.load(Ordering::SeqCst),
    };
    let mut text_model = export.write_text_model(&model, false)?;
    let paths = export.write_served(&model, &heads, &mut text_model, &notes)?;
    Ok(ExportedFiles { paths, notes })
}
