//! Finds and loads the library, once for a process.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use libloading::Library as File;

use super::sys::{Functions, Object};

/// The file names that are tried, the newest first.
const NAMES: [&str; 3] = ["libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so"];
/// The folders of a CUDA toolkit, and of the Python packages, that hold libraries.
const FOLDERS: [&str; 2] = ["lib64", "lib"];

/// The loaded library.
pub(super) struct Library {
    pub(super) functions: Functions,
    /// The handle for the first CUDA device. A handle may be used by several threads.
    pub(super) handle: Object,
    /// The version of the library, `130002`. An algorithm is stored for one version alone.
    pub(super) version: usize,
}

// SAFETY: the handle may be used from any thread, at the same time too ("Thread safety" in the library's
// documentation); functions are plain addresses.
#[expect(unsafe_code, reason = "the SAFETY comment says why this is sound")]
unsafe impl Send for Library {}
// SAFETY: as above.
#[expect(unsafe_code, reason = "the SAFETY comment says why this is sound")]
unsafe impl Sync for Library {}

static LIBRARY: OnceLock<Option<Library>> = OnceLock::new();

/// Returns the library if this process has loaded it.
pub(super) fn loaded() -> Option<&'static Library> {
    LIBRARY.get()?.as_ref()
}

/// Loads the library if the machine has one, from these files or else from where the loader looks. Only the
/// first call does something. The CUDA device's context has to be current on this thread.
pub(super) fn load(from: &[PathBuf]) -> Option<&'static Library> {
    LIBRARY.get_or_init(|| places(from).iter().find_map(|place| open(place))).as_ref()
}

fn places(from: &[PathBuf]) -> Vec<PathBuf> {
    if !from.is_empty() {
        return from.to_vec();
    }
    let toolkit =
        std::env::var_os("CUDA_PATH").map_or_else(|| PathBuf::from("/usr/local/cuda"), PathBuf::from);
    let by_name = NAMES.iter().map(PathBuf::from);
    let in_toolkit = FOLDERS.iter().flat_map(|folder| NAMES.map(|name| toolkit.join(folder).join(name)));
    by_name.chain(in_toolkit).collect()
}

fn open(place: &Path) -> Option<Library> {
    // SAFETY: the vendor's library runs no code when it is loaded that would disturb the process; the call
    // without arguments and the one that creates a handle are as in its header.
    #[expect(unsafe_code, reason = "the SAFETY comment says why this is sound")]
    unsafe {
        let functions = Functions::of(File::new(place).ok()?).ok()?;
        let mut handle = std::ptr::null_mut();
        if (functions.create)(&raw mut handle) != 0 {
            return None;
        }
        let version = (functions.version)();
        Some(Library { functions, handle, version })
    }
}
