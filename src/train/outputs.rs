//! Writes the outputs of a run: `adapter/` and `adapter-causal-lm/` (PEFT), `merged/`, `merged-mtp/`,
//! `draft-tokens.pt` and `SERVE.md`.
//!
//! Enters: a trained model, its heads and the base. Leaves: folders that were loaded again and compared
//! before they replaced older ones. It must not know the loop.

use std::fs;
use std::path::{Path, PathBuf};

use sparktune_base::files::{exchange, sync, write_and_sync};
use sparktune_base::shell::shown_word;
use sparktune_data::chat_template_of;
use sparktune_model::export::Merged;
use sparktune_model::{BaseClass, Checkpoint, LoraConfig, Model, Mtp, PackedSequence};
use sparktune_plan::{Mtp as MtpChoice, Plan};
use sparktune_runlog::RunDir;

use crate::acceptance::Answers;
use crate::draft_vocab::write_token_map;
use crate::error::TrainError;
use crate::evaluate::EvalSet;
use crate::examples::{open_tokens, train_tokens};
use crate::exported_template::exported_template;
use crate::head_report::HeadReport;
use crate::load;
use crate::serve::{Served, serve_page};
use crate::vllm::{Serving, other_prompts};

/// The page that says how to serve the outputs.
const PAGE: &str = "SERVE.md";
/// The folder of the model with a chosen head.
const WITH_HEAD: &str = "merged-mtp";
/// The ids to draft from.
const DRAFT_TOKENS: &str = "draft-tokens.pt";

/// The MTP head before and after training.
pub(crate) struct Heads {
    /// The base's head, if the served one was trained from it.
    pub(crate) before: Option<Mtp>,
    /// The head to serve, if it is the better one.
    pub(crate) last: Option<Mtp>,
    /// The token ids to draft from, if the plan restricts them.
    pub(crate) among: Option<Vec<u32>>,
}

impl Heads {
    /// Returns the restricted ids, if there is a head to draft from them.
    pub(crate) fn draft_ids(&self) -> Option<&[u32]> {
        self.among.as_deref().filter(|_| self.last.is_some())
    }
}

/// The written text model.
#[derive(Default)]
pub(crate) struct TextModelOutputs {
    paths: Vec<PathBuf>,
    /// Whether an earlier attempt has written it.
    pub(crate) was_there: bool,
    /// The model's greedy answers, once they are written.
    pub(crate) answers: Option<Answers>,
    /// The report on the base's head, once it is measured.
    pub(crate) base_head: Option<HeadReport>,
}

/// The inputs of an export and its folder.
pub(crate) struct Export<'a> {
    /// The run, which has the lengths of its examples and may have a chat template of its own.
    pub(crate) run: &'a RunDir,
    /// `outputs/` or a folder below it. The files of an earlier export there are replaced.
    pub(crate) folder: &'a Path,
    /// The flag of `export` that names these weights, with a space before it; empty for the planned ones.
    pub(crate) flag: &'a str,
    pub(crate) plan: &'a Plan,
    pub(crate) base: &'a Checkpoint,
    /// The eval set, whose prompts are needed to measure drafts.
    pub(crate) eval_set: Option<&'a EvalSet>,
    /// Is called with a description of each result.
    pub(crate) record: &'a dyn Fn(String),
    pub(crate) warn: &'a dyn Fn(String),
    /// Is called with the progress of a measurement: units done, of how many, and which.
    pub(crate) progress: &'a dyn Fn(u64, u64, &str),
    /// Is asked between tensors, layers and measurements. If it says no, the export ends with
    /// [`ModelError::Stopped`](sparktune_model::ModelError::Stopped).
    pub(crate) go_on: &'a dyn Fn() -> bool,
}

impl Export<'_> {
    /// Returns whether an earlier export into this folder was complete, as its page shows, which is written
    /// last.
    pub(crate) fn has_page(&self) -> bool {
        self.folder.join(PAGE).is_file()
    }

    /// Writes the text model: `adapter/` and `merged/`, which has the base's MTP head. With `keep`,
    /// `merged/` stays if it is there already with exactly these weights. If it has others, what belongs to
    /// them is removed with it: `merged-mtp/`, the ids to draft from, and the page.
    ///
    /// # Errors
    /// When a file cannot be written, or the written model does not compute the same as the model in memory.
    pub(crate) fn write_text_model(&self, model: &Model, keep: bool) -> Result<TextModelOutputs, TrainError> {
        fs::create_dir_all(self.folder).map_err(TrainError::io(self.folder))?;
        let adapters = self.adapters();
        for name in ["merged", WITH_HEAD].into_iter().chain(adapters.iter().map(|class| class.folder())) {
            self.remove_unfinished(name)?;
        }
        let (template, merged) = (self.template()?, self.folder.join("merged"));
        let mut paths: Vec<PathBuf> = adapters.iter().map(|class| self.folder.join(class.folder())).collect();
        // Adapters are small, and nothing compares those that are there.
        if let Some(config) = load::lora(self.plan) {
            for class in adapters {
                self.write_adapter(model, config, *class)?;
            }
        }
        // They get their names together with the model, so that no two folders have different weights.
        let name_adapters = || {
            adapters
                .iter()
                .try_for_each(|class| replace(&self.unnamed(*class), &self.folder.join(class.folder())))
        };
        // What belongs to a text model: a head that was trained on it, its ids to draft from, and the page.
        let of_model = [WITH_HEAD, DRAFT_TOKENS, PAGE].map(|name| self.folder.join(name));
        let is_the_same = merged.is_dir()
            && (keep || of_model.iter().any(|path| path.exists()))
            && self
                .merged(model, None, template.as_deref(), &probe(self.base))
                .is_written(&merged, &mut || (self.go_on)())?;
        let was_there = keep && is_the_same;
        if was_there {
            (self.record)("merged is there already, with exactly these weights".to_owned());
            name_adapters()?;
        } else {
            self.write_merged("merged", model, None, || {
                // What belongs to other weights is removed first: an attempt after a kill in between then
                // finds the older text model without its head, and not the new one beside a head of the older
                // one.
                if !is_the_same {
                    of_model.iter().try_for_each(|path| remove(path))?;
                }
                name_adapters()
            })?;
        }
        paths.push(merged);
        Ok(TextModelOutputs { paths, was_there, answers: None, base_head: None })
    }

    /// Writes what it takes to serve the written text model with these heads: `merged-mtp/` if a head was
    /// trained, with the better one of the trained and the base's, the ids to draft from, and the page, which
    /// begins with `notes`. Returns the paths of all outputs.
    ///
    /// # Errors
    /// The same as for [`write_text_model`](Self::write_text_model).
    pub(crate) fn write_served(
        &self,
        model: &Model,
        heads: &Heads,
        text_model: &mut TextModelOutputs,
        notes: &[String],
    ) -> Result<Vec<PathBuf>, TrainError> {
        let mut paths = text_model.paths.clone();
        let chosen = self.choose_head(model, heads, text_model)?;
        let mut served = "merged";
        if let Some(head) = chosen.head.filter(|_| heads.before.is_some()) {
            served = WITH_HEAD;
            paths.push(self.write_merged(served, model, Some(head), || Ok(()))?);
        } else {
            // A folder of an earlier export has other weights, and whoever looks for a head would take it.
            remove(&self.folder.join(WITH_HEAD))?;
        }
        let draft_ids = heads.draft_ids();
        let path = self.folder.join(DRAFT_TOKENS);
        if let Some(ids) = draft_ids {
            write_token_map(&path, ids)?;
            paths.push(path);
        } else {
            remove(&path)?;
        }
        let own_template = self.template()?;
        let template = match &own_template {
            Some(own) => Some(own.clone()),
            None => chat_template_of(self.base.dir())?,
        };
        let config = self.base.config();
        let tokens = open_tokens(&train_tokens(self.run), config.vocab_size)?;
        let serving = Serving {
            plan: self.plan,
            config,
            template: template.as_deref(),
            is_own_template: own_template.is_some(),
            longest: tokens.lengths().iter().copied().max().unwrap_or(0),
        };
        let notes: Vec<String> = notes.iter().cloned().chain(other_prompts(self.run)).collect();
        let page = serve_page(&Served {
            plan: self.plan,
            run: &format!("{}{}", shown_word(self.run.name().as_ref()), self.flag),
            serving,
            folder: served,
            notes: &notes,
            adapters: self.adapters(),
            is_wrapper: self.base.is_wrapper(),
            is_tied: self.base.is_tied(),
            compared: chosen.compared,
            is_trained: chosen.is_trained,
            has_unmeasured_head: heads.before.is_some() && chosen.report.is_none(),
            last: chosen.report,
            trimmed: chosen.trimmed,
            has_draft_tokens: draft_ids.is_some(),
        });
        let path = self.folder.join(PAGE);
        write_and_sync(&path, page).map_err(TrainError::io(&path))?;
        paths.push(path);
        sync(self.folder).map_err(TrainError::io(self.folder))?;
        Ok(paths)
    }

    /// Returns the classes for which an adapter is written.
    fn adapters(&self) -> &'static [BaseClass] {
        match load::lora(self.plan) {
            Some(_) => BaseClass::all_of(self.base),
            None => &[],
        }
    }

    /// Returns where an adapter is until it gets its name.
    fn unnamed(&self, class: BaseClass) -> PathBuf {
        self.folder.join(format!(".{}.new", class.folder()))
    }

    fn write_adapter(&self, model: &Model, config: LoraConfig, class: BaseClass) -> Result<(), TrainError> {
        let folder = self.unnamed(class);
        fs::create_dir_all(&folder).map_err(TrainError::io(&folder))?;
        Ok(model.save_lora(&folder, config, self.base, &self.plan.model.reference(), class)?)
    }

    /// Returns the chat template that is exported, if it is not the base's.
    fn template(&self) -> Result<Option<String>, TrainError> {
        exported_template(self.run, self.plan, self.base.dir())
    }

    /// Describes a whole model folder, with this MTP head or the base's.
    fn merged<'a>(
        &'a self,
        model: &'a Model,
        mtp: Option<&'a Mtp>,
        chat_template: Option<&'a str>,
        probe: &'a PackedSequence,
    ) -> Merged<'a> {
        let keep_mtp = self.plan.mtp != MtpChoice::None;
        Merged { base: self.base, model, mtp, keep_mtp, beside: None, chat_template, probe }
    }

    /// Removes what an attempt that was killed has left of an output. The older output is kept if there is no
    /// newer one.
    fn remove_unfinished(&self, name: &str) -> Result<(), TrainError> {
        let hidden = |ending: &str| self.folder.join(format!(".{name}.{ending}"));
        remove(&hidden("new"))?;
        remove(&hidden("partial"))?;
        if self.folder.join(name).is_dir() { remove(&hidden("old")) } else { Ok(()) }
    }

    /// Writes a whole model folder. One with a trained head shares files with `merged/`, which was written
    /// before. `before_it_counts` is called when the folder has passed its checks and does not have its name
    /// yet.
    fn write_merged(
        &self,
        name: &str,
        model: &Model,
        mtp: Option<&Mtp>,
        before_it_counts: impl FnOnce() -> Result<(), TrainError>,
    ) -> Result<PathBuf, TrainError> {
        let path = self.folder.join(name);
        // An earlier export is removed only after the new one has passed its checks.
        let unchecked = self.folder.join(format!(".{name}.new"));
        let (probe, template, beside) = (probe(self.base), self.template()?, self.folder.join("merged"));
        let merged = Merged {
            beside: mtp.map(|_| beside.as_path()),
            ..self.merged(model, mtp, template.as_deref(), &probe)
        };
        let done = merged.write(&unchecked, &mut || (self.go_on)())?;
        before_it_counts()?;
        replace(&unchecked, &path)?;
        (self.record)(format!(
            "{name} was written and checked: {} tensors of the model in memory, {} copied; the base model has {}; logits differ by at most {:.1e} after loading",
            done.trained, done.carried, done.base_tensors, done.logits_distance
        ));
        Ok(path)
    }
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
    if let Err(error) = fs::rename(from, to) {
        fs::rename(aside, to).map_err(TrainError::io(aside))?;
        return Err(TrainError::io(to)(error));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use sparktune_runlog::RunsRoot;

    use super::*;
    use crate::testing::plan;

    fn fixture() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/qwen35/checkpoint")
    }

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
        replace_in_two_steps(&new, &output, &aside).unwrap_err();
        holds("third");
        write("fourth");
        replace(&new, &output).unwrap();
        holds("fourth");
        assert_eq!(fs::read_dir(root.path()).unwrap().count(), 1);
    }

    #[test]
    fn what_a_kill_has_left_of_an_output_goes_but_not_an_older_one_that_is_the_only_one() {
        let root = tempfile::tempdir().unwrap();
        let base = Checkpoint::open(&fixture()).unwrap();
        let run = RunsRoot::new(root.path()).create("m", "lora").unwrap();
        let plan = plan("Qwen/Qwen3.5-2B");
        let export = Export {
            run: &run,
            folder: root.path(),
            flag: "",
            plan: &plan,
            base: &base,
            eval_set: None,
            record: &|_| (),
            warn: &|_| (),
            progress: &|_, _, _| (),
            go_on: &|| true,
        };
        let there = || {
            let hidden = [".merged.new", ".merged.partial", ".merged.old"];
            hidden.into_iter().filter(|name| root.path().join(name).exists()).collect::<Vec<_>>()
        };
        for name in [".merged.new", ".merged.partial", ".merged.old"] {
            fs::create_dir(root.path().join(name)).unwrap();
        }
        export.remove_unfinished("merged").unwrap();
        assert_eq!(there(), [".merged.old"]);
        fs::create_dir(root.path().join("merged")).unwrap();
        export.remove_unfinished("merged").unwrap();
        assert!(there().is_empty() && root.path().join("merged").is_dir());
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
