//! What a run leaves for use: `adapter/` (PEFT), `merged/`, `merged-mtp/`, `SERVE.md`.

use crate::TrainError;
use crate::draft_vocab;
use crate::evaluate::Evaluation;
use crate::run::{base, device, fresh_model, lora, restore};
use crate::serve::{HeadReport, Served, serve_page};
use crate::session::read_plan;
use crate::state::{Stage, State};
use sparktune_model::export::export;
use sparktune_model::{Checkpoint, Model, Mtp, Row};
use sparktune_plan::{Mtp as MtpChoice, Plan};
use sparktune_runlog::{Checkpoints, Lease, RunDir};
use std::fs;
use std::path::{Path, PathBuf};

/// Held-out prompts on which acceptance is measured.
const PROMPTS: usize = 4;

/// The MTP head at its two times.
pub(crate) struct Heads {
    /// The base's, when another was trained from it.
    pub(crate) before: Option<Mtp>,
    /// The one that is served.
    pub(crate) last: Option<Mtp>,
    /// The token ids to draft from, where the plan wants a part of them.
    pub(crate) among: Option<Vec<u32>>,
}

/// What was written.
pub(crate) struct Outputs {
    pub(crate) paths: Vec<PathBuf>,
    pub(crate) warnings: Vec<String>,
}

/// Writes everything into a folder, `outputs/` or one below it, replacing what an earlier export left there.
pub(crate) fn write(
    folder: &Path,
    plan: &Plan,
    base: &Checkpoint,
    model: &mut Model,
    heads: Heads,
    evaluation: Option<&Evaluation>,
    say: &mut dyn FnMut(String),
) -> Result<Outputs, TrainError> {
    fs::create_dir_all(folder).map_err(TrainError::io(folder))?;
    let mut paths = Vec::new();
    let adapter = lora(plan);
    if let Some(config) = adapter {
        let path = folder.join("adapter");
        let partial = folder.join("adapter.partial");
        remove(&partial)?;
        fs::create_dir_all(&partial).map_err(TrainError::io(&partial))?;
        model.save_lora(&partial, config, base, &plan.model.id)?;
        replace(&partial, &path)?;
        paths.push(path);
    }
    let probe = probe(base);
    let keep_mtp = plan.mtp != MtpChoice::None;
    let mut served = "merged";
    let mut exported = |name: &str, mtp: Option<&Mtp>| -> Result<(), TrainError> {
        let path = folder.join(name);
        // An earlier export goes only when the new one has passed its checks.
        let fresh = folder.join(format!("{name}.new"));
        remove(&fresh)?;
        let done = export(base, model, mtp, keep_mtp, &fresh, &probe)?;
        replace(&fresh, &path)?;
        say(format!(
            "{name}: {} tensors trained, {} carried over, {} of the base in all; loaded again, logits within {:.1e}",
            done.trained, done.carried, done.base_tensors, done.logits_distance
        ));
        paths.push(path);
        Ok(())
    };
    exported("merged", None)?;
    if plan.mtp == MtpChoice::Trained && heads.last.is_some() {
        exported("merged-mtp", heads.last.as_ref())?;
        served = "merged-mtp";
    }

    let frozen = model.frozen();
    let mut warnings = Vec::new();
    let mut report = |which: &str, mtp: &Option<Mtp>, among: Option<&[u32]>| {
        let evaluation = evaluation?;
        let mut mtp = mtp.clone()?;
        mtp.set_trainable(false);
        let report =
            HeadReport::measure(&frozen, &mtp, among, &evaluation.prompts(PROMPTS), &evaluation.stops())?;
        say(format!("{which}: {}", report.in_a_line()));
        if !report.equal_to_greedy {
            warnings.push(format!(
                "speculative decoding with the {which} gave another text than greedy decoding; serve without drafts and report this"
            ));
        }
        Some(report)
    };
    let which = if heads.before.is_some() { "trained MTP head" } else { "base's MTP head" };
    let before = report("base's MTP head", &heads.before, None);
    let last = report(which, &heads.last, None);
    let among = heads.among.as_deref().filter(|_| heads.last.is_some());
    let trimmed = among.and_then(|ids| report(which, &heads.last, Some(ids)));
    if let Some(ids) = among {
        let path = folder.join("draft-tokens.pt");
        draft_vocab::write_token_map(&path, ids)?;
        paths.push(path);
    }
    let has_adapter = adapter.is_some();
    let page = serve_page(&Served {
        plan,
        folder: served,
        has_adapter,
        is_tied: base.is_tied(),
        before,
        last,
        trimmed,
        has_draft_tokens: among.is_some(),
    });
    let path = folder.join("SERVE.md");
    fs::write(&path, page).map_err(TrainError::io(&path))?;
    paths.push(path);
    Ok(Outputs { paths, warnings })
}

/// Exports a run again from its newest whole checkpoint into `outputs/`, or from the one with the best eval loss into
/// `outputs/best/`.
///
/// # Errors
/// When the run is training, has no checkpoint, or the export fails its own check.
pub fn export_run(run: &RunDir, best: bool) -> Result<Vec<PathBuf>, TrainError> {
    let _lease = Lease::acquire(run)?;
    let plan = read_plan(run)?;
    let mut checkpoints = Checkpoints::new(run);
    let newest = checkpoints.newest_valid()?.checkpoint.ok_or(TrainError::NothingToExport)?;
    let mut state = State::read(&newest.path)?;
    let mut folder = newest.path;
    if best {
        folder = checkpoints.verify(state.best_step.ok_or(TrainError::NoBest)?)?.path;
        state = State::read(&folder)?;
    }
    let base = base(&plan)?;
    let device = device(&plan)?;
    let mut model = fresh_model(&plan, &base, &device, &mut |_, _| ())?;
    let wants_head = base.has_mtp() && plan.mtp != MtpChoice::None;
    let mut head = if wants_head { Some(Mtp::load(&base, &device)?) } else { None };
    let before = head.clone().filter(|_| state.stage == Stage::Mtp);
    restore(&folder, &state, &mut model, head.as_mut())?;
    // A head that was not trained yet is the base's.
    let plan = match state.stage {
        Stage::Main if plan.mtp == MtpChoice::Trained => Plan { mtp: MtpChoice::Default, ..plan },
        _ => plan,
    };
    let among = draft_vocab::of_run(&plan, &run.data().join("train.qubgpu"), &base)?;
    let heads = Heads { before, last: head, among };
    let held_out = run.data().join("eval.qubgpu");
    let vocabulary = base.config().vocab_size;
    let evaluation = Evaluation::open(&plan, &held_out, base.dir(), vocabulary, &mut |_| ())?;
    // The best weights are others than the last: they get a folder of their own.
    let into = if best { run.outputs().join("best") } else { run.outputs() };
    Ok(write(&into, &plan, &base, &mut model, heads, evaluation.as_ref(), &mut |_| ())?.paths)
}

/// Tokens spread over the vocabulary, whose logits are compared between memory and disk.
fn probe(base: &Checkpoint) -> Row {
    let vocabulary = base.config().vocab_size;
    let ids: Vec<u32> = (0..32).map(|i| ((i * 7919 + 13) % vocabulary) as u32).collect();
    Row::single(&ids)
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
