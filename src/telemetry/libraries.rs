//! Finds the libcuda and NVRTC that the dynamic loader would load, without loading them, because that would
//! run their code.
//!
//! The order is the loader's own: `LD_LIBRARY_PATH`, its cache, the system's folders. Files for another
//! processor are skipped, as the loader does. A library's version is read from the name of its file
//! (`libnvrtc.so.13.0.88`), or from the builtins next to an NVRTC; calling the library would need unsafe
//! code.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::toolkits::toolkits;

/// The two libraries that training on a GPU loads at the start; `None` if one is missing.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct CudaLibraries {
    /// The driver's library, libcuda.
    pub driver: Option<Library>,
    /// The compiler of kernels, NVRTC.
    pub nvrtc: Option<Library>,
}

/// A library that was found.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Library {
    /// The file, with links resolved. It is untrusted text and has to be escaped for a terminal.
    pub path: String,
    /// The version: `580.95.05` of a driver, `13.0.88` or `13.0` of an NVRTC.
    pub version: Option<String>,
    /// Whether the loader does not find it, so that `LD_LIBRARY_PATH` must contain its folder.
    pub out_of_sight: bool,
}

impl Library {
    fn at(path: PathBuf, library: &str, out_of_sight: bool) -> Self {
        let path = path.canonicalize().unwrap_or(path);
        let version = version(&path, library);
        Self { path: path.display().to_string(), version, out_of_sight }
    }

    /// Returns whether it is a stub for linking, which does nothing when it is called.
    pub fn is_stub(&self) -> bool {
        Path::new(&self.path).components().any(|part| part.as_os_str() == "stubs")
    }

    /// Returns the folder of the file.
    pub fn folder(&self) -> &str {
        Path::new(&self.path).parent().and_then(Path::to_str).unwrap_or_default()
    }
}

/// Searches this machine with the environment of this process.
pub(crate) fn find() -> CudaLibraries {
    find_below(Path::new("/"), |name| std::env::var_os(name))
}

pub(crate) fn find_below(root: &Path, env: impl Fn(&str) -> Option<OsString>) -> CudaLibraries {
    let loader = Loader::new(root, &env);
    CudaLibraries {
        driver: loader.find("cuda", &[root.join("usr/lib/wsl/lib")]),
        nvrtc: loader.find("nvrtc", &folders_of_toolkits(root, &env)),
    }
}

/// Returns the NVRTCs in the folders of toolkits and Python packages, wherever the loader searches.
pub(crate) fn nvrtcs_elsewhere(root: &Path, env: &impl Fn(&str) -> Option<OsString>) -> Vec<Library> {
    let names = names("nvrtc");
    let in_folder =
        |folder: PathBuf| names.iter().map(|name| folder.join(name)).find(|path| is_of_this_machine(path));
    let paths = folders_of_toolkits(root, env).into_iter().filter_map(in_folder);
    paths.map(|path| Library::at(path, "nvrtc", true)).collect()
}

/// Returns the folders where toolkits and Python packages keep their libraries.
fn folders_of_toolkits(root: &Path, env: &impl Fn(&str) -> Option<OsString>) -> Vec<PathBuf> {
    let below = |toolkit: PathBuf| {
        let targets = fs::read_dir(toolkit.join("targets")).into_iter().flatten().filter_map(Result::ok);
        let targets = targets.map(|target| target.path().join("lib"));
        [toolkit.join("lib64"), toolkit.join("lib")].into_iter().chain(targets).collect::<Vec<_>>()
    };
    toolkits(root, env, "cuda_nvrtc").into_iter().flat_map(below).collect()
}

/// Returns the file names that the CUDA bindings (cudarc 0.19) try for a library, in their order, without
/// those for Windows.
fn names(library: &str) -> Vec<String> {
    ["", ".13", ".12", ".11", ".10", ".9", ".1"].map(|version| format!("lib{library}.so{version}")).into()
}

struct Loader {
    /// The folders of `LD_LIBRARY_PATH`.
    first: Vec<PathBuf>,
    /// The names and paths in the loader's cache.
    cache: Vec<(String, PathBuf)>,
    last: Vec<PathBuf>,
}

impl Loader {
    fn new(root: &Path, env: &impl Fn(&str) -> Option<OsString>) -> Self {
        let first = env("LD_LIBRARY_PATH").unwrap_or_default();
        let first = std::env::split_paths(&first).filter(|path| path.is_absolute()).collect();
        let cache =
            fs::read(root.join("etc/ld.so.cache")).map(|bytes| read_cache(&bytes)).unwrap_or_default();
        // Debian's loader has a folder for each processor.
        let own = format!("{}-linux-gnu", std::env::consts::ARCH);
        let folders = ["lib64", "usr/lib64", "lib", "usr/lib"].map(|path| root.join(path));
        let last = folders.iter().map(|folder| folder.join(&own)).chain(folders.clone()).collect();
        Self { first, cache, last }
    }

    fn find(&self, library: &str, elsewhere: &[PathBuf]) -> Option<Library> {
        let names = names(library);
        let seen = names.iter().find_map(|name| self.load(name));
        let hidden = || {
            let places = elsewhere.iter().flat_map(|folder| names.iter().map(|name| folder.join(name)));
            places.into_iter().find(|path| is_of_this_machine(path))
        };
        let out_of_sight = seen.is_none();
        Some(Library::at(seen.or_else(hidden)?, library, out_of_sight))
    }

    /// Returns the file that the loader finds for this name.
    fn load(&self, name: &str) -> Option<PathBuf> {
        let in_folders = |folders: &[PathBuf]| {
            folders.iter().map(|folder| folder.join(name)).find(|path| is_of_this_machine(path))
        };
        let cached = || {
            let paths = self.cache.iter().filter(|(key, _)| key == name).map(|(_, path)| path);
            paths.into_iter().find(|path| is_of_this_machine(path)).cloned()
        };
        in_folders(&self.first).or_else(cached).or_else(|| in_folders(&self.last))
    }
}

/// Returns whether the file is a 64-bit ELF file for the processor that this program was built for.
fn is_of_this_machine(path: &Path) -> bool {
    let mut head = [0; 20];
    let read = File::open(path).and_then(|mut file| file.read_exact(&mut head));
    read.is_ok() && head[..5] == *b"\x7fELF\x02" && head[18..20] == MACHINE.to_le_bytes()
}

/// The number of the processor in an ELF file, and below it its bits in the loader's cache.
#[cfg(target_arch = "x86_64")]
const MACHINE: u16 = 62;
#[cfg(target_arch = "x86_64")]
const CACHE_FLAGS: u32 = 0x0303;
#[cfg(not(target_arch = "x86_64"))]
const MACHINE: u16 = 183;
#[cfg(not(target_arch = "x86_64"))]
const CACHE_FLAGS: u32 = 0x0a03;

/// Reads names and paths in `/etc/ld.so.cache`, in the format of glibc since 2.2, which may follow an older
/// table. Returns none for other data.
fn read_cache(bytes: &[u8]) -> Vec<(String, PathBuf)> {
    const MAGIC: &[u8] = b"glibc-ld.so.cache1.1";
    const HEAD: usize = 48;
    const ENTRY: usize = 24;
    let Some(start) = bytes.windows(MAGIC.len()).position(|window| window == MAGIC) else {
        return Vec::new();
    };
    let table = &bytes[start..];
    let number = |at: usize| {
        let field = table.get(at..at.checked_add(4)?)?;
        Some(u32::from_le_bytes(field.try_into().ok()?))
    };
    let text = |at: u32| {
        let rest = table.get(at as usize..)?;
        let end = rest.iter().position(|byte| *byte == 0)?;
        std::str::from_utf8(&rest[..end]).ok()
    };
    let count = number(MAGIC.len()).unwrap_or(0) as usize;
    let whole = count.min(table.len().saturating_sub(HEAD) / ENTRY);
    let entries = (0..whole).map(|index| HEAD + index * ENTRY);
    entries
        .filter(|at| number(*at) == Some(CACHE_FLAGS))
        .filter_map(|at| Some((text(number(at + 4)?)?.to_owned(), PathBuf::from(text(number(at + 8)?)?))))
        .collect()
}

fn version(path: &Path, library: &str) -> Option<String> {
    let after = |name: &str, stem: &str| {
        let version = name.strip_prefix(stem)?;
        let plain = version.split('.').all(|part| part.parse::<u32>().is_ok());
        (plain && version.contains('.')).then(|| version.to_owned())
    };
    let name = path.file_name()?.to_str()?;
    if let Some(version) = after(name, &format!("lib{library}.so.")) {
        return Some(version);
    }
    let siblings = fs::read_dir(path.parent()?).ok()?.filter_map(Result::ok);
    let stem = format!("lib{library}-builtins.so.");
    siblings.filter_map(|entry| after(entry.file_name().to_str()?, &stem)).max_by_key(String::len)
}

/// Returns the beginning of a library for this machine.
#[cfg(test)]
pub(crate) fn elf_of_this_machine() -> Vec<u8> {
    tests::elf(MACHINE)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use proptest::prelude::*;

    use super::*;

    struct Machine(tempfile::TempDir);

    impl Machine {
        fn new() -> Self {
            Self(tempfile::tempdir().unwrap())
        }

        fn at(&self, path: &str) -> PathBuf {
            self.0.path().join(path)
        }

        fn file(&self, path: &str, bytes: &[u8]) {
            fs::create_dir_all(self.at(path).parent().unwrap()).unwrap();
            fs::write(self.at(path), bytes).unwrap();
        }

        fn library(&self, path: &str) {
            self.file(path, &elf(MACHINE));
        }

        fn link(&self, path: &str, to: &str) {
            fs::create_dir_all(self.at(path).parent().unwrap()).unwrap();
            symlink(to, self.at(path)).unwrap();
        }

        /// Writes a cache with these libraries and their `flags`.
        fn cache(&self, entries: &[(&str, &str, u32)]) {
            let entries: Vec<(&str, String, u32)> = entries
                .iter()
                .map(|(name, path, flags)| (*name, self.at(path).display().to_string(), *flags))
                .collect();
            self.file("etc/ld.so.cache", &cache(&entries));
        }

        fn find(&self, env: &[(&str, &str)]) -> CudaLibraries {
            find_below(self.0.path(), |name| {
                let (_, path) = env.iter().find(|(n, _)| *n == name)?;
                let paths = path.split(':').map(|path| self.at(path).display().to_string());
                Some(paths.collect::<Vec<_>>().join(":").into())
            })
        }

        fn found(&self, path: &str, version: Option<&str>, out_of_sight: bool) -> Option<Library> {
            let path = self.at(path).canonicalize().unwrap().display().to_string();
            Some(Library { path, version: version.map(str::to_owned), out_of_sight })
        }
    }

    pub(super) fn elf(machine: u16) -> Vec<u8> {
        let mut bytes = b"\x7fELF\x02\x01\x01".to_vec();
        bytes.resize(18, 0);
        bytes.extend(machine.to_le_bytes());
        bytes
    }

    fn cache(entries: &[(&str, String, u32)]) -> Vec<u8> {
        let mut bytes = b"glibc-ld.so.cache1.1".to_vec();
        bytes.extend((entries.len() as u32).to_le_bytes());
        bytes.resize(48, 0);
        let mut strings = Vec::new();
        for (name, path, flags) in entries {
            let at = (48 + entries.len() * 24 + strings.len()) as u32;
            strings.extend(name.bytes().chain([0]).chain(path.bytes()).chain([0]));
            let fields = [*flags, at, at + name.len() as u32 + 1, 0, 0, 0];
            fields.iter().for_each(|field| bytes.extend(field.to_le_bytes()));
        }
        bytes.extend(strings);
        bytes
    }

    #[test]
    fn a_machine_without_them_has_none() {
        assert_eq!(Machine::new().find(&[]), CudaLibraries::default());
    }

    #[test]
    fn the_cache_leads_to_a_file_whose_name_says_the_version() {
        let machine = Machine::new();
        machine.library("usr/lib/aarch64-linux-gnu/libcuda.so.580.95.05");
        machine.link("usr/lib/aarch64-linux-gnu/libcuda.so.1", "libcuda.so.580.95.05");
        machine.library("usr/local/cuda-13.0/targets/sbsa-linux/lib/libnvrtc.so.13.0.88");
        machine.link("usr/local/cuda-13.0/targets/sbsa-linux/lib/libnvrtc.so.13", "libnvrtc.so.13.0.88");
        machine.cache(&[
            ("libcuda.so.1", "usr/lib/i386/libcuda.so.1", 0x0003),
            ("libcuda.so.1", "usr/lib/aarch64-linux-gnu/libcuda.so.1", CACHE_FLAGS),
            ("libnvrtc.so.13", "usr/local/cuda-13.0/targets/sbsa-linux/lib/libnvrtc.so.13", CACHE_FLAGS),
        ]);
        let found = machine.find(&[]);
        let driver = "usr/lib/aarch64-linux-gnu/libcuda.so.580.95.05";
        assert_eq!(found.driver, machine.found(driver, Some("580.95.05"), false));
        let nvrtc = "usr/local/cuda-13.0/targets/sbsa-linux/lib/libnvrtc.so.13.0.88";
        assert_eq!(found.nvrtc, machine.found(nvrtc, Some("13.0.88"), false));
    }

    #[test]
    fn what_comes_first_hides_what_comes_later_unless_it_is_for_another_machine() {
        let machine = Machine::new();
        machine.library("toolkit/stubs/libcuda.so");
        machine.library("usr/lib/libcuda.so.1");
        let stub = machine.find(&[("LD_LIBRARY_PATH", "toolkit/stubs")]).driver.unwrap();
        assert!(stub.is_stub() && !stub.out_of_sight && stub.version.is_none(), "{stub:?}");
        machine.file("foreign/libcuda.so", &elf(MACHINE ^ 1));
        machine.file("text/libcuda.so", b"GROUP ( libcuda.so.1 ) # a linker script");
        let own = machine.find(&[("LD_LIBRARY_PATH", "foreign:text:not/there")]).driver;
        assert_eq!(own, machine.found("usr/lib/libcuda.so.1", None, false));
        let debian = format!("lib/{}-linux-gnu/libcuda.so.1", std::env::consts::ARCH);
        machine.library(&debian);
        assert_eq!(machine.find(&[]).driver, machine.found(&debian, None, false));
        assert!(!own.unwrap().is_stub());
    }

    #[test]
    fn an_nvrtc_that_only_python_knows_is_found_out_of_sight_with_the_version_of_its_builtins() {
        let machine = Machine::new();
        let folder = "venv/lib/python3.12/site-packages/nvidia/cu13/lib";
        machine.library(&format!("{folder}/libnvrtc.so.13"));
        machine.library(&format!("{folder}/libnvrtc-builtins.so.13.0"));
        machine.library(&format!("{folder}/libnvrtc-builtins.alt.so.13.0"));
        let path = format!("{folder}/libnvrtc.so.13");
        assert_eq!(machine.find(&[]).nvrtc, None);
        let hidden = machine.find(&[("VIRTUAL_ENV", "venv")]).nvrtc;
        assert_eq!(hidden, machine.found(&path, Some("13.0"), true));
        assert_eq!(hidden.unwrap().folder(), machine.at(folder).canonicalize().unwrap().to_str().unwrap());
        let named = machine.find(&[("VIRTUAL_ENV", "venv"), ("LD_LIBRARY_PATH", folder)]).nvrtc;
        assert_eq!(named, machine.found(&path, Some("13.0"), false));
    }

    #[test]
    fn the_cache_of_this_machine_is_understood() {
        let Ok(bytes) = fs::read("/etc/ld.so.cache") else { return };
        let libraries = read_cache(&bytes);
        let libc = libraries.iter().find(|(name, _)| name == "libc.so.6");
        assert!(libc.is_some_and(|(_, path)| is_of_this_machine(path)), "{} libraries", libraries.len());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(256))]

        #[test]
        fn a_damaged_cache_is_read_without_a_panic(at in 0_usize..200, byte: u8, cut in 0_usize..200) {
            let entries = [("libcuda.so.1", "/usr/lib/libcuda.so.1".to_owned(), CACHE_FLAGS)];
            let mut bytes = cache(&entries);
            prop_assert_eq!(read_cache(&bytes).len(), 1);
            let end = bytes.len() - 1;
            bytes[at.min(end)] = byte;
            bytes.truncate(cut);
            prop_assert!(read_cache(&bytes).len() <= 1);
        }
    }
}
