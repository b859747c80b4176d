//! The folder in which NVRTC and the driver keep compiled kernels, next to the runs.
//!
//! Compiling all kernels of a step takes an estimated 30 to 45 s (`kernels/NOTES.md`, "Start"). Since CUDA
//! 12.9 NVRTC keeps what it compiled, and the driver what it finished, both in the driver's compute cache,
//! whose keys hold source, options, compiler and GPU. Its usual place is `~/.nv`, which a container or a
//! cluster's node may lose, and an embedded GPU gets little room there. cubecl's own cache is not compiled in
//! (`.ci/features`): its key holds no compiler, and its second key no function.

use std::ffi::OsString;
use std::path::Path;

use sparktune_base::files::{is_private_folder, private_folder};

/// The folder, next to the runs.
const FOLDER: &str = ".compiled-kernels";

/// Four times what the kernels of one version take for one GPU, in bytes.
const ROOM: &str = "1073741824";

/// Returns the variables that lead a trainer's CUDA runtime to the folder next to `runs`, which is created.
/// Returns none if the user has chosen another, or if others could write to this one: what is read there runs
/// on the GPU.
pub(crate) fn kernel_cache(runs: &Path) -> Vec<(&'static str, OsString)> {
    const PLACE: &str = "CUDA_CACHE_PATH";
    if std::env::var_os(PLACE).is_some() {
        return Vec::new();
    }
    folder(runs).map_or_else(Vec::new, |path| vec![(PLACE, path), ("CUDA_CACHE_MAXSIZE", ROOM.into())])
}

fn folder(runs: &Path) -> Option<OsString> {
    let path = std::path::absolute(runs).ok()?.join(FOLDER);
    // It may be there already.
    let _ = private_folder().create(&path);
    is_private_folder(&path).then(|| path.into_os_string())
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
        assert_eq!(folder(runs.path()), Some(path.clone().into_os_string()));
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o700);
        assert_eq!(folder(runs.path()), Some(path.clone().into_os_string()), "it is used again");
        set_permissions(&path, Permissions::from_mode(0o770)).unwrap();
        assert_eq!(folder(runs.path()), None, "its group may write there");
        fs::remove_dir(&path).unwrap();
        let elsewhere = tempfile::tempdir().unwrap();
        symlink(elsewhere.path(), &path).unwrap();
        assert_eq!(folder(runs.path()), None, "a link leads to a folder of someone's choice");
        assert_eq!(folder(&runs.path().join("not/there")), None);
    }
}
