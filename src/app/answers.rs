//! Gathers the answers that are given before any question: flags, `SPARKTUNE_*` variables, the user's file, a
//! preset.

use std::path::{Path, PathBuf};

use sparktune_plan::presets::{self, PresetSource};
use sparktune_plan::{Answer, Answers, Origin};

use crate::failure::Failure;
use crate::folders::{HOME_VARIABLE, config_folder, demo_folder, runs_dir_of};
use crate::parent::with_model_of_parent;
use crate::presets::user_presets;

/// Returns all answers, merged by precedence: preset < user file < environment < flag. `demo` fills in the
/// model and the data of the demo; a run or adapter to start from, its model.
///
/// # Errors
/// A file cannot be read, a layer has a wrong name or value, or there is no such run or adapter to start
/// from.
pub fn gather(flags: Answers, demo: bool) -> Result<Answers, Failure> {
    with_model_of_parent(merged(flags, demo)?)
}

fn merged(flags: Answers, demo: bool) -> Result<Answers, Failure> {
    let mut given = Answers::layered([user_file()?, environment()?, flags]);
    if demo {
        given = demo_answers()?.merge(given);
    }
    let preset = match &given.preset {
        None => Answers::default(),
        Some(preset) => match presets::find(preset, &user_presets())? {
            PresetSource::Shipped(preset) => preset.answers()?,
            PresetSource::File(path) => read(&path, Origin::Preset)?,
        },
    };
    Ok(preset.merge(given))
}

/// Returns the folder of runs by the same precedence, for operations that need no other answer.
///
/// # Errors
/// The same as for [`gather`].
pub fn runs_dir(flag: Option<PathBuf>) -> Result<PathBuf, Failure> {
    let flags = Answers { runs_dir: flag.map(Answer::flag), ..Answers::default() };
    Ok(runs_dir_of(&merged(flags, false)?))
}

fn environment() -> Result<Answers, Failure> {
    let pairs = std::env::vars_os().filter_map(|(k, v)| Some((k.into_string().ok()?, v.into_string().ok()?)));
    // The installation folder of sparktune is not an answer about a run.
    Ok(Answers::from_env(pairs.filter(|(name, _)| name != HOME_VARIABLE))?)
}

fn user_file() -> Result<Answers, Failure> {
    match config_folder().map(|folder| folder.join("settings.toml")) {
        Some(path) if path.is_file() => read(&path, Origin::UserFile),
        _ => Ok(Answers::default()),
    }
}

fn read(path: &Path, origin: Origin) -> Result<Answers, Failure> {
    let text = std::fs::read_to_string(path).map_err(|error| Failure::io("read", path, &error))?;
    Ok(Answers::from_toml(&text, origin, &path.display().to_string())?)
}

/// The preset named `demo`, with the shipped model and data filled in.
fn demo_answers() -> Result<Answers, Failure> {
    let folder = demo_folder().ok_or_else(|| {
        Failure::usage("presets/demo was not found next to the program").hint(format!(
            "Set {HOME_VARIABLE} to the folder that contains presets/, the checkout of sparktune"
        ))
    })?;
    let preset = |value: PathBuf| Answer::new(value.display().to_string(), Origin::Preset);
    Ok(Answers {
        preset: Some(Answer::new("demo".into(), Origin::Preset)),
        name: Some(Answer::new("demo".into(), Origin::Preset)),
        model: Some(preset(folder.join("model"))),
        data: Some(Answer::new(vec![folder.join("train.jsonl")], Origin::Preset)),
        ..Answers::default()
    })
}
