//! Chooses the MTP head that is served, the base's or the trained one, by what the model accepts of its
//! drafts.
//!
//! Enters: the heads of an export. Leaves: the head with the reports on it. The files are written elsewhere.

use std::path::Path;

use sparktune_model::{Checkpoint, Model, ModelError, Mtp};

use crate::acceptance::{self, Answers};
use crate::error::TrainError;
use crate::evaluate::EvalSet;
use crate::head_report::HeadReport;
use crate::outputs::{Export, Heads, TextModelOutputs};

const BASE_HEAD: &str = "base's MTP head";
const TRAINED_HEAD: &str = "trained MTP head";

/// The head that is served, and what was measured.
pub(crate) struct ServedHead<'a> {
    pub(crate) head: Option<&'a Mtp>,
    /// Whether it is the trained one.
    pub(crate) is_trained: bool,
    /// The base's head and the trained one, if both were measured.
    pub(crate) compared: Option<[HeadReport; 2]>,
    pub(crate) report: Option<HeadReport>,
    /// Like `report`, with drafts limited to the ids of the plan's draft vocabulary.
    pub(crate) trimmed: Option<HeadReport>,
}

/// Returns whether the outputs in a folder serve the trained head. The base's head, where it is the better
/// one, is in `merged-mtp/` as the base has it. `None` if there is no such folder.
///
/// # Errors
/// When the folder cannot be read.
pub(crate) fn serves_trained_head(outputs: &Path, base: &Checkpoint) -> Result<Option<bool>, TrainError> {
    let folder = outputs.join("merged-mtp");
    if !folder.is_dir() {
        return Ok(None);
    }
    let served = Checkpoint::open_with(&folder, base.options())?;
    let mut of_base = base.tensors().iter().filter(|(name, _)| name.starts_with("mtp."));
    Ok(Some(of_base.any(|(name, info)| {
        served.tensors().get(name).is_none_or(|found| served.bytes(found) != base.bytes(info))
    })))
}

impl Export<'_> {
    /// Measures the heads and chooses the better one. A trained head must be better than the base's beyond
    /// noise. Without an eval set, prompts of the training data have to do.
    ///
    /// # Errors
    /// When the export must not go on, or the eval set is damaged.
    pub(crate) fn choose_head<'h>(
        &self,
        model: &Model,
        heads: &'h Heads,
        text_model: &mut TextModelOutputs,
    ) -> Result<ServedHead<'h>, TrainError> {
        let frozen = model.frozen();
        if text_model.answers.is_none() && heads.last.is_some() {
            text_model.answers = self.write_answers(&frozen, heads.before.is_some())?;
        }
        let answers = text_model.answers.as_ref();
        let measure = |which: &str, head: Option<&Mtp>, among: Option<&[u32]>| {
            self.measure_head(&frozen, which, head, among, answers)
        };
        if text_model.base_head.is_none() {
            let of_base = heads.before.as_ref().or(heads.last.as_ref());
            text_model.base_head = measure(BASE_HEAD, of_base, None)?;
        }
        let of_base = text_model.base_head.clone();
        let mut served = ServedHead {
            head: heads.last.as_ref(),
            is_trained: heads.before.is_some(),
            compared: None,
            report: of_base.clone(),
            trimmed: None,
        };
        if let Some(base_head) = &heads.before {
            served.report = measure(TRAINED_HEAD, served.head, None)?;
            if let (Some(base), Some(trained)) = (of_base, served.report.clone()) {
                let comparison = trained.compared_with(&base);
                if trained.is_better_than(&base) {
                    (self.record)(format!("the trained MTP head is better than the base's: {comparison}"));
                } else {
                    (self.record)(format!(
                        "the trained MTP head is not better within noise, so the outputs have the base's: {comparison}"
                    ));
                    (served.head, served.is_trained) = (Some(base_head), false);
                    served.report = Some(base.clone());
                }
                served.compared = Some([base, trained]);
            } else {
                (self.record)(
                    "the trained MTP head could not be measured, because no example has a prompt, so the outputs have the base's"
                        .to_owned(),
                );
                (served.head, served.is_trained) = (Some(base_head), false);
            }
        }
        if let Some(ids) = heads.draft_ids() {
            let which = if served.is_trained { TRAINED_HEAD } else { BASE_HEAD };
            served.trimmed = measure(which, served.head, Some(ids))?;
        }
        Ok(served)
    }

    /// Writes the answers on which heads are measured. Without an eval set there are some only for a choice
    /// between heads.
    fn write_answers(&self, model: &Model, is_choice: bool) -> Result<Option<Answers>, TrainError> {
        let of_training = match self.eval_set {
            None if is_choice => EvalSet::of_training(self.run, self.plan, self.base)?,
            _ => None,
        };
        let Some(prompts) = self.eval_set.or(of_training.as_ref()) else { return Ok(None) };
        let may_go_on = |done, total| self.may_go_on(done, total, "tokens of answers");
        Ok(Some(Answers {
            texts: acceptance::write_answers(model, prompts, &may_go_on)?,
            stops: prompts.stop_ids(),
            are_of_training: of_training.is_some(),
        }))
    }

    /// Reports progress, and ends the export if it must not go on.
    fn may_go_on(&self, done: usize, total: usize, unit: &str) -> Result<(), ModelError> {
        if !(self.go_on)() {
            return Err(ModelError::Stopped);
        }
        (self.progress)(done.min(total) as u64, total as u64, unit);
        Ok(())
    }

    /// Measures the drafts of a head, if there is one and there are answers.
    fn measure_head(
        &self,
        model: &Model,
        which: &str,
        head: Option<&Mtp>,
        among: Option<&[u32]>,
        answers: Option<&Answers>,
    ) -> Result<Option<HeadReport>, TrainError> {
        let Some((answers, head)) = answers.zip(head) else { return Ok(None) };
        let mut head = head.clone();
        head.set_trainable(false);
        let may_go_on = |done, total| self.may_go_on(done, total, "answers measured");
        let report = HeadReport::measure(model, &head, among, answers, &may_go_on)?;
        if let Some(report) = &report {
            (self.record)(format!("{which}: {}", report.in_a_line()));
            if let Some(defect) = report.defect() {
                (self.warn)(format!(
                    "speculative decoding with the {which} produced a different text than greedy decoding; serve without drafts, and report this: {}",
                    defect.in_words()
                ));
            }
        }
        Ok(report)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn the_outputs_say_which_head_they_serve_by_its_weights() {
        let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/qwen35/checkpoint");
        let base = Checkpoint::open(&fixture).unwrap();
        let outputs = tempfile::tempdir().unwrap();
        let says = || serves_trained_head(outputs.path(), &base).unwrap();
        assert_eq!(says(), None);
        let folder = outputs.path().join("merged-mtp");
        fs::create_dir(&folder).unwrap();
        for file in fs::read_dir(&fixture).unwrap().map(|file| file.unwrap()) {
            fs::copy(file.path(), folder.join(file.file_name())).unwrap();
        }
        assert_eq!(says(), Some(false));
        let info = &base.tensors()["mtp.norm.weight"];
        let path = folder.join(base.shards().nth(info.shard).unwrap().file_name().unwrap());
        let mut bytes = fs::read(&path).unwrap();
        let weight = base.bytes(info);
        let at = bytes.windows(weight.len()).position(|found| found == weight).unwrap();
        bytes[at] ^= 1;
        fs::write(&path, bytes).unwrap();
        assert_eq!(says(), Some(true));
    }
}
