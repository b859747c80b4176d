//! Finds the folders of CUDA toolkits and of the Python packages of their parts.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// Returns folders that may contain `include` and `lib64` of a toolkit, the most likely first. `part` is the
/// folder of the Python package of CUDA 12 for the wanted part; CUDA 13 has one folder for all of them.
pub(crate) fn toolkits(root: &Path, env: &impl Fn(&str) -> Option<OsString>, part: &str) -> Vec<PathBuf> {
    let variable = |name: &str| env(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let mut toolkits: Vec<PathBuf> = ["CUDA_PATH", "CUDA_HOME"].into_iter().filter_map(variable).collect();
    toolkits.extend(["usr/local/cuda", "opt/cuda"].map(|path| root.join(path)));
    let mut versions: Vec<PathBuf> = folders_in(&root.join("usr/local"), "cuda-");
    // The newest first, judging by the names.
    versions.sort_by(|a, b| b.cmp(a));
    toolkits.extend(versions);
    toolkits.extend(["usr/lib/cuda", "usr"].map(|path| root.join(path)));
    let mut environments: Vec<PathBuf> =
        ["VIRTUAL_ENV", "CONDA_PREFIX"].into_iter().filter_map(variable).collect();
    toolkits.extend(environments.iter().cloned());
    environments.extend(pythons(env));
    environments.extend(variable("HOME").map(|home| home.join(".local")));
    environments.extend(["usr/local", "usr"].map(|path| root.join(path)));
    for python in environments.iter().flat_map(|folder| folders_in(&folder.join("lib"), "python3")) {
        for packages in ["site-packages/nvidia", "dist-packages/nvidia"].map(|folder| python.join(folder)) {
            // The newest first, because the kernels need CUDA 13.
            toolkits.extend(folders_in(&packages, "cu1").into_iter().rev());
            toolkits.push(packages.join(part));
        }
    }
    toolkits
}

/// Returns the folders above the `bin` of each Python on `PATH`, whose packages are next to it. An image for
/// PyTorch often has its CUDA nowhere else.
fn pythons(env: &impl Fn(&str) -> Option<OsString>) -> Vec<PathBuf> {
    let path = env("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).filter(|folder| folder.join("python3").exists());
    folders.filter_map(|folder| folder.parent().map(Path::to_owned)).collect()
}

/// Returns the subfolders of a folder whose names have this prefix, sorted.
pub(crate) fn folders_in(folder: &Path, prefix: &str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().filter_map(Result::ok);
    let named = |name: &std::ffi::OsStr| name.to_string_lossy().starts_with(prefix);
    let mut found: Vec<PathBuf> = entries
        .filter(|entry| named(&entry.file_name()))
        .map(|entry| entry.path())
        .filter(|p| p.is_dir())
        .collect();
    found.sort();
    found
}
