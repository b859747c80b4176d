//! Finds the CUDA headers. Kernels are compiled on this machine when they are first used, and NVRTC then
//! needs `cuda_fp16.h` and related headers, which the driver alone does not install.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::toolkits::{folders_in, toolkits};

/// The header that every bf16 and fp16 kernel includes.
const HEADER: &str = "cuda_fp16.h";
/// Files that `cooperative_groups.h` includes from the CUDA C++ core libraries, which are a separate package.
const CORE_HEADERS: [&str; 2] = ["nv/target", "cccl/nv/target"];
/// A file that `mma.h`, with which kernels use tensor cores, includes. Since CUDA 13 it is in a separate
/// package.
const COMPILER_HEADER: &str = "crt/mma.h";

/// Headers that were found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CudaHeaders {
    /// The folder with `cuda_fp16.h`, as text, because facts are written into run folders whatever its name.
    pub folder: String,
    /// The required value of `CUDA_PATH`, if the compiler does not search there by itself.
    pub cuda_path: Option<String>,
    /// The version of CUDA that they belong to, as `13.0`.
    #[serde(default)]
    pub version: Option<String>,
    /// Whether the CUDA C++ core libraries (cccl) were found too.
    #[serde(default)]
    pub cccl: bool,
    /// Whether the compiler's own headers (crt) were found too.
    #[serde(default)]
    pub crt: bool,
}

impl CudaHeaders {
    fn of(folder: &Path, cuda_path: Option<String>) -> Self {
        let cccl = CORE_HEADERS.iter().any(|header| folder.join(header).is_file());
        let crt = folder.join(COMPILER_HEADER).is_file();
        Self { folder: text(folder), cuda_path, version: version(folder), cccl, crt }
    }
}

/// Searches where the compiler searches, and then in the usual other places.
pub(crate) fn find() -> Option<CudaHeaders> {
    find_below(Path::new("/"), |name| std::env::var_os(name))
}

fn text(path: &Path) -> String {
    path.display().to_string()
}

pub(crate) fn find_below(root: &Path, env: impl Fn(&str) -> Option<OsString>) -> Option<CudaHeaders> {
    let variable = |name: &str| env(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let holds = |folder: &PathBuf| folder.join(HEADER).is_file();
    // Like cubecl: CUDA_PATH if it is set, otherwise the first of these that exists.
    let looked_at = variable("CUDA_PATH").or_else(|| {
        let places =
            [("usr/local/cuda", "usr/local/cuda"), ("opt/cuda", "opt/cuda"), ("usr/bin/nvcc", "usr")];
        places.iter().find(|(sign, _)| root.join(sign).exists()).map(|(_, path)| root.join(path))
    });
    if let Some(folder) = looked_at.map(|path| path.join("include")).filter(holds) {
        return Some(CudaHeaders::of(&folder, None));
    }

    let toolkits = toolkits(root, &env, "cuda_runtime");
    // Some toolkits have separate headers for each architecture.
    let targets = |toolkit: &PathBuf| folders_in(&toolkit.join("targets"), "");
    let places = toolkits.iter().flat_map(|toolkit| std::iter::once(toolkit.clone()).chain(targets(toolkit)));
    let found = places.map(|place| (place.join("include"), place)).find(|(folder, _)| holds(folder));
    found.map(|(folder, place)| CudaHeaders::of(&folder, Some(text(&place))))
}

/// Reads the version from `cuda.h`: `#define CUDA_VERSION 13000`.
fn version(folder: &Path) -> Option<String> {
    let text = fs::read_to_string(folder.join("cuda.h")).ok()?;
    let number = text.lines().find_map(|line| line.strip_prefix("#define CUDA_VERSION "))?;
    let number: u32 = number.trim().parse().ok()?;
    Some(format!("{}.{}", number / 1000, number % 1000 / 10))
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

        /// Returns the folder found with this environment, relative to the root, and the value for
        /// `CUDA_PATH`.
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
    fn the_version_and_the_parts_that_are_packages_of_their_own_are_read_from_the_files() {
        let machine = Machine::new().with("usr/local/cuda/include");
        let folder = machine.0.path().join("usr/local/cuda/include");
        let look = || find_below(machine.0.path(), |_| None).unwrap();
        assert_eq!((look().version, look().cccl, look().crt), (None, false, false));
        fs::write(folder.join("cuda.h"), "/* x */\n#define CUDA_VERSION 13010\n").unwrap();
        for header in ["cccl/nv/target", "crt/mma.h"] {
            fs::create_dir_all(folder.join(header).parent().unwrap()).unwrap();
            fs::write(folder.join(header), "").unwrap();
        }
        assert_eq!((look().version.as_deref(), look().cccl, look().crt), (Some("13.1"), true, true));
        fs::write(folder.join("cuda.h"), "#define CUDA_VERSION thirteen\n").unwrap();
        assert_eq!(look().version, None);
    }

    #[test]
    fn a_cuda_path_that_leads_nowhere_hides_what_would_be_found_without_it() {
        let machine = Machine::new().with("usr/local/cuda/include");
        let wrong = machine.find(&[("CUDA_PATH", "not/there")]);
        assert_eq!(wrong, found("usr/local/cuda/include", Some("usr/local/cuda")));
    }
}
