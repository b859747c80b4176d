//! The environment variables with which the CUDA runtime finds a toolkit that neither the dynamic loader nor
//! the kernel compiler would find: an unpacked toolkit outside their paths, or Python packages.
//!
//! Both read their variables when a process starts or first uses the GPU, so the program is started again
//! with them. Enters: this machine. Leaves: variables, none if everything is found, or if nothing better is
//! there.

use std::ffi::OsString;
use std::path::Path;

use crate::cuda_checks::{NEEDED_CUDA, Version, version};
use crate::gpu::Gpus;
use crate::libraries::Library;
use crate::{cuda_headers, libraries};

/// The folders that the dynamic loader searches first.
const LOADER: &str = "LD_LIBRARY_PATH";

/// Returns the variables to start this program with, so that it finds an NVRTC that compiles the kernels, and
/// the CUDA headers.
pub fn toolkit_variables() -> Vec<(&'static str, OsString)> {
    let newest = || version(&Gpus::find().cuda_version()?);
    below(Path::new("/"), |name| std::env::var_os(name), newest)
}

/// `newest` returns the newest CUDA that the driver supports.
fn below(
    root: &Path,
    env: impl Fn(&str) -> Option<OsString>,
    newest: impl FnOnce() -> Option<Version>,
) -> Vec<(&'static str, OsString)> {
    let seen = libraries::find_below(root, &env);
    if seen.driver.is_none() {
        return Vec::new();
    }
    let mut variables = Vec::new();
    let of = |library: &Library| version(library.version.as_deref()?);
    let is_good = |library: &Library| of(library).is_none_or(|version| version >= NEEDED_CUDA);
    if !seen.nvrtc.is_some_and(|library| !library.out_of_sight && is_good(&library)) {
        let newest = newest();
        let fits = |library: &Library| {
            of(library).is_some_and(|version| version >= NEEDED_CUDA && newest.is_none_or(|n| version <= n))
        };
        let elsewhere = libraries::nvrtcs_elsewhere(root, &env).into_iter().filter(fits);
        let with_it = elsewhere.filter_map(|library| {
            let folders = env(LOADER).unwrap_or_default();
            let old = std::env::split_paths(&folders).filter(|folder| !folder.as_os_str().is_empty());
            let path = std::env::join_paths([library.folder().into()].into_iter().chain(old)).ok()?;
            // Another name of an older NVRTC could still come first.
            let with = |name: &str| if name == LOADER { Some(path.clone()) } else { env(name) };
            let found = libraries::find_below(root, with).nvrtc?;
            (found.path == library.path && !found.out_of_sight).then_some(path)
        });
        variables.extend({ with_it }.next().map(|path| (LOADER, path)));
    }
    let headers = cuda_headers::find_below(root, &env).and_then(|headers| headers.cuda_path);
    variables.extend(headers.map(|path| ("CUDA_PATH", path.into())));
    variables
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::PathBuf;

    use super::*;
    use crate::libraries::elf_of_this_machine;

    struct Machine(tempfile::TempDir);

    impl Machine {
        fn with(files: &[&str]) -> Self {
            let machine = Self(tempfile::tempdir().unwrap());
            for file in files {
                let path = machine.at(file);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, elf_of_this_machine()).unwrap();
            }
            machine
        }

        fn at(&self, path: &str) -> PathBuf {
            self.0.path().canonicalize().unwrap().join(path)
        }

        /// Returns the variables with their paths relative to the root, for a driver that supports CUDA 13.0.
        fn variables(&self, env: &[(&str, &str)]) -> Vec<(&'static str, String)> {
            let root = self.at("");
            let value = |name: &str| {
                let (_, paths) = env.iter().find(|(n, _)| *n == name)?;
                Some(std::env::join_paths(paths.split(':').map(|path| root.join(path))).unwrap())
            };
            let relative = |path: OsString| path.to_str().unwrap().replace(root.to_str().unwrap(), "");
            let found = below(&root, value, || Some((13, 0)));
            found.into_iter().map(|(name, path)| (name, relative(path))).collect()
        }
    }

    const DRIVER: &str = "usr/lib/libcuda.so.1";
    const PACKAGES: &str = "conda/lib/python3.12/site-packages/nvidia";

    #[test]
    fn python_packages_next_to_the_python_on_the_path_are_found() {
        let files = [
            DRIVER,
            "conda/bin/python3",
            &format!("{PACKAGES}/cu13/lib/libnvrtc.so.13"),
            &format!("{PACKAGES}/cu13/lib/libnvrtc-builtins.so.13.0"),
            &format!("{PACKAGES}/cu13/include/cuda_fp16.h"),
            &format!("{PACKAGES}/cuda_nvrtc/lib/libnvrtc.so.12"),
        ];
        let machine = Machine::with(&files);
        let env = [("PATH", "conda/bin"), (LOADER, "some/lib")];
        let folder = format!("{PACKAGES}/cu13");
        let expected = [(LOADER, format!("{folder}/lib:some/lib")), ("CUDA_PATH", folder.clone())];
        assert_eq!(machine.variables(&env), expected);
        let set = [("PATH", "conda/bin"), (LOADER, &format!("{folder}/lib")), ("CUDA_PATH", &folder)];
        assert_eq!(machine.variables(&set), [], "then nothing is missing");
        fs::remove_file(machine.at(DRIVER)).unwrap();
        assert_eq!(machine.variables(&env), [], "without a driver nothing is compiled");
    }

    #[test]
    fn a_toolkit_replaces_an_older_nvrtc_that_the_loader_finds_first() {
        let of = |version: &str| format!("usr/local/cuda-{version}/lib64/libnvrtc.so.{version}.88");
        let link = |machine: &Machine, version: &str| {
            let file = machine.at(&of(version));
            std::os::unix::fs::symlink(&file, file.with_file_name("libnvrtc.so")).unwrap();
        };
        let machine = Machine::with(&[DRIVER, &of("12.9"), &of("13.0"), &of("13.2")]);
        ["12.9", "13.0", "13.2"].iter().for_each(|version| link(&machine, version));
        let old = "usr/local/cuda-12.9/lib64";
        let expected = [(LOADER, format!("usr/local/cuda-13.0/lib64:{old}"))];
        assert_eq!(machine.variables(&[(LOADER, old)]), expected, "13.2 is newer than the driver");
        fs::remove_dir_all(machine.at("usr/local/cuda-13.0")).unwrap();
        assert_eq!(machine.variables(&[(LOADER, old)]), [], "there is no better one");
    }
}
