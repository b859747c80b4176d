//! What a folder holds: a model, the outputs of a run, or an adapter.
//!
//! Enters: a folder, which is untrusted. Leaves: where its weights, its tokenizer and its template are.

use std::path::{Path, PathBuf};

use serde_json::Value;
use sparktune_base::regular_file::{read_model_json, read_regular};
use sparktune_data::{ChatTokenizer, TemplateKwargs};
use sparktune_model::{Checkpoint, ModelError};
use sparktune_plan::adapter::{AdapterConfig, CONFIG_FILE};
use sparktune_plan::model_config::ConfigOptions;
use sparktune_plan::{Method, Plan};
use sparktune_runlog::{Models, RunDir};

use crate::error::InferError;

/// The most bytes of the list of a folder's patches.
const MOST_STACK: u64 = 1 << 20;

/// The parts of a model that can be loaded.
#[derive(Debug, Clone, PartialEq)]
pub struct Source {
    /// The name of the folder that was asked for.
    pub name: String,
    /// The folder with config and weights of the text model.
    pub weights: PathBuf,
    /// The user's options for reading the config.
    pub options: ConfigOptions,
    /// The folder whose weights have the MTP head, if it is not that of the text model.
    pub head: Option<PathBuf>,
    /// The folder of the adapter that belongs to it.
    pub adapter: Option<PathBuf>,
    /// The chat template, if it is not that of the weights.
    pub chat_template: Option<PathBuf>,
    /// The variables of the template.
    pub template_kwargs: TemplateKwargs,
}

impl Source {
    /// Finds the parts of a folder. `base` is the base model of an adapter or a run that does not know it or
    /// whose base has moved.
    ///
    /// # Errors
    /// The folder is none of a model, a run with exported weights and an adapter, or its base is unknown.
    pub fn open(folder: &Path, base: Option<&Path>) -> Result<Self, InferError> {
        let name = folder
            .file_name()
            .map_or_else(|| folder.display().to_string(), |name| name.to_string_lossy().into_owned());
        if folder.join("plan.toml").is_file() {
            return Self::of_run(name, folder, base);
        }
        if folder.join(CONFIG_FILE).is_file() {
            // A run also knows the template with its variables, and how the config of the base was read.
            if let Some(run) = RunDir::of_output(folder) {
                let plan = plan_of(&run)?;
                if matches!(plan.method, Method::Lora { .. }) {
                    return Self::of_adapter(name, (&run, &plan), folder, folder.to_owned(), base);
                }
            }
            let base = match base {
                Some(base) => base.to_owned(),
                None => base_of_adapter(folder)?,
            };
            let template_kwargs = kwargs_of_model(&base)?;
            let adapter = Some(folder.to_owned());
            return Ok(Self { adapter, template_kwargs, ..Self::of_model(name, base) });
        }
        if folder.join("config.json").is_file() {
            let template_kwargs = kwargs_of_model(folder)?;
            return Ok(Self { template_kwargs, ..Self::of_model(name, folder.to_owned()) });
        }
        Err(InferError::NoModel(folder.to_owned()))
    }

    fn of_model(name: String, weights: PathBuf) -> Self {
        Self {
            name,
            weights,
            options: ConfigOptions::default(),
            head: None,
            adapter: None,
            chat_template: None,
            template_kwargs: TemplateKwargs::new(),
        }
    }

    fn of_run(name: String, folder: &Path, base: Option<&Path>) -> Result<Self, InferError> {
        let run = RunDir::open(folder)?;
        let plan = plan_of(&run)?;
        let exported = |name: &str| Some(run.outputs().join(name)).filter(|folder| folder.is_dir());
        let not_exported = || InferError::NotExported(folder.to_owned());
        match plan.method {
            // The text model of the second is that of the first.
            Method::Full | Method::Head => {
                let merged = exported("merged-mtp").or_else(|| exported("merged"));
                let options = plan.model.config_options();
                let of_model = Self::of_model(name, merged.ok_or_else(not_exported)?);
                Ok(Self { options, template_kwargs: plan.data.template_kwargs.0, ..of_model })
            }
            Method::Lora { .. } => {
                let adapter = exported("adapter").ok_or_else(not_exported)?;
                Self::of_adapter(name, (&run, &plan), folder, adapter, base)
            }
        }
    }

    /// Finds the parts of an adapter that a run has exported. `asked` is the folder that was asked for.
    fn of_adapter(
        name: String,
        (run, plan): (&RunDir, &Plan),
        asked: &Path,
        adapter: PathBuf,
        base: Option<&Path>,
    ) -> Result<Self, InferError> {
        let missing = |reason: String| InferError::NoBase { path: asked.to_owned(), reason };
        let has_model = |base: &PathBuf| base.join("config.json").is_file();
        // The adapter knows a base too, which may have been written into it by hand.
        let of_plan = || plan.model.path.clone();
        let known =
            || of_plan().filter(has_model).or_else(|| base_of_adapter(&adapter).ok()).or_else(of_plan);
        let base = base.map(Path::to_owned).or_else(known);
        let base = base.ok_or_else(|| missing(format!("its base is {}", plan.model.id)))?;
        if !base.join("config.json").is_file() {
            return Err(missing(format!("its base was in {}, which has no model", base.display())));
        }
        let beside = |name: &str| Some(adapter.with_file_name(name)).filter(|folder| folder.is_dir());
        // Of the model that a head was taken from, only the shards with the head may be here. The outputs
        // have the head with all that it takes to open it.
        let foreign = || {
            let donor = plan.model.mtp_path.clone()?;
            Some(beside("merged").unwrap_or(donor))
        };
        Ok(Self {
            name,
            weights: base,
            options: plan.model.config_options(),
            head: beside("merged-mtp").or_else(foreign),
            // What was merged has its template beside it.
            chat_template: Some(run.chat_template()).filter(|file| file.is_file()),
            template_kwargs: plan.data.template_kwargs.0.clone(),
            adapter: Some(adapter),
        })
    }

    /// Opens the weights.
    ///
    /// # Errors
    /// They are missing, damaged, or belong to an unknown family.
    pub(crate) fn checkpoint(&self) -> Result<Checkpoint, ModelError> {
        Ok(Checkpoint::open_with(&self.weights, &self.options)?.for_decoding())
    }

    /// Opens the tokenizer with the chat template.
    ///
    /// # Errors
    /// The tokenizer is missing or unreadable, or the template cannot be used.
    pub(crate) fn tokenizer(&self) -> Result<ChatTokenizer, InferError> {
        let mut tokenizer = ChatTokenizer::open(&self.weights, self.chat_template.as_deref())?;
        tokenizer.set_kwargs(self.template_kwargs.clone());
        Ok(tokenizer)
    }
}

/// Returns the variables of the template that a model was trained with: those of the run that exported it, or
/// that exported the base of an edited model. Other models have none.
///
/// # Errors
/// The plan of the run cannot be read.
fn kwargs_of_model(folder: &Path) -> Result<TemplateKwargs, InferError> {
    let base = || {
        let patches = list_of_patches(folder)?;
        RunDir::of_output(Path::new(patches["base"].as_str()?))
    };
    match RunDir::of_output(folder).or_else(base) {
        Some(run) => Ok(plan_of(&run)?.data.template_kwargs.0),
        None => Ok(TemplateKwargs::new()),
    }
}

/// Reads the plan of a run, with the folders in which this machine has its models.
///
/// # Errors
/// It cannot be read.
fn plan_of(run: &RunDir) -> Result<Plan, InferError> {
    let mut plan = Plan::from_toml(&run.read_plan()?, &run.plan().display().to_string())?;
    if let Some(Models { base, head }) = run.models() {
        plan.move_models(base, head);
    }
    Ok(plan)
}

/// Returns the list of an edited model's patches, which also names its base and says whether corrections
/// belong to it, and which.
pub(crate) fn list_of_patches(folder: &Path) -> Option<Value> {
    let bytes = read_regular(&folder.join("patches/stack.json"), MOST_STACK);
    bytes.ok().and_then(|bytes| serde_json::from_slice(&bytes).ok())
}

/// Returns the folder that an adapter's config names as its base.
fn base_of_adapter(folder: &Path) -> Result<PathBuf, InferError> {
    let missing = |reason: String| InferError::NoBase { path: folder.to_owned(), reason };
    let text = read_model_json(&folder.join(CONFIG_FILE))
        .map_err(|error| missing(format!("{CONFIG_FILE}: {error}")))?;
    let config = AdapterConfig::from_json(&text).map_err(|error| missing(error.to_string()))?;
    match config.base_model {
        Some(base) if Path::new(&base).join("config.json").is_file() => Ok(base.into()),
        Some(base) => Err(missing(format!("its base is {base}, which is not a folder with a model here"))),
        None => Err(missing("its config names no base".to_owned())),
    }
}
