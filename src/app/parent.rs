//! Finds the run or the adapter that a new run starts from (`--from`).
//!
//! Enters: the answer, which is a run's name or a folder. Leaves: its facts for the plan, the model that it
//! belongs to, and a copy of an adapter in the new run's folder, so that the run never needs it again. The
//! folder of an adapter is untrusted; the rules for it are `sparktune_plan::adapter`'s.

use std::fs;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use safetensors::tensor::Metadata;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sparktune_base::escape::escape;
use sparktune_base::files::{create_private_folder, private_file};
use sparktune_base::program_name;
use sparktune_base::regular_file::{open_regular, read_model_json, read_regular};
use sparktune_plan::adapter::{AdapterConfig, CONFIG_FILE, FittedAdapter, PICKLE_FILE, TENSOR_FILE};
use sparktune_plan::{
    Answer, Answers, Method, ModelConfig, Origin, ParentFacts, ParentWeights, Plan, Setting,
};
use sparktune_runlog::{Checkpoints, RunDir, RunView, RunsRoot};

use crate::failure::Failure;
use crate::folders::runs_dir_of;
use crate::shell::run_argument;

/// The most bytes that the list of an adapter's tensors may have.
const MOST_HEADER_BYTES: u64 = 16 << 20;
/// The most bytes that the state of a checkpoint may have.
const MOST_STATE_BYTES: u64 = 16 << 20;

/// The run or adapter that a new run starts from.
pub(crate) struct Parent {
    given: String,
    /// The folder of the run or of the adapter, absolute.
    folder: PathBuf,
    run: Option<(RunDir, Plan)>,
    step: Option<u64>,
    weights: Weights,
}

enum Weights {
    Adapter { folder: PathBuf, config: AdapterConfig },
    Model(PathBuf),
}

/// What `provenance.json` and `parent/parent.json` say about the parent of a run.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct ParentNote {
    /// The folder of the run or of the adapter.
    folder: PathBuf,
    /// The step of the weights, if they come from a run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    step: Option<u64>,
    /// Whether it is an adapter, and not a model.
    is_adapter: bool,
    /// The base that it was trained on, an id or a folder, if it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    base: Option<String>,
    /// The hash of the adapter's tensors.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    adapter_blake3: Option<String>,
    /// The files of that base, as the trainer knows them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    base_files: Option<Value>,
}

impl ParentNote {
    /// Returns the note without the files of the base.
    pub(crate) fn in_short(&self) -> Self {
        Self { base_files: None, ..self.clone() }
    }
}

impl Parent {
    /// Finds what a plan starts from.
    ///
    /// # Errors
    /// The same as for [`find`](Self::find).
    pub(crate) fn of_plan(plan: &Plan) -> Result<Option<Self>, Failure> {
        let from = plan.model.from.clone().map(Answer::flag);
        let runs_dir = Some(Answer::flag(plan.runs_dir.clone()));
        Self::find(&Answers { from, runs_dir, ..Answers::default() })
    }

    /// Finds what the answers say to start from. `None` if they say nothing.
    ///
    /// # Errors
    /// There is no such run or adapter, it has no exported weights, or its config cannot be used.
    pub(crate) fn find(answers: &Answers) -> Result<Option<Self>, Failure> {
        let Some(given) = answers.from.as_ref().map(|answer| answer.value.clone()) else { return Ok(None) };
        let path = PathBuf::from(&given);
        if [CONFIG_FILE, TENSOR_FILE, PICKLE_FILE].iter().any(|file| path.join(file).is_file()) {
            let folder = absolute(&path)?;
            let weights = Weights::adapter(folder.clone())?;
            return Ok(Some(Self { given, folder, run: None, step: None, weights }));
        }
        let run = RunsRoot::new(runs_dir_of(answers)).resolve(&given).map_err(|error| {
            Failure::from(error).hint(format!(
                "{} takes a run, or the folder of an adapter with its {CONFIG_FILE}",
                place(answers)
            ))
        })?;
        let plan = Plan::from_toml(&run.read_plan()?, &run.plan().display().to_string())?;
        let step = RunView::glance(&run)?.exported_step();
        let exported = |name: &str| Some(run.outputs().join(name)).filter(|folder| folder.is_dir());
        let is_adapter = matches!(plan.method, Method::Lora { .. });
        let folder = if is_adapter {
            exported("adapter")
        } else {
            // The head of the first was trained on these weights.
            exported("merged-mtp").or_else(|| exported("merged"))
        };
        let Some(weights) = folder else { return Err(not_exported(&run)) };
        let weights = absolute(&weights)?;
        let weights = if is_adapter { Weights::adapter(weights)? } else { Weights::Model(weights) };
        let folder = absolute(run.path())?;
        Ok(Some(Self { given, folder, run: Some((run, plan)), step, weights }))
    }

    /// Returns its facts for a plan with this model.
    ///
    /// # Errors
    /// The adapter does not fit the model.
    pub(crate) fn facts(&self, model: &ModelConfig) -> Result<ParentFacts, Failure> {
        let weights = match &self.weights {
            Weights::Model(folder) => ParentWeights::Model(folder.clone()),
            Weights::Adapter { folder, config } => ParentWeights::Adapter {
                adapter: fit(folder, config, model)?.facts,
                merged: self
                    .run
                    .as_ref()
                    .map(|(run, _)| run.outputs().join("merged"))
                    .filter(|path| path.is_dir()),
            },
        };
        Ok(ParentFacts {
            given: self.given.clone(),
            folder: self.folder.display().to_string(),
            step: self.step,
            weights,
        })
    }

    /// Returns the base of its training, an id or a folder, if it is known.
    fn base(&self) -> Option<String> {
        match (&self.run, &self.weights) {
            (Some((_, plan)), _) => Some(plan.model.id.clone()),
            (None, Weights::Adapter { config, .. }) => config.base_model.clone(),
            (None, Weights::Model(_)) => None,
        }
    }

    /// Adds the model that the parent belongs to, if the answers name none. All weights of a run replace the
    /// model that they were trained from.
    fn with_its_model(&self, mut answers: Answers) -> Result<Answers, Failure> {
        let origin = answers.from.as_ref().map_or(Origin::Flag, |answer| answer.origin);
        let base = self.base();
        let named = answers.model.as_ref().map(|answer| answer.value.clone());
        let is_other = |named: &str, base: &str| match &self.weights {
            // Another name of a folder may be the same model, which the trainer finds out by its files.
            Weights::Adapter { .. } => is_id(named) && is_id(base) && named != base,
            Weights::Model(folder) => named != base && Path::new(named) != folder,
        };
        if let (Some(named), Some(base)) = (&named, &base)
            && is_other(named, base)
        {
            let (given, base, named) = (escape(&self.given), escape(base), escape(named));
            let text = format!("{given} was trained on {base}, but --model is {named}");
            return Err(Failure::usage(text).hint("Omit --model, or start from weights of the same model"));
        }
        match &self.weights {
            Weights::Model(folder) => {
                answers.model = Some(Answer::new(folder.display().to_string(), origin));
                answers.revision = None;
            }
            Weights::Adapter { config, .. } if named.is_none() => {
                let Some(base) = base else { return Ok(answers) };
                answers.model = Some(Answer::new(base, origin));
                let revision = match &self.run {
                    Some((run, plan)) => commit_of(run).or_else(|| plan.model.revision.clone()),
                    None => config.revision.clone(),
                };
                answers.revision =
                    answers.revision.or(revision.map(|revision| Answer::new(revision, origin)));
            }
            Weights::Adapter { .. } => {}
        }
        if let Some((_, plan)) = &self.run {
            let (family, ignored) = (plan.model.architecture, plan.model.ignored_fields.clone());
            answers.architecture = answers.architecture.or(family.map(|family| Answer::new(family, origin)));
            let ignored = (!ignored.is_empty()).then(|| Answer::new(ignored, origin));
            answers.ignore_config_field = answers.ignore_config_field.or(ignored);
        }
        Ok(answers)
    }

    /// Describes the parent for `provenance.json`.
    ///
    /// # Errors
    /// A file of the parent cannot be read.
    pub(crate) fn note(&self) -> Result<ParentNote, Failure> {
        let adapter_blake3 = match &self.weights {
            Weights::Model(_) => None,
            Weights::Adapter { folder, .. } => {
                let path = folder.join(TENSOR_FILE);
                let mut hasher = blake3::Hasher::new();
                open_regular(&path)
                    .and_then(|file| hasher.update_reader(file).map(|_| ()))
                    .map_err(|error| Failure::io("read", &path, &error))?;
                Some(hasher.finalize().to_hex().to_string())
            }
        };
        Ok(ParentNote {
            folder: self.folder.clone(),
            step: self.step,
            is_adapter: matches!(self.weights, Weights::Adapter { .. }),
            base: self.base(),
            adapter_blake3,
            base_files: self.run.as_ref().and_then(|(run, _)| base_files_of(run)),
        })
    }

    /// Writes `parent/` into the folder of a new run.
    ///
    /// # Errors
    /// A file cannot be read or written.
    pub(crate) fn copy_into(&self, run: &RunDir, note: &ParentNote) -> Result<(), Failure> {
        let folder = run.parent();
        create_private_folder(&folder).map_err(|error| Failure::io("create", &folder, &error))?;
        if let Weights::Adapter { folder: from, .. } = &self.weights {
            for name in [CONFIG_FILE, TENSOR_FILE] {
                let (from, to) = (from.join(name), folder.join(name));
                copy(&from, &to).map_err(|error| Failure::io("copy the adapter to", &to, &error))?;
            }
        }
        let path = folder.join("parent.json");
        let json = serde_json::to_vec_pretty(note).expect("plain fields serialise");
        let written = private_file().create_new(true).open(&path);
        written
            .and_then(|mut file| file.write_all(&json))
            .map_err(|error| Failure::io("write", &path, &error))
    }
}

/// Adds the model of the run or adapter that the answers start from, if they name no model.
///
/// # Errors
/// The same as for [`Parent::find`], and a model that is not the parent's.
pub(crate) fn with_model_of_parent(answers: Answers) -> Result<Answers, Failure> {
    match Parent::find(&answers)? {
        Some(parent) => parent.with_its_model(answers),
        None => Ok(answers),
    }
}

/// Returns the facts about what the answers start from, for a plan with this model.
///
/// # Errors
/// The same as for [`Parent::find`] and [`Parent::facts`].
pub(crate) fn facts_of_parent(
    answers: &Answers,
    model: &ModelConfig,
) -> Result<Option<ParentFacts>, Failure> {
    Parent::find(answers)?.map(|parent| parent.facts(model)).transpose()
}

impl Weights {
    fn adapter(folder: PathBuf) -> Result<Self, Failure> {
        let path = folder.join(CONFIG_FILE);
        let text = read_model_json(&path).map_err(|error| Failure::io("read", &path, &error))?;
        let config = AdapterConfig::from_json(&text).map_err(|e| unusable(&folder, &e))?;
        Ok(Self::Adapter { folder, config })
    }
}

/// Checks the tensors of an adapter by its file's header.
fn fit(folder: &Path, config: &AdapterConfig, model: &ModelConfig) -> Result<FittedAdapter, Failure> {
    let path = folder.join(TENSOR_FILE);
    if !path.exists() && folder.join(PICKLE_FILE).exists() {
        let what =
            format!("{PICKLE_FILE} is a pickle, which can run programs when it is opened, so it is not read");
        return Err(unusable(folder, &what).hint(format!(
            "Save the adapter as {TENSOR_FILE}, as PEFT does by default (safe_serialization=True)"
        )));
    }
    let damaged = |what: &dyn std::fmt::Display| {
        unusable(folder, &format!("{TENSOR_FILE} is damaged ({what})")).hint("Copy the adapter again")
    };
    let read = |error: io::Error| Failure::io("read", &path, &error);
    let size = fs::metadata(&path).map_err(read)?.len();
    let length = read_start(&path, 8).map_err(read)?;
    let length = u64::from_le_bytes(length.try_into().map_err(|_| damaged(&"it is too short"))?);
    if length > MOST_HEADER_BYTES || length.saturating_add(8) > size {
        return Err(damaged(&"its header is longer than the file, or than a header can be"));
    }
    let header = read_start(&path, length + 8).map_err(read)?;
    let tensors: Metadata = serde_json::from_slice(&header[8..]).map_err(|error| damaged(&error))?;
    if tensors.data_len() as u64 + length + 8 != size {
        return Err(damaged(&"its header describes another number of bytes"));
    }
    let tensors = tensors.tensors();
    let shapes = tensors.iter().map(|(name, info)| (name.as_str(), info.shape.as_slice()));
    config.fit(shapes, model).map_err(|error| unusable(folder, &error))
}

fn unusable(folder: &Path, what: &dyn std::fmt::Display) -> Failure {
    let what = what.to_string();
    Failure::usage(format!("{}: {}", escape(&folder.display().to_string()), escape(&what)))
}

fn not_exported(run: &RunDir) -> Failure {
    let (program, name) = (program_name(), run_argument(run));
    Failure::usage(format!("{} has no exported weights to start from", run.name()))
        .hint(format!("`{program} resume {name}` trains it to its end"))
        .hint(format!("`{program} export {name}` exports its newest checkpoint"))
}

/// Returns the commit of a run's model, if it came from the hub.
fn commit_of(run: &RunDir) -> Option<String> {
    let provenance: Value = run.read_provenance().ok()?;
    provenance.get("model_commit")?.as_str().map(str::to_owned)
}

/// Returns the files of the base of a run, as its newest checkpoint names them.
fn base_files_of(run: &RunDir) -> Option<Value> {
    let steps = Checkpoints::new(run).steps().ok()?;
    let path = Checkpoints::new(run).path_of(*steps.last()?).join("state.json");
    let mut state: Value = serde_json::from_slice(&read_regular(&path, MOST_STATE_BYTES).ok()?).ok()?;
    Some(state.get_mut("base_files")?.take())
}

/// Returns whether this is an id on the hub, and not a folder.
pub(crate) fn is_id(model: &str) -> bool {
    let is_plain = model.split('/').count() == 2 && !model.starts_with(['.', '/', '~']);
    is_plain && !Path::new(model).exists()
}

fn place(answers: &Answers) -> String {
    let origin = answers.from.as_ref().map_or(Origin::Flag, |answer| answer.origin);
    Setting::of("model.from").expect("the table has it").place(origin)
}

fn absolute(path: &Path) -> Result<PathBuf, Failure> {
    fs::canonicalize(path).map_err(|error| Failure::io("find", path, &error))
}

/// Reads the first bytes of a file.
fn read_start(path: &Path, bytes: u64) -> io::Result<Vec<u8>> {
    let mut read = Vec::new();
    open_regular(path)?.take(bytes).read_to_end(&mut read)?;
    Ok(read)
}

/// Copies a file so that only its owner can read the copy.
fn copy(from: &Path, to: &Path) -> io::Result<()> {
    let mut to = private_file().create_new(true).open(to)?;
    io::copy(&mut open_regular(from)?, &mut to)?;
    to.sync_all()
}
