//! Writes the outputs of a run: `adapter/` and `adapter-causal-lm/` (PEFT), `merged/`, `merged-mtp/`,
//! `draft-tokens.pt` and `SERVE.md`.
//!
//! Enters: a trained model, its heads and the base. Leaves: folders that were loaded again and compared
//! before they replaced older ones. It must not know the loop.

use std::fs;
use std::path::{Path, PathBuf};

use sparktune_base::files::{exchange, sync, write_and_sync};
use sparktune_model::export::export;
use sparktune_model::{BaseClass, Checkpoint, LoraConfig, Model, Mtp, PackedSequence};
use sparktune_plan::{Mtp as MtpChoice, Plan};
use sparktune_runlog::{Checkpoints, Lease, RunDir};

use crate::error::TrainError;
use crate::evaluate::EvalSet;
use crate::examples::{eval_tokens, train_tokens};
use crate::objective::{NextToken, Objective};
use crate::serve::{HeadReport, Served, serve_page};
use crate::session::read_plan;
use crate::state::{Stage, State};
use crate::{base_files, draft_vocab, load};

/// The number of prompts of the eval set on which acceptance is measured.
const PROMPTS: usize = 4;

/// The MTP head before and after training.
pub(crate) struct Heads {
    /// The base's head, if the served one was trained from it.
    pub(crate) before: Option<Mtp>,
    /// The head to serve.
    pub(crate) last: Option<Mtp>,
    /// The token ids to draft from, if the plan restricts them.
    pub(crate) among: Option<Vec<u32>>,
}

impl Heads {
    /// Returns the restricted ids, if there is a head to draft from them.
    fn draft_ids(&self) -> Option<&[u32]> {
        self.among.as_deref().filter(|_| self.last.is_some())
    }
}

/// The written files.
pub(crate) struct Outputs {
    pub(crate) paths: Vec<PathBuf>,
    pub(crate) warnings: Vec<String>,
}

/// The inputs of an export and its folder.
pub(crate) struct Export<'a> {
    /// `outputs/` or a folder below it. The files of an earlier export there are replaced.
    pub(crate) folder: &'a Path,
    pub(crate) plan: &'a Plan,
    pub(crate) base: &'a Checkpoint,
    /// The eval set, whose prompts are needed to measure drafts.
    pub(crate) eval_set: Option<&'a EvalSet>,
}

impl Export<'_> {
    /// Writes all outputs. `record` is called with a description of each result.
    ///
    /// # Errors
    /// When a file cannot be written, or a written model does not compute the same as the model in memory.
    pub(crate) fn write(
        &self,
        model: &mut Model,
        heads: &Heads,
        record: &mut dyn FnMut(String),
    ) -> Result<Outputs, TrainError> {
        fs::create_dir_all(self.folder).map_err(TrainError::io(self.folder))?;
        let mut outputs = Outputs { paths: Vec::new(), warnings: Vec::new() };
        let mut adapters: &[BaseClass] = &[];
        if let Some(config) = load::lora(self.plan) {
            adapters = BaseClass::all_of(self.base);
            for class in adapters {
                outputs.paths.push(self.write_adapter(model, config, *class)?);
            }
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
            adapters,
            is_wrapper: self.base.is_wrapper(),
            is_tied: self.base.is_tied(),
            before,
            last,
            trimmed,
            has_draft_tokens: draft_ids.is_some(),
        });
        let path = self.folder.join("SERVE.md");
        write_and_sync(&path, page).map_err(TrainError::io(&path))?;
        outputs.paths.push(path);
        sync(self.folder).map_err(TrainError::io(self.folder))?;
        Ok(outputs)
    }

    fn write_adapter(
        &self,
        model: &mut Model,
        config: LoraConfig,
        class: BaseClass,
    ) -> Result<PathBuf, TrainError> {
        let path = self.folder.join(class.folder());
        let partial = self.folder.join(format!(".{}.new", class.folder()));
        remove(&partial)?;
        fs::create_dir_all(&partial).map_err(TrainError::io(&partial))?;
        model.save_lora(&partial, config, self.base, &self.plan.model.id, class)?;
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
        // An earlier export is removed only after the new one has passed its checks.
        let unchecked = self.folder.join(format!(".{name}.new"));
        remove(&unchecked)?;
        let keep_mtp = self.plan.mtp != MtpChoice::None;
        let done = export(self.base, model, mtp, keep_mtp, &unchecked, &probe(self.base))?;
        replace(&unchecked, &path)?;
        record(format!(
            "{name} was written and checked: {} tensors trained, {} copied, {} in the base model; logits differ by at most {:.1e} after loading",
            done.trained, done.carried, done.base_tensors, done.logits_distance
        ));
        Ok(path)
    }

    /// Measures the drafts of the base's head, of the head to serve, and of the latter with the restricted
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
            if let Some(defect) = report.defect() {
                warnings.push(format!(
                    "speculative decoding with the {which} produced a different text than greedy decoding; serve without drafts, and report this: {}",
                    defect.in_words()
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
    if let Some(began_with) = &state.base_files {
        base_files::require_same(&base, began_with)?;
    }
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
    // Only prompts are read from the eval set, so the objective does not matter.
    let group_size = NextToken.examples_per_group();
    let eval_set = EvalSet::open(&eval_tokens(run), &plan, &base, group_size, &mut |_| ())?;
    // The best weights do not replace the last ones but get a folder of their own.
    let folder = if best { run.outputs().join("best") } else { run.outputs() };
    let export = Export { folder: &folder, plan: &plan, base: &base, eval_set: eval_set.as_ref() };
    Ok(export.write(&mut model, &heads, &mut |_| ())?.paths)
}

/// Returns tokens spread over the vocabulary, whose logits are compared between the model in memory and the
/// written one.
fn probe(base: &Checkpoint) -> PackedSequence {
    let vocabulary = base.config().vocab_size;
    let ids: Vec<u32> = (0..32).map(|i| ((i * 7919 + 13) % vocabulary) as u32).collect();
    PackedSequence::single(&ids)
}

/// Removes whatever has this name, if anything has: a folder, or a file or link in its place.
fn remove(path: &Path) -> Result<(), TrainError> {
    let removed = match fs::symlink_metadata(path) {
        Ok(found) if found.is_dir() => fs::remove_dir_all(path),
        Ok(_) => fs::remove_file(path),
        Err(error) => Err(error),
    };
    match removed {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(TrainError::io(path)(error)),
        _ => Ok(()),
    }
}

/// Puts a folder where an older one may be, without an instant in which neither is there. On a file system
/// that cannot exchange the two, a kill in between leaves the older one next to it, as `.NAME.old`: names
/// that begin with a dot are the program's own, all others in the folder may be the user's.
fn replace(from: &Path, to: &Path) -> Result<(), TrainError> {
    let name = to.file_name().expect("an output has a name").to_string_lossy();
    let aside = to.with_file_name(format!(".{name}.old"));
    if fs::symlink_metadata(to).is_err() {
        fs::rename(from, to).map_err(TrainError::io(to))?;
    } else if !exchange(from, to).map_err(TrainError::io(to))? {
        replace_in_two_steps(from, to, &aside)?;
    }
    // The names reach the disk before the older one goes.
    let folder = to.parent().expect("an output lies in a folder");
    sync(folder).map_err(TrainError::io(folder))?;
    remove(from)?;
    remove(&aside)
}

fn replace_in_two_steps(from: &Path, to: &Path, aside: &Path) -> Result<(), TrainError> {
    remove(aside)?;
    fs::rename(to, aside).map_err(TrainError::io(to))?;
    fs::rename(from, to).map_err(TrainError::io(to))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_output_takes_the_place_of_an_older_one_and_leaves_nothing_beside_it() {
        let root = tempfile::tempdir().unwrap();
        let [new, output, aside] =
            [".merged.new", "merged", ".merged.old"].map(|name| root.path().join(name));
        let write = |word: &str| {
            fs::create_dir(&new).unwrap();
            fs::write(new.join("word"), word).unwrap();
        };
        let holds = |word: &str| {
            assert_eq!(fs::read_to_string(output.join("word")).unwrap(), word);
            assert!(!new.exists());
        };
        for word in ["first", "second"] {
            write(word);
            replace(&new, &output).unwrap();
            holds(word);
        }
        write("third");
        replace_in_two_steps(&new, &output, &aside).unwrap();
        holds("third");
        assert_eq!(
            fs::read_to_string(aside.join("word")).unwrap(),
            "second",
            "until the new one has its name"
        );
        write("fourth");
        replace(&new, &output).unwrap();
        holds("fourth");
        assert_eq!(fs::read_dir(root.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_file_or_a_dead_link_gives_way_and_the_users_own_folders_stay() {
        let root = tempfile::tempdir().unwrap();
        let [new, output, own] = [".merged.new", "merged", "merged.old"].map(|name| root.path().join(name));
        fs::create_dir(&own).unwrap();
        for in_the_way in ["file", "link"] {
            match in_the_way {
                "file" => fs::write(&output, "in the way").unwrap(),
                _ => std::os::unix::fs::symlink(root.path().join("nowhere"), &output).unwrap(),
            }
            fs::create_dir(&new).unwrap();
            replace(&new, &output).unwrap();
            assert!(fs::symlink_metadata(&output).unwrap().is_dir(), "{in_the_way}");
            assert!(own.is_dir() && fs::read_dir(root.path()).unwrap().count() == 2, "{in_the_way}");
            fs::remove_dir(&output).unwrap();
        }
    }
}
