//! The names that a user may give a model, and names from a server that may become paths.

use std::fmt;
use std::path::{Path, PathBuf};

use crate::error::Error;
use crate::settings::expand_home;

/// A model as named by the user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ModelName {
    /// A folder on this machine.
    Folder(PathBuf),
    /// A repository of the hub.
    Repo {
        /// `org/name`, or `name` for the oldest models.
        id: String,
        /// The branch, tag or commit; `main` by default.
        revision: String,
    },
}

impl ModelName {
    /// An existing folder wins over an id of the same spelling, as in transformers. `home` stands for a
    /// leading `~`.
    ///
    /// # Errors
    /// [`Error::NoFolder`] for a path where no folder is, [`Error::BadName`] for an id that no hub would
    /// accept.
    pub fn parse(text: &str, home: Option<&Path>) -> Result<Self, Error> {
        let text = text.trim();
        let path = expand_home(text, home);
        if !text.is_empty() && path.is_dir() {
            return Ok(Self::Folder(path));
        }
        if text.starts_with(['/', '.', '~']) {
            let why =
                if path.exists() { "is a file; give the folder that contains it" } else { "no such folder" };
            return Err(Error::NoFolder { path, why });
        }
        let bad = |why| Error::BadName { given: text.into(), why };
        let (id, revision) = text.split_once('@').unwrap_or((text, "main"));
        let parts: Vec<&str> = id.split('/').collect();
        if parts.len() > 2 {
            return Err(bad("no such folder, and an id has only one slash"));
        }
        if !parts.iter().all(|part| is_id_part(part)) {
            return Err(bad(
                "no such folder, and an id consists of letters, digits, `-`, `_` and `.` (not doubled, not at either end)",
            ));
        }
        if revision.len() > 250 || !is_plain_path(revision) {
            return Err(bad("the revision after `@` is not a branch, tag or commit"));
        }
        Ok(Self::Repo { id: id.into(), revision: revision.into() })
    }
}

impl fmt::Display for ModelName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Folder(path) => write!(f, "{path:?}"),
            Self::Repo { id, revision } if revision == "main" => f.write_str(id),
            Self::Repo { id, revision } => write!(f, "{id}@{revision}"),
        }
    }
}

/// Returns whether the text is an id with an owner.
pub(crate) fn is_id(text: &str) -> bool {
    text.split_once('/').is_some_and(|(owner, name)| is_id_part(owner) && is_id_part(name))
}

/// Checks a part of an id by the hub's rule. `--` is reserved, because it replaces the slash in the cache.
fn is_id_part(part: &str) -> bool {
    (1..=96).contains(&part.len())
        && part.bytes().all(is_name_byte)
        && !part.starts_with(['-', '.'])
        && !part.ends_with(['-', '.'])
        && !part.contains("--")
        && !part.contains("..")
}

fn is_name_byte(b: u8) -> bool {
    b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.')
}

/// Returns whether the path is relative, has no `..`, and only contains characters without meaning for a URL,
/// a shell or a terminal.
pub(crate) fn is_plain_path(name: &str) -> bool {
    name.split('/').all(|part| {
        (1..=255).contains(&part.len()) && part.bytes().all(is_name_byte) && part != "." && part != ".."
    })
}

/// Returns whether the path of a data file can be joined to a folder and printed: it is relative, has no
/// `..`, and no character with a meaning for a terminal. Data files have freer names than the files of a
/// model, which are plain paths.
pub(crate) fn is_data_path(name: &str) -> bool {
    let is_fit = |c: char| c.is_alphanumeric() || " -_.+=,@()[]&'!~".contains(c);
    let is_part = |part: &str| {
        (1..=255).contains(&part.len())
            && part.chars().all(is_fit)
            && part.trim() == part
            && part != "."
            && part != ".."
    };
    name.len() <= 1024 && name.split('/').all(is_part)
}

/// Returns whether the text is a commit, which names a folder of the cache.
pub(crate) fn is_commit(text: &str) -> bool {
    text.len() == 40 && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
}

/// Returns whether the text is a valid etag, which names a blob of the cache: one path component that does
/// not look like our own names (`.incomplete`).
pub(crate) fn is_etag(text: &str) -> bool {
    (1..=200).contains(&text.len())
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_'))
}

#[cfg(test)]
mod tests {
    use std::path::Component;

    use proptest::prelude::*;

    use super::*;

    fn repo(id: &str, revision: &str) -> ModelName {
        ModelName::Repo { id: id.into(), revision: revision.into() }
    }

    #[test]
    fn ids_may_carry_a_revision() {
        let parse = |text| ModelName::parse(text, None).unwrap();
        assert_eq!(parse("org/name"), repo("org/name", "main"));
        assert_eq!(parse(" org/name@v1.0 "), repo("org/name", "v1.0"));
        assert_eq!(parse("org/name@refs/pr/7"), repo("org/name", "refs/pr/7"));
        assert_eq!(parse("gpt2"), repo("gpt2", "main"));
        assert_eq!(parse("org/name@v1").to_string(), "org/name@v1");
    }

    #[test]
    fn an_existing_folder_wins_and_a_missing_one_is_said_to_be_missing() {
        let dir = tempfile::tempdir().unwrap();
        let text = dir.path().to_str().unwrap();
        assert_eq!(ModelName::parse(text, None).unwrap(), ModelName::Folder(dir.path().into()));
        std::fs::create_dir(dir.path().join("base@v1")).unwrap();
        assert_eq!(
            ModelName::parse("~/base@v1", Some(dir.path())).unwrap(),
            ModelName::Folder(dir.path().join("base@v1"))
        );
        std::fs::write(dir.path().join("model.safetensors"), "").unwrap();
        let error = ModelName::parse(&format!("{text}/model.safetensors"), None).unwrap_err();
        assert!(error.to_string().contains("give the folder"), "{error}");
        let error = ModelName::parse("./no-such-model", None).unwrap_err();
        assert!(error.to_string().contains("no such folder"), "{error}");
    }

    #[test]
    fn names_that_no_hub_has_are_refused() {
        for bad in [
            "",
            "a/b/c",
            "a//b",
            "a/b@",
            "a/b@../x",
            "a/b@x y",
            "a/b?c",
            "a--b/c",
            "-a/b",
            "a/b.",
            "a/b\u{202e}",
            "a/b#x",
        ] {
            let error = ModelName::parse(bad, None).expect_err(bad).to_string();
            assert!(error.contains("org/name") && !error.contains('\u{202e}'), "{error}");
        }
    }

    proptest! {
        #[test]
        fn a_plain_path_never_leaves_the_folder(name in r"[a-z./\\\x00 ~%]{0,12}|\PC{0,8}") {
            if is_plain_path(&name) {
                let joined = Path::new("/base").join(&name);
                prop_assert!(joined.starts_with("/base") && joined != Path::new("/base"));
                prop_assert!(Path::new(&name).components().all(|c| matches!(c, Component::Normal(_))));
                prop_assert!(is_data_path(&name));
            }
        }

        #[test]
        fn the_path_of_a_data_file_never_leaves_the_folder(name in r"[a-z./\\x00 ~%=]{0,12}|\PC{0,8}") {
            if is_data_path(&name) {
                let joined = Path::new("/base").join(&name);
                prop_assert!(joined.starts_with("/base") && joined != Path::new("/base"));
                prop_assert!(Path::new(&name).components().all(|c| matches!(c, Component::Normal(_))));
                let is_hidden = |c: char| c.is_control() || ('\u{202a}'..='\u{202e}').contains(&c);
                prop_assert!(!name.chars().any(is_hidden));
            }
        }
    }

    #[test]
    fn traversal_in_any_spelling_is_not_a_plain_path() {
        for bad in [
            "../x", "a/../x", "/etc/x", "a//b", "./a", "a/", "a\\..\\b", "%2e%2e/x", "a b", "a\0", "~/x",
            "..",
        ] {
            assert!(!is_plain_path(bad), "{bad:?}");
        }
        for good in ["model-00001-of-00002.safetensors", "text_encoder/model.safetensors", "..a"] {
            assert!(is_plain_path(good), "{good:?}");
        }
        for bad in ["../x", "a/../x", "/etc/x", "a//b", "a/", "a\\b", "%2e%2e/x", " a", "a\0", "a?b", "a#b"] {
            assert!(!is_data_path(bad), "{bad:?}");
        }
        for good in ["data/lang=en/größe (1).jsonl", "~/x", "数据.jsonl"] {
            assert!(is_data_path(good), "{good:?}");
        }
    }
}
