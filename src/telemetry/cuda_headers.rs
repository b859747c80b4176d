//! Where the CUDA headers are. Kernels are compiled on this machine when they are first used, and NVRTC then needs
//! `cuda_fp16.h` and its neighbours, which the driver alone does not bring.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// The header that every bf16 and fp16 kernel includes.
const HEADER: &str = "cuda_fp16.h";

/// Headers that were found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CudaHeaders {
    /// The folder that holds `cuda_fp16.h`, as text: facts are written into run folders, whatever its name.
    pub folder: String,
    /// What `CUDA_PATH` must be set to, as the compiler does not look there by itself; `None` where it does.
    pub cuda_path: Option<String>,
}

/// Looks where the compiler looks, and then in the usual places where it does not.
pub(crate) fn find() -> Option<CudaHeaders> {
    find_below(Path::new("/"), |name| std::env::var_os(name))
}

fn text(path: &Path) -> String {
    path.display().to_string()
}

fn find_below(root: &Path, env: impl Fn(&str) -> Option<OsString>) -> Option<CudaHeaders> {
    let variable = |name: &str| env(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let holds = |folder: &PathBuf| folder.join(HEADER).is_file();
    // As cubecl does it: CUDA_PATH if it is set, else the first of these that exists.
    let looked_at = variable("CUDA_PATH").or_else(|| {
        let places =
            [("usr/local/cuda", "usr/local/cuda"), ("opt/cuda", "opt/cuda"), ("usr/bin/nvcc", "usr")];
        places.iter().find(|(sign, _)| root.join(sign).exists()).map(|(_, path)| root.join(path))
    });
    if let Some(folder) = looked_at.map(|path| path.join("include")).filter(holds) {
        return Some(CudaHeaders { folder: text(&folder), cuda_path: None });
    }

    let mut toolkits: Vec<PathBuf> = variable("CUDA_HOME").into_iter().collect();
    toolkits.extend(["usr/local/cuda", "opt/cuda"].map(|path| root.join(path)));
    let mut versions: Vec<PathBuf> = folders_in(&root.join("usr/local"), "cuda-");
    // The newest first, as far as names tell.
    versions.sort_by(|a, b| b.cmp(a));
    toolkits.extend(versions);
    toolkits.extend(["usr/lib/cuda", "usr"].map(|path| root.join(path)));
    let environments: Vec<PathBuf> =
        ["VIRTUAL_ENV", "CONDA_PREFIX"].into_iter().filter_map(variable).collect();
    toolkits.extend(environments.iter().cloned());
    for environment in environments.iter().flat_map(|folder| folders_in(&folder.join("lib"), "python3")) {
        let packages = environment.join("site-packages/nvidia");
        toolkits.push(packages.join("cuda_runtime"));
        toolkits.extend(folders_in(&packages, "cu1"));
    }
    // Some toolkits keep the headers of each architecture apart.
    let targets = |toolkit: &PathBuf| folders_in(&toolkit.join("targets"), "");
    let places = toolkits.iter().flat_map(|toolkit| std::iter::once(toolkit.clone()).chain(targets(toolkit)));
    let found = places.map(|place| (place.join("include"), place)).find(|(folder, _)| holds(folder));
    found.map(|(folder, place)| CudaHeaders { folder: text(&folder), cuda_path: Some(text(&place)) })
}

fn folders_in(folder: &Path, prefix: &str) -> Vec<PathBuf> {
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

#[cfg(test)]
mod tests {
    use super::*;

    struct Machine(tempfile::TempDir);

    impl Machine {
        fn new() -> Self {
            Self(tempfile::tempdir().unwrap())
        }

        fn with(self, folder: &str) -> Self {
            let folder = self.0.path().join(folder);
            std::fs::create_dir_all(&folder).unwrap();
            std::fs::write(folder.join(HEADER), "").unwrap();
            self
        }

        /// What is found with this environment, relative to the root: folder and what to set `CUDA_PATH` to.
        fn find(&self, env: &[(&str, &str)]) -> Option<(String, Option<String>)> {
            let root = self.0.path();
            let value = |name: &str| {
                let (_, path) = env.iter().find(|(n, _)| *n == name)?;
                Some(if path.is_empty() { OsString::new() } else { root.join(path).into_os_string() })
            };
            let below = |path: String| path.strip_prefix(&format!("{}/", root.display())).unwrap().to_owned();
            find_below(root, value).map(|found| (below(found.folder), found.cuda_path.map(below)))
        }
    }

    fn found(folder: &str, cuda_path: Option<&str>) -> Option<(String, Option<String>)> {
        Some((folder.into(), cuda_path.map(str::to_owned)))
    }

    #[test]
    fn where_the_compiler_looks_nothing_is_to_be_set() {
        assert_eq!(Machine::new().find(&[]), None);
        let usual = Machine::new().with("usr/local/cuda/include");
        assert_eq!(usual.find(&[("CUDA_PATH", "")]), found("usr/local/cuda/include", None));
        let named = Machine::new().with("tools/cuda/include");
        assert_eq!(named.find(&[("CUDA_PATH", "tools/cuda")]), found("tools/cuda/include", None));
        let debian = Machine::new().with("usr/include");
        assert_eq!(debian.find(&[]), found("usr/include", Some("usr")), "without nvcc it is not looked at");
        std::fs::create_dir_all(debian.0.path().join("usr/bin")).unwrap();
        std::fs::write(debian.0.path().join("usr/bin/nvcc"), "").unwrap();
        assert_eq!(debian.find(&[]), found("usr/include", None));
    }

    #[test]
    fn elsewhere_the_variable_that_helps_is_named() {
        let versions = Machine::new().with("usr/local/cuda-12.8/include").with("usr/local/cuda-13.0/include");
        assert_eq!(versions.find(&[]), found("usr/local/cuda-13.0/include", Some("usr/local/cuda-13.0")));
        let home = Machine::new().with("sdk/include");
        assert_eq!(home.find(&[("CUDA_HOME", "sdk")]), found("sdk/include", Some("sdk")));
        let pip = "venv/lib/python3.12/site-packages/nvidia/cuda_runtime";
        let machine = Machine::new().with(&format!("{pip}/include"));
        assert_eq!(machine.find(&[("VIRTUAL_ENV", "venv")]), found(&format!("{pip}/include"), Some(pip)));
        let newer = "venv/lib/python3.12/site-packages/nvidia/cu13";
        let machine = Machine::new().with(&format!("{newer}/include"));
        assert_eq!(machine.find(&[("VIRTUAL_ENV", "venv")]), found(&format!("{newer}/include"), Some(newer)));
        let conda = "conda/targets/sbsa-linux";
        let machine = Machine::new().with(&format!("{conda}/include"));
        assert_eq!(
            machine.find(&[("CONDA_PREFIX", "conda")]),
            found(&format!("{conda}/include"), Some(conda))
        );
    }

    #[test]
    fn a_cuda_path_that_leads_nowhere_hides_what_would_be_found_without_it() {
        let machine = Machine::new().with("usr/local/cuda/include");
        let wrong = machine.find(&[("CUDA_PATH", "not/there")]);
        assert_eq!(wrong, found("usr/local/cuda/include", Some("usr/local/cuda")));
    }
}
