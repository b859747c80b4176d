//! The names of data sets on the hub: `hf:OWNER/NAME[@REVISION][/CONFIG][:SPLIT]`.

use std::fmt;

use crate::error::Error;
use crate::model_name::{is_id, is_plain_path};

/// The prefix that distinguishes a data set on the hub from a file.
const PREFIX: &str = "hf:";

/// The longest name of a config or a split.
const LONGEST_PART: usize = 200;

/// A data set on the hub as named by the user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DataSetName {
    /// `OWNER/NAME`.
    pub(crate) id: String,
    /// The branch, tag or commit; `main` by default.
    pub(crate) revision: String,
    /// The config; `None` for the default one.
    pub(crate) config: Option<String>,
    /// The split; `None` for `train`.
    pub(crate) split: Option<String>,
}

impl DataSetName {
    /// Returns whether the text names a data set on the hub, correctly or not.
    pub fn is_meant_by(text: &str) -> bool {
        text.starts_with(PREFIX)
    }

    /// Reads a name.
    ///
    /// # Errors
    /// [`Error::BadDataSetName`] says what is wrong with it.
    pub fn parse(text: &str) -> Result<Self, Error> {
        let bad = |why| Error::BadDataSetName { given: text.into(), why };
        let rest = text.strip_prefix(PREFIX).ok_or_else(|| bad("it does not begin with `hf:`"))?;
        let (rest, split) = match rest.split_once(':') {
            Some((rest, split)) => (rest, Some(split)),
            None => (rest, None),
        };
        let mut parts = rest.split('/');
        let (Some(owner), Some(name)) = (parts.next(), parts.next()) else {
            return Err(bad("the owner is missing"));
        };
        let (name, revision) = match name.split_once('@') {
            // `refs/pr/7` and `refs/convert/parquet` are the revisions with slashes that the hub itself
            // makes.
            Some((name, "refs")) => {
                let (Some(group), Some(last)) = (parts.next(), parts.next()) else {
                    return Err(bad("a revision that begins with `refs` has three parts: `refs/pr/7`"));
                };
                (name, format!("refs/{group}/{last}"))
            }
            Some((name, revision)) => (name, revision.to_owned()),
            None => (name, "main".to_owned()),
        };
        let id = format!("{owner}/{name}");
        if !is_id(&id) {
            return Err(bad(
                "owner and name consist of letters, digits, `-`, `_` and `.` (not doubled, not at either end)",
            ));
        }
        if revision.len() > 250 || !is_plain_path(&revision) {
            return Err(bad("the revision after `@` is not a branch, tag or commit"));
        }
        let config = parts.next();
        if parts.next().is_some() {
            return Err(bad("it has too many slashes; a config is one word after the name"));
        }
        if !config.is_none_or(is_part) {
            return Err(bad("the config after the slash is not a name"));
        }
        if !split.is_none_or(is_part) {
            return Err(bad(
                "the split after the colon is not a name; ranges as in `train[:10%]` are not supported",
            ));
        }
        Ok(Self { id, revision, config: config.map(str::to_owned), split: split.map(str::to_owned) })
    }

    /// Returns the name of the same data set at one commit, for which every later download gives the same
    /// files.
    pub(crate) fn at(&self, commit: &str) -> Self {
        Self { revision: commit.into(), ..self.clone() }
    }

    /// Returns the repository with its revision, without config and split.
    pub(crate) fn repo(&self) -> Self {
        Self { config: None, split: None, ..self.clone() }
    }
}

impl fmt::Display for DataSetName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{PREFIX}{}", self.id)?;
        if self.revision != "main" {
            write!(f, "@{}", self.revision)?;
        }
        self.config.iter().try_for_each(|config| write!(f, "/{config}"))?;
        self.split.iter().try_for_each(|split| write!(f, ":{split}"))
    }
}

/// Returns whether the text can be a config or a split, and can be printed as it is.
pub(crate) fn is_part(text: &str) -> bool {
    let is_fit = |c: char| c.is_alphanumeric() || matches!(c, '-' | '_' | '.' | '+' | ' ' | '=' | ',');
    (1..=LONGEST_PART).contains(&text.len()) && text.chars().all(is_fit) && text.trim() == text
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_name_has_up_to_four_parts() {
        for (text, id, revision, config, split) in [
            ("hf:org/set", "org/set", "main", None, None),
            ("hf:org/set:test", "org/set", "main", None, Some("test")),
            ("hf:org/set/en", "org/set", "main", Some("en"), None),
            ("hf:org/set@v1.0/en-US:validation", "org/set", "v1.0", Some("en-US"), Some("validation")),
            ("hf:org/set@refs/pr/7:train", "org/set", "refs/pr/7", None, Some("train")),
            ("hf:org/set@refs/convert/parquet/en", "org/set", "refs/convert/parquet", Some("en"), None),
        ] {
            let name = DataSetName::parse(text).unwrap();
            assert_eq!(
                (name.id.as_str(), name.revision.as_str(), name.config.as_deref(), name.split.as_deref()),
                (id, revision, config, split)
            );
            assert_eq!(name.to_string(), text);
        }
    }

    #[test]
    fn names_that_no_hub_has_are_refused_with_the_form() {
        for bad in [
            "hf:",
            "hf:set",
            "hf:org/",
            "hf:/set",
            "hf:org/set/",
            "hf:org/set:",
            "hf:org/set@",
            "hf:org/set@refs/pr",
            "hf:org/../etc",
            "hf:org/set@..",
            "hf:org/set/a/b",
            "hf:org/set:train[:10%]",
            "hf:org/set:a:b",
            "hf:org/set/\u{1b}[2J",
            "hf:org/set/\u{202e}",
            "hf:org--x/set",
            "hf:org/set?x",
        ] {
            let error = DataSetName::parse(bad).expect_err(bad).to_string();
            assert!(error.contains("hf:OWNER/NAME@REVISION/CONFIG:SPLIT"), "{error}");
            assert!(!error.contains('\u{1b}') && !error.contains('\u{202e}'), "{error}");
        }
    }

    proptest! {
        #[test]
        fn what_is_read_is_written_the_same_and_is_safe_in_an_address(text in "hf:[a-z@/:.-]{0,20}|hf:\\PC{0,12}") {
            if let Ok(name) = DataSetName::parse(&text) {
                prop_assert_eq!(DataSetName::parse(&name.to_string()).unwrap(), name.clone());
                prop_assert!(is_id(&name.id) && is_plain_path(&name.revision));
            }
        }
    }
}
