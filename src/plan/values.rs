//! How an answer's value is read from TOML and from plain text, and written so that it is read back the same.
//!
//! Plain text is what a variable, a flag or an input line on a screen holds. A list of paths is written there
//! as TOML writes it, `["a.jsonl", "b.jsonl"]`; a single path needs nothing around it.

use std::path::{Path, PathBuf};

use crate::setting::Kind;

/// A type that an answer can have.
pub(crate) trait Value: Sized + PartialEq {
    /// What kind of value it is.
    const KIND: Kind;
    /// From a TOML value of the right type.
    fn from_toml(value: &toml::Value) -> Option<Self>;
    /// From text.
    fn from_text(text: &str) -> Option<Self>;
    /// As a TOML value that [`from_toml`](Self::from_toml) may read; the caller looks whether it does.
    fn to_toml(&self) -> Option<toml::Value>;
    /// As text that [`from_text`](Self::from_text) may read; the caller looks whether it does.
    fn to_text(&self) -> Option<String>;

    /// From the words after a flag: one, except where several make one value.
    fn from_words(words: &[&str]) -> Option<Self> {
        match words {
            [text] => Self::from_text(text),
            _ => None,
        }
    }

    /// As words that [`from_words`](Self::from_words) reads.
    fn to_words(&self) -> Option<Vec<String>> {
        as_text(self).map(|text| vec![text])
    }

    /// As a number, where it is one.
    fn number(&self) -> Option<f64> {
        None
    }

    /// As paths, where it has any.
    fn paths(&self) -> Vec<&Path> {
        Vec::new()
    }
}

/// The TOML value that reads back as this one; `None` for what TOML cannot hold (a path that is not UTF-8).
pub(crate) fn written<T: Value>(value: &T) -> Option<toml::Value> {
    value.to_toml().filter(|toml| T::from_toml(toml).as_ref() == Some(value))
}

/// The text that reads back as this value; `None` where there is none (a path that is not UTF-8).
pub(crate) fn as_text<T: Value>(value: &T) -> Option<String> {
    value.to_text().filter(|text| T::from_text(text).as_ref() == Some(value))
}

impl Value for String {
    const KIND: Kind = Kind::Text;

    fn from_toml(value: &toml::Value) -> Option<Self> {
        Self::from_text(value.as_str()?)
    }

    fn from_text(text: &str) -> Option<Self> {
        (!text.trim().is_empty()).then(|| text.to_owned())
    }

    fn to_toml(&self) -> Option<toml::Value> {
        Some(self.as_str().into())
    }

    fn to_text(&self) -> Option<String> {
        Some(self.clone())
    }
}

impl Value for PathBuf {
    const KIND: Kind = Kind::Path;

    fn from_toml(value: &toml::Value) -> Option<Self> {
        Self::from_text(value.as_str()?)
    }

    fn from_text(text: &str) -> Option<Self> {
        String::from_text(text).map(Self::from)
    }

    fn to_toml(&self) -> Option<toml::Value> {
        Some(self.to_str()?.into())
    }

    fn to_text(&self) -> Option<String> {
        self.to_str().map(str::to_owned)
    }

    fn paths(&self) -> Vec<&Path> {
        vec![self.as_path()]
    }
}

impl Value for Vec<PathBuf> {
    const KIND: Kind = Kind::Paths;

    fn from_toml(value: &toml::Value) -> Option<Self> {
        match value {
            toml::Value::Array(paths) if !paths.is_empty() => paths.iter().map(PathBuf::from_toml).collect(),
            one => PathBuf::from_toml(one).map(|path| vec![path]),
        }
    }

    fn from_text(text: &str) -> Option<Self> {
        listed(text).or_else(|| PathBuf::from_text(text).map(|path| vec![path]))
    }

    fn to_toml(&self) -> Option<toml::Value> {
        self.iter().map(Value::to_toml).collect::<Option<Vec<_>>>().map(toml::Value::Array)
    }

    fn to_text(&self) -> Option<String> {
        match self.as_slice() {
            [path] if path.to_str().is_some_and(|text| listed(text).is_none()) => path.to_text(),
            _ => Some(self.to_toml()?.to_string()),
        }
    }

    /// Each path is a word as it stands, also one that begins with a bracket.
    fn from_words(words: &[&str]) -> Option<Self> {
        let paths: Vec<PathBuf> = words.iter().map(|word| PathBuf::from_text(word)).collect::<Option<_>>()?;
        (!paths.is_empty()).then_some(paths)
    }

    fn to_words(&self) -> Option<Vec<String>> {
        self.iter().map(as_text).collect()
    }

    fn paths(&self) -> Vec<&Path> {
        self.iter().map(PathBuf::as_path).collect()
    }
}

/// A list of paths in TOML's brackets. A file may have such a name too; then it stands in a list of one.
fn listed(text: &str) -> Option<Vec<PathBuf>> {
    if !text.trim_start().starts_with('[') {
        return None;
    }
    // `toml::Value` reads a whole document; a list alone is read as a value of one.
    let document: toml::Table = format!("list = {text}").parse().ok()?;
    match document.get("list")? {
        list @ toml::Value::Array(_) if document.len() == 1 => Vec::from_toml(list),
        _ => None,
    }
}

impl Value for Vec<String> {
    const KIND: Kind = Kind::Names;

    fn from_toml(value: &toml::Value) -> Option<Self> {
        match value {
            toml::Value::Array(names) if !names.is_empty() => names
                .iter()
                .map(|name| Self::from_text(name.as_str()?))
                .collect::<Option<Vec<_>>>()
                .map(|all| all.concat()),
            one => Self::from_text(one.as_str()?),
        }
    }

    fn from_text(text: &str) -> Option<Self> {
        let names: Vec<&str> = text.split(',').map(str::trim).collect();
        let are_names = names.iter().all(|name| !name.is_empty());
        are_names.then(|| names.into_iter().map(str::to_owned).collect())
    }

    fn to_toml(&self) -> Option<toml::Value> {
        Some(toml::Value::Array(self.iter().map(|name| name.as_str().into()).collect()))
    }

    fn to_text(&self) -> Option<String> {
        Some(self.join(","))
    }

    fn from_words(words: &[&str]) -> Option<Self> {
        Self::from_text(&words.join(","))
    }
}

impl Value for bool {
    const KIND: Kind = Kind::Switch;

    fn from_toml(value: &toml::Value) -> Option<Self> {
        value.as_bool()
    }

    fn from_text(text: &str) -> Option<Self> {
        text.trim().parse().ok()
    }

    fn to_toml(&self) -> Option<toml::Value> {
        Some((*self).into())
    }

    fn to_text(&self) -> Option<String> {
        Some(self.to_string())
    }
}

impl Value for u32 {
    const KIND: Kind = Kind::Whole;

    fn from_toml(value: &toml::Value) -> Option<Self> {
        value.as_integer()?.try_into().ok()
    }

    fn from_text(text: &str) -> Option<Self> {
        text.trim().replace(['_', ','], "").parse().ok()
    }

    fn to_toml(&self) -> Option<toml::Value> {
        Some((*self).into())
    }

    fn to_text(&self) -> Option<String> {
        Some(self.to_string())
    }

    fn number(&self) -> Option<f64> {
        Some(f64::from(*self))
    }
}

impl Value for u64 {
    const KIND: Kind = Kind::Whole;

    fn from_toml(value: &toml::Value) -> Option<Self> {
        value.as_integer()?.try_into().ok()
    }

    fn from_text(text: &str) -> Option<Self> {
        // TOML integers end at i64::MAX, and the plan must be writable.
        text.trim().replace(['_', ','], "").parse().ok().filter(|n| *n <= i64::MAX as Self)
    }

    fn to_toml(&self) -> Option<toml::Value> {
        i64::try_from(*self).ok().map(toml::Value::Integer)
    }

    fn to_text(&self) -> Option<String> {
        Some(self.to_string())
    }

    fn number(&self) -> Option<f64> {
        Some(*self as f64)
    }
}

impl Value for f64 {
    const KIND: Kind = Kind::Number;

    fn from_toml(value: &toml::Value) -> Option<Self> {
        value.as_float().or_else(|| value.as_integer().map(|n| n as Self)).filter(|x| x.is_finite())
    }

    fn from_text(text: &str) -> Option<Self> {
        text.trim().parse().ok().filter(|x: &Self| x.is_finite())
    }

    fn to_toml(&self) -> Option<toml::Value> {
        Some((*self).into())
    }

    fn to_text(&self) -> Option<String> {
        // Both forms are the shortest that read back the same; a learning rate reads better as 2e-4.
        let scientific = *self != 0.0 && !(1e-2..1e15).contains(&self.abs());
        Some(if scientific { format!("{self:e}") } else { self.to_string() })
    }

    fn number(&self) -> Option<f64> {
        Some(*self)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_list_of_paths_is_read_from_brackets_and_a_path_in_brackets_stays_a_path() {
        let read = |text: &str| Vec::<PathBuf>::from_text(text);
        assert_eq!(read("my data.jsonl"), Some(vec!["my data.jsonl".into()]));
        assert_eq!(
            read(r#"["a.jsonl", 'b "c".jsonl']"#),
            Some(vec!["a.jsonl".into(), r#"b "c".jsonl"#.into()])
        );
        assert_eq!(read("[2024] chats.jsonl"), Some(vec!["[2024] chats.jsonl".into()]));
        assert_eq!(read("[1, 2]"), Some(vec!["[1, 2]".into()]), "numbers are no paths, so this is a name");
        assert_eq!(read("[]\nx = 1"), Some(vec!["[]\nx = 1".into()]));
        assert_eq!(read("  "), None);
        let named_like_a_list = vec![PathBuf::from(r#"["a"]"#)];
        assert_eq!(read(&as_text(&named_like_a_list).unwrap()), Some(named_like_a_list));
    }

    #[test]
    fn names_are_read_from_one_text_with_commas_and_from_a_list() {
        let names = |names: &[&str]| Some(names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>());
        assert_eq!(Vec::<String>::from_text("a, b_c"), names(&["a", "b_c"]));
        assert_eq!(Vec::<String>::from_toml(&toml::Value::from(vec!["a", "b"])), names(&["a", "b"]));
        assert_eq!(Vec::<String>::from_text("a,,b"), None);
        assert_eq!(Vec::<String>::from_text(" "), None);
    }

    #[test]
    fn what_cannot_be_read_back_is_not_written() {
        use std::os::unix::ffi::OsStringExt;
        let path = PathBuf::from(std::ffi::OsString::from_vec(b"caf\xe9.jsonl".to_vec()));
        assert_eq!((written(&path), as_text(&path)), (None, None));
        assert_eq!((written(&vec![path.clone()]), as_text(&vec![path])), (None, None));
        assert_eq!((written(&f64::NAN), as_text(&f64::INFINITY)), (None, None));
        assert_eq!((written(&String::new()), written(&Vec::<PathBuf>::new())), (None, None));
        assert_eq!(written(&u64::MAX), None);
    }

    proptest! {
        #[test]
        fn text_and_toml_bring_back_what_was_said(
            text in any::<String>(), paths in prop::collection::vec(any::<String>(), 1..4), number in any::<f64>(),
        ) {
            let same = |text: &String| !text.trim().is_empty();
            prop_assert_eq!(as_text(&text).is_some(), same(&text));
            let paths: Vec<PathBuf> = paths.iter().filter(|path| same(path)).map(PathBuf::from).collect();
            prop_assert_eq!(as_text(&paths).is_some(), !paths.is_empty());
            prop_assert_eq!(written(&paths).is_some(), !paths.is_empty());
            prop_assert_eq!(as_text(&number).is_some(), number.is_finite());
        }
    }
}
