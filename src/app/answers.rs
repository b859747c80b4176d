//! Gathers the answers that are given before any question: flags, `SPARKTUNE_*` variables, the user's file, a
//! preset.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use sparktune_base::escape::escape;
use sparktune_base::regular_file::read_regular;
use sparktune_plan::presets::{self, PresetSource};
use sparktune_plan::{Answer, Answers, ENV_PREFIX, Origin};

use crate::failure::Failure;
use crate::folders::{HOME_VARIABLE, config_folder, demo_folder, runs_dir_of};
use crate::models::named;
use crate::parent::with_model_of_parent;
use crate::presets::user_presets;

/// The most bytes of a file with answers. Each has a line.
const MOST_BYTES: u64 = 1 << 20;

/// Returns all answers, merged by precedence: preset < user file < environment < flag. `demo` fills in the
/// model and the data of the demo; a run or adapter to start from, its model.
///
/// # Errors
/// A file cannot be read, a layer has a wrong name or value, or there is no such run or adapter to start
/// from.
pub fn gather(flags: Answers, demo: bool) -> Result<Answers, Failure> {
    with_model_of_parent(merged(flags, demo)?)
}

/// Returns the answers of the demo, overridden by those of the given ones that `still_hold` returns. It gets
/// the answers of the user's file, the environment and the flags, which may name a model that the user has
/// left.
///
/// # Errors
/// The same as for [`gather`].
pub fn gather_demo(flags: Answers, still_hold: impl FnOnce(Answers) -> Answers) -> Result<Answers, Failure> {
    with_model_of_parent(with_preset(demo_answers()?.merge(still_hold(given(flags)?)))?)
}

fn merged(flags: Answers, demo: bool) -> Result<Answers, Failure> {
    let given = given(flags)?;
    with_preset(if demo { demo_answers()?.merge(given) } else { given })
}

fn given(flags: Answers) -> Result<Answers, Failure> {
    Ok(Answers::layered([user_file()?, environment()?, flags]))
}

/// Puts the answers of their preset below them. The name `demo` of a model becomes its folder.
fn with_preset(given: Answers) -> Result<Answers, Failure> {
    let preset = match &given.preset {
        None => Answers::default(),
        Some(preset) => match presets::find(preset, &user_presets())? {
            PresetSource::Shipped(preset) => preset.answers()?,
            PresetSource::File(path) => read(&path, Origin::Preset)?,
        },
    };
    let mut answers = preset.merge(given);
    if let Some(model) = &mut answers.model {
        model.value = named(&model.value);
    }
    Ok(answers)
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
    // The installation folder of sparktune is not an answer about a run.
    let variables = std::env::vars_os().filter(|(name, _)| name != HOME_VARIABLE);
    Ok(Answers::from_env(texts(variables)?)?)
}

/// Returns the variables that are text. Those of other programs may be anything.
///
/// # Errors
/// A variable with a setting's prefix is not UTF-8.
fn texts(variables: impl Iterator<Item = (OsString, OsString)>) -> Result<Vec<(String, String)>, Failure> {
    let mut texts = Vec::new();
    for (name, value) in variables {
        let is_ours = name.as_encoded_bytes().starts_with(ENV_PREFIX.as_bytes());
        match (name.into_string(), value.into_string()) {
            (Ok(name), Ok(value)) => texts.push((name, value)),
            (name, value) if is_ours => {
                let shown = name.unwrap_or_else(|name| name.to_string_lossy().into_owned());
                let what = if value.is_err() { "the value" } else { "the name" };
                let text = format!("{what} of the environment variable {} is not UTF-8", escape(&shown));
                return Err(Failure::usage(text).hint("Set it to text, or unset it"));
            }
            _ => {}
        }
    }
    Ok(texts)
}

fn user_file() -> Result<Answers, Failure> {
    match config_folder().map(|folder| folder.join("settings.toml")) {
        Some(path) if path.is_file() => read(&path, Origin::UserFile),
        _ => Ok(Answers::default()),
    }
}

fn read(path: &Path, origin: Origin) -> Result<Answers, Failure> {
    let text = read_regular(path, MOST_BYTES)
        .and_then(|text| String::from_utf8(text).map_err(|_| std::io::Error::other("it is not UTF-8")))
        .map_err(|error| Failure::io("read", path, &error))?;
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

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStringExt;

    use super::*;

    #[test]
    fn the_model_of_the_demo_is_given_by_its_name() {
        let flags = Answers { model: Some(Answer::flag("demo".into())), ..Answers::default() };
        let model = with_preset(flags).unwrap().model.unwrap();
        assert!(model.origin == Origin::Flag && model.value.ends_with("presets/demo/model"), "{model:?}");
    }

    #[test]
    fn a_variable_of_ours_that_is_not_text_is_refused_and_others_are_passed_over() {
        let bytes = |text: &[u8]| OsString::from_vec(text.to_vec());
        let read = |name: &[u8], value: &[u8]| texts([(bytes(name), bytes(value))].into_iter());
        assert_eq!(read(b"OTHER", b"\xff").unwrap(), []);
        assert_eq!(read(b"SPARKTUNE_RANK", b"8").unwrap(), [("SPARKTUNE_RANK".into(), "8".into())]);
        let refused = read(b"SPARKTUNE_NAME", b"caf\xe9").unwrap_err();
        assert!(refused.text.contains("the value of the environment variable SPARKTUNE_NAME is not UTF-8"));
        assert!(read(b"SPARKTUNE_N\xff", b"8").unwrap_err().text.contains("the name of"));
    }
}
