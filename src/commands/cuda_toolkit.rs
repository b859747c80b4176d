//! Starts the program once more with the environment in which it finds the CUDA toolkit.

use std::os::unix::process::CommandExt;
use std::process::Command;

use sparktune_telemetry::toolkit_variables;

/// The variable that says that this was done, so that it is done only once.
const DONE: &str = "SPARKTUNE_FOUND_CUDA";

/// Replaces this process by the same program with `LD_LIBRARY_PATH` and `CUDA_PATH` set, if its machine has a
/// toolkit that it would not find otherwise. Must come before anything else is done.
pub fn find_cuda_toolkit() {
    if std::env::var_os(DONE).is_some() {
        return;
    }
    let variables = toolkit_variables();
    let Ok(program) = std::env::current_exe() else { return };
    if variables.is_empty() {
        return;
    }
    let mut arguments = std::env::args_os();
    let mut again = Command::new(program);
    if let Some(name) = arguments.next() {
        again.arg0(name);
    }
    // It returns only if it fails. The checks of the machine then say which variables to set.
    let _ = again.args(arguments).envs(variables).env(DONE, "1").exec();
}
