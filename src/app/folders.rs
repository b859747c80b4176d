//! The folders of the user and of the program, and private files.

use std::path::{Path, PathBuf};
use std::{fs, io};

use rustix::process::geteuid;
use sparktune_base::files::{create_private_folder, is_private_folder, private_folder, write_shared};
use sparktune_plan::{Answers, Plan};

use crate::failure::{Exit, Failure};

/// The variable with the folder that contains `presets/`, for a copy of the program elsewhere.
pub const HOME_VARIABLE: &str = "SPARKTUNE_HOME";

/// Returns the folder of the user's settings and presets, `$XDG_CONFIG_HOME/sparktune`. `None` without a
/// home folder.
pub fn config_folder() -> Option<PathBuf> {
    xdg_folder("XDG_CONFIG_HOME", ".config")
}

/// Returns the folder of what the program keeps for this user, such as unfinished wizards and tokens:
/// `$XDG_STATE_HOME/sparktune`. `None` without a home folder.
pub fn state_folder() -> Option<PathBuf> {
    xdg_folder("XDG_STATE_HOME", ".local/state")
}

/// Returns the same folder, for something that cannot do without it.
///
/// # Errors
/// There is no home folder. `what` names what there is no folder for.
pub(crate) fn required_state_folder(what: &str) -> Result<PathBuf, Failure> {
    state_folder().ok_or_else(|| {
        Failure::usage(format!("there is no folder for {what}: neither XDG_STATE_HOME nor HOME is set"))
            .hint("Set HOME to your folder")
    })
}

fn xdg_folder(variable: &str, default: &str) -> Option<PathBuf> {
    let given = std::env::var_os(variable).map(PathBuf::from).filter(|path| path.is_absolute());
    given
        .or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(default)))
        .map(|folder| folder.join("sparktune"))
}

/// Returns the folder with the demo's model and data: the one in [`HOME_VARIABLE`], one above the program,
/// or the checkout that the program was built from.
pub fn demo_folder() -> Option<PathBuf> {
    let program = std::env::current_exe().ok();
    let above = program.iter().flat_map(|path| path.ancestors().skip(1).map(Path::to_owned));
    let checkout = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).map(Path::to_owned);
    std::env::var_os(HOME_VARIABLE)
        .map(PathBuf::from)
        .into_iter()
        .chain(above)
        .chain(checkout)
        .map(|home| home.join("presets/demo"))
        .find(|folder| folder.join("model/config.json").is_file())
}

/// Returns this user's folder of this name in a folder that several users may share, such as that of the
/// runs: `NAME`, or `NAME-UID` if another user was there first. It is created if necessary.
///
/// # Errors
/// It cannot be created, or somebody else has taken its name.
pub fn private_folder_of_user(shared: &Path, name: &str) -> Result<PathBuf, Failure> {
    let user = geteuid().as_raw();
    for path in [shared.join(name), shared.join(format!("{name}-{user}"))] {
        // A link is never created or followed.
        if fs::symlink_metadata(&path).is_err() {
            create_private_folder(&path).map_err(|error| Failure::io("create", &path, &error))?;
        }
        if is_private_folder(&path) {
            return Ok(path);
        }
    }
    let text = format!(
        "nothing private can be kept in {}, because {name} and {name}-{user} there are links, belong to other users, or can be written to by them",
        shared.display()
    );
    Err(Failure::new(Exit::Usage, text).hint("Choose another folder with --runs-dir, or remove them"))
}

/// Replaces a file atomically, in a folder that only the user can read.
pub(crate) fn write_private_file(path: &Path, text: &str) -> Result<(), Failure> {
    let failed = |error: io::Error| Failure::io("write", path, &error);
    let folder = path.parent().unwrap_or(Path::new("."));
    private_folder().recursive(true).create(folder).map_err(failed)?;
    write_shared(path, text).map_err(failed)
}

/// Returns the folder of the runs according to these answers.
pub fn runs_dir_of(answers: &Answers) -> PathBuf {
    answers.runs_dir.as_ref().map_or_else(|| Plan::RUNS_DIR.into(), |answer| answer.value.clone())
}
