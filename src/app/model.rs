//! Models: the files on this machine, the facts in a config, and downloads.
//!
//! Enters: the answers that name a model. Leaves: its facts and tokenizer, checked before any weight is
//! downloaded.

use std::path::{Path, PathBuf};

use serde::Serialize;
use sparktune_base::escape::escape;
pub use sparktune_hub::Cached;
use sparktune_hub::{DownloadPlan, Hub, ModelName, Needs, Snapshot};
use sparktune_plan::{
    Answer, Answers, Architecture, Catalog, ConfigOptions, ModelConfig, ModelFacts, Origin, Setting,
};

use crate::data_worker::ModelTokenizer;
use crate::failure::Failure;
use crate::listener::Listener;
use crate::weights_file::require_whole;

/// A model whose tokenizer and config are on this machine.
pub struct BaseModel {
    /// The access to its files.
    pub hub: Hub,
    /// The name for the hub, including the revision.
    pub name: String,
    /// The folder with its small files.
    pub folder: PathBuf,
    /// The tokenizer and template.
    pub tokenizer: ModelTokenizer,
    /// The facts from its config.
    pub facts: ModelFacts,
}

/// A model that can be trained according to its config.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelFound {
    /// The requested name.
    pub name: String,
    /// The requested revision.
    pub revision: Option<String>,
    /// The commit that was found, for models from the hub.
    pub commit: Option<String>,
    /// The facts for the plan. `path` is set if the weights are on this machine.
    pub facts: ModelFacts,
    /// The number of bytes to download, for all files.
    pub missing_bytes: u64,
    /// Notes of one line each: `using the cached copy: the hub cannot be reached`.
    pub notes: Vec<String>,
    /// The name of the family, if it is not a tested one. `facts` then treats the model as
    /// `facts.config.architecture`, and the user has to confirm this with the answer `architecture`.
    pub unknown_architecture: Option<String>,
}

/// How much of a catalog model is on this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CachedModel {
    /// Its id in the catalog.
    pub id: String,
    /// The cached part.
    pub cached: Cached,
}

/// Returns how much of each catalog model is on this machine; empty if the hub's settings cannot be read.
pub fn cached_models() -> Vec<CachedModel> {
    let Ok(hub) = hub() else { return Vec::new() };
    let models = &Catalog::shipped().models;
    models.iter().map(|model| CachedModel { id: model.id.clone(), cached: hub.cached(&model.id) }).collect()
}

/// Returns the access to models and data sets.
pub(crate) fn hub() -> Result<Hub, Failure> {
    Ok(Hub::from_env(|name| std::env::var(name).ok())?)
}

/// Returns the hub, and its name for the model of these answers.
fn hub_and_name(answers: &Answers) -> Result<(Hub, String), Failure> {
    let name = name_of(answers)?;
    Ok((hub()?, name))
}

/// Returns the name of the model with its revision. A folder has none: a revision that the user gave is
/// refused, and one of a preset is ignored.
fn name_of(answers: &Answers) -> Result<String, Failure> {
    let model = answers.model.as_ref().map_or("", |answer| &answer.value);
    match &answers.revision {
        Some(revision) if !Path::new(model).is_dir() => Ok(format!("{model}@{}", revision.value)),
        Some(revision) if revision.origin > Origin::Preset => {
            let place = Setting::of("model.revision").expect("the table has it").place(revision.origin);
            let (value, model) = (escape(&revision.value), escape(model));
            let text =
                format!("{place} is {value}, but the model {model} is a folder, which has no revisions");
            Err(Failure::usage(text).hint("Omit it, or name the model by its Hugging Face id"))
        }
        _ => Ok(model.to_owned()),
    }
}

/// Returns the family of a model if it is unknown, and the one it would be treated as.
///
/// # Errors
/// The model cannot be found.
pub fn unknown_family(
    answers: &Answers,
    listener: &dyn Listener,
) -> Result<Option<(String, Architecture)>, Failure> {
    let (hub, name) = hub_and_name(answers)?;
    let ignored_fields = answers.config_options().ignored_fields;
    let config = hub.fetch_config(&name, listener).map_err(|error| not_found(&name, error))?;
    Ok(ModelConfig::unknown_family(&config.text, &ignored_fields))
}

/// Adds to the failure of a hub that cannot be reached that a model can be a folder, and to that of a name
/// that may be a mistyped path, because it has no slash of an id, that there is no such folder either.
fn not_found(name: &str, error: sparktune_hub::Error) -> Failure {
    let is_away = matches!(error, sparktune_hub::Error::Unreachable { .. });
    let failure = Failure::from(error);
    let failure = if is_away { failure.hint("Or name a local folder with the model") } else { failure };
    if name.contains('/') || Path::new(name).exists() {
        return failure;
    }
    failure.hint(format!("There is no folder '{name}' either; if you meant a folder, check the path"))
}

/// Checks the model of these answers by its config alone, then downloads its tokenizer.
///
/// # Errors
/// The model cannot be found or trained.
pub fn find_base(answers: &Answers, listener: &dyn Listener) -> Result<BaseModel, Failure> {
    let (hub, name) = hub_and_name(answers)?;
    let config = hub.fetch_config(&name, listener).map_err(|error| not_found(&name, error))?;
    let facts = ModelFacts::from_config_json_with(&config.text, &answers.config_options())?;
    if let sparktune_hub::Origin::CacheInstead { why } = &config.origin {
        listener.note(&format!("note: using the cached copy of the model: {why}"));
    }
    let snapshot = fetch(&hub, &hub.plan_download(&name, Needs::Tokenizer, listener)?, listener)?;
    let folder =
        std::path::absolute(&snapshot.folder).map_err(|e| Failure::io("find", &snapshot.folder, &e))?;
    let template = answers.chat_template.as_ref().map(|answer| answer.value.as_path());
    let tokenizer = ModelTokenizer::open(&folder, template, listener)?;
    tokenizer.oddities().iter().for_each(|oddity| listener.note(&format!("note: {}", escape(oddity))));
    Ok(BaseModel { hub, name, folder, tokenizer, facts })
}

/// Looks a model up by name and revision. `config` contains the user's options for reading its config;
/// without an architecture in it, an unknown family is treated as the most similar one, and the result says
/// so.
///
/// # Errors
/// The same as for [`find_base`].
pub fn look_up(
    name: &str,
    revision: Option<String>,
    config: ConfigOptions,
    listener: &dyn Listener,
) -> Result<ModelFound, Failure> {
    let ConfigOptions { computed_as: architecture, ignored_fields } = config;
    let mut answers = Answers {
        model: Some(Answer::flag(name.to_owned())),
        revision: revision.clone().map(Answer::flag),
        architecture: architecture.map(Answer::flag),
        ignore_config_field: (!ignored_fields.is_empty()).then(|| Answer::flag(ignored_fields)),
        ..Answers::default()
    };
    let unknown = unknown_family(&answers, listener)?;
    if let (Some((_, likeness)), None) = (&unknown, architecture) {
        answers.architecture = Some(Answer::flag(*likeness));
    }
    let mut base = find_base(&answers, listener)?;
    let download = weigh(&mut base, listener)?;
    Ok(ModelFound {
        name: name.to_owned(),
        revision,
        commit: download.commit.clone(),
        missing_bytes: download.bytes_missing(),
        facts: base.facts,
        notes: Vec::new(),
        unknown_architecture: unknown.map(|(family, _)| family),
    })
}

/// A model that was downloaded.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Downloaded {
    /// The commit, for models from the hub.
    pub commit: Option<String>,
    /// The number of bytes that were missing.
    pub downloaded_bytes: u64,
    /// Notes of one line each.
    pub notes: Vec<String>,
}

/// Downloads everything that training the model of these answers needs.
///
/// # Errors
/// The model cannot be found, trained or downloaded.
pub fn download(answers: &Answers, listener: &dyn Listener) -> Result<Downloaded, Failure> {
    let mut base = find_base(answers, listener)?;
    let plan = weigh(&mut base, listener)?;
    let downloaded_bytes = plan.bytes_missing();
    fetch(&base.hub, &plan, listener)?;
    Ok(Downloaded { commit: plan.commit, downloaded_bytes, notes: Vec::new() })
}

/// Checks that a name is that of a model on the hub and cannot be that of a folder, for interfaces that take
/// no paths.
///
/// # Errors
/// It is a path, a folder has this name, or no hub would accept it.
pub fn check_hub_name(name: &str) -> Result<(), Failure> {
    let refused = |why: &str| {
        Err(Failure::usage(format!(
            "the model '{}' {why}",
            escape(&name.chars().take(200).collect::<String>())
        ))
        .hint("Name it by its Hugging Face id, OWNER/NAME"))
    };
    // The messages about paths would tell which of them exist.
    if name.trim().starts_with(['/', '.', '~']) {
        return refused("is a path");
    }
    match ModelName::parse(name, None)? {
        ModelName::Folder(_) => {
            refused("is also a folder where the program was started, and would be read from there")
        }
        ModelName::Repo { .. } => Ok(()),
    }
}

/// Downloads the missing files of a download plan. The listener receives events only if something is
/// downloaded.
///
/// # Errors
/// The same as for [`Hub::download`].
pub fn fetch(hub: &Hub, plan: &DownloadPlan, listener: &dyn Listener) -> Result<Snapshot, Failure> {
    Ok(match plan.bytes_missing() {
        0 => hub.download(plan, &())?,
        _ => hub.download(plan, listener)?,
    })
}

/// Plans the download of another model's MTP head: only the files that have it. The head must fit `base`,
/// by the config of each.
///
/// # Errors
/// The model cannot be found, has no head, or one of other sizes.
pub fn plan_head(
    hub: &Hub,
    name: &str,
    base: &ModelFacts,
    listener: &dyn Listener,
) -> Result<DownloadPlan, Failure> {
    let config = hub.fetch_config(name, listener).map_err(|error| not_found(name, error))?;
    let other = ModelFacts::from_config_json_with(&config.text, &ConfigOptions::default())?;
    let shown = escape(name);
    if !other.has_mtp() {
        let text =
            format!("--mtp-from is {shown}, which has no MTP head either: its config.json declares none");
        return Err(Failure::usage(text).hint("Name the model that this one was trained from"));
    }
    let tensors =
        |facts: &ModelFacts| facts.config.mtp.iter().flat_map(|mtp| mtp.tensors()).collect::<Vec<_>>();
    let (own, others) = (tensors(base), tensors(&other));
    let differing =
        own.iter().zip(&others).find(|(own, other)| (&own.name, &own.shape) != (&other.name, &other.shape));
    if let Some((own, other)) = differing {
        let text = format!(
            "the MTP head of {shown} does not fit this model: `{}` has the shape {:?} there and {:?} here",
            other.name, other.shape, own.shape
        );
        return Err(
            Failure::usage(text).hint("Name the model that this one was trained from, in the same size")
        );
    }
    Ok(hub.plan_download(name, Needs::Mtp, listener)?)
}

/// Determines the actual size of the weights and whether they are on this machine, and returns what is still
/// to be downloaded.
///
/// # Errors
/// The same as for [`Hub::plan_download`], and a file of weights that is here was not copied whole.
pub fn weigh(base: &mut BaseModel, listener: &dyn Listener) -> Result<DownloadPlan, Failure> {
    let download = base.hub.plan_download(&base.name, Needs::Model, listener)?;
    let of_weights = |name: &str| name.ends_with(".safetensors");
    for file in download.files.iter().filter(|file| file.missing == 0 && of_weights(&file.name)) {
        require_whole(&download.folder.join(&file.name))?;
    }
    base.facts.checkpoint_bytes =
        download.files.iter().filter(|file| of_weights(&file.name)).map(|file| file.size).sum();
    base.facts.path = (download.bytes_missing() == 0).then(|| base.folder.clone());
    Ok(download)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_of_the_hub_is_no_path_and_no_folder() {
        assert!(check_hub_name("Qwen/Qwen3.5-2B").is_ok() && check_hub_name("org/name@v2").is_ok());
        for path in ["/etc/passwd", "../x", "./x", "~/x", " /etc"] {
            let refused = check_hub_name(path).unwrap_err().to_string();
            assert!(refused.contains("is a path") && refused.contains("OWNER/NAME"), "{refused}");
        }
        assert!(check_hub_name("a/b/c").is_err() && check_hub_name("").is_err());
        // Tests run in the folder of the crate.
        assert!(check_hub_name("questions").unwrap_err().text.contains("also a folder"));
    }

    #[test]
    fn a_hub_that_cannot_be_reached_is_no_reason_to_do_without_a_folder() {
        let away =
            || sparktune_hub::Error::Unreachable { host: "hub.invalid".into(), why: "no route".into() };
        let text = not_found("org/name", away()).to_string();
        assert!(text.ends_with("and HF_ENDPOINT. Or name a local folder with the model"), "{text}");
        assert!(!Failure::from(away()).to_string().contains("folder"));
    }

    #[test]
    fn the_revision_of_a_folder_is_refused_from_the_user_and_passed_over_in_a_preset() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path().to_str().unwrap();
        let name = |model: &str, origin| {
            let model = Some(Answer::flag(model.to_owned()));
            let revision = Some(Answer::new("v2".to_owned(), origin));
            name_of(&Answers { model, revision, ..Answers::default() })
        };
        assert_eq!(name("org/name", Origin::Flag).unwrap(), "org/name@v2");
        assert_eq!(name(folder, Origin::Preset).unwrap(), folder);
        let failure = name(folder, Origin::Flag).unwrap_err();
        assert!(
            failure.text.contains("--revision is v2") && failure.text.contains(folder),
            "{}",
            failure.text
        );
    }
}
