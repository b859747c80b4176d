//! Writes what a run leaves for use: `adapter/` (PEFT), `merged/`, `merged-mtp/`, `draft-tokens.pt` and
//! `SERVE.md`.
//!
//! Enters: a trained model, its heads and the base. Leaves: folders that were loaded again and compared
//! before they replaced older ones. Knows nothing of the loop.

use std::fs;
use std::path::{Path, PathBuf};

use sparktune_model::export::export;
use sparktune_model::{Checkpoint, LoraConfig, Model, Mtp, PackedSequence};
use sparktune_plan::{Mtp as MtpChoice, Plan};
use sparktune_runlog::{Checkpoints, Lease, RunDir};

use crate::error::TrainError;
use crate::evaluate::EvalSet;
use crate::examples::{eval_tokens, train_tokens};
use crate::objective::{NextToken, Objective};
use crate::serve::{HeadReport, Served, serve_page};
use crate::session::read_plan;
use crate::state::{Stage, State};
use crate::{draft_vocab, load};

/// Prompts of the eval set on which acceptance is measured.
const PROMPTS: usize = 4;

/// The MTP head before and after training.
pub(crate) struct Heads {
    /// The base's, where another was trained from it.
    pub(crate) before: Option<Mtp>,
    /// The one to serve.
    pub(crate) last: Option<Mtp>,
    /// The token ids to draft from, where the plan restricts them.
    pub(crate) among: Option<Vec<u32>>,
}

impl Heads {
    /// The restricted ids, where there is a head to draft from them.
    fn draft_ids(&self) -> Option<&[u32]> {
        self.among.as_deref().filter(|_| self.last.is_some())
    }
}

/// The written files.
pub(crate) struct Outputs {
    pub(crate) paths: Vec<PathBuf>,
    pub(crate) warnings: Vec<String>,
}

/// An export: what is written from, and where.
pub(crate) struct Export<'a> {
    /// `outputs/` or a folder below it. What an earlier export left there is replaced.
    pub(crate) folder: &'a Path,
    pub(crate) plan: &'a Plan,
    pub(crate) base: &'a Checkpoint,
    /// Without it no drafts are measured.
    pub(crate) eval_set: Option<&'a EvalSet>,
}

impl Export<'_> {
    /// Writes everything. `record` is called with what happened, in words.
    ///
    /// # Errors
    /// When a file cannot be written, or a written model does not compute what the model in memory does.
    pub(crate) fn write(
        &self,
        model: &mut Model,
        heads: &Heads,
        record: &mut dyn FnMut(String),
    ) -> Result<Outputs, TrainError> {
        fs::create_dir_all(self.folder).map_err(TrainError::io(self.folder))?;
        let mut outputs = Outputs { paths: Vec::new(), warnings: Vec::new() };
        let adapter = load::lora(self.plan);
        if let Some(config) = adapter {
            outputs.paths.push(self.write_adapter(model, config)?);
        }
        outputs.paths.push(self.write_merged("merged", model, None, record)?);
        let mut served = "merged";
        if let Some(head) = heads.last.as_ref().filter(|_| self.plan.mtp == MtpChoice::Trained) {
            served = "merged-mtp";
            outputs.paths.push(self.write_merged(served, model, Some(head), record)?);
        }

        let [before, last, trimmed] =
            self.measure_heads(&model.frozen(), heads, record, &mut outputs.warnings);
        let draft_ids = heads.draft_ids();
        if let Some(ids) = draft_ids {
            let path = self.folder.join("draft-tokens.pt");
            draft_vocab::write_token_map(&path, ids)?;
            outputs.paths.push(path);
        }
        let page = serve_page(&Served {
            plan: self.plan,
            folder: served,
            has_adapter: adapter.is_some(),
            is_tied: self.base.is_tied(),
            before,
            last,
            trimmed,
            has_draft_tokens: draft_ids.is_some(),
        });
        let path = self.folder.join("SERVE.md");
        fs::write(&path, page).map_err(TrainError::io(&path))?;
        outputs.paths.push(path);
        Ok(outputs)
    }

    fn write_adapter(&self, model: &mut Model, config: LoraConfig) -> Result<PathBuf, TrainError> {
        let path = self.folder.join("adapter");
        let partial = self.folder.join("adapter.partial");
        remove(&partial)?;
        fs::create_dir_all(&partial).map_err(TrainError::io(&partial))?;
        model.save_lora(&partial, config, self.base, &self.plan.model.id)?;
        replace(&partial, &path)?;
        Ok(path)
    }

    /// Writes a whole model folder, with this MTP head or the base's.
    fn write_merged(
        &self,
        name: &str,
        model: &Model,
        mtp: Option<&Mtp>,
        record: &mut dyn FnMut(String),
    ) -> Result<PathBuf, TrainError> {
        let path = self.folder.join(name);
        // An earlier export is removed only when the new one has passed its checks.
        let unchecked = self.folder.join(format!("{name}.new"));
        remove(&unchecked)?;
        let keep_mtp = self.plan.mtp != MtpChoice::None;
        let done = export(self.base, model, mtp, keep_mtp, &unchecked, &probe(self.base))?;
        replace(&unchecked, &path)?;
        record(format!(
            "{name} is written and checked: {} tensors trained, {} copied, {} in the base; logits within {:.1e} after loading",
            done.trained, done.carried, done.base_tensors, done.logits_distance
        ));
        Ok(path)
    }

    /// Measures the drafts of the base's head, of the head to serve, and of that head with the restricted
    /// vocabulary.
    fn measure_heads(
        &self,
        model: &Model,
        heads: &Heads,
        record: &mut dyn FnMut(String),
        warnings: &mut Vec<String>,
    ) -> [Option<HeadReport>; 3] {
        let mut measure = |which: &str, head: Option<&Mtp>, among: Option<&[u32]>| {
            let (eval_set, mut head) = (self.eval_set?, head?.clone());
            head.set_trainable(false);
            let (prompts, stop_ids) = (eval_set.prompts(PROMPTS), eval_set.stop_ids());
            let report = HeadReport::measure(model, &head, among, &prompts, &stop_ids)?;
            record(format!("{which}: {}", report.in_a_line()));
            if !report.equal_to_greedy {
                warnings.push(format!(
                    "speculative decoding with the {which} gave a different text than greedy decoding; serve without drafts and report this"
                ));
            }
            Some(report)
        };
        let which = if heads.before.is_some() { "trained MTP head" } else { "base's MTP head" };
        let before = measure("base's MTP head", heads.before.as_ref(), None);
        let last = measure(which, heads.last.as_ref(), None);
        let trimmed = heads.draft_ids().and_then(|ids| measure(which, heads.last.as_ref(), Some(ids)));
        [before, last, trimmed]
    }
}

/// Exports a run again: from its newest intact checkpoint into `outputs/`, or from the one with the lowest
/// eval loss into `outputs/best/`.
///
/// # Errors
/// When the run is training, has no checkpoint, or the export fails its own check.
pub fn export_run(run: &RunDir, best: bool) -> Result<Vec<PathBuf>, TrainError> {
    let _lease = Lease::acquire(run)?;
    let plan = read_plan(run)?;
    let mut checkpoints = Checkpoints::new(run);
    let newest = checkpoints.newest_valid()?.checkpoint.ok_or(TrainError::NothingToExport)?;
    let mut state = State::read(&newest.path)?;
    let mut checkpoint = newest.path;
    if best {
        checkpoint = checkpoints.verify(state.best_step.ok_or(TrainError::NoBest)?)?.path;
        state = State::read(&checkpoint)?;
    }
    let base = load::base(&plan)?;
    let device = load::device(&plan)?;
    let mut model = load::text_model(&plan, &base, &device, &mut |_, _| ())?;
    let mut head = load::mtp_head(&plan, &base, &device)?;
    let before = head.clone().filter(|_| state.stage == Stage::Mtp);
    load::restore(&checkpoint, &state, &mut model, head.as_mut())?;
    // A head whose training has not begun is the base's.
    let plan = match state.stage {
        Stage::Main if plan.mtp == MtpChoice::Trained => Plan { mtp: MtpChoice::Default, ..plan },
        _ => plan,
    };
    let among = draft_vocab::for_run(&plan, &train_tokens(run), &base)?;
    let heads = Heads { before, last: head, among };
    // Only prompts are read of the eval set, so the objective does not matter.
    let group_size = NextToken.examples_per_group();
    let eval_set = EvalSet::open(&eval_tokens(run), &plan, &base, group_size, &mut |_| ())?;
    // The best weights do not replace the last: they get a folder of their own.
    let folder = if best { run.outputs().join("best") } else { run.outputs() };
    let export = Export { folder: &folder, plan: &plan, base: &base, eval_set: eval_set.as_ref() };
    Ok(export.write(&mut model, &heads, &mut |_| ())?.paths)
}

/// Tokens spread over the vocabulary. Their logits are compared between the model in memory and the one on
/// disk.
fn probe(base: &Checkpoint) -> PackedSequence {
    let vocabulary = base.config().vocab_size;
    let ids: Vec<u32> = (0..32).map(|i| ((i * 7919 + 13) % vocabulary) as u32).collect();
    PackedSequence::single(&ids)
}

fn remove(path: &Path) -> Result<(), TrainError> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(TrainError::io(path)(error)),
        _ => Ok(()),
    }
}

fn replace(from: &Path, to: &Path) -> Result<(), TrainError> {
    remove(to)?;
    fs::rename(from, to).map_err(TrainError::io(to))
}
