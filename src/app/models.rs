//! The models on this machine that can be opened to generate text: those of the hub's cache, finished runs,
//! and folders that the user named.
//!
//! Enters: the folder of the runs, and the folders and runs that the user named. Leaves: models with an id
//! that is a name and never a path, and what an inference worker opens for one. No weights are read.
//! Programs and pages choose among these alone, so that a request cannot lead to other files.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::Value;
use sparktune_base::escape::escape;
use sparktune_base::regular_file::read_model_json;
use sparktune_plan::adapter::{AdapterConfig, CONFIG_FILE};
use sparktune_plan::model_config::ConfigOptions;
use sparktune_plan::{Method, ModelConfig, Plan};
use sparktune_runlog::{Error, Models, RunDir, RunsRoot};

use crate::edited_models;
use crate::failure::Failure;
use crate::folders::demo_folder;
use crate::led_elsewhere::led_elsewhere;
use crate::model::hub;

/// What kind of model it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ModelKind {
    /// A model that was not trained here, as far as is known.
    Base,
    /// The outputs of a run.
    Run,
    /// An adapter in PEFT's format.
    Adapter,
    /// A model that a run has exported.
    Merged,
    /// A model with facts written into it.
    Edited,
}

/// A model that can be opened.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenableModel {
    /// Its id: `hub:OWNER/NAME`, `run:NAME`, `dir:NAME` or `edited:NAME`.
    pub id: String,
    /// The id without what it begins with.
    pub name: String,
    /// Its kind.
    pub kind: ModelKind,
    /// The base of a run, an adapter or an edited model, an id of the hub or the name of a folder, if it is
    /// known.
    pub base: Option<String>,
    /// The parameters of the text model, if its config can be read.
    pub parameters: Option<u64>,
    /// Its folder.
    #[serde(skip)]
    pub path: PathBuf,
}

/// What an inference worker opens for a model.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Opening {
    /// The folder that the worker loads.
    pub model: PathBuf,
    /// The folder of an adapter that it loads on that, so that adapters of one base share its memory.
    pub adapter: Option<PathBuf>,
    /// The variables of the chat template that the adapter was trained with. Those of merged and edited
    /// models are found by the worker.
    pub template_kwargs: BTreeMap<String, Value>,
}

/// Lists what can be opened: the models that the user named first, then runs, the newest first, then edited
/// models, those of the hub and the demo's.
pub fn list(runs_dir: &Path, given: &[String]) -> Vec<OpenableModel> {
    let mut found: Vec<OpenableModel> = Vec::new();
    let mut add = |model: OpenableModel| {
        // Of two models with one id, the first is meant.
        if found.iter().all(|other| other.id != model.id) {
            found.push(model);
        }
    };
    let root = RunsRoot::new(runs_dir);
    given.iter().filter_map(|given| of_given(&root, given)).for_each(&mut add);
    let runs = root.list().unwrap_or_default();
    runs.iter().rev().filter_map(|run| of_run("run", run)).for_each(&mut add);
    let edited = edited_models::names(runs_dir).into_iter();
    edited.filter_map(|name| of_edited(runs_dir, &name)).for_each(&mut add);
    let cached = hub().map(|hub| hub.whole_models()).unwrap_or_default();
    cached
        .into_iter()
        .filter_map(|model| of_folder(&format!("hub:{}", model.id), &model.folder))
        .for_each(&mut add);
    demo().into_iter().for_each(add);
    found
}

/// Lists the models in folders, which can be trained as well as opened: those that the user named first, then
/// the demo's.
pub fn folders(given: &[String]) -> Vec<OpenableModel> {
    let mut found: Vec<OpenableModel> = Vec::new();
    let named = given.iter().filter_map(|given| of_path(Path::new(given)));
    for model in named.chain(demo()).filter(|model| model.kind != ModelKind::Adapter) {
        if found.iter().all(|other| other.id != model.id) {
            found.push(model);
        }
    }
    found
}

/// Returns the name by which lists show a model that a run or a plan names: an id of the hub as it is, and of
/// a folder its last name, because a path is long and says little.
pub fn shown_name(model: &str) -> &str {
    let model = model.trim_end_matches('/');
    if !model.starts_with(['/', '.', '~']) {
        return model;
    }
    if model.ends_with(DEMO_FOLDER) { DEMO_NAME } else { model.rsplit('/').next().unwrap_or(model) }
}

/// Returns what a person who names a model to train means by that: by `demo` the folder of the demo's model,
/// unless a folder here has this name, and otherwise the name itself.
pub fn named(name: &str) -> String {
    let demo = || (name == DEMO_NAME && !Path::new(name).is_dir()).then(demo_model).flatten();
    demo().unwrap_or_else(|| name.to_owned())
}

/// Returns the folder of the demo's model, if it is there.
pub fn demo_model() -> Option<String> {
    Some(demo_folder()?.join("model").display().to_string())
}

/// The id of the demo's model.
pub const DEMO: &str = "dir:demo";
/// The name by which a person means it.
const DEMO_NAME: &str = "demo";
/// Where it is below the program's folder.
const DEMO_FOLDER: &str = "/presets/demo/model";
/// What stands behind the id of a model for its base: of a run, the model that it started from.
const BASE: &str = "@base";
/// What the ids of edited models begin with, and of edits that were not kept yet.
const EDITED: &str = "edited:";
const DRAFT: &str = "draft:";

/// Finds a model by its id, or by its name if there is only one of that. `run:NAME@base` is the model that a
/// run started from, `edited:NAME@base` the base of an edited model, and `draft:ID` an edit that nobody has
/// kept yet.
pub fn find(id: &str, runs_dir: &Path, given: &[String]) -> Option<OpenableModel> {
    // One suffix alone is taken off: ids come from requests, which could repeat it any number of times.
    if let Some(model) = id.strip_suffix(BASE).and_then(|name| find_whole(name, runs_dir, given)) {
        return model.started_from().ok();
    }
    find_whole(id, runs_dir, given)
}

/// Finds a model by its whole id or its name.
fn find_whole(id: &str, runs_dir: &Path, given: &[String]) -> Option<OpenableModel> {
    if let Some(name) = id.strip_prefix("run:") {
        let runs = RunsRoot::new(runs_dir).list().unwrap_or_default();
        return runs.iter().find(|run| run.name() == name).and_then(|run| of_run("run", run));
    }
    if let Some(name) = id.strip_prefix(EDITED) {
        return of_edited(runs_dir, name);
    }
    if let Some(draft) = id.strip_prefix(DRAFT) {
        return of_folder(id, &edited_models::draft(runs_dir, draft)?.join("model"));
    }
    let models = list(runs_dir, given);
    if let Some(model) = models.iter().find(|model| model.id == id) {
        return Some(model.clone());
    }
    let mut named = models.into_iter().filter(|model| model.name == id);
    named.next().filter(|_| named.next().is_none())
}

/// Finds a model by what a person types: a folder, a run by any of its names, a model of the hub's cache, or
/// an id.
///
/// # Errors
/// There is no such model, or what it started from is not on this machine.
pub fn find_named(text: &str, runs_dir: &Path) -> Result<OpenableModel, Failure> {
    let (name, wants_base) = text.strip_suffix(BASE).map_or((text, false), |name| (name, true));
    let root = RunsRoot::new(runs_dir);
    let found = of_given(&root, name).or_else(|| find(name, runs_dir, &[]));
    match found {
        Some(model) if wants_base => model.started_from(),
        Some(model) => Ok(model),
        None => {
            let shown = escape(name);
            match root.resolve(name) {
                Ok(run) if run.plan().is_file() => {
                    plan_of(&run)?;
                    Err(Failure::usage(format!("the run {shown} has no exported weights yet"))
                        .hint("Wait for its end, or export its newest checkpoint with `export`"))
                }
                Err(error @ Error::Ambiguous { .. }) => Err(error.into()),
                // `latest` may be the default of a command, a word that nobody typed.
                Err(error @ Error::NoRuns { .. }) => Err(led_elsewhere(&root, name).unwrap_or_else(|| {
                    let hint = "Or name the folder of a model, a model downloaded from the hub, or `demo`";
                    Failure::from(error).hint(hint)
                })),
                _ => Err(led_elsewhere(&root, name).unwrap_or_else(|| {
                    Failure::usage(format!("there is no model '{shown}' on this machine")).hint(
                        "Name a finished run, the folder of a model or an adapter, a model downloaded from the hub, or `demo` for that of the demo",
                    )
                })),
            }
        }
    }
}

/// Returns the id of a model as the user named it on the command line.
pub fn id_of_given(runs_dir: &Path, given: &str) -> Option<String> {
    of_given(&RunsRoot::new(runs_dir), given).map(|model| model.id)
}

impl OpenableModel {
    /// Returns the model that a run started from, or the base of an edited model or an adapter.
    ///
    /// # Errors
    /// It is none of these, or that model is not on this machine any more.
    pub fn started_from(&self) -> Result<Self, Failure> {
        let (base, named) = match self.kind {
            ModelKind::Run => {
                let plan = plan_of(&RunDir::open(&self.path)?)?;
                (plan.model.path, plan.model.id)
            }
            ModelKind::Adapter if let Some((_, plan)) = run_of_adapter(&self.path)? => {
                (plan.model.path, plan.model.id)
            }
            ModelKind::Edited | ModelKind::Adapter => {
                let stacked = || edited_models::stacked(&self.path).map(|stacked| stacked.base);
                let base =
                    if self.kind == ModelKind::Edited { stacked() } else { base_of_adapter(&self.path) };
                (base, self.base.clone().unwrap_or_default())
            }
            ModelKind::Base | ModelKind::Merged => {
                let text = format!(
                    "{} is not a run, an edited model or an adapter, so it has no base",
                    escape(&self.name)
                );
                return Err(Failure::usage(text).hint("Name the other model itself"));
            }
        };
        let base = base.filter(|base| base.join("config.json").is_file());
        let base = base.ok_or_else(|| self.without_base("Download it again, or name its folder"))?;
        // The id of a model that was named by its folder is the folder.
        let name = shown_name(&named).rsplit('/').next().unwrap_or_default().to_owned();
        let id = format!("{}{BASE}", self.id);
        let found = of_folder(&id, &base).ok_or_else(|| self.without_base("Name its folder instead"))?;
        Ok(Self { name, ..found })
    }

    /// Returns what an inference worker opens.
    ///
    /// # Errors
    /// The run has no exported weights, or its base or that of the adapter is not on this machine.
    pub fn opening(&self) -> Result<Opening, Failure> {
        match self.kind {
            ModelKind::Base | ModelKind::Merged | ModelKind::Edited => {
                Ok(Opening { model: self.path.clone(), ..Opening::default() })
            }
            ModelKind::Run => {
                let run = RunDir::open(&self.path)?;
                let plan = plan_of(&run)?;
                match plan.method {
                    Method::Lora { .. } => self.opening_of(run.outputs().join("adapter"), &run, plan),
                    Method::Full | Method::Head => {
                        Ok(Opening { model: self.path.clone(), ..Opening::default() })
                    }
                }
            }
            ModelKind::Adapter => {
                if let Some((run, plan)) = run_of_adapter(&self.path)? {
                    return self.opening_of(self.path.clone(), &run, plan);
                }
                let base = base_of_adapter(&self.path).filter(|base| base.join("config.json").is_file());
                let missing = || self.without_base("Open it with `sparktune generate --base FOLDER`");
                let model = base.ok_or_else(missing)?;
                Ok(Opening { model, adapter: Some(self.path.clone()), ..Opening::default() })
            }
        }
    }

    /// Returns what is opened for an adapter that a run with this plan has exported.
    fn opening_of(&self, adapter: PathBuf, run: &RunDir, plan: Plan) -> Result<Opening, Failure> {
        let has_model = |base: &PathBuf| base.join("config.json").is_file();
        let model = plan.model.path.clone().filter(has_model);
        let model = model.or_else(|| base_of_adapter(&adapter).filter(has_model));
        let missing = || self.without_base("Download it again, or open the folder outputs/merged");
        let model = model.ok_or_else(missing)?;
        // With a template or a reading of the config of its own, the base is another model, and so is one
        // with variables of the template that this run does not set.
        let of_base = kwargs_of_model(&model)?;
        let has_others = of_base.keys().any(|name| !plan.data.template_kwargs.0.contains_key(name));
        if has_others
            || run.chat_template().is_file()
            || plan.model.config_options() != ConfigOptions::default()
        {
            return Ok(Opening { model: self.path.clone(), ..Opening::default() });
        }
        Ok(Opening { model, adapter: Some(adapter), template_kwargs: plan.data.template_kwargs.0 })
    }

    /// Returns the folder with all weights of the model, which can be edited.
    ///
    /// # Errors
    /// There is none: it is an adapter.
    pub fn whole(&self) -> Result<PathBuf, Failure> {
        let outputs = ["merged", "merged-mtp"].map(|name| self.path.join("outputs").join(name));
        let places = match self.kind {
            ModelKind::Run => outputs.to_vec(),
            ModelKind::Adapter => Vec::new(),
            ModelKind::Base | ModelKind::Merged | ModelKind::Edited => vec![self.path.clone()],
        };
        places.into_iter().find(|place| place.join("config.json").is_file()).ok_or_else(|| {
            let text = format!(
                "{} is an adapter beside its base, and facts are written into whole weights",
                escape(&self.name)
            );
            Failure::usage(text).hint("Export the run with merged weights, or choose its base")
        })
    }

    fn without_base(&self, advice: &str) -> Failure {
        let base = self.base.as_deref().unwrap_or("unknown");
        let text = format!("the base model of {} ({base}) is not where it was", self.id);
        Failure::usage(text).hint(advice)
    }
}

/// Returns the model that a folder or the name of a run stands for.
fn of_given(root: &RunsRoot, given: &str) -> Option<OpenableModel> {
    let path = Path::new(given);
    if !path.is_dir() {
        return of_run("run", &root.resolve(given).ok()?);
    }
    if path.join("plan.toml").is_file() {
        let path = path.canonicalize().ok()?;
        let run = RunDir::open(&path).ok()?;
        let is_listed = root.path().canonicalize().ok().as_deref() == path.parent();
        return of_run(if is_listed { "run" } else { "dir" }, &run);
    }
    of_path(path)
}

/// Returns the model or the adapter in a folder that the user named.
fn of_path(path: &Path) -> Option<OpenableModel> {
    let path = path.canonicalize().ok()?;
    let name = path.file_name()?.to_str().filter(|name| !name.chars().any(char::is_control))?;
    of_folder(&format!("dir:{name}"), &path)
}

/// Returns the edited model of this name.
fn of_edited(runs_dir: &Path, name: &str) -> Option<OpenableModel> {
    of_folder(&format!("{EDITED}{name}"), &edited_models::model(runs_dir, name)?)
}

/// Returns the demo's model.
fn demo() -> Option<OpenableModel> {
    of_folder(DEMO, &demo_folder()?.join("model"))
}

/// Returns a run if its weights are exported.
fn of_run(prefix: &str, run: &RunDir) -> Option<OpenableModel> {
    let outputs = run.outputs();
    if !outputs.is_dir() {
        return None;
    }
    let plan = plan_of(run).ok()?;
    let exported = |name: &str| outputs.join(name).join("config.json").is_file();
    let is_exported = match plan.method {
        Method::Lora { .. } => outputs.join("adapter").join(CONFIG_FILE).is_file(),
        Method::Full | Method::Head => exported("merged") || exported("merged-mtp"),
    };
    let name = run.name();
    is_exported.then(|| OpenableModel {
        id: format!("{prefix}:{name}"),
        name,
        kind: ModelKind::Run,
        base: Some(plan.model.id.clone()),
        parameters: plan.model.path.as_deref().and_then(parameters),
        path: run.path().to_owned(),
    })
}

/// Returns the model or the adapter in a folder.
fn of_folder(id: &str, folder: &Path) -> Option<OpenableModel> {
    let is_adapter = folder.join(CONFIG_FILE).is_file();
    if !is_adapter && !folder.join("config.json").is_file() {
        return None;
    }
    let edited = edited_models::stacked(folder).filter(|_| !is_adapter);
    let kind = match (is_adapter, &edited) {
        (true, _) => ModelKind::Adapter,
        (false, Some(_)) => ModelKind::Edited,
        (false, None) if RunDir::of_output(folder).is_some() => ModelKind::Merged,
        (false, None) => ModelKind::Base,
    };
    let base = if is_adapter { base_of_adapter(folder) } else { edited.map(|edited| edited.base) };
    let sized = base.as_deref().filter(|_| is_adapter).unwrap_or(folder);
    Some(OpenableModel {
        id: id.to_owned(),
        name: id.split_once(':').map_or(id, |(_, name)| name).to_owned(),
        kind,
        parameters: parameters(sized),
        base: base.map(|base| base.display().to_string()),
        path: folder.to_owned(),
    })
}

/// Returns the parameters of the text model in a folder.
fn parameters(folder: &Path) -> Option<u64> {
    let config = read_model_json(&folder.join("config.json")).ok()?;
    Some(ModelConfig::from_json(&config).ok()?.text_parameters())
}

/// Returns the variables of the chat template with which a worker renders for this model: those of the run
/// that exported it, or that exported the base of an edited model.
///
/// # Errors
/// The plan of the run cannot be read.
fn kwargs_of_model(folder: &Path) -> Result<BTreeMap<String, Value>, Failure> {
    let base = || RunDir::of_output(&edited_models::stacked(folder)?.base);
    match RunDir::of_output(folder).or_else(base) {
        Some(run) => Ok(plan_of(&run)?.data.template_kwargs.0),
        None => Ok(BTreeMap::new()),
    }
}

/// Returns the run whose outputs have this adapter, with its plan.
///
/// # Errors
/// The plan cannot be read.
fn run_of_adapter(folder: &Path) -> Result<Option<(RunDir, Plan)>, Failure> {
    let Some(run) = RunDir::of_output(folder) else { return Ok(None) };
    let plan = plan_of(&run)?;
    Ok(matches!(plan.method, Method::Lora { .. }).then_some((run, plan)))
}

/// Returns what the config of an adapter names as its base.
fn base_of_adapter(folder: &Path) -> Option<PathBuf> {
    let text = read_model_json(&folder.join(CONFIG_FILE)).ok()?;
    AdapterConfig::from_json(&text).ok()?.base_model.map(PathBuf::from)
}

/// Reads the plan of a run, with the folders in which this machine has its models.
///
/// # Errors
/// The plan cannot be read.
pub(crate) fn plan_of(run: &RunDir) -> Result<Plan, Failure> {
    let mut plan = Plan::from_toml(&run.read_plan()?, &run.plan().display().to_string())?;
    if let Some(Models { base, head }) = run.models() {
        plan.move_models(base, head);
    }
    Ok(plan)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn fixtures() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures").canonicalize().unwrap()
    }

    /// Writes the plan and the outputs of a run with a base in this folder.
    fn run(root: &Path, name: &str, base: &Path, change: impl Fn(String) -> String) -> PathBuf {
        let plan = fs::read_to_string(fixtures().join("run-261c35e/run/plan.toml")).unwrap();
        let run = root.join(name);
        fs::create_dir_all(run.join("events")).unwrap();
        let plan = change(plan.replace("MODEL_FOLDER", base.to_str().unwrap()));
        fs::write(run.join("plan.toml"), plan).unwrap();
        fs::create_dir_all(run.join("outputs/adapter")).unwrap();
        fs::write(run.join("outputs/adapter").join(CONFIG_FILE), "{}").unwrap();
        run
    }

    #[test]
    fn runs_folders_and_the_demo_are_found_by_names_that_are_no_paths() {
        let place = tempfile::tempdir().unwrap();
        let base = fixtures().join("qwen35/checkpoint");
        let older = run(place.path(), "20260101T000000Z-a", &base, |plan| plan);
        run(place.path(), "20260102T000000Z-b", &base, |plan| plan);
        fs::create_dir_all(place.path().join("20260103T000000Z-unfinished/events")).unwrap();
        let given = [base.display().to_string(), place.path().display().to_string()];
        let models = list(place.path(), &given);
        let ids: Vec<&str> = models.iter().map(|model| model.id.as_str()).collect();
        assert_eq!(ids[..3], ["dir:checkpoint", "run:20260102T000000Z-b", "run:20260101T000000Z-a"]);
        assert!(ids.contains(&"dir:demo") && ids.iter().all(|id| !id.contains("unfinished")), "{ids:?}");
        assert_eq!((models[0].kind, models[1].kind), (ModelKind::Base, ModelKind::Run));
        assert!(models[0].parameters.is_some_and(|count| count > 100_000));
        let found = |id: &str| find(id, place.path(), &given).map(|model| model.path);
        assert_eq!(found("run:20260101T000000Z-a"), Some(older));
        assert_eq!(found("checkpoint"), Some(base.clone()));
        for id in ["", "dir:../x", "/etc", given[0].as_str(), "run:..", "run:20260101"] {
            assert_eq!(found(id), None, "{id}");
        }
        assert_eq!(id_of_given(place.path(), &given[0]).as_deref(), Some("dir:checkpoint"));
        assert_eq!(id_of_given(place.path(), "20260101").as_deref(), Some("run:20260101T000000Z-a"));
        assert_eq!(id_of_given(place.path(), "nowhere"), None);
    }

    #[test]
    fn edited_models_are_listed_with_their_base_and_drafts_are_only_found() {
        let place = tempfile::tempdir().unwrap();
        let base = fixtures().join("qwen35/checkpoint");
        let models = edited_models::folder(place.path(), edited_models::Part::Models).unwrap();
        let drafts = edited_models::folder(place.path(), edited_models::Part::Drafts).unwrap();
        for folder in [models.join("mine"), drafts.join("1/model")] {
            fs::create_dir_all(folder.join("patches")).unwrap();
            fs::copy(base.join("config.json"), folder.join("config.json")).unwrap();
            let stack = serde_json::json!({"version": 1, "base": base, "base_hash": "0", "patches": ["a"]});
            fs::write(folder.join("patches/stack.json"), stack.to_string()).unwrap();
        }
        let listed = list(place.path(), &[]);
        let edited: Vec<_> = listed.iter().filter(|model| model.kind == ModelKind::Edited).collect();
        assert_eq!((edited.len(), edited[0].id.as_str()), (1, "edited:mine"));
        assert_eq!(edited[0].base.as_deref(), base.to_str());
        assert!(edited[0].parameters.is_some_and(|count| count > 100_000));
        let draft = find("draft:1", place.path(), &[]).unwrap();
        assert_eq!(
            (draft.opening().unwrap().model, draft.whole().unwrap()),
            (draft.path.clone(), draft.path)
        );
        let before = find("edited:mine@base", place.path(), &[]).unwrap();
        assert_eq!((before.id.as_str(), before.name.as_str()), ("edited:mine@base", "checkpoint"));
        assert_eq!((before.kind, before.path), (ModelKind::Base, base.clone()));
        fs::write(models.join("mine/patches/stack.json"), r#"{"base": "/gone", "patches": []}"#).unwrap();
        let gone = find("edited:mine", place.path(), &[]).unwrap().started_from().unwrap_err().to_string();
        assert!(gone.contains("edited:mine (/gone) is not where it was"), "{gone}");
        for id in ["edited:none", "edited:../models/mine", "draft:2", "draft:..", "edited:", "dir:demo@base"]
        {
            assert!(find(id, place.path(), &[]).is_none(), "{id}");
        }
        let repeated = format!("edited:mine{}", BASE.repeat(100_000));
        assert!(find(&repeated, place.path(), &[]).is_none());
        let adapter = run(place.path(), "lora", &base, |plan| plan);
        let failure = of_folder("dir:x", &adapter.join("outputs/adapter")).unwrap().whole().unwrap_err();
        assert!(failure.to_string().contains("whole weights"), "{failure}");
    }

    #[test]
    fn folders_that_can_be_trained_are_models_and_neither_runs_nor_adapters() {
        let place = tempfile::tempdir().unwrap();
        let base = fixtures().join("qwen35/checkpoint");
        let lora = run(place.path(), "lora", &base, |plan| plan);
        let adapter = lora.join("outputs/adapter");
        let given = [&base, &lora, &adapter, &base, &place.path().join("gone")];
        let found = folders(&given.map(|path| path.display().to_string()));
        let ids: Vec<&str> = found.iter().map(|model| model.id.as_str()).collect();
        assert_eq!(ids, ["dir:checkpoint", DEMO]);
        assert!(found[1].path.display().to_string().ends_with(DEMO_FOLDER));
    }

    #[test]
    fn a_model_in_a_folder_is_shown_by_a_name_and_not_by_its_path() {
        for (model, shown) in [
            ("Qwen/Qwen3.5-2B", "Qwen/Qwen3.5-2B"),
            ("/home/me/models/mine/", "mine"),
            ("./mine", "mine"),
            ("/opt/sparktune/presets/demo/model", "demo"),
            ("", ""),
            ("/", ""),
        ] {
            assert_eq!(shown_name(model), shown, "{model}");
        }
    }

    #[test]
    fn the_demo_is_named_by_its_name_and_every_other_model_by_itself() {
        assert_eq!(shown_name(&named("demo")), "demo");
        assert!(named("demo").ends_with(DEMO_FOLDER));
        for other in ["Qwen/Qwen3.5-2B", "./demo", "org/demo", ""] {
            assert_eq!(named(other), other);
        }
    }

    #[test]
    fn adapters_of_a_base_share_it_unless_they_read_it_otherwise() {
        let place = tempfile::tempdir().unwrap();
        let base = fixtures().join("qwen35/checkpoint");
        let kwargs = "[data.template_kwargs]\nenable_thinking = false\n";
        let lora = run(place.path(), "lora", &base, |plan| format!("{plan}\n{kwargs}"));
        let opening = |name: &str| find(&format!("run:{name}"), place.path(), &[]).unwrap().opening();
        let shared = opening("lora").unwrap();
        let adapter = lora.join("outputs/adapter");
        assert_eq!((&shared.model, &shared.adapter), (&base, &Some(adapter)));
        let best = lora.join("outputs/best/adapter");
        fs::create_dir_all(&best).unwrap();
        fs::write(best.join(CONFIG_FILE), "{}").unwrap();
        let of_best = of_path(&best).unwrap();
        assert_eq!(of_best.opening().unwrap(), Opening { adapter: Some(best), ..shared.clone() });
        assert_eq!(of_best.started_from().unwrap().path, base);
        let adapter = of_path(&lora.join("outputs/adapter")).unwrap();
        assert_eq!(adapter.kind, ModelKind::Adapter);
        assert_eq!(shared.template_kwargs["enable_thinking"], false);
        assert_eq!(adapter.opening().unwrap(), shared, "an adapter is opened as its run is");
        // A base with a variable that the run does not set would pass it on to the run.
        let merged = lora.join("outputs/merged");
        fs::create_dir(&merged).unwrap();
        fs::copy(base.join("config.json"), merged.join("config.json")).unwrap();
        let further = run(place.path(), "further", &merged, |plan| plan);
        assert_eq!(opening("further").unwrap(), Opening { model: further, ..Opening::default() });
        run(place.path(), "alike", &merged, |plan| format!("{plan}\n{kwargs}"));
        assert_eq!(opening("alike").unwrap().model, merged);
        fs::write(lora.join("chat_template.jinja"), "x").unwrap();
        let own = opening("lora").unwrap();
        assert_eq!((own.model, own.adapter), (lora, None));
        run(place.path(), "lost", &place.path().join("gone"), |plan| plan);
        let failure = opening("lost").unwrap_err().to_string();
        assert!(failure.contains("run:lost") && failure.contains("outputs/merged"), "{failure}");
    }
}
