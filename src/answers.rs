//! Where answers come from: flags, `SPARKTUNE_*` variables, the user's file, a preset.

use std::io::IsTerminal;
use std::path::{Path, PathBuf};

use sparktune_plan::presets::{self, PresetSource, UserPresets};
use sparktune_plan::{Answer, Answers, Origin};

use crate::failure::Failure;

/// Folder of runs where nobody said another.
const RUNS_DIR: &str = "runs";

/// All answers, joined by precedence: preset < user file < environment < flag.
///
/// # Errors
/// A file that cannot be read, or a name or value in one of the layers that is wrong.
pub fn gather(flags: Answers, demo: bool) -> Result<Answers, Failure> {
    let mut said = Answers::layered([user_file()?, environment()?, flags]);
    if demo {
        said = demo_answers()?.merge(said);
    }
    let preset = match &said.preset {
        None => Answers::default(),
        Some(preset) => match presets::find(preset, &user_presets())? {
            PresetSource::Shipped(preset) => preset.answers()?,
            PresetSource::File(path) => from_file(&path, Origin::Preset)?,
        },
    };
    Ok(preset.merge(said))
}

/// The folder of runs by the same precedence, for commands that have no other setting.
///
/// # Errors
/// As [`gather`].
pub fn runs_dir(flag: Option<PathBuf>) -> Result<PathBuf, Failure> {
    let flags = Answers { runs_dir: flag.map(Answer::flag), ..Answers::default() };
    Ok(runs_dir_of(&gather(flags, false)?))
}

/// The folder of runs that these answers mean.
pub fn runs_dir_of(answers: &Answers) -> PathBuf {
    answers.runs_dir.as_ref().map_or_else(|| RUNS_DIR.into(), |answer| answer.value.clone())
}

fn environment() -> Result<Answers, Failure> {
    let pairs = std::env::vars_os().filter_map(|(k, v)| Some((k.into_string().ok()?, v.into_string().ok()?)));
    // Where sparktune is installed is no answer about a run.
    Ok(Answers::from_env(pairs.filter(|(name, _)| name != HOME))?)
}

/// The user's own presets. A folder that is not there or cannot be listed holds none.
pub fn user_presets() -> UserPresets {
    let Some(folder) = config_folder().map(|folder| folder.join("presets")) else {
        return UserPresets::default();
    };
    let files = std::fs::read_dir(&folder).into_iter().flatten().filter_map(Result::ok);
    let names: Vec<String> = files.filter_map(|file| file.file_name().into_string().ok()).collect();
    UserPresets::new(folder, names)
}

fn user_file() -> Result<Answers, Failure> {
    match config_folder().map(|folder| folder.join("settings.toml")) {
        Some(path) if path.is_file() => from_file(&path, Origin::UserFile),
        _ => Ok(Answers::default()),
    }
}

/// Where the user's settings and presets are: `$XDG_CONFIG_HOME/sparktune`.
pub fn config_folder() -> Option<PathBuf> {
    xdg("XDG_CONFIG_HOME", ".config")
}

/// Where an unfinished wizard is kept: `$XDG_STATE_HOME/sparktune`.
pub fn state_folder() -> Option<PathBuf> {
    xdg("XDG_STATE_HOME", ".local/state")
}

fn xdg(variable: &str, usual: &str) -> Option<PathBuf> {
    let said = std::env::var_os(variable).map(PathBuf::from).filter(|path| path.is_absolute());
    said.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(usual)))
        .map(|folder| folder.join("sparktune"))
}

fn from_file(path: &Path, origin: Origin) -> Result<Answers, Failure> {
    let text = std::fs::read_to_string(path).map_err(|error| Failure::io("read", path, &error))?;
    Ok(Answers::from_toml(&text, origin, &path.display().to_string())?)
}

/// Names the folder that holds `presets/`, where the program was copied away from it.
const HOME: &str = "SPARKTUNE_HOME";

/// `--demo`: the preset of that name with the shipped model and data filled in.
fn demo_answers() -> Result<Answers, Failure> {
    let folder = demo_folder().ok_or_else(|| {
        Failure::usage(format!(
            "presets/demo was not found beside the program. Set {HOME} to the folder that holds presets/, the checkout of \
             sparktune"
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

/// The folder with the demo's model and data: where [`HOME`] says, above the program, or in the checkout it was built from.
pub fn demo_folder() -> Option<PathBuf> {
    let program = std::env::current_exe().ok();
    let above = program.iter().flat_map(|path| path.ancestors().skip(1).map(Path::to_owned));
    std::env::var_os(HOME)
        .map(PathBuf::from)
        .into_iter()
        .chain(above)
        .chain([PathBuf::from(env!("CARGO_MANIFEST_DIR"))])
        .map(|home| home.join("presets/demo"))
        .find(|folder| folder.join("model/config.json").is_file())
}

/// Whether a person can be asked, at least line by line.
pub fn can_ask() -> bool {
    std::io::stdin().is_terminal() && std::io::stderr().is_terminal()
}
