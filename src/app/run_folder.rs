//! Creates the folder of a new run: downloads missing files of the model, then writes the plan, the
//! provenance and the data.

use std::collections::BTreeMap;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use serde::{Deserialize, Serialize};
use sparktune_base::escape::escape;
use sparktune_base::files::sync;
use sparktune_base::program_name;
use sparktune_data::Prepared;
use sparktune_data::token_file::TokenFile;
use sparktune_plan::{Device, Plan};
use sparktune_runlog::{NewRun, RunDir, RunsRoot};
use sparktune_telemetry::{Machine, Verdict, cuda_checks};

use crate::failure::{Exit, Failure};
use crate::folders::write_private_file;
use crate::job::Job;
use crate::listener::Listener;
use crate::model::{fetch, plan_head};
use crate::parent::{Parent, ParentNote};
use crate::program::Program;

/// Downloads missing files of the model and creates the run folder.
///
/// # Errors
/// The GPU cannot be used for training, the download failed, or the folder cannot be written.
pub fn create_run(program: &Program, job: Job, listener: &dyn Listener) -> Result<RunDir, Failure> {
    Ok(fill_run(program, job, listener)?.finish()?)
}

/// As [`create_run`], but the run becomes visible only when the caller has added to it and finishes it.
///
/// # Errors
/// The same as for [`create_run`].
pub fn fill_run(program: &Program, job: Job, listener: &dyn Listener) -> Result<NewRun, Failure> {
    let Job { mut plan, prepared, download, tokenizer, hub, facts } = job;
    refuse_unready_gpu(&plan)?;
    let head = plan.model.mtp_from.as_deref();
    let head = head.map(|name| plan_head(&hub, name, &facts.model, listener)).transpose()?;
    let snapshot = fetch(&hub, &download, listener)?;
    let folder =
        std::path::absolute(&snapshot.folder).map_err(|e| Failure::io("find", &snapshot.folder, &e))?;
    place_model(&mut plan, &folder, snapshot.commit.as_deref());
    if let Some(head) = head {
        let folder = fetch(&hub, &head, listener)?.folder;
        let folder = std::path::absolute(&folder).map_err(|e| Failure::io("find", &folder, &e))?;
        plan.model.mtp_path = Some(folder);
    }

    let prompts = match &plan.sample_prompts.0[..] {
        [] => Vec::new(),
        texts => tokenizer.prompts(texts, listener)?,
    };
    drop(tokenizer);

    let parent = Parent::of_plan(&plan)?;
    let note = parent.as_ref().map(Parent::note).transpose()?;
    let label = plan.name.clone().unwrap_or_else(|| plan.model.id.clone());
    let toml = plan.to_toml()?;
    let new = RunsRoot::new(&plan.runs_dir).begin(&label, plan.method.word())?;
    let run = new.dir();
    run.write_plan(&toml)?;
    let provenance = Provenance::new(program, &plan, snapshot.commit, &prepared)?;
    run.write_provenance(&Provenance { parent: note.as_ref().map(ParentNote::in_short), ..provenance })?;
    if let (Some(parent), Some(note)) = (&parent, &note) {
        parent.copy_into(run, note)?;
    }
    if let Some(template) = &plan.model.chat_template {
        let copy = run.chat_template();
        let copied = fs::copy(template, &copy).and_then(|_| sync(&copy));
        copied.map_err(|error| Failure::io("copy the chat template to", &copy, &error))?;
    }
    if !prompts.is_empty() {
        let text = serde_json::to_string(&prompts).expect("numbers are JSON");
        write_private_file(&run.prompts(), &text)?;
    }
    let data = run.data();
    let report = prepared.train.with_file_name("report.json");
    // The weights of the sets are not in the prepared report: other weights need no other tokens.
    let is_changed = prepared.report.sets.iter().any(|set| set.weight != 1.0);
    let report = (!is_changed).then_some(&report);
    let files = [&prepared.train, &prepared.eval].into_iter().chain(report).chain(prepared.rejected.as_ref());
    for file in files {
        let name = file.file_name().expect("prepared files have names");
        link_or_copy(file, &data.join(name))?;
    }
    if is_changed {
        let text = serde_json::to_string_pretty(&prepared.report).expect("a report is JSON");
        write_private_file(&data.join("report.json"), &text)?;
    }
    Ok(new)
}

/// Refuses training on a GPU on which the first kernel would fail, before anything is downloaded or loaded.
///
/// # Errors
/// Every check that failed, with what to do.
pub fn refuse_unready_gpu(plan: &Plan) -> Result<(), Failure> {
    if plan.device != Device::Cuda {
        return Ok(());
    }
    let checks = cuda_checks(&Machine::gather(), true);
    let failed: Vec<_> = checks.into_iter().filter(|check| check.verdict == Verdict::Failed).collect();
    if failed.is_empty() {
        return Ok(());
    }
    let found = failed.iter().map(|check| escape(&format!("{}: {}", check.name, check.found)).into_owned());
    let text =
        format!("this machine cannot train on its GPU yet\n  {}", found.collect::<Vec<_>>().join("\n  "));
    let fixes = failed.into_iter().filter_map(|check| check.fix).map(|fix| escape(&fix).into_owned());
    let failure = fixes.fold(Failure::new(Exit::Device, text), Failure::hint);
    Err(failure.hint(format!(
        "`{} doctor` shows every check; --device cpu trains small models without the GPU",
        program_name()
    )))
}

/// Writes the folder of the weights into the plan, which is known only now.
fn place_model(plan: &mut Plan, folder: &Path, commit: Option<&str>) {
    if plan.model.path.as_deref() == Some(folder) {
        return;
    }
    plan.model.path = Some(folder.to_owned());
    let rows = plan.advice.iter_mut().flat_map(|advice| &mut advice.explain);
    for row in rows.filter(|row| row.key == "model.path") {
        row.value = folder.display().to_string();
        row.reason =
            commit.map_or_else(|| "as given".into(), |commit| format!("downloaded, commit {commit}"));
    }
}

/// Links or copies a prepared file into the run, readable by the user alone. Token files are replaced by
/// rename and never changed in place, so a link is as good as a copy. If only another user may change the
/// mode of the file, it is copied.
fn link_or_copy(from: &Path, to: &Path) -> Result<(), Failure> {
    let make_private = || fs::set_permissions(to, Permissions::from_mode(0o600));
    if fs::hard_link(from, to).is_ok() {
        if make_private().is_ok() {
            return Ok(());
        }
        fs::remove_file(to).map_err(|error| Failure::io("replace", to, &error))?;
    }
    let copied = fs::copy(from, to).and_then(|_| make_private()).and_then(|()| sync(to));
    copied.map_err(|error| Failure::io("copy data to", to, &error))
}

/// The provenance of a run: its inputs, the program and the machine.
#[derive(Debug, Serialize, Deserialize)]
pub struct Provenance {
    sparktune: String,
    /// The BLAKE3 hash of the program, because only the same build continues a run bit for bit.
    pub build_blake3: String,
    command_line: Vec<String>,
    model: String,
    model_commit: Option<String>,
    /// What the run started from, if not from a published model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    parent: Option<ParentNote>,
    /// The data sets of the hub with their commits, by the names that the user gave.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    data_sets: BTreeMap<String, String>,
    train_tokens_blake3: String,
    eval_tokens_blake3: String,
    machine: Machine,
}

impl Provenance {
    fn new(
        program: &Program,
        plan: &Plan,
        commit: Option<String>,
        prepared: &Prepared,
    ) -> Result<Self, Failure> {
        let hash = |path: &Path| Ok::<_, Failure>(TokenFile::open(path)?.file_hash());
        Ok(Self {
            sparktune: env!("CARGO_PKG_VERSION").into(),
            build_blake3: program.build_hash()?,
            command_line: without_hook(std::env::args_os().map(|arg| arg.to_string_lossy().into_owned())),
            model: plan.model.id.clone(),
            model_commit: commit,
            parent: None,
            data_sets: prepared
                .inputs
                .iter()
                .filter_map(|input| Some((input.name.clone(), input.pinned.clone()?)))
                .collect(),
            train_tokens_blake3: hash(&prepared.train)?,
            eval_tokens_blake3: hash(&prepared.eval)?,
            machine: machine_without_gpu_users(),
        })
    }
}

/// Returns a command line without the command of `--on-end`, which may hold an address or a token that is not
/// for those with whom a run folder is shared.
fn without_hook(arguments: impl Iterator<Item = String>) -> Vec<String> {
    const HOOK: &str = "--on-end";
    const LEFT_OUT: &str = "(left out)";
    let mut is_hook = false;
    let shown = arguments.map(|argument| {
        let is_command = std::mem::replace(&mut is_hook, argument == HOOK);
        match argument.strip_prefix(HOOK) {
            _ if is_command => LEFT_OUT.to_owned(),
            Some(command) if command.starts_with('=') => format!("{HOOK}={LEFT_OUT}"),
            _ => argument,
        }
    });
    shown.collect()
}

/// Returns the facts about the machine without the other users of its GPU, because a run folder may be shared
/// with people who should not see them.
fn machine_without_gpu_users() -> Machine {
    let mut machine = Machine::gather();
    for gpu in &mut machine.gpus {
        gpu.users = None;
    }
    machine
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_at_the_end_is_in_no_provenance() {
        for (given, kept) in [
            (
                &["train", "--on-end", "curl secret", "--rank", "8"][..],
                &["train", "--on-end", "(left out)", "--rank", "8"][..],
            ),
            (&["train", "--on-end=curl secret"], &["train", "--on-end=(left out)"]),
            (&["train", "--on-end"], &["train", "--on-end"]),
            (&["train", "--name", "a"], &["train", "--name", "a"]),
        ] {
            assert_eq!(without_hook(given.iter().map(|word| (*word).to_owned())), kept);
        }
    }
}
