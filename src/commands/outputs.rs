//! The files that commands write: nothing that the user has is lost to them.

use std::path::Path;

use sparktune_app::failure::Failure;
use sparktune_base::escape::escape;
use sparktune_base::files::{leads_to_a_device, refuse_to_replace_special};

/// Refuses to replace a file that is neither empty nor, as `is_own` finds out, one that the command itself
/// writes.
///
/// # Errors
/// It is another file, or cannot be read.
pub(crate) fn refuse_to_replace_another(
    output: &Path,
    is_own: impl FnOnce(&Path) -> Result<bool, Failure>,
) -> Result<(), Failure> {
    refuse_to_replace_special(output).map_err(|error| Failure::io("write", output, &error))?;
    if leads_to_a_device(output) {
        let text = format!("{} leads to a device or an open file, which is not replaced", shown(output));
        return Err(Failure::usage(text).hint("Name a file"));
    }
    let is_empty = || output.metadata().is_ok_and(|file| file.len() == 0);
    if !output.is_file() || is_empty() || is_own(output)? {
        return Ok(());
    }
    let text = format!("{} exists and is another kind of file, so it is not replaced", shown(output));
    Err(Failure::usage(text).hint("Name another file"))
}

/// Refuses to write an output over the input.
///
/// # Errors
/// They are the same file.
pub(crate) fn refuse_same_file(input: &Path, output: &Path) -> Result<(), Failure> {
    let same =
        input.canonicalize().is_ok_and(|input| output.canonicalize().is_ok_and(|output| input == output));
    if same {
        let text = format!("{}: input and output are the same file", shown(input));
        return Err(Failure::usage(text).hint("Choose another output"));
    }
    Ok(())
}

/// Refuses to write the list of rejected lines to the file that `flag` names.
///
/// # Errors
/// They are the same file.
pub(crate) fn refuse_as_list_of_rejected(
    rejected: &Path,
    (flag, output): (&str, &Path),
) -> Result<(), Failure> {
    // What does not exist yet has the place of its folder.
    let place = |path: &Path| {
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        path.canonicalize().ok().or_else(|| Some(folder.canonicalize().ok()?.join(path.file_name()?)))
    };
    // Until it is whole, the output has another name.
    let mut unfinished = output.as_os_str().to_owned();
    unfinished.push(".partial");
    let list = place(rejected);
    let is_list = |path: &Path| list.is_some() && place(path) == list;
    let text = if is_list(output) {
        format!("--rejected and {flag} name the same file, {}", shown(output))
    } else if is_list(Path::new(&unfinished)) {
        format!("--rejected names {}, where {flag} is written until it is whole", shown(rejected))
    } else {
        return Ok(());
    };
    Err(Failure::usage(text).hint("Choose another path with --rejected"))
}

fn shown(path: &Path) -> String {
    escape(&path.display().to_string()).into_owned()
}
