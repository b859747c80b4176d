//! The folder in which compiled kernels are kept, next to the runs.
//!
//! Compiling all kernels of a first run takes about half a minute (`kernels/NOTES.md`, "Start"). Its images
//! are kept in `images` by our version of cubecl-cuda (`kernels/stand-ins/cubecl-cuda`), whose keys hold
//! source, function, options, compiler and GPU. The folder is also the driver's compute cache, for what the
//! driver compiles. Its usual place is `~/.nv`, which a container or a cluster's node may lose. cubecl's own
//! cache is not compiled in (`.ci/features`): its key holds no compiler, and its second key no function.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use sparktune_base::files::{is_private_folder, private_folder};

/// The folder, next to the runs.
pub(crate) const FOLDER: &str = ".compiled-kernels";

/// The most bytes that the driver, and that we, keep: many times what the kernels of one version take for one
/// GPU.
const ROOM: u64 = 1 << 30;

/// Returns the variables that lead a trainer's CUDA runtime to the folder next to `runs`, which is created.
/// Returns none if others could write to it: what is read there runs on the GPU. A place that the user has
/// chosen is left alone.
pub(crate) fn kernel_cache(runs: &Path) -> Vec<(&'static str, OsString)> {
    let Some(path) = std::path::absolute(runs).ok().and_then(|runs| folder(&runs.join(FOLDER))) else {
        return Vec::new();
    };
    let mut variables = Vec::new();
    if let Some(images) = folder(&path.join("images")) {
        make_room(&images, ROOM);
        variables.push(("SPARKTUNE_KERNEL_IMAGES", images.into_os_string()));
    }
    variables.push(("CUDA_CACHE_PATH", path.into_os_string()));
    variables.push(("CUDA_CACHE_MAXSIZE", ROOM.to_string().into()));
    variables.retain(|(name, _)| std::env::var_os(name).is_none());
    variables
}

/// Creates a private folder, if it is not there.
fn folder(path: &Path) -> Option<PathBuf> {
    let _ = private_folder().create(path);
    is_private_folder(path).then(|| path.to_owned())
}

/// Empties the folder if it holds more than `room` bytes, most of them of other versions.
fn make_room(folder: &Path, room: u64) {
    let Ok(entries) = std::fs::read_dir(folder) else { return };
    let files: Vec<_> = entries.flatten().collect();
    let bytes: u64 = files.iter().filter_map(|file| Some(file.metadata().ok()?.len())).sum();
    if bytes > room {
        for file in files {
            let _ = std::fs::remove_file(file.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions, set_permissions};
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

    use super::*;

    #[test]
    fn kernels_are_kept_in_a_private_folder_that_only_its_user_may_have_made() {
        let runs = tempfile::tempdir().unwrap();
        let path = runs.path().join(FOLDER);
        let found = || {
            let variables = kernel_cache(runs.path());
            variables.into_iter().find(|(name, _)| *name == "SPARKTUNE_KERNEL_IMAGES").map(|(_, value)| value)
        };
        assert_eq!(found(), Some(path.join("images").into_os_string()));
        for folder in [path.clone(), path.join("images")] {
            assert_eq!(fs::metadata(&folder).unwrap().mode() & 0o777, 0o700);
        }
        assert_eq!(found(), Some(path.join("images").into_os_string()), "it is used again");
        set_permissions(&path, Permissions::from_mode(0o770)).unwrap();
        assert_eq!(found(), None, "its group may write there");
        fs::remove_dir_all(&path).unwrap();
        let elsewhere = tempfile::tempdir().unwrap();
        symlink(elsewhere.path(), &path).unwrap();
        assert_eq!(found(), None, "a link leads to a folder of someone's choice");
        assert_eq!(folder(&runs.path().join("not/there")), None);
    }

    #[test]
    fn a_folder_that_has_grown_too_large_begins_anew() {
        let images = tempfile::tempdir().unwrap();
        let file = images.path().join("a.image");
        fs::write(&file, [0; 100]).unwrap();
        make_room(images.path(), 100);
        assert!(file.exists());
        make_room(images.path(), 99);
        assert!(!file.exists());
    }
}
