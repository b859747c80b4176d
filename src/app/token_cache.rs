//! The folder of tokenised data, next to the runs.
//!
//! Several users may have their runs in one folder, and what is found in the cache is trained on. So each
//! user has a folder that only they can write to, and a folder or a link that somebody else has put there is
//! not used.

use std::path::{Path, PathBuf};

use crate::failure::Failure;
use crate::folders::private_folder_of_user;

/// The name of the folder, for the user who is there first.
pub(crate) const TOKENS: &str = ".tokens";

/// Returns this user's folder of tokenised data in a folder of runs. It is created if necessary.
///
/// # Errors
/// It cannot be created, or somebody else has taken its name.
pub(crate) fn token_cache(runs_dir: &Path) -> Result<PathBuf, Failure> {
    private_folder_of_user(runs_dir, TOKENS)
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{PermissionsExt, chown, symlink};

    use rustix::process::geteuid;

    use super::*;

    #[test]
    fn what_others_may_have_put_there_is_not_used() {
        let (runs, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let [first, own] = [TOKENS.to_owned(), format!("{TOKENS}-{}", geteuid().as_raw())]
            .map(|name| runs.path().join(name));
        assert_eq!(token_cache(runs.path()).unwrap(), first);
        assert_eq!(token_cache(runs.path()).unwrap(), first);

        fs::set_permissions(&first, Permissions::from_mode(0o777)).unwrap();
        assert_eq!(token_cache(runs.path()).unwrap(), own);
        fs::remove_dir(&first).unwrap();
        symlink(elsewhere.path(), &first).unwrap();
        assert_eq!(token_cache(runs.path()).unwrap(), own);
        fs::remove_file(&first).unwrap();
        symlink(runs.path().join("nothing"), &first).unwrap();
        assert_eq!(token_cache(runs.path()).unwrap(), own);

        fs::remove_dir(&own).unwrap();
        symlink(elsewhere.path(), &own).unwrap();
        let refused = token_cache(runs.path()).unwrap_err().to_string();
        assert!(refused.contains("are links"), "{refused}");
        assert_eq!(fs::read_dir(elsewhere.path()).unwrap().count(), 0);
    }

    #[test]
    fn the_folder_of_another_user_is_not_used() {
        let runs = tempfile::tempdir().unwrap();
        let first = runs.path().join(TOKENS);
        fs::create_dir(&first).unwrap();
        if chown(&first, Some(65_534), None).is_err() {
            println!("skipped: only root can give a folder away");
            return;
        }
        assert_ne!(token_cache(runs.path()).unwrap(), first);
    }
}
